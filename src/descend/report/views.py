"""The content of a page as data, without HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from descend.report.runs import Style


class Span(NamedTuple):
    """Words in a sentence."""

    text: str
    bold: bool = False


Sentence = Sequence[Span]


@dataclass(frozen=True)
class Cell:
    """A cell of a table; its ``note`` follows in small print."""

    text: str
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table; the style's colour marks it in front of its first cell."""

    cells: Sequence[Cell]
    style: Style | None = None


@dataclass(frozen=True)
class Body:
    """Rows of a table that belong together, under a name if there is one."""

    rows: Sequence[Row]
    name: str = ""


@dataclass(frozen=True)
class Table:
    """A table, folded away under a ``heading`` if there is one."""

    heads: Sequence[str]
    bodies: Sequence[Body]
    heading: str = ""
    opened: bool = False


@dataclass(frozen=True)
class GroupLink:
    """A group's verdict in the list at the top of a page of several groups."""

    state: str
    mark: str
    href: str
    name: str


@dataclass(frozen=True)
class VerdictView:
    """Whether the constraints hold, and what to do about it.

    ``state`` is ``holds``, ``tentative``, ``broken`` or ``open``.
    """

    state: str
    mark: str
    headline: str
    lines: Sequence[Sentence] = ()
    groups: Sequence[GroupLink] = ()
    advice: str = ""


@dataclass(frozen=True)
class Slider:
    """A slider over levels, on the one nearest to where it starts."""

    ident: str
    control: str
    label: str
    levels: Sequence[float]
    start: float

    @property
    def place(self) -> int:
        """The level on which it stands."""
        return min(range(len(self.levels)), key=lambda index: abs(self.levels[index] - self.start))


@dataclass(frozen=True)
class FigureView:
    """A plot with its heading, its words and, if ``controls`` says so, a slider over noise and a switch of scale."""

    key: str
    heading: str
    words: str
    controls: bool = False
    slider: Slider | None = None
    note: str = ""
    wide: bool = False


@dataclass(frozen=True)
class PicturesView:
    """Pictures side by side, one panel for each label; without labels only the words that say why there are none."""

    heading: str
    words: str
    sliders: Sequence[Slider] = ()
    section: int = 0
    clips: int = 1
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Still:
    """A picture of the opening's strip: where the page's script finds it, its label, its number and its text."""

    panel: int
    path: Sequence[int]
    label: str
    words: str
    alt: str
    style: Style | None = None


@dataclass(frozen=True)
class StripLayer:
    """The pictures of one layer, one for each method."""

    heading: str
    stills: Sequence[Still]


@dataclass(frozen=True)
class OpeningView:
    """The first thing in a section: numbers, their plot, and frames, or decisions, at each layer.

    ``notes`` say what the numbers are and in what the runs differ.
    """

    numbers: Table
    notes: Sequence[str]
    figure: FigureView
    section: int = 0
    strip: Sequence[StripLayer] = ()
    texts: Sequence[Table] = ()


@dataclass(frozen=True)
class SectionView:
    """A group of runs on the page: the opening and the verdict, then all the rest, folded with several groups.

    ``name`` is empty where the group is the only one.
    """

    index: int
    opening: OpeningView
    verdict: VerdictView
    name: str = ""
    findings: Sequence[Sentence] = ()
    runs: Sequence[Table] = ()
    figures: Sequence[FigureView] = ()
    tables: Sequence[Table] = field(default_factory=list)
    pictures: PicturesView | None = None
