"""PrimalDual around a training loop: when the multipliers move, what is saved, bad input."""

import json
import math
from functools import partial

import pytest
import torch

from descend.core import DescentProblem, PrimalDual
from descend.errors import InputError, NonFiniteLossError

packed = partial(json.dumps, default=torch.Tensor.tolist)

VARIANTS = [
    (optimizer, slack, form)
    for optimizer in ("sgd", "adam", "nupi")
    for slack in ("implicit", "explicit")
    for form in ("difference", "ratio")
]


def stream(steps: int, depth: int = 3, seed: int = 0) -> list[tuple[torch.Tensor, float]]:
    """Batches of (mean losses, count) whose chains rise and fall: λ climbs, falls and is projected."""
    rng = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 9, (steps,), generator=rng)
    losses = torch.rand(steps, depth + 1, generator=rng) + torch.linspace(1, 0.5, depth + 1)
    return [(row, float(count)) for row, count in zip(losses, counts, strict=True)]


def state_of(dual: PrimalDual) -> torch.Tensor:
    """All that can be seen of λ, u and the weights."""
    return torch.cat([dual.multipliers, dual.slack, dual.weights])


def advance(dual: PrimalDual, batches) -> list[torch.Tensor]:
    states = []
    for losses, count in batches:
        dual.observe(losses * count, count)
        dual.step()
        states.append(state_of(dual))
    return states


# --- when the multipliers move


def test_warmup_is_the_objective_alone_and_leaves_no_trace():
    problem = DescentProblem(3, 0.1, 1.0, objective=[0, 1, 0, 3])
    warm, cold = PrimalDual(problem, warmup=5, every=2), PrimalDual(problem, every=2)
    losses = torch.rand(4).requires_grad_()
    for count, (batch, size) in enumerate(stream(5, seed=8)):
        assert not warm.warm and warm.weights.tolist() == [0, 1, 0, 3]
        assert torch.equal(warm.lagrangian(losses), losses[1] + 3 * losses[3])
        assert warm.lagrangian(torch.tensor([math.nan, 2.0, math.inf, 5.0])) == 17, "no other layer is touched"
        warm.observe(batch * size, size)
        assert warm.step() is False and warm.steps == count + 1
        assert not warm.multipliers.any()
    assert warm.warm
    # What was observed during warm-up is forgotten, and the schedule counts from its end.
    for one, other in zip(advance(warm, stream(7)), advance(cold, stream(7)), strict=True):
        assert torch.equal(one, other)
    assert warm.multipliers.any()


@pytest.mark.parametrize(("problem", "inner"), [({}, False), ({"alpha": 0.1}, True), ({"objective": [1, 0, 1]}, True)])
def test_inner_losses_are_needed_where_something_is_asked_of_them(problem, inner):
    warm = PrimalDual(DescentProblem(2, **problem), warmup=1)
    assert warm.inner == ("objective" in problem)
    warm.observe(torch.ones(3))
    warm.step()
    assert warm.inner == inner


@pytest.mark.parametrize("form", ["difference", "ratio"])
def test_losses_may_live_on_another_device(form):
    """The multipliers stay on the host. The meta device, which does not mix either, stands in for a GPU."""
    dual = PrimalDual(DescentProblem(3, 0.1, 0.5, form=form, stop_gradient=True))
    advance(dual, stream(3))
    losses = torch.ones(4, device="meta", requires_grad=True)
    value = dual.lagrangian(losses)
    value.backward()
    assert value.device.type == losses.grad.device.type == "meta" and value.dtype == torch.float32


# --- save and resume


@pytest.mark.parametrize("slack", ["implicit", "explicit"])
def test_a_held_snapshot_does_not_change(slack):
    """The best feasible state is held in memory while the run continues, and may be loaded more than once.

    Another warm-up given to the resumed one neither takes the constraints away nor moves their schedule.
    """
    dual, other = (
        PrimalDual(DescentProblem(3, 0.1, 0.8), 0.1, "adam", 0.2, slack=slack, every=2, warmup=warmup)
        for warmup in (1, 40)
    )
    advance(dual, stream(5))
    snapshot = dual.state_dict()
    copy = packed(snapshot)
    for handed_out in (dual.multipliers, dual.slack, dual.weights):
        handed_out.fill_(7.0)
    advance(dual, stream(20, seed=1))
    assert packed(snapshot) == copy != packed(dual.state_dict())
    other.load_state_dict(snapshot)
    assert other.warm
    advance(other, stream(20, seed=1))
    assert packed(snapshot) == copy and torch.equal(state_of(other), state_of(dual))


