"""Samples as each layer answers them: pictures with sliders for noise and layer, and decisions on texts."""

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from descend.progress import counted
from descend.report.levels import as_std
from descend.report.tables import Cell, Row, Table
from descend.results import Frames, Results

if TYPE_CHECKING:
    from descend.report.runs import Group

# WebP at this quality keeps a noisy 160×160 frame near 7 kB, and a viewer sees no difference at the size of the page.
QUALITY = 60

MOST_STILLS = 7
"""Most layers that are shown side by side: as many as a wide screen holds."""


def texts(group: "Group") -> list[Table]:
    """A table for each text that all arms decided on: a row per arm with what its layers say."""
    known = [(arm, arm.runs[0].decisions) for arm in group.arms]
    decided = [(arm, {each.text: each for each in decisions.texts}) for arm, decisions in known if decisions]
    shared = [text for text in (decided[0][1] if decided else ()) if all(text in by_text for _, by_text in decided)]
    tables = []
    for text in shared:
        layers = _shown(min(len(by_text[text].decisions) for _, by_text in decided) - 1)
        rows = []
        for arm, by_text in decided:
            shown = [by_text[text].decisions[layer] for layer in layers]
            sure = [f"{each.confidence:.0%}" if isfinite(each.confidence) else "–" for each in shown]
            answers = [f"{'✓' if each.right else '✗'} {each.answer}" for each in shown]
            rows.append(Row([Cell(arm.label), *map(Cell, answers, sure)], arm.style))
        picture = decided[0][1][text].picture
        name = (
            Markup('<img width="48" height="48" alt="" src="{}"> {}').format(picture, text) if picture else f"“{text}”"
        )
        tables.append(Table(["", *(f"Layer {layer}" for layer in layers)], rows, title=name))
    return tables


def pictures(group: "Group", budget: int) -> dict[str, Any] | None:
    """The pictures of the first run of each arm that has some, as data of the page's viewer; None without any.

    Args:
        group: The runs.
        budget: Most characters that they may take.
    """
    known = {arm.label: next((run for run in arm.runs if run.frames), None) for arm in group.arms}
    frames = {label: _frames_in_std(run) for label, run in known.items() if run}
    # Outputs compare on the same clips under the same noise.
    alike = all(a.noise == b.noise and np.array_equal(a.clean, b.clean) for a, b in pairwise(frames.values()))
    return embed(frames, budget, group.train_noise) if frames and alike else None


def _frames_in_std(run: Results) -> Frames:
    """The pictures of a run that `in_std` has converted, with their levels converted too."""
    frames, sigma = run.frames, run.summary.sigma
    assert frames is not None
    if run.variance is None or sigma is None:
        return frames
    return replace(frames, noise=[as_std(level, sigma) for level in frames.noise])


def _shown(depth: int) -> list[int]:
    """The layers to show: all, or seven of them from the first to the last."""
    return sorted({round(place * depth / (MOST_STILLS - 1)) for place in range(MOST_STILLS)})


def embed(frames: Mapping[str, Frames], budget: int, trained: float) -> dict[str, Any] | None:
    """Pictures as data for the page: panels of nested lists of data URIs, with the RMSE of each.

    A panel's ``axes`` name its lists from the outside in; the page walks them with the positions of its
    sliders. What does not fit the budget is thinned, to one clip first, then to every other noise
    level. The level of the training stays.

    Args:
        frames: Label → pictures of the same clips under the same noise, in order of appearance.
        budget: Most characters that the pictures may take.
        trained: The training noise.

    Returns:
        ``{"noise": [γ…], "clips": K, "layers": L, "panels": [{"label", "axes", "images", "rmse"}…]}``, with the place
        of the training noise as ``start`` and the layers to show side by side as ``stills``; None if not even two noise
        levels fit.
    """
    first, most = next(iter(frames.values())), max(item.reconstruction.shape[1] for item in frames.values()) - 1
    levels = list(range(len(first.noise)))
    at = min(levels, key=lambda place: abs(first.noise[place] - trained))
    ends = sorted({at, levels[-1] if at != levels[-1] else levels[0]})
    for kept, clips in ((levels, len(first.clean)), (levels, 1), (sorted({*levels[at % 2 :: 2], *ends}), 1), (ends, 1)):
        clean = first.clean[:clips]
        shown = [("Clean", ["clip"], clean), ("Noisy input", ["noise", "clip"], first.noisy[kept, :clips])]
        for label, item in frames.items():
            shown.append((label, ["noise", "layer", "clip"], item.reconstruction[kept, :, :clips]))
        panels = []
        for label, axes, images in counted(shown, "drawing pictures", "panel"):
            rmse = np.sqrt(np.square(images.astype(np.float32) - clean).mean(axis=(-1, -2))).round(2).tolist()
            panels.append(
                {"label": label, "axes": axes, "images": _encode(images), "rmse": None if images is clean else rmse}
            )
        if len(json.dumps([panel["images"] for panel in panels])) <= budget:
            return {
                "noise": [first.noise[level] for level in kept],
                "clips": clips,
                "layers": most,
                "panels": panels,
                "start": kept.index(at),
                "stills": _shown(most),
            }
    return None


def _encode(images: np.ndarray) -> Any:
    if images.ndim > 2:
        return [_encode(image) for image in images]
    buffer = io.BytesIO()
    Image.fromarray(images).save(buffer, "WEBP", quality=QUALITY)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
