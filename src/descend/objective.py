"""The layer losses of a batch: loss ∘ readout ∘ model ∘ noise."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from descend.contract import check_data, resolve
from descend.core import LossSums
from descend.errors import InputError
from descend.models import (
    PLACES,
    LayeredCausalLM,
    LayeredClassifier,
    LayeredImageClassifier,
    LibraryModel,
    UnrolledModel,
    ViTDenoiser,
    heard,
)
from descend.noise import GaussianNoise, Noise
from descend.tasks import Task
from descend.tasks.base import GROUP, LABELS
from descend.tiles import TargetSample, language_losses, weighted_sum
from descend.transfer import uploaded

logger = logging.getLogger(__name__)

TOGETHER = 2**26
"""Bytes of exits that are read in one batch, 64 MiB; above it their copies would cost more than launches do."""
TOGETHER_ON_CPU = 0
"""The same on a CPU, which waits for memory and not for launches: a batch doubled UT's memory."""

LOSS_IS_OURS = (
    "compute_loss must take the loss from DescentTrainer, whose model gives a loss for every layer; it {}. Give your "
    "loss as task=..., and add further terms to super().compute_loss(...)."
)
"""What is wrong with a script's ``compute_loss``."""


class BatchLosses(NamedTuple):
    """Σ_l w_l S_l with the method's further term, a scalar to differentiate, and each exit's sum S_l of losses."""

    lagrangian: Tensor
    losses: LossSums

    @property
    def sums(self) -> list[float]:
        """The sums of the exits that were read, once they have arrived from the device."""
        return self.losses.values[self.losses.first :].tolist()

    @property
    def targets(self) -> int:
        """The number of targets in each sum."""
        return self.losses.targets


