"""The losses of many exits through one wide readout: a tile of logits at a time, on a sample of the targets."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from descend.errors import InputError
from descend.models import PLACES, LayeredCausalLM, heard
from descend.seeds import Draws, Stream
from descend.tasks import Task
from descend.transfer import uploaded

TILE = 2**26
"""The largest number of logits held at a time: 256 MiB in float32."""
MULTIPLE = 128
"""Rows of a tile come in multiples of this, which matrix units like."""


def weighted_sum(weights: Tensor, sums: Tensor) -> Tensor:
    """Σ_l w_l S_l of weights and sums of losses, both (E,); an exit of weight 0 adds nothing, even an infinite one."""
    return torch.dot(weights, torch.where(weights != 0, sums, 0.0))


def rows_per_tile(vocabulary: int) -> int:
    """How many rows of logits (R, V) are held at a time: a multiple of 128 within `TILE` numbers, at least 128."""
    return max(1, TILE // (vocabulary * MULTIPLE)) * MULTIPLE


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

    Gradients are taken tile by tile while the loss is, and only scaled in the backward pass: no logits outlive their
    tile, no state is copied whole, and nothing is computed twice. An exit that weighs nothing has no gradient.
    The parameters' gradients are added up in float32 at least: in half precision each of hundreds of tiles would
    round the sum.

    Args:
        states: h_l of each exit, E tensors (…, H), whose leading dimensions count M rows.
        rows: Which rows of each are looked at, no row twice, E tensors (N_l,). Of an inner exit with at most half of
            its rows, gradients of these alone are held until the backward pass reaches its layer; the last state must
            depend on it.
        targets: The targets of those rows, E tensors (N_l,).
        weights: Of each exit's sum in the weighted one, E numbers.
        losses: Of states (R, H) and targets (R,): their R losses.
        parameters: What ``losses`` depends on besides the states and is trained.
        size: How many rows make a tile.

    Returns:
        The weighted sum, a scalar; and the E sums, without gradient.
    """
    sparse = set()
    for exit, state in enumerate(states[:-1]):
        few = 2 * len(rows[exit]) * state.shape[-1] <= state.numel()
        if few and weights[exit] and state.requires_grad and states[-1].requires_grad:
            sparse.add(exit)
    plan = _Plan(tuple(rows), tuple(targets), tuple(weights), losses, size, sparse)
    given = [state.detach() if exit in plan.sparse else state for exit, state in enumerate(states)]
    total, sums = _Tiled.apply(plan, len(states), *given, *parameters)
    if total.requires_grad:
        for exit in plan.sparse:
            states[exit].register_hook(partial(plan.added, exit))
    return total, sums


