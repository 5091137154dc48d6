"""Constraints of one's own in one method: known solutions, Cooper step by step, slopes by hand, bad input."""

from dataclasses import dataclass

import cooper
import pytest
import torch
from cooper.optim import SimultaneousOptimizer
from torch import Tensor
from torch.nn import functional

from descend import InputError
from descend.core import DescentProblem, PrimalDual, Problem, Target


class Rows(Target):
    """Values (½‖x − a‖², Ax): the rows of Ax are at most b."""

    signed = True

    def __init__(self, b: Tensor):
        self.b = b

    def violations(self, values: Tensor) -> Tensor:
        return values[1:] - self.b


class GroupGap(Target):
    """Values (loss, loss of group 0, loss of group 1): the groups' losses differ by at most ``gap``, either way."""

    def __init__(self, gap: float):
        self.gap = gap

    def violations(self, values: Tensor) -> Tensor:
        gap = values[1] - values[2]
        return torch.stack([gap, -gap]) - self.gap


class Ratio(Target):
    """Values f_0 … f_L: f_l / f_{l−1} ≤ rate."""

    def __init__(self, rate: float):
        self.rate = rate

    def violations(self, values: Tensor) -> Tensor:
        return values[1:] / values[:-1] - self.rate


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


A, MATRIX = numbers(6), torch.linalg.qr(numbers(6, 3, seed=1))[0].T
POINTS = torch.cat([numbers(60, 3, seed=2) + 1, numbers(20, 3, seed=3) - 0.5])
CLASSES = (POINTS @ torch.tensor([1.0, -1, 0.5]).double() + 0.5 * numbers(80, seed=4) > 0).double()
GOAL = numbers(5, seed=5)


def rows(x: Tensor) -> Tensor:
    return torch.cat([((x - A) ** 2).sum()[None] / 2, MATRIX @ x])


def groups(w: Tensor) -> Tensor:
    each = functional.binary_cross_entropy_with_logits(POINTS @ w, CLASSES, reduction="none")
    return torch.stack([each.mean(), each[:60].mean(), each[60:].mean()])


def layers(w: Tensor) -> Tensor:
    hidden, losses = torch.zeros(5, dtype=torch.float64), []
    for row in w.view(4, 5):
        hidden = torch.tanh(hidden + row)
        losses.append((hidden - GOAL).square().mean() + 0.1)
    return torch.stack(losses)


@dataclass
class Case:
    """A problem, its values as a function of x, and the size of x."""

    problem: Problem
    values: object
    size: int
    lr: float


CASES = {
    "convex rows": Case(Problem(Rows(torch.zeros(3)), [1, 0, 0, 0]), rows, 6, 0.1),
    "a gap between groups": Case(Problem(GroupGap(0.05), [1, 0, 0]), groups, 3, 0.2),
    "the ratio of layers": Case(Problem(Ratio(0.8), [0, 0, 0, 1]), layers, 20, 0.05),
    "a list of constraint values": Case(Problem.at_most_zero(3), rows, 6, 0.1),
}


def ours(case: Case, steps: int):
    x = torch.full((case.size,), 0.1, dtype=torch.float64, requires_grad=True)
    optimizer, dual = torch.optim.SGD([x], lr=case.lr), PrimalDual(case.problem, case.lr)
    for _ in range(steps):
        values = case.values(x)
        dual.lagrangian(values).backward()
        optimizer.step()
        optimizer.zero_grad()
        dual.step(values.detach())
        yield x.detach().clone(), dual.multipliers


