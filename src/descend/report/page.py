"""One page, one file, no network: the verdict, the figures and the frames of some runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from descend.errors import InputError
from descend.report import anytime, figures
from descend.report.opening import opening
from descend.report.rendering import write_interactive
from descend.report.runs import Arm, Group, RunView, alphas, group_name, group_runs, groups_differ
from descend.report.tables import layers_table, runs_tables
from descend.report.verdict import findings, verdict
from descend.report.viewer import pictures_view
from descend.report.views import FigureView, PicturesView, SectionView, Slider

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
_METRICS = """The same for the metric. A layer that lowers the loss need not change an answer. A ring marks the first
layer from which on all layers are within 1, 2 or 5 {unit} of full depth."""
_MOVES = """ The slider of the noise, at the loss, sets the noise here too."""
_TIMES = """What a budget of time buys: the milliseconds that one sample takes up to each layer, with one readout
there. """
_RATIOS = """The constraints hold on average; this is how single samples fare. Below the dashed line a layer lowers
a sample’s loss. Thick: half of the samples; thin: nine in ten."""
_SETTLED = """From which layer on the answer does not change any more. What settles early can be left early."""
_EXITS = """Accuracy left where a sample stops at the first layer that is sure enough (solid) or whose answer has stayed
the same for some layers (dotted), on clean inputs. Large marks: the threshold chosen on validation data, and full
depth."""
_SPECULATION = """The first layers draft an answer and the whole network checks it, which changes nothing in the
answer: on how many of its tokens they agree."""
_BARS = """ A layer under a constraint must land on or below its short bar."""
_AT_TRAINING_NOISE = """ Without α the bars are shown at the training noise alone."""
_ERROR = """The last layer’s answer as the input gets noisier. To the right of the dashed line lies stronger
noise than in training: the flatter a curve stays there, the more robust its network."""
_MULTIPLIERS = """The price of each constraint during training. A multiplier grows while its layer breaks the
constraint and sinks back towards zero while it holds; one that never stops growing asks too much."""
_VIOLATIONS = """The constraints at the training noise, with confidence intervals. Below zero
a layer lowers the loss by more than asked; a cross marks a constraint that counts as broken."""


def write_page(runs: Sequence[RunView | Path | str], out: Path, title: str = "") -> Path:
    """Write the report of some runs as one self-contained HTML file.

    Runs of the same data set, model and training noise, judged by one metric on the same split at the same checkpoint,
    share a section; among these, runs of one method and setting count as seeds. Frames are those of the first seed of
    each method.

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
    title = title or f"Descend: {', '.join(names) if len(names) <= MOST_NAMES else f'{len(views)} runs'}"
    sections, data = [], []
    for index, group in enumerate(groups):
        section, values = _section(
            index, group, alone=len(groups) == 1, budget=max(FRAMES_BUDGET // len(groups), LEAST_BUDGET)
        )
        sections.append(section)
        data.append(values)
    return write_interactive(
        out,
        "runs.html",
        data=data,
        title=title,
        subtitle=group_name(groups[0])
        if len(groups) == 1
        else f"{len(views)} runs in {len(groups)} settings, which "
        f"are not compared with each other: they differ in {groups_differ(groups)}",
        pictures=any(map(_denoises, views)),
        verdict=verdict(groups) if len(groups) > 1 else None,
        tables=runs_tables(groups) if len(groups) > 1 else [],
        sections=sections,
    )


def _section(index: int, group: Group, *, alone: bool, budget: int) -> tuple[SectionView, dict[str, Any]]:
    plots, views = _figures(index, group)
    frames, pictures = _frames(index, group, budget)
    first, plots["opening"] = opening(index, group, frames)
    judged = [arm for arm in group.arms if _judged_by_layer(arm.runs[0])]
    tables = [
        layers_table(arm.runs[0], f"Layer by layer{_of(arm.runs[0], arm, judged)}", opened=len(judged) == 1)
        for arm in judged
    ]
    tables += [anytime.depth_table(group)] if any(run.summary.anytime for run in group.runs) else []
    section = SectionView(
        index,
        opening=first,
        verdict=verdict([group]),
        name="" if alone else group_name(group),
        findings=findings(group),
        runs=runs_tables([group]) if alone else [],
        figures=views,
        tables=tables,
        pictures=pictures,
    )
    data = {
        "train": group.train_noise,
        "state": {"noise": group.train_noise, "layer": group.depth, "clip": 0, "log": True},
        "plots": {key: json.loads(figure.to_json()) for key, figure in plots.items()},
        "frames": frames,
    }
    return section, data


def _denoises(run: RunView) -> bool:
    """Whether a run's predictions are pictures."""
    return run.frames is not None or run.summary.recipe.startswith("video-")


def _judged_by_layer(run: RunView) -> bool:
    """Whether a run has something to show layer by layer: constraints, bounds or what is certain of a layer."""
    summary = run.summary
    return bool(summary.constrained and summary.violations) or bool(summary.bounds or summary.certified)


def _figures(index: int, group: Group) -> tuple[dict[str, go.Figure], list[FigureView]]:
    """The plots that a group's runs have numbers for, and their place on the page."""
    summaries = [run.summary for run in group.runs]
    counts = group.higher_is_better
    plots: dict[str, go.Figure] = {}
    views: list[FigureView] = []

    def add(key: str, figure: go.Figure, heading: str, words: str, **controls: Any) -> None:
        plots[key] = figure
        views.append(FigureView(key, heading, words, **controls))

    heading = "Loss along the layers"
    add("losses", figures.layer_losses(group), heading, _loss_words(group), **_loss_controls(index, group))
    error = f"{group.metric if counts else 'Error'} against noise"
    add("error", figures.error_by_noise(group), error, _ERROR)
    if any(summary.anytime for summary in summaries) and group.measure != "loss":
        words = _METRICS.format(unit="points" if counts else "%") + (_MOVES if len(group.noise_levels) > 1 else "")
        add("metrics", anytime.by_depth(group), f"{group.metric} along the layers", words)
    if any(summary.anytime and summary.latency for summary in summaries):
        add("times", anytime.by_time(group), f"{group.metric} against time", _TIMES + anytime.time_words(group))
    if any(summary.ratios.by_layer for summary in summaries):
        add("ratios", figures.ratios(group), "Descent of single samples", _RATIOS)
    if any(summary.settled_layer and summary.settled_layer.shares for summary in summaries):
        add("settled", figures.settled(group), "Where answers settle", _SETTLED)
    if any(summary.exit for summary in summaries):
        add("exits", figures.exits(group), "Early exits", _EXITS)
    if any(summary.speculation for summary in summaries):
        add("speculation", figures.speculation(group), "Early exits in generation", _SPECULATION)
    for arm in group.arms:
        run = next((run for run in arm.runs if run.history), None)
        if run and run.summary.constrained:
            bound = [arm for arm in group.arms if arm.runs[0].summary.constrained]
            heading = f"Multipliers{_of(run, arm, bound)}"
            add(f"multipliers-{arm.label}", figures.multipliers(run), heading, _MULTIPLIERS)
    if any(summary.violations for summary in summaries):
        heading = f"Constraints on {_DATA.get(group.split, group.split)}"
        add("violations", figures.violations(group), heading, _VIOLATIONS)
    return plots, views


def _loss_words(group: Group) -> str:
    with_bars = [arm for arm in group.arms if arm.losses_to_reach(group.train_noise)]
    words = _LOSSES + (_BARS if with_bars else "")
    words += _AT_TRAINING_NOISE if any(not alphas(arm.limits) for arm in with_bars) else ""
    return words + (_PROBES if any(run.summary.probe.layer_losses for run in group.runs) else "")


def _loss_controls(index: int, group: Group) -> dict[str, Any]:
    if len(group.noise_levels) == 1:
        return {"controls": True, "note": f"at the training noise, γ = {group.train_noise:g}"}
    slider = Slider(f"losses-noise-{index}", "noise", "Noise γ", group.noise_levels, group.train_noise)
    return {"controls": True, "slider": slider}


def _of(run: RunView, arm: Arm, shown: Sequence[Arm]) -> str:
    """Whose multipliers or layers these are, where several arms are shown or the arm has several runs."""
    words = [arm.label] if len(shown) > 1 else []
    words += [f"seed {run.summary.seed}"] if len(arm.runs) > 1 else []
    return f" ({', '.join(words)})" if words else ""


def _frames(index: int, group: Group, budget: int) -> tuple[dict[str, Any] | None, PicturesView | None]:
    pictures = {}
    for arm in group.arms:
        frames = next((run.frames for run in arm.runs if run.frames), None)
        if frames:
            pictures[arm.label] = frames
    if not pictures:
        return None, None
    note = "" if len(group.runs) == len(group.arms) else " Shown is the first seed of each method."
    return pictures_view(index, pictures, group.train_noise, budget, "The frames", note)
