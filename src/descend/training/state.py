"""What training sums up between the objective and the multipliers, and since the last log."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from descend.core import PrimalDual
from descend.objective import ExitLosses


class ExitSums:
    """Sums over targets, in double precision on the host, as one vector that ranks can add up.

    Args:
        depth: L, the number of layers.
        others: K, how many other sums come with the losses.
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
        """The number of targets behind each, (L+1,): 0 for an exit that was not read."""
        return self.values[self._exits : 2 * self._exits]

    @property
    def others(self) -> Tensor:
        """The other sums, (K,)."""
        return self.values[2 * self._exits :]

    @property
    def first(self) -> int:
        """The first exit that was read; L+1 where there was no target."""
        return int((self.counts == 0).sum())

    @property
    def means(self) -> Tensor:
        """f_l of each exit that was read, from `first` on."""
        return self.losses[self.first :] / self.counts[self.first :]


class StepSums:
    """The one accumulator of a run: sums of the current step, which go to the dual and to the next log.

    A micro-batch's sums are added once. When the step is taken they are handed to the dual, which adds them up over
    the ranks and moves the multipliers; when it is not, they are dropped.

    Args:
        dual: The multipliers.
        others: K, how many other sums come with the losses.
    """

    def __init__(self, dual: PrimalDual, others: int = 0):
        self.dual = dual
        self.step, self.since_log = (ExitSums(dual.problem.depth, others) for _ in range(2))
        self.logged = torch.zeros(others, dtype=torch.float64)  # the other sums in all logs so far, over all ranks
        self._inner = False
        self._pending: list[tuple[ExitLosses, Sequence[float]]] = []  # their numbers may still be on the way

    def add(self, exits: ExitLosses, others: Sequence[float] = (), *, idle: bool = False) -> None:
        """Add a micro-batch; its numbers are read when the step is over.

        Args:
            exits: Its losses.
            others: Its other sums, K numbers.
            idle: Whether another rank counts this micro-batch.
        """
        self._inner = self._inner or exits.first == 0
        if not idle:
            self._pending.append((exits, others))

    def fault(self) -> str | None:
        """Read the step's numbers: what is wrong with them on this rank; None if nothing."""
        fault, pending = None, self._pending
        self._pending = []
        for exits, others in pending:
            sums = torch.tensor(list(exits.sums), dtype=torch.float64)
            bad = [exits.first + int(place) for place in (~sums.isfinite()).nonzero()]
            if bad:
                fault = fault or f"the loss of layer {bad} is not finite ({sums.tolist()})"
                continue
            self.step.losses[exits.first :] += sums
            self.step.counts[exits.first :] += exits.targets
            self.step.others.add_(torch.tensor(list(others), dtype=torch.float64))
        return fault

    def take(self, device: torch.device | str) -> None:
        """The step was taken: hand its sums to the dual, which moves the multipliers if they are due.

        Args:
            device: Where the process group adds up numbers.
        """
        if self._inner:
            count = self.step.counts[0].item()
            self.dual.observe(self.step.losses.to(device), count)
            if count and self.since_log.counts[0] < self.since_log.counts[-1]:
                # Warm-up is over: compare the layers over the same steps.
                self.since_log.losses.zero_()
                self.since_log.counts.zero_()
        self.since_log.values += self.step.values
        self._clear()
        self.dual.step()

    def skip(self) -> None:
        """The step was not taken: drop its sums."""
        self._clear()
        self.dual.skip()

    def log(self, reduce: Callable[[Tensor], Tensor]) -> ExitSums:
        """The sums since the last log, over all ranks.

        Args:
            reduce: Adds a tensor up over the ranks.
        """
        sums = ExitSums(self.dual.problem.depth, len(self.logged))
        sums.values = reduce(self.since_log.values)
        self.since_log.values.zero_()
        self.logged += sums.others
        return sums

    def begin(self) -> None:
        """Start a run: nothing is logged yet."""
        self._clear()
        self.since_log.values.zero_()
        self.logged.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs to log what it would have logged."""
        return {"since_log": self.since_log.values, "logged": self.logged}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` gave."""
        self.begin()
        values = state["since_log"].flatten()
        self.since_log.values[: len(values)] = values  # checkpoints of older versions hold the losses alone
        if "logged" in state:
            self.logged.copy_(state["logged"])

    def _clear(self) -> None:
        self.step.values.zero_()
        self._inner, self._pending = False, []
