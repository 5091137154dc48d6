"""What each layer shows of a few samples at the top of a group's section: frames, or decisions on texts."""

from collections.abc import Mapping
from functools import reduce
from math import isfinite
from operator import getitem
from typing import Any

from descend.report.runs import Group
from descend.report.tables import Cell, Row, Table

MOST_STILLS = 7
"""Most layers in the strip of frames: as many as stand side by side on a wide screen."""


def texts(group: Group) -> list[Table]:
    """A table for each text that all arms decided on: a row per arm with what its layers say."""
    known = [(arm, arm.runs[0].decisions) for arm in group.arms if arm.runs[0].decisions]
    decided = [(arm, {each.text: each.decisions for each in decisions.texts}) for arm, decisions in known if decisions]
    shared = [text for text in (decided[0][1] if decided else ()) if all(text in by_text for _, by_text in decided)]
    tables = []
    for text in shared:
        layers = _layers(min(len(by_text[text]) for _, by_text in decided) - 1)
        rows = []
        for arm, by_text in decided:
            cells = [Cell(arm.label)]
            for each in (by_text[text][layer] for layer in layers):
                sure = f"{each.confidence:.0%}" if isfinite(each.confidence) else "–"
                cells.append(Cell(f"{'✓' if each.right else '✗'} {each.answer}", sure))
            rows.append(Row(cells, arm.style))
        tables.append(Table(["", *(f"Layer {layer}" for layer in layers)], [(f"“{text}”", rows)]))
    return tables


def strip(group: Group, pictures: Mapping[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The first clip at the training noise, after each layer or after seven of them, with its input and its goal.

    Args:
        group: The runs.
        pictures: The section's frames as `descend.report.frames.embed` returns them.

    Returns:
        For each layer its heading and stills: where the page's script finds each, its label, number and text.
    """
    levels: list[float] = pictures["noise"]
    noise = min(range(len(levels)), key=lambda place: abs(levels[place] - group.train_noise))
    panels = {panel["label"]: (place, panel) for place, panel in enumerate(pictures["panels"])}

    def still(label: str, path: list[int], where: str, style: Any = None) -> dict[str, Any]:
        place, panel = panels[label]
        words, alt = "the goal", "The clean picture"
        if panel["rmse"]:
            words = f"RMSE {reduce(getitem, path, panel['rmse']):.1f}"
            alt = f"{label}{where}, {words}"
        return {"panel": place, "path": path, "label": label, "words": words, "alt": alt, "style": style}

    shown = []
    for layer in _layers(pictures["layers"]):
        stills = [
            still(arm.label, [noise, layer, 0], f", layer {layer}", arm.style)
            for arm in group.arms
            if arm.label in panels and layer < len(panels[arm.label][1]["images"][noise])
        ]
        shown += [(f"Layer {layer}", stills)] if stills else []
    return [*shown, ("The data", [still("Noisy input", [noise, 0], ""), still("Clean", [0], "")])]


def _layers(depth: int) -> list[int]:
    """The layers to show: all, or seven of them from the first to the last."""
    return sorted({round(place * depth / (MOST_STILLS - 1)) for place in range(MOST_STILLS)})
