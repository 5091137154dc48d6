"""Pictures to look through: clean, noisy and each network's, with sliders for noise and layer."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from descend.report.frames import Frames, embed

_FRAMES = """The same clip through each network. Move along the layers to watch it being cleaned, and along
the noise to see where a network gives up. RMSE is its distance from the clean picture, on 0–255."""


def viewer(
    index: int, pictures: Mapping[str, Frames], trained: float, budget: int, heading: str = "", note: str = ""
) -> tuple[dict[str, Any] | None, str]:
    """The pictures of some runs side by side.

    Args:
        index: The section's number on the page.
        pictures: Label → pictures.
        trained: The training noise, where the slider starts.
        budget: Most characters that they may take.
        heading: Over them; none if empty.
        note: What else to say of them.

    Returns:
        Data for the page's script, None if there is nothing to show, and the HTML.
    """
    first = next(iter(pictures.values()))
    if not all(first.same_input(other) for other in pictures.values()):
        return None, _no_frames(heading, "The runs show different clips or noise, so they are not put side by side.")
    data = embed(pictures, budget)
    if data is None:
        return None, _no_frames(heading, "They would make the page too large; a report of fewer runs shows them.")
    sliders = [
        slider(f"frames-noise-{index}", "noise", "Noise γ", data["noise"], trained),
        slider(f"frames-layer-{index}", "layer", "Layer", list(range(data["layers"] + 1)), data["layers"]),
        '<button type="button" data-play="layer" aria-pressed="false">Play the layers</button>',
        _clips(index, data["clips"]),
    ]
    panels = "".join(
        f'<figure class="frame" data-panel="{place}"><figcaption>{escape(panel["label"])}</figcaption>'
        f'<img width="160" height="160" alt="{escape(panel["label"])}"><p class="rmse"></p></figure>'
        for place, panel in enumerate(data["panels"])
    )
    return data, (
        f'<div class="frames">{_head(heading)}<p class="words">{_FRAMES}{note}</p>'
        f'<div class="controls">{"".join(sliders)}</div><div class="strip">{panels}</div></div>'
    )


def _no_frames(heading: str, why: str) -> str:
    return f'<div class="frames">{_head(heading)}<p class="words">{why}</p></div>'


def _head(heading: str) -> str:
    return f"<h3>{escape(heading)}</h3>" if heading else ""


def slider(ident: str, control: str, label: str, levels: Sequence[float], start: float) -> str:
    """A slider over levels, on the one nearest to where it starts."""
    place = min(range(len(levels)), key=lambda index: abs(levels[index] - start))
    return (
        f'<div class="slider"><label for="{ident}">{label}</label>'
        f'<input type="range" id="{ident}" min="0" max="{len(levels) - 1}" step="1" value="{place}" '
        f'data-control="{control}" data-levels="{json.dumps(list(levels))}">'
        f'<span class="value">{levels[place]:g}</span></div>'
    )


def _clips(index: int, count: int) -> str:
    if count == 1:
        return ""
    choices = "".join(
        f'<label><input type="radio" name="clip-{index}" data-control="clip" value="{clip}"'
        f"{' checked' * (clip == 0)}><span>{clip + 1}</span></label>"
        for clip in range(count)
    )
    return f'<fieldset class="clips"><legend>Clip</legend>{choices}</fieldset>'
