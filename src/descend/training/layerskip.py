"""LayerSkip's training recipe (Elhoushi et al., 2024, arXiv 2404.16710): layer dropout and an early-exit loss."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from descend.errors import InputError
from descend.models import LayeredModel
from descend.seeds import Stream, of_rank
from descend.training.settings import DescentSettings


class LayerSkip:
    r"""The dropout rate of each block and the weight of each exit, by training step, and the dropout itself.

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

    Args:
        settings: ``layer_dropout`` (p_max), ``layer_dropout_schedule`` (S), ``exit_scale`` (e), ``exit_curriculum`` and
            ``exit_rotation`` (R; L − 1 if None, one inner exit at a time).
        model: The model that is trained.
        seed: The user's seed, at least 0.

    Raises:
        InputError: If the layers are not L modules, each with weights of its own.
    """

    def __init__(self, settings: DescentSettings, model: LayeredModel, seed: int):
        self.settings, self.depth = settings, model.depth
        self.blocks = list(dict.fromkeys(model.layer_modules))
        if len(self.blocks) != self.depth:
            raise InputError(
                f"the method layerskip drops whole blocks, each a module with weights of its own; "
                f"{type(model.saved).__name__} has {len(self.blocks)} such blocks for {self.depth} layers. Choose "
                "another method, such as linear."
            )
        self.seed = seed
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
        """The weights of f_0 … f_L at a step, L+1 numbers whose sum is 1; exit 0 has none.

        Args:
            step: t.
            steps: T.
        """
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

    def begin(self, step: int, steps: int, micro_batch: int = 0) -> None:
        """Drop rows at the rates of a step from here on, drawn for one of its micro-batches."""
        self._rates, self._place = self.rates(step, steps), (step, micro_batch)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Drop rows of the blocks in training mode inside the ``with`` block."""
        # Before other hooks, which record the output. They stay in the backward pass, where checkpointing recomputes.
        handles = [
            block.register_forward_hook(partial(self._drop, number), prepend=True, with_kwargs=True)
            for number, block in enumerate(self.blocks)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _drop(self, number: int, block: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """The block's output, with its input in place of it in dropped rows."""
        if not block.training or not self._rates[number]:
            return output
        given = next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
        computed = output if isinstance(output, Tensor) else output[0]
        generator = of_rank(Stream.LAYERS, self.seed, *self._place, number, device=given.device)
        drawn = torch.rand(len(given), generator=generator, device=given.device)
        kept = (drawn >= self._rates[number]).view(-1, *(1 for _ in given.shape[1:]))
        passed = torch.where(kept, computed, given)
        return passed if isinstance(output, Tensor) else (passed, *output[1:])
