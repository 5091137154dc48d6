"""The contract of a recipe: settings that resolve to data, model, task, noise and training arguments."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from descend.declared import (
    GENERATED,
    HEALED,
    SMALL,
    TRANSFORMERS,
    Count,
    InnerShare,
    Layers,
    NoiseLevel,
    Scale,
    flag_of,
    setting,
)
from descend.errors import InputError, reason, refuse
from descend.reading import utf8_path
from descend.settings import PRETRAINED_DUAL, STATED, DescentSettings, check

if TYPE_CHECKING:
    from torch.utils.data import Dataset
    from transformers import PreTrainedConfig, TrainerCallback

    from descend.models import LayeredModel
    from descend.models.library import LibraryModel
    from descend.noise import Noise
    from descend.run.run import Run
    from descend.tasks import Task
    from descend.training import DescentMixin
    from descend.training.config import DescentArguments

Collate = Callable[[list[Any]], dict[str, Any]]
"""Samples → a batch."""


logger = logging.getLogger(__name__)

USEFUL_LAYERS = {
    "method": "linear",
    "strength": 0.8,
    "dual_optim_args": PRETRAINED_DUAL,
    "exits": "own",
    "head_lr_ratio": 10.0,
}
"""How `text` and `image` train, by reproduction/records/layers.md; with constraints, if they are asked for, of this
strength. `lm` takes the exits alone and trains plainly: at 30 exits the constraints harmed the last layer."""

_EXPECTED = "a folder with config.json and model.safetensors, or a name on the Hub, which needs a network at first"


@dataclass(frozen=True)
class Data:
    """A loaded data set.

    Attributes:
        train: Samples to train on.
        validation: Samples of the training side that settings are chosen on.
        test: Samples of the test side.
        name: The data set's name, for records and reports.
        measure_sigma: Computes σ_x; None if σ_x depends on the model's embedding.
        tokenizer: The tokenizer of the texts, or the image processor; it is saved with the model. None for videos.
        labels: Names of the classes, in the order of their numbers; empty without classes.
        notes: Sentences about samples that were left out or cut.
        read: What of a folder was read, where files were passed over.
        frame_sizes: Reads the sizes (width, height) of frames on disk; None for data that have none.
    """

    train: Dataset
    validation: Dataset
    test: Dataset
    name: str
    measure_sigma: Callable[[], float] | None = None
    tokenizer: Any = None
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    read: str = ""
    frame_sizes: Callable[[], list[tuple[int, int]]] | None = None

    @property
    def passed_over(self) -> str:
        """The end of a sentence on the samples: what of the folder was read, in brackets."""
        return f" ({self.read})" if self.read else ""

    @cached_property
    def sigma(self) -> float | None:
        """σ_x, measured once on first use; None if it depends on the model."""
        return None if self.measure_sigma is None else self.measure_sigma()


@dataclass(frozen=True)
class Recipe(ABC):
    """Data, task, noise and a model to train: frozen settings, so that a changed recipe is `dataclasses.replace`.

    A recipe is a file of this package with a subclass that has a ``name``. The command line imports it, so torch and
    what needs it are imported inside functions.

    Attributes:
        data: Where the data are: a path, for texts with classes also a name on the Hub, or ``generated`` for the
            generated ones that come with Descend.
        noise: The training noise γ, in units of the clean data's std σ_x.
        noise_is: What γσ_x is of the noise, in training and evaluation: its ``std``, or its ``variance``, for a std of
            √(γσ_x).
        validation_share: The share of the training data to validate on.

    Raises:
        InputError: If a setting is out of range.
    """

    data: str = field(kw_only=True, metadata={"help": "folder or file of the data, or: generated"})
    noise: NoiseLevel = setting(0.8, "training noise γ, in std of the clean data")
    noise_is: Scale = setting("std", "what γσ_x is of the noise", ("std", "variance"))
    validation_share: InnerShare = setting(0.2, "share of the training data to validate on")

    arguments_kind: ClassVar[type[DescentSettings]] = DescentSettings
    has_head: ClassVar[bool] = True
    """Whether a head of Transformers reads the model's layers, of which own exits are copies."""
    training: ClassVar[dict[str, Any]] = {
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "merit",
        "logging_steps": 10,
        "report_to": "none",
        "calibrate": True,
    }
    """Training arguments that a recipe sets, by name; all others have the default of `DescentConfig`."""
    name: ClassVar[str]
    """The recipe's name in ``descend train NAME``."""
    help: ClassVar[str]
    """One line about it."""
    order: ClassVar[int] = 100
    """Its place in lists; recipes of one place are sorted by name."""
    data_help: ClassVar[str] = "PATH"
    """What ``data`` may be beside `GENERATED`."""
    takes_hub_data: ClassVar[bool] = False
    """Whether ``data`` may be a name on the Hub."""
    takes_files: ClassVar[bool] = True
    """Whether ``data`` may be a path."""
    names_of_data: ClassVar[tuple[str, ...]] = ()
    """Values of ``data`` that are no path, beside `GENERATED`."""
    needs_model: ClassVar[bool] = False
    """Whether it trains a pretrained model, which must be named."""
    in_paper: ClassVar[bool] = False
    """Whether the paper's method has a form for it: ``--preset paper``, and ``descend paper``."""
    export_format: ClassVar[str] = TRANSFORMERS
    """The format of an export unless another one is asked for."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Optional packages that it imports."""
    architecture: ClassVar[str]
    """The name of the model's class in `descend.models`, for recipes without a `restore` of their own."""
    family: ClassVar[str]
    """The model's name in tables, without its depth."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def depth(self) -> int:
        """L, the number of layers: a setting of a new model; of a pretrained one known once the recipe is completed."""
        raise NotImplementedError

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        """Refuse a recipe without data or model, and settings that do not go together.

        Generated data are used only where they are asked for.

        Args:
            given: The given settings.

        Raises:
            InputError: If no data are given, or no model to a recipe of pretrained models; or if a model is to be
                healed in a way that its inner layers would learn too.
        """
        lacks_model = cls.needs_model and given.get("model") is None
        usual = {"method": "erm", "exits": "shared", **dict.fromkeys((*STATED, "strength", "preset"))}
        inner = [flag_of(name) for name, value in usual.items() if given.get(name, value) not in (value, None)]
        model = "--model PATH_OR_NAME, the folder of a pretrained model or its name on the Hub."
        refuse(
            (
                given.get("data") is None,
                f"{cls.name} needs data; expected --data {cls.data_help}, or --data {GENERATED} for the generated ones "
                f"that come with descend.{f' Also give {model}' if lacks_model else ''}",
            ),
            (lacks_model, f"{cls.name} trains a pretrained model; expected {model}"),
            (
                bool(given.get("heal") and inner),
                "--heal is plain training (erm) of the readout that all layers share, because most inner layers are "
                f"frozen; got {' and '.join(inner)}. Leave out --heal, or {'these' if inner[1:] else 'that'}.",
            ),
        )

    @property
    def source(self) -> str | None:
        """Where the data are; None for generated ones."""
        return None if self.data == GENERATED else self.data

    @abstractmethod
    def load(self, model: LayeredModel | None = None, tokenizer: Any = None) -> Data:
        """Load the data. They do not depend on the run's seed, so that seeds are compared on the same data.

        Args:
            model: Encode samples for this trained model; None prepares them for a new one.
            tokenizer: Its tokenizer or image processor; None for videos.
        """

    @abstractmethod
    def load_test(self, data: str, model: LayeredModel, tokenizer: Any) -> tuple[Dataset, str]:
        """Load the test samples of another data set, and its name.

        Args:
            data: The other data set.
            model: The model that is evaluated on it.
            tokenizer: Its tokenizer or image processor; None for videos.
        """

    @abstractmethod
    def task(self) -> Task:
        """The loss and the metric."""

    def restore(self, folder: str) -> tuple[LayeredModel, Any]:
        """Load a model that `save_pretrained` wrote, with its tokenizer or image processor; by default without one."""
        from descend import models

        return load_pretrained(getattr(models, self.architecture), folder), None

    def collate(self, tokenizer: Any) -> Collate | None:
        """The function that turns samples into a batch; None for torch's default."""
        return None

    def corruption(self, sigma: float | None, seed: int, shift: str = "gaussian") -> Noise:
        """The noise at its training level.

        Args:
            sigma: σ_x of the clean data; None for an embedding whose σ_x changes as it learns.
            seed: Seed of the noise.
            shift: One of `descend.noise.SHIFTS`. Training uses Gaussian noise. Token dropout has no training level.
        """
        from descend.noise import SHIFTS, TokenDropout

        kind = SHIFTS[shift]
        return kind(0.0 if kind is TokenDropout else self.noise, sigma, seed, self.noise_is)

    @classmethod
    def arguments(cls) -> type[DescentArguments]:
        """The class of the training arguments."""
        from descend.training.config import DescentConfig

        return DescentConfig

    @classmethod
    def usual_method(cls) -> str:
        """The method where nothing given asks for another, see `descend.settings.method_of`."""
        return str(cls.training.get("method", "constrained"))

    @property
    def defaults(self) -> dict[str, Any]:
        """Training arguments of these settings; those of a pretrained model differ from `training`."""
        return self.training

    def completed(self) -> Self:
        """The recipe with absolute paths and, for a pretrained model, that model's own sizes.

        Raises:
            InputError: If the pretrained model can't be used with these settings.
        """
        return self

    @property
    def label(self) -> str:
        """The model's name in tables, such as UT-7."""
        return f"{self.family}-{self.depth}"

    def about(self, data: Data) -> tuple[list[str], list[str]]:
        """What is said before a model is trained or read: lines on data and model, and warnings."""
        train, validation, test = (f"{len(part):,}" for part in (data.train, data.validation, data.test))  # type: ignore[arg-type]
        counts = f"{train} samples to train on, {validation} for validation, {test} for test"
        return [f"{data.name}: {counts}{data.passed_over}.", *self.about_model()], []

    def about_noise(self, data: Data) -> tuple[list[str], list[str]]:
        """What is said of the training noise before it trains: lines and warnings."""
        noise = "none, so that the model is trained for clean data. --noise adds some."
        if self.noise:
            noise = (
                f"γ = {self.noise:g} on the embeddings, in units of their standard deviation σ_x, so that every layer "
                "is trained to work under noise. --noise 0 trains on clean data."
            )
        return [f"Training noise: {noise}"], []

    def about_model(self) -> list[str]:
        """Lines on which part of the model is trained."""
        return []

    @abstractmethod
    def network(self, data: Data) -> LayeredModel:
        """A new model for the data."""

    def fitted(self, model: LayeredModel) -> Self:
        """The recipe with the sizes that are known only after the model is loaded."""
        return self

    def resolve(self, arguments: Any, data: Data | None = None) -> Run:
        """The run to be trained, with its data and its new model; the recipe is not changed.

        Args:
            arguments: Training arguments, of the class `arguments()`; their seed is that of the model's weights.
            data: The result of this recipe's `load`, to share it between runs; loaded if None.
        """
        from transformers import set_seed

        from descend.run.run import Run

        recipe = self.completed()
        if data is None:
            data = recipe.load()
        set_seed(arguments.seed)
        model = recipe.network(data)
        noise = recipe.corruption(data.sigma, arguments.seed)
        return Run(
            arguments.folder,
            recipe=recipe.fitted(model),
            arguments=arguments,
            data=data,
            model=model,
            tokenizer=data.tokenizer,
            task=recipe.task(),
            noise=noise,
        )

    def trainer(self, run: Run, callbacks: Sequence[TrainerCallback]) -> DescentMixin:
        """The trainer of a run that `resolve` made."""
        from descend.training import DescentTrainer

        return DescentTrainer(
            run.model,
            run.arguments,
            task=run.task,
            noise=run.noise,
            train_dataset=run.data.train,
            eval_dataset=run.data.validation,
            data_collator=self.collate(run.tokenizer),
            processing_class=run.tokenizer,
            callbacks=list(callbacks),
        )


