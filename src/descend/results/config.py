"""The settings of a run: ``config.json``."""

from pathlib import Path
from typing import ClassVar

from pydantic import JsonValue

from descend.errors import InputError, refuse
from descend.results.base import CONFIG_FILE, File

MODELS = ("model", "best_feasible")
"""The folders of a run that may hold a model."""

LANGUAGE = ("llm-sft", "lm")
"""The recipes of language models."""

PRETRAINED = ("text", "lm", "image")
"""The recipes of any pretrained model."""


class RunConfig(File):
    """The settings of a run.

    ``settings`` are the recipe's fields and ``training`` the training arguments that differ from their defaults; both
    are open sets that their classes check. The entries from ``seconds`` on are there when the run has finished.

    Attributes:
        descend: The version of Descend.
        recipe: The recipe's name.
        method: ``constrained``, ``erm`` or another method of training.
        preset: The preset's name.
        overridden: Settings of the preset that were chosen otherwise.
        given: The settings that the user gave, for the command of the model card; empty where they are unknown.
        seed: The seed of everything random.
        model: The model's label, such as ``UT-7``.
        dataset: The data set's name.
        sigma: σ_x of the training data; None until it is known.
        settings: The recipe's fields.
        training: Training arguments.
        versions: Versions of the libraries.
        seconds: Training time.
        step: The step of the model that was kept.
        temperature: What a classifier's logits were divided by.
        neftune_alpha: NEFTune's α, given or matched to the noise; None without NEFTune.
    """

    todo: ClassVar[str] = "Put back the file that training wrote, or train again."

    descend: str = ""
    recipe: str
    method: str
    preset: str | None = None
    overridden: list[str] = []
    given: dict[str, JsonValue] = {}
    seed: int
    model: str
    dataset: str = ""
    sigma: float | None = None
    settings: dict[str, JsonValue]
    training: dict[str, JsonValue]
    versions: dict[str, str] = {}
    seconds: float | None = None
    step: int | None = None
    temperature: float | None = None
    neftune_alpha: float | None = None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.seconds is not None

    @property
    def depth(self) -> int | None:
        """L, the number of layers; None where the settings do not say it."""
        depth = self.settings.get("depth", self.settings.get("keep_layers"))
        return depth if isinstance(depth, int) else None

    @property
    def export_entries(self) -> dict[str, JsonValue]:
        """What an export of a denoiser says of its training: the window and the noise; nothing of other models."""
        if not self.recipe.startswith("video-"):
            return {}
        names = ("window", "noise", "noise_is")
        noise = {name: self.settings[name] for name in names if name in self.settings}
        return {"trained_on": {"sigma": self.sigma, "seed": self.seed, **noise}}


def check_model(run: Path, model: str) -> None:
    """Refuse a model that a run does not hold.

    Args:
        run: The run's folder.
        model: The name of a model, see `MODELS`.

    Raises:
        InputError: If the run has no such model; it lists those that it has.
    """
    files = ("config.json", "adapter_config.json")
    held = [name for name in MODELS if any((run / name / file).is_file() for file in files)]
    if model not in held:
        raise InputError(
            f"{run} has no model named {model!r}; its models: {' and '.join(held) or 'none yet'}. If it lacks one, "
            "finish the run first: the same descend train with --resume."
        )


def check_language_run(run: Path, model: str, layer: int | None = None) -> None:
    """Refuse a run that is none of a language model, before its model is loaded.

    Args:
        run: The run's folder.
        model: The name of a model, see `MODELS`.
        layer: K, an exit; None for full depth.

    Raises:
        InputError: If it is no run of a language model, lacks the model, or has no layer K.
    """
    config = read_config(run)
    depth = config.depth or 0
    refuse(
        (
            config.recipe not in LANGUAGE or not depth,
            f"expected a run of {' or '.join(LANGUAGE)}; {run} is one of {config.recipe}.",
        ),
        (
            layer is not None and (not isinstance(layer, int) or not 1 <= layer <= depth),
            f"layer must be from 1 to {depth}, the depth of {run}; got {layer}.",
        ),
    )
    check_model(run, model)


def read_config(folder: Path) -> RunConfig:
    """Read the ``config.json`` of a run folder.

    Raises:
        InputError: If it is missing, damaged or not a run's.
    """
    return RunConfig.read(folder / CONFIG_FILE)
