"""One page, one file, no network: the verdict, the figures and the frames of some runs."""

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from descend.errors import InputError
from descend.report import figures
from descend.report.runs import Arm, Group, RunView, alphas, group_runs
from descend.report.tables import group_name, layers_table, runs_table, verdict
from descend.report.viewer import slider, viewer

# With plotly.js (5 MB) beside them, the page stays below 12 MB.
FRAMES_BUDGET = 6_000_000

_DATA = {"test": "held-out data", "validation": "validation data", "train": "training data"}

_LOSSES = """How wrong the answer is if it is read off after each layer. On a log scale a steady descent
is a straight line."""
_PROBES = """ Dotted: a linear probe fitted to each layer, which shows what a layer knows, whatever the model’s own head
can read of it."""
_METRICS = """The same for the metric. A layer that lowers the loss need not change an answer."""
_RATIOS = """The constraints hold on average; this is how single samples fare. Below the dashed line a layer lowers
a sample’s loss. Thick: half of the samples; thin: nine in ten."""
_SETTLED = """From which layer on the answer does not change any more. What settles early can be left early."""
_EXITS = """Accuracy left where a sample stops at the first layer that is sure enough (solid) or whose answer has stayed
the same for some layers (dotted), on clean inputs. Large marks: the threshold chosen on validation data, and full
depth."""
_SPECULATION = """The first layers draft an answer and the whole network checks it, which changes nothing in the
answer: how much of a draft is kept."""
_BARS = """ A layer under a constraint must land on or below its short bar."""
_AT_TRAINING_NOISE = """ Without α the bars are shown at the training noise alone."""
_ERROR = """The last layer’s answer as the input gets noisier. To the right of the dashed line lies stronger
noise than in training: the flatter a curve stays there, the more robust its network."""
_MULTIPLIERS = """The price of each constraint during training. A multiplier grows while its layer breaks the
constraint and sinks back towards zero while it holds; one that never stops growing asks too much."""
_VIOLATIONS = """The constraints at the training noise, with confidence intervals. Below zero
a layer lowers the loss by more than asked; a cross marks a constraint that counts as broken."""


def write_page(runs: Sequence[RunView | Path | str], out: Path, title: str) -> Path:
    """Write the report of some runs as one self-contained HTML file.

    Runs of the same data set, model and training noise, judged on the same split at the same checkpoint, share
    a section; among these, runs of one method and setting count as seeds. Frames are those of the first seed of each
    method.

    Args:
        runs: Run folders, or runs already read.
        out: The file to write; a folder gets ``report.html``.
        title: The page's title, plain text.

    Returns:
        The file written.

    Raises:
        InputError: If there is no run, a folder has not been evaluated or one of its files is damaged.
    """
    if not runs:
        raise InputError("a report needs at least one run folder; got none.")
    views = [run if isinstance(run, RunView) else RunView.read(Path(run)) for run in runs]
    groups = group_runs(views)
    sections, data = [], []
    for index, group in enumerate(groups):
        html, values = _section(index, group, alone=len(groups) == 1, budget=FRAMES_BUDGET // len(groups))
        sections.append(html)
        data.append(values)
    return put_page(
        out,
        title=title,
        subtitle=group_name(groups[0]) if len(groups) == 1 else f"{len(views)} runs in {len(groups)} settings",
        verdict=verdict(groups),
        table=runs_table(groups),
        sections=sections,
        data=data,
    )


def put_page(
    out: Path,
    *,
    title: str,
    subtitle: str,
    verdict: str,
    table: str,
    sections: Sequence[str],
    data: Sequence[Any],
    more: Mapping[str, Any] | None = None,
    css: str = "",
    js: str = "",
) -> Path:
    """Put a page together and write it; all but the title, which is plain text, is HTML.

    Args:
        out: The file to write; a folder gets ``report.html``.
        title: The page's title.
        subtitle: What it is about.
        verdict: What was found.
        table: The numbers.
        sections: Each a ``<section>`` with its number in ``data-section``, and plots by name in ``data-plot``.
        data: For each section its plots by name, and the state that its controls set.
        more: What else the page's script finds in its data.
        css: On top of the page's.
        js: The same.
    """
    page = Template(_asset("page.html")).substitute(
        title=escape(title),
        css=_asset("page.css") + css,
        js=_asset("page.js") + js,
        plotly=get_plotlyjs(),
        subtitle=subtitle,
        verdict=verdict,
        table=table,
        sections="".join(sections),
        data=_json({"sections": data, **(more or {})}),
    )
    path = out / "report.html" if out.is_dir() else out
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, page.encode(errors="replace"))  # a folder's name need not be UTF-8
    return path


