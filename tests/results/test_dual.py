"""Whether the dual has converged: on a problem whose saddle point is known, and against the Lagrangian itself."""

import math

import pytest
import torch

from descend.core import DescentProblem, GeometricTarget, NoWorse, PrimalDual
from descend.report.answer import Answer
from descend.report.terminal import run_lines
from descend.report.words import number
from descend.results import Summary
from tests.support.cases import slow

NEEDED = {"layers_needed": {"noise": 0.0, "within": {}}, "feasible": True}
RUN = {"recipe": "Own", "method": "constrained", "seed": 0, "model": "m", "dataset": "d", "metric": "loss"}
RUN |= {"higher_is_better": False, "noise": [0.0], "values": [1.0], "mean": 1.0, "train_noise": 0.0} | NEEDED


def summary_of(problem: DescentProblem, losses: torch.Tensor, dual: PrimalDual | None = None, **entries) -> Summary:
    """The summary of a problem that ended with these losses and this dual."""
    violations = problem.violations(losses)
    known = {"layer_losses": {0.0: losses.tolist()}, "layer_metrics": {0.0: losses.tolist()}, "cap": problem.cap}
    known |= {"violations": violations[1:].tolist(), "cap_violation": violations[0].item()}
    known |= {"target": "geometric" if problem.alpha is None else "step", "bounds": problem.bounds(losses)[1:].tolist()}
    if dual is not None:
        known |= {"multipliers": dual.multipliers[1:].tolist(), "cap_multiplier": dual.multipliers[0].item()}
        known |= {"slack": dual.slack[1:].tolist(), "cap_slack": dual.slack[0].item()}
    return Summary(**RUN | known | entries)


def words_of(summary: Summary) -> str:
    """The words on the dual."""
    return Answer.of(summary).dual


def descended(steps: int, **settings) -> tuple[DescentProblem, torch.Tensor, PrimalDual]:
    """Minimise .2 + (x − 1)² where x² + .5 must be at most .9: x = √.4 and λ_1 = (1 − x) / x at the saddle point."""
    problem = DescentProblem(2, alpha=[0.1, 0.05])
    dual, x = PrimalDual(problem, lr=0.05, optimizer="sgd", **settings), torch.zeros((), dtype=torch.float64)
    x.requires_grad_()

    def losses() -> torch.Tensor:
        return torch.stack([torch.ones_like(x), x**2 + 0.5, 0.2 + (x - 1) ** 2])

    for _ in range(steps):
        values = losses()
        (slope,) = torch.autograd.grad(dual.weights @ values, x)
        dual.step(values.detach())
        x.data -= 0.05 * slope
    return problem, losses().detach(), dual


@pytest.mark.parametrize("settings", [{}, {"resilience": 0.2}], ids=["hard", "slack"])
def test_the_dual_of_a_known_saddle_point_has_converged(settings):
    problem, losses, dual = descended(2000, **settings)
    if not settings:
        assert dual.multipliers.tolist() == pytest.approx([0, 0.4**-0.5 - 1, 0], abs=1e-6)
    found = summary_of(problem, losses, dual)
    assert found.dual.slackness == pytest.approx([0, 0, 0], abs=1e-6) and found.dual.converged
    assert found.dual.objective == losses[2] and bool(settings) == (found.violations[0] > 0.01)
    text = "\n".join(run_lines(found))
    assert "The dual has converged on the test data" in text and ", λ 0." in text


@pytest.mark.parametrize(("steps", "losses"), [(10, None), slow((2000, [1.0, 0.7, 0.3]))], ids=["early", "with room"])
def test_a_dual_that_has_not_converged_says_where_and_which_way(steps, losses):
    problem, ended, dual = descended(steps)
    losses = ended if losses is None else torch.tensor(losses, dtype=torch.float64)
    found = summary_of(problem, losses, dual, violated=[1] if steps == 10 else [])
    product = dual.multipliers[1] * problem.violations(losses)[1] / losses[2]
    assert found.dual.slackness[1] == pytest.approx(product.item()) and found.dual.worst == 1
    way = "misses its bound, so λ has yet to rise" if steps == 10 else "is below its bound, so λ has yet to fall"
    assert not found.dual.converged
    assert f"layer 1: with λ = {number(dual.multipliers[1].item())} it {way}." in words_of(found)


