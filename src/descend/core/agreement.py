"""Check that all ranks of a process group hold the same multipliers, with one all-reduce of two numbers."""

import torch
from torch import Tensor, distributed

from descend.errors import RanksDifferError


def fingerprint(multipliers: Tensor, slack: Tensor) -> Tensor:
    """A weighted sum s of λ and u, and s², shape (2,); s differs between ranks with different multipliers.

    Args:
        multipliers: λ, shape (L+1,).
        slack: u, shape (L+1,).
    """
    state = torch.cat([multipliers, slack])
    # All weights differ, so that two differences do not cancel by chance.
    total = state @ torch.linspace(1, 2, len(state), dtype=torch.float64, device="cpu")
    return torch.stack([total, total.square()])


def refuse_differing(totals: Tensor, multipliers: Tensor) -> None:
    """Raise an error if ranks differ: R Σs² = (Σs)² only if all R ranks have the same s.

    Both sums are over the ranks, so every rank has the same result. A relative difference of 1e-15, from rounding on
    different processors, is accepted; a rank that differs by more than √R millionths of s is not.

    Args:
        totals: Σs and Σs² over the ranks, shape (2,).
        multipliers: λ of this rank, for the message.

    Raises:
        RanksDifferError: On all ranks.
    """
    total, squares = totals.tolist()
    ranks = distributed.get_world_size()
    if not ranks * squares - total**2 <= 1e-12 * total**2:
        values = [f"{value:.6g}" for value in multipliers.tolist()]
        raise RanksDifferError(
            f"expected the same multipliers on all {ranks} processes; they differ, and process "
            f"{distributed.get_rank()} holds {', '.join(values)} (the cap's first). Give every process the same "
            "settings, and go on from a checkpoint that all of them can read."
        )