def coopers(case: Case, steps: int):
    x = torch.full((case.size,), 0.1, dtype=torch.float64, requires_grad=True)
    problem = case.problem

    class Theirs(cooper.ConstrainedMinimizationProblem):
        def __init__(self):
            super().__init__()
            self.constraint = cooper.Constraint(
                multiplier=cooper.multipliers.DenseMultiplier(
                    num_constraints=len(problem.in_force), dtype=torch.float64
                ),
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
            )

        def compute_cmp_state(self):
            values = case.values(x)
            state = cooper.ConstraintState(violation=problem.target.violations(values))
            return cooper.CMPState(loss=problem.objective @ values, observed_constraints={self.constraint: state})

    cmp = Theirs()
    dual = torch.optim.SGD(cmp.dual_parameters(), lr=case.lr, maximize=True)
    both = SimultaneousOptimizer(cmp=cmp, primal_optimizers=torch.optim.SGD([x], lr=case.lr), dual_optimizers=dual)
    for _ in range(steps):
        both.roll()
        yield x.detach().clone(), cmp.constraint.multiplier.weight.detach().clone()


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_that_of_cooper(name):
    highest = 0.0
    for (x, multipliers), (theirs, their_multipliers) in zip(
        ours(CASES[name], 150), coopers(CASES[name], 150), strict=True
    ):
        torch.testing.assert_close(x, theirs, rtol=0, atol=1e-12)
        torch.testing.assert_close(multipliers, their_multipliers, rtol=0, atol=1e-12)
        highest = max(highest, multipliers.max().item())
    assert highest > 0.01


def test_the_gap_between_two_groups_ends_at_its_bound():
    """Without the constraint it is −.245; only one side of the bound has a multiplier."""
    *_, (w, multipliers) = ours(CASES["a gap between groups"], 1000)
    _, first, second = groups(w).tolist()
    assert first - second == pytest.approx(-0.05, abs=1e-4)
    assert multipliers[0] == 0 < multipliers[1]


def test_the_projection_on_a_cone_fulfils_its_conditions():
    """min ½‖x − a‖² s.t. Ax ≤ 0: x = a − Aᵀλ, λ ≥ 0 and λᵀAx = 0."""
    *_, (x, multipliers) = ours(CASES["convex rows"], 1000)
    torch.testing.assert_close(x, A - MATRIX.T @ multipliers, atol=1e-8, rtol=0)
    assert (MATRIX @ x).max() < 1e-8 and abs(multipliers @ MATRIX @ x) < 1e-8 and multipliers.max() > 0.1


def test_weights_are_the_slopes_of_the_lagrangian_by_hand():
    problem = CASES["the ratio of layers"].problem
    f, lam = torch.tensor([4.0, 2.0, 3.0, 1.0]).double(), torch.tensor([1.0, 2.0, 3.0]).double()
    expected = [-1 * 2 / 16, 1 / 4 - 2 * 3 / 4, 2 / 2 - 3 * 1 / 9, 1 + 3 / 3]
    torch.testing.assert_close(problem.weights(lam, f), torch.tensor(expected).double())
    with torch.no_grad():
        torch.testing.assert_close(problem.weights(lam, f), torch.tensor(expected).double())


def test_the_slack_of_another_constraint_and_a_saved_state():
    problem = CASES["a gap between groups"].problem
    one, other = (PrimalDual(problem, 0.1, resilience=0.5) for _ in range(2))
    one.step(torch.tensor([1.0, 1.0, 2.0]))
    assert one.multipliers.tolist() == pytest.approx([0, 0.1 * 0.95])
    assert one.slack.tolist() == pytest.approx([0, 0.5 * 0.1 * 0.95])
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.weights, other.weights)


class Flat(Target):
    """One number, without a dimension."""

    def violations(self, values: Tensor) -> Tensor:
        return values.sum()


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: Problem(GroupGap(0.1), [0, 0, 0]), "not all 0"),
        (lambda: Problem(Flat(), [1, 0]), r"one vector.*\(\)"),
        (lambda: DescentProblem(3, target=Ratio(0.8)), r"L\+1 = 4 numbers.*got 3.*Problem"),
        (lambda: PrimalDual(Problem(GroupGap(0.1), [1, 0, 0])).step(torch.ones(4)), r"\(3,\).*got \(4,\)"),
        # A gap is no loss: its target must say that values may be negative.
        (lambda: PrimalDual(Problem(GroupGap(0.1), [1, 0, 0])).step(-torch.ones(3)), r"signed = True"),
    ],
)
def test_what_is_no_constraint_is_refused(work, words):
    with pytest.raises(InputError, match=words):
        work()
