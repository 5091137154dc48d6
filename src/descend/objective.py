"""noise ∘ model ∘ readout ∘ loss: what a batch's layer losses are."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from descend.errors import InputError
from descend.models.causal import LayeredCausalLM
from descend.models.classifiers import LayeredClassifier
from descend.models.layered import LayeredModel
from descend.noise import Noise
from descend.tasks.text import Classification, NextToken
from descend.tiles import TargetSample, rows_per_tile, tiled


class Task(Protocol):
    """What training and evaluation ask of a task; it knows no model."""

    metric: str
    higher_is_better: bool
    root: bool
    """Whether the metric is the root of the mean score, or the mean score itself."""

    def inputs(self, batch: dict[str, Any]) -> Any:
        """What a model is given."""

    def mask(self, batch: dict[str, Any]) -> Tensor | None:
        """Which places of a sample hold data that noise may touch, (B, T); None for all."""

    def target(self, batch: dict[str, Any]) -> Tensor:
        """What a prediction is held against."""

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """f of every sample, shape (B,)."""

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """What the metric is made of, of every sample, shape (B,)."""

    def decide(self, prediction: Tensor) -> tuple[Tensor, Tensor] | None:
        """What a prediction decides for and how sure it is, both (B,); None where there is nothing to decide."""

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Refuse samples that a model of these limits can't take, before any work is done."""

    def owners(self, batch: dict[str, Any]) -> Tensor:
        """Which sample of the batch, 0 … B−1, each target belongs to, (N,)."""

    def sigma(self, embedding: nn.Module, dataset: Any) -> float:
        """σ_x, the standard deviation of what a model's input embedding makes of a data set."""


class ExitLosses(NamedTuple):
    """What a batch's forward pass gives.

    Attributes:
        lagrangian: Σ_l w_l S_l, a scalar to differentiate.
        sums: S_first … S_L, each exit's losses summed over the targets. Numbers: FSDP2 in mixed precision rounds the
            tensors that a forward pass takes and gives to half precision.
        targets: The number of targets.
        first: The first exit that was looked at: 0, or L where only the last was.
        watched: Of a language model, what `Objective.watch` sums up of the last exit; empty without it.
    """

    lagrangian: Tensor
    sums: tuple[float, ...]
    targets: int
    first: int = 0
    watched: tuple[float, ...] = ()