class Objective(nn.Module):
    """The layer losses of a model under a task and a noise: the forward pass that parallel training wraps.

    Args:
        model: A layered model, see `descend.layered`, or a classifier or causal language model of Transformers.
        task: The loss and metric of the data. Models of Transformers have a default: their own cross-entropy.
        noise: Added in training to the output of the model's input embedding; None for clean training.
        sample: The targets that a language model's inner exits see in training; None for all, as where a task puts no
            ``places`` into the inputs.

    Raises:
        InputError: If the layers can't be read, a model has no default task and none is given, or a model of
            Transformers has logits or a loss of its own that would be ignored.
    """

    model: Any

    def __init__(
        self,
        model: nn.Module,
        task: Task | None = None,
        noise: Noise | None = None,
        sample: TargetSample | None = None,
    ):
        layers, chosen = resolve(model, task, noise)
        if isinstance(layers, LibraryModel):
            layers.refuse_own_outputs(loss=task is None)
        super().__init__()
        self.model = layers
        self.task = chosen
        self.noise = noise
        self.sample = sample
        self.trains_with_noise = True
        """Whether `forward` adds the noise; if not, it is for evaluation alone."""
        self.passes = 1
        """How often each sample passes, with its own draws of dropout and noise; losses are means over the passes."""
        self.term: Callable[[Tensor], Tensor] | None = None
        """A further term of the Lagrangian, from the last exit's predictions in all passes."""
        self.watches_tokens = False
        """Whether a language model's losses come with 4 further sums: the last exit's correct tokens, entropy and
        targets, and the input tokens."""
        self._compiled: Callable[..., Any] | None = None
        self._passed = False  # whether the first pass is done, which is eager

    def forward(self, weights: Sequence[float] | None = None, inner: bool = True, **batch: Any) -> BatchLosses:
        """The layer losses of a batch of training data.

        Args:
            weights: The weight w of each layer's loss in the step, L+1 numbers. A loss of weight 0 is computed without
                a gradient.
            inner: Whether inner exits are needed. Those of a language model are expensive, and skipped if not.
            **batch: The fields of a batch of samples.

        Raises:
            InputError: If there are no weights: a ``compute_loss`` of a script calls the model itself.
        """
        if weights is None:
            raise InputError(LOSS_IS_OURS.format("called the model without their weights"))
        if self.passes > 1:  # side by side: dropout and noise draw anew for every row
            batch = {name: torch.cat([value] * self.passes) for name, value in batch.items()}
        inputs = self.task.inputs(batch)
        target = self.task.target(batch)
        noise = self.noise if self.trains_with_noise else None
        noisy = noise.on(self.model, mask=self.task.mask(batch)) if noise else nullcontext()
        others: Tensor | None = None
        prediction: Any = None
        if self._compiled is not None and not (isinstance(inputs, Mapping) and inputs.get("inputs_embeds") is not None):
            with noisy:
                words = isinstance(self.model, LayeredClassifier)
                embedded = (self.model.embedded if words else self.model.get_input_embeddings())(inputs)
            lagrangian, sums, prediction = self._graph(embedded, target, weights)
        elif isinstance(self.model, LayeredCausalLM) and (self.own or PLACES in inputs):
            with noisy:
                lagrangian, sums, others = language_losses(
                    self.model, self.task, inputs, target, weights, inner, self.sample, self.watches_tokens
                )
        else:
            learned = [self.own or bool(weight) for weight in weights[:-1]] + [bool(weights[-1])]
            with noisy:
                lagrangian, sums, prediction = self._exits(inputs, target, weights, learned)
        if self.passes > 1:
            sums = sums / self.passes
            lagrangian = lagrangian / self.passes
        if self.term is not None:
            lagrangian = lagrangian + self.term(prediction)
        return BatchLosses(lagrangian, LossSums.of(sums, len(target) // self.passes, self.model.depth, others))

    @property
    def own(self) -> bool:
        """Whether inner layers have own exits, which always learn; a weight is what the model hears of its exit."""
        return isinstance(self.model, LibraryModel) and self.model.own_exits is not None

    def begin(self, step: int, micro_batch: int) -> None:
        """Draw noise and a sample of targets for one micro-batch of an optimizer step from here on."""
        for drawn in (self.noise, self.sample):
            if drawn is not None:
                drawn.begin(step, micro_batch)

    def compile(self, **options: Any) -> None:  # type: ignore[override]
        """Compile the exits' losses from now on.

        What changes from step to step stays outside the graph: the noise is drawn and added to the embedded input
        before it, and the weights enter it as a tensor. There is one graph for steps in which the last layer alone has
        a weight, such as a warm-up, one for all others, and another of each for a batch of another shape. The first
        pass is eager: Transformers attaches hooks to a model that gives its hidden states for the first time.

        A model that is read through hooks or by tiles of logits stays as it is, with a warning.

        Args:
            **options: Of `torch.compile`, such as ``backend`` and ``mode``.
        """
        images = isinstance(self.model, LayeredImageClassifier)  # whose embedding takes no noise before the graph
        if isinstance(self.model, LayeredClassifier | UnrolledModel | ViTDenoiser) and not images:
            self._compiled = torch.compile(self._exits, **options)
            return
        logger.warning(
            f"torch_compile has no effect on {type(self.model.saved).__name__}: only UT, DUST, ViT and text "
            "classifiers are compiled. Training goes on without it."
        )

    def _graph(self, embedded: Tensor, target: Tensor, weights: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
        """As `_exits`, compiled; its first pass is eager."""
        assert self._compiled is not None
        run = self._compiled if self._passed else self._exits
        self._passed = True
        learned = [self.own or any(weights[:-1])] * self.model.depth + [True]
        return run(embedded, target, uploaded(weights, target.new_zeros((), dtype=torch.float32)), learned)

    def _exits(
        self, inputs: Any, target: Tensor, weights: Sequence[float] | Tensor, learned: list[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The exits' weighted sum, their losses summed over the targets (L+1,), and the last exit's prediction.

        Args:
            inputs: The model's inputs, or their embedding.
            target: The targets.
            weights: Of each exit's sum in the weighted one; in a compiled graph a tensor of unknown numbers.
            learned: Which exits have a gradient.
        """
        sums_of: dict[int, Tensor] = {}
        weighted: list[Tensor] = []
        trained: Any = weights
        if self.own and isinstance(weights, Tensor):  # readouts learn with weight 1, the model hears the weights
            trained = torch.cat([torch.ones_like(weights[:-1]), weights[-1:]])
        elif self.own:
            trained = [1.0] * self.model.depth + [weights[-1]]
        for exits, predictions in self._predictions(inputs, weights, learned):
            sums = self.task.sums(predictions, target)
            sums_of |= zip(exits, sums.unbind(), strict=True)
            if learned[exits[0]] and isinstance(trained, Tensor):  # exits are neighbours in a graph
                weighted.append(weighted_sum(trained[exits[0] : exits[-1] + 1].to(sums), sums))
            elif learned[exits[0]]:
                weighted.append(torch.dot(uploaded([trained[exit] for exit in exits], sums), sums))
            if exits[-1] == self.model.depth:
                last = predictions[-1]
        if len(exits) <= self.model.depth:  # not all in one batch
            sums = torch.stack([sums_of[exit] for exit in range(len(learned))])
        lagrangian = sum(weighted[1:], weighted[0]) if weighted else sums.new_zeros(())
        sums = sums.detach()
        if self.own:
            # Its value is that of the given weights; its gradient in own exits is that of weight 1.
            lagrangian = lagrangian + weighted_sum(_difference(weights, trained, sums), sums)
        return lagrangian, sums, last

    def _predictions(
        self, inputs: Any, weights: Sequence[float] | Tensor, learned: list[bool]
    ) -> Iterator[tuple[list[int], Tensor | list[Tensor]]]:
        """Exits and their predictions, (E, B, …) or a list of E, batch by batch.

        Exits that fit into `TOGETHER` make two batches, see `_two_batches`. Larger ones, those of a task whose losses
        are not separable, and those of a compiled graph come one by one, see `LayeredModel.predictions`.
        """
        model = self.model
        if model.reads_together and not self.own:
            states = model.layer_outputs(inputs)
            yield from _two_batches(
                learned, lambda exits: model.read_together([states[exit] for exit in exits], inputs)
            )
            return
        if self.own:
            *inner, state = model.layer_outputs(inputs)
            one_by_one = model.read([*map(heard, inner, weights), state], inputs)
        else:
            one_by_one = iter(model.predictions(inputs))
        first = next(one_by_one)
        most = TOGETHER_ON_CPU if first.device.type == "cpu" else TOGETHER
        small = first.nbytes * len(learned) <= most
        if small and self.task.separable and not torch.compiler.is_compiling():
            predictions = [first, *one_by_one]
            yield from _two_batches(learned, lambda exits: torch.stack([predictions[exit] for exit in exits]))
            return
        for exit, prediction in enumerate(chain([first], one_by_one)):
            yield [exit], [prediction if learned[exit] else prediction.detach()]

    def check_data(self, datasets: Mapping[str, Any], collate: Callable[[list[Any]], Any], *, noise: bool) -> None:
        """Check that samples fit the model and the task, with ``noise`` or without: see `descend.contract`."""
        drawn = self.noise or GaussianNoise(0.0)
        check_data(Objective(self.model, self.task, drawn.at(drawn.level) if noise else None), datasets, collate)

    @property
    def sample_fields(self) -> list[str] | None:
        """The fields of a sample that the model or the task reads; None if ``forward`` takes any and names none."""
        taken = inspect.signature(self.model.library.forward).parameters
        if not any(each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in taken.values()):
            return None
        return [*taken, *LABELS, GROUP, *self.task.fields]

    # Delegate to the module that is trained and saved what `Trainer` and its users ask of a model.

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.saved.config

    @property
    def _no_split_modules(self) -> Any:
        """The classes of blocks, by which Accelerate shards: Transformers' own lists include embeddings."""
        return sorted({type(block).__name__ for block in self.model.layer_modules})

    def read_outside_forward(self, look: Callable[[], None]) -> None:
        """Call something that reads the model outside its forward pass; FSDP2 registers this as a forward method."""
        look()


def _two_batches(learned: list[bool], read: Callable[[list[int]], Tensor]) -> Iterator[tuple[list[int], Tensor]]:
    """Exits without a gradient, then those with one: a few launches in place of a few for each exit.

    Args:
        learned: Which exits have a gradient.
        read: Makes the predictions (E, B, …) of E exits.
    """
    for has_gradient in (False, True):
        exits = [exit for exit, learns in enumerate(learned) if learns == has_gradient]
        if exits:
            with nullcontext() if has_gradient else torch.no_grad():
                predictions = read(exits)
            yield exits, predictions


def _difference(first: Any, second: Any, like: Tensor) -> Tensor:
    """The difference of two weights of each exit, (L+1,)."""
    if isinstance(first, Tensor):
        return (first - second).to(like)
    return uploaded([one - other for one, other in zip(first, second, strict=True)], like)
