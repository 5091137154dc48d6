"""Read the settings that dataclasses declare from their source, without importing them.

Importing torch and Transformers takes seconds, and neither help, nor completion, nor a mistyped setting needs them.
"""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, NamedTuple

UNKNOWN = object()
"""A default that is no literal in the source."""


class Setting(NamedTuple):
    """A field of a dataclass, as an option of the command line.

    Attributes:
        name: The field's name.
        package: The package of the class that declares it, such as ``transformers``.
        kind: bool, int, float, or str for all other types.
        default: The default; `UNKNOWN` if it is computed.
        metadata: ``help``, and perhaps ``choices``, ``nargs`` and ``const`` of `argparse`.
    """

    name: str
    package: str
    kind: type
    default: Any
    metadata: dict[str, Any]


def settings(module: str, name: str) -> dict[str, Setting]:
    """The settings of a dataclass and its bases, by name, those of the bases first.

    Args:
        module: The module that defines or imports the class, such as ``descend.recipes.video``.
        name: The class.

    Raises:
        ModuleNotFoundError: If the package is not installed.
    """
    every: dict[str, Setting] = {}
    for package, tree in _lineage(module, name):
        for line in tree.body:
            if isinstance(line, ast.AnnAssign) and (setting := _setting(package, line)):
                every[setting.name] = setting
    return every


def defaults(module: str, name: str) -> dict[str, Any]:
    """The training arguments that a recipe's class sets by ``training = …``, by name."""
    usual = {each.name: each.default for each in settings("descend.recipes.base", "TrainingDefaults").values()}
    values = usual
    for _, tree in _lineage(module, name):
        for line in tree.body:
            target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
            call = getattr(line, "value", None)
            if isinstance(target, ast.Name) and target.id == "training" and isinstance(call, ast.Call):
                replaced = values if call.args else usual  # replace(Base.training, …), or TrainingDefaults(…)
                values = replaced | {each.arg: _literal(each.value) for each in call.keywords if each.arg}
    return {name: value for name, value in values.items() if value is not None}


def _lineage(module: str, name: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """The package and the source of a class and of its bases, each base before the classes that inherit from it."""
    names, classes = _module(module)
    if name not in classes:
        if name in names:  # it is imported from elsewhere
            yield from _lineage(*names[name])
        return
    for base in reversed(classes[name].bases):  # the first base overrides the others
        if isinstance(base, ast.Name) and base.id != "ABC":
            yield from _lineage(module, base.id)
    yield module.partition(".")[0], classes[name]


@cache
def _module(module: str) -> tuple[dict[str, tuple[str, str]], dict[str, ast.ClassDef]]:
    """What a module imports, as name → (module, name there), and its classes by name."""
    path = _file(module)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_bytes())
    names = {
        alias.asname or alias.name: (resolve_name("." * node.level + (node.module or ""), package), alias.name)
        for node in ast.walk(tree)  # an import may stand below `if TYPE_CHECKING`
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return names, {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _file(module: str) -> Path:
    """The source of a module; its package is not imported."""
    top, *inside = module.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {top!r}", name=top)
    path = Path(spec.origin).parent.joinpath(*inside)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _setting(package: str, line: ast.AnnAssign) -> Setting | None:
    """The setting that a line declares; None for class variables and fields that can't be given."""
    assert isinstance(line.target, ast.Name)
    types = set(_types(line.annotation))
    value = line.value
    if line.target.id.startswith("_") or "ClassVar" in types:
        return None
    default: Any = UNKNOWN
    metadata: dict[str, Any] = {}
    if isinstance(value, ast.Call):
        given = {each.arg: each.value for each in value.keywords if each.arg}
        for position, argument in zip(("default", "help", "choices"), value.args, strict=False):  # setting(…)
            given[position] = argument
        if "default" in given:
            default = _literal(given["default"])
        entries = given.get("metadata")
        pairs = dict(zip(entries.keys, entries.values, strict=True)) if isinstance(entries, ast.Dict) else {}
        given |= {str(key.value): entry for key, entry in pairs.items() if isinstance(key, ast.Constant)}
        for key in ("help", "choices", "nargs", "const"):
            if key in given and (literal := _literal(given[key])) is not UNKNOWN:
                metadata[key] = literal
    elif value is not None:
        default = _literal(value)
    if types == {"Literal"}:
        metadata["choices"] = [node.value for node in ast.walk(line.annotation) if isinstance(node, ast.Constant)]
    if types == {"list"}:
        metadata["nargs"] = "+"
    return Setting(line.target.id, package, _kind(types), default, metadata)


def _types(annotation: ast.expr) -> Iterator[str]:
    """The names of the types in an annotation, those of a union one by one; without None."""
    if isinstance(annotation, ast.BinOp):
        yield from (*_types(annotation.left), *_types(annotation.right))
    elif isinstance(annotation, ast.Subscript):
        yield from _types(annotation.value)
    elif isinstance(annotation, ast.Name):
        yield annotation.id


def _kind(types: set[str]) -> type:
    """How the text of an option becomes a value; what is not plain is left to the class itself."""
    for kind in (bool, int, float):
        if types == {kind.__name__}:
            return kind
    return str


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN
