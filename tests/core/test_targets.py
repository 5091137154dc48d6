"""The geometric target and the price rule, against the equations written out by hand."""

import math

import pytest
import torch

from descend.core import DescentProblem, GeometricTarget, PrimalDual
from descend.errors import InputError

DELTA = 0.03


def bounds_by_hand(losses, reference, strength, first):
    """bound_l = min(step_l, line_l) for l > first, one layer at a time; and which of them it is, and 1 − b."""
    depth, last = len(losses) - 1, len(losses) - 1
    count = depth - first
    r = DELTA * reference[last] / max(reference[first] - (1 - DELTA) * reference[last], 2 * DELTA * reference[last])
    b = strength / 2 * (1 - r ** (1 / count))

    def both(f):
        floor = (1 - DELTA) * f[last]
        found = {}
        for layer in range(first + 1, depth + 1):
            step = floor + (1 - b) * (f[layer - 1] - floor)
            line = floor + max(
                r ** (strength * (layer - first) / count) * (f[first] - floor),
                (1 - b) ** (layer - last) * (f[last] - floor),
            )
            found[layer] = step, line
        return found

    there, here = both(reference), both(losses)
    kind = {layer: step <= line for layer, (step, line) in there.items()}
    return {layer: here[layer][0 if kind[layer] else 1] for layer in here}, kind, 1 - b


def stepped(*curves, **settings):
    """A dual that has taken a step on each of the losses of two layers."""
    dual = PrimalDual(DescentProblem(2, target=GeometricTarget()), optimizer="price", **settings)
    for curve in curves:
        dual.observe(torch.tensor(curve, dtype=torch.float64))
        dual.step()
    return dual


CURVES = [
    [8.0, 5.0, 3.0, 2.0, 1.0],
    [8.0, 1.2, 1.1, 1.05, 1.0],
    [1.0, 2.0, 0.5, 3.0, 1.0],
    [1.0, 1.0, 1.0, 1.0, 1.0],
    [0.7, 0.69, 0.68, 0.67, 0.70],
]


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("strength", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("curve", CURVES)
def test_bounds_by_hand(curve, strength, first):
    target = GeometricTarget(strength, first)
    losses = torch.tensor(curve, dtype=torch.float64)
    found = target.bounds(losses, losses)
    expected, _, _ = bounds_by_hand(curve, curve, strength, first)
    for layer, bound in expected.items():
        assert found[layer].item() == pytest.approx(bound, rel=1e-12)
    assert found[: first + 1].tolist() == curve[: first + 1]


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


@pytest.mark.parametrize(
    "curve", [[0.0, 0.0, 0.0], [2.0, 0.0, 50.0], [0.0, 3.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, -1e-9]]
)
def test_a_layer_of_loss_zero_is_no_error(curve):
    """The last of rounding: a divergence of two equal distributions may come out just below 0."""
    dual = stepped(*[curve] * 3, horizon=10)
    assert dual.multipliers.isfinite().all() and dual.weights.isfinite().all()
    single = torch.tensor(curve)
    assert dual.problem.merit(single).isfinite() and dual.problem.violations(single).isfinite().all()


@pytest.mark.parametrize("curve", [[0.1, -0.1, -0.3], [-1.5, 2.0, 1.0]])
def test_a_negative_loss_is_refused_by_its_layer(curve):
    lowest = min(range(3), key=curve.__getitem__)
    with pytest.raises(InputError, match=rf"above 0.*got {curve[lowest]} at layer {lowest}\..*Add a constant"):
        stepped(curve, horizon=10)


def test_the_merit_is_the_penalty_at_the_price_one():
    losses = torch.tensor([4.0, 5.0, 1.0], dtype=torch.float64)
    problem = DescentProblem(2, target=GeometricTarget(0.0))
    bounds, _, _ = bounds_by_hand(losses.tolist(), losses.tolist(), 0.0, 0)
    expected = 1.0 + 1.0 * (5.0 - bounds[1]) / 4.0 + max(0.0, 1.0 - bounds[2]) / 5.0
    assert problem.merit(losses).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "words"),
    [
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
        (lambda: DescentProblem(3, target=GeometricTarget()).weights(torch.ones(4)), "pass the losses"),
        (lambda: DescentProblem(2, 0.1, form="ratio").weights(torch.ones(3)), r"ratio.*pass the losses"),
        (lambda: DescentProblem(2, 0.1).weights(torch.ones(3), torch.ones(2)), r"losses.*\(3,\).*\(2,\)"),
        (lambda: stepped([2.0, 1.0, 0.5]), "horizon"),
        (lambda: PrimalDual(DescentProblem(2, 0.1), optimizer="price", options={"price": 0.0}), "price must be"),
        (
            lambda: PrimalDual(
                DescentProblem(2, 0.1), resilience=0.1, slack="explicit", slack_optimizer="price", slack_lr=0.1
            ),
            r"price.*slack",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
