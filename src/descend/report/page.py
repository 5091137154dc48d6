"""One page, one file, no network: how many layers suffice, the verdict, the figures and the frames of some runs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from descend.errors import InputError
from descend.report import figures
from descend.report.answer import answer
from descend.report.figures import Plot
from descend.report.frames import Slider, pictures_view
from descend.report.headline import headline
from descend.report.opening import strip, texts
from descend.report.rendering import drawn, write_interactive
from descend.report.runs import Arm, Group, RunView, group_runs, groups_differ
from descend.report.tables import depth_table, layers_table, runs_tables
from descend.report.verdict import findings, verdict
from descend.results import Summary

FRAMES_BUDGET = 400_000
"""Most characters that frames take: with plotly.js (1.8 MB) and the numbers the page stays below 2.5 MB."""

LEAST_BUDGET = 200_000
"""What each group may take at least, however many share the page."""

MOST_NAMES = 3
"""Most runs that a page's title names."""

_DATA = {"test": "held-out data", "validation": "validation data", "train": "training data"}

_LOSSES = """How wrong the answer is if it is read off after each layer. On a log scale a steady descent
is a straight line."""
_PROBES = """ Dotted: a linear probe fitted to each layer, which shows what a layer knows, whatever the model’s own head
can read of it."""
_BARS = """ A layer under a constraint must land on or below its short bar."""
_AT_TRAINING_NOISE = """ Without α the bars are shown at the training noise alone."""
_MOVES = """ The slider of the noise, at the loss, sets the noise here too."""
_MULTIPLIERS = """The price of each constraint during training. A multiplier grows while its layer breaks the
constraint and sinks back towards zero while it holds; one that never stops growing asks too much."""


_Kind = tuple[str, Callable[[Group], go.Figure], Callable[[Summary], Any], str, str]
"""A figure that a section has if some run has its numbers.

That is its name in the page's data, what draws it, whether a run has its numbers, its heading and its words. In the
last two may stand what `_plots` fills in, such as ``{metric}``.
"""

