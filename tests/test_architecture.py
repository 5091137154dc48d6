"""The arrows of docs/architecture.md, which room imports which, read with ast; and that what it names is there."""

import ast
import graphlib
import importlib
import operator
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "descend"

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
# A name becomes a class here and nowhere else; the package itself re-exports the public names.
EVERYWHERE = {"recipes", "run", "cli", "__init__", "__main__"}
EVERYONES = {"declared", "errors", "extras", "progress", "reading", "seeds", "writing"}
TABLE = re.findall(r"^\| (`.*) \| (.*) \|$", PAGE.split("| room | may import |")[1].split("\n## ")[0], re.M)
# A room (a package or a module directly in src/descend) → the rooms it may import, beside EVERYONES: the page's table.
ARROWS = {room: set(re.findall(r"\w+", may)) for rooms, may in TABLE for room in re.findall(r"`(\w+)`", rooms)}
ARROWS |= {room: set() for room in EVERYONES}
# Rooms that keep to the standard library and these.
LIBRARIES = {
    "core": {"torch"},
    "jackknife": {"numpy", "scipy"},
    "noise_scale": {"torch"},
    "privacy": {"numpy", "dp_accounting"},
}
FORBIDDEN = {"report": {"torch", "transformers", "accelerate", "safetensors", "optuna"}}


def imports(file: Path, *, late: bool = True) -> set[str]:
    """The names of all that a file imports, by absolute imports alone; ``late`` ones inside functions too."""
    tree = ast.parse(file.read_text("utf-8"), str(file))
    names = set()
    for node in ast.walk(tree) if late else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant)}
    return names


def rooms(package: Path) -> dict[str, list[Path]]:
    """Room → its files."""
    found: dict[str, list[Path]] = {}
    for file in sorted(package.rglob("*.py")):
        found.setdefault(file.relative_to(package).parts[0].removesuffix(".py"), []).append(file)
    return found


@pytest.mark.parametrize("room", sorted(ARROWS))
def test_arrows_point_only_where_the_plan_says(room):
    forbidden = []
    for file in rooms(PACKAGE)[room]:
        for name in sorted(imports(file)):
            library, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if library == "descend":
                wrong = room not in EVERYWHERE and target not in ARROWS.get(room, set()) | {room, *EVERYONES}
            else:
                known = library in sys.stdlib_module_names or library in LIBRARIES.get(room, {library})
                wrong = not known or library in {"reproduction", *FORBIDDEN.get(room, ())}
            if wrong:
                forbidden.append(f"{file.relative_to(PACKAGE)} imports {name}")
    assert forbidden == []


PUBLIC = "|".join(importlib.import_module("descend").__all__)
# What the reproduction imports of Descend that other users have not: it works by commands and public names, and writes
# as all of Descend does.
PRIVATE = (
    rf"descend\.(?!({PUBLIC}|results\.(forget_models|put|refuse_foreign|remove)|jackknife\.\w+|writing\.appending)$)"
)
# What tests and benchmarks import of one another, outside `tests.support`.
SHARED = r"tests\.(?!support\b)|tests$|test_|conftest\b"


@pytest.mark.parametrize(
    ("wrong", "folder"), [(PRIVATE, "reproduction"), (SHARED, "tests"), (SHARED, "benchmarks")], ids=str
)
def test_the_reproduction_imports_public_names_and_tests_support_alone(wrong, folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert [f"{file} imports {name}" for file in files for name in sorted(imports(file)) if re.match(wrong, name)] == []


def test_every_room_has_its_arrows_and_nothing_is_called_utils():
    assert rooms(PACKAGE).keys() == ARROWS.keys() | EVERYWHERE
    assert [file for file in PACKAGE.rglob("*") if file.stem in ("utils", "util", "helpers", "common")] == []


def test_no_file_imports_itself_through_others():
    """Imports at the top of files, by graphlib, which raises an error for a circle."""
    files = {
        ".".join(("descend", *file.relative_to(PACKAGE).with_suffix("").parts)): file for file in PACKAGE.rglob("*.py")
    }
    files = {name.removesuffix(".__init__"): file for name, file in files.items()}
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, file in files.items():
        for imported in imports(file, late=False):
            modules = [imported, imported.rpartition(".")[0]]
            graph[name] |= set([each for each in modules if each in files and each != name][:1])
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(files) > 100


@pytest.mark.parametrize("room", ["declared", "methods", "recipes", "settings"])
def test_what_help_and_the_report_read_imports_neither_torch_nor_a_room_that_does(room):
    light = EVERYONES - {"seeds"} | {"declared", "methods", "recipes", "settings"}
    files = [file for file in rooms(PACKAGE)[room] if file.stem not in ("configuring", "corpora")]
    names = {name.removeprefix("descend.").split(".")[0] for file in files for name in imports(file, late=False)}
    assert names <= light | sys.stdlib_module_names


@pytest.mark.parametrize(("file", "name"), re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE), ids=str)
def test_every_place_that_the_page_names_is_in_the_code(file, name):
    module = "descend." + file.removesuffix(".py").replace("/", ".")
    assert operator.attrgetter(name)(importlib.import_module(module)).__module__ == module


def test_the_walk_of_losses_has_at_most_seven_stops():
    walk = PAGE.split("\n## The walk of losses\n")[1].split("\n## ")[0]
    stops = re.findall(r"^\| (\d+) \| `[\w/]+\.py:[\w.]+` \|", walk, re.MULTILINE)
    assert 5 <= len(stops) <= 7 and stops == [str(number + 1) for number in range(len(stops))]