@dataclass(frozen=True)
class PretrainedSettings:
    """Settings of recipes that train a pretrained model of Transformers, with all of its blocks or the first K.

    It stands before the other base class, whose ``noise`` it replaces: none unless asked for.
    """

    model: str = field(kw_only=True, metadata={"help": "folder or Hub name of a pretrained model"})
    keep_layers: Layers | None = setting(None, "cut it to its first K blocks before training [all]")
    heal: bool = setting(False, f"of the cut model train the readout and the last {HEALED} blocks alone")
    noise: NoiseLevel = setting(0.0, "training noise γ, in std of the embeddings")

    needs_model: ClassVar[bool] = True
    healing: ClassVar[dict[str, Any]] = {"method": "erm", "exits": "shared"}
    """Training arguments of a cut model that is healed: inner layers do not learn."""

    @property
    def defaults(self) -> dict[str, Any]:
        """The recipe's training arguments; plain training of a cut model that is healed."""
        return super().defaults | (self.healing if self.heal else {})  # type: ignore[misc]

    @property
    def depth(self) -> int:
        """L, the blocks that are trained; known once the recipe is completed."""
        assert self.keep_layers is not None
        return self.keep_layers

    def layers_of(self, config: PreTrainedConfig) -> int:
        """K, the blocks that are trained of a model with this configuration.

        Raises:
            InputError: If a model is to be healed that is not cut.
        """
        whole: int = config.num_hidden_layers
        layers = self.keep_layers or whole
        if self.heal and layers >= whole:
            raise InputError(
                f"--heal trains the end of a model that is cut; got {layers} of the {whole} layers of {self.model}. "
                f"Give --keep-layers K with K below {whole}, or leave out --heal."
            )
        return layers

    def cut(self, model: LibraryModel) -> None:
        """Keep a model's first blocks, and freeze all but its end where it is to be healed."""
        from descend.models import keep_first, train_last

        keep_first(model, self.depth)
        if self.heal:
            train_last(model, HEALED)

    def about_model(self) -> list[str]:
        """What of a cut model is trained."""
        if not self.heal:
            return []
        whole = config_of(self.model).num_hidden_layers
        return [
            f"Cut to {self.depth} of {whole} layers. The readout and the last {min(HEALED, self.depth)} blocks are "
            "trained; everything below is frozen."
        ]


