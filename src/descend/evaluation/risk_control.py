r"""Exit thresholds with a guarantee: a test on validation data bounds how often an early answer loses a right one.

The loss of a sample is 1 where full depth answers right and the early exit wrong, and 0 elsewhere: the performance gap
of Jazbec et al. (2024, arXiv 2405.20915), in which an early answer that happens to be better makes up for nothing. The
risk R(t) of a threshold t is its mean over the population, so accuracy falls by R(t) at most.

Learn-then-Test (Angelopoulos et al., 2021, arXiv 2110.01052) tests the hypotheses R(t) > r one after the other, from
the safest threshold to the boldest, and stops at the first that it can't reject at level δ = 1 − confidence. The order
is fixed before the data are seen, so no correction is needed (fixed-sequence testing): with probability at least
1 − δ over the draw of the validation data, the risk of the threshold before the stop is at most r. R need not be
monotone in t.

Each test holds at any number of groups, which are independent; the samples of a group, such as the pairs of a premise,
need not be. The estimand is the mean over samples, for groups of the given sizes: R = Σ_g E[S_g] / Σ_g n_g, where S_g
of the n_g samples of group g lose an answer. The sizes are taken as given: where large groups lose more answers and are
so rare that data may hold none, the certificate does not hold for later data with large groups.

- Where every sample is a group, the exact binomial tail is a p-value.
- Else we bet against R > r (Waudby-Smith and Ramdas, 2024, arXiv 2010.09686), with one bet b in (0, 1] for all groups:

  .. math:: E = \prod_g \Big(1 + \frac{b}{1-r} \cdot \frac{r\,n_g - S_g}{N}\Big), \qquad N = \max_g n_g

  No factor is negative. If R ≥ r, the mean of E is at most 1: by independence it is the product of the factors' means,
  and by the inequality of the two means at most the G-th power of their average, which is at most 1. Markov's
  inequality makes 1/E a p-value. With the bet of `GroupTest.bet` it rejects all that Hoeffding's test (1963) does for
  groups of one size, and more where the samples of a group differ.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.optimize import brentq
from scipy.special import rel_entr
from scipy.stats import binom
from torch import Tensor

from descend.evaluation.layers import LayerLosses
from descend.results import Guarantee

SEQUENCE = (
    *(0.9999, 0.9995),
    *(each / 1000 for each in range(999, 990, -1)),
    *(each / 100 for each in range(99, 55, -1)),
    *(each / 1000 for each in range(550, 499, -1)),  # the first exits of a classifier of two classes are hardly sure
    *(each / 100 for each in range(49, 4, -1)),
)
"""The thresholds in the order of their tests, from the safest to the boldest."""


@dataclass(frozen=True)
class GroupTest:
    """The test of one threshold, on groups of samples.

    Attributes:
        sizes: n_g of each group, (G,).
        risk: r.
        confidence: 1 − δ.
    """

    sizes: Tensor
    risk: float
    confidence: float

    @cached_property
    def needed(self) -> int:
        """The fewest groups of such sizes that can certify anything, if none of their samples loses an answer."""
        return math.ceil(_needed(self.risk, self.confidence) * len(self.sizes) / self._whole * (1 - 1e-12))

    @cached_property
    def _whole(self) -> float:
        """How many groups of the largest size gain as much as these if no answer is lost."""
        gains = torch.log1p(self.risk / (1 - self.risk) * self.sizes / self.sizes.max())
        return gains.sum().item() / -math.log1p(-self.risk)

    @cached_property
    def bet(self) -> float:
        """b = 1 − q/r, where q is the largest share of groups lost as a whole that Hoeffding's test rejects.

        It solves G kl(q, r) = ln(1/δ), with G as if all groups were of the largest size; without a solution b = 1.
        """
        if _needed(self.risk, self.confidence) >= self._whole:
            return 1.0
        level = -math.log1p(-self.confidence) / self._whole
        root = brentq(
            lambda share: rel_entr(share, self.risk) + rel_entr(1 - share, 1 - self.risk) - level, 0, self.risk
        )
        return 1 - root / self.risk

    def rejects(self, lost: Tensor) -> bool:
        """Whether R > r is rejected.

        Args:
            lost: S_g of each group, (G,).
        """
        largest = int(self.sizes.max())
        if largest == 1:
            return bool(binom.cdf(int(lost.sum()), len(lost), self.risk) <= 1 - self.confidence)
        gains = self.bet / (1 - self.risk) * (self.risk * self.sizes - lost) / largest
        return gains.clamp(min=-1).log1p().sum().item() >= -math.log1p(-self.confidence)


def answers_lost(measured: LayerLosses, threshold: float) -> Tensor:
    """Where full depth is right and the exit at this threshold wrong, bool (S,).

    Args:
        measured: Scores, decisions and confidences of every layer; a score is 1 for a right answer and 0 for a wrong.
        threshold: See `LayerLosses.exit_layers`.
    """
    return measured.scores_at(measured.exit_layers(threshold)) < measured.scores[:, -1]


def certify(measured: LayerLosses, risk: float, confidence: float, *, noise: float) -> Guarantee:
    """Choose the boldest exit threshold whose risk is certain to be small, by the test above.

    Args:
        measured: What `measure` gives of the validation data.
        risk: The largest share r of samples that may lose a right answer, in (0, 1).
        confidence: 1 − δ, in (0, 1), over the draw of the validation data.
        noise: The level γ at which the validation data were measured.

    Returns:
        The threshold with the bound; no threshold where nothing is certain, which means full depth.
    """
    sizes = measured.by_group(torch.ones(len(measured.losses), dtype=torch.float64, device="cpu"))
    test = GroupTest(sizes, risk, confidence)
    threshold, losses = None, 0
    for candidate in SEQUENCE:
        lost = answers_lost(measured, candidate)
        if not test.rejects(measured.by_group(lost.double())):
            break
        threshold, losses = candidate, int(lost.sum())
    return Guarantee(
        risk=risk,
        confidence=confidence,
        noise=noise,
        threshold=threshold,
        validation=len(measured.losses),
        losses=losses,
        groups=len(sizes),
        needed=test.needed,
    )


def _needed(risk: float, confidence: float) -> float:
    """How many groups of one size it takes without a lost answer: ln(1 − confidence) / ln(1 − risk)."""
    return math.log1p(-confidence) / math.log1p(-risk)


def on_test_data(guarantee: Guarantee, measured: LayerLosses) -> Guarantee:
    """The guarantee beside the risk that was measured on test data.

    Args:
        guarantee: What `certify` gave.
        measured: What `measure` gives of the test data.
    """
    lost = 0.0 if guarantee.threshold is None else answers_lost(measured, guarantee.threshold).double().mean().item()
    return guarantee.model_copy(update={"test": len(measured.losses), "test_risk": lost})