class Objective(nn.Module):
    """The layer losses of a model under a task and a noise: the forward pass that parallel training wraps.

    Args:
        model: A `LayeredModel`, or a classifier or causal language model of the library's.
        task: The data's loss and metric; of a model of the library its own unless given.
        noise: Applied in training to the output of the model's input embedding; None for clean training.
        sample: Which targets the inner exits of a language model see in training; None for all.
        r_drop: κ ≥ 0 of R-Drop (Liang et al., 2021), None for none. Each sample passes twice, with draws of dropout and
            noise of its own; its losses are the means of both passes, and κ times what the last exit's two predictions
            differ by, ½ [KL(p‖q) + KL(q‖p)], is added to the Lagrangian. The paper's sum of both passes' losses and α
            times that is twice this, κ = α/2.

    Raises:
        InputError: If the model's layers can't be read, no task is given for a model that has none of its own, or
            R-Drop is asked of a task that tells no classes.
    """

    model: Any  # a module and a LayeredModel: no type says both

    def __init__(
        self,
        model: nn.Module,
        task: Task | None = None,
        noise: Noise | None = None,
        sample: TargetSample | None = None,
        r_drop: float | None = None,
    ):
        if isinstance(getattr(model, "config", None), PreTrainedConfig) and not isinstance(model, LayeredModel):
            tells_tokens = model.get_output_embeddings() is not None  # type: ignore[operator]
            model = LayeredCausalLM(model) if tells_tokens else LayeredClassifier(model)  # type: ignore[arg-type]
        if not isinstance(model, LayeredModel):
            raise InputError(
                f"expected a LayeredModel, whose every layer's output can be read; got {type(model).__name__}."
            )
        if task is None:
            if not isinstance(model, LayeredClassifier | LayeredCausalLM):
                raise InputError(
                    f"expected a task, the loss and metric of the data of {type(model).__name__}; got none."
                )
            task = Classification() if isinstance(model, LayeredClassifier) else NextToken()
        if r_drop is not None:
            check_r_drop(task)
        super().__init__()
        self.model = model
        self.task: Task = task
        self.noise = noise
        self.sample = sample
        self.r_drop = r_drop
        self.watch: Callable[[Tensor, Tensor], Tensor] | None = None
        """Sums over a language model's last logits (N, V) and its tokens (N,): a vector (K,); None for none."""

    def forward(self, weights: Sequence[float], inner: bool = True, **batch: Any) -> ExitLosses:
        """The layer losses of a batch of training data.

        Args:
            weights: What each layer's loss weighs in the step, w, L+1 numbers: one that weighs nothing is computed
                without a gradient.
            inner: Whether the inner exits are asked for. A language model's are not cheap, and left out where not.
            **batch: As the data set's samples, batched.
        """
        passes = 1 if self.r_drop is None else 2
        if passes == 2:  # side by side: dropout and noise draw anew for every row
            batch = {name: torch.cat([value, value]) for name, value in batch.items()}
        inputs, target = self.task.inputs(batch), self.task.target(batch)
        with self.noise.on(self.model, mask=self.task.mask(batch)) if self.noise else nullcontext():
            if isinstance(self.model, LayeredCausalLM):
                return self._through_wide_head(inputs, target, weights, inner)
            # Where layers come one by one, a loss before the next layer: see `LayeredModel.predictions`.
            found = []
            for prediction, weight in zip(self.model.predictions(inputs), weights, strict=True):
                found.append(_summed(self.task.losses(prediction if weight else prediction.detach(), target)))
        sums = torch.stack(found) / passes
        lagrangian = torch.dot(sums.new_tensor(weights), sums)
        if self.r_drop is not None:
            lagrangian = lagrangian + self.r_drop * _summed(self.task.disagreement(*prediction.chunk(2)))  # type: ignore[attr-defined]
        # One transfer to the host, of L+1 numbers.
        return ExitLosses(lagrangian, tuple(sums.tolist()), len(target) // passes)

    def _through_wide_head(self, inputs: Any, target: Tensor, weights: Sequence[float], inner: bool) -> ExitLosses:
        """The losses of exits through a head that is as dear as blocks are; the inner ones on a sample of targets."""
        model, count = self.model, len(target)
        states = model.layer_outputs(inputs)[0 if inner else -1 :]
        exits = len(states)
        rows = [inputs["places"].flatten().nonzero().flatten()] * exits
        targets, scales = [target] * exits, [1.0] * exits
        if self.sample is not None and inner and count:
            chosen = self.sample(count, target.device)
            # The same targets at every inner exit: what they have in common cancels between neighbours.
            rows[:-1], targets[:-1] = [rows[-1][chosen]] * (exits - 1), [target[chosen]] * (exits - 1)
            scales[:-1] = [count / len(chosen)] * (exits - 1)
        first = model.depth + 1 - exits
        watched: list[Tensor] = []
        if self.watch is not None:  # a tile may hold rows of several exits: mark those of the last
            targets = [torch.stack([each, torch.zeros_like(each)], 1) for each in targets[:-1]] + [
                torch.stack([targets[-1], torch.ones_like(targets[-1])], 1)
            ]

        def losses(hidden: Tensor, wanted: Tensor) -> Tensor:
            logits = model.readout(hidden)
            if self.watch is None:
                return self.task.losses(logits, wanted)
            last = wanted[:, 1].bool()
            watched.append(self.watch(logits.detach()[last], wanted[last, 0]))
            return self.task.losses(logits, wanted[:, 0])

        trained = [parameter for parameter in model.head.parameters() if parameter.requires_grad]
        if any(hasattr(parameter, "placements") for parameter in trained):
            raise InputError(
                "expected the final norm and the head whole in the forward pass; they are sharded by themselves. Shard "
                "the blocks, then the objective around them, which takes the rest."
            )
        lagrangian, sums = tiled(
            states,
            rows,
            targets,
            [weight * scale for weight, scale in zip(weights[first:], scales, strict=True)],
            losses,
            trained,
            size=rows_per_tile(model.limits["vocabulary"]),
        )
        seen = tuple(torch.stack(watched).sum(0).tolist()) if watched else ()
        return ExitLosses(lagrangian, tuple((sums * sums.new_tensor(scales)).tolist()), count, first, seen)

    # What `Trainer` and its users ask of a model is that of the one that is trained and saved.

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.saved.config

    @property
    def _no_split_modules(self) -> Any:
        """The classes of blocks, by which Accelerate shards: the library's own list has embeddings among them."""
        return sorted({type(block).__name__ for block in self.model.blocks})

    @property
    def has_logits(self) -> bool:
        """Whether every layer tells classes by logits that one number can divide."""
        model = self.model
        return isinstance(self.task, Classification) and isinstance(model, LayeredClassifier) and model.can_be_tempered

    def aside(self, look: Callable[[], None]) -> None:
        """Call something that reads the model outside its forward pass: FSDP2 can be told that this is one too."""
        look()

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


def check_r_drop(task: Task) -> None:
    """Refuse R-Drop for a task whose predictions do not say how far two of them differ."""
    if not hasattr(task, "disagreement"):
        raise InputError(
            f"the method r-drop is for classification: it compares the classes that two passes tell; got "
            f"{type(task).__name__}. Choose another method."
        )


def _summed(losses: Tensor) -> Tensor:
    """Σ over the targets, at least in single precision."""
    return losses.sum(dtype=torch.promote_types(losses.dtype, torch.float32))
