"""The methods: what each minimizes, what it changes in a step, and what it refuses.

To add one, derive a class here, put it into `CLASSES`, and name it in `descend.settings.METHODS`.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.trainer_utils import has_length

from descend.errors import InputError
from descend.evaluation.layers import MOST_FOR_SIGMA, evenly
from descend.models import LayeredModel
from descend.results import RECORDS_FILE, read_records
from descend.seeds import Draws, Stream
from descend.tasks import Task


class Method:
    """A method of training, and ERM itself: the last exit's loss and nothing else. Others override a part of it.

    Args:
        settings: The training arguments, of which each method uses its own.
    """

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
    def check(task: Task, model: LayeredModel) -> None:
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


class Probe(Method):
    """ERM, and own exits of the inner layers that learn beside it: the model hears nothing of them."""

    own_exits = True


class Useful(Method):
    """Layerwise descent constraints as a means to useful layers: models are judged by their layers' quality alone."""

    constrained = True


class Constrained(Useful):
    """Layerwise descent constraints, eq. (4), which the model must meet."""

    asks = True


class Uniform(Method):
    """Deep supervision with one weight for all exits.

    Exit 0, the readout of the embedded input, is among them and trains the readout and the embedding. For UT, where it
    is the noisy input, it is a constant.
    """

    @staticmethod
    def objective_weights(depth: int, settings: Any) -> list[float]:
        """1 / (L+1) each."""
        return [1 / (depth + 1)] * (depth + 1)


class Linear(Method):
    """Deep supervision with a weight in proportion to l, so that exit 0 has none.

    Inner layers weigh c·l/L against 1 of the last one, with c the setting ``inner_weight``; the sum of all is 1.
    """

    @staticmethod
    def objective_weights(depth: int, settings: Any) -> list[float]:
        """c·l/L and 1, divided by their sum."""
        weights = [settings.inner_weight * layer / depth for layer in range(depth)] + [1.0]
        return [weight / sum(weights) for weight in weights]


class Weighted(Method):
    """Deep supervision with the weights that ``layer_weights`` gives: the multipliers of no dual move.

    The setting is L+1 numbers, constant over the run, or the folder of an earlier run of the same depth, whose logged
    weights are replayed: step t has those of the last log up to t. A run that logs every step
    (``logging_steps=1``) is replayed exactly, but for its first step, which has the weights of the second.
    """

    def attach(self, trainer: Any) -> None:
        """Read the weights.

        Raises:
            InputError: If they are missing, not one for each layer, or not finite.
        """
        super().attach(trainer)
        given, layers = self.settings.layer_weights, trainer.objective.model.depth + 1
        if not given:
            raise InputError(
                f"the method weighted needs layer_weights (--layer-weights): {layers} numbers with commas, one for "
                "each of f_0 … f_L, or the folder of a run whose weights are replayed."
            )
        try:
            rows = {0: [float(number) for number in given.split(",")]}
        except ValueError:
            rows = logged_weights(Path(given))
        wrong = next((row for row in rows.values() if len(row) != layers or not all(map(math.isfinite, row))), None)
        if wrong is not None:
            raise InputError(
                f"layer_weights must be {layers} finite numbers, one for each of f_0 … f_L; {given!r} has {wrong}."
            )
        self._steps, self._rows = list(rows), list(rows.values())
        self._reads_inner = any(weight for row in self._rows for weight in row[:-1])

    def weights(self, step: int, steps: int) -> list[float]:
        """The weights of the last log up to a step, of the first log before it."""
        return self._rows[max(0, bisect_right(self._steps, step) - 1)]

    @property
    def inner(self) -> bool:
        """Whether any inner exit ever has a weight."""
        return self._reads_inner


def logged_weights(run: Path) -> dict[int, list[float]]:
    """Step → the weights of f_0 … f_L that a run logged after it, in the order of steps.

    Raises:
        InputError: If the folder has no records, or no weights are among them.
    """
    rows: dict[int, dict[int, float]] = {}
    if (run / RECORDS_FILE).is_file():
        for record in read_records(run / RECORDS_FILE):
            if (record.split, record.metric) == ("train", "weight"):
                rows.setdefault(record.step, {})[record.layer] = record.value
    if not rows:
        raise InputError(
            f"layer_weights must be numbers with commas, or the folder of a run whose {RECORDS_FILE} has weights; got "
            f"{run}."
        )
    return {step: [row[layer] for layer in sorted(row)] for step, row in sorted(rows.items())}


