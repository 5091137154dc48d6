"""Early warnings on problems whose end is known."""

import re
from functools import partial

import pytest
import torch

from descend.core import DescentProblem
from descend.training.outlook import Outlook

CHAIN = partial(DescentProblem, 3, [0.5, 0.2, 0.1])
PAPER = {"first": 1, "stop_gradient": False}
# Losses 2, 1.9 and 1.8 with α = ½.
NO_FALL = (lambda log: [6.0, 2.0, 1.9, 1.8], lambda log: [0.0, 0.0, 0.1 * log, 0.1 * log])
# Problem, losses and multipliers by log; at which log which words are told.
TOLD = {
    # From the first log after warm-up on, where the last loss is far above its bound.
    "reached": (CHAIN(), lambda log: [2.0, 1.5, 1.2, 0.7], lambda log: [0.0] * 4, []),
    "nearly reached": (CHAIN(), lambda log: [2.0, 1.5, 1.2, 0.77], lambda log: [0.0] * 4, []),
    "on its way": (CHAIN(), lambda log: [2.0, 1.5, 1.2, 0.72 + 0.9**log], lambda log: [0.0] * 4, []),
    "plain training": (DescentProblem(3), lambda log: [2.0, 1.5, 1.2, 3.0], lambda log: [0.0] * 4, []),
    # The weight of layer 2 is negative, and the layer within its bound: the paper's form at its end.
    "a negative weight": (
        DescentProblem(3, 0.2, 5.0, **PAPER),
        lambda log: [6.0, 4.0, 2.0, 1.6 + 0.05 * (log % 2)],
        lambda log: [0.0, 0.0, 0.0, 0.5],
        [],
    ),
    # With the cap of 8 as the first loss the last may be 2.
    "a bound that a higher first loss makes room for": (DescentProblem(3, 0.5, 8.0, **PAPER), *NO_FALL, []),
    "an overshoot that fades": (
        DescentProblem(2, 0.2, 5.0, **PAPER),
        lambda log: [6.0, 4.5 + 2 * 0.9**log * (log % 4 > 1), 3.0],
        lambda log: [0.5, 0.0, 0.0] if log % 4 > 1 else [0.0, 0.0, 0.5],
        [],
    ),
    # Once, and not before it has been looked at for a while.
    "what all constraints ask together": (
        CHAIN(),
        lambda log: [2.0, 1.5, 1.2, 1.0],
        lambda log: [0.0] * 4,
        [(10, r"at most 0\.72: 2 at layer 0 .*It is 1, and does not come closer\.")],
    ),
    # Layer 1 is pushed up for layer 2's sake, and beyond its cap; then its multiplier pulls it back.
    "a layer that is raised above its own bound": (
        DescentProblem(2, 0.2, 5.0, **PAPER),
        lambda log: [6.0, 4.5 + 2 * (log % 4 > 1), 3.0],
        lambda log: [0.5, 0.0, 0.0] if log % 4 > 1 else [0.0, 0.0, 0.5],
        [(39, "layer 1 was negative in 20 of the last 40 logs.*lower the dual's learning rate or alpha")],
    ),
    # Without the gradient of the other side no layer makes room for the next.
    "constraints out of reach": (
        DescentProblem(3, 0.5, 8.0, first=1, stop_gradient=True),
        *NO_FALL,
        [
            (10, "lower alpha or raise the cap"),
            (
                10,
                r"^constraint 2 is violated .*allow it a loss of 1, and no layer has reached less than 1\.8: "
                "lower alpha or raise the cap",
            ),
            (10, "^constraint 3 is violated .*lower alpha or raise the cap"),
        ],
    ),
}


@pytest.mark.parametrize(("problem", "losses", "multipliers", "expected"), TOLD.values(), ids=TOLD)
def test_a_run_is_told_once_what_it_can_not_reach_and_nothing_on_its_way(problem, losses, multipliers, expected):
    """The warnings of 60 reports of a run."""
    outlook = Outlook(problem)
    reports = [outlook.report(torch.tensor(losses(log)), torch.tensor(multipliers(log))) for log in range(60)]
    told = [(log, sentence) for log, said in enumerate(reports) for sentence in said]
    assert [log for log, _ in told] == [log for log, _ in expected]
    for (_, sentence), (_, words) in zip(told, expected, strict=True):
        assert re.search(words, sentence)


def test_a_resumed_run_does_not_say_it_again():
    problem = DescentProblem(2, 0.5)
    before, after = Outlook(problem), Outlook(problem)
    losses = torch.tensor([1.0, 0.99, 0.98])
    said = [before.report(losses, torch.tensor([0.0, 0.05, 0.05]) * step) for step in range(60)]
    assert any(said)
    after.load_state_dict(before.state_dict())
    assert after.report(losses, torch.tensor([0.0, 3.0, 3.0])) == []