@dataclass(frozen=True)
class NewModelSettings:
    """Settings of recipes that train a small new model, or a pretrained one with its own sizes.

    It stands before the other base class, whose ``depth`` it replaces.
    """

    model: str = setting(SMALL, "small: a new one; or folder or Hub name [small]")
    depth: Layers = setting(6, "L, layers of a small model")
    hidden_size: Count = setting(128, "width of a small model")


def tell(name: str, *notes: str) -> None:
    """Warn of what was passed over or cut in other data than a run's own; an empty note is left out."""
    for note in filter(None, notes):
        logger.warning("%s: %s.", name, note.removesuffix("."))


def absolute(path: str) -> str:
    """An absolute path, which still holds when a run is evaluated from another directory; `GENERATED` as it is."""
    return path if path == GENERATED else str(utf8_path(Path(path)))


def absolute_or_name(source: str) -> str:
    """An absolute path of a file or folder; a name on the Hub as it is."""
    return absolute(source) if Path(source).expanduser().exists() else source


def folder_of(start: str) -> Path:
    """The folder of an embedding model; for a name on the Hub the folder that its small files are downloaded to.

    Raises:
        InputError: If there is no such folder, and nothing of this name can be downloaded.
    """
    from huggingface_hub import snapshot_download

    from descend.results import hub_name

    folder = Path(start).expanduser()
    if folder.is_dir():
        return folder
    if hub_name(start) is None:
        raise InputError(f"{start} is gone: its pooling and prompts can't be read. Put it back.")
    files = ["modules.json", "tokenizer_config.json", "*sentence*.json", "[0-9]_*/*.json", "[0-9]_*/*.safetensors"]
    try:
        return Path(snapshot_download(start, allow_patterns=files))
    except (OSError, ValueError) as error:
        raise InputError(
            f"what {start} has beside its encoder can't be read: {reason(error)}. Give its folder."
        ) from error


