"""What the cells of a study read under the data root, and on which side of each data set."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from descend.reading import is_litter, read_json
from reproduction.grid import ROOT
from reproduction.records import Cell, Settings

Sides = dict[str, tuple[str, ...]]
"""A side of a data set → patterns of files, one of which must match."""

_VIDEO: Sides = {"training": ("[Tt]rain*/*",), "testing": ("[Tt]est*/*",)}
_IMDB: Sides = {
    f"{side}/{label}": (f"aclImdb/{side}/{label}/*.txt", f"{side}/{label}/*.txt")
    for side in ("train", "test")
    for label in ("pos", "neg")
}
_MNLI: Sides = {
    "train": ("**/*train*.tsv", "**/*train*.jsonl"),
    "dev_matched": tuple(f"**/*{name}.*" for name in ("dev_matched", "validation_matched", "val", "dev", "test")),
}
SIDES = {"ucsd": _VIDEO, "avenue": _VIDEO, "shanghaitech": _VIDEO, "imdb": _IMDB, "mnli": _MNLI}
"""Data set → its sides. Alpaca is one file, which the recipe divides."""

ALPACA_EVAL = 805
"""Prompts of AlpacaEval."""


@dataclass
class NeededPath:
    """A file or folder under the data root that cells read.

    Attributes:
        path: The path, relative to the data root.
        sides: The sides that it must have.
        data: The data sets of the cells that read it.
    """

    path: str
    sides: Sides = field(default_factory=dict)
    data: set[str] = field(default_factory=set)

    def missing(self, root: Path) -> list[str] | None:
        """The sides that are not there; None if there is nothing at the path."""
        folder = root / self.path
        if not folder.exists():
            return None
        return [side for side, patterns in self.sides.items() if not _matches(folder, patterns)]

    def words(self, sides: Iterable[str] = ()) -> str:
        """The path, with some of its sides and the data sets."""
        named = ", ".join(sides)
        return f"{self.path}{f': {named}' if named else ''} ({', '.join(sorted(self.data))})"


def needed_paths(cells: Iterable[Cell], converted: Mapping[str, str]) -> list[NeededPath]:
    """What cells read under the data root, each path once.

    Args:
        cells: The cells.
        converted: Models that are converted before the study starts: target → source.
    """
    paths: dict[str, NeededPath] = {}
    for cell in cells:
        for name, value in (*_texts(cell.settings), *_texts(cell.answer)):
            source = converted.get(value, value)
            if not source.startswith(f"{ROOT}/"):
                continue
            path = source.removeprefix(f"{ROOT}/")
            sides = _sides(cell.data, path) if name == "data" else {}
            paths.setdefault(path, NeededPath(path, sides)).data.add(cell.data)
    return list(paths.values())


def hub_names(cells: Iterable[Cell]) -> dict[str, set[str]]:
    """The models and tokenizers that cells take from the Hub: name → recipes."""
    names: dict[str, set[str]] = {}
    for cell in cells:
        for name, value in _texts(cell.settings):
            if name in ("model", "pretrained", "tokenizer") and not value.startswith("{") and value != "small":
                names.setdefault(value, set()).add(cell.recipe)
    return names


def data_lines(paths: Iterable[NeededPath], root: Path | None) -> list[str]:
    """What is needed of the data, a line for each path; with a root also what is there and what is missing."""
    lines = []
    for needed in paths:
        if root is None:
            lines.append(f"needed: {needed.words(needed.sides)}")
            continue
        missing = needed.missing(root)
        if missing is None:
            lines.append(f"missing: {needed.words(needed.sides)}")
            continue
        there = [side for side in needed.sides if side not in missing]
        if there or not needed.sides:
            lines.append(f"there: {needed.words(there)}{_prompts(root / needed.path)}")
        if missing:
            lines.append(f"missing: {needed.words(missing)}")
    return lines


def _sides(data: str, path: str) -> Sides:
    """The sides of a data set. A folder that is one side itself is a collection of clips, which the recipe divides."""
    return {} if "testing" in path.split("/") else SIDES.get(data, {})


def _matches(folder: Path, patterns: Iterable[str]) -> bool:
    return any(not is_litter(found.relative_to(folder)) for pattern in patterns for found in folder.glob(pattern))


def _prompts(path: Path) -> str:
    """How many of AlpacaEval's prompts a file has, where that is not all of them."""
    if path.name != "alpaca_eval.json" or not isinstance(prompts := read_json(path), list):
        return ""
    return "" if len(prompts) == ALPACA_EVAL else f", {len(prompts)} of {ALPACA_EVAL} prompts"


def _texts(settings: Settings) -> list[tuple[str, str]]:
    """The settings that are text, among them paths."""
    return [(name, value) for name, value in settings.items() if isinstance(value, str)]
