"""The page, seen by a real browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from descend.report import write_completions, write_page
from tests.support.browser import HOSTILE, Guarded, Visit
from tests.support.pages import NOISE, classifier, fake_run, geometric

TITLE = 'UT-7 <script>alert("x")</script> & <b>friends</b>'


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    runs = [fake_run(root / method, method) for method in ("erm", "constrained")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("descend.report.page.FRAMES_BUDGET", 4_000_000)  # both clips
        return write_page(runs, root / "report.html", TITLE)


@pytest.fixture
def visit(browser: Browser, page_file: Path) -> Iterator[Visit]:
    with Visit(browser, page_file, viewport={"width": 1280, "height": 900}) as visit:
        yield visit


def test_it_loads_without_complaint_or_network_and_has_its_title_and_verdict(visit: Visit) -> None:
    assert visit.complaints == []
    assert visit.page.title() == visit.page.locator("h1").inner_text() == TITLE
    verdict = visit.page.locator(".verdict")
    assert "Feasible" in verdict.inner_text()
    assert verdict.inner_text().count("bind") == verdict.inner_text().count("layers 2 and 5 bind") == 1
    assert verdict.bounding_box()["y"] < visit.page.locator(".curious table").first.bounding_box()["y"]
    assert [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    plots = visit.page.locator(".plot")
    assert plots.count() == plots.locator(".main-svg").locator("..").locator(".cartesianlayer").count() == 5


def test_what_is_not_certain_has_a_colour_of_its_own(browser: Browser, tmp_path: Path) -> None:
    proven = {"feasible": False, "violation_intervals": [[0.1, 0.5]] * 7}
    states = {"certain": {}, "undecided": {"certain": False}, "broken": proven, "open": {"groups": 3}}
    looks = set()
    for name, entries in states.items():
        run = fake_run(tmp_path / name, "constrained", frames=False, **entries)
        with Visit(browser, write_page([run], tmp_path / f"{name}.html", name)) as visit:
            ground = "getComputedStyle(document.querySelector('.verdict')).backgroundColor"
            looks.add((visit.page.evaluate(ground), visit.page.locator(".headline .mark").inner_text()))
    assert len({ground for ground, _ in looks}) == len({mark for _, mark in looks}) == 4


def test_a_noise_slider_moves_frames_plot_and_the_other_slider(visit: Visit) -> None:
    before, losses = visit.panel("Constrained"), visit.plot("losses", "plot.data[0].y")
    clean = visit.panel("Clean")
    visit.slide("frames-noise-0", "End")
    after = visit.panel("Constrained")
    assert after[0] != before[0] and after[2] != before[2]
    assert f"γ = {NOISE[-1]:g}" in after[1]
    assert visit.panel("Clean") == clean
    assert visit.plot("losses", "plot.data[0].y") != losses
    assert visit.page.input_value("#losses-noise-0") == str(len(NOISE) - 1)
    assert visit.page.get_attribute("#frames-noise-0", "aria-valuetext") == f"{NOISE[-1]:g}"
    assert visit.complaints == []


def test_layer_and_clip_change_the_reconstructions(visit: Visit) -> None:
    seen = {visit.panel("ERM")}
    visit.slide("frames-layer-0", "ArrowLeft")
    seen.add(visit.panel("ERM"))
    visit.page.click("label:has(input[name=clip-0][value='1'])")
    seen.add(visit.panel("ERM"))
    assert len({src for src, _, _ in seen}) == len({alt for _, alt, _ in seen}) == 3
    assert "layer 6" in visit.panel("ERM")[1] and "clip 2" in visit.panel("ERM")[1]


def test_the_layers_can_be_played(visit: Visit) -> None:
    button = visit.page.locator("[data-play]")
    rest = "getComputedStyle(document.querySelector('[data-play]')).backgroundColor"
    ground = visit.page.evaluate(rest)
    assert button.bounding_box()["height"] >= 40
    # Each layer as the page shows it: slider, picture and the line in the plot of the losses.
    visit.page.evaluate("""() => {
        window.seen = [];
        const image = document.querySelector(".frame:last-child img");
        const line = () => document.querySelector("[data-plot=losses]").layout.shapes[0].x0;
        const look = () => seen.push([document.querySelector("#frames-layer-0").value, image.alt, line()]);
        new MutationObserver(look).observe(image, { attributeFilter: ["alt"] });
    }""")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    assert visit.page.evaluate(rest) != ground
    expect(button).to_have_attribute("aria-pressed", "false")
    seen = visit.page.evaluate("seen")
    assert [(int(value), line) for value, _, line in seen] == [(step, step) for step in range(8)]
    assert [f"layer {step}," in alt for step, (_, alt, _) in enumerate(seen)] == [True] * 8
    # A second press stops it where it is.
    visit.page.evaluate("""() => new Promise((done) => {
        const button = document.querySelector("[data-play]");
        button.click();
        const timer = setInterval(() => {
            if (document.querySelector("#frames-layer-0").value !== "1") return;
            clearInterval(timer);
            done(button.click());
        }, 20);
    })""")
    expect(button).to_have_attribute("aria-pressed", "false")
    visit.page.wait_for_timeout(1200)
    assert visit.page.input_value("#frames-layer-0") == "1"
    assert visit.complaints == []


def test_bars_are_where_bounds_are_known(browser: Browser, tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", "constrained", **geometric())
    with Visit(
        browser, write_page([run], tmp_path / "report.html", "bars"), viewport={"width": 390, "height": 844}
    ) as visit:
        visit.page.locator("[data-plot=losses]").scroll_into_view_if_needed()
        bars = visit.page.locator("[data-plot=losses] .scatterlayer .trace:last-child .point")
        expect(bars).to_have_count(6)
        plot = visit.page.locator("[data-plot=losses] .nsewdrag")
        box = plot.bounding_box()
        plot.hover(position={"x": box["width"] * 2.4 / 7.8, "y": box["height"] / 2})
        expect(visit.page.locator("[data-plot=losses] .hoverlayer")).to_contain_text("had to reach : 5.5")
        visit.slide("losses-noise-0", "End")
        expect(visit.page.locator("[data-plot=losses] .scatterlayer .trace")).to_have_count(1)
        assert "layer 1 by 54.7%" in visit.page.locator(".findings").inner_text()
        assert visit.page.locator("details tr", has_text="Layer 4").inner_text().split("\n")[-1] == "not certain"
        assert visit.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert visit.complaints == []


def test_the_log_scale_can_be_left(visit: Visit) -> None:
    assert visit.plot("losses", "plot.layout.yaxis.type") == "log"
    visit.page.uncheck("[data-control=log]")
    assert visit.plot("losses", "plot.layout.yaxis.type") == "linear"


def test_it_fits_a_phone(browser: Browser, page_file: Path) -> None:
    with Visit(browser, page_file, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as visit:
        page = visit.page
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth && innerWidth === 390")
        boxes = [box.bounding_box() for box in page.locator(".frame").all()]
        assert len({round(box["x"]) for box in boxes}) == len({round(box["y"]) for box in boxes}) == 2


def test_it_follows_dark_mode(visit: Visit) -> None:
    def look():
        ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return ground, line.get_attribute("style"), visit.plot("losses", "plot.layout.font.color")

    line = visit.page.locator("[data-plot=losses] path.js-line").first
    light = look()
    visit.page.emulate_media(color_scheme="dark")
    expect(line).not_to_have_attribute("style", light[1])
    assert all(before != after for before, after in zip(light, look(), strict=True))
    assert visit.complaints == []


def test_every_control_has_a_name_and_every_picture_a_text(visit: Visit) -> None:
    unnamed = "[...document.querySelectorAll('input')].filter(input => !input.labels.length).length"
    assert visit.page.evaluate(unnamed) == 0
    assert all(image.get_attribute("alt") for image in visit.page.locator("img").all())
    assert all(plot.get_attribute("aria-label") for plot in visit.page.locator(".plot").all())


def test_a_study_has_a_section_per_setting_and_says_loudly_what_is_infeasible(browser: Browser, tmp_path: Path) -> None:
    folders = [
        fake_run(
            tmp_path / f"{method}-{regime}-{seed}",
            method,
            seed=seed,
            train_noise=regime,
            feasible=seed == 0,
            frames=False,
        )
        for regime in (0.15, 0.6)
        for method in ("constrained", "erm")
        for seed in (0, 1)
    ]
    file = write_page(folders, tmp_path / "report.html", "Study")
    with Visit(browser, file) as visit:
        assert visit.complaints == []
        assert visit.page.locator("[data-section]").count() == 2
        assert "Not feasible in 2 of 4 runs" in visit.page.locator(".verdict.broken").first.inner_text()
        assert "they differ in training noise" in visit.page.locator(".subtitle").inner_text()
        row = visit.page.locator("tbody tr", has_text="Constrained").first.inner_text()
        assert "±" in row and "1 of 2" in row
        assert visit.page.locator("details.curious:not([open])").count() == 2
        assert visit.page.locator("details:not(.curious)").count() == 3  # the runs, and each section's layers


def test_the_page_stays_small(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / method, method) for method in ("erm", "constrained")]
    page = write_page(runs, tmp_path / "report.html", "frames")
    assert page.stat().st_size < 2.5e6
    assert not re.search(r'(src|href)="(?!data:|#)', page.read_text().split("<script")[0])
    texts = [fake_run(tmp_path / f"{seed}", "erm", frames=False, seed=seed, **classifier()) for seed in (0, 1)]
    assert write_page(texts, tmp_path / "texts.html", "texts").stat().st_size < 2e6


def test_it_opens_with_numbers_a_picture_and_the_frames_of_each_layer(visit: Visit) -> None:
    page = visit.page
    lead, plot = page.locator(".numbers"), page.locator("[data-plot=opening]")
    assert lead.locator("tbody th").all_inner_texts()[:2] == ["ERM", "Constrained"]
    images = page.locator(".layers img")
    tops = [part.bounding_box()["y"] for part in (lead, plot, images.first, page.locator(".verdict"))]
    assert tops == sorted(tops)
    # Layers 0 to 7 in seven steps, of two runs; the noisy input and the clean picture.
    assert images.count() == 7 * 2 + 2
    assert all(image.evaluate("image => image.naturalWidth") == 160 for image in images.all())
    alts = [image.get_attribute("alt") for image in images.all()]
    assert alts[1].startswith("Constrained, layer 0, RMSE ") and alts[13].startswith("Constrained, layer 7, RMSE ")
    assert alts[13].endswith(visit.panel("Constrained")[2])
    # It stands at the training noise, where the numbers are.
    before = visit.plot("opening", "plot.data[0].y"), images.nth(4).get_attribute("src")
    visit.slide("frames-noise-0", "End")
    assert (visit.plot("opening", "plot.data[0].y"), images.nth(4).get_attribute("src")) == before


def test_all_the_rest_can_be_folded_by_keyboard(visit: Visit) -> None:
    rest = visit.page.locator("details.curious")
    table = rest.locator("table").first
    expect(table).to_be_visible()
    rest.locator("> summary").focus()
    visit.page.keyboard.press("Enter")
    expect(table).to_be_hidden()
    visit.page.keyboard.press("Enter")
    expect(table).to_be_visible()
    assert visit.complaints == []


def test_paper_shows_everything_unfolded_on_a_light_ground(browser: Browser, page_file: Path) -> None:
    with Visit(browser, page_file, color_scheme="dark", viewport={"width": 1280, "height": 900}) as visit:
        page = visit.page
        page.locator("details.curious > summary").click()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print", color_scheme="dark")
        assert page.locator("details:not([open])").count() == 0
        for plot in page.locator(".plot").all():
            expect(plot.locator(".main-svg").first).to_be_attached()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        assert visit.plot("losses", "plot.layout.font.color") == "#1d1c1a"
        assert not any(part.is_visible() for part in page.locator(".controls, .play").all())
        page.emulate_media(media="screen", color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details.curious:not([open])").count() == 1
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
        assert visit.complaints == []


def test_a_browser_that_can_not_unpack_the_plots_says_so(browser: Browser, page_file: Path) -> None:
    with Visit(browser, page_file, before="delete globalThis.DecompressionStream") as visit:
        assert "no DecompressionStream" in visit.page.locator("[data-plot=opening]").inner_text()
        visit.slide("frames-layer-0", "Home")
        assert "layer 0" in visit.panel("ERM")[1]
        assert visit.complaints == []


def test_axe_finds_nothing(browser: Browser, page_file: Path) -> None:
    for scheme in ("light", "dark"):
        with Visit(browser, page_file, viewport={"width": 1280, "height": 900}, color_scheme=scheme) as visit:
            found = Axe().run(visit.page, context={"exclude": [[".plot > *"]]}).response["violations"]
            assert [violation["id"] for violation in found] == [], scheme


def test_the_glossary_lists_what_the_page_shows_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / method, method) for method in ("erm", "constrained")]
    with Visit(browser, write_page(runs, tmp_path / "report.html", "words")) as visit:
        names = visit.page.locator("footer dt").all_inner_texts()
        shown = ("UT", "RMSE", "γ, noise level", "λ, multiplier", "fl, loss", "ERM, plain training")
        assert {*shown, "Feasible, infeasible, open", "Layer l, L"} <= set(names)
        assert not {"DUST", "ViT", "Accuracy", "NEFTune", "Linear probe"} & set(names)
        assert "grey values" in visit.page.locator("footer").inner_text()
    own = fake_run(tmp_path / "own", "erm", frames=False, recipe="Regression")
    page = write_page([own], tmp_path / "report.html", "words").read_text().split("<script")[0]
    assert "<dt>RMSE</dt>" in page and "the target’s own unit" in page and "picture" not in page
    texts = fake_run(tmp_path / "texts", "erm", frames=False, **classifier())
    page = write_page([texts], tmp_path / "report.html", "words").read_text()
    assert "<dt>Exit</dt>" in page and "<dt>Accuracy</dt>" in page and "<dt>RMSE</dt>" not in page


def test_a_classifiers_page_has_its_own_figures(browser: Browser, tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / method, method, frames=False, **classifier()) for method in ("erm", "constrained")]
    with Visit(browser, write_page(runs, tmp_path / "report.html", "texts")) as visit:
        assert visit.complaints == []
        headings = visit.page.locator(".curious figure h3").all_inner_texts()
        assert headings == [
            *(
                "Loss along the layers",
                "Accuracy against noise",
                "Accuracy along the layers",
                "Accuracy against time",
            ),
            *("Descent of single samples", "Where answers settle", "Early exits"),
            *("Multipliers", "Constraints on held-out data"),
        ]
        assert "Not trained by <Descend>." in visit.page.locator(".verdict").inner_text()
        words = visit.page.locator(".findings").inner_text()
        row = visit.page.locator(".curious table").first.locator("tbody tr").first
        assert row.inner_text().split("\t")[:4] == ["ERM", "0.665", "7.04", "0.99"]
        ratio = "the loss of a single sample after a layer over that before it: median 0.9; 93\u00a0% are below 1."
        assert f"Constrained: {ratio}" in words and "0.95" not in words
        assert (
            "Early exits at a confidence of 0.9, chosen on validation data, use 5.00 of 7 layers on average and 0.80"
            in words
        )
        # Eight layers at γ = 0.15, then at the noise that the slider of the losses is moved to.
        assert visit.plot("metrics", "plot.data[0].y[0]") == pytest.approx(0.5 - 0.05 * 0.15)
        visit.slide("losses-noise-0", "End")
        assert visit.plot("metrics", "plot.data[0].y[0]") == pytest.approx(0.5 - 0.05 * 1.5)
        # The rings go along with the noise.
        assert visit.plot("metrics", "plot.data.at(-1).text") == ["1, 2", "5"]
        assert visit.plot("metrics", "plot.data.at(-1).x") == [7, 6]
        assert visit.plot("metrics", "plot.data.at(-1).y[0]") == pytest.approx(0.71 - 0.05 * 1.5)
        assert visit.plot("times", "plot.data.length") == 4
        assert visit.plot("times", "plot.data[0].y[0]") == pytest.approx(0.5 - 0.05 * 1.5)
        assert visit.plot("settled", "plot.data.at(-1).y.at(-1)") == pytest.approx(1)
        assert visit.plot("exits", "plot.data.map(trace => trace.name)")[0] == "ERM, confidence"
        assert visit.plot("losses", "plot.data.map(trace => trace.name)").count("ERM, linear probe") == 1


def test_texts_are_shown_with_what_each_layer_decides(browser: Browser, tmp_path: Path) -> None:
    folders = []
    for method in ("erm", "constrained"):
        folder = fake_run(tmp_path / method, method, frames=False, **classifier())
        layers = [{"answer": HOSTILE[1], "confidence": 0.5 + layer / 20, "right": layer > 3} for layer in range(8)]
        texts = [{"text": HOSTILE[0], "decisions": layers}, {"text": method, "decisions": layers}]
        (folder / "decisions.json").write_text(json.dumps({"noise": 0.15, "texts": texts}))
        folders.append(folder)
    with Guarded(browser, write_page(folders, tmp_path / "report.html", "texts")) as visit:
        visit.assert_quiet()
        assert visit.page.locator(".texts table").count() == 1  # the text that both have
        assert HOSTILE[0] in visit.page.locator(".texts tr.group").inner_text()
        row = visit.page.locator(".texts tbody tr", has_text="Constrained").locator("td").all_inner_texts()
        assert len(row) == 7 and row[0].split() == ["✗", *HOSTILE[1].split(), "50%"] and row[-1].endswith("85%")
        found = Axe().run(visit.page, context={"exclude": [[".plot > *"]]}).response["violations"]
        assert [violation["id"] for violation in found] == []


def test_quality_against_depth_and_time_on_any_screen(browser: Browser, tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / method, method, frames=False, **classifier()) for method in ("erm", "constrained")]
    page = write_page(runs, tmp_path / "report.html", "texts")
    for size in ({"width": 1280, "height": 900}, {"width": 390, "height": 844}):
        with Visit(browser, page, viewport=size) as visit:
            visit.page.locator("summary", has_text="First layer close to full depth").click()
            row = visit.page.locator("details[open] tbody tr", has_text="Constrained").last
            expect(row).to_contain_text("layer 6")
            visit.page.locator("[data-plot=times]").scroll_into_view_if_needed()
            expect(visit.page.locator("[data-plot=times] .textpoint").first).to_be_attached()
            assert visit.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
            assert visit.complaints == []
            found = Axe().run(visit.page, context={"exclude": [[".plot > *"]]}).response["violations"]
            assert [violation["id"] for violation in found] == []


def test_whatever_a_run_is_called_is_text(browser: Browser, tmp_path: Path) -> None:
    hostile = " ".join(HOSTILE)
    names = ("dataset", "model", "verdict", "certificate", "note", "recipe", "shift", "split", "checkpoint")
    folders = []
    for method in ("erm", hostile, hostile):  # two of one method are told apart by a setting, in their labels
        settings = {hostile: f"{hostile} {len(folders)}", "same": hostile}
        entries = classifier() | dict.fromkeys(names, hostile) | {"settings": settings, "asked": True}
        name = f"{len(folders)} {HOSTILE[2]}".replace("/", "∕")
        folders.append(fake_run(tmp_path / name, method, seed=len(folders), frames=method == "erm", **entries))
    with Guarded(browser, write_page(folders, tmp_path / "report.html", hostile)) as visit:
        visit.assert_quiet()
        said = " ".join(hostile.split())
        assert " ".join(visit.page.title().split()) == said
        for place in ("h1", ".subtitle", ".verdict", "table"):
            assert said in " ".join(visit.page.locator(place).first.text_content().split())
        # What plotly makes of a name in its own kind of HTML; a section is drawn when it is near.
        visit.page.locator("[data-plot=violations]").scroll_into_view_if_needed()
        expect(visit.page.locator("[data-plot=violations] .legendtext").first).to_be_attached()
        names = visit.page.locator("[data-plot=violations] .legendtext").all_text_contents()
        assert any(name == f"{hostile}, {hostile} {hostile} 2" for name in names), names
        visit.page.locator("[data-plot=violations] .point").first.hover(force=True)
        visit.assert_quiet()


def test_whatever_a_model_answers_is_text(browser: Browser, tmp_path: Path) -> None:
    rows = [
        {"instruction": f"prompt {hostile}", "output": f"answer {hostile} \ud800", "generator": HOSTILE[1]}
        for hostile in HOSTILE
    ]
    paths = [tmp_path / folder / "a.json" for folder in ("erm", "constrained")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(json.dumps(rows))
    page = write_completions(paths, tmp_path / "page.html")
    with Guarded(browser, page, ready="table") as visit:
        visit.assert_quiet()
        assert visit.page.locator("tbody th").all_text_contents() == [row["instruction"] for row in rows]
        answers = [f"answer {hostile} ?" for hostile in HOSTILE for _ in range(2)]
        assert visit.page.locator("td").all_text_contents() == answers
        heads = visit.page.locator("thead th").all_text_contents()
        assert HOSTILE[1] in heads[1] and len(set(heads)) == len(heads) == 3  # two files of one name are told apart
