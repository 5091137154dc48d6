"""LayerSkip: layer dropout and a loss on exits in turn."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from descend.declared import Count, NotNegative, Rate, setting
from descend.errors import InputError
from descend.methods.base import Method, Style

if TYPE_CHECKING:
    from torch import nn

    from descend.models import LayeredModel
    from descend.tasks import Task


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
    """

    name = "layerskip"
    about = "layer dropout and a loss on exits in turn (Elhoushi et al., 2024)"
    label = "LayerSkip"
    style = Style("#0000aa", "#3355ff", "v")
    order = 80

    compiles = False
    inner = True

    @dataclass
    class Settings:
        """The settings of LayerSkip.

        Attributes:
            layer_dropout: p_max, the last block's dropout rate; earlier blocks have less.
            layer_dropout_schedule: S: whether the rates grow from 0 over the run, or are constant, which suits
                fine-tuning.
            exit_scale: e, the scale of inner exits' losses beside the last one's.
            exit_curriculum: Whether inner exits take turns, or join one by one from the last to the first in the first
                half of the run.
            exit_rotation: R, each inner exit is on at every R-th step; None for L − 1, one inner exit at a time.
        """

        layer_dropout: Rate = setting(0.2, "layerskip: dropout rate of the last block")
        layer_dropout_schedule: Literal["exponential", "constant"] = setting("exponential", "layerskip")
        exit_scale: NotNegative = setting(1.0, "layerskip: scale of inner exits' losses")
        exit_curriculum: Literal["rotating", "gradual"] = setting("rotating", "layerskip")
        exit_rotation: Count | None = setting(None, "layerskip: steps to an exit's turn [L - 1]")

    @staticmethod
    def check(task: "Task", model: "LayeredModel") -> None:
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
        from descend.seeds import Draws, Stream

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

    def _drop(self, number: int, block: "nn.Module", args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """The block's output, but its input in dropped rows."""
        import torch

        if not block.training or not self._rates[number]:
            return output
        given = next(each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor))
        computed = output if isinstance(output, torch.Tensor) else output[0]
        self._draws.begin(*self._place, number)
        generator = self._draws.generator(given.device)
        drawn = torch.rand(len(given), generator=generator, device=given.device, dtype=torch.float32)
        kept = (drawn >= self._rates[number]).view(-1, *(1 for _ in given.shape[1:]))
        passed = torch.where(kept, computed, given)
        return passed if isinstance(output, torch.Tensor) else (passed, *output[1:])
