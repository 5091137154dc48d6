"""The sums of losses and counts that training passes from the objective to the multipliers and the logs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from descend.core import PrimalDual
from descend.objective import ExitLosses


class ExitSums:
    """Sums over targets, in double precision on the CPU, in one vector for a single all-reduce.

    Args:
        depth: L, the number of layers.
        others: K, the number of other sums.
    """

    def __init__(self, depth: int, others: int = 0):
        self.values = torch.zeros(2 * (depth + 1) + others, dtype=torch.float64)
        self._exits = depth + 1

    @property
    def losses(self) -> Tensor:
        """Σ f_l of each exit, (L+1,)."""
        return self.values[: self._exits]

    @property
    def counts(self) -> Tensor:
        """The number of targets in each sum, (L+1,): 0 for an exit that was not read."""
        return self.values[self._exits : 2 * self._exits]

    @property
    def others(self) -> Tensor:
        """The other sums, (K,)."""
        return self.values[2 * self._exits :]

    @property
    def first(self) -> int:
        """The first exit that was read; L+1 if there was no target."""
        return int((self.counts == 0).sum())

    @property
    def means(self) -> Tensor:
        """f_l of each exit that was read, from `first` on."""
        return self.losses[self.first :] / self.counts[self.first :]


class StepSums:
    """Accumulates the sums of the current step for the dual and for the next log.

    Each micro-batch is added once. After a primal step the sums go to the dual, which adds them over the ranks and
    moves the multipliers; if the primal step was skipped, they are dropped.

    Args:
        dual: The multipliers.
        others: K, the number of other sums.
    """

    def __init__(self, dual: PrimalDual, others: int = 0):
        self.dual = dual
        self.step, self.since_log = (ExitSums(dual.problem.depth, others) for _ in range(2))
        self.logged = torch.zeros(others, dtype=torch.float64)  # the other sums in all logs so far, over all ranks
        self._inner = False
        self.added = False
        """Whether this step has a micro-batch."""
        # Sums, targets, first exit and other sums of each micro-batch; their values may still be copied from the GPU.
        self._pending: list[tuple[Sequence[float], int, int, Iterable[float]]] = []

    def add(self, exits: ExitLosses, others: Iterable[float] = (), *, idle: bool = False) -> None:
        """Add a micro-batch; its values are read at the end of the step.

        Args:
            exits: The losses of the micro-batch.
            others: Its other sums, K numbers.
            idle: Whether the micro-batch counts nothing, because another rank counts its samples.
        """
        self.added, self._inner = True, self._inner or exits.first == 0
        if not idle:
            self._pending.append((exits.sums, exits.targets, exits.first, others))  # without the autograd graph

    def fault(self) -> str | None:
        """Read the step's values and describe what is wrong with them on this rank; None if nothing is."""
        fault, pending = None, self._pending
        self._pending = []
        for values, targets, first, others in pending:
            sums = torch.tensor(list(values), dtype=torch.float64)
            bad = [first + int(place) for place in (~sums.isfinite()).nonzero()]
            if bad:
                fault = fault or f"the loss of layer {bad} is not finite ({sums.tolist()})"
                continue
            self.step.losses[first:] += sums
            self.step.counts[first:] += targets
            self.step.others.add_(torch.tensor(list(others), dtype=torch.float64))
        return fault

    def take(self, device: torch.device | str) -> None:
        """After a primal step: pass its sums to the dual, which takes its step if one is due.

        Args:
            device: The device of the process group's collectives.
        """
        if self._inner:
            count = self.step.counts[0].item()
            self.dual.observe(self.step.losses.to(device), count)
            if count and self.since_log.counts[0] < self.since_log.counts[-1]:
                # Warm-up, which reads the last exit only, has just ended: average all layers over the same steps.
                self.since_log.losses.zero_()
                self.since_log.counts.zero_()
        self.since_log.values += self.step.values
        self._clear()
        self.dual.step()

    def skip(self) -> None:
        """After a skipped primal step: drop its sums."""
        self._clear()
        self.dual.skip()

    def log(self, reduce: Callable[[Tensor], Tensor]) -> ExitSums:
        """The sums since the last log, over all ranks.

        Args:
            reduce: Sums a tensor over the ranks.
        """
        sums = ExitSums(self.dual.problem.depth, len(self.logged))
        sums.values = reduce(self.since_log.values)
        self.since_log.values.zero_()
        self.logged += sums.others
        return sums

    def others_so_far(self, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """The other sums since training began, over all ranks, (K,); nothing is reset.

        Args:
            reduce: Sums a tensor over the ranks.
        """
        return self.logged + reduce(self.since_log.others)

    def begin(self) -> None:
        """Reset for a new run."""
        self._clear()
        self.since_log.values.zero_()
        self.logged.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        """The sums since the last log, so that a resumed run logs the same values."""
        return {"since_log": self.since_log.values, "logged": self.logged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, or its JSON."""
        self.begin()
        for name, values in (("since_log", self.since_log.values), ("logged", self.logged)):
            values.copy_(torch.as_tensor(state[name], dtype=torch.float64))

    def _clear(self) -> None:
        self.step.values.zero_()
        self.added, self._inner, self._pending = False, False, []
