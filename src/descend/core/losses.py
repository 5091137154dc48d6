"""Sums of layer losses and the numbers of their targets: what passes from a batch to the multipliers and the logs."""

import torch
from torch import Tensor


class LossSums:
    """Σ f_l of each exit and the number of targets in it, in double precision on the host.

    Sums that are still on their way from a device count as added; the first look at a number waits for them. This is
    no tensor, because FSDP2 in mixed precision casts the tensors that a forward pass returns.

    Args:
        depth: L, the number of layers.
        others: K, the number of further sums, such as the correct tokens of a language model.
    """

    def __init__(self, depth: int, others: int = 0):
        self._exits = depth + 1
        self._numbers = torch.zeros(2 * self._exits + others, dtype=torch.float64, device="cpu")
        # The last E exits' sums and the further sums, E, and the event after which they have arrived, if they travel.
        self._arriving: list[tuple[Tensor, int, torch.Event | None]] = []

    @classmethod
    def of(cls, sums: Tensor, targets: float, depth: int, others: Tensor | None = None) -> "LossSums":
        """The sums of a batch. The copy to the host starts at once and is not waited for.

        Args:
            sums: Σ f_l of the last E exits, (E,); the earlier ones were not read.
            targets: The number of targets in each.
            depth: L.
            others: Further sums, (K,).
        """
        batch = cls(depth, 0 if others is None else len(others))
        batch.counts[depth + 1 - len(sums) :] = targets
        numbers = (sums if others is None else torch.cat([sums, others.to(sums)])).detach()
        event = None
        if numbers.device.type != "cpu":
            event = torch.Event(device=numbers.device)
            numbers = numbers.to("cpu", non_blocking=True)  # into pinned memory
            event.record()
        batch._arriving = [(numbers, len(sums), event)]
        return batch

    def add(self, other: "LossSums", *, idle: bool = False) -> None:
        """Add other sums, unless ``idle``: then another rank counts their samples. Nothing is waited for.

        Further sums are left out if this object has none.
        """
        if not idle:
            self._numbers += other._numbers[: len(self._numbers)]
            self._arriving += other._arriving

    def clear(self) -> None:
        """Start again at 0."""
        self._numbers.zero_()
        self._arriving = []

    def restart(self) -> None:
        """Start losses and counts again at 0, but not the further sums."""
        self.numbers[: 2 * self._exits].zero_()

    def with_numbers(self, numbers: Tensor | list[float]) -> "LossSums":
        """Sums of this shape with other `numbers`, such as these over all ranks, or those of a checkpoint."""
        sums = LossSums(self._exits - 1, len(self.others))
        sums._numbers.copy_(torch.as_tensor(numbers, dtype=torch.float64, device="cpu"))
        return sums

    @property
    def numbers(self) -> Tensor:
        """Sums, counts and further sums in one vector, (2(L+1)+K,), for a single all-reduce."""
        arriving, self._arriving = self._arriving, []
        for numbers, exits, event in arriving:
            if event is not None:
                event.synchronize()
            self._numbers[self._exits - exits : self._exits] += numbers[:exits]
            if len(self._numbers) > 2 * self._exits:  # these sums have further ones
                self._numbers[2 * self._exits :] += numbers[exits:]
        return self._numbers

    @property
    def values(self) -> Tensor:
        """Σ f_l of each exit, (L+1,)."""
        return self.numbers[: self._exits]

    @property
    def counts(self) -> Tensor:
        """The number of targets in each sum, (L+1,): 0 for an exit that was not read. Nothing is waited for."""
        return self._numbers[self._exits : 2 * self._exits]

    @property
    def others(self) -> Tensor:
        """The further sums, (K,)."""
        return self.numbers[2 * self._exits :]

    @property
    def targets(self) -> int:
        """The number of targets."""
        return int(self.counts[-1])

    @property
    def first(self) -> int:
        """The first exit that was read; L+1 if there was no target."""
        return int((self.counts == 0).sum())

    @property
    def means(self) -> Tensor:
        """f_l of each exit that was read, from `first` on."""
        return self.values[self.first :] / self.counts[self.first :]

    @property
    def fault(self) -> str | None:
        """What is wrong with a sum that is not finite; None if nothing is."""
        layers = (~self.values.isfinite()).nonzero().flatten().tolist()
        return f"the loss of layer {layers} is not finite ({self.values[self.first :].tolist()})" if layers else None
