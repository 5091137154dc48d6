"""PrimalDual around a training loop: sums of losses, when the multipliers move, saving, warnings, bad input."""

import json
import math
from functools import partial

import pytest
import torch

from descend.core import DescentProblem, GeometricTarget, LossSums, PrimalDual
from descend.errors import InputError, NonFiniteLossError

packed = partial(json.dumps, default=torch.Tensor.tolist)

VARIANTS = [
    (optimizer, slack, form)
    for optimizer in ("sgd", "adam", "nupi", "price")
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


# --- sums of losses


def test_sums_are_those_of_the_moment_and_add_up():
    step, values = LossSums(2, others=1), torch.tensor([3.0, 2.0, 1.0])
    batch = LossSums.of(values, 4, 2, torch.tensor([5.0]))
    values.add_(1)
    for idle in (False, True, False):
        step.add(batch, idle=idle)
    assert step.numbers.tolist() == [6, 4, 2, 8, 8, 8, 10]
    assert step.means.tolist() == [0.75, 0.5, 0.25] and (step.first, step.targets) == (0, 8)
    window = step.with_numbers(2 * step.numbers)
    step.clear()
    assert not step.numbers.any() and step.first == 3 and len(step.means) == 0
    assert window.values.tolist() == [12, 8, 4] and window.others.tolist() == [20]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_inner_exits_may_be_left_out_and_a_sum_that_is_not_finite_is_named(bad):
    step = LossSums(2)
    step.add(LossSums.of(torch.tensor([1.0]).bfloat16(), 2, 2))
    assert step.first == 2 and step.means.tolist() == [0.5] and step.values.dtype == torch.float64
    step.add(LossSums.of(torch.tensor([4.0, 3.0, 2.0]), 2, 2))
    assert step.counts.tolist() == [2, 2, 4] and step.values.tolist() == [4, 3, 3]
    assert step.fault is None
    step.add(LossSums.of(torch.tensor([bad, 2.0]), 1, 2))
    assert step.fault == f"the loss of layer [1] is not finite ([4.0, {bad}, 5.0])"


# --- when the multipliers move


def test_warmup_is_the_objective_alone_and_reads_no_other_layer():
    dual = PrimalDual(DescentProblem(3, 0.1, 1.0, objective=[0, 1, 0, 3]), warmup=1)
    assert dual.weights.tolist() == [0, 1, 0, 3]
    assert dual.lagrangian(torch.tensor([math.nan, 2.0, math.inf, 5.0])) == 17


@pytest.mark.parametrize(("problem", "inner"), [({}, False), ({"alpha": 0.1}, True), ({"objective": [1, 0, 1]}, True)])
def test_inner_losses_are_needed_where_something_is_asked_of_them(problem, inner):
    warm = PrimalDual(DescentProblem(2, **problem), warmup=1)
    assert warm.inner == ("objective" in problem)
    warm.observe(torch.ones(3))
    warm.step()
    assert warm.inner == inner


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nupi", "price"])
def test_a_dual_step_in_three_steps_is_one_of_their_mean(optimizer):
    """After a warm-up too, of which nothing is left, and whatever the default device is."""
    problem, warmup, batches = DescentProblem(3, 0.1, 0.8), stream(2, seed=1), stream(10)
    with torch.device("meta"):
        one = PrimalDual(problem, None, optimizer, horizon=10)
        third = PrimalDual(problem, None, optimizer, horizon=30, every=3, warmup=2)
        epoch = PrimalDual(problem, None, optimizer, horizon=10, every="epoch", warmup=2)
        for each in (third, epoch):
            advance(each, warmup)
        for losses, _ in batches:
            (expected,) = advance(one, [(losses.double(), 1.0)])
            parts = [(share * losses.double(), 1.0) for share in (0.5, 1.0, 1.5)]
            *_, found = advance(third, parts)
            torch.testing.assert_close(found, expected)
            advance(epoch, parts)
            epoch.end_epoch()
            torch.testing.assert_close(state_of(epoch), expected)
    assert one.multipliers.max() > 0


@pytest.mark.parametrize(("every", "dual_steps"), [(1, 10), (4, 2), ("epoch", 10)])
def test_a_price_moves_by_its_rate_over_the_dual_steps_of_the_run(every, dual_steps):
    """A run of ten steps or epochs. Both layers halve the loss: their violation is −.5 of its unit."""
    problem = DescentProblem(2, target=GeometricTarget(0.0))
    dual = PrimalDual(problem, 1.0, "price", every=every, horizon=10)
    for _ in range(4):
        dual.observe(torch.tensor([4.0, 2.0, 1.0]))
        dual.step()
    dual.end_epoch()
    moves = {1: 4, 4: 1, "epoch": 1}[every]
    assert dual.multipliers[1:].tolist() == pytest.approx([1 - 0.5 * moves / dual_steps] * 2)


def test_the_state_of_an_older_version_at_the_end_of_an_epoch_goes_on():
    """It does not say how many steps there were since the dual step before."""
    problem = DescentProblem(2, target=GeometricTarget(0.5))
    dual, again = (PrimalDual(problem, 1.0, "price", every="epoch", horizon=10) for _ in range(2))
    for losses in ([9.0, 9.0, 9.0], [9.0, 3.0, 1.0]):
        dual.step(torch.tensor(losses))
        if losses[1] == 9:
            dual.end_epoch()
    older = dual.state_dict()
    del older["seen"]
    again.load_state_dict(older)
    for each in (dual, again):
        each.end_epoch()
    assert again.state_dict()["reference"].tolist() == pytest.approx([9.0, 8.7, 8.6])
    assert torch.equal(again.multipliers, dual.multipliers)


@pytest.mark.parametrize("every", [5, "epoch"])
def test_the_reference_of_rare_dual_steps_is_as_recent_as_that_of_one_a_step(every):
    """Where losses stay as they are between two of them; also if the state was saved in the middle."""
    problem = DescentProblem(2, target=GeometricTarget(0.5))
    steps, rare = (PrimalDual(problem, 1e-9, "price", every=each, warmup=3, horizon=100) for each in (1, every))
    for losses in ([9.0, 9.0, 9.0], [9.0, 5.0, 4.0], [8.0, 3.0, 1.0], [8.0, 2.0, 0.5]):
        for step in range(3 if losses[1] == 9 else 5):
            steps.step(torch.tensor(losses))
            rare.step(torch.tensor(losses))
            if step == 2:
                again = PrimalDual(problem, 1e-9, "price", every=every, warmup=3, horizon=100)
                again.load_state_dict(json.loads(json.dumps(rare.state_dict(), default=torch.Tensor.tolist)))
                rare = again
        rare.end_epoch()
    assert rare.state_dict()["reference"].tolist() == pytest.approx(steps.state_dict()["reference"].tolist())


def test_a_fixed_penalty_is_on_where_the_last_violation_was_and_never_grows():
    dual = PrimalDual(DescentProblem(2, 0.5), 3.0, "fixed")
    for losses, expected in (((4.0, 3.0, 1.0), [0, 3, 0]), ((4.0, 3.0, 2.9), [0, 3, 3]), ((4.0, 2.0, 1.0), [0, 0, 0])):
        dual.step(torch.tensor(losses))
        assert dual.multipliers.tolist() == expected
    assert PrimalDual(DescentProblem(2, 0.5), optimizer="fixed").state_dict()["kind"].startswith("optimizer='fixed'")


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


@pytest.mark.parametrize(("optimizer", "slack", "form"), VARIANTS)
def test_a_state_that_is_held_does_not_change_and_goes_on_to_the_same_bits(optimizer, slack, form):
    """The best feasible state is held in memory while the run continues, and may be loaded more than once.

    It is taken amid a step, and whatever the default device is. The other's own warm-up neither takes the constraints
    away nor moves their schedule.
    """
    moves = {"slack": slack, "slack_lr": 0.01, "slack_optimizer": "adam", "every": 2, "horizon": 30}
    problem, batches = DescentProblem(3, 0.1, 0.8, form=form), stream(20, seed=1)
    dual = PrimalDual(problem, 0.1, optimizer, 0.2, warmup=1, **moves)
    advance(dual, stream(5))
    dual.observe(torch.ones(4))
    snapshot = dual.state_dict()
    copy = packed(snapshot)
    for handed_out in (dual.multipliers, dual.slack, dual.weights):
        handed_out.fill_(7.0)
    ends = advance(dual, batches)
    assert packed(snapshot) == copy != packed(dual.state_dict())
    dual.end_epoch()
    assert not dual.state_dict().get("descent"), "slack starts anew with its optimizer"
    for state in (snapshot, json.loads(copy)):
        with torch.device("meta"):
            other = PrimalDual(problem, 0.1, optimizer, 0.2, warmup=40, **moves)
            other.load_state_dict(state)
            assert all(map(torch.equal, advance(other, batches), ends))


KINDS = [{"optimizer": "adam"}, {"optimizer": "nupi"}, {"slack": "explicit"}]


@pytest.mark.parametrize(
    ("saved", "loaded", "words"),
    [
        ({"depth": 5}, {}, r"of 5 layers.*of 3\."),
        *((kind, {}, r"optimizer=.*optimizer='sgd', slack='implicit'") for kind in KINDS),
        *(({}, kind, r"optimizer='sgd', slack='implicit'.*optimizer=") for kind in KINDS),
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
    dual, spared = (PrimalDual(problem, 0.1, optimizer, 0.2, slack=slack, horizon=99) for _ in range(2))
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


ARGUMENTS = [
    ({"lr": 0.0}, r"learning rate.*0\.0"),
    ({"lr": -1.0}, r"learning rate.*-1\.0"),
    ({"lr": math.nan}, r"learning rate.*nan"),
    ({"lr": math.inf}, r"learning rate.*inf"),
    ({"resilience": math.inf}, r"resilience.*inf"),
    ({"optimizer": "nupi", "options": {"kp": math.nan}}, r"kp.*nan"),
    ({"optimizer": "lion"}, r"sgd, adam, nupi, price.*'lion'"),
    ({"optimizer": "adam", "options": {"kp": 1.0}}, r"'adam'.*kp"),
    ({"optimizer": "adam", "options": {"betas": (2.0, 0.9)}}, r"'adam'.*beta"),
    ({"optimizer": "nupi", "options": {"nu": 1.0}}, r"nu.*\[0, 1\).*1\.0"),
    ({"optimizer": "nupi", "options": {"nu": -0.1}}, r"nu.*\[0, 1\).*-0\.1"),
    ({"resilience": -0.1}, r"resilience.*-0\.1"),
    ({"resilience": math.nan}, r"resilience.*nan"),
    ({"slack": "both"}, r"slack.*'implicit'.*'explicit'.*'both'"),
    ({"slack": "explicit"}, r"resilience.*0\.0.*slack='implicit'"),
    (EXPLICIT | {"slack_lr": 0.0}, r"learning rate.*0\.0"),
    (EXPLICIT | {"every": "epoch"}, r"explicit slack restarts.*slack='implicit'"),
    (EXPLICIT | {"slack_optimizer": "lion"}, r"sgd, adam, nupi, price.*'lion'"),
    ({"warmup": -1}, r"warmup.*-1"),
    ({"warmup": math.inf}, r"warmup.*inf"),
    ({"warmup": math.nan}, r"warmup.*nan"),
    ({"warmup": 1.5}, r"warmup.*1\.5"),
    ({"horizon": math.inf}, r"run.*inf"),
    ({"optimizer": "adam", "options": {"maximize": False}}, r"'adam'.*maximize"),
    ({"optimizer": "adam", "options": {"lr": 0.1}}, r"'adam'.*lr"),
    ({"optimizer": "price", "options": {"horizon": 9}}, r"'price'.*horizon"),
    ({"options": {"name": "sgd"}}, r"name.*'sgd'"),
    ({"every": 0}, r"every.*'epoch'.*got 0"),
    ({"every": 1.5}, r"every.*'epoch'.*1\.5"),
    ({"every": "batch"}, r"every.*'epoch'.*'batch'"),
]


def observed(losses, *count, **problem):
    """A dual that has observed these losses."""
    dual = PrimalDual(DescentProblem(len(losses) - 1, 0.1, **problem))
    dual.observe(torch.tensor(losses), *count)
    return dual


@pytest.mark.parametrize(
    ("work", "message"),
    [
        *((partial(PrimalDual, DescentProblem(3, 0.1), **given), words) for given, words in ARGUMENTS),
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
def test_bad_arguments_and_losses_that_can_not_be_stepped_on(work, message):
    with pytest.raises(InputError, match=message):
        work()


def test_multipliers_that_would_be_no_numbers_stay_where_they_are():
    dual = PrimalDual(DescentProblem(2, 0.9), lr=1e307, optimizer="sgd")
    (before,) = advance(dual, [(torch.ones(3), 1.0)])
    assert before.isfinite().all() and before.max() > 1e306
    with pytest.raises(NonFiniteLossError, match=r"multipliers.*overflow"):
        advance(dual, [(torch.full((3,), 1e3), 1.0)])
    assert torch.equal(state_of(dual), before)


def test_a_batch_without_targets_moves_nothing():
    dual = PrimalDual(DescentProblem(2, 0.1))
    dual.observe(torch.zeros(3), 0)
    assert not dual.step() and not dual.multipliers.any()
