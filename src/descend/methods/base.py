"""What a method of training is: what it minimizes, what it changes in a step, what it refuses, how it is shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from descend.models import LayeredModel
    from descend.tasks import Task


class Style(NamedTuple):
    """How an arm is drawn: its colour on light and on dark ground, and matplotlib's name of its mark."""

    light: str
    dark: str
    marker: str


GREY = Style("#6b6b6b", "#b5b5b5", "H")
"""The style of a method without one, such as that of a run of another version."""


class Method:
    """A method of training: by default that of ERM, the last exit's loss and nothing else.

    A method is a file of this package with a subclass that has a ``name``. The command line and the report import it,
    so torch and what needs it are imported inside functions.

    Args:
        settings: The training arguments, of which each method uses its own.
    """

    name: ClassVar[str]
    """The value of ``--method``."""
    about: ClassVar[str]
    """What it minimizes, for the table of methods."""
    label: ClassVar[str]
    """Its name on pages."""
    style: ClassVar[Style] = GREY
    """How its runs are drawn."""
    order: ClassVar[int] = 100
    """Its place in lists; methods of one place are sorted by name."""

    @dataclass
    class Settings:
        """Settings that no other method uses; a subclass declares its own, and their help begins with its name."""

    constrained: ClassVar[bool] = False
    """Whether the multipliers move."""
    asks: ClassVar[bool] = False
    """Whether the constraints are asked for themselves: then they judge the model, and choose the best one."""
    compiles: ClassVar[bool] = True
    """Whether the blocks are the same at every step, so that they can be compiled."""
    own_exits: ClassVar[bool] = False
    """Whether inner layers must have own exits."""

    def __init__(self, settings: Any):
        self.settings = settings

    @staticmethod
    def objective_weights(depth: int, settings: Any) -> list[float]:
        """The weights of f_0 … f_L in the problem's objective, L+1 numbers, under the training arguments."""
        return [0.0] * depth + [1.0]

    @staticmethod
    def check(task: "Task", model: "LayeredModel") -> None:
        """Raise an error if the method can't train a model.

        Args:
            task: The loss of the data.
            model: The model.
        """

    def attach(self, trainer: Any) -> None:
        """Check and change a trainer once, when its model and data are known.

        Raises:
            InputError: If the method can't train its model.
        """
        self.dual, objective = trainer.dual, trainer.objective
        self.check(objective.task, objective.model)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Around the training loop."""
        yield

    def before_pass(self, step: int, steps: int, micro_batch: int = 0) -> None:
        """Before the forward pass of a micro-batch in step ``step`` of ``steps``; both are counted from 0."""

    def weights(self, step: int, steps: int) -> list[float]:
        """The weights of f_0 … f_L at a step, L+1 numbers."""
        return self.dual.weights.tolist()

    @property
    def inner(self) -> bool:
        """Whether the next step needs the losses of inner exits, without own exits, which always learn."""
        return self.dual.inner