_FIGURES: tuple[_Kind, ...] = (
    (
        "error",
        figures.error_by_noise,
        lambda summary: len(summary.noise) > 1,
        "{name} against noise",
        """The last layer’s answer as the input gets noisier. To the right of the dashed line lies stronger
noise than in training: the flatter a curve stays there, the more robust its network.""",
    ),
    (
        "metrics",
        figures.by_depth,
        lambda summary: summary.layer_metrics and summary.metric != "loss",
        "{metric} along the layers",
        """The same for the metric. A layer that lowers the loss need not change an answer. A ring marks the first
layer from which on all layers are within 1, 2 or 5 {unit} of full depth.{moves}""",
    ),
    (
        "times",
        figures.by_time,
        lambda summary: summary.layer_metrics and summary.latency,
        "{metric} against time",
        """What a budget of time buys: the milliseconds that one sample takes up to each layer, with one readout
there. {measured}""",
    ),
    (
        "ratios",
        figures.ratios,
        lambda summary: summary.ratios.by_layer,
        "Descent of single samples",
        """The constraints hold on average; this is how single samples fare. Below the dashed line a layer lowers
a sample’s loss. Thick: half of the samples; thin: nine in ten.""",
    ),
    (
        "settled",
        figures.settled,
        lambda summary: summary.settled_layer and summary.settled_layer.shares,
        "Where answers settle",
        "From which layer on the answer does not change any more. What settles early can be left early.",
    ),
    (
        "exits",
        figures.exits,
        lambda summary: summary.exit,
        "Early exits",
        """Accuracy left where a sample stops at the first layer that is sure enough (solid) or whose answer has stayed
the same for some layers (dotted), on clean inputs. Large marks: the threshold chosen on validation data, and full
depth.""",
    ),
    (
        "speculation",
        figures.speculation,
        lambda summary: summary.speculation,
        "Early exits in generation",
        """The first layers draft an answer and the whole network checks it, which changes nothing in the
answer: on how many of its tokens they agree.""",
    ),
)
_VIOLATIONS: _Kind = (
    "violations",
    figures.violations,
    lambda summary: summary.asked and summary.violations,
    "Constraints on {data}",
    """The constraints at the training noise, with confidence intervals. Below zero
a layer lowers the loss by more than asked; a cross marks a constraint that counts as broken.""",
)


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
    several = len(groups) > 1
    names = list(dict.fromkeys(view.name for view in views))
    title = title or f"Descend: {', '.join(names) if len(names) <= MOST_NAMES else f'{len(views)} runs'}"
    subtitle = groups[0].name
    if several:
        subtitle = (
            f"{len(views)} runs in {len(groups)} settings, which are not compared with each other: they differ in "
        )
        subtitle += groups_differ(groups)
    budget = max(FRAMES_BUDGET // len(groups), LEAST_BUDGET)
    sections, data = zip(*(_section(index, group, several, budget) for index, group in enumerate(groups)), strict=True)
    return write_interactive(
        out,
        "runs.html",
        data=data,
        title=title,
        subtitle=subtitle,
        pictures=any(view.frames is not None or view.summary.recipe.startswith("video-") for view in views),
        verdict=verdict(groups) if several else None,
        tables=runs_tables(groups) if several else [],
        sections=sections,
    )


def _section(index: int, group: Group, several: bool, budget: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of the template for a group of runs, and the data of the page's script."""
    frames, pictures = _frames(index, group, budget)
    measure, noise = group.measure, group.train_noise
    level = f"at the training noise, γ\u00a0=\u00a0{noise:g}" if noise else "without noise"
    words = f"{measure.name} on {group.summary.split} data if the network is left after each layer, {level}."
    opening = Plot("opening", figures.opening(group), f"{measure.name} along the layers", words, wide=True)
    plots = _plots(index, group)
    with_verdict = [arm for arm in group.arms if _has_verdict_by_layer(arm.summary)]
    tables = [
        layers_table(arm.runs[0], f"Layer by layer{_of(arm.runs[0], arm, with_verdict)}", opened=len(with_verdict) == 1)
        for arm in with_verdict
    ]
    tables += [depth_table(group)] if any(run.summary.layer_metrics for run in group.runs) else []
    numbers, notes = headline(group)
    section = {
        "index": index,
        "opening": {"numbers": numbers, "notes": notes, "figure": opening, "texts": texts(group)}
        | {"strip": strip(group, frames) if frames else []},
        "answer": answer(group),
        "verdict": verdict([group]) if any(run.summary.asked for run in group.runs) else None,
        "name": group.name if several else "",
        "findings": findings(group),
        "runs": [] if several else runs_tables([group]),
        "figures": plots,
        "tables": tables,
        "pictures": pictures,
    }
    state = {"noise": noise, "layer": group.depth, "clip": 0, "log": True}
    return section, {"train": noise, "state": state, "plots": drawn([*plots, opening]), "frames": frames}


def _has_verdict_by_layer(summary: Summary) -> bool:
    """Whether a run has something to show layer by layer: violations, bounds or what is certain of a layer."""
    return summary.asked and bool(summary.violations or summary.bounds or summary.certified)


def _plots(index: int, group: Group) -> list[Plot]:
    """The figures that a group's runs have numbers for."""
    summaries, higher = [run.summary for run in group.runs], group.summary.higher_is_better
    words = {
        "metric": group.metric,
        "name": group.metric if higher else "Error",
        "data": _DATA.get(group.summary.split, group.summary.split),
        "unit": "points" if higher else "%",
        "moves": _MOVES if len(group.noise_levels) > 1 else "",
        "measured": figures.time_words(group),
    }

    def draw(kinds: Sequence[_Kind]) -> list[Plot]:
        return [
            Plot(key, figure(group), heading.format(**words), text.format(**words))
            for key, figure, needed, heading, text in kinds
            if any(map(needed, summaries))
        ]

    bound = [arm for arm in group.arms if arm.summary.asked]
    prices = []
    for arm in group.arms:
        run = next((run for run in arm.runs if run.history), None)
        if run and run.summary.asked:
            heading = f"Multipliers{_of(run, arm, bound)}"
            prices.append(Plot(f"multipliers-{arm.label}", figures.multipliers(run), heading, _MULTIPLIERS))
    return [_losses(index, group), *draw(_FIGURES), *prices, *draw([_VIOLATIONS])]


def _losses(index: int, group: Group) -> Plot:
    """The loss along the layers, with a slider over noise if there are several levels."""
    with_bars = [arm for arm in group.arms if arm.losses_to_reach(group.train_noise)]
    words = _LOSSES + (_BARS if with_bars else "")
    words += _AT_TRAINING_NOISE if any(not arm.steps for arm in with_bars) else ""
    words += _PROBES if any(run.summary.probe.layer_losses for run in group.runs) else ""
    plot = Plot("losses", figures.layer_losses(group), "Loss along the layers", words)
    if len(group.noise_levels) == 1:
        return plot._replace(note=f"at the training noise, γ = {group.train_noise:g}")
    return plot._replace(
        slider=Slider(f"losses-noise-{index}", "noise", "Noise γ", group.noise_levels, group.train_noise)
    )


def _of(run: RunView, arm: Arm, shown: Sequence[Arm]) -> str:
    """Whose multipliers or layers these are, where several arms are shown or the arm has several runs."""
    words = [arm.label] if len(shown) > 1 else []
    words += [f"seed {run.summary.seed}"] if len(arm.runs) > 1 else []
    return f" ({', '.join(words)})" if words else ""


def _frames(index: int, group: Group, budget: int) -> tuple[dict[str, Any] | None, Mapping[str, Any] | None]:
    first = {arm.label: next((run.frames for run in arm.runs if run.frames), None) for arm in group.arms}
    pictures = {label: frames for label, frames in first.items() if frames}
    if not pictures:
        return None, None
    note = "" if len(group.runs) == len(group.arms) else " Shown is the first seed of each method."
    return pictures_view(index, pictures, group.train_noise, budget, "The frames", note)
