"""The layer losses of a batch by one compiled graph for all steps of a run."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from descend.models.classifiers import LayeredClassifier
from descend.models.denoiser import UnrolledModel
from descend.models.layered import LayeredModel
from descend.models.vit import ViTDenoiser
from descend.noise import Noise
from descend.tasks.base import Task
from descend.transfer import uploaded

logger = logging.getLogger(__name__)


class CompiledExits:
    """The losses of all exits and their weighted sum, compiled.

    What changes from step to step stays outside the graph: the noise is drawn and added to the embedded input before
    it, and the weights enter it as a tensor. There is one graph for steps in which the last layer alone has a weight,
    such as a warm-up, one for all others, and another of each for a batch of another shape.

    The first pass is eager: Transformers attaches hooks to a model that gives its hidden states for the first time,
    and these can't be compiled.

    Args:
        model: A model that `can_compile`.
        task: Its loss.
        **options: Of `torch.compile`, such as ``backend`` and ``mode``.
    """

    def __init__(self, model: LayeredModel, task: Task, **options: Any):
        self._model, self._task = model, task
        self._compiled: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.compile(self._exits, **options)
        self._warm = False

    def __call__(
        self, inputs: Any, target: Tensor, weights: Sequence[float], noise: Noise | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the model on a batch.

        Args:
            inputs: Of the model.
            target: The targets of the predictions.
            weights: The weight of each exit, L+1 numbers.
            noise: Added to the embedded input; None for none.
            mask: 0 where no noise goes.

        Returns:
            The losses summed over the targets (L+1,), without gradient; their weighted sum, to differentiate; and the
            last exit's prediction.
        """
        with noise.on(self._model, mask=mask) if noise else nullcontext():
            embedded = self._embedded(inputs)
        run = self._compiled if self._warm else self._exits
        self._warm = True
        return run(embedded, target, uploaded(weights, target.new_zeros((), dtype=torch.float32)), any(weights[:-1]))

    def _embedded(self, inputs: Any) -> Any:
        if isinstance(self._model, LayeredClassifier):
            return self._model.embedded(inputs)
        return self._model.get_input_embeddings()(inputs)

    def _exits(self, inputs: Any, target: Tensor, weights: Tensor, inner: bool) -> tuple[Tensor, Tensor, Tensor]:
        model, task = self._model, self._task
        if model.reads_together:
            states = model.layer_outputs(inputs)
            with nullcontext() if inner else torch.no_grad():
                early = model.read_together(states[:-1], inputs)
            predictions = [*early.unbind(), *model.read_together(states[-1:], inputs).unbind()]
        else:
            predictions = list(model.predictions(inputs))
            if not inner:
                predictions[:-1] = [each.detach() for each in predictions[:-1]]
        sums = task.sums(predictions, target)
        # 0 · ∞ is no number.
        weighted = torch.where(weights != 0, sums, 0.0) if inner else torch.where(weights != 0, sums[-1], 0.0)
        return sums.detach(), torch.dot(weights.to(weighted), weighted), predictions[-1]


def can_compile(model: LayeredModel) -> bool:
    """Whether a model's exits make one graph; others are read through hooks, or by tiles of logits."""
    return isinstance(model, LayeredClassifier | UnrolledModel | ViTDenoiser)


def compiled_exits(model: LayeredModel, task: Task, **options: Any) -> CompiledExits | None:
    """The compiled exits of a model, or None, with a warning, for one that stays as it is."""
    if can_compile(model):
        return CompiledExits(model, task, **options)
    logger.warning(
        f"torch_compile has no effect on {type(model.saved).__name__}: only UT, DUST, ViT and text classifiers are "
        "compiled. Training goes on without it."
    )
    return None