KINDS = [{"optimizer": "sgd"}, {"optimizer": "nupi"}, {"slack": "explicit"}]


@pytest.mark.parametrize(
    ("saved", "loaded", "words"),
    [
        ({"depth": 5}, {}, r"of 5 layers.*of 3\."),
        *((kind, {}, r"optimizer=.*optimizer='adam', slack='implicit'") for kind in KINDS),
        *(({}, kind, r"optimizer='adam', slack='implicit'.*optimizer=") for kind in KINDS),
        (KINDS[2] | {"slack_optimizer": "adam"}, KINDS[2], r"slack_optimizer='adam'.*slack_optimizer='sgd'"),
        # λ_1 of a chain from layer 0 would otherwise be at work where the chain starts at layer 2.
        ({}, {"first": 2}, r"multipliers constrain \[1, 2, 3\].*this problem \[3\]"),
        ({"first": 2}, {}, r"multipliers constrain \[3\].*this problem \[1, 2, 3\]"),
        ({"cap": 1.0}, {}, r"multipliers constrain \[0, 1, 2, 3\].*0 is the cap.*this problem \[1, 2, 3\]"),
        ({}, {"cap": 1.0}, r"multipliers constrain \[1, 2, 3\].*this problem \[0, 1, 2, 3\]"),
    ],
)
def test_the_state_of_another_dual_is_refused_and_nothing_moves(saved, loaded, words):
    def build(depth=3, first=0, cap=None, **arguments) -> PrimalDual:
        return PrimalDual(DescentProblem(depth, 0.1, cap, first=first), resilience=0.1, **arguments)

    before, dual = build(**saved), build(**loaded)
    for each in (before, dual):
        advance(each, stream(3, each.problem.depth))
    kept = packed(dual.state_dict())
    with pytest.raises(InputError, match=words):
        dual.load_state_dict(before.state_dict())
    assert packed(dual.state_dict()) == kept


# --- losses that are not numbers


@pytest.mark.parametrize(("optimizer", "slack", "form"), VARIANTS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_shown_and_moves_nothing(optimizer, slack, form, bad):
    problem = DescentProblem(3, 0.1, 0.8, form=form)
    dual, spared = (PrimalDual(problem, 0.1, optimizer, 0.2, slack=slack) for _ in range(2))
    advance(dual, stream(4))
    advance(spared, stream(4))
    before = state_of(dual)
    dual.observe(torch.tensor([4.0, 3.6, bad, 2.8]), 4)
    dual.observe(torch.tensor([bad, 3.6, bad, 2.8]), 4)
    with pytest.raises(NonFiniteLossError, match=r"not finite: \[[ni]\w+, 0\.\d+, [ni]"):
        dual.step()
    assert torch.equal(state_of(dual), before)
    # Whoever goes on without that batch goes on as if it had not been.
    for one, other in zip(advance(dual, stream(5, seed=1)), advance(spared, stream(5, seed=1)), strict=True):
        assert torch.equal(one, other)


# --- bad input

EXPLICIT = {"slack": "explicit", "resilience": 0.1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, r"learning rate.*0\.0"),
        ({"lr": -1.0}, r"learning rate.*-1\.0"),
        ({"lr": math.nan}, r"learning rate.*nan"),
        ({"lr": math.inf}, r"learning rate.*inf"),
        ({"resilience": math.inf}, r"resilience.*inf"),
        ({"optimizer": "nupi", "options": {"kp": math.nan}}, r"kp.*nan"),
        ({"optimizer": "lion"}, r"sgd, adam, nupi, price.*'lion'"),
        ({"options": {"kp": 1.0}}, r"'adam'.*kp"),
        ({"options": {"betas": (2.0, 0.9)}}, r"'adam'.*beta"),
        ({"optimizer": "nupi", "options": {"nu": 1.0}}, r"nu.*\[0, 1\).*1\.0"),
        ({"optimizer": "nupi", "options": {"nu": -0.1}}, r"nu.*\[0, 1\).*-0\.1"),
        ({"resilience": -0.1}, r"resilience.*-0\.1"),
        ({"resilience": math.nan}, r"resilience.*nan"),
        ({"slack": "both"}, r"slack.*'implicit'.*'explicit'.*'both'"),
        ({"slack": "explicit"}, r"resilience.*0\.0.*slack='implicit'"),
        (EXPLICIT | {"slack_lr": 0.0}, r"learning rate.*0\.0"),
        (EXPLICIT | {"slack_optimizer": "lion"}, r"sgd, adam, nupi, price.*'lion'"),
        ({"warmup": -1}, r"warmup.*-1"),
        ({"warmup": math.inf}, r"warmup.*inf"),
        ({"warmup": math.nan}, r"warmup.*nan"),
        ({"warmup": 1.5}, r"warmup.*1\.5"),
        ({"horizon": math.inf}, r"run.*inf"),
        ({"options": {"maximize": False}}, r"'adam'.*maximize"),
        ({"options": {"lr": 0.1}}, r"'adam'.*lr"),
        ({"optimizer": "price", "options": {"horizon": 9}}, r"'price'.*horizon"),
        ({"options": {"name": "sgd"}}, r"name.*'sgd'"),
        ({"every": 0}, r"every.*'epoch'.*got 0"),
        ({"every": 1.5}, r"every.*'epoch'.*1\.5"),
        ({"every": "batch"}, r"every.*'epoch'.*'batch'"),
    ],
)
def test_arguments_outside_their_range(arguments, message):
    with pytest.raises(InputError, match=message):
        PrimalDual(DescentProblem(3, 0.1), **arguments)


