"""Tests that use public names and the command line alone are a contract: `frozen.json` keeps the hash of each.

    python -m tests.test_frozen        # writes frozen.json anew

While the inside is rebuilt they run unedited. Later a change of one needs a line in the changelog.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
FILE = TESTS / "frozen.json"

PUBLIC = {"", "core", "errors", "cli", "models", "tasks", "tasks.text", "tasks.video", "training", "training.sft"}
PUBLIC |= {"noise", "noise_scale", "privacy", "recipes", "run", "inference", "seeds"}
"""Modules of `descend` whose names a user imports."""

APART = ("test_architecture.py", "test_frozen.py", "reproduction", "report", "support")
"""Tests of the structure itself, of the study, and of the page, which later issues write anew."""


def contract() -> Iterator[tuple[str, str]]:
    """Name and hash of each test that uses public names alone, in itself and in the helpers of its file."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if not any(part in APART for part in path.relative_to(TESTS).parts):
            text = path.read_text()
            tree = ast.parse(text)
            private = _private(tree)
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and node.name not in private:
                    source = "\n".join(text.splitlines()[_first(node) - 1 : node.end_lineno])
                    name = f"{path.relative_to(TESTS)}::{node.name}"
                    yield name, hashlib.sha256(source.encode()).hexdigest()[:16]


def _first(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _private(tree: ast.Module) -> set[str]:
    """Names of a file's top level that use private names, by themselves or through other names of the file."""
    private = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            if any(_is_private(module) for module in modules):
                private |= {each.asname or each.name.split(".")[0] for each in node.names}
    uses = {}
    for node in tree.body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else _assigned(node)
        within = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        if isinstance(node, ast.FunctionDef):
            within |= {each.arg for each in node.args.args}  # fixtures
        hidden = any(isinstance(each, ast.Attribute) and _hidden(each.attr) for each in ast.walk(node))
        hidden |= any(
            isinstance(each, ast.Constant) and isinstance(each.value, str) and _is_private(each.value)
            for each in ast.walk(node)
        )
        uses |= dict.fromkeys(names, (within, hidden))
    while True:
        more = {name for name, (within, hidden) in uses.items() if hidden or within & private} - private
        if not more:
            return private
        private |= more


def _is_private(module: str) -> bool:
    parts = module.split(".")
    return parts[0] == "descend" and module.isascii() and " " not in module and ".".join(parts[1:]) not in PUBLIC


def _hidden(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def test_the_contract_is_kept():
    frozen, now = json.loads(FILE.read_text()), dict(contract())
    changed = sorted(name for name, digest in frozen.items() if now.get(name) != digest)
    assert not changed, f"{len(changed)} tests of the contract were edited, moved or lost: {changed}"


if __name__ == "__main__":
    FILE.write_text(json.dumps(dict(contract()), indent=0) + "\n")
    print(len(json.loads(FILE.read_text())), "tests")
