"""The page, seen by a real browser."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from descend.report import write_completions, write_page
from descend.results import is_ours
from tests.support.browser import HOSTILE, Visit
from tests.support.cases import slow
from tests.support.pages import NOISE, classifier, fake_run
from tests.support.runs import put

TITLE = 'UT-7 <script>alert("x")</script> & <b>friends</b>'
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A page of a denoiser with frames, and one of a classifier with texts."""
    root, runs = tmp_path_factory.mktemp("runs"), []
    for method in ("erm", "constrained"):
        layers = [{"answer": HOSTILE[1], "confidence": 0.5 + layer / 20, "right": layer > 3} for layer in range(8)]
        texts = [{"text": HOSTILE[0], "decisions": layers}, {"text": method, "decisions": layers}]
        folder = fake_run(root / f"text-{method}", method, frames=False, **classifier())
        (folder / "decisions.json").write_text(json.dumps({"noise": 0.15, "texts": texts}))
        runs.append((fake_run(root / method, method), folder))
    return [write_page(each, root / f"{at}.html", TITLE) for at, each in enumerate(zip(*runs, strict=True))]


@pytest.fixture
def visit(browser: Browser, pages: list[Path]) -> Iterator[Visit]:
    with Visit(browser, pages[0], viewport=DESK) as visit:
        yield visit


def unfold(visit: Visit) -> None:
    visit.page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")


@pytest.mark.parametrize("size", [pytest.param(DESK, id="desk"), slow(pytest.param(PHONE, id="phone"))])
def test_it_fits_axe_finds_nothing_and_what_was_asked_is_first(browser: Browser, pages: list[Path], size: dict) -> None:
    for file, samples in zip(pages, (".layers", ".texts"), strict=True):
        assert file.stat().st_size < 1.5e6
        with Visit(browser, file, viewport=size) as visit:
            page = visit.page
            places = (".verdict", ".plots", "h2:has-text('Under noise')", ".answer table", samples, ".curious")
            tops = [page.locator(place).first.bounding_box()["y"] for place in places]
            assert tops == sorted(tops) and page.locator(".plot svg").first.is_visible()
            assert "Feasible" in page.locator(".verdict").inner_text()
            unfold(visit)
            assert page.title() == page.locator("h1").inner_text() == TITLE
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                visit.assert_fits()


def test_the_colours_of_text_and_curves_follow_dark_mode_and_paper_is_light(visit: Visit) -> None:
    def look() -> list[str]:
        places = {"body": "backgroundColor", ".plot text": "fill", ".plot [style*=d55e00]": "stroke"}
        style = "getComputedStyle(document.querySelector('{}')).{}"
        return [visit.page.evaluate(style.format(*each)) for each in places.items()]

    light = look()
    visit.page.emulate_media(color_scheme="dark")
    dark = look()
    assert all(one != other for one, other in zip(light, dark, strict=True))
    visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert visit.page.locator("details:not([open])").count() == 0
    visit.page.emulate_media(media="print", color_scheme="light")
    assert look() == light
    visit.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert visit.page.locator("details:not([open])").count() > 3
    assert visit.complaints == []


def test_the_sliders_move_all_frames(visit: Visit) -> None:
    unfold(visit)
    stills = visit.page.locator(".layers img")
    assert stills.count() == 7 * 2 + 2  # layers 0 to 7 in seven steps, of two runs; the input and the goal
    assert all(image.evaluate("image => image.naturalWidth") == 160 for image in stills.all())
    before, clean = visit.panel("constrained"), visit.panel("Clean")
    assert before[1] == f"constrained, noise γ = 0.15, layer 7, clip 1, {before[2]}"
    seen = {before}
    for control, key in (("noise", "End"), ("layer", "Home")):
        visit.page.locator(f"[data-control={control}]").press(key)
        seen.add(visit.panel("constrained"))
    assert len({src for src, _, _ in seen}) == len({error for _, _, error in seen}) == 3
    assert f"γ = {NOISE[-1]:g}, layer 0" in visit.panel("constrained")[1] and visit.panel("Clean") == clean
    assert visit.page.get_attribute("[data-control=noise]", "aria-valuetext") == f"{NOISE[-1]:g}"
    assert visit.complaints == []