def put(path: Path, content: bytes) -> None:
    """Write a file aside and rename it: two commands may write it at once, and one may be stopped."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)


def _section(index: int, group: Group, *, alone: bool, budget: int) -> tuple[str, dict[str, Any]]:
    runs = group.runs
    plots = {"losses": figures.layer_losses(group), "error": figures.error_by_noise(group)}
    with_bars = [arm for arm in group.arms if arm.losses_to_reach(group.train_noise)]
    words = _LOSSES + (_BARS if with_bars else "")
    words += _AT_TRAINING_NOISE if any(not alphas(arm.limits) for arm in with_bars) else ""
    words += _PROBES if any(run.probe_losses for run in runs) else ""
    blocks = [
        figure_block("losses", "Loss along the layers", words, _loss_controls(index, group)),
        figure_block("error", f"{group.metric if runs[0].higher_is_better else 'Error'} against noise", _ERROR),
    ]
    # A metric that is an error follows the loss; one that counts decisions does not.
    if any(run.layer_metrics and run.higher_is_better for run in runs):
        plots["metrics"] = figures.layer_metrics(group)
        blocks.append(figure_block("metrics", f"{group.metric} along the layers", _METRICS))
    if any(run.ratios for run in runs):
        plots["ratios"] = figures.ratios(group)
        blocks.append(figure_block("ratios", "Descent of single samples", _RATIOS))
    if any(run.settled for run in runs):
        plots["settled"] = figures.settled(group)
        blocks.append(figure_block("settled", "Where answers settle", _SETTLED))
    if any(run.exit for run in runs):
        plots["exits"] = figures.exits(group)
        blocks.append(figure_block("exits", "Leaving early", _EXITS))
    if any(run.speculation for run in runs):
        plots["speculation"] = figures.speculation(group)
        blocks.append(figure_block("speculation", "Leaving early in generation", _SPECULATION))
    for arm in group.arms:
        run = next((run for run in arm.runs if run.history), None)
        if run and run.constrained:
            key = f"multipliers-{arm.label}"
            plots[key] = figures.multipliers(run)
            blocks.append(figure_block(key, f"Multipliers{_of(run, arm, group)}", _MULTIPLIERS))
    if any(run.violations for run in group.runs):
        plots["violations"] = figures.violations(group)
        blocks.append(figure_block("violations", f"Constraints on {_DATA.get(group.split, group.split)}", _VIOLATIONS))
    judged = [arm for arm in group.arms if arm.runs[0].constrained and arm.runs[0].violations]
    layers = [
        layers_table(arm.runs[0], f"Layer by layer{_of(arm.runs[0], arm, group)}", opened=len(judged) == 1)
        for arm in judged
    ]
    frames, frames_html = _frames(index, group, budget)
    head = "" if alone else f"<h2>{group_name(group)}</h2>{verdict([group], heading='h3')}"
    html = (
        f'<section id="group-{index}" data-section="{index}">{head}'
        f'<div class="plots">{"".join(blocks)}</div>{"".join(layers)}{frames_html}</section>'
    )
    data = {
        "train": group.train_noise,
        "state": {"noise": group.train_noise, "layer": group.depth, "clip": 0, "log": True},
        "plots": {key: json.loads(figure.to_json()) for key, figure in plots.items()},
        "frames": frames,
    }
    return html, data


def _of(run: RunView, arm: Arm, group: Group) -> str:
    """Whose multipliers or layers these are, where that is not plain."""
    words = [arm.label] if sum(other.runs[0].constrained for other in group.arms) > 1 else []
    words += [f"seed {run.seed}"] if len(arm.runs) > 1 else []
    return f" ({', '.join(words)})" if words else ""


def figure_block(key: str, heading: str, words: str, controls: str = "", *, wide: bool = False) -> str:
    """The place of a plot, with its heading and its words."""
    name = escape(heading)
    plot = f'<div class="plot" role="img" aria-label="Plot: {name}" data-plot="{escape(key)}"></div>'
    head = '<figure class="wide">' if wide else "<figure>"
    return f"{head}<h3>{name}</h3>{plot}{controls}<figcaption>{words}</figcaption></figure>"


def _loss_controls(index: int, group: Group) -> str:
    log = '<label class="check"><input type="checkbox" data-control="log" checked> log scale</label>'
    if len(group.noise_levels) > 1:
        noise = slider(f"losses-noise-{index}", "noise", "Noise γ", group.noise_levels, group.train_noise)
    else:
        noise = f'<span class="note">at the training noise, γ = {group.train_noise:g}</span>'
    return f'<div class="controls">{noise}{log}</div>'


def _frames(index: int, group: Group, budget: int) -> tuple[dict[str, Any] | None, str]:
    pictures = {}
    for arm in group.arms:
        frames = next((run.frames for run in arm.runs if run.frames), None)
        if frames:
            pictures[arm.label] = frames
    if not pictures:
        return None, ""
    note = "" if len(group.runs) == len(group.arms) else " Shown is the first seed of each method."
    return viewer(index, pictures, group.train_noise, budget, "The frames", note)


def _json(data: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("descend.report").joinpath(name).read_text(encoding="utf-8")
