"""A viewer of clean, noisy and reconstructed pictures, with sliders for noise and layer."""

from collections.abc import Mapping
from typing import Any

from descend.report.frames import Frames, embed
from descend.report.views import PicturesView, Slider

_FRAMES = """The same clip through each network. Move along the layers to watch it being cleaned, and along
the noise to see where a network gives up. RMSE is its distance from the clean picture, on 0–255."""


def pictures_view(
    index: int, pictures: Mapping[str, Frames], trained: float, budget: int, heading: str = "", note: str = ""
) -> tuple[dict[str, Any] | None, PicturesView]:
    """The pictures of some runs side by side.

    Args:
        index: The section's number on the page.
        pictures: Label → pictures.
        trained: The training noise, where the slider starts.
        budget: Most characters that they may take.
        heading: Their heading; none if empty.
        note: Added to the words above them.

    Returns:
        Data for the page's script, None if there is nothing to show, and the view.
    """
    first = next(iter(pictures.values()))
    if not all(first.same_input(other) for other in pictures.values()):
        words = "The runs show different clips or noise, so they are not put side by side."
        return None, PicturesView(heading, words)
    data = embed(pictures, budget, trained)
    if data is None:
        words = "They would make the page too large; a report of fewer runs shows them."
        return None, PicturesView(heading, words)
    layers = list(range(data["layers"] + 1))
    sliders = [
        Slider(f"frames-noise-{index}", "noise", "Noise γ", data["noise"], trained),
        Slider(f"frames-layer-{index}", "layer", "Layer", layers, layers[-1]),
    ]
    labels = [panel["label"] for panel in data["panels"]]
    return data, PicturesView(heading, _FRAMES + note, sliders, index, data["clips"], labels)