def check_heads(recipe: Any) -> None:
    """Refuse a width of a new model that its attention heads can't share.

    Raises:
        InputError: If ``hidden_size`` is no multiple of ``heads``.
    """
    if recipe.model == SMALL and recipe.hidden_size % recipe.heads:
        raise InputError(f"hidden_size must be a multiple of heads; got {recipe.hidden_size} and {recipe.heads}.")


def check_words(words: int, room: int, source: str) -> None:
    """Refuse a tokenizer with more words than a pretrained model has embeddings.

    Raises:
        InputError: If it has.
    """
    if words > room:
        raise InputError(
            f"the tokenizer has {words} words, the word embedding of {source} {room}. Give the model's own tokenizer."
        )


def config_of(source: str) -> PreTrainedConfig:
    """The configuration of a pretrained model.

    Raises:
        InputError: If there is none that can be loaded.
    """
    from transformers import AutoConfig

    from descend.models import load_model

    return load_model(AutoConfig, source, "a model", _EXPECTED)


def has_classifier(config: PreTrainedConfig) -> bool:
    """Whether a pretrained model was saved with a head for the classification of texts or images."""
    return any(re.search("For(Sequence|Image)Classification", each) for each in config.architectures or ())


def head_numbers(config: PreTrainedConfig, classes: Sequence[str], source: str, data: str) -> Sequence[int]:
    """The number of each class of the data in a head that is for these classes alone; their own in a new head.

    Args:
        config: The model's configuration.
        classes: The names of the data's classes.
        source: The model's folder or name, for the error.
        data: The name of the data, for the error.

    Raises:
        InputError: If the head has another number of classes, or other names for them.
    """
    if not has_classifier(config):
        return range(len(classes))
    if config.num_labels != len(classes):
        raise InputError(
            f"{source} has a head of {config.num_labels} labels; {data} has {len(classes)}: {', '.join(classes[:10])}. "
            "Give other data, or a model without a head: AutoModel.from_pretrained(MODEL).save_pretrained(FOLDER) "
            "writes one."
        )
    return class_numbers(config, classes, source, data)


