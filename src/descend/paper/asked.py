"""``study.json``: what a study is of."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from descend.errors import InputError
from descend.paper.grid import cells, names
from descend.paper.scales import SCALES
from descend.reading import read_json

STUDY_FILE = "study.json"


@dataclass(frozen=True)
class Asked:
    """What was asked for in a study's folder, by all commands together.

    Attributes:
        scale: Of its grid; empty where nothing says.
        what: Figures and tables; ``all`` where nothing says.
        versions: Of the packages that ran it.
    """

    scale: str = ""
    what: list[str] = field(default_factory=lambda: ["all"])
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> "Asked | None":
        """What a folder says; None where it says nothing.

        Raises:
            InputError: If its ``study.json`` is not that of a study.
        """
        path = out / STUDY_FILE
        if not path.exists():
            return None
        found = read_json(path)
        scale, what = (found.get("scale"), found.get("what")) if isinstance(found, dict) else (None, None)
        if scale not in ("", *SCALES) or not isinstance(what, list) or not all(isinstance(name, str) for name in what):
            raise InputError(
                f"{path} is not that of a study: it must have a scale, one of {', '.join(SCALES)}, and a list of "
                f"names, what; got {scale!r:.40} and {what!r:.60}."
            )
        try:
            names(what)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        return cls(scale, what, found.get("versions") or {})


def scale_of(known: Iterable[str]) -> str:
    """The scale whose grid has most of some cells, by their names; empty where none has any."""
    known = set(known)
    shared = {scale: len(known & {cell.name for cell in cells(names(["all"]), scale)}) for scale in SCALES}
    most = max(shared, key=lambda scale: shared[scale])
    return most if shared[most] else ""
