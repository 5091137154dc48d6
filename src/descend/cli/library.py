"""The training arguments of Transformers and TRL, read from their source: importing them takes seconds.

Neither help, nor completion, nor a mistyped setting needs those packages.
"""

import ast
from dataclasses import MISSING
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from descend.settings import Setting

SOURCES = {"transformers": ["training_args.py"], "trl": ["trainer/base_config.py", "trainer/sft_config.py"]}
"""Package → the files of its classes of training arguments, a base first."""


@cache
def arguments_of(package: str) -> dict[str, Setting]:
    """The training arguments that a package declares, by name.

    Raises:
        ModuleNotFoundError: If the package is not installed.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    every = {}
    for path in SOURCES[package]:
        tree = ast.parse((Path(spec.origin).parent / path).read_bytes())
        for kind in tree.body:
            for line in kind.body if isinstance(kind, ast.ClassDef) else ():
                if isinstance(line, ast.AnnAssign) and (setting := _setting(package, line)):
                    every[setting.name] = setting
    return every


def _setting(package: str, line: ast.AnnAssign) -> Setting | None:
    """The argument that a line declares; None for class variables and fields that can't be given."""
    name, types = ast.unparse(line.target), ast.unparse(line.annotation)
    if name.startswith("_") or "ClassVar" in types:
        return None
    default, metadata = _literal(line.value), {}
    if isinstance(line.value, ast.Call):
        given = {each.arg: each.value for each in line.value.keywords}
        default = _literal(given.get("default"))
        more = given.get("metadata")
        for key, value in zip(more.keys, more.values, strict=True) if isinstance(more, ast.Dict) else ():
            if (literal := _literal(value)) is not MISSING:
                metadata[_literal(key)] = literal
    plain = types.removesuffix(" | None")
    if plain.startswith("list["):
        metadata["nargs"] = "+"
    return Setting(name, package, {"bool": bool, "int": int, "float": float}.get(plain, str), default, metadata)


def _literal(node: ast.expr | None) -> Any:
    """The value in a node; `MISSING` if it is computed."""
    try:
        return MISSING if node is None else ast.literal_eval(node)
    except ValueError:
        return MISSING
