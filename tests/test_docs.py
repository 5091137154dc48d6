"""The project's pages: links lead somewhere; built, they are accessible and no wider than the screen."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from benchmarks import embedding
from descend.results import Guarantee, RunConfig, Summary
from reproduction import depth, picture, robustness, table
from tests.support.cases import slow
from tests.support.documented import ROOT

WRITTEN = ("build", "tutorials")  # what a build of the site writes into docs
DOCS = [page for page in (ROOT / "docs").rglob("*.md") if page.relative_to(ROOT / "docs").parts[0] not in WRITTEN]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS, *(ROOT / "reproduction").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


CALLERS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / ".github" / "workflows").glob("*.yml")]


@pytest.mark.parametrize("page", CALLERS, ids=lambda page: page.name)
def test_make_has_the_targets_that_are_called(page):
    targets = re.findall(r"(?:^    |`|run: )make (\w+)", page.read_text("utf-8"), re.MULTILINE)
    assert targets or page.suffix == ".yml"
    assert set(targets) <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("folder", [".", "guides", "explanation", "reference"])
def test_no_line_of_a_page_is_long(folder):
    pages = [ROOT / "README.md", *(ROOT / "docs" / folder).glob("*.md")]
    lines = [(page.name, line) for page in pages for line in page.read_text("utf-8").splitlines()]
    assert [(page, line) for page, line in lines if len(line) > 120] == []


@pytest.mark.parametrize(("page", "most"), [("README.md", 110), ("docs/architecture.md", 120)])
def test_a_page_that_is_read_whole_is_short(page, most):
    assert len((ROOT / page).read_text("utf-8").splitlines()) <= most


def test_readme_and_docs_have_few_words():
    """By `wc -w`, as the log of the continuous run prints them."""
    words = {page: len(page.read_text("utf-8").split()) for page in [ROOT / "README.md", *DOCS]}
    assert words.pop(ROOT / "README.md") <= 650 and 10_000 < sum(words.values()) <= 20_000


# --- the built site in a browser; `make docs` builds it, and without it these tests skip

SITE = ROOT / "docs" / "build" / "html"
MAIN = [
    "index",
    "gallery/tutorials/index",
    "gallery/tutorials/first_denoiser",
    "gallery/pictures/method_in_pictures",
    "guides/own_data",
    "explanation/verdict",
    "results/README",
]
LONG = ["reference/files"]


built = pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="make docs builds the site")


@built
@pytest.mark.parametrize(("width", "pages"), [(1280, MAIN), slow((1280, LONG)), slow((390, MAIN + LONG))])
def test_axe_finds_nothing_on_the_site(browser, width, pages):
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    for name, scheme in product(pages, ("light", "dark")):
        page.emulate_media(color_scheme=scheme)
        page.goto((SITE / f"{name}.html").as_uri())
        violations = Axe().run(page).response["violations"]
        assert [(name, scheme, each["id"], each["nodes"][0]["html"]) for each in violations] == []
    context.close()


@built
def test_no_page_of_the_site_is_wider_than_the_screen(browser):
    page = browser.new_page()
    for name, width in product(MAIN + LONG, (1280, 390)):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto((SITE / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    page.close()


@built
def test_every_tutorial_of_the_site_ran():
    """All but that on a pretrained model, which needs weights and texts; its page says so."""
    for script in (ROOT / "docs" / "tutorials").glob("*.py"):
        page = (SITE / "gallery" / "tutorials" / f"{script.stem}.html").read_text("utf-8")
        ran = re.search(r"Total running time of the script:</strong> \(\d+ minutes [\d.]+ seconds\)", page)
        assert ran or (script.stem == "layers" and "elsewhere it shows the commands alone" in page), script


@built
def test_every_key_of_the_files_has_a_row_on_the_site():
    """The tables come from the classes; here from a summary that a class writes."""
    page = (SITE / "reference" / "files.html").read_text("utf-8")
    keys = set(re.findall(r'<code class="docutils literal notranslate"><span class="pre">(\w+)</span></code>', page))
    assert Summary.model_fields.keys() | RunConfig.model_fields.keys() - {"schema_version"} <= keys | {"schema_version"}
    assert Guarantee.model_fields.keys() <= keys


def test_readmes_numbers_are_those_of_the_results(tmp_path, capsys):
    """Of the picture, by the command that draws it; of the last paragraph, by the studies' files."""
    records = ROOT / "reproduction" / "records"
    readme = " ".join(re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", (ROOT / "README.md").read_text()).split())
    picture.main(records / "study.jsonl", tmp_path / "constraints.png")
    plain, ours, *gains = capsys.readouterr().out.splitlines()
    falls = [[int(each) for each in re.search(r"by (.*) %", line)[1].split()] for line in (plain, ours)]
    assert f"falls by {min(falls[1])} to {max(falls[1])} % a layer" in readme
    assert f"plain training's by {min(falls[0][:3])} to {max(falls[0][:3])} % up to layer 4" in readme
    ends = [re.search(r"losses ([\d. ]+),", line)[1].split()[-1] for line in (ours, plain)]
    assert "they end at {} and {}.".format(*ends) in readme
    values = {line.split(":")[0]: float(re.search(r"[+−][\d.]+", line)[0].replace("−", "-")) for line in gains}
    told = "constraints gain {ped2:.1f} % on Ped2 and lose {ped1:.1f} % on Ped1 and {avenue:.1f} % on Avenue"
    assert (
        values["ped1"] < 0 > values["avenue"]
        and told.format(**{key: abs(each) for key, each in values.items()}) in readme
    )
    assert {re.search(r"(\d) clips", line)[1] for line in gains} == {
        "4",
        "7",
    } and "4 or 7 clips prove nothing" in readme

    study = table.read(records / "study.jsonl")
    minilm = study.where(model="MiniLM", data="imdb", gamma=1, arm="paper")
    untied = study.where(model="UT", arm="algorithm-1", form="untied", depth=5, panel="main")
    unrolled = study.where(model=["UT", "DUST"], arm="paper")
    methods = table.read(records / "methods.jsonl")
    chosen = methods.rows[(methods.rows.panel == "robustness") & (methods.rows.arm == "algorithm-1")]
    further = [chosen[chosen.model == model].holds for model in ("UT", "MiniLM")]
    held = [f"{runs.holds.sum()} of {len(runs)}" for runs in (untied, unrolled)]
    held += [f"{further[0].sum()} of {len(further[0])}"]
    held += [f"{minilm.holds.sum() + further[1].sum()} of {len(minilm) + len(further[1])}"]
    told = "held on test data in {} runs of untied UT-5 at α = .22, {} at .468;"
    assert told.format(held[0], held[2]) in readme
    assert f"{held[1].replace(' of ', ' of all ')} of UT and DUST at .22 and .25; {held[3]} of MiniLM." in readme
    every = robustness.fairly(methods)
    lost = [-row.value for row in every[(every["against plain"] == "tied") & (every.gamma > 0)]["all noise"]]
    before = study.rows[(study.rows.model == "DUST") & (study.rows.depth == 5) & (study.rows.gamma == 0.8)]
    for data, panel in (("ped2", "main"), ("ped2", "searched"), ("avenue", "main")):
        runs = before[(before.data == data) & (before.panel.isin(["main", panel]))].set_index(["arm", "form", "panel"])
        ours, plain = runs.loc["algorithm-1", "untied", panel], runs.loc["erm", "tied", "main"]
        lost.append(-table.gain(ours, plain).value)
    assert f"DUST-5 {min(lost):.1f} to {max(lost):.1f} % more;" in readme
    ped2, ped1, avenue = (robustness.gain_of_setting(methods, "UT", data, 0.0) for data in ("ped2", "ped1", "avenue"))
    assert {ped2.verdict, ped1.verdict} == {"better"} and avenue.verdict == "worse"
    told = (
        f"{ped2.value:.1f} % less RMSE on Ped2, {ped1.value:.1f} % less on Ped1, {-avenue.value:.1f} % more on Avenue."
    )
    assert told.replace("Avenue.", "Avenue;") in readme
    assert f"trained with noise {values['ped2']:.1f} % less to {-values['avenue']:.1f} % more" in readme
    needed = depth.layers(methods).set_index(["model", "method"])["K within 2"]
    arms = [depth.LABELS[each] for each in ("linear", "useful-.8", "probe")]
    keep = [needed[model, arm] for model in ("DINOv2-exits", "MiniLM-exits") for arm in arms]
    told = "DINOv2-S needs {} of 12 with `linear`, the default of texts and images (`useful` at .8: {}, plain: {}), "
    told += "MiniLM {} of 6 ({}, {}; undecided)"
    assert f"{told.format(*keep)}." in readme


def test_the_page_on_noise_has_the_rows_of_the_study():
    methods = table.read(ROOT / "reproduction" / "records" / "methods.jsonl")
    page = (ROOT / "docs" / "results" / "constraints.md").read_text("utf-8")
    names = {"MiniLM": "MiniLM-6", "MPNet": "MPNet-12", "UT-text": "UT-3", "UT": "UT-5", "DUST": "DUST-5"}
    names |= {"imdb": "IMDb", "mnli": "MNLI", "ped2": "Ped2", "avenue": "Avenue", "ped1": "Ped1"}
    every = robustness.fairly(methods).sort_values("against plain", ascending=False, kind="stable")
    told = {place: [*rows["all noise"]] for place, rows in every.groupby(["model", "data", "gamma"])}
    gains = every.drop_duplicates(["model", "data", "gamma"]).set_index(["model", "data", "gamma"])
    for (model, data, gamma), row in gains.iterrows():
        assert row["seeds of both"] == {"MPNet": "3 of 3"}.get(model, "5 of 5")
        if gamma:
            where = f"{names[model]} | {names[data]} | {gamma:g} | {row['α']}".replace("0.", ".")
            found = told[model, data, gamma]
            assert f"| {where} | {row['holds']} | {'; '.join(map(_interval, found))} |" in page
            assert all(each.verdict != "better" for each in found)
    cells = ["; ".join(map(_interval, told["DUST", data, 0])) for data in ("ped2", "avenue")]
    assert f"| DUST-5, the paper's constraints | {' | '.join(cells)} | – |" in page
    arms = robustness.mechanism(methods)
    beside = "against plain training, all noise"
    clean = arms[arms.model == "UT"].set_index(["method", "data"])[beside]
    for label, words in {
        "constrained, chosen": "UT-5, the paper's constraints",
        "geometric bounds": "UT-5, geometric bounds, `useful` at .8",
        "weights l/L": "UT-5, weights l/L, `linear`",
    }.items():
        cells = [_interval(clean[label, data]) for data in ("ped2", "avenue", "ped1")]
        assert f"| {words} | {' | '.join(cells)} |" in page
    texts = arms[arms.model == "MiniLM"].set_index("method")
    several = [texts.loc[f"constrained, α = {alpha}"] for alpha in (".226", ".4")]
    assert "MiniLM has {} and {} on IMDb".format(*(_interval(row[beside]) for row in several)) in " ".join(page.split())
    assert {row.seeds for row in several} == {4}
    noisy, clean = (float(gains.loc[("UT", "ped2", gamma), arm]) for gamma, arm in ((0.9, "plain"), (0, "constrained")))
    assert f"mean RMSE {noisy:.1f} on Ped2, against {clean:.1f}" in " ".join(page.split())
    signs = robustness.signs(methods)
    ours = signs[(signs["our runs"] != robustness.LACKING) & (signs.printed != "")]
    assert f"{(ours.printed == ours.ours).sum()} of {len(ours)} agree" in " ".join(page.split())
    study = table.read(ROOT / "reproduction" / "records" / "study.jsonl")
    for data in ("ped2", "ped1", "avenue"):
        place = {"model": "UT", "depth": 5, "data": data, "gamma": 0.8, "panel": "main", "form": "untied"}
        ours, theirs = study.where(arm="algorithm-1", **place), study.where(arm="erm", **place)
        assert _interval(table.gain(ours, theirs)) in " ".join(page.split()), data
    verdicts = [
        robustness.gain_of_setting(methods, "UT", "avenue", 0.0, level).verdict
        for level in (0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)
    ]
    assert verdicts == ["better"] * 5 + ["worse"] * 3


def test_what_the_page_says_of_dust_is_in_the_rows_of_the_study():
    """Whether the constraints hold, whether plain training meets the same, and losses by layer without noise."""
    methods = table.read(ROOT / "reproduction" / "records" / "methods.jsonl")
    page = (ROOT / "docs" / "results" / "constraints.md").read_text("utf-8")
    text, readme = (" ".join(each.split()) for each in (page, (ROOT / "README.md").read_text("utf-8")))
    runs = methods.rows[(methods.rows.model == "DUST") & (methods.rows.panel == "robustness")]
    ours, plain = runs[runs.arm == "algorithm-1"], runs[runs.arm == "erm"]
    held = {place: list(rows.holds) for place, rows in ours.groupby(["data", "gamma"])}
    assert all(all(held[place]) for place in (("ped2", 0), ("avenue", 0), ("avenue", 0.77)))
    assert not any(held["ped2", 0.9]) and {len(each) for each in held.values()} == {5} and len(held) == 4
    alpha, cap = {row.settings["alpha"] for row in ours.itertuples()}, {row.cap for row in ours.itertuples()}
    met = [table.meets(row.losses[f"{row.gamma:g}"], *alpha, *cap, 1) for row in plain.itertuples()]
    assert (sum(met), len(met)) == (0, 40)
    clean = "10 of 10 | 0 of 10 with five dictionaries, 0 of 10 with one"
    assert f"| DUST-5, α = .173, cap 6.5, trained without noise | {clean} |" in page
    assert "| with noise: Avenue | 5 of 5 | 0 of 5, 0 of 5 |\n| with noise: Ped2 | 0 of 5 | 0 of 5, 0 of 5 |" in page
    assert "15 of 20 of untied DUST-5 at .173;" in readme
    both = methods.rows[methods.rows.model.isin(["UT", "DUST"]) & (methods.rows.panel == "robustness")]
    falls = {
        key: f"{rows.falls.sum()} of {len(rows)}"
        for key, rows in both.groupby([both.gamma > 0, "model", "arm", "form"])
    }
    told = "in {} runs of UT-5 (α = .468) and in {} of DUST-5 (.173), by plain training in {} and {} (with one"
    told += " dictionary {})"
    arms = [("UT", "algorithm-1", "untied"), ("DUST", "algorithm-1", "untied"), ("UT", "erm", "untied")]
    arms += [("DUST", "erm", "untied"), ("DUST", "erm", "tied")]
    assert told.format(*(falls[False, *arm] for arm in arms)) in text
    told = "with noise in {} and {}, by plain training in {} and {}."
    assert told.format(*(falls[True, *arm] for arm in arms[:4])) in text
    ours, *plain = (_clean(rows, form) for rows, form in ((ours, "untied"), (plain, "untied"), (plain, "tied")))
    losses = {place: np.mean([row["0"] for row in rows.losses], 0) for place, rows in plain[0].items()}
    raised = [losses[data][4] / losses[data][3] for data in ("ped2", "avenue")]
    told = "layer 4 of plain training has {:.0f} times the loss of layer 3, on Avenue {:.0f} times;"
    assert told.format(*raised) in text
    names = ("constrained, α = .173, .001", "plain training, five dictionaries, rate .004")
    for name, rows in zip((*names, "plain training, one dictionary, .002"), (ours, *plain), strict=True):
        mean = np.mean([row["0"] for row in rows["ped2"].losses], 0)
        (shown,) = re.findall(rf"(?<=\n\| {name} \| ).*(?= \|\n)", page)
        assert [float(cell) for cell in shown.split(" | ")] == pytest.approx(list(mean), rel=0.03)


def _clean(runs, form):
    return dict([*runs[(runs.gamma == 0) & (runs.form == form)].groupby("data")])


def _interval(gain):
    return str(gain).replace(" %", "")


def test_the_pages_on_embedding_models_have_the_rows_of_their_command():
    rows = embedding.read_rows([ROOT / "reproduction" / "records" / "embedding.jsonl"])
    printed = list(embedding.tables(rows))
    full, short = (ROOT / place for place in ("reproduction/records/embedding.md", "docs/results/layers.md"))
    assert "\n".join(printed).strip() in full.read_text("utf-8")
    arms = {"plain training": "erm", "`linear`, the default": "linear", "`--within 0.1`": "within-.1"}
    arms |= {"AdaptiveLayerLoss": "adaptive", "the same, all layers a step": "adaptive-all"}
    for name, arm in arms.items():
        row = next(line for line in printed if line.startswith(f"| `{arm}` |")).split(" | ")[4:]
        assert f"| {name} | {' | '.join(row)}" in short.read_text("utf-8")


def test_the_pages_on_layers_have_the_rows_of_the_study():
    """Each method of each model in the record; in the results accuracies of some layers and K."""
    places = ("reproduction/records/layers.md", "docs/results/layers.md")
    full, short = ((ROOT / place).read_text("utf-8") for place in places)
    found = depth.layers(table.read(ROOT / "reproduction" / "records" / "methods.jsonl"))
    names = {"probe": "plain training", "linear": "`linear`, the default", "useful-.8": "`useful`, strength .8"}
    named = {depth.LABELS[arm]: name for arm, name in names.items()}
    last = "last layer less plain training's, points"
    for row in found.to_dict("records"):
        accuracy = [value for name, value in row.items() if re.fullmatch(r"layer \d+", name) and value]
        k = [row[f"K within {each}"] for each in depth.POINTS]
        cells = [row["method"], f"{float(row['rate']):.0e}".replace("e-0", "e-"), row["seeds"], *accuracy, *k]
        cells += [row["K within 1 by seed"], row[last].replace("-", "−"), row["another is better at"]]
        assert f"| {' | '.join(map(_typeset, cells))} |" in full
        some = accuracy[2::2] if len(accuracy) > 7 else accuracy[1:]
        if row["method"] in named:
            assert f"| {' | '.join(map(_typeset, [named[row['method']], *some, *k[:2]]))} |" in short


def _typeset(value):
    return re.sub(r"(?<!\d)0\.", ".", str(value))


def test_no_page_says_that_the_last_layer_is_unharmed():
    """Harm was not excluded; and what needs ``import descend.models`` is no plain checkpoint."""
    wrong = re.compile(r"(last one|last layer|the last)( is)? unharmed|plain checkpoint|loads alone")
    places = [ROOT / "CITATION.cff", ROOT / "pyproject.toml", *PAGES, *(ROOT / "src").rglob("*.py")]
    allowed = {"layers.md", "CHANGELOG.md"}  # a question and its answer; history
    found = [(path.name, hit[0]) for path in places if (hit := wrong.search(" ".join(path.read_text("utf-8").split())))]
    assert [each for each in found if each[0] not in allowed] == []
