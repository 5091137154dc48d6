"""The layer losses of a batch: noise ∘ model ∘ readout ∘ loss."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from descend.compiled import CompiledExits, compiled_exits
from descend.contract import check_data, resolve
from descend.errors import InputError
from descend.models.causal import LayeredCausalLM
from descend.models.classifiers import LayeredClassifier
from descend.models.library import LibraryModel
from descend.noise import Noise
from descend.tasks import Task
from descend.tasks.base import GROUP, LABELS
from descend.tasks.text import Classification
from descend.tiles import TargetSample, rows_per_tile, tiled
from descend.transfer import LateNumbers, uploaded

TOGETHER = 2**26
"""Bytes of exits that are read in one batch, 64 MiB; above it their copies would cost more than launches do."""
TOGETHER_ON_CPU = 0
"""The same on a CPU, which waits for memory and not for launches: a batch doubled UT's memory."""

LOSS_IS_OURS = (
    "compute_loss must take the loss from DescentTrainer, whose model gives a loss for every layer; it {}. Give your "
    "loss as task=..., and add further terms to super().compute_loss(...)."
)
"""What is wrong with a script's ``compute_loss``."""


class ExitLosses(NamedTuple):
    """What a batch's forward pass gives.

    Attributes:
        lagrangian: Σ_l w_l S_l, a scalar to differentiate.
        sums: S_first … S_L, each exit's losses summed over the targets. They are on their way to the host: the first
            look at them waits for the device.
        targets: The number of targets.
        first: The first exit that was looked at: 0, or L where only the last was.
        watched: Of a language model, what `Objective.watch` sums up of the last exit; empty without it.
    """

    lagrangian: Tensor
    sums: Sequence[float]
    targets: int
    first: int = 0
    watched: Sequence[float] = ()