def is_unnamed(config: PreTrainedConfig) -> bool:
    """Whether a head's classes have Transformers' placeholders for names."""
    return all(str(name).lower().startswith("label_") for name in (config.id2label or {}).values())


def class_numbers(config: PreTrainedConfig, classes: Sequence[str], source: str, data: str) -> tuple[int, ...]:
    """A head's number of each class of the data, by its name; by its place where the head has no names of its own.

    Names that are not the same may differ in case and in their Unicode form, and be short for ``negative``,
    ``positive`` or ``neutral``.

    Args:
        config: The model's configuration.
        classes: The names of the data's classes, which may be some of the head's.
        source: The model's folder or name, for the error.
        data: The name of the data, for the error.

    Raises:
        InputError: If the head lacks a class.
    """
    from descend.tasks.folders import class_name

    known = {str(name): int(number) for number, name in (config.id2label or {}).items()}
    found: dict[str, int] = {}
    for written in (_folded, class_name, str):  # a name as it is counts most: Polish and polish are two classes
        several = Counter(map(written, known))
        places = {written(name): number for name, number in known.items() if several[written(name)] == 1}
        found |= {each: places[written(each)] for each in classes if written(each) in places}
    if len({*found.values()}) == len(classes):
        return tuple(found[each] for each in classes)
    if is_unnamed(config) and config.num_labels == len(classes):
        return tuple(range(len(classes)))
    lacking = [each for each in classes if each not in found] or classes
    raise InputError(
        f"{source} knows the classes {', '.join([*known][:10])}; {data} has {', '.join(classes[:10])}, and of "
        f"{lacking[0]} the model has none. Give both the same names, by id2label in the model's config.json."
    )


def _folded(name: str) -> str:
    """A class's name in small letters and in full, without the prefix of Transformers' placeholders: 7 is LABEL_7."""
    from descend.tasks.folders import class_name

    small = class_name(name).casefold().removeprefix("label_")
    return {"neg": "negative", "pos": "positive", "neu": "neutral"}.get(small, small)


def load_pretrained(auto_class: Any, source: str, **settings: Any) -> Any:
    """A pretrained model, of which the head alone may be new.

    Args:
        auto_class: One of Transformers' or PEFT's Auto classes, or a model's own class.
        source: A folder or a name on the Hub.
        **settings: Further arguments of its ``from_pretrained``.

    Raises:
        InputError: If it can't be loaded, or its blocks or embeddings are not there.
    """
    from descend.models import load_model

    if hasattr(auto_class, "_target_peft_class"):  # PEFT's give no account of what they load
        return load_model(auto_class, source, "a model", _EXPECTED, **settings)
    network, loading = load_model(auto_class, source, "a model", _EXPECTED, output_loading_info=True, **settings)
    inside = "" if network.base_model is network else f"{network.base_model_prefix}."
    new = [name for name in sorted(loading["missing_keys"]) if name.startswith(inside) and "pooler" not in name]
    if new:
        raise InputError(
            f"{source} lacks weights of a {type(network).__name__}: {', '.join(new[:3])}"
            f"{f' and {len(new) - 3} others' if len(new) > 3 else ''}. Copy the model again, or save it whole."
        )
    return network