class RDrop(Method):
    """R-Drop (Liang et al., 2021): each sample passes twice, with its own draws of dropout and noise.

    κ · ½ [KL(p‖q) + KL(q‖p)] of the last exit's two predictions is added to the mean loss of both passes, with κ the
    setting ``r_drop``. The paper's sum of both losses and α times the divergence is twice this, κ = α/2.
    """

    @staticmethod
    def check(task: Task, model: LayeredModel) -> None:
        """Refuse a task without classes."""
        if not hasattr(task, "disagreement"):
            raise InputError(
                f"the method r-drop is for classification: it compares the class probabilities of two passes; got "
                f"{type(task).__name__}. Choose another method."
            )

    def attach(self, trainer: Any) -> None:
        """Add the second pass and its term."""
        super().attach(trainer)
        objective = trainer.objective

        def term(predictions: Tensor) -> Tensor:
            apart = objective.task.disagreement(*predictions.chunk(2))
            return self.settings.r_drop * apart.sum(dtype=torch.promote_types(apart.dtype, torch.float32))

        objective.passes, objective.term = 2, term


class NEFTune(Method):
    r"""NEFTune (Jain et al., 2023, arXiv 2310.05914): uniform noise on word embeddings, at a strength that matches γ.

    Transformers adds numbers that are uniform within ±α/√(Td) to a batch of T tokens a row, padding included, and d
    coordinates. Their standard deviation is α/√(3Td). Its mean over batches is s, that of the noise of evaluation, for

    .. math:: \alpha = s \sqrt{3 d} \, / \, \mathrm{mean}(1/\sqrt{T})
    """

    @staticmethod
    def check(task: Task, model: LayeredModel) -> None:
        """Refuse a model without a word embedding."""
        if not isinstance(words_of(model), nn.Embedding):
            raise InputError(
                f"the method neftune adds noise to word embeddings; {type(model.saved).__name__} has none. Choose "
                "another method."
            )

    def attach(self, trainer: Any) -> None:
        """Leave our noise to evaluation, and choose α, unless the settings give it."""
        super().attach(trainer)
        trainer.objective.trains_with_noise = False
        if trainer.neftune_noise_alpha is None and trainer.train_dataset is not None:
            trainer.neftune_noise_alpha = self.alpha(trainer)

    def alpha(self, trainer: Any) -> float:
        """The α that matches the noise of evaluation on the training data.

        Raises:
            InputError: If there is no noise to match, or the data have no tokens or no length.
        """
        data: Any = trainer.train_dataset
        noise, sigma = trainer.objective.noise, trainer.sigma
        known = has_length(trainer.train_dataset) and "input_ids" in data[0]
        if noise is None or noise.level == 0 or sigma is None or not known:
            raise InputError(
                "the method neftune matches a noise above 0 on tokenized training data of known length; got none. "
                "Give neftune_noise_alpha (--neftune-noise-alpha)."
            )
        lengths = [len(data[place]["input_ids"]) for place in evenly(len(data), MOST_FOR_SIGMA)]
        grouped, size = trainer.args.train_sampling_strategy == "group_by_length", trainer.args.train_batch_size
        lengths = sorted(lengths) if grouped else random.Random(0).sample(lengths, len(lengths))
        batches = [lengths[start : start + size] for start in range(0, len(lengths), size)]
        # Texts without padding are one row.
        rows = map(sum if getattr(trainer, "padding_free", False) else max, batches)
        width = words_of(trainer.objective.model).embedding_dim
        return noise.std(sigma) * math.sqrt(3 * width) / fmean(1 / math.sqrt(length) for length in rows)


def words_of(model: LayeredModel) -> Any:
    """The model's own input embedding, to which NEFTune adds its noise; None if it has none."""
    return getattr(model.library, "get_input_embeddings", lambda: None)()