class Objective(nn.Module):
    """The layer losses of a model under a task and a noise: the forward pass that parallel training wraps.

    Args:
        model: A layered model, see `descend.layered`, or a classifier or causal language model of Transformers.
        task: The loss and metric of the data. Models of Transformers have a default: their own cross-entropy.
        noise: Added in training to the output of the model's input embedding; None for clean training.
        sample: The targets that a language model's inner exits see in training; None for all.
        r_drop: κ ≥ 0 of R-Drop (Liang et al., 2021), None for none. Each sample passes twice, with its own draws of
            dropout and noise. Its losses are the means of both passes, and κ · ½ [KL(p‖q) + KL(q‖p)] of the last exit's
            two predictions is added to the Lagrangian. The paper's sum of both losses and α times the divergence is
            twice this, κ = α/2.

    Raises:
        InputError: If the layers can't be read, a model has no default task and none is given, a model of Transformers
            has logits or a loss of its own that would be ignored, or R-Drop is asked of a task without classes.
    """

    model: Any

    def __init__(
        self,
        model: nn.Module,
        task: Task | None = None,
        noise: Noise | None = None,
        sample: TargetSample | None = None,
        r_drop: float | None = None,
    ):
        layers, chosen = resolve(model, task, noise)
        if isinstance(layers, LibraryModel):
            layers.refuse_own_outputs(loss=task is None)
        disagreement = None if r_drop is None else check_r_drop(chosen)
        super().__init__()
        self.model = layers
        self.task = chosen
        self.noise = noise
        self.sample = sample
        self.r_drop = r_drop
        self.disagreement = disagreement
        self._compiled: CompiledExits | None = None
        self.watch: Callable[[Tensor, Tensor], Tensor] | None = None
        """Sums over a language model's last logits (N, V) and its tokens (N,): a vector (K,); None for none."""
        self.trains_with_noise = True
        """Whether `forward` adds the noise; if not, it is for evaluation alone."""

    def forward(self, weights: Sequence[float] | None = None, inner: bool = True, **batch: Any) -> ExitLosses:
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
        passes = 1 if self.r_drop is None else 2
        if passes == 2:  # side by side: dropout and noise draw anew for every row
            batch = {name: torch.cat([value, value]) for name, value in batch.items()}
        inputs, target = self.task.inputs(batch), self.task.target(batch)
        noise = self.noise if self.trains_with_noise else None
        if self._compiled is not None and not _has_embeddings(inputs):
            given = inputs, target, weights, noise, self.task.mask(batch)
            sums, lagrangian, prediction = self._compiled(*given)
            return self._of_passes(passes, sums, lagrangian, prediction, len(target))
        with noise.on(self.model, mask=self.task.mask(batch)) if noise else nullcontext():
            if isinstance(self.model, LayeredCausalLM):
                return self._through_wide_head(self.model, inputs, target, weights, inner)
            sums, lagrangian, prediction = self._losses(inputs, target, weights)
        return self._of_passes(passes, sums, lagrangian, prediction, len(target))

    def begin(self, step: int, micro_batch: int) -> None:
        """Draw noise and a sample of targets for one micro-batch of an optimizer step from here on."""
        for drawn in (self.noise, self.sample):
            if drawn is not None:
                drawn.begin(step, micro_batch)

    def compile(self, **options: Any) -> None:  # type: ignore[override]
        """Compile the exits' losses from now on, by the options of `torch.compile`; noise stays outside the graph.

        A model that can't be compiled stays as it is, with a warning, see `descend.compiled.can_compile`.
        """
        self._compiled = compiled_exits(self.model, self.task, **options)

    def _of_passes(self, passes: int, sums: Tensor, lagrangian: Tensor, prediction: Tensor, targets: int) -> ExitLosses:
        """The losses of one pass, or the means of R-Drop's two with its divergence."""
        if passes == 2:
            sums, lagrangian = sums / passes, lagrangian / passes
        if self.r_drop is not None and self.disagreement is not None:
            lagrangian = lagrangian + self.r_drop * _summed(self.disagreement(*prediction.chunk(2)))
        return ExitLosses(lagrangian, LateNumbers(sums), targets // passes)

    def _losses(self, inputs: Any, target: Tensor, weights: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
        """The exits' losses summed over the targets (L+1,), their weighted sum, and the last exit's prediction."""
        parts: dict[int, Tensor] = {}
        weighted: list[Tensor] = []
        for exits, predictions in self._predictions(inputs, weights):
            sums = self.task.sums(predictions, target)
            parts |= zip(exits, sums.unbind(), strict=True)
            if weights[exits[0]]:  # 0 · ∞ is no number
                weighted.append(torch.dot(uploaded([weights[exit] for exit in exits], sums), sums))
            if exits[-1] == len(weights) - 1:
                last = predictions[-1]
        sums = sums if len(exits) == len(weights) else torch.stack([parts[exit] for exit in range(len(weights))])
        return sums, sum(weighted[1:], weighted[0]) if weighted else sums.new_zeros(()), last

    def _predictions(self, inputs: Any, weights: Sequence[float]) -> Iterator[tuple[list[int], Tensor | list[Tensor]]]:
        """Exits and their predictions, (E, B, …) or a list of E, batch by batch.

        Exits that fit into `TOGETHER` make two batches, those with a weight and those without, which need no gradient:
        a few launches in place of a few for each exit. Larger ones, and those of a task whose losses are not separable,
        come one by one, see `LayeredModel.predictions`.
        """
        model, numbers = self.model, range(len(weights))
        batches = [[exit for exit in numbers if bool(weights[exit]) == learned] for learned in (False, True)]
        if model.reads_together:
            states = model.layer_outputs(inputs)
            for exits in filter(None, batches):
                with nullcontext() if weights[exits[0]] else torch.no_grad():
                    predictions = model.read_together([states[exit] for exit in exits], inputs)
                yield exits, predictions
            return
        one_by_one = iter(model.predictions(inputs))
        held = [next(one_by_one)]
        most = TOGETHER_ON_CPU if held[0].device.type == "cpu" else TOGETHER
        if held[0].nbytes * len(weights) > most or not self.task.separable:
            for exit, prediction in enumerate(chain(held, one_by_one)):
                yield [exit], [prediction if weights[exit] else prediction.detach()]
            return
        held += one_by_one
        for exits in filter(None, batches):
            with nullcontext() if weights[exits[0]] else torch.no_grad():
                stacked = torch.stack([held[exit] for exit in exits])
            yield exits, stacked

    def _through_wide_head(
        self, model: LayeredCausalLM, inputs: Any, target: Tensor, weights: Sequence[float], inner: bool
    ) -> ExitLosses:
        """The losses of exits through a head that costs as much as blocks; the inner ones on a sample of targets."""
        count = len(target)
        states = model.layer_outputs(inputs)[0 if inner else -1 :]
        exits = len(states)
        rows = [inputs["places"]] * exits
        targets, scales = [target] * exits, [1.0] * exits
        if self.sample is not None and inner and count:
            chosen = self.sample(count, target.device)
            # The same targets at every inner exit, so that differences between neighbours have less variance.
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
        seen = LateNumbers(torch.stack(watched).sum(0)) if watched else ()
        return ExitLosses(lagrangian, LateNumbers(sums * uploaded(scales, sums)), count, first, seen)

    def check_data(
        self, datasets: Mapping[str, Any], collate: Callable[[list[Any]], Any], *, noise: bool | None = None
    ) -> None:
        """Check that samples fit the model and the task, see `descend.contract.check_data`."""
        noisy = self.noise is not None if noise is None else noise
        check_data(self.model, self.task, datasets, collate, noise=noisy)

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

    @property
    def has_logits(self) -> bool:
        """Whether every layer gives logits of classes that one temperature can divide."""
        model = self.model
        return isinstance(self.task, Classification) and isinstance(model, LayeredClassifier) and model.can_be_tempered

    def aside(self, look: Callable[[], None]) -> None:
        """Call something that reads the model outside its forward pass; FSDP2 registers this as a forward method."""
        look()


def _has_embeddings(inputs: Any) -> bool:
    """Whether a batch brings embeddings of its own in place of tokens."""
    return isinstance(inputs, Mapping) and inputs.get("inputs_embeds") is not None


def check_r_drop(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """How far two predictions of each target differ, by the task's ``disagreement``.

    Raises:
        InputError: If the task has no such method.
    """
    disagreement = getattr(task, "disagreement", None)
    if disagreement is None:
        raise InputError(
            f"the method r-drop is for classification: it compares the class probabilities of two passes; got "
            f"{type(task).__name__}. Choose another method."
        )
    return disagreement


def _summed(losses: Tensor) -> Tensor:
    """Σ over the targets, at least in single precision."""
    return losses.sum(dtype=torch.promote_types(losses.dtype, torch.float32))
