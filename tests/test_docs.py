"""The project's pages: links lead somewhere, and what the architecture page names is in the code."""

import ast
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


def test_every_page_of_results_is_in_the_index():
    folder = ROOT / "docs" / "results"
    index = (folder / "README.md").read_text(encoding="utf-8")
    for page in folder.glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name


# --- the architecture page

PACKAGE = ROOT / "src" / "descend"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """The text of one section of the architecture page."""
    return ARCHITECTURE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def is_defined(file: Path, name: str) -> bool:
    """Whether a file defines a function, a class, or a method of a class, such as `Trainer.train`."""
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    for part in name.split("."):
        definitions = (node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part)
        found = next(definitions, None)
        if found is None:
            return False
        body = found.body
    return True


PLACES = re.findall(r"`([\w/]+\.py):([\w.]+)`", ARCHITECTURE)


@pytest.mark.parametrize(("file", "name"), PLACES, ids=lambda part: part)
def test_every_place_that_the_architecture_names_is_in_the_code(file, name):
    assert is_defined(PACKAGE / file, name)


def test_the_walk_of_losses_has_at_most_seven_stops():
    stops = re.findall(r"^\| (\d+) \| `([\w/]+\.py):([\w.]+)` \|", section("The walk of losses"), re.MULTILINE)
    assert 5 <= len(stops) <= 7 and [int(number) for number, *_ in stops] == list(range(1, len(stops) + 1))


def test_a_place_that_is_gone_is_seen(tmp_path):
    file = tmp_path / "file.py"
    file.write_text("class Loop:\n    def step(self): ...\n\ndef free(): ...\n")
    assert is_defined(file, "Loop.step") and is_defined(file, "free")
    assert not is_defined(file, "Loop.stop") and not is_defined(file, "step") and not is_defined(file, "free.step")


def test_the_architecture_is_one_page():
    assert len(ARCHITECTURE.splitlines()) <= 120


def test_no_line_of_the_architecture_is_long():
    assert [line for line in ARCHITECTURE.splitlines() if len(line) > 120] == []


# --- the API page


def attribute_docs(body: list[ast.stmt]) -> list[str]:
    """The first lines of the docstrings of a class's public attributes and properties."""
    docs = []
    for before, node in zip([None, *body], body, strict=False):
        if isinstance(node, ast.FunctionDef) and any("property" in ast.unparse(each) for each in node.decorator_list):
            docs.append("" if node.name.startswith("_") else ast.get_docstring(node) or "")
        elif isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(node, ast.Expr):
            docs.append(str(ast.literal_eval(node.value)))
    return [doc.partition("\n")[0] for doc in docs]


def test_no_attribute_of_the_api_page_is_cut_at_a_colon():
    """Napoleon takes what stands before a colon in an attribute's first line for its type."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    names = set(re.findall(r"autoclass:: [\w.]*?(\w+)$", page, re.MULTILINE))
    modules = [ast.parse(file.read_text("utf-8")).body for file in PACKAGE.rglob("*.py")]
    classes = [node for body in modules for node in body if isinstance(node, ast.ClassDef) and node.name in names]
    assert {node.name for node in classes} == names
    lines = [(node.name, line) for node in classes for line in attribute_docs(node.body)]
    assert len(lines) > 20
    assert [line for line in lines if re.search(r"(?<!:):(?!:)", re.sub(r"`+.*?`+", "", line[1]))] == []


@pytest.mark.parametrize("folder", ["guides", "explanation", "reference"])
def test_no_line_of_a_page_is_long(folder):
    pages = [ROOT / "README.md", ROOT / "docs" / "index.md", *(ROOT / "docs" / folder).glob("*.md")]
    lines = [(page.name, line) for page in pages for line in page.read_text("utf-8").splitlines()]
    assert [(page, line) for page, line in lines if len(line) > 120] == []