def test_texts_are_shown_with_what_each_layer_decides(browser: Browser, pages: list[Path]) -> None:
    with Visit(browser, pages[1]) as visit:
        visit.assert_sound()
        assert visit.page.locator(".texts table").count() == 1  # the text that both have
        assert HOSTILE[0] in visit.page.locator(".texts tr.group").inner_text()
        row = visit.page.locator(".texts tbody tr", has_text="text-constrained").locator("td").all_inner_texts()
        assert len(row) == 7 and row[0].split() == ["✗", *HOSTILE[1].split(), "50%"] and row[-1].endswith("85%")


@pytest.mark.slow
def test_whatever_a_run_is_called_is_text(browser: Browser, tmp_path: Path) -> None:
    hostile = " ".join(HOSTILE)
    names = ("dataset", "model", "verdict", "certificate", "note", "recipe", "shift", "split", "checkpoint")
    folders = []
    for method in ("erm", hostile, hostile):  # two of one method are told apart by a setting, in their labels
        settings = {hostile: f"{hostile} {len(folders)}", "same": hostile}
        entries = classifier() | dict.fromkeys(names, hostile) | {"settings": settings, "asked": True}
        place = tmp_path / str(len(folders))  # folders of one name: labels are the settings
        place.mkdir()
        folders.append(
            fake_run(place / HOSTILE[2].replace("/", "∕"), method, seed=len(folders), frames=method == "erm", **entries)
        )
    with Visit(browser, write_page(folders, tmp_path / "report.html", hostile)) as visit:
        unfold(visit)
        visit.assert_sound()
        said = " ".join(hostile.split())
        assert " ".join(visit.page.title().split()) == said
        for place in ("h1", ".subtitle", ".verdict", ".answer table", ".plot >> nth=-1"):
            assert said in " ".join(visit.page.locator(place).first.text_content().split())


def policy(page: Path) -> dict[str, str]:
    """Directive → its value, in the policy of a page."""
    (content,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page.read_text())
    return dict(each.strip().split(" ", 1) for each in content.split(";"))


def test_a_policy_allows_the_pages_own_script_and_no_other(pages: list[Path], tmp_path: Path) -> None:
    put(tmp_path, {f"{name}.json": '[{"instruction": "a", "output": "b", "generator": "c"}]' for name in "ab"})
    answers = write_completions([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "page.html")
    for page in (*pages, answers):
        scripts = re.findall(r"<script>(.*?)</script>", page.read_text(), re.DOTALL)
        assert len(scripts) == (page != answers)
        allowed, digests = policy(page), [hashlib.sha256(each.encode()).digest() for each in scripts]
        if scripts:
            assert allowed.pop("script-src") == f"'sha256-{base64.b64encode(digests[0]).decode()}'"
        allowed.pop("script-src", None)
        assert allowed == {
            **{"default-src": "'none'", "img-src": "data:", "style-src": "'unsafe-inline'"},
            **{"base-uri": "'none'", "form-action": "'none'"},
        }


def test_a_script_in_a_page_that_is_not_ours_does_not_run(browser: Browser, pages: list[Path], tmp_path: Path) -> None:
    harm = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\"><base href=//x>"
    file = tmp_path / "page.html"
    file.write_text(pages[0].read_text().replace("<main>", f"<main>{harm}"))
    with Visit(browser, file) as visit:
        assert visit.page.title() == TITLE
        assert visit.page.evaluate("document.baseURI") == file.as_uri()
        assert sum("Content Security Policy" in each for each in visit.complaints) >= 3


def test_whatever_a_model_answers_is_text(browser: Browser, tmp_path: Path) -> None:
    rows = [
        {"instruction": f"prompt {hostile}", "output": f"answer {hostile} \ud800", "generator": HOSTILE[1]}
        for hostile in HOSTILE
    ]
    paths = [tmp_path / folder / "a.json" for folder in ("erm", "constrained")]
    put(tmp_path, dict.fromkeys(("erm/a.json", "constrained/a.json"), json.dumps(rows)))
    page = write_completions(paths, tmp_path / "page.html")
    assert is_ours(page)
    with Visit(browser, page, ready="table") as visit:
        visit.assert_sound()
        assert visit.page.locator("tbody th").all_text_contents() == [row["instruction"] for row in rows]
        answers = [f"answer {hostile} ?" for hostile in HOSTILE for _ in range(2)]
        assert visit.page.locator("td").all_text_contents() == answers
        heads = visit.page.locator("thead th").all_text_contents()
        assert HOSTILE[1] in heads[1] and len(set(heads)) == len(heads) == 3  # two files of one name are told apart
