"""What every recipe says, whatever its data and its model."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from descend.models import LayeredModel
from descend.noise import GaussianNoise, LaplaceNoise, Noise, TokenDropout, UniformNoise
from descend.objective import Task
from descend.training import DescentMixin, DescentTrainer
from descend.training.config import DescentArguments, DescentConfig

SHIFTS: dict[str, type[Noise]] = {
    "gaussian": GaussianNoise,
    "uniform": UniformNoise,
    "laplace": LaplaceNoise,
    "dropout": TokenDropout,
}
"""Kinds of noise that a model can be judged under, by name."""


GENTLE = {"dual_optim_args": '{"start": 0}'}
"""For a pretrained model: multipliers start at 0, so that it is disturbed only where a bound is missed."""


def setting(default: Any, help: str) -> Any:
    """A field of a recipe, with the help text that its flag shows."""
    return field(default=default, metadata={"help": help})


class Data(Protocol):
    """A data set as training uses it."""

    @property
    def train(self) -> Dataset:
        """Samples to train on."""

    @property
    def validation(self) -> Dataset:
        """Others of the training side, to choose settings on."""

    @property
    def test(self) -> Dataset:
        """Those of the test side."""

    @property
    def name(self) -> str:
        """The data set's name, for records and reports."""

    @property
    def sigma(self) -> float | None:
        """σ_x where it does not depend on the model."""


@dataclass
class Recipe:
    """What every recipe says, whatever its data and its model."""

    data: str | None = setting(None, "Folder or file of the data; the embedded generated ones unless given.")
    depth: int = setting(7, "L, the number of layers.")
    noise: float = setting(0.8, "Training noise γ: of the clean data's std σ_x, as --noise-is says.")
    noise_is: str = setting(
        "std", "What γσ_x is of the noise, in training and in judging: its std, or its variance, for a std of √(γσ_x)."
    )
    validation_share: float = setting(0.2, "Share of the training data kept for validation.")

    family: ClassVar[str]
    usual_noise: ClassVar[float]
    """γ that a model trained without noise is judged by: up to 3.5 times this."""
    about: ClassVar[str]
    training: ClassVar[dict[str, Any]] = {
        "logging_steps": 10,
        "save_total_limit": 2,
        "report_to": "none",
    }

    def check(self) -> None:
        """Refuse what can't be, before any work is done."""
        self.corruption(None, seed=0)  # refuses what no noise can be

    @property
    def otherwise(self) -> dict[str, Any]:
        """What these settings would have otherwise in `training`, where the person does not say."""
        return {}

    @property
    def words(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer of texts, known once the data or a model are loaded; it is saved with the model."""
        return None

    @property
    def collate(self) -> Callable[[list[Any]], dict[str, Any]] | None:
        """How samples become a batch; torch's way for None."""
        return None

    @abstractmethod
    def load(self) -> Data:
        """The data set; it does not depend on the run's seed, so that seeds are compared on the same data."""

    @abstractmethod
    def load_test(self) -> tuple[Dataset, str]:
        """The test samples of data that the model was not trained on, and the data set's name."""

    @abstractmethod
    def task(self) -> Task:
        """The loss and the metric."""

    @abstractmethod
    def network(self, data: Data) -> LayeredModel:
        """A new model for the data."""

    def corruption(self, sigma: float | None, seed: int, shift: str = "gaussian") -> Noise:
        """The noise at its training level, for data of this σ_x; None for an embedding whose σ_x moves as it learns.

        Training is with Gaussian noise; another kind of `SHIFTS` is for judging. Token dropout has no training level.
        """
        kind = SHIFTS[shift]
        return kind(0.0 if kind is TokenDropout else self.noise, sigma, seed, self.noise_is)

    @classmethod
    def arguments(cls) -> type[DescentArguments]:
        """What its training is set by."""
        return DescentConfig

    def trainer(self, model: Any, args: Any, noise: Noise, data: Data, callbacks: list[Any]) -> DescentMixin:
        """What trains a `network`; the data are those of `load`."""
        return DescentTrainer(
            model,
            args,
            task=self.task(),
            noise=noise,
            train_dataset=data.train,
            eval_dataset=data.validation,
            processing_class=self.words,
            callbacks=callbacks,
        )

    @abstractmethod
    def restore(self, folder: str) -> LayeredModel:
        """The model that `save_pretrained` put into a folder."""

    @property
    def label(self) -> str:
        """The model's name in tables, such as UT-7."""
        return f"{self.family}-{self.depth}"


def absolute(path: str | None) -> str | None:
    """A path that still holds when a run is judged from another directory."""
    return None if path is None else str(Path(path).expanduser().absolute())
