"""One page, one file, no network: how many layers suffice, the curves, samples, what was asked, and the rest."""

from collections.abc import Sequence
from pathlib import Path

from descend.errors import InputError
from descend.report import figures
from descend.report.answer import answer
from descend.report.asked import asked, findings
from descend.report.rendering import write_page_of
from descend.report.runs import Group, RunView, group_runs, groups_differ
from descend.report.samples import pictures, texts

FRAMES_BUDGET = 500_000
"""Most characters that frames take, so that a page stays below 1.5 MB."""

LEAST_BUDGET = 200_000
"""What each group may take at least, however many share the page."""

MOST_NAMES = 3
"""Most runs that a page's title names."""


def write_page(runs: Sequence[RunView | Path | str], out: Path, title: str = "") -> Path:
    """Write the report of some runs as one self-contained HTML file.

    Runs of the same data set, model and training noise, evaluated by one metric on the same split at the same
    checkpoint, share a section; among these, runs of one method and setting count as seeds. Frames are those of the
    first seed of each method.

    Args:
        runs: Run folders, or runs already read.
        out: The file to write; a folder gets ``report.html``.
        title: The page's title, plain text; by default the names of up to `MOST_NAMES` runs, or how many they are.

    Returns:
        The file written.

    Raises:
        InputError: If there is no run, a folder has not been evaluated or one of its files is damaged.
    """
    if not runs:
        raise InputError("a report needs at least one run folder; got none.")
    views = [run if isinstance(run, RunView) else RunView.read(Path(run)) for run in runs]
    groups = group_runs(views)
    names = list(dict.fromkeys(view.name for view in views))
    subtitle = groups[0].name
    if len(groups) > 1:
        subtitle = (
            f"{len(views)} runs in {len(groups)} settings, which are not compared with each other: they differ in "
            f"{groups_differ(groups)}"
        )
    budget = max(FRAMES_BUDGET // len(groups), LEAST_BUDGET)
    return write_page_of(
        "runs.html",
        out,
        title=title or f"Descend: {', '.join(names) if len(names) <= MOST_NAMES else f'{len(views)} runs'}",
        subtitle=subtitle,
        sections=[_section(group, group.name if len(groups) > 1 else "", budget) for group in groups],
    )


def _section(group: Group, name: str, budget: int) -> dict[str, object]:
    """The values of the template for a group of runs."""
    curves = [figures.quality(group), figures.time(group)]
    curious = [figures.losses(group)] if group.measure.entry != "layer_losses" else []
    return {
        "name": name,
        "answer": answer(group),
        "curves": [each for each in curves if each],
        "pictures": pictures(group, budget),
        "texts": texts(group),
        "styles": {arm.label: arm.style for arm in group.arms},
        "asked": asked(group),
        "robustness": figures.robustness(group),
        "by_noise": figures.by_noise(group),
        "findings": findings(group),
        "curious": [*curious, *figures.samples(group), *figures.prices(group)],
    }
