"""R-Drop: two passes of every sample that must agree."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.declared import NotNegative, setting
from descend.errors import InputError
from descend.methods.base import Method, Style

if TYPE_CHECKING:
    from torch import Tensor

    from descend.models import LayeredModel
    from descend.tasks import Task


class RDrop(Method):
    """R-Drop (Liang et al., 2021): each sample passes twice, with its own draws of dropout and noise.

    κ · ½ [KL(p‖q) + KL(q‖p)] of the last exit's two predictions is added to the mean loss of both passes, with κ the
    setting ``r_drop``. The paper's sum of both losses and α times the divergence is twice this, κ = α/2.
    """

    name = "r-drop"
    about = "classifiers alone: ERM on two passes of every sample (Liang et al., 2021)"
    label = "R-Drop"
    style = Style("#808080", "#9a9a9a", "*")
    order = 60

    @dataclass
    class Settings:
        """The setting of R-Drop.

        Attributes:
            r_drop: κ, the price of the difference between the two passes' predictions.
        """

        r_drop: NotNegative = setting(1.0, "r-drop: price of differing predictions")

    @staticmethod
    def check(task: "Task", model: "LayeredModel") -> None:
        """Refuse a task without classes."""
        if not hasattr(task, "disagreement"):
            raise InputError(
                f"the method r-drop is for classification: it compares the class probabilities of two passes; got "
                f"{type(task).__name__}. Choose another method."
            )

    def attach(self, trainer: Any) -> None:
        """Add the second pass and its term."""
        import torch

        super().attach(trainer)
        objective = trainer.objective

        def term(predictions: "Tensor") -> "Tensor":
            apart = objective.task.disagreement(*predictions.chunk(2))
            return self.settings.r_drop * apart.sum(dtype=torch.promote_types(apart.dtype, torch.float32))

        objective.passes, objective.term = 2, term
