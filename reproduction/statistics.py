"""Wins of one method over another, counted over many cells."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from descend.errors import InputError


@dataclass(frozen=True)
class Wins:
    """How often one arm is better than another, over cells.

    Attributes:
        wins: Cells in which it is.
        losses: Cells in which the other is.
        ties: Cells in which neither is.
        p_sign: Of wins and losses alike, two-sided and exact (binomial); ties are left out. Cells of one study share
            data and seeds: it takes them for independent, and so for more than they are.
    """

    wins: int
    losses: int
    ties: int
    p_sign: float


def wins(cells: Sequence[tuple[float, float]], *, higher_is_better: bool) -> Wins:
    """Count wins over cells, and test them. A cell that diverged is lost, unless the other did too: a tie.

    Args:
        cells: Our value and theirs: means over all seeds, never the best of them.
        higher_is_better: Which way the metric goes.

    Raises:
        InputError: If there is no cell.
    """
    if not cells:
        raise InputError("wins are counted over cells; got none.")
    values = np.array(cells, dtype=float)
    finite = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        ahead = (values[:, 0] - values[:, 1]) * (1 if higher_is_better else -1)
    # What has diverged is behind anything that has not.
    ahead = np.where(finite.all(1), ahead, finite[:, 0].astype(float) - finite[:, 1])
    won, lost = int((ahead > 0).sum()), int((ahead < 0).sum())
    p_sign = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
    return Wins(won, lost, len(ahead) - won - lost, p_sign)
