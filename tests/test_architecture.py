"""The arrows of docs/architecture.md: which room imports which. Read with ast; nothing is imported."""

import ast
import graphlib
import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "descend"
REPRODUCTION = ROOT / "reproduction"

# A room (a package or a module directly in src/descend) → the rooms it may import, beside EVERYONES.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "extras": set(),
    "methods": set(),
    "reading": set(),
    "settings": set(),
    "jackknife": set(),
    "progress": set(),
    "core": set(),
    "models": set(),
    "tasks": {"progress", "transfer"},
    "seeds": set(),
    "noise_scale": set(),
    "noise": {"noise_scale", "seeds"},
    "privacy": {"noise_scale"},
    "tiles": {"models", "seeds", "tasks", "transfer"},
    "trial": {"models", "tasks"},
    "contract": {"models", "tasks", "noise", "trial"},
    "transfer": set(),
    "objective": {"contract", "core", "models", "tasks", "noise", "tiles", "transfer"},
    "training": {
        "core",
        "evaluation",
        "models",
        "noise",
        "objective",
        "results",
        "seeds",
        "tasks",
        "tiles",
    },
    "evaluation": {"objective", "core", "jackknife", "models", "noise", "progress", "results", "tasks", "tiles"},
    "inference": {"models", "noise", "results", "tasks"},
    "results": set(),
    "report": {"jackknife", "results"},
    "harness": {"models", "noise", "progress", "results", "run", "seeds"},
    "sweep": {"recipes", "results", "run", "seeds", "training"},
}
# A name becomes a class here and nowhere else; the package itself re-exports the public names.
EVERYWHERE = {"recipes", "run", "cli", "__init__", "__main__"}
EVERYONES = {"errors", "extras", "methods", "reading", "settings"}
# Rooms that keep to the standard library and these.
LIBRARIES = {
    "core": {"torch"},
    "jackknife": {"numpy"},
    "noise_scale": {"torch"},
    "privacy": {"numpy", "dp_accounting"},
}
_HEAVY = {"torch", "transformers", "accelerate", "safetensors"}
FORBIDDEN = {"report": _HEAVY | {"optuna"}}


def imports(file: Path, package: Path) -> set[str]:
    """The absolute names of all that a file imports, wherever in it, relative imports resolved."""
    parents = ("descend", *file.relative_to(package).parent.parts)
    names = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"), str(file))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*parents[: len(parents) + 1 - node.level], *filter(None, [node.module])])
            base = base if node.level else node.module
            # `from descend import core` names a room, `from descend.core import PrimalDual` a thing in one.
            names |= {f"{base}.{alias.name}" for alias in node.names} if base == "descend" else {base}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant)}
    return names


def rooms(package: Path) -> dict[str, list[Path]]:
    """Room → its files."""
    found: dict[str, list[Path]] = {}
    for file in sorted(package.rglob("*.py")):
        found.setdefault(file.relative_to(package).parts[0].removesuffix(".py"), []).append(file)
    return found


def broken(package: Path, room: str) -> list[str]:
    """What a room imports and must not, one line each."""
    lines = []
    for file in rooms(package).get(room, []):
        for name in sorted(imports(file, package)):
            library, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if library == "descend":
                wrong = room not in EVERYWHERE and target not in ARROWS.get(room, set()) | {room, *EVERYONES}
            else:
                known = library in sys.stdlib_module_names or library in LIBRARIES.get(room, {library})
                wrong = not known or library in {"reproduction", *FORBIDDEN.get(room, ())}
            if wrong:
                lines.append(f"{file.relative_to(package)} imports {name}")
    return lines


@pytest.mark.parametrize("room", ARROWS)
def test_arrows_point_only_where_the_plan_says(room):
    if room not in rooms(PACKAGE):
        pytest.skip(f"there is no descend/{room} yet")
    assert broken(PACKAGE, room) == []


def private(package: Path) -> list[str]:
    """What the reproduction imports of Descend that other users have not: it works by commands and public names."""
    public = {"descend", *(f"descend.{name}" for name in importlib.import_module("descend").__all__)}
    return [
        f"{file.relative_to(package)} imports {name}"
        for file in sorted(package.rglob("*.py"))
        for name in sorted(imports(file, package) - public)
        if name.split(".")[0] == "descend"
    ]


def test_the_reproduction_imports_public_names_alone():
    assert private(REPRODUCTION) == []


def test_every_room_has_its_arrows():
    assert rooms(PACKAGE).keys() == ARROWS.keys() | EVERYWHERE


def test_the_page_has_the_same_arrows():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", page.split("| room | may import |")[1].split("\n## ")[0], re.M)
    printed = {room: set(re.findall(r"`(\w+)`", may)) for names, may in rows for room in re.findall(r"`(\w+)`", names)}
    assert {room: rooms for room, rooms in printed.items() if room not in EVERYWHERE} == {
        room: rooms for room, rooms in ARROWS.items() if room not in EVERYONES
    }