def language_losses(
    model: LayeredCausalLM,
    task: Task,
    inputs: dict[str, Any],
    target: Tensor,
    weights: Sequence[float],
    inner: bool,
    sample: "TargetSample | None",
    watched: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The losses of a language model's exits, whose head costs as much as blocks.

    Args:
        model: The language model.
        task: Its loss.
        inputs: The model's inputs, with the places of the targets.
        target: The targets, (N,). The last exit sees all of them.
        weights: Of each exit's sum in the weighted one, L+1 numbers.
        inner: Whether inner exits are read.
        sample: The targets that inner exits see; None for all.
        watched: Whether further sums are wanted.

    Returns:
        The weighted sum, to differentiate; the sums of all exits that were read, (E,), where a sample stands for all
        targets; and if they are wanted the last exit's correct tokens, entropy and targets, and the input tokens, (4,).
    """
    if PLACES not in inputs:  # tiles keep the losses of own exits from the head, which they would train
        raise InputError(
            "expected places in the inputs, which of the B·T tokens are targets: own exits of a language model read "
            "these. Put them there by the task's inputs(batch), or choose exits shared."
        )
    count = len(target)
    states = model.layer_outputs(inputs)[0 if inner else -1 :]
    exits = len(states)
    rows = [inputs[PLACES]] * exits
    targets = [target] * exits
    scale = 1.0
    if sample is not None and inner and count:
        chosen = sample(count, target.device)
        # The same targets at every inner exit, so that differences between neighbours have less variance.
        rows[:-1] = [inputs[PLACES][chosen]] * (exits - 1)
        targets[:-1] = [target[chosen]] * (exits - 1)
        scale = count / len(chosen)
    scales = [scale] * (exits - 1) + [1.0]
    tokens: list[Tensor] = []
    if watched:  # a tile may hold rows of several exits: mark those of the last
        marked = [torch.full_like(each, exit == exits - 1) for exit, each in enumerate(targets)]
        targets = [torch.stack(both, 1) for both in zip(targets, marked, strict=True)]

    def losses(hidden: Tensor, wanted: Tensor, of_own: bool = False) -> Tensor:
        logits = model.logits(hidden) if of_own else model.readout(hidden)
        if watched:
            last = wanted[:, 1].bool()
            wanted = wanted[:, 0]
            seen = logits.detach()[last]
            entropy = entropies(seen).sum()
            right = (seen.argmax(-1) == wanted[last]).sum()
            tokens.append(torch.stack([right.to(entropy), entropy]))
        return task.losses(logits, wanted)

    trained = [parameter for parameter in model.head.parameters() if parameter.requires_grad]
    if any(hasattr(parameter, "placements") for parameter in trained):
        raise InputError(
            "expected the final norm and the head whole in the forward pass; they are sharded by themselves. Shard "
            "the blocks, then the objective around them, which takes the rest."
        )
    scaled = [weight * scale for weight, scale in zip(weights[-exits:], scales, strict=True)]
    size = rows_per_tile(model.limits["vocabulary"])
    if model.own_exits is None or not inner:
        lagrangian, sums = tiled(states, rows, targets, scaled, losses, trained, size)
    else:
        # Own exits learn with weight 1 and leave the head as it is; the value is that of the weights.
        of_exits = [
            model.head_input(heard(state.flatten(0, -2)[chosen], weight), layer)
            for layer, (state, chosen, weight) in enumerate(zip(states[:-1], rows, weights, strict=False))
        ]
        every = [torch.arange(len(each), device=each.device) for each in rows[:-1]]
        inner_losses = partial(losses, of_own=True)
        learnt, of_inner = tiled(of_exits, every, targets[:-1], scales[:-1], inner_losses, (), size)
        lagrangian, of_last = tiled(states[-1:], rows[-1:], targets[-1:], scaled[-1:], losses, trained, size)
        sums = torch.cat([of_inner, of_last])
        unheard = [weight - scale for weight, scale in zip(scaled[:-1], scales, strict=False)]
        lagrangian = lagrangian + learnt + weighted_sum(uploaded(unheard, of_inner), of_inner)
    others = None
    if watched:
        mask = inputs.get("attention_mask")
        given = sums.new_full((), inputs["input_ids"].numel()) if mask is None else mask.sum().to(sums)
        last_exit = torch.stack(tokens).sum(0).to(sums) if tokens else sums.new_zeros(2)
        others = torch.cat([last_exit, sums.new_full((1,), len(target)), given[None]])
    return lagrangian, sums * uploaded(scales, sums), others


def entropies(logits: Tensor) -> Tensor:
    """The entropy of each row of logits (N, V), in nats, (N,)."""
    log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    return -(log_probabilities.exp() * log_probabilities).sum(-1)


@dataclass
class _Plan:
    """What `_Tiled` is given besides tensors, and the gradients of exits of which few rows are looked at.

    Attributes:
        sparse: These exits.
        gradients: Of their rows, (N_l, H) each.
        slope: The gradient of the final scalar with respect to the weighted sum, once the backward pass has begun.
    """

    rows: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    weights: tuple[float, ...]
    losses: Callable[[Tensor, Tensor], Tensor]
    size: int
    sparse: set[int]
    gradients: dict[int, Tensor] = field(default_factory=dict)
    slope: Tensor | None = None

    def added(self, exit: int, gradient: Tensor) -> Tensor | None:
        """The gradient that comes to a state from later layers, plus the gradient of its exit."""
        if self.slope is None:  # the backward pass started at a scalar that does not depend on the exits
            return None
        rows = self.gradients.pop(exit).mul_(self.slope).to(gradient.dtype)
        return gradient.flatten(0, -2).index_add(0, self.rows[exit], rows).view_as(gradient)


class TargetSample(Draws):
    """A random share of a batch's targets, drawn anew for each micro-batch.

    Args:
        share: p in (0, 1]: of N targets ⌈pN⌉ are drawn, without replacement.
        seed: The user's seed, at least 0; every rank of a process group has its own stream.
    """

    def __init__(self, share: float, seed: int = 0):
        super().__init__(Stream.TARGETS, seed)
        self.share = share

    def __call__(self, count: int, device: torch.device) -> Tensor:
        """The indices of the sampled targets among ``count``, in ascending order, (⌈p count⌉,)."""
        drawn = torch.randperm(count, generator=self.generator(), device="cpu")[: math.ceil(self.share * count)]
        return drawn.sort().values.to(device)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, exits: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        states = [state.flatten(0, -2) for state in tensors[:exits]]
        parameters = tensors[exits:]
        needed = ctx.needs_input_grad[2:]
        asked = [needed[exit] or exit in plan.sparse for exit in range(exits)]
        trained = [number for number in range(len(parameters)) if needed[exits + number]]
        sums = states[0].new_zeros(exits, dtype=_wide(states[0].dtype))
        slopes: dict[int, list[Tensor]] = {}
        totals: list[Tensor | None] = [None] * len(parameters)
        # Exits that need no gradient share no tile with those that do.
        for learns in (True, False):
            chosen = [exit for exit, weight in enumerate(plan.weights) if (weight != 0 and any(needed)) == learns]
            for pieces in _tiles([(exit, len(plan.rows[exit])) for exit in chosen], plan.size):
                hidden = torch.cat([states[exit][plan.rows[exit][start:stop]] for exit, start, stop in pieces])
                target = torch.cat([plan.targets[exit][start:stop] for exit, start, stop in pieces])
                sizes = [stop - start for _, start, stop in pieces]
                with torch.set_grad_enabled(learns):
                    values = plan.losses(hidden.requires_grad_(learns), target)
                if learns:
                    row_weights = torch.cat(
                        [values.new_full((stop - start,), plan.weights[exit]) for exit, start, stop in pieces]
                    )
                    leaves = [hidden, *(parameters[number] for number in trained)]
                    of_states, *of_parameters = torch.autograd.grad(values, leaves, row_weights, allow_unused=True)
                    for number, slope in zip(trained, of_parameters, strict=True):
                        if slope is not None:
                            old = totals[number]
                            totals[number] = slope.to(_wide(slope.dtype)) if old is None else old.add_(slope)
                    for (exit, _, _), slope in zip(pieces, of_states.split(sizes), strict=True):
                        if asked[exit]:
                            slopes.setdefault(exit, []).append(slope)
                parts = values.detach().to(sums).split(sizes)
                for (exit, _, _), part in zip(pieces, parts, strict=True):
                    sums[exit] += part.sum()
        for number in trained:
            if totals[number] is None:  # a batch without targets: parallel training waits for all
                totals[number] = torch.zeros_like(parameters[number])
        by_row = {exit: torch.cat(slopes.pop(exit)) for exit in list(slopes)}  # no second copy of all
        for exit in plan.sparse:
            nothing = states[exit].new_zeros(0, states[exit].shape[-1])
            plan.gradients[exit] = by_row.pop(exit, nothing)
        ctx.plan = plan
        ctx.by_row = by_row
        ctx.totals = totals
        ctx.like = [(state.shape, state.dtype) for state in tensors[:exits]]
        ctx.asked = [needed[exit] and (plan.weights[exit] != 0 or exit == exits - 1) for exit in range(exits)]
        ctx.mark_non_differentiable(sums)
        # An exit of weight 0 adds nothing, even where its loss is infinite.
        weighted = [sums[exit] * weight for exit, weight in enumerate(plan.weights) if weight]
        return sum(weighted, sums.new_zeros(())), sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Any, ...]:
        plan, by_row, totals = ctx.plan, ctx.by_row, ctx.totals
        if totals is None:
            raise RuntimeError("the losses of a wide head can be differentiated once; compute them again.")
        plan.slope = slope
        ctx.by_row = None
        ctx.totals = None
        of_states: list[Tensor | None] = []
        for exit, (shape, dtype) in enumerate(ctx.like):
            if not ctx.asked[exit]:
                of_states.append(None)
                continue
            whole = torch.zeros(shape, dtype=dtype, device=slope.device)
            if exit in by_row:
                whole.view(-1, shape[-1])[plan.rows[exit]] = by_row.pop(exit).mul_(slope)
            of_states.append(whole)
        of_parameters = [None if total is None else total.mul_(slope) for total in totals]
        return None, None, *of_states, *of_parameters


def _wide(dtype: torch.dtype) -> torch.dtype:
    """At least single precision."""
    return torch.promote_types(dtype, torch.float32)


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
