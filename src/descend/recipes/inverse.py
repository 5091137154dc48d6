"""The base recipe of unrolled solvers of inverse problems, on generated signals."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from descend.declared import GENERATED, Layers, NoiseLevel, setting
from descend.errors import InputError
from descend.recipes.base import Data, Recipe

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from descend.models import LayeredModel
    from descend.noise import Noise
    from descend.tasks.inverse import Measured

SEEDS = {"train": 1, "validation": 2, "test": 3}
"""Of the signals of each part, which are the same in every run."""

SIZES = {"train": 10_000, "validation": 1_000, "test": 1_000}
"""Signals of each part."""


@dataclass(frozen=True)
class InverseRecipe(Recipe):
    """The base recipe of unrolled solvers: generated signals, measured without noise; noise is added as to any input.

    Attributes:
        depth: L, the number of iterations.
        tied: Whether one set of weights serves all iterations, which may then go on past L.
        between: Whether as much noise is added to what every layer is given, see `descend.noise.StateNoise`.
    """

    has_head = False
    takes_files = False
    data_help = f"{GENERATED}; a network on your own data goes through descend.layered"

    signals: ClassVar[str]
    """What the signals are called."""

    data: str = field(kw_only=True, metadata={"help": f"{GENERATED}; in evaluations also a shifted set"})
    noise: NoiseLevel = setting(0.1, "noise γ on measurements, in std of them; 0.1 is 20 dB")
    depth: Layers = setting(10, "L, the number of iterations")
    tied: bool = setting(False, "one set of weights for all iterations")
    between: bool = setting(False, "as much noise between layers in training")

    training = Recipe.training | {
        "max_steps": 2000,
        "per_device_train_batch_size": 128,
        "per_device_eval_batch_size": 1000,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "linear",
        "logging_steps": 100,
        "eval_strategy": "steps",
        "eval_steps": 500,
        "save_steps": 500,
        "calibrate": False,
    }

    @abstractmethod
    def measured(self, part: str, shift: str = GENERATED) -> Measured:
        """The signals of a part, ``train``, ``validation`` or ``test``, with a shift of the test signals."""

    def load(self, model: LayeredModel | None = None, tokenizer: Any = None) -> Data:
        """Generate the signals."""
        if self.data != GENERATED:
            raise InputError(
                f"{self.name} trains on generated signals; got data {self.data!r}. Give --data {GENERATED}, or wrap "
                "your own network by descend.layered."
            )
        train, validation, test = (self.measured(part) for part in SIZES)
        return Data(train, validation, test, f"generated {self.signals}", measure_sigma=lambda: train.sigma)

    def load_test(self, data: str, model: LayeredModel, tokenizer: Any) -> tuple[Dataset, str]:
        """Generate the test signals under a shift."""
        known = (GENERATED, *self.names_of_data)
        if data not in known:
            raise InputError(f"--data of {self.name} must be one of {', '.join(known)}; got {data!r}.")
        return self.measured("test", data), f"{data} {self.signals}"

    def corruption(self, sigma: float | None, seed: int, shift: str = "gaussian") -> Noise:
        """The noise at its training level, between layers too if training has it."""
        if shift == "dropout":
            raise InputError("token dropout needs tokens; a measurement has none. Choose another --shift.")
        return super().corruption(sigma, seed, "states" if self.between and shift == "gaussian" else shift)

    def about(self, data: Data) -> tuple[list[str], list[str]]:
        """The number of signals."""
        train, validation, test = (f"{len(part):,}" for part in (data.train, data.validation, data.test))  # type: ignore[arg-type]
        return [f"{data.name}: {train} to train on, {validation} for validation, {test} for test."], []

    def about_noise(self, data: Data) -> tuple[list[str], list[str]]:
        """The noise in the measurements' unit."""
        noise = "none" if not self.noise else f"γ = {self.noise:g}, in units of the measurements' standard deviation"
        return [f"Training noise: {noise} ({data.sigma:.2g})."], []
