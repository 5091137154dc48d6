"""The page of a study, driven in a real browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from descend.errors import InputError
from reproduction.records import parse_cell
from reproduction.report import FIGURES, heat_map, write_study
from reproduction.report.drawing import requested, shown
from reproduction.report.heat_map import opened
from reproduction.report.page import put_study_page
from reproduction.report.results import Results
from tests.support.browser import HOSTILE, Guarded, Visit
from tests.support.pages import fake_frames
from tests.support.studies import line, small, write

SHOWN = ["figure-1", "figure-2", "figure-3", "table-3", "theory-3"]
PICTURED = "video-ut-5_ucsd_0.8_strong_"


def write_page(out: Path) -> Path:
    """The page of a study's folder, without the printed figures beside it."""
    results = Results.read(out)
    asked = requested(out, results)
    return put_study_page(out, results, shown(asked, results), asked.scale)


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that can be drawn."""
    return write_page(write(tmp_path_factory.mktemp("whole"), small()))


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few figures and one table, and pictures: as much as most tests need to look at."""
    out = write(tmp_path_factory.mktemp("study"), small(), SHOWN)
    for arm, left in (("erm", 0.7), ("constrained", 0.35)):
        folder = out / "runs" / f"{PICTURED}{arm}_s0"
        folder.mkdir(parents=True)
        np.savez_compressed(folder / "frames.npz", **fake_frames(5, left))
    return write_page(out)


@pytest.fixture(scope="module")
def study(browser: Browser, page_file: Path) -> Iterator[Visit]:
    """One visit for many tests: each leaves the page as it found it."""
    with Visit(browser, page_file, viewport={"width": 1280, "height": 900}) as visit:
        yield visit


def near(visit: Visit, ident: str) -> None:
    """Scroll to a section, and wait until it is drawn."""
    section = visit.page.locator(f"section#{ident}")
    section.scroll_into_view_if_needed()
    for plot in section.locator("[data-plot]").all():
        plot.scroll_into_view_if_needed()
        expect(plot.locator(".main-svg").first).to_be_attached()


def in_plot(visit: Visit, ident: str, place: int, expression: str):
    where = f"document.querySelector('#{ident} [data-plot=\"{place}\"]')"
    return visit.page.evaluate(f"(plot => {expression})({where})")


def violations(visit: Visit, within: str = "html", only: list[str] | None = None) -> list[str]:
    """What axe finds against WCAG A and AA and best practice; inside of a plot are plotly's own elements."""
    context = {"include": [[within]], "exclude": [[".plot > *"]]}
    options = {"resultTypes": ["violations"]} | ({"runOnly": only} if only else {})
    found = Axe().run(visit.page, context, options).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in found]


