"""The problem as a function of the layer losses: violations, weights, Lagrangian and its bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from descend.core import DescentProblem, PrimalDual
from descend.errors import InputError


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def reference_lagrangian(problem: DescentProblem, losses: list, lam: list) -> float:
    """Eq. (5), constraint by constraint, in plain floats."""
    value = sum(weight * loss for weight, loss in zip(problem.objective.tolist(), losses, strict=True))
    for layer in range(problem.first + 1, len(losses)):
        before, after, rate = losses[layer - 1], losses[layer], 1 - problem.alpha[layer - 1]
        gap = after - rate * before if problem.form == "difference" else after / before - rate
        value += lam[layer] * gap
    return value + (lam[0] * (losses[problem.first] - problem.cap) if problem.cap is not None else 0.0)


# --- by hand


@pytest.mark.parametrize(
    ("problem", "losses", "multipliers", "violations", "bounds", "weights"),
    [
        (
            DescentProblem(3, [0.1, 0.2, 0.5], 5.0, stop_gradient=False),
            *((10, 9.5, 7, 4), (0.25, 1, 2, 0.5), (5, 0.5, -0.6, 0.5), (5, 9, 7.6, 3.5)),
            (-0.9 + 0.25, 1 - 1.6, 2 - 0.25, 1 + 0.5),
        ),
        # By default no layer is paid for a higher loss.
        (
            DescentProblem(3, [0.1, 0.2, 0.5], 5.0),
            *((10, 9.5, 7, 4), (0.25, 1, 2, 0.5), (5, 0.5, -0.6, 0.5), (5, 9, 7.6, 3.5), (0.25, 1, 2, 1.5)),
        ),
        (
            DescentProblem(2, 0.5, form="ratio", stop_gradient=False),
            *((4, 2, 1), (0, 1, 2), (0, 0, 0), (0, 0.5, 0.5), (-2 / 16, 1 / 4 - 2 / 4, 1 + 2 / 2)),
        ),
        (
            DescentProblem(2, 0.1, form="ratio"),
            *((10, 9.5, 1.9), (0, 1, 2), (0, 0.05, -0.7), (0, 0.9, 0.9), (0, 1 / 10, 1 + 2 / 9.5)),
        ),
        (
            DescentProblem(3, 0.1, 2.0, first=2, stop_gradient=False),
            *((1, 100, 7, 6.5), (0.5, 3, 3, 2), (5, 0, 0, 0.2), (2, 0, 0, 6.3), (0, 0, 0.5 - 1.8, 3)),
        ),
        # The cap may bound another exit than the chain's first.
        (
            DescentProblem(3, 0.5, 2.0, cap_layer=1),
            *((1, 5, 2, 1), (0.25, 0, 0, 0), (3, 4.5, -0.5, 0), (2, 0.5, 2.5, 1), (0, 0.25, 0, 1)),
        ),
        # Without α there is no constraint, and no cap.
        (DescentProblem(3, cap=1.0), (1, 5, 9, 4), (7, 3, 2, 1), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1)),
        (
            DescentProblem(3, objective=[0, 0.5, 0.25, 0.25]),
            *((math.nan, 4, 8, 2), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0.5, 0.25, 0.25)),
        ),
        (
            DescentProblem(2, 0.5, objective=[1, 1, 2], stop_gradient=False),
            *((4, 2, 2), (0, 3, 4), (0, 0, 1), (0, 2, 1), (1 - 1.5, 1 + 3 - 2, 2 + 4)),
        ),
        # Losses may be negative where nothing divides by them.
        (DescentProblem(2, 0.5), (-2, -1, -1), (0, 1, 1), (0, 0, -0.5), (0, -1, -0.5), (0, 1, 2)),
        (
            DescentProblem(2, 0.5, first=1, form="ratio"),
            *((-2, 1, -0.5), (0, 0, 1), (0, 0, -1), (0, 0, 0.5), (0, 0, 1 + 1)),
        ),
        # f_0 = 0 where the input itself is read out without noise: with first=1 nothing divides by it.
        (
            DescentProblem(2, 0.1, first=1, form="ratio", stop_gradient=False),
            *((0, 2, 1.9), (0, 0, 1), (0, 0, 0.05), (0, 0, 0.9), (0, -1.9 / 4, 1 + 1 / 2)),
        ),
    ],
)
def test_violations_bounds_and_weights_by_hand(problem, losses, multipliers, violations, bounds, weights):
    """w_l = [l = L] + λ_l − (1−α_{l+1}) λ_{l+1}, and λ_cap where the chain starts."""
    at = tensor(*losses)
    torch.testing.assert_close(problem.violations(at), tensor(*violations))
    torch.testing.assert_close(problem.bounds(at), tensor(*bounds))
    torch.testing.assert_close(problem.weights(tensor(*multipliers), at), tensor(*weights))


def test_limits_are_none_where_no_constraint_is_in_force():
    assert DescentProblem(3, alpha=[0.1, 0.2, 0.5], cap=5.0).limits == [None, 0.9, 0.8, 0.5]
    assert DescentProblem(3, alpha=0.5, cap=2.0, first=2).limits == [None, None, None, 0.5]
    assert DescentProblem(2).limits == [None, None, None]


# --- laws


@st.composite
def problems(draw, form: str | None = None):
    depth = draw(st.integers(1, 6))
    number = st.floats(0.01, 0.99)
    alpha = draw(st.one_of(number, st.lists(number, min_size=depth, max_size=depth)))
    return DescentProblem(
        depth,
        alpha,
        draw(st.one_of(st.none(), st.floats(0.1, 10))),
        first=draw(st.integers(0, depth - 1)),
        form=form or draw(st.sampled_from(["difference", "ratio"])),
        stop_gradient=draw(st.booleans()),
        objective=draw(st.one_of(st.none(), st.lists(st.floats(0.1, 2), min_size=depth + 1, max_size=depth + 1))),
    )


@st.composite
def points(draw, form: str | None = None):
    """A problem, positive losses and multipliers ≥ 0."""
    problem = draw(problems(form))
    losses = draw(st.lists(st.floats(0.05, 20), min_size=problem.depth + 1, max_size=problem.depth + 1))
    lam = draw(st.lists(st.floats(0, 5), min_size=problem.depth + 1, max_size=problem.depth + 1))
    return problem, tensor(*losses), tensor(*lam)


@settings(max_examples=150, deadline=None)
@given(points())
def test_the_lagrangian_is_the_sum_over_its_constraints_with_the_weights_and_violations_as_gradients(point):
    problem, losses, lam = point
    for leaf in (losses, lam):
        leaf.requires_grad_()
    value = problem.lagrangian(losses, lam)
    value.backward()
    expected = reference_lagrangian(problem, losses.tolist(), lam.tolist())
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)
    weights = problem.weights(lam.detach(), losses.detach())
    torch.testing.assert_close(losses.grad, weights, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(lam.grad, problem.violations(losses.detach()), rtol=1e-10, atol=1e-10)
    assert (weights >= 0).all() or not problem.stop_gradient
    assert problem.lagrangian(losses.detach().float(), lam).dtype == torch.float32


@settings(max_examples=100, deadline=None)
@given(points("ratio"))
def test_both_forms_have_the_same_feasible_set_and_merit(point):
    problem, losses, _ = point
    other = DescentProblem(problem.depth, problem.alpha, problem.cap, first=problem.first)
    ratio, difference = problem.violations(losses), other.violations(losses)
    torch.testing.assert_close(ratio[1:] * losses[:-1], difference[1:], rtol=1e-9, atol=1e-9)
    assert torch.equal(ratio[0], difference[0])
    torch.testing.assert_close(problem.merit(losses), other.merit(losses), rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    points(),
    st.sampled_from(["sgd", "adam", "nupi"]),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.lists(st.floats(-2, 2), min_size=1, max_size=8),
)
def test_multipliers_stay_above_zero_where_something_is_asked_and_fall_where_it_holds(point, rule, resilience, powers):
    problem, losses, _ = point
    dual = PrimalDual(problem, 0.3, rule, resilience)
    for power in powers:  # of the losses, whose chain falls or rises with it
        before, at = dual.multipliers, losses**power
        dual.observe(at)
        dual.step()
        values = dual.multipliers
        assert (values >= 0).all() and values.isfinite().all() and (dual.slack >= 0).all()
        assert not values[~problem.in_force].any()
        holds = problem.violations(at) <= 0
        assert rule != "sgd" or (values[holds] <= before[holds]).all()


STEPS = [0.1, 0.2, 0.5]


@pytest.mark.parametrize(
    ("settings", "merit"),
    [
        ({"alpha": STEPS, "cap": 5.0}, 4 + 5 + 0.5 + 0.5),
        ({"alpha": STEPS, "cap": 5.0, "first": 1}, 4 + 4.5 + 0.5),
        ({"alpha": 0.01}, 4),  # feasible
        # Losses below the cap are no credit, at the first exit or at another one; at the cap nothing is missed.
        ({"alpha": 0.01, "cap": 12.0}, 4),
        ({"alpha": 0.01, "cap": 10.0}, 4),
        ({"alpha": 0.01, "cap": 8.0, "cap_layer": 2}, 4),
        ({"alpha": 0.01, "cap": 6.0, "cap_layer": 3}, 4),
        ({"alpha": STEPS, "cap": 12.0}, 4 + 0.5 + 0.5),
        ({"objective": [1, 1, 1, 1]}, 4),  # no constraints
    ],
)
def test_merit_by_hand(settings, merit):
    assert DescentProblem(3, **settings).merit(tensor(10, 9.5, 7, 4)).item() == merit


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.25, [0.25] * 3),
        (np.float32(0.25), [0.25] * 3),
        (np.float64(0.25), [0.25] * 3),
        (torch.tensor(0.25), [0.25] * 3),
        (np.array(0.25), [0.25] * 3),
        ([0.25, 0.5, 0.125], [0.25, 0.5, 0.125]),
        ((np.float32(0.25), torch.tensor(0.5), 0.125), [0.25, 0.5, 0.125]),
        (np.array([0.25, 0.5, 0.125]), [0.25, 0.5, 0.125]),
        (torch.tensor([0.25, 0.5, 0.125]), [0.25, 0.5, 0.125]),
    ],
    ids=repr,
)
def test_alpha_may_be_any_kind_of_number(alpha, expected):
    found = DescentProblem(3, alpha).alpha
    assert found == expected and {type(each) for each in found} == {float}


# --- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 0}, r"depth.*got 0"),
        ({"alpha": 0.0}, r"alpha.*0\.0"),
        ({"alpha": 1}, r"alpha.*1\.0"),
        ({"alpha": -0.1}, r"alpha.*-0\.1"),
        ({"alpha": math.nan}, r"alpha.*nan"),
        ({"alpha": [0.1, 0.2, 1.5]}, r"alpha.*1\.5"),
        ({"alpha": [0.1, 0.2]}, r"alpha.*\(3\).*2"),
        *(({"alpha": other}, r"alpha.*got ") for other in ("0.1", ["0.1"] * 3, [[0.1], [0.2], [0.3]], 1j)),
        ({"cap": 0.0}, r"cap.*0\.0"),
        ({"cap": -1.0}, r"cap.*-1\.0"),
        ({"cap": math.nan}, r"cap.*nan"),
        ({"first": 3}, r"first.*2.*got 3"),
        ({"first": -1}, r"first.*2.*got -1"),
        ({"objective": [1.0, 1.0]}, r"4 weights.*\[1\.0, 1\.0\]"),
        ({"objective": [1, 0, 0, -1]}, r"weights of at least 0"),
        ({"objective": [0, 0, 0, 0]}, r"not all 0"),
        ({"objective": [0, 0, 0, math.nan]}, r"weights of at least 0"),
        ({"form": "quotient"}, r"form.*'difference'.*'ratio'.*'quotient'"),
    ],
)
def test_arguments_outside_their_range(arguments, message):
    with pytest.raises(InputError, match=message):
        DescentProblem(**{"depth": 3, "alpha": 0.1} | arguments)


@pytest.mark.parametrize(
    "losses", [torch.ones(3), torch.ones(5), torch.ones(4, 1), torch.ones(()), [torch.tensor(1.0)] * 4]
)
@pytest.mark.parametrize("read", ["violations", "bounds", "goal", "merit", "lagrangian", "weights"])
def test_losses_and_multipliers_of_another_shape(losses, read):
    """Those in a list are told to be stacked."""
    problem, name = DescentProblem(3, 0.1), "multipliers" if read == "weights" else "losses"
    got = (
        "one tensor.*list.*torch.stack"
        if isinstance(losses, list)
        else rf"\(4,\).*\({', '.join(map(str, losses.shape))}"
    )
    with pytest.raises(InputError, match=f"{name}.*{got}"):
        getattr(problem, read)(*([losses, torch.ones(4)] if read == "lagrangian" else [losses]))
    with pytest.raises(InputError, match=f"multipliers.*{got}"):
        problem.lagrangian(torch.ones(4), losses)