class LayerSkip(Method):
    r"""LayerSkip's recipe (Elhoushi et al., 2024, arXiv 2404.16710): layer dropout and an early-exit loss.

    At step t of T a row of the batch passes block l of L, counted from 0, unchanged with the probability

    .. math:: p_{l,t} = S(t)\, D(l)\, p_{\max}, \quad D(l) = 2^{l/(L-1)} - 1, \quad S(t) = 2^{t/(T-1)} - 1
        \text{ or } 1

    The loss is the mean of the losses of the exits that are on, weighted by e(l) for exit l = 1 … L:

    .. math:: e(l) = e \sum_{i \le l} i \ (l < L), \qquad e(L) = L + e \sum_{i < L} i

    The last exit is always on. Of the inner ones every R-th is, one further at each step (``rotating``), or all from
    exit l on at steps t ≥ (L − l) T / 2L (``gradual``). The paper counts exits from 0, so its first has weight 0;
    counted from 1, as in torchtune, it is trained too, which matters in a model of few layers.

    A row is a text, or for ViT a frame. What a block drops depends on the seed, the rank, the step, the micro-batch and
    the block alone: a resumed run and a block that is computed again drop the same rows.

    It uses the settings ``layer_dropout`` (p_max), ``layer_dropout_schedule`` (S), ``exit_scale`` (e),
    ``exit_curriculum`` and ``exit_rotation`` (R; L − 1 if None, one inner exit at a time).
    """

    compiles = False
    inner = True

    @staticmethod
    def check(task: Task, model: LayeredModel) -> None:
        """Refuse layers that are no modules, or share their weights."""
        blocks = len(dict.fromkeys(model.layer_modules))
        if blocks != model.depth:
            raise InputError(
                "the method layerskip drops whole blocks, each a module with weights of its own; "
                f"{type(model.saved).__name__} has {blocks} such blocks for {model.depth} layers. Choose another "
                "method, such as linear."
            )

    def attach(self, trainer: Any) -> None:
        """Look up the blocks."""
        super().attach(trainer)
        model = trainer.objective.model
        self.depth, self.blocks = model.depth, list(dict.fromkeys(model.layer_modules))
        self._draws = Draws(Stream.LAYERS, self.settings.seed)
        self._rates, self._place = [0.0] * self.depth, (0, 0)

    def rates(self, step: int, steps: int) -> list[float]:
        """p_{l,t} of each block, L numbers.

        Args:
            step: t, the steps that were taken before.
            steps: T, the steps of the run.
        """
        over_time = 1.0
        if self.settings.layer_dropout_schedule == "exponential":
            over_time = 2 ** (step / max(steps - 1, 1)) - 1
        by_layer = [2 ** (block / max(self.depth - 1, 1)) - 1 for block in range(self.depth)]
        return [over_time * each * self.settings.layer_dropout for each in by_layer]

    def weights(self, step: int, steps: int) -> list[float]:
        """The weights of f_0 … f_L at a step, L+1 numbers whose sum is 1; exit 0 has none."""
        scale, depth = self.settings.exit_scale, self.depth
        sums = [exit * (exit + 1) / 2 for exit in range(depth)]
        weights = [scale * each * self._is_on(exit, step, steps) for exit, each in enumerate(sums)]
        weights.append(depth + scale * sums[-1])
        return [weight / sum(weights) for weight in weights]

    def _is_on(self, exit: int, step: int, steps: int) -> bool:
        """Whether an inner exit is part of the loss at a step."""
        if self.settings.exit_curriculum == "gradual":
            return 2 * self.depth * step >= (self.depth - exit) * steps
        rotation = self.settings.exit_rotation or max(self.depth - 1, 1)
        return (exit - 1 - step) % rotation == 0

    def before_pass(self, step: int, steps: int, micro_batch: int = 0) -> None:
        """Drop rows at the rates of a step from here on, drawn for one of its micro-batches."""
        self._rates, self._place = self.rates(step, steps), (step, micro_batch)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Drop rows of the blocks in training mode inside the ``with`` block."""
        # Before other hooks, which record the output. They stay in the backward pass, where checkpointing recomputes.
        with ExitStack() as hooks:
            for number, block in enumerate(self.blocks):
                hooks.enter_context(
                    block.register_forward_hook(partial(self._drop, number), prepend=True, with_kwargs=True)
                )
            yield

    def _drop(self, number: int, block: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """The block's output, but its input in dropped rows."""
        if not block.training or not self._rates[number]:
            return output
        given = next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
        computed = output if isinstance(output, Tensor) else output[0]
        self._draws.begin(*self._place, number)
        generator = self._draws.generator(given.device)
        drawn = torch.rand(len(given), generator=generator, device=given.device, dtype=torch.float32)
        kept = (drawn >= self._rates[number]).view(-1, *(1 for _ in given.shape[1:]))
        passed = torch.where(kept, computed, given)
        return passed if isinstance(output, Tensor) else (passed, *output[1:])


CLASSES: dict[str, type[Method]] = {
    "erm": Method,
    "probe": Probe,
    "constrained": Constrained,
    "useful": Useful,
    "uniform": Uniform,
    "linear": Linear,
    "weighted": Weighted,
    "r-drop": RDrop,
    "neftune": NEFTune,
    "layerskip": LayerSkip,
}
"""Name → class."""
