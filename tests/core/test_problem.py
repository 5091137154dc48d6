"""The problem and its targets as functions of the layer losses, against equations by hand; and their bad input."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from descend import DescentProblem, GeometricTarget, InputError, NearLast, NoWorse, PrimalDual
from tests.support.by_hand import bounds_by_hand


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
            DescentProblem(3, np.array([0.1, 0.2, 0.5]), 5.0, stop_gradient=False),
            *((10, 9.5, 7, 4), (0.25, 1, 2, 0.5), (5, 0.5, -0.6, 0.5), (5, 9, 7.6, 3.5)),
            (-0.9 + 0.25, 1 - 1.6, 2 - 0.25, 1 + 0.5),
        ),
        # By default no layer is paid for a higher loss.
        (
            DescentProblem(3, [0.1, 0.2, 0.5], 5.0),
            *((10, 9.5, 7, 4), (0.25, 1, 2, 0.5), (5, 0.5, -0.6, 0.5), (5, 9, 7.6, 3.5), (0.25, 1, 2, 1.5)),
        ),
        (
            DescentProblem(2, np.float32(0.5), form="ratio", stop_gradient=False),
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
            DescentProblem(3, torch.tensor(0.5), 2.0, cap_layer=1),
            *((1, 5, 2, 1), (0.25, 0, 0, 0), (3, 4.5, -0.5, 0), (2, 0.5, 2.5, 1), (0, 0.25, 0, 1)),
        ),
        # Without α there is no constraint, and no cap.
        (DescentProblem(3, cap=1.0), (1, 5, 9, 4), (7, 3, 2, 1), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1)),
        (
            DescentProblem(3, objective=[0, 0.5, 0.25, 0.25]),
            *((math.nan, 4, 8, 2), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0.5, 0.25, 0.25)),
        ),
        (
            DescentProblem(2, torch.tensor([0.5, 0.5]), objective=[1, 1, 2], stop_gradient=False),
            *((4, 2, 2), (0, 3, 4), (0, 0, 1), (0, 2, 1), (1 - 1.5, 1 + 3 - 2, 2 + 4)),
        ),
        # Losses may be negative where nothing divides by them.
        (DescentProblem(2, 0.5), (-2, -1, -1), (0, 1, 1), (0, 0, -0.5), (0, -1, -0.5), (0, 1, 2)),
        (
            DescentProblem(2, 0.5, first=1, form="ratio"),
            *((-2, 1, -0.5), (0, 0, 1), (0, 0, -1), (0, 0, 0.5), (0, 0, 1 + 1)),
        ),
        # No worse than layer 1: the objective is its loss, and only later layers have constraints.
        (
            DescentProblem(3, target=NoWorse(1), objective=[0, 1, 0, 0]),
            *((8, 2, 3, 1), (0, 0, 0.5, 4), (0, 0, 1, -1), (0, 0, 2, 2), (0, 1, 0.5, 4)),
        ),
        # The same with a fall by a quarter at each layer up to 2.
        (
            DescentProblem(3, target=NoWorse(2, alpha=0.25), objective=[0, 0, 1, 0]),
            *((8, 4, 4, 5), (0, 3, 2, 1), (0, -2, 1, 1), (0, 6, 3, 4), (0, 3, 3, 1)),
        ),
        # Within a quarter of the last loss: neither the embedding nor the last layer has a constraint.
        (
            DescentProblem(3, target=NearLast(0.25)),
            *((9, 6, 3, 4), (0, 2, 0.5, 0), (0, 1, -2, 0), (0, 5, 5, 0), (0, 2 / 3.5, 0.5 / 3.5, 1 / 3.5)),
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
    assert DescentProblem(4, target=NoWorse(2, alpha=0.25)).limits == [None, 0.75, 0.75, None, None]
    assert DescentProblem(2, target=NoWorse(1)).limits == [None] * 3
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
    objective = problem.objective.tolist()
    other = DescentProblem(problem.depth, problem.alpha, problem.cap, first=problem.first, objective=objective)
    ratio, difference = problem.violations(losses), other.violations(losses)
    torch.testing.assert_close(ratio[1:] * losses[:-1], difference[1:], rtol=1e-9, atol=1e-9)
    assert torch.equal(ratio[0], difference[0])
    torch.testing.assert_close(problem.merit(losses), other.merit(losses), rtol=1e-9, atol=1e-9)


STEPS = [0.1, 0.2, 0.5]


LOSSES = (10, 9.5, 7, 4)


@pytest.mark.parametrize(
    ("losses", "settings", "merit"),
    [
        (LOSSES, {"alpha": STEPS, "cap": 5.0}, 4 + 5 + 0.5 + 0.5),
        (LOSSES, {"alpha": STEPS, "cap": 5.0, "first": 1}, 4 + 4.5 + 0.5),
        (LOSSES, {"alpha": 0.01}, 4),  # feasible
        # Losses below the cap are no credit, at the first exit or at another one; at the cap nothing is missed.
        (LOSSES, {"alpha": 0.01, "cap": 12.0}, 4),
        (LOSSES, {"alpha": 0.01, "cap": 10.0}, 4),
        (LOSSES, {"alpha": 0.01, "cap": 8.0, "cap_layer": 0}, 4 + 2),
        (LOSSES, {"alpha": 0.01, "cap": 8.0, "cap_layer": 2}, 4),
        (LOSSES, {"alpha": 0.01, "cap": 6.0, "cap_layer": 3}, 4),
        (LOSSES, {"alpha": STEPS, "cap": 12.0}, 4 + 0.5 + 0.5),
        (LOSSES, {"objective": [1, 1, 1, 1]}, 10 + 9.5 + 7 + 4),  # no constraints
        # Layer 1 is the objective, and layer 3 is 2 worse.
        ((10, 4, 3, 6), {"target": NoWorse(1), "objective": [0, 1, 0, 0]}, 4 + 2),
        ((10, 4, 3, 4), {"target": NoWorse(1), "objective": [0, 1, 0, 0]}, 4),
        # Layers 1 and 2 are 2 and ½ above 1¼ times the last loss.
        ((9, 7, 5.5, 4), {"target": NearLast(0.25)}, 4 + 2 + 0.5),
        # The penalty at the price 1: layer 1 misses its bound 4 by 1, a quarter of the loss before it.
        ((4, 5, 1), {"target": GeometricTarget(0.0)}, 1 + 1 / 4),
    ],
)
def test_merit_by_hand(losses, settings, merit):
    assert DescentProblem(len(losses) - 1, **settings).merit(tensor(*losses)).item() == merit


# --- the geometric target and the price rule


def stepped(*curves, **settings):
    """A dual that has taken a step on each of the losses of two layers."""
    dual = PrimalDual(DescentProblem(2, target=GeometricTarget()), optimizer="price", **settings)
    for curve in curves:
        dual.observe(torch.tensor(curve, dtype=torch.float64))
        dual.step()
    return dual


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("strength", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize(
    "curve",
    [
        [8.0, 5.0, 3.0, 2.0, 1.0],
        [8.0, 1.2, 1.1, 1.05, 1.0],
        [1.0, 2.0, 0.5, 3.0, 1.0],
        [1.0, 1.0, 1.0, 1.0, 1.0],
        [0.7, 0.69, 0.68, 0.67, 0.70],
    ],
)
def test_bounds_by_hand(curve, strength, first):
    target = GeometricTarget(strength, first)
    losses = torch.tensor(curve, dtype=torch.float64)
    found = target.bounds(losses)
    expected, _, _ = bounds_by_hand(curve, curve, strength, first)
    assert found[first + 1 :].tolist() == pytest.approx([*expected.values()], rel=1e-12)
    assert found[: first + 1].tolist() == curve[: first + 1]


@given(st.lists(st.floats(0.5, 9), min_size=3, max_size=6), st.sampled_from([torch.float32, torch.float64]))
def test_at_strength_1_the_last_bound_is_the_line_from_the_first_exit(above, dtype):
    """Rounding does not choose the line from the last layer, which would ask f_L ≤ f_L: nothing."""
    losses = torch.tensor([9.5, *above[1:], 9.0, 0.5], dtype=dtype)
    target, lower = GeometricTarget(1.0), losses.clone()
    lower[0] -= 1
    bounds = [(each - target.violations_at(each, losses))[-1].item() for each in (losses, lower)]
    r = 0.03 * 0.5 / (9.5 - 0.97 * 0.5)
    assert bounds[0] - bounds[1] == pytest.approx(r, rel=1e-3)


def test_the_weights_of_a_normalized_target_add_up_to_the_objective():
    problem = DescentProblem(3, target=GeometricTarget(), objective=[0, 0.5, 0, 2])
    weights = problem.weights(tensor(0, 1, 2, 3), tensor(4, 3, 2, 1))
    assert weights.sum().item() == pytest.approx(2.5)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("strength", [0.2, 0.7])
@pytest.mark.parametrize("price", [1.0, 0.5])
def test_every_step_is_that_by_hand(first, strength, price):
    """PrimalDual's weights and multipliers against a plain loop of the rule's equations."""
    depth, horizon, epsilon, decay = 4, 5000, 0.002, 0.95
    problem = DescentProblem(depth, target=GeometricTarget(strength, first))
    dual = PrimalDual(problem, optimizer="price", horizon=horizon, options={"price": price})
    generator = torch.Generator().manual_seed(1)
    lam = {layer: price for layer in range(first + 1, depth + 1)}
    mean = [1.0] * (depth + 1)
    for step in range(4):
        _, kind, rate = bounds_by_hand(mean, mean, strength, first)
        expected = [0.0] * depth + [1.0]
        for layer, value in lam.items():
            expected[layer] += value * mean[depth] / mean[layer - 1]
        for layer in lam:
            if kind[layer]:
                expected[layer - 1] -= rate * lam[layer] * mean[depth] / mean[layer - 1]
        expected = [max(0.0, value) for value in expected]
        expected = [value / sum(expected) for value in expected]  # as much in all as plain training's one
        assert dual.weights.tolist() == pytest.approx(expected, rel=1e-12)
        losses = (torch.rand(depth + 1, generator=generator, dtype=torch.float64) + 0.5).tolist()
        dual.observe(torch.tensor(losses, dtype=torch.float64))
        dual.step()
        mean = losses if step == 0 else [decay * old + (1 - decay) * new for old, new in zip(mean, losses, strict=True)]
        bounds, _, _ = bounds_by_hand(losses, mean, strength, first)
        for layer in lam:
            moved = lam[layer] + (losses[layer] - bounds[layer]) / (mean[layer - 1] * epsilon * horizon)
            lam[layer] = min(max(moved, 0.0), price)
        found = dual.multipliers.tolist()
        assert found == pytest.approx([lam.get(layer, 0.0) for layer in range(depth + 1)], rel=1e-9, abs=1e-12)
    assert any(0 < value < price for value in lam.values())


@pytest.mark.parametrize("first", [0, 1])
def test_every_step_near_the_last_loss_is_that_by_hand(first):
    """By the price rule, with violations relative to the running mean of the last loss."""
    depth, horizon, epsilon, decay, tau = 4, 5000, 0.002, 0.95, 0.25
    dual = PrimalDual(DescentProblem(depth, target=NearLast(tau, first)), optimizer="price", horizon=horizon)
    generator = torch.Generator().manual_seed(1)
    lam, last = dict.fromkeys(range(first + 1, depth), 1.0), None
    for _ in range(4):
        share = 1 + sum(lam.values())
        weights = [lam.get(layer, 0.0) / share for layer in range(depth)] + [1 / share]
        assert dual.weights.tolist() == pytest.approx(weights, rel=1e-12)
        losses = (torch.rand(depth + 1, generator=generator, dtype=torch.float64) + 0.5).tolist()
        dual.step(tensor(*losses))
        last = losses[-1] if last is None else decay * last + (1 - decay) * losses[-1]
        for layer in lam:
            moved = lam[layer] + (losses[layer] - (1 + tau) * losses[-1]) / (last * epsilon * horizon)
            lam[layer] = min(max(moved, 0.0), 1.0)
        assert dual.multipliers.tolist() == pytest.approx([lam.get(at, 0.0) for at in range(depth + 1)], rel=1e-9)
    assert any(0 < value < 1 for value in lam.values())


def test_every_step_of_layers_after_the_one_that_counts_is_that_by_hand():
    """By projected ascent; a violation is relative to f_K after K = 2, and to the loss before up to it."""
    dual = PrimalDual(DescentProblem(4, target=NoWorse(2, alpha=0.25), objective=[0, 0, 1, 0, 0]), lr=0.1)
    lam = [0.0] * 5
    for losses in ([8.0, 7.0, 4.0, 5.0, 3.0], [8.0, 4.0, 3.5, 3.0, 4.9], [9.0, 5.0, 2.0, 2.5, 2.0]):
        dual.step(tensor(*losses))
        bounds = [math.nan, 0.75 * losses[0], 0.75 * losses[1], losses[2], losses[2]]
        units = [math.nan, losses[0], losses[1], losses[2], losses[2]]
        for layer in range(1, 5):
            lam[layer] = max(0.0, lam[layer] + 0.1 * (losses[layer] - bounds[layer]) / units[layer])
        assert dual.multipliers.tolist() == pytest.approx(lam, rel=1e-12)
        assert dual.weights.tolist() == pytest.approx([0, lam[1], 1 + lam[2], lam[3], lam[4]], rel=1e-12)
    assert lam[1:3] == [0, 0] and min(lam[3:]) > 0.03


TARGETS = [GeometricTarget(strength, first) for strength in (0.0, 0.2, 0.7, 1.0) for first in (0, 2)]
TARGETS += [NoWorse(1), NoWorse(3, alpha=0.25), NearLast(0.1), NearLast(0.3, first=2)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.name} {target.first}")
@pytest.mark.parametrize("seed", range(3))
def test_pieces_join_to_the_violations_and_vary_as_they_do(target, seed):
    """Verdicts take how a violation varies with both sides of its constraint; here by differences."""
    problem = DescentProblem(4, target=target, objective=[1.0] * 5)
    losses = torch.rand(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 4 + 0.5
    joined = problem.join(problem.pieces(losses))
    torch.testing.assert_close(joined.where(problem.in_force, 0.0), problem.violations(losses), rtol=0, atol=1e-12)
    slopes = torch.autograd.functional.jacobian(lambda at: problem.join(problem.pieces(at)), losses)
    width = 1e-6 * torch.eye(5, dtype=torch.float64)
    differences = [(problem.violations(losses + each) - problem.violations(losses - each)) / 2e-6 for each in width]
    expected = torch.stack(differences, 1)
    torch.testing.assert_close(slopes[problem.in_force], expected[problem.in_force], rtol=1e-6, atol=1e-7)
    assert expected.abs().max() > 0.5


@pytest.mark.parametrize(
    "curve", [[0.0, 0.0, 0.0], [2.0, 0.0, 50.0], [0.0, 3.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, -1e-9]]
)
def test_a_layer_of_loss_zero_is_no_error(curve):
    """The last of rounding: a divergence of two equal distributions may come out just below 0."""
    dual = stepped(*[curve] * 3, horizon=10)
    assert dual.multipliers.isfinite().all() and dual.weights.isfinite().all()
    single = torch.tensor(curve)
    assert dual.problem.merit(single).isfinite() and dual.problem.violations(single).isfinite().all()


# --- bad input

ARGUMENTS = [
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
]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *((partial(DescentProblem, **{"depth": 3, "alpha": 0.1} | given), words) for given, words in ARGUMENTS),
        (lambda: NoWorse(0), "after must be the layer K .* at least 1; got 0"),
        (lambda: NearLast(-0.1), "tau must be the share by which a loss may be above the last one, .* got -0.1"),
        (lambda: NearLast(0.1, first=-1), "first must be at least 0; got -1"),
        (lambda: NoWorse(True), "after must be the layer K"),
        (lambda: NoWorse(2, alpha=0.1, first=2), "first must be from 0 to after - 1; got 2"),
        (lambda: NoWorse(2, alpha=1.0), r"alpha must lie strictly between 0 and 1: .* got 1\.0\."),
        (lambda: GeometricTarget(1.5), "strength must lie in"),
        (lambda: GeometricTarget(math.nan), "strength must lie in"),
        (lambda: GeometricTarget(margin=0.7), "margin must lie in"),
        (
            lambda: PrimalDual(DescentProblem(3, target=GeometricTarget()), optimizer="price", options={"start": 2.0}),
            r"start.*1.*got 2",
        ),
        (lambda: DescentProblem(3, 0.1, target=GeometricTarget()), "leave out alpha and cap"),
        (
            lambda: DescentProblem(3, first=0, target=GeometricTarget(first=1)),
            r"first.*1.*got 0",
        ),
        (lambda: DescentProblem(3, 0.1, 2.0, cap_layer=4), r"cap_layer.*3.*got 4"),
        (lambda: DescentProblem(2, 0.1).weights(torch.ones(3), torch.ones(2)), r"losses.*\(3,\).*\(2,\)"),
        (lambda: DescentProblem(2, 0.1).lagrangian(torch.ones(2), torch.ones(3)), r"losses.*\(3,\).*\(2,\)"),
        (lambda: PrimalDual(DescentProblem(2, 0.1)).step(), "no losses to step on"),
        (lambda: stepped([2.0, 1.0, 0.5]), "horizon"),
        (lambda: PrimalDual(DescentProblem(2, 0.1), optimizer="price", options={"price": 0.0}), "price must be"),
        (
            lambda: PrimalDual(
                DescentProblem(2, 0.1), resilience=0.1, slack="explicit", slack_optimizer="price", slack_lr=0.1
            ),
            r"price.*slack",
        ),
        (lambda: stepped([0.1, -0.1, -0.3], horizon=10), r"above 0.*got -0.3 at layer 2\..*Add a constant"),
        (lambda: stepped([-1.5, 2.0, 1.0], horizon=10), r"above 0.*got -1.5 at layer 0\..*Add a constant"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


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
        getattr(problem, read)(*([losses, torch.ones(4)] if read in ("lagrangian", "weights") else [losses]))
    with pytest.raises(InputError, match=f"multipliers.*{got}"):
        problem.lagrangian(torch.ones(4), losses)
