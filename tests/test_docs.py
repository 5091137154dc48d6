"""The project's pages: links lead somewhere, and what the architecture page names is in the code."""

import importlib
import operator
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = [page for page in (ROOT / "docs").rglob("*.md") if page.relative_to(ROOT / "docs").parts[0] != "build"]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS])
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


# --- the architecture page

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "name"), re.findall(r"`([\w/]+\.py):([\w.]+)`", ARCHITECTURE), ids=str)
def test_every_place_that_the_architecture_names_is_in_the_code(file, name):
    module = "descend." + file.removesuffix(".py").replace("/", ".")
    assert operator.attrgetter(name)(importlib.import_module(module)).__module__ == module


def test_the_architecture_is_one_page_whose_walk_of_losses_has_at_most_seven_stops():
    assert len(ARCHITECTURE.splitlines()) <= 120
    walk = ARCHITECTURE.split("\n## The walk of losses\n")[1].split("\n## ")[0]
    stops = re.findall(r"^\| (\d+) \| `[\w/]+\.py:[\w.]+` \|", walk, re.MULTILINE)
    assert 5 <= len(stops) <= 7 and stops == [str(number + 1) for number in range(len(stops))]


@pytest.mark.parametrize("folder", [".", "guides", "explanation", "reference"])
def test_no_line_of_a_page_is_long(folder):
    pages = [ROOT / "README.md", *(ROOT / "docs" / folder).glob("*.md")]
    lines = [(page.name, line) for page in pages for line in page.read_text("utf-8").splitlines()]
    assert [(page, line) for page, line in lines if len(line) > 120] == []
