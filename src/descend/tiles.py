"""The losses of many exits through one wide readout: a tile of logits at a time, on a sample of the targets."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from descend.errors import InputError
from descend.seeds import Stream, generator_of

TILE = 2**26
"""The largest number of logits held at a time: 256 MiB in float32."""


def tiled(
    states: Sequence[Tensor],
    rows: Sequence[Tensor],
    targets: Sequence[Tensor],
    weights: Sequence[float],
    losses: Callable[[Tensor, Tensor], Tensor],
    parameters: Sequence[Tensor],
    size: int,
) -> tuple[Tensor, Tensor]:
    """The weighted sum of all exits' losses, to differentiate, and the sum of each.

    Gradients are computed tile by tile together with the losses, and only scaled in the backward pass: no logits
    outlive their tile, no state is copied whole, and nothing is computed twice. An exit of weight 0 has no gradient.

    Args:
        states: h_l of each exit, E tensors (M, H).
        rows: The rows of each exit that have a target, no row twice, E tensors (N_l,).
        targets: The target of each of these rows, E tensors (N_l,).
        weights: The weight of each exit's sum, E numbers.
        losses: A function of states (R, H) and targets (R,) that returns R losses.
        parameters: The trained tensors that ``losses`` depends on besides the states.
        size: The number of rows in a tile.

    Returns:
        The weighted sum, a scalar; and the E sums, without gradient.
    """
    plan = (tuple(rows), tuple(targets), tuple(weights), losses, size)
    return _Tiled.apply(plan, len(states), *states, *parameters)


class TargetSample:
    """A random share of a batch's targets, from its own generator.

    Args:
        share: p in (0, 1]: of N targets ⌈pN⌉ are drawn, without replacement.
        seed: The person's seed, at least 0; every rank of a process group draws a stream of its own.

    Raises:
        InputError: If the share is outside its range.
    """

    def __init__(self, share: float, seed: int = 0):
        if not 0 < share <= 1:
            raise InputError(f"the share of targets that inner exits see must lie in (0, 1]; got {share}.")
        self.share = share
        rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
        self._generator = generator_of(Stream.TARGETS, seed, rank)

    def __call__(self, count: int, device: torch.device) -> Tensor:
        """The indices of the sampled targets among ``count``, in ascending order, (⌈p count⌉,)."""
        drawn = torch.randperm(count, generator=self._generator)[: math.ceil(self.share * count)]
        return drawn.sort().values.to(device)

    def state_dict(self) -> dict[str, Tensor]:
        """The generator's state, so that a resumed run draws what it would have drawn."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` gave."""
        self._generator.set_state(state["generator"])


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: tuple, exits: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        rows, targets, weights, losses, size = plan
        states, parameters = tensors[:exits], tensors[exits:]
        asked = ctx.needs_input_grad[2:]
        sums = states[0].new_zeros(exits, dtype=torch.promote_types(states[0].dtype, torch.float32))
        gradients: list[Tensor | None] = [None] * len(tensors)
        # Exits that need no gradient share no tile with those that do.
        for learns in (True, False):
            chosen = [number for number, weight in enumerate(weights) if (weight != 0 and any(asked)) == learns]
            for number in chosen:
                if learns and asked[number]:
                    gradients[number] = torch.zeros_like(states[number])
            for pieces in _tiles([(number, len(rows[number])) for number in chosen], size):
                hidden = torch.cat([states[number][rows[number][start:stop]] for number, start, stop in pieces])
                target = torch.cat([targets[number][start:stop] for number, start, stop in pieces])
                sizes = [stop - start for _, start, stop in pieces]
                with torch.set_grad_enabled(learns):
                    found = losses(hidden.requires_grad_(learns), target)
                    if learns:
                        row_weights = torch.cat(
                            [found.new_full((stop - start,), weights[n]) for n, start, stop in pieces]
                        )
                        trained = [place for place, one in enumerate(parameters, start=exits) if asked[place]]
                        slopes = torch.autograd.grad(
                            found, [hidden, *(tensors[place] for place in trained)], row_weights, allow_unused=True
                        )
                        for place, slope in zip(trained, slopes[1:], strict=True):
                            if slope is not None:
                                old = gradients[place]
                                gradients[place] = slope if old is None else old.add_(slope)
                        for (number, start, stop), slope in zip(pieces, slopes[0].split(sizes), strict=True):
                            if (gradient := gradients[number]) is not None:
                                gradient[rows[number][start:stop]] = slope
                parts = found.detach().to(sums).split(sizes)
                for (number, _, _), part in zip(pieces, parts, strict=True):
                    sums[number] += part.sum()
        for place, one in enumerate(parameters, start=exits):
            if asked[place] and gradients[place] is None:  # a batch without targets: parallel training waits for all
                gradients[place] = torch.zeros_like(one)
        ctx.gradients = gradients
        ctx.mark_non_differentiable(sums)
        # An exit of weight 0 adds nothing, even where its loss is infinite.
        total = sum((sums[number] * weight for number, weight in enumerate(weights) if weight), sums.new_zeros(()))
        return total, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Any, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *(None if each is None else each.mul_(slope) for each in gradients)


def _tiles(exits: list[tuple[int, int]], size: int) -> list[list[tuple[int, int, int]]]:
    """Pieces (exit, start, stop) of each tile: the exits' rows one after the other, cut where a tile is full."""
    tiles: list[list[tuple[int, int, int]]] = []
    free = 0
    for number, count in exits:
        start = 0
        while start < count:
            if not free:
                tiles.append([])
                free = size
            stop = min(count, start + free)
            tiles[-1].append((number, start, stop))
            free -= stop - start
            start = stop
    return tiles