def test_a_geometric_target_prices_violations_relative_to_the_loss_before():
    """λ_l f_L (f_l − bound_l) / f_{l−1}, its term in the Lagrangian, as a share of f_L."""
    problem = DescentProblem(3, target=GeometricTarget(0.5))
    losses, prices = torch.tensor([4.0, 3.9, 2.5, 2.0], dtype=torch.float64), [0.5, 0.0, 2.0]
    found = summary_of(problem, losses, multipliers=prices, slack=[0.0] * 3)
    term = torch.tensor([0.0, *prices]) * problem.violations(losses) / problem.target.units(losses)
    assert found.dual.slackness == pytest.approx(term.tolist())


def test_layers_up_to_k_are_priced_in_the_units_of_their_losses():
    """λ_l (f_l − bound_l), their terms in the Lagrangian of ``after`` with α, as a share of f_K."""
    problem = DescentProblem(4, target=NoWorse(3, 0.1), objective=[0, 0, 0, 1, 0])
    losses, prices = torch.tensor([10.0, 10.0, 1.2, 1.0, 1.5], dtype=torch.float64), [0.5, 0.0, 0.3, 0.2]
    known = {"target": "no_worse", "after": 3, "multipliers": prices, "slack": [0.0] * 4, "violated": [1, 3, 4]}
    found = summary_of(problem, losses, **known)
    assert found.dual.slackness == pytest.approx([0, 0.5 * 1.0, 0, 0.3 * (1 - 0.9 * 1.2), 0.2 * 0.5])


def test_each_layer_has_the_loss_that_it_had_to_reach_whatever_states_it():
    """α up to layer K at every level; the bound of later layers follows from the losses of the training level."""
    problem = DescentProblem(4, target=NoWorse(2, 0.1), objective=[0, 0, 1, 0, 0])
    losses = torch.tensor([3.0, 2.0, 1.0, 1.5, 0.5], dtype=torch.float64)
    known = {"target": "no_worse", "after": 2, "limits": [None, 0.9, 0.9, None, None], "noise": [0.0, 1.0]}
    levels = {0.0: losses.tolist(), 1.0: (2 * losses).tolist()}
    found = summary_of(problem, losses, **known, values=[1.0, 1.0], layer_losses=levels, layer_metrics=levels)
    assert found.losses_to_reach(0.0) == pytest.approx({1: 2.7, 2: 1.8, 3: 1.0, 4: 1.0})
    assert found.losses_to_reach(1.0) == pytest.approx({1: 5.4, 2: 3.6})


def test_a_broken_constraint_without_a_price_is_not_converged_and_what_is_unknown_says_nothing():
    problem, losses = DescentProblem(2, alpha=0.1), torch.tensor([1.0, 0.95, 0.5], dtype=torch.float64)
    found = summary_of(problem, losses, multipliers=[0.0, 0.0], violated=[1])
    assert (found.dual.gap, found.dual.unmet, found.dual.worst, found.dual.converged) == (0, [1], 1, False)
    assert "with λ = 0.00 it misses its bound" in words_of(found)
    assert "not converged on the test data: layer 1 misses its bound, though all |λ · violation| add up to 0.0%" in (
        words_of(found)
    )
    for entries in ({}, {"multipliers": [1.0, 0.0], "method": "erm"}):
        assert summary_of(problem, losses, **entries).dual is None
        assert words_of(summary_of(problem, losses, **entries)) == ""
    diverged = summary_of(problem, losses * math.nan, multipliers=[1.0, 0.0])
    assert not diverged.dual.converged and "add up to diverged" in words_of(diverged)


def test_a_miss_at_the_most_that_a_multiplier_may_be_is_a_penalty_and_no_gap():
    """The price rule solves min f_L + p Σ [g]₊: at λ = p a constraint may be missed at the saddle point."""
    problem, losses = DescentProblem(3, target=GeometricTarget(0.5)), torch.tensor([4.0, 3.9, 2.5, 2.0]).double()
    known = {"multipliers": [1.0, 0.0, 0.0], "violated": [1]}
    for most, gap, converged in ((1.0, 0.0, True), (2.0, problem.violations(losses)[1].item() / 4, False)):
        found = summary_of(problem, losses, max_multiplier=most, **known)
        assert (found.dual.gap, found.dual.converged) == (pytest.approx(gap), converged)
        words = "Not counted: layer 1, missed though λ is the most it may be, 1.00."
        assert (words in words_of(found)) == converged
