"""The model card of a run: what was trained, by which command, and what its evaluation says."""

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

from descend.errors import InputError
from descend.recipes import RECIPES
from descend.results import MODELS, SUMMARY_FILE, RunConfig, Summary, read_config, read_summary, read_trained
from descend.results.card import Card, noise_note, temperature_note, trained_note
from descend.settings import SMALL, options
from descend.training.preset import Preset, paper

_DERIVED = {"disable_tqdm", "dataloader_pin_memory", "gradient_checkpointing", "do_eval", "greater_is_better"}
"""Training arguments that say nothing about a run, or that follow from others."""

_PATHS = ("data", "model", "tokenizer", "pretrained", "cache_dir")
"""Settings whose value may be a path."""


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
    summary, trained = _summary(folder, checkpoint), read_trained(folder / checkpoint)
    temperature = config.temperature if checkpoint == MODELS[0] else None
    start = next((config.settings[name] for name in ("pretrained", "model") if config.settings.get(name)), SMALL)
    base = None if start == SMALL or _local(start) else str(start)
    settings: dict[str, Any] = config.settings
    noise = noise_note(settings.get("noise", 0), settings.get("noise_is", "std"))
    depth = config.settings["depth"]
    begin = "" if start == SMALL else f", starting from {base or _name(str(start))}"
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
    adapters = hasattr(network, "peft_config")
    architecture = type(network.get_base_model() if adapters else network).__name__
    own = type(network).__module__.startswith("descend.")
    return Card(
        name=config.model if layers is None else f"{config.model}-first-{layers}",
        about=about,
        architecture=architecture,
        verdict=verdict,
        summary=summary,
        layer=layers,
        command=train_command(config),
        base_model=base,
        noise_on=noise_on,
        metadata={"library_name": "descend" if own else "peft" if adapters else "transformers"},
    )


def _summary(folder: Path, checkpoint: str) -> Summary | None:
    """The run's summary if it is of this checkpoint; None for none, or one that can't be read."""
    if not (folder / SUMMARY_FILE).is_file():
        return None
    try:
        summary = read_summary(folder)
    except InputError:
        return None
    return summary if summary.checkpoint == checkpoint else None


def train_command(config: RunConfig) -> str:
    """The command that trains a run again: its settings that differ from the recipe's defaults.

    Local paths are shortened to their names, because a card may be published.
    """
    kind = RECIPES[config.recipe]
    preset = Preset() if config.preset is None else paper(config.recipe, config.method, _dataset(config))
    usual: dict[str, Any] = {each.name: each.default for each in fields(kind) if each.init}
    usual |= preset.settings
    words = ["descend", "train", config.recipe]
    if config.preset is not None:
        words += ["--preset", config.preset]
    words += ["--method", config.method]
    chosen: dict[str, Any] = {name: value for name, value in config.settings.items() if value != usual.get(name)}
    if config.settings.get("model", SMALL) != SMALL or config.settings.get("pretrained"):
        chosen = {name: value for name, value in chosen.items() if name not in ("hidden_size", "depth")}
    recipe: Any = kind(**config.settings)  # type: ignore[arg-type]
    library: dict[str, Any] = {each.name: each.default for each in fields(recipe.arguments()) if each.init}
    expected = recipe.defaults.arguments() | preset.training
    left_out = _DERIVED | {"preset", "method"} | config.settings.keys()
    for name in [*config.training, *(each for each in expected if each not in config.training)]:
        # The file leaves out arguments that have Transformers' default.
        default = library.get(name)
        value = config.training.get(name, default)
        if value is None and isinstance(expected.get(name), bool):  # TRL's bf16, whose default is set later
            value = not expected[name]
        if name not in left_out and value != expected.get(name, default):
            chosen[name] = value
    given = [(name, value) for name, value in chosen.items() if value is not None]  # None can't be given by a flag
    words += options({name: _shared(name, value) for name, value in given})
    return shlex.join([*words, "--out", "RUN"])


def _dataset(config: RunConfig) -> str:
    return str(config.settings.get("dataset", "imdb"))


def _shared(name: str, value: Any) -> Any:
    """A setting's value for others to read: of a local path its name."""
    path = isinstance(value, str) and (Path(value).expanduser().is_absolute() or (name in _PATHS and _local(value)))
    return _name(value) if path else value


def _local(value: Any) -> bool:
    """Whether a setting is a path on this machine, and not a name on the Hub or of a data set."""
    if not isinstance(value, str):
        return False
    return Path(value).expanduser().exists() or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", value) is None


def _name(value: str) -> str:
    return Path(value).name
