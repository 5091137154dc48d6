"""The settings of a run: ``config.json``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import JsonValue

from descend.errors import InputError, refuse
from descend.reading import read_json
from descend.results.base import CONFIG_FILE, GROUPS_FILE, RECORDS_FILE, SUMMARY_FILE, File, parse

MODELS = ("model", "best_feasible")
"""The folders of a run that may hold a model."""

LANGUAGE = ("llm-sft", "lm")
"""The recipes of language models."""

PRETRAINED = ("text", "lm", "image")
"""The recipes of any pretrained model."""

DENOISERS = ("descend-ut", "descend-dust", "descend-vit")
"""The model types of the video recipes."""


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
        InputError: If it is missing, damaged or not a run's: then it says what the folder is, and what to do with it.
    """
    path, written = folder / CONFIG_FILE, (RECORDS_FILE, GROUPS_FILE, SUMMARY_FILE, "checkpoint-*")
    if not path.exists() and any(any(folder.glob(name)) for name in written):
        page = f" Its page: descend report {folder}." if (folder / SUMMARY_FILE).is_file() else ""
        raise InputError(
            f"{folder} was written by a script, and is no run of descend train, which names its data and model. In "
            f"Python descend.evaluate evaluates the model, and descend.run.export_model writes its first layers.{page}"
        )
    content = read_json(path)
    if isinstance(content, Mapping) and "recipe" not in content:
        _refuse_model(folder, content)
    return parse(RunConfig, content, str(path), RunConfig.todo)


def _refuse_model(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse the folder of a model by the entries of its ``config.json``: of a run's, an export, or another one."""
    run, kind = folder.absolute().parent, config.get("model_type")
    judge = f"descend evaluate {folder} --task classification --data PATH"
    classifier = "ForSequenceClassification" in str(config.get("architectures"))
    use = f" It is evaluated by {judge}." if classifier else ""
    if kind in DENOISERS:
        use = f" Its frames are written by descend denoise {folder} --data PATH --out FOLDER."
    refuse(
        (
            folder.absolute().name in MODELS and (run / CONFIG_FILE).is_file(),
            f"{folder} is a model of a run; give the run: {run} --model {folder.absolute().name}.",
        ),
        (
            exported_type(folder) is not None,
            f"{folder} is an export, and no run; give the run that it was exported from.{use}",
        ),
        (
            kind is not None,
            f"{folder} is a saved model of {kind}, and no run of descend train, which names its data. How many layers "
            f"it needs says descend evaluate {folder} --layers --data PATH. Judge it by "
            f"{judge if classifier else 'descend.evaluate in Python'}; in Python descend.run.export_model writes its "
            "first layers.",
        ),
    )


def exported_type(folder: Path) -> str | None:
    """The model type of a folder that ``descend export`` wrote; None for another folder.

    Raises:
        InputError: If its ``config.json`` is not JSON.
    """
    path = folder / CONFIG_FILE
    config = read_json(path) if path.is_file() else None
    return config.get("model_type") if isinstance(config, dict) and isinstance(config.get("descend"), dict) else None