def observed(losses, *count, **problem):
    """A dual that has observed these losses."""
    dual = PrimalDual(DescentProblem(len(losses) - 1, 0.1, **problem))
    dual.observe(torch.tensor(losses), *count)
    return dual


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: PrimalDual(DescentProblem(3, 0.1)).observe(torch.ones(3)), r"losses.*\(4,\).*\(3,\)"),
        (lambda: PrimalDual(DescentProblem(3, 0.1)).lagrangian(torch.ones(3)), r"losses.*\(4,\).*\(3,\)"),
        (
            lambda: PrimalDual(DescentProblem(3, 0.1)).observe(torch.ones(4, requires_grad=True)),
            r"losses\.detach\(\)",
        ),
        (lambda: observed([1.0] * 4, math.nan), "count.*got nan"),
        (lambda: observed([1.0] * 4, math.inf), "count.*got inf"),
        (lambda: observed([1.0] * 4, torch.tensor(-2)), "count.*got -2"),
        (lambda: observed([1.0] * 4, 0), "count of 0.*others"),
        (lambda: PrimalDual(DescentProblem(3, 0.1)).step(), r"observe\(losses\.detach\(\)\)"),
        (lambda: observed([1.0, 0.0, 0.5], form="ratio").step(), r"ratio.*\[1\.0, 0\.0, 0\.5\].*'difference'"),
        # f_1 = −1 after f_0 = −2 is a rise, but f_1 / f_0 = 0.5 lies below 1 − α = 0.9.
        (lambda: observed([-2.0, -1.0, -0.5], form="ratio").step(), r"ratio.*\[-2\.0, -1\.0, -0\.5\].*'difference'"),
    ],
)
def test_losses_that_can_not_be_stepped_on(work, message):
    with pytest.raises(InputError, match=message):
        work()


def test_no_sample_is_no_error():
    assert observed([0.0] * 4, 0).step() is False


def test_multipliers_that_would_be_no_numbers_stay_where_they_are():
    dual = PrimalDual(DescentProblem(2, 0.9), lr=1e307, optimizer="sgd")
    dual.observe(torch.tensor([1.0, 1.0, 1.0]))
    dual.step()
    before = dual.multipliers
    assert before.isfinite().all() and before.max() > 1e306
    dual.observe(torch.tensor([1e3, 1e3, 1e3]))
    with pytest.raises(NonFiniteLossError, match=r"multipliers.*overflow"):
        dual.step()
    assert torch.equal(dual.multipliers, before)
