"""Exit thresholds with a guarantee: a test on validation data bounds how often an early answer loses a right one.

The loss of a sample is 1 where full depth answers right and the early exit wrong, and 0 elsewhere: the performance gap
of Jazbec et al. (2024, arXiv 2405.20915), in which an early answer that happens to be better makes up for nothing. The
risk R(t) of a threshold t is its mean over the population, so accuracy falls by R(t) at most.

Learn-then-Test (Angelopoulos et al., 2021, arXiv 2110.01052) tests the hypotheses R(t) > r one after the other, from
the safest threshold to the boldest, and stops at the first that it can't reject at level δ = 1 − confidence. The order
is fixed before the data are seen, so no correction is needed (fixed-sequence testing): with probability at least
1 − δ over the draw of the validation data, the risk of the threshold before the stop is at most r. Since the loss is
0 or 1, the exact binomial tail is a valid p-value at any sample size; R need not be monotone in t.
"""

import math

from scipy.stats import binom
from torch import Tensor

from descend.errors import InputError
from descend.evaluation.layers import LayerLosses
from descend.models.exit_rule import ExitRule
from descend.records.schema import Guarantee

SEQUENCE = (
    *(0.9999, 0.9995),
    *(each / 1000 for each in range(999, 990, -1)),
    *(each / 100 for each in range(99, 55, -1)),
    *(each / 1000 for each in range(550, 499, -1)),  # the first exits of a classifier of two classes are hardly sure
    *(each / 100 for each in range(49, 4, -1)),
)
"""The thresholds in the order of their tests, from the safest to the boldest."""


def check_risk(risk: float, confidence: float) -> None:
    """Refuse a risk or a confidence that is not a probability strictly between 0 and 1.

    Raises:
        InputError: If one is out of range.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise InputError(f"--{name} must be a number between 0 and 1, such as 0.01; got {value:g}.")


def samples_needed(risk: float, confidence: float) -> int:
    """The smallest number of validation samples that can certify anything: ln(1 − confidence) / ln(1 − risk)."""
    return math.ceil(math.log1p(-confidence) / math.log1p(-risk))


def answers_lost(measured: LayerLosses, threshold: float) -> Tensor:
    """Where full depth is right and the exit at this threshold wrong, bool (S,).

    Args:
        measured: Scores, decisions and confidences of every layer; a score is 1 for a right answer and 0 for a wrong.
        threshold: See `ExitRule`.
    """
    return _scores_at_exit(measured, threshold) < _scores(measured)[:, -1]


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
    count = len(measured.losses)
    threshold, losses = None, 0
    for candidate in SEQUENCE:
        lost = int(answers_lost(measured, candidate).sum())
        if binom.cdf(lost, count, risk) > 1 - confidence:
            break
        threshold, losses = candidate, lost
    return Guarantee(
        risk=risk,
        confidence=confidence,
        noise=noise,
        threshold=threshold,
        validation=count,
        losses=losses,
        needed=samples_needed(risk, confidence),
    )


def on_test_data(guarantee: Guarantee, measured: LayerLosses) -> Guarantee:
    """The guarantee beside the risk that was measured on test data.

    Args:
        guarantee: What `certify` gave.
        measured: What `measure` gives of the test data.
    """
    lost = 0.0 if guarantee.threshold is None else answers_lost(measured, guarantee.threshold).double().mean().item()
    return guarantee.model_copy(update={"test": len(measured.losses), "test_risk": lost})


def _scores(measured: LayerLosses) -> Tensor:
    assert measured.scores is not None
    return measured.scores


def _scores_at_exit(measured: LayerLosses, threshold: float) -> Tensor:
    assert measured.decisions is not None and measured.confidences is not None
    layers = ExitRule(threshold).layers(measured.decisions[:, 1:], measured.confidences[:, 1:])
    return _scores(measured).gather(1, layers[:, None])[:, 0]
