"""What a run is told of its end, on problems whose end is known."""

import pytest
import torch

from descend.core import DescentProblem, Outlook


def told(problem, losses, multipliers):
    """The warnings of 60 reports of a run."""
    outlook = Outlook(problem)
    reports = [outlook.report(torch.tensor(losses(log)), torch.tensor(multipliers(log))) for log in range(60)]
    return [(log, sentence) for log, said in enumerate(reports) for sentence in said]


def test_what_all_constraints_ask_together_is_told_beside_what_is_reached():
    problem = DescentProblem(3, [0.5, 0.2, 0.1])
    ((log, found),) = told(problem, lambda log: [2.0, 1.5, 1.2, 1.0], lambda log: [0.0] * 4)
    assert log == 10  # once, and not before it has been looked at for a while
    assert "at most 0.72" in found and "2 at layer 0" in found and "It is 1, and does not come closer." in found


@pytest.mark.parametrize(
    ("alpha", "last"),
    [
        ([0.5, 0.2, 0.1], lambda log: 0.7),
        ([0.5, 0.2, 0.1], lambda log: 0.77),
        ([0.5, 0.2, 0.1], lambda log: 0.72 + 0.9**log),
        (None, lambda log: 3.0),
    ],
    ids=["reached", "nearly reached", "on its way", "plain training"],
)
def test_a_run_on_its_way_is_told_nothing(alpha, last):
    """From the first log after warm-up on, where the last loss is far above what is asked."""
    assert told(DescentProblem(3, alpha), lambda log: [2.0, 1.5, 1.2, last(log)], lambda log: [0.0] * 4) == []


def test_a_resumed_run_does_not_say_it_again():
    problem = DescentProblem(2, 0.5)
    before, after = Outlook(problem), Outlook(problem)
    said = []
    for step in range(60):
        said += before.report(torch.tensor([1.0, 0.99, 0.98]), torch.tensor([0.0, 0.05, 0.05]) * step)
    assert said
    after.load_state_dict(before.state_dict())
    assert after.report(torch.tensor([1.0, 0.99, 0.98]), torch.tensor([0.0, 3.0, 3.0])) == []


PAPER = {"first": 1, "stop_gradient": False}


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (lambda log: 1.0, "layer 1 was negative in 20 of the last 40 logs"),
        (lambda log: 0.9**log, None),  # an overshoot that fades
    ],
    ids=["cycles", "fades"],
)
def test_a_layer_that_is_raised_above_its_own_bound_is_named_once(shape, named):
    """Layer 1 is pushed up for layer 2's sake, and beyond its cap; then its multiplier pulls it back."""
    problem = DescentProblem(2, 0.2, 5.0, **PAPER)
    said = told(
        problem,
        lambda log: [
            6.0,
            4.5 + 2 * shape(log) * (log % 4 > 1),
            3.0,
        ],
        lambda log: [0.5, 0.0, 0.0] if log % 4 > 1 else [0.0, 0.0, 0.5],
    )
    assert [log for log, _ in said] == ([39] if named else [])
    assert all(named in sentence and "lower the dual's learning rate or alpha" in sentence for _, sentence in said)


def test_a_negative_weight_within_the_layers_own_bound_is_as_it_should_be():
    """The paper's form at its end: the last constraint is tight, and the layer before has room."""
    problem = DescentProblem(3, 0.2, 5.0, **PAPER)
    said = told(problem, lambda log: [6.0, 4.0, 2.0, 1.6 + 0.05 * (log % 2)], lambda log: [0.0, 0.0, 0.0, 0.5])
    assert problem.weights(torch.tensor([0.0, 0.0, 0.0, 0.5]))[2] < 0 and said == []


@pytest.mark.parametrize("stop_gradient", [False, True])
def test_a_bound_that_a_higher_first_loss_makes_room_for_is_within_reach(stop_gradient):
    """Losses 2, 1.9 and 1.8 with α = ½: with the cap of 8 as the first loss the last may be 2."""
    problem = DescentProblem(3, 0.5, 8.0, first=1, stop_gradient=stop_gradient)
    said = told(problem, lambda log: [6.0, 2.0, 1.9, 1.8], lambda log: [0.0, 0.0, 0.1 * log, 0.1 * log])
    if not stop_gradient:
        assert said == []
    else:
        assert [sentence.split(" is violated")[0] for _, sentence in said[1:]] == ["constraint 2", "constraint 3"]
        assert all("lower alpha or raise the cap" in sentence for _, sentence in said)
        assert "allow it a loss of 1, and no layer has reached less than 1.8" in said[1][1]