def test_no_file_imports_itself_through_others():
    """Imports at the top of files, by graphlib, which raises an error for a circle."""
    names = {
        ".".join(("descend", *file.relative_to(PACKAGE).with_suffix("").parts)): file for file in PACKAGE.rglob("*.py")
    }
    graph: dict[str, set[str]] = {name: set() for name in names}
    for name, file in names.items():
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                places = [f"{node.module}.{alias.name}" for alias in node.names]
                other = [place for place in (node.module, f"{node.module}.__init__") if place in names]
                graph[name] |= {place if place in names else other[0] for place in places if place in names or other}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(names) > 100


def test_nothing_is_called_utils():
    assert [file for file in PACKAGE.rglob("*") if file.stem in ("utils", "util", "helpers", "common")] == []


def imports_of_tests(file: Path) -> set[str]:
    """The modules of `tests` outside `tests.support` that a file imports."""
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names |= {f"{base}.{alias.name}" for alias in node.names} if base == "tests" else {base}
    return {
        name
        for name in names
        if re.match(r"(\.|tests\b|test_|conftest\b)", name) and not name.startswith("tests.support")
    }


@pytest.mark.parametrize("folder", [ROOT / "tests", ROOT / "benchmarks"], ids=lambda folder: folder.name)
def test_tests_share_code_only_through_support(folder):
    assert {str(file): names for file in folder.rglob("*.py") if (names := imports_of_tests(file))} == {}


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("from tests.support.runs import train", set()),
        ("from tests.support import runs", set()),
        ("import pytest", set()),
        ("from tests.run.test_run import train", {"tests.run.test_run"}),
        ("from tests import conftest", {"tests.conftest"}),
        ("def late():\n    from tests.run import test_run", {"tests.run"}),
        ("from .test_run import train", {".test_run"}),
    ],
)
def test_an_import_of_another_test_is_seen(tmp_path, line, names):
    file = tmp_path / "test_file.py"
    file.write_text(line)
    assert imports_of_tests(file) == names


# --- the test itself can fail


@pytest.mark.parametrize(
    ("file", "line", "wrong"),
    [
        ("core/problem.py", "import torch\nimport math\nfrom torch import nn", False),
        ("core/problem.py", "from descend.core.rules import NuPI", False),
        ("core/problem.py", "from descend.errors import InputError", False),
        ("core/problem.py", "from .rules import NuPI", False),
        ("core/problem.py", "from ..errors import InputError", False),
        ("core/problem.py", "import numpy as np", True),
        ("core/problem.py", "from transformers import Trainer", True),
        ("core/problem.py", "from descend.models.ut import UT", True),
        ("core/problem.py", "from ..models import denoiser", True),
        ("core/problem.py", "from .. import tasks", True),
        ("core/problem.py", "from descend import noise", True),
        ("core/problem.py", "from descend import DescentTrainer", True),
        ("core/problem.py", "import descend", True),
        ("core/problem.py", "def late():\n    from descend.tasks import video", True),
        ("core/problem.py", "import importlib\nimportlib.import_module('descend.models')", True),
        ("models/denoiser.py", "import numpy\nimport transformers", False),
        ("models/denoiser.py", "from descend.core import PrimalDual", True),
        ("models/denoiser.py", "from descend.noise import add_noise", True),
        ("tasks/video/clips.py", "from descend.tasks.video import cache\nfrom . import cache", False),
        ("tasks/video/clips.py", "from ...models import denoiser", True),
        ("tasks/video/clips.py", "import descend.noise", True),
        ("noise.py", "import torch\nfrom .errors import InputError", False),
        ("noise.py", "from .tasks import video", True),
        ("privacy.py", "import numpy\nfrom dp_accounting.gaussian_mechanism import get_epsilon_gaussian", False),
        ("privacy.py", "from descend.noise import GaussianNoise", True),
        ("privacy.py", "import torch", True),
        ("objective.py", "from descend.models import layered\nfrom descend import noise", False),
        ("objective.py", "from descend.evaluation import layers", True),
        ("training/trainer.py", "from descend.core import PrimalDual\nfrom descend.objective import Objective", False),
        ("training/trainer.py", "from descend.recipes import RECIPES", True),
        ("evaluation/layers.py", "from descend.training import DescentTrainer", True),
        ("report/page.py", "import numpy\nimport matplotlib\nfrom descend.report import figures", False),
        ("report/page.py", "import torch", True),
        ("report/page.py", "from reproduction.table import gain", True),
        ("report/intervals.py", "import numpy\nfrom scipy.stats import t", False),
        ("report/page.py", "from torch import Tensor", True),
        ("report/page.py", "import optuna", True),
        ("report/page.py", "from descend.evaluation.layers import measure", True),
        ("recipes.py", "from descend.core import PrimalDual\nfrom descend.models import denoiser", False),
        ("cli/runs.py", "from descend.recipes import RECIPES\nimport descend.evaluation.layers", False),
    ],
)
def test_a_wrong_import_is_seen(tmp_path, file, line, wrong):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    assert bool(broken(tmp_path, Path(file).parts[0].removesuffix(".py"))) is wrong


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("import descend\nfrom descend import configure, evaluate", False),
        ("from reproduction.cells import cells", False),
        ("from descend.results import Summary", True),
        ("from descend import results", True),
    ],
)
def test_a_private_import_of_the_reproduction_is_seen(tmp_path, line, wrong):
    (tmp_path / "grid.py").write_text(line)
    assert bool(private(tmp_path)) is wrong
