"""What a run and a saved model say of themselves: ``config.json``, the last training by Descend, the certified exit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, JsonValue, ValidationError

from descend.errors import InputError, refuse
from descend.reading import MOST_RECORD, read_json
from descend.results.base import (
    CONFIG_FILE,
    GROUPS_FILE,
    RECORDS_FILE,
    SUMMARY_FILE,
    File,
    Part,
    parse,
    refuse_comparison,
)
from descend.results.folder import write_json

MODELS = ("model", "best_feasible")
"""The folders of a run that may hold a model."""

ADAPTERS_FILE = "adapter_config.json"
"""What PEFT's adapters have in place of a model's ``config.json``."""

LANGUAGE = ("llm-sft", "lm")
"""The recipes of language models."""

PRETRAINED = ("text", "lm", "image", "embed")
"""The recipes of any pretrained model."""

SOLVERS = ("lista", "pgd")
"""The recipes of unrolled solvers."""

DENOISERS = ("descend-ut", "descend-dust", "descend-vit")
"""The model types of the video recipes."""

TRAINED_KEY = "descend"
"""The entry of a Transformers model's ``config.json``, which ``from_pretrained`` and ``save_pretrained`` keep."""

TRAINED_FILE = "descend.json"
"""The file beside any other model."""

CERTIFIED_FILE = "certified_exit.json"
"""Beside a model's weights: the exit threshold that ``descend evaluate --risk`` certified."""


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
        device: A GPU's name, or the type of another device, such as ``cpu``; empty in files of older versions.
        seconds: Training time.
        step: The step of the model that was kept.
        steps: Optimizer steps of the whole training; None in files of older versions.
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
    device: str = ""
    seconds: float | None = None
    step: int | None = None
    steps: int | None = None
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


def holds_model(folder: Path) -> bool:
    """Whether a folder holds a saved model, or adapters of one."""
    return any((folder / file).is_file() for file in (CONFIG_FILE, ADAPTERS_FILE))


def holds_adapters(folder: Path) -> bool:
    """Whether a folder holds adapters, and not the model that they are for."""
    return (folder / ADAPTERS_FILE).is_file() and not (folder / CONFIG_FILE).is_file()


def check_model(run: Path, model: str) -> None:
    """Refuse a model that a run does not hold.

    Args:
        run: The run's folder.
        model: The name of a model, see `MODELS`.

    Raises:
        InputError: If the run has no such model; it lists those that it has.
    """
    held = [name for name in MODELS if holds_model(run / name)]
    todo = "Give one of them." if held else ""
    if MODELS[0] not in held:
        todo = "Finish the run first: the same descend train with --resume."
    elif model == MODELS[1]:
        todo = "It had no constraints, or at no evaluation in training all of them held. Leave --model out."
    have = f"its models: {' and '.join(held)}" if held else "it has none yet"
    refuse((model not in held, f"{run} has no model named {model!r}; {have}. {todo}"))


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
        page = ""
        if (folder / SUMMARY_FILE).is_file():
            refuse_comparison(folder, read_json(folder / SUMMARY_FILE, MOST_RECORD))
            page = f" Its page: descend report {folder}."
        raise InputError(
            f"{folder} was written by descend layers or by a script, and is no run of descend train, which names its "
            "data and model. descend layers MODEL --data PATH --save FOLDER --layers K writes the first layers of a "
            "model as it is; in Python descend.evaluate evaluates a model, and descend.run.export_model writes the "
            f"first layers of a model of Transformers; of your own, cut the list of blocks.{page}"
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
            f"it needs says descend layers {folder} --data PATH. Judge it by "
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


class Trained(Part):
    """What a model was last trained with by Descend.

    Another trainer that trains the model further leaves the entry as it is.

    Attributes:
        version: The version of Descend.
        method: As in `RunConfig`.
        seed: The seed.
        noise: The training noise γ.
        shift: The kind of noise.
        noise_is: What γσ_x is of the noise: its ``std`` or its ``variance``.
        problem: The constraints that the model is evaluated by: ``strength``, or ``alpha`` and what belongs to it.
        temperature: What a classifier's logits were divided by; 1 if they were not.
        exported_layers: K, for an export of the first K layers.
    """

    version: str = ""
    method: str
    seed: int = 0
    noise: float = 0.0
    shift: str = "gaussian"
    noise_is: str = "std"
    problem: dict[str, JsonValue] = {}
    temperature: float = 1.0
    exported_layers: int | None = None

    @classmethod
    def of(cls, content: Any) -> Self | None:
        """What an entry says; None if there is none, or it is not Descend's."""
        try:
            return cls.model_validate(content) if isinstance(content, Mapping) else None
        except ValidationError:
            return None

    def content(self) -> dict[str, Any]:
        """The entry in JSON types."""
        return self.model_dump(exclude_none=True)

    def write(self, folder: Path) -> None:
        """Write the file beside a model."""
        write_json(folder / TRAINED_FILE, self.content())


def read_trained(folder: Path) -> Trained | None:
    """What a saved model was last trained with by Descend; None if nothing says so.

    Args:
        folder: The folder that ``save_pretrained`` or a trainer wrote.
    """
    for file, key in ((CONFIG_FILE, TRAINED_KEY), (TRAINED_FILE, None)):
        try:
            content = read_json(folder / file) if (folder / file).is_file() else None
        except InputError:
            content = None  # whoever loads the model names the damage
        entry = content.get(key) if key and isinstance(content, Mapping) else content
        if (trained := Trained.of(entry)) is not None:
            return trained
    return None


Share = Annotated[float, Field(strict=True, gt=0, lt=1)]


class CertifiedExit(File):
    """The exit threshold that belongs to a saved model, and the bound that it was certified by.

    Attributes:
        threshold: A text leaves after the first layer whose confidence is at least this; None for full depth.
        risk: The largest share of texts that may lose an answer that full depth has right.
        confidence: How sure this is, over the draw of the validation data.
        noise: The level γ that it holds for.
    """

    todo: ClassVar[str] = "Run descend evaluate --exit --risk again, or remove the file."

    threshold: float | None = Field(strict=True, gt=0, le=1)
    risk: Share
    confidence: Share
    noise: float = Field(strict=True, ge=0, allow_inf_nan=False)