def test_every_section_is_drawn_without_complaint_or_network(browser: Browser, whole_file: Path) -> None:
    with Visit(browser, whole_file, viewport={"width": 1280, "height": 1600}) as visit:
        visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")  # for print all are drawn at once
        plots = visit.page.locator("[data-plot]")
        assert plots.count() == plots.locator(".cartesianlayer").count() > 60
        assert visit.complaints == []
        assert [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert visit.page.locator("section[data-section]").count() == len(FIGURES) + 2  # the grid, and answers
    assert whole_file.stat().st_size < 15e6


def test_the_page_opens_with_five_answers_and_a_picture_before_the_grids_and_folds_the_claims(study: Visit) -> None:
    opening = study.page.locator("#opening")
    answers = opening.locator("li").all_inner_texts()
    assert len(answers) == 5 and all(re.search("[Rr]uns|[Ss]ettings", answer) for answer in answers)
    headings = opening.locator("figure h3").all_inner_texts()
    assert headings == ["Constraints hold", "Loss falls at every layer", "Median gain over ERM over test noise"]
    expect(opening.locator(".cartesianlayer")).to_have_count(3)
    claims = study.page.locator("#claims")
    places = [study.page.locator(name).first.bounding_box() for name in ("#opening", "#grid", "#claims", "#figure-1")]
    assert [place["y"] for place in places] == sorted(place["y"] for place in places)
    assert places[0]["y"] + places[0]["height"] < 1400
    assert claims.get_attribute("open") is None
    claims.locator("summary").click()
    verdicts = claims.locator(".judged")
    words = verdicts.locator(".word").all_inner_texts()
    counts = " ".join(opening.locator("p").all_inner_texts())
    for form in ("Preset paper", "Descend's default"):
        of = verdicts.filter(has=study.page.get_by_text(f"{form}:", exact=True)).locator(".word").all_inner_texts()
        assert f"{form}: {of.count('Held')} held" in counts and of.count("Held") > 5
    marks = dict(zip(words, verdicts.locator(".mark").all_inner_texts(), strict=True))
    assert len(set(marks.values())) == len(marks) > 1
    assert claims.locator("a[href='#table-3']").count() == 3
    claims.locator("summary").click()


def test_each_form_has_its_grid_on_one_scale_of_colours() -> None:
    def apart(cell: dict[str, Any], noise: float) -> float:
        return 0.02 if cell["arm"] == "paper" else 0.4

    maps = heat_map.heat_maps(Results.of(parse_cell(one, "a line") for one in small(apart)))
    assert [one.name for one in maps] == ["Preset paper", "Descend's default"]
    paper, default = ([cell for _, row in one.rows for cell in row if cell] for one in maps)
    assert [cell.index for cell in paper] == [cell.index for cell in default]
    strongest = [max(cell.share for cell in cells) for cells in (paper, default)]
    assert strongest == [10, 45], "the strongest colour is that of 10 %, however much another cell gains"


def test_a_figure_has_its_values_to_hover_over(study: Visit) -> None:
    near(study, "figure-2")
    places = {title: place for place, title in enumerate(study.page.locator("#figure-2 h3").all_inner_texts())}
    place = next(place for title, place in places.items() if title.startswith("ViT"))
    (setting,) = Results.of(parse_cell(one, "a line") for one in small()).where(model="ViT")
    values = np.mean([run.summary.values for run in setting.constrained], axis=0)
    shown = in_plot(study, "figure-2", place, "plot.data.find(trace => trace.name === 'Descend\\'s default').y")
    assert shown == pytest.approx(values, rel=1e-6)
    point = study.page.locator("#figure-2 [data-plot='0'] .point").first
    point.hover(force=True)
    expect(study.page.locator("#figure-2 [data-plot='0'] .hoverlayer")).to_contain_text("from")


def test_tables_stand_beside_the_paper(study: Visit) -> None:
    row = study.page.locator("#table-3 tbody tr", has_text="0.15")
    cells = row.locator("td").all_inner_texts()
    assert {"12.442", "11.342"} <= set(cells), "UT, 3 layers, UCSD, γ = 0.15 in the paper"


def test_a_cell_opens_by_keyboard_and_gives_the_focus_back(study: Visit) -> None:
    page = study.page
    cell = page.locator("[data-cell][aria-label^='UT-5, UCSD'][data-arm^=Descend]")
    assert "beyond doubt" in cell.get_attribute("aria-label")
    cell.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog")
    expect(dialog).to_be_visible()
    assert dialog.locator("h2").inner_text() == "UT-5, UCSD, γ = 0.8"
    assert page.evaluate("document.querySelector('#cell-arm').selectedOptions[0].label") == "Descend's default"
    for form in ("Preset paper", "Descend's default"):
        assert form in dialog.locator("#cell-words").inner_text()
    shown = "document.querySelector('[data-curve={}]')"
    assert dialog.locator("figure:not([hidden])").count() == 6
    assert page.evaluate(f"Math.min(...{shown.format('weight')}.data.flatMap(trace => trace.y))") < -0.1
    assert page.evaluate(f"{shown.format('multiplier')}.data.length") == 6  # the cap and five layers
    assert page.evaluate(f"{shown.format('ratios')}.data.length") == 5
    losses = f"{shown.format('loss')}.data.flatMap(trace => trace.y)"
    before = page.evaluate(losses)
    page.select_option("#cell-seed", "2")
    assert page.evaluate(losses) != before
    page.select_option("#cell-arm", label="ERM")
    assert dialog.locator("figure:not([hidden])").count() == 3, (
        "no multipliers, violations and slack without constraints"
    )
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert page.evaluate("document.activeElement.dataset.cell") == cell.get_attribute("data-cell")
    assert study.complaints == []


def test_pictures_follow_their_sliders_and_play(study: Visit) -> None:
    near(study, "frames-0")
    page = study.page
    section = page.locator("#frames-0")
    assert section.locator(".frame figcaption").all_inner_texts() == [
        "Clean",
        "Noisy input",
        "ERM",
        "Descend's default",
    ]
    picture = section.locator(".frame", has_text="Descend's default").locator("img")
    noise, layer = section.locator("[data-control=noise]"), section.locator("[data-control=layer]")
    before = picture.get_attribute("src")
    noise.focus()
    page.keyboard.press("End")
    assert picture.get_attribute("src") != before and "γ = 1.5" in picture.get_attribute("alt")
    button = section.locator("[data-play]")
    button.click()  # from the last layer it begins at the first
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(layer).to_have_value(re.compile("[2-4]"), timeout=30_000)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    stopped = layer.input_value()
    page.wait_for_timeout(700)
    assert layer.input_value() == stopped


def test_answers_stand_side_by_side_at_each_noise(study: Visit) -> None:
    section = study.page.locator("#answers-0")
    section.scroll_into_view_if_needed()
    tables = section.locator("table:visible")
    expect(tables).to_have_count(1)
    assert tables.locator("thead th").all_inner_texts() == ["Prompt", "ERM", "Descend's default", "Preset paper"]
    noisy = tables.locator("tbody tr").first.locator("td").all_inner_texts()
    assert noisy[0].count("mouse") > noisy[1].count("mouse")
    section.locator("[data-control=noise]").focus()
    study.page.keyboard.press("Home")
    clean = tables.locator("tbody tr").first.locator("td").all_inner_texts()
    assert clean[0] == clean[1] and "mouse" not in clean[0]
    study.page.keyboard.press("End")


def test_it_is_accessible_light_and_dark_and_with_a_cell_open(study: Visit) -> None:
    assert violations(study) == []
    study.page.emulate_media(color_scheme="dark")
    assert violations(study, only=["color-contrast"]) == []
    study.page.locator("[data-cell]").first.click()
    assert violations(study, within="#cell") == []
    study.page.keyboard.press("Escape")
    study.page.emulate_media(color_scheme="light")


def test_plots_follow_dark_mode(study: Visit) -> None:
    near(study, "figure-1")
    line_ = study.page.locator("#figure-1 path.js-line").first
    light = line_.get_attribute("style"), study.page.evaluate("getComputedStyle(document.body).backgroundColor")
    study.page.emulate_media(color_scheme="dark")
    expect(line_).not_to_have_attribute("style", light[0])
    assert study.page.evaluate("getComputedStyle(document.body).backgroundColor") != light[1]
    study.page.emulate_media(color_scheme="light")


def test_it_fits_a_phone(browser: Browser, page_file: Path) -> None:
    with Visit(browser, page_file, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as visit:
        page = visit.page
        for name in ("figure-3", "table-3", "grid", "frames-0", "answers-0"):
            page.locator(f"#{name}").scroll_into_view_if_needed()
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth && innerWidth === 390")
        table = page.locator("#table-3 .scroll")
        assert table.evaluate("box => box.scrollWidth > box.clientWidth"), "wide tables scroll in a frame of their own"
        page.locator("[data-cell]").first.tap()
        box = page.locator("dialog").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
        assert violations(visit, only=["target-size", "meta-viewport", "scrollable-region-focusable"]) == []
        assert visit.complaints == []


def test_the_runs_of_a_large_study_are_thinned_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Results.of(parse_cell(one, "a line") for one in small())
    whole = opened(many)
    monkeypatch.setattr(heat_map, "BUDGET", 150_000)
    thinned = opened(many)
    assert len(json.dumps(thinned)) < 200_000 < len(json.dumps(whole))
    (arm, *_) = (arm for arm in thinned["cells"][0]["arms"] if arm["name"] == "Descend's default")
    assert [run["seed"] for run in arm["runs"]] == [0] and arm["left"] == 2
    (before, *_) = (arm for arm in whole["cells"][0]["arms"] if arm["name"] == "Descend's default")
    steps = [one["runs"][0]["curves"]["loss"]["steps"] for one in (before, arm)]
    assert len(steps[1]) < len(steps[0]) and steps[1][-1] == steps[0][-1] == 400


def test_whatever_words_are_in_a_study_they_are_text(browser: Browser, tmp_path: Path) -> None:
    hostile = " ".join(HOSTILE)
    lines = []
    for arm in ("erm", "constrained", hostile):
        for task, model in (("language", hostile), ("video", "UT")):
            more = {"answers": task == "language", "verdict": hostile, "metric": hostile}
            one = line(task, model, hostile, 3, 0.8, arm, 0, **more)
            for each in one.get("completions", []):
                each["prompt"] = each["text"] = hostile
            lines.append(one)
    write(tmp_path, lines, ["figure-2", "figure-6", "figure-16", "table-3", "table-1"])
    with Guarded(browser, write_study(tmp_path)[1]) as visit:
        for section in visit.page.locator("section").all():
            section.scroll_into_view_if_needed()
        visit.assert_quiet()
        said = " ".join(hostile.split())
        assert said in " ".join(visit.page.locator("#figure-6").text_content().split())
        answer = visit.page.locator("#answers-0 td:visible").first
        assert " ".join(answer.text_content().split()) == said
        visit.page.locator("[data-cell]").first.click()
        visit.page.locator("#cell[open]").wait_for()
        assert said in " ".join(visit.page.locator("#cell-verdict").text_content().split())
        visit.page.locator("[data-curve=loss] .main-svg").first.hover(force=True)
        visit.assert_quiet()


def test_a_study_of_one_figure_has_a_page_of_one(tmp_path: Path) -> None:
    write(
        tmp_path, [line("video", "UT", "ucsd", 3, 0.8, arm, 0) for arm in ("erm", "constrained")], ["figure-2"], "smoke"
    )
    page = write_study(tmp_path)[1].read_text()
    assert page.count("<section id=") == 2 and '<section id="figure-2"' in page and "at scale smoke" in page
    with pytest.raises(InputError, match="no study"):
        write_study(tmp_path / "elsewhere")
