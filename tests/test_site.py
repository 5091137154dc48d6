"""The built site in a browser: accessible and no wider than the screen. `make docs` builds it; without, tests skip."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.support.documented import ROOT

SITE = ROOT / "docs" / "build" / "html"
MAIN = [
    "index",
    "gallery/tutorials/index",
    "gallery/tutorials/first_denoiser",
    "gallery/pictures/method_in_pictures",
    "guides/own_data",
    "explanation/verdict",
    "reference/files",
    "results/README",
]


@pytest.fixture(scope="module")
def pages():
    if not (SITE / "index.html").is_file():
        pytest.skip("make docs builds the site")
    return SITE


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_and_no_page_is_wider_than_the_screen(pages, browser, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    for name in MAIN:
        page.goto((pages / f"{name}.html").as_uri())
        violations = Axe().run(page).response["violations"]
        assert [(name, each["id"], each["nodes"][0]["html"]) for each in violations] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    context.close()


def test_every_tutorial_ran(pages):
    """All but that on a pretrained model, which needs weights and texts; its page says so."""
    for script in (ROOT / "docs" / "tutorials").glob("*.py"):
        page = (pages / "gallery" / "tutorials" / f"{script.stem}.html").read_text("utf-8")
        ran = re.search(r"Total running time of the script:</strong> \(\d+ minutes [\d.]+ seconds\)", page)
        assert ran or (script.stem == "layers" and "elsewhere it shows the commands alone" in page), script


def test_every_key_of_the_files_has_a_row(pages):
    """The tables come from the classes; here from a summary that a class writes."""
    from descend.results import RunConfig, Summary

    page = (pages / "reference" / "files.html").read_text("utf-8")
    keys = set(re.findall(r'<code class="docutils literal notranslate"><span class="pre">(\w+)</span></code>', page))
    assert Summary.model_fields.keys() | RunConfig.model_fields.keys() - {"schema_version"} <= keys | {"schema_version"}
