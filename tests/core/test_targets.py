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


@pytest.mark.parametrize("curve", CURVES[:3])
def test_bounds_ask_every_layer_to_lower_the_loss(curve):
    losses = torch.tensor(curve, dtype=torch.float64)
    above = losses[:-1] > (1 - DELTA) * losses[-1]
    assert (GeometricTarget().bounds(losses, losses)[1:] < losses[:-1])[above].all()


def test_a_geometric_line_meets_its_own_bounds():
    """f_l = f* + (f_0 − f*) r^(l/L) with f* = (1 − δ) f_L falls twice as fast as the steps ask, and at s ≤ 1 on the
    line or below it."""
    depth, last = 6, 1.0
    floor = (1 - DELTA) * last
    share = (DELTA * last / (9.0 - floor)) ** (1 / depth)
    losses = torch.tensor([floor + (9.0 - floor) * share**layer for layer in range(depth + 1)], dtype=torch.float64)
    for strength in (0.0, 0.5, 1.0):
        problem = DescentProblem(depth, target=GeometricTarget(strength))
        assert problem.violations(losses).max() <= 1e-12
    assert DescentProblem(depth, target=GeometricTarget()).violations(losses.flip(0)).max() > 0


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("strength", [0.2, 0.7])
def test_three_steps_by_hand(first, strength):
    """PrimalDual's weights and multipliers against a plain loop of the rule's equations."""
    depth, horizon, price, epsilon, decay = 4, 5000, 1.0, 0.002, 0.95
    problem = DescentProblem(depth, target=GeometricTarget(strength, first))
    dual = PrimalDual(problem, optimizer="price", horizon=horizon)
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


def test_the_unit_of_the_losses_does_not_matter():
    """Losses × 1000 leave multipliers and weights as they are, to 1e-9."""
    duals = [PrimalDual(DescentProblem(5, target=GeometricTarget()), optimizer="price", horizon=100) for _ in range(2)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        losses = torch.rand(6, generator=generator, dtype=torch.float64) + torch.linspace(2, 0.3, 6)
        for dual, unit in zip(duals, (1.0, 1000.0), strict=True):
            dual.observe(losses * unit)
            dual.step()
        torch.testing.assert_close(duals[0].multipliers, duals[1].multipliers, rtol=0, atol=1e-9)
        torch.testing.assert_close(duals[0].weights, duals[1].weights, rtol=1e-9, atol=1e-9)
    assert duals[0].multipliers[1:].min() < 1


def test_multipliers_stay_at_the_price_where_nothing_helps_and_leave_it_where_a_constraint_holds():
    problem = DescentProblem(2, target=GeometricTarget(0.0))
    dual = PrimalDual(problem, optimizer="price", horizon=20, options={"price": 0.5})
    assert dual.multipliers.tolist() == [0, 0.5, 0.5]
    for _ in range(20):
        dual.observe(torch.tensor([4.0, 5.0, 1.0]))  # layer 1 raises the loss, layer 2 lowers it by far
        dual.step()
    assert dual.multipliers.tolist() == [0, 0.5, 0.0]


def test_a_toy_problem_ends_with_its_constraints_met():
    """Two parameters, each the loss of a layer; the objective alone would leave the first where it is."""
    target, horizon = GeometricTarget(1.0), 400
    problem = DescentProblem(2, target=target)
    parameters = torch.tensor([3.0, 1.5], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([parameters], lr=0.02)
    dual = PrimalDual(problem, optimizer="price", horizon=horizon)
    for _ in range(horizon):
        losses = torch.cat([parameters.new_tensor([4.0]), parameters.square() + 1])
        optimizer.zero_grad()
        dual.lagrangian(losses).backward()
        optimizer.step()
        dual.observe(losses.detach())
        dual.step()
    assert (problem.violations(losses.detach()) <= 0.01 * problem.bounds(losses.detach())).all()
    assert parameters[0].item() < 1.5


@pytest.mark.parametrize(
    "curve", [[0.0, 0.0, 0.0], [2.0, 0.0, 50.0], [0.0, 3.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, -1e-9]]
)
def test_a_layer_of_loss_zero_is_no_error(curve):
    """The last of rounding: a divergence of two equal distributions may come out just below 0."""
    problem = DescentProblem(2, target=GeometricTarget())
    dual = PrimalDual(problem, optimizer="price", horizon=10)
    for _ in range(3):
        dual.observe(torch.tensor(curve, dtype=torch.float64))
        dual.step()
        assert dual.multipliers.isfinite().all() and dual.weights.isfinite().all()
    single = torch.tensor(curve)
    assert problem.merit(single).isfinite() and problem.violations(single).isfinite().all()


@pytest.mark.parametrize("curve", [[0.1, -0.1, -0.3], [-1.5, 2.0, 1.0]])
def test_a_negative_loss_is_refused_by_its_layer_and_moves_nothing(curve):
    dual = PrimalDual(DescentProblem(2, target=GeometricTarget()), optimizer="price", horizon=10)
    before = dual.multipliers
    dual.observe(torch.tensor(curve))
    lowest = min(range(3), key=curve.__getitem__)
    with pytest.raises(InputError, match=rf"above 0.*got {curve[lowest]} at layer {lowest}\..*Add a constant"):
        dual.step()
    assert torch.equal(dual.multipliers, before)


def test_the_step_is_relative_to_the_number_of_dual_steps():
    """Twice as many steps, each half as long; and a dual step after every second primal step counts as one."""
    lams = []
    for horizon, every in ((10, 1), (20, 1), (20, 2)):
        dual = PrimalDual(DescentProblem(1, target=GeometricTarget()), optimizer="price", horizon=horizon, every=every)
        for _ in range(horizon):
            dual.observe(torch.tensor([1.0, 0.9995]))
            dual.step()
        lams.append(dual.multipliers[1].item())
    assert lams[0] == pytest.approx(lams[1]) == pytest.approx(lams[2])


def test_explicit_slack_beside_the_price_rule_goes_to_its_optimum():
    """Where λ stays at the price p, u goes to ρp; the slack never uses the price rule itself."""
    problem = DescentProblem(1, target=GeometricTarget())
    dual = PrimalDual(problem, None, "price", 0.1, slack="explicit", horizon=1000, slack_lr=0.05)
    for _ in range(200):
        dual.observe(torch.tensor([1.0, 2.0]))  # the layer doubles the loss
        dual.step()
    assert dual.multipliers.tolist() == [0, 1.0] and dual.slack[1].item() == pytest.approx(0.1, rel=1e-6)


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


def test_the_price_rule_asks_for_the_length_of_the_run():
    dual = PrimalDual(DescentProblem(1, target=GeometricTarget()), optimizer="price")
    dual.observe(torch.tensor([1.0, 0.5]))
    with pytest.raises(InputError, match="horizon"):
        dual.step()
    dual.plan(10)
    dual.observe(torch.tensor([1.0, 0.5]))
    assert dual.step() and dual.multipliers[1].item() == 0
