"""The model card of a run: what was trained, by which command, and what its evaluation says."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from descend.errors import InputError
from descend.results import MODELS, read_config, read_summary, read_trained
from descend.results.card import Card, noise_note, temperature_note, trained_note
from descend.run.settings import is_local, train_command
from descend.settings import SMALL


def run_card(
    folder: Path,
    network: Any,
    *,
    checkpoint: str = "model",
    verdict: str = "",
    layers: int | None = None,
) -> Card:
    """The card of a run's model, with its summary if it has been evaluated.

    Args:
        folder: The run.
        network: The model of Transformers that is saved, with or without adapters.
        checkpoint: Which of the run's models: ``model`` or ``best_feasible``.
        verdict: The verdict in words, for a run without a summary.
        layers: K, for an export of the first K layers; None for the whole model.
    """
    config = read_config(folder)
    summary = None
    with suppress(InputError):  # not evaluated yet, or damaged
        evaluated = read_summary(folder)
        summary = evaluated if evaluated.checkpoint == checkpoint else None
    trained, temperature = read_trained(folder / checkpoint), config.temperature if checkpoint == MODELS[0] else None
    start = next((config.settings[name] for name in ("pretrained", "model") if config.settings.get(name)), SMALL)
    base = None if start == SMALL or is_local(str(start)) else str(start)
    settings: dict[str, Any] = config.settings
    noise = noise_note(settings.get("noise", 0), settings.get("noise_is", "std"))
    depth = config.settings["depth"]
    begin = "" if start == SMALL else f", starting from {base or Path(str(start)).name}"
    video = config.recipe.startswith("video-")
    noise_on = "the pixels" if video else "the input embedding"
    read = "The same head reads a prediction after every layer."
    if video:
        read = "It takes grey frames of 160×160 pixels, and each layer's output is read as such a frame."
    about = [
        f"{config.model}, trained on {config.dataset}{begin}, with the method `{config.method}`, {noise} "
        f"on {noise_on} and seed {config.seed}. {read}"
        + (trained_note(trained) if trained else temperature_note(temperature))
    ]
    if layers is not None:
        about.append(
            f"This checkpoint holds the first {layers} of {depth} layers, with the embedding and the head of the whole "
            f"model. Its output is that of exit {layers} of the whole model."
        )
    elif summary is None:
        about.append("`descend evaluate` on the run's folder adds the metric of every layer and noise level.")
    return Card.of(
        network,
        name=config.model if layers is None else f"{config.model}-first-{layers}",
        about=about,
        verdict=verdict,
        summary=summary,
        layer=layers,
        command=train_command(config),
        base_model=base,
        noise_on=noise_on,
    )
