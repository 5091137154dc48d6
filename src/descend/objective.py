"""noise ∘ model ∘ readout ∘ loss: what a batch's layer losses are."""

from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from descend.errors import InputError
from descend.models.classifiers import LayeredClassifier
from descend.models.layered import LayeredModel
from descend.noise import Noise
from descend.tasks.text import Classification


class Task(Protocol):
    """What training and evaluation ask of a task; it knows no model."""

    metric: str
    higher_is_better: bool

    def inputs(self, batch: dict[str, Any]) -> Any:
        """What a model is given."""

    def mask(self, batch: dict[str, Any]) -> Tensor | None:
        """Which places of a sample hold data that noise may touch, (B, T); None for all."""

    def target(self, batch: dict[str, Any]) -> Tensor:
        """What a prediction is held against."""

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """f of every sample, shape (B,)."""

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The metric's sum over each sample, shape (B,)."""

    def decide(self, prediction: Tensor) -> tuple[Tensor, Tensor] | None:
        """What a prediction decides for and how sure it is, both (B,); None where there is nothing to decide."""

    def metric_value(self, total: float, count: float) -> float:
        """The metric over a data set."""

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Refuse samples that a model of these limits can't take, before any work is done."""

    def sigma(self, embedding: nn.Module, dataset: Any) -> float:
        """σ_x, the standard deviation of what a model's input embedding makes of a data set."""


class Objective(nn.Module):
    """The layer losses of a model under a task and a noise: the forward pass that parallel training wraps.

    Args:
        model: A `LayeredModel`, or a classifier of the library's.
        task: The data's loss and metric; of a classifier its own unless given.
        noise: Applied in training to the output of the model's input embedding; None for clean training.

    Raises:
        InputError: If the model's layers can't be read, or no task is given for a model that is no classifier.
    """

    model: Any  # a module and a LayeredModel: no type says both

    def __init__(self, model: nn.Module, task: Task | None = None, noise: Noise | None = None):
        if isinstance(getattr(model, "config", None), PreTrainedConfig) and not isinstance(model, LayeredModel):
            model = LayeredClassifier(model)  # type: ignore[arg-type]
        if not isinstance(model, LayeredModel):
            raise InputError(
                f"expected a LayeredModel, whose every layer's output can be read; got {type(model).__name__}."
            )
        if task is None and not isinstance(model, LayeredClassifier):
            raise InputError(f"expected a task, the loss and metric of the data of {type(model).__name__}; got none.")
        super().__init__()
        self.model = model
        self.task: Task = Classification() if task is None else task
        self.noise = noise

    def forward(self, weights: Tensor | None = None, **batch: Any) -> tuple[Tensor, int]:
        """Sums of the layer losses over a batch of training data.

        Args:
            weights: What each layer's loss weighs in the step, shape (L+1,): a loss that weighs nothing is computed
                without a gradient. None for gradients through all.
            **batch: As the data set's samples, batched.

        Returns:
            f_0 … f_L summed over the samples, shape (L+1,), and the number of samples.
        """
        inputs, target = self.task.inputs(batch), self.task.target(batch)
        idle = [False] * (self.model.depth + 1) if weights is None else [weight == 0 for weight in weights.tolist()]
        with self.noise.on(self.model, mask=self.task.mask(batch)) if self.noise else nullcontext():
            # Where layers come one by one, a loss before the next layer: see `LayeredModel.predictions`.
            sums = [
                self.task.losses(prediction.detach() if skip else prediction, target).sum()
                for prediction, skip in zip(self.model.predictions(inputs), idle, strict=True)
            ]
        return torch.stack(sums), len(target)

    # What `Trainer` and its users ask of a model is that of the one that is trained and saved.

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.saved.config

    def get_input_embeddings(self) -> nn.Module:
        """The model's input embedding."""
        return self.model.get_input_embeddings()

    def save_pretrained(self, *args: Any, **options: Any) -> Any:
        """Save the model."""
        return self.model.saved.save_pretrained(*args, **options)

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Compute activations again in the backward pass, ``--activation-checkpointing``."""
        self.model.saved.activation_checkpointing_enable(**options)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """The same by its older name."""
        self.model.saved.gradient_checkpointing_enable(**options)
