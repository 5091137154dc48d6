"""PrimalDual around a training loop: when the multipliers move, what is saved, ranks, bad input."""

import io
import json
import math
from datetime import timedelta

import pytest
import torch
from torch import distributed, multiprocessing, nn

from descend.core import DescentProblem, GeometricTarget, PrimalDual
from descend.errors import InputError, NonFiniteLossError
from tests.support.forking import prepared

VARIANTS = [
    (optimizer, slack, form)
    for optimizer in ("sgd", "adam", "nupi")
    for slack in ("implicit", "explicit")
    for form in ("difference", "ratio")
]


@pytest.fixture(autouse=True)
def one_thread():
    """Nothing here is large enough for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def stream(steps: int, depth: int = 3, seed: int = 0) -> list[tuple[torch.Tensor, float]]:
    """Batches of (mean losses, count) whose chains rise and fall: λ climbs, falls and is projected."""
    rng = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 9, (steps,), generator=rng)
    losses = torch.rand(steps, depth + 1, generator=rng) + torch.linspace(1, 0.5, depth + 1)
    return [(row, float(count)) for row, count in zip(losses, counts, strict=True)]


def state_of(dual: PrimalDual) -> torch.Tensor:
    """All that can be seen of λ, u and the weights."""
    return torch.cat([dual.multipliers, dual.slack, dual.weights])


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(one, other) -> bool:
    """Bit-equal, all the way down."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def advance(dual: PrimalDual, batches) -> list[torch.Tensor]:
    states = []
    for losses, count in batches:
        dual.observe(losses * count, count)
        dual.step()
        states.append(state_of(dual))
    return states


# --- when the multipliers move


def test_every_k_steps_on_the_count_weighted_mean_since_the_last_dual_step():
    """Four steps of two micro-batches with unequal counts are one step on their mean over all samples."""
    batches = stream(8)
    many, one = (PrimalDual(DescentProblem(3, 0.1), optimizer="sgd", every=every) for every in (4, 1))
    moved = []
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        for losses, count in (first, second):
            many.observe(losses * count, count)
        moved.append(many.step())
        assert many.multipliers.any() == moved[-1]
    assert moved == [False, False, False, True]

    total = sum(count for _, count in batches)
    one.observe(sum(losses.double() * count for losses, count in batches), total)
    assert one.step()
    torch.testing.assert_close(state_of(many), state_of(one), rtol=0, atol=1e-12)
    mean_of_means = torch.stack([losses for losses, _ in batches]).mean(0)
    other = PrimalDual(DescentProblem(3, 0.1), optimizer="sgd")
    other.observe(mean_of_means)
    other.step()
    assert (other.multipliers - one.multipliers).abs().max() > 1e-4


def test_one_batch_of_eight_is_eight_batches_of_one():
    samples = torch.rand(8, 4, generator=torch.Generator().manual_seed(3))
    whole, single, uneven = (PrimalDual(DescentProblem(3, 0.1)) for _ in range(3))
    whole.observe(samples.sum(0), 8)
    for sample in samples:
        single.observe(sample)
    for part in samples.split([1, 5, 2]):
        uneven.observe(part.sum(0), torch.tensor(len(part)))
    for dual in (whole, single, uneven):
        dual.step()
        torch.testing.assert_close(state_of(dual), state_of(whole), rtol=0, atol=1e-7)


def test_the_dual_step_follows_the_mean_since_the_last_one_and_not_longer():
    dual, fresh = (PrimalDual(DescentProblem(3, 0.1), optimizer="sgd", every=2) for _ in range(2))
    before, after = stream(2, seed=1), stream(2, seed=2)
    advance(dual, before)
    between = dual.multipliers
    advance(dual, after)
    advance(fresh, after)
    # SGD from `between` moves as far as SGD from 0, up to the projection.
    mean = sum(losses.double() * count for losses, count in after) / sum(count for _, count in after)
    gap = DescentProblem(3, 0.1).violations(mean)
    torch.testing.assert_close(dual.multipliers, (between + 0.03 * gap).clamp(min=0))
    torch.testing.assert_close(fresh.multipliers, (0.03 * gap).clamp(min=0))


def test_large_sums_in_half_precision_do_not_overflow():
    """Two batches add up beyond float16, whose largest number is 65504."""
    half, double = (PrimalDual(DescentProblem(1, 0.1), optimizer="sgd") for _ in range(2))
    sums = torch.tensor([40_000.0, 60_000.0], dtype=torch.float16)
    for _ in range(2):
        half.observe(sums, 1024)
    half.step()
    double.observe(2 * sums.double(), 2048)
    double.step()
    assert torch.equal(half.multipliers, double.multipliers) and half.multipliers[1] > 0


def test_a_schedule_by_epochs():
    dual, one = PrimalDual(DescentProblem(3, 0.1), every="epoch"), PrimalDual(DescentProblem(3, 0.1), every=6)
    for epoch in range(3):
        batches = stream(6, seed=epoch)
        states = advance(dual, batches)
        assert all(torch.equal(state, states[0]) for state in states)
        dual.end_epoch()
        assert torch.equal(state_of(dual), advance(one, batches)[-1])
    assert dual.multipliers.max() > 0
    before = state_of(dual)
    dual.end_epoch()
    assert torch.equal(state_of(dual), before), "an epoch without a batch moves nothing"


def test_the_end_of_an_epoch_moves_no_multiplier_of_another_schedule():
    dual = PrimalDual(DescentProblem(3, 0.1), every=4)
    advance(dual, stream(6))
    before = dual.multipliers
    dual.end_epoch()
    assert torch.equal(dual.multipliers, before)


def test_warmup_is_erm_and_leaves_no_trace():
    problem = DescentProblem(3, 0.1, 1.0)
    warm, cold = PrimalDual(problem, warmup=5, every=2), PrimalDual(problem, every=2)
    losses = torch.rand(4).requires_grad_()
    for count, (batch, size) in enumerate(stream(5, seed=8)):
        assert not warm.warm and warm.weights.tolist() == [0, 0, 0, 1]
        assert torch.equal(warm.lagrangian(losses), losses[-1])
        assert warm.lagrangian(torch.tensor([math.nan, math.inf, 1.0, 2.0])) == 2, "no other layer is touched"
        warm.observe(batch * size, size)
        assert warm.step() is False and warm.steps == count + 1
        assert not warm.multipliers.any()
    assert warm.warm
    # What was observed during warm-up is forgotten, and the schedule counts from its end.
    for one, other in zip(advance(warm, stream(7)), advance(cold, stream(7)), strict=True):
        assert torch.equal(one, other)
    assert warm.multipliers.any()


def test_warmup_is_the_objective_alone():
    dual = PrimalDual(DescentProblem(2, 0.1, objective=[0, 1, 3]), warmup=1)
    assert dual.inner and dual.weights.tolist() == [0, 1, 3]
    assert dual.lagrangian(torch.tensor([math.nan, 2.0, 5.0])) == 17
    plain = PrimalDual(DescentProblem(2, 0.1), warmup=1)
    assert not plain.inner
    plain.observe(torch.ones(3))
    plain.step()
    assert plain.inner and not PrimalDual(DescentProblem(2)).inner


def test_warmup_of_one_epoch_with_a_schedule_by_epochs():
    dual = PrimalDual(DescentProblem(3, 0.1), warmup=6, every="epoch")
    advance(dual, stream(6))
    dual.end_epoch()
    assert not dual.multipliers.any()
    advance(dual, stream(6))
    dual.end_epoch()
    assert dual.multipliers.any()


def test_multipliers_stay_zero_where_nothing_is_in_force_whatever_the_optimizer():
    for optimizer, slack, _ in VARIANTS:
        problem = DescentProblem(3, 0.1, first=1)
        dual = PrimalDual(problem, optimizer=optimizer, resilience=0.1, slack=slack)
        for _ in range(20):
            dual.observe(torch.tensor([1.0, 5.0, 6.0, 7.0]))
            dual.step()
        assert not dual.multipliers[:2].any() and not dual.slack[:2].any()
        assert (dual.multipliers[2:] > 0).all() and (dual.slack[2:] > 0).all()


def test_what_is_handed_out_is_a_copy():
    dual = PrimalDual(DescentProblem(3, 0.1, 0.5), resilience=0.1, slack="explicit")
    advance(dual, stream(3))
    before = state_of(dual)
    for tensor in (dual.multipliers, dual.slack, dual.weights):
        tensor.fill_(7.0)
    assert torch.equal(state_of(dual), before)


# --- the Lagrangian


@pytest.mark.parametrize("form", ["difference", "ratio"])
@pytest.mark.parametrize("stop_gradient", [False, True])
def test_the_gradient_of_the_lagrangian_is_the_weights(form, stop_gradient):
    problem = DescentProblem(3, [0.1, 0.2, 0.3], 0.5, form=form, stop_gradient=stop_gradient)
    dual = PrimalDual(problem, resilience=0.1)
    for batch, count in stream(5):
        dual.observe(batch * count, count)
        dual.step()
        # The ratio form's weights are those at the last losses seen.
        losses = batch.double().requires_grad_()
        dual.lagrangian(losses).backward()
        torch.testing.assert_close(losses.grad, dual.weights)
        expected = problem.lagrangian(batch.double(), dual.multipliers)
        torch.testing.assert_close(dual.lagrangian(batch.double()), expected)
    assert dual.multipliers[1:].any() and dual.multipliers[0] > 0


def test_the_lagrangian_keeps_the_dtype_of_the_losses():
    dual = PrimalDual(DescentProblem(3, 0.1, 0.5))
    advance(dual, stream(3))
    assert dual.lagrangian(torch.rand(4)).dtype == torch.float32


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
@pytest.mark.parametrize("at", [4, 7], ids=["between dual steps", "amid accumulation"])
def test_a_resumed_run_is_bit_equal(optimizer, slack, form, at):
    def build() -> PrimalDual:
        problem = DescentProblem(3, 0.1, 0.8, form=form)
        return PrimalDual(problem, 0.1, optimizer, 0.2, slack=slack, every=2, warmup=2)

    batches = stream(40)
    whole, part = build(), build()
    expected = advance(whole, batches)[at:]
    advance(part, batches[:at])
    # A micro-batch that was observed before the checkpoint, its step after it.
    losses, count = batches[at]
    part.observe(losses * count, count)
    resumed = build()
    resumed.load_state_dict(through_a_file(part.state_dict()))
    assert torch.equal(state_of(resumed), state_of(part)) and resumed.steps == part.steps == at
    resumed.step()
    for ours, theirs in zip([state_of(resumed), *advance(resumed, batches[at + 1 :])], expected, strict=True):
        assert torch.equal(ours, theirs)
    resumed.end_epoch()
    whole.end_epoch()
    assert same(resumed.state_dict(), whole.state_dict())
    assert max(state[:4].max() for state in expected) > 0.1


@pytest.mark.parametrize(("optimizer", "slack", "form"), VARIANTS)
def test_a_held_snapshot_does_not_change(optimizer, slack, form):
    """The best feasible state is held in memory while the run goes on, and may be loaded more than once."""
    problem = DescentProblem(3, 0.1, 0.8, form=form)
    dual, other = (PrimalDual(problem, 0.1, optimizer, 0.2, slack=slack, every=2) for _ in range(2))
    advance(dual, stream(5))
    snapshot = dual.state_dict()
    copy = through_a_file(snapshot)
    advance(dual, stream(20, seed=1))
    assert same(snapshot, copy) and not same(dual.state_dict(), copy)
    other.load_state_dict(snapshot)
    advance(other, stream(20, seed=1))
    assert same(snapshot, copy)
    assert torch.equal(state_of(other), state_of(dual))


@pytest.mark.parametrize(("optimizer", "slack", "form"), VARIANTS)
def test_a_state_is_small_and_loses_nothing_as_json(optimizer, slack, form):
    whole, resumed = (
        PrimalDual(DescentProblem(3, 0.1, 0.8, form=form), 0.1, optimizer, 0.2, slack=slack) for _ in range(2)
    )
    advance(whole, stream(7))
    text = json.dumps(whole.state_dict(), default=torch.Tensor.tolist)
    assert len(text) < 1100
    resumed.load_state_dict(json.loads(text))
    assert same(resumed.state_dict(), whole.state_dict())
    for ours, theirs in zip(advance(resumed, stream(9, seed=1)), advance(whole, stream(9, seed=1)), strict=True):
        assert torch.equal(ours, theirs)


def test_the_state_of_another_depth_or_kind_is_refused_and_nothing_moves():
    def build(depth=3, **arguments) -> PrimalDual:
        return PrimalDual(DescentProblem(depth, 0.1), resilience=0.1, **arguments)

    dual = build()
    advance(dual, stream(3))
    before = dual.state_dict()
    with pytest.raises(InputError, match=r"5 layers.*3"):
        dual.load_state_dict(build(5).state_dict())
    for arguments in [{"optimizer": "sgd"}, {"optimizer": "nupi"}, {"slack": "explicit"}]:
        with pytest.raises(InputError, match=r"optimizer=.*optimizer="):
            dual.load_state_dict(build(**arguments).state_dict())
        with pytest.raises(InputError, match=r"optimizer='adam', slack='implicit'"):
            build(**arguments).load_state_dict(dual.state_dict())
    explicit, other = build(slack="explicit"), build(slack="explicit", slack_optimizer="adam")
    with pytest.raises(InputError, match=r"slack_optimizer='adam'.*slack_optimizer='sgd'"):
        explicit.load_state_dict(other.state_dict())
    assert same(dual.state_dict(), before)


# --- losses that are not numbers


@pytest.mark.parametrize(("optimizer", "slack", "form"), VARIANTS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_named_and_moves_nothing(optimizer, slack, form, bad):
    problem = DescentProblem(3, 0.1, 0.8, form=form)
    dual, spared = (PrimalDual(problem, 0.1, optimizer, 0.2, slack=slack) for _ in range(2))
    advance(dual, stream(4))
    advance(spared, stream(4))
    before = state_of(dual)
    dual.observe(torch.tensor([4.0, 3.6, bad, 2.8]), 4)
    with pytest.raises(NonFiniteLossError, match=r"layer \[2\].*\[1\.0, 0\.\d+, [ni]"):
        dual.step()
    assert torch.equal(state_of(dual), before)
    # Whoever goes on without that batch goes on as if it had not been.
    for one, other in zip(advance(dual, stream(5, seed=1)), advance(spared, stream(5, seed=1)), strict=True):
        assert torch.equal(one, other)


def test_every_layer_that_is_not_finite_is_named():
    dual = PrimalDual(DescentProblem(3, 0.1), every="epoch")
    dual.observe(torch.tensor([math.nan, 1.0, 1.0, 1.0]))
    dual.observe(torch.tensor([1.0, 1.0, 1.0, math.inf]))
    with pytest.raises(NonFiniteLossError, match=r"layer \[0, 3\]"):
        dual.end_epoch()


def test_the_ratio_form_refuses_a_loss_of_zero_in_the_chain():
    dual = PrimalDual(DescentProblem(2, 0.1, form="ratio"))
    dual.observe(torch.tensor([1.0, 0.0, 0.5]))
    with pytest.raises(InputError, match=r"ratio.*\[1\.0, 0\.0, 0\.5\].*'difference'"):
        dual.step()
    assert not dual.multipliers.any()
    chain = PrimalDual(DescentProblem(2, 0.1, form="ratio", first=1))
    chain.observe(torch.tensor([0.0, 1.0, 1.5]))
    assert chain.step() and chain.multipliers[2] > 0 and chain.weights.isfinite().all()


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
        ({"options": {"maximize": False}}, r"maximize=False"),
        ({"options": {"lr": 0.1}}, r"lr=0\.1"),
        ({"options": {"name": "sgd"}}, r"'adam'.*name"),
        ({"every": 0}, r"every.*'epoch'.*got 0"),
        ({"every": 1.5}, r"every.*'epoch'.*1\.5"),
        ({"every": "batch"}, r"every.*'epoch'.*'batch'"),
    ],
)
def test_arguments_outside_their_range(arguments, message):
    with pytest.raises(InputError, match=message):
        PrimalDual(DescentProblem(3, 0.1), **arguments)


def test_losses_of_another_shape_or_with_a_graph():
    dual = PrimalDual(DescentProblem(3, 0.1))
    with pytest.raises(InputError, match=r"losses.*\(4,\).*\(3,\)"):
        dual.observe(torch.ones(3))
    with pytest.raises(InputError, match=r"losses\.detach\(\)"):
        dual.observe(torch.ones(4, requires_grad=True))
    with pytest.raises(InputError, match=r"losses.*\(4,\).*\(3,\)"):
        dual.lagrangian(torch.ones(3))


@pytest.mark.parametrize("count", [math.nan, math.inf, -1.0, torch.tensor(-2)])
def test_a_count_that_is_no_number_of_samples(count):
    dual = PrimalDual(DescentProblem(3, 0.1))
    with pytest.raises(InputError, match=r"count.*got "):
        dual.observe(torch.ones(4), count)
    dual.observe(torch.zeros(4), 0)
    assert dual.step() is False, "nothing was observed"
    with pytest.raises(InputError, match=r"count of 0.*\[1\.0, "):
        dual.observe(torch.ones(4), 0)


def test_the_ratio_form_refuses_negative_losses_that_would_look_feasible():
    """f_1 = −1 after f_0 = −2 is a rise, but f_1 / f_0 = 0.5 lies below 1 − α = 0.9."""
    problem = DescentProblem(2, 0.1, form="ratio")
    losses = torch.tensor([-2.0, -1.0, -0.5])
    with pytest.raises(InputError, match=r"ratio.*\[-2\.0, -1\.0, -0\.5\].*'difference'"):
        problem.violations(losses)
    dual = PrimalDual(problem)
    dual.observe(losses)
    with pytest.raises(InputError, match=r"ratio.*losses"):
        dual.step()
    assert (DescentProblem(2, 0.1).violations(losses)[1:] > 0).all(), "the difference form has no such limit"
    # A loss that no other is divided by may be of any sign.
    DescentProblem(2, 0.1, form="ratio", first=1).violations(torch.tensor([-2.0, 1.0, -0.5]))


@pytest.mark.parametrize(("optimizer", "slack", "form"), VARIANTS)
def test_the_state_is_on_the_cpu_whatever_the_default_device_and_dtype(optimizer, slack, form):
    def run() -> PrimalDual:
        problem = DescentProblem(3, [0.1, 0.2, 0.1], 0.8, form=form)
        dual = PrimalDual(problem, 0.1, optimizer, 0.2, slack=slack)
        for losses, count in batches:
            dual.observe(losses * count, count)
            dual.step()
        dual.end_epoch()
        return dual

    batches = stream(5)
    plain, default = run(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        with torch.device("meta"):
            other = run()
            state = other.state_dict()
            again = PrimalDual(other.problem, 0.1, optimizer, 0.2, slack=slack)
            again.load_state_dict(state)
    finally:
        torch.set_default_dtype(default)
    for one in (other, again):
        assert one.multipliers.device.type == "cpu" and one.multipliers.dtype == torch.float64
        assert torch.equal(state_of(one), state_of(plain))
    assert other.weights.device.type == "cpu"


def test_geometric_bounds_are_on_the_cpu_too():
    with torch.device("meta"):
        dual = PrimalDual(DescentProblem(3, target=GeometricTarget()), optimizer="price", horizon=9)
        dual.observe(torch.tensor([1.0, 0.9, 0.8, 0.7], device="cpu"))
        dual.step()
    assert dual.multipliers.device.type == dual.weights.device.type == "cpu"


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ({"first": 0}, {"first": 2}),
        ({"first": 2}, {"first": 0}),
        ({"cap": 1.0}, {}),
        ({}, {"cap": 1.0}),
    ],
)
def test_the_state_of_other_constraints_is_refused_and_nothing_moves(saved, loaded):
    """λ_1 of a chain from layer 0 would otherwise be at work where the chain starts at layer 2."""
    before, after = (PrimalDual(DescentProblem(3, 0.1, **settings)) for settings in (saved, loaded))
    advance(before, stream(5))
    with pytest.raises(InputError, match=r"multipliers.*layers.*layers"):
        after.load_state_dict(before.state_dict())
    assert not after.multipliers.any() and after.steps == 0
    older = before.state_dict()
    del older["in_force"]
    with pytest.raises(InputError, match="older"):
        before.load_state_dict(older)


def test_a_step_on_nothing():
    dual = PrimalDual(DescentProblem(3, 0.1))
    with pytest.raises(InputError, match=r"observe\(losses\.detach\(\)\)"):
        dual.step()


# --- two ranks

# Each a run's arguments and, by epoch, step and rank, the sizes of the micro-batches that the rank sees.
UNEVEN = [[((3, 1), (5,)), ((2,), (1, 1, 6)), ((4,), ())], [((1,), (7, 2)), ((), (3,)), ((8,), (1,))]]
IDLE = [[((3,), (2,)), ((1,), (4,))], [((5,), ()), ((2, 2), ())], [((), (1,)), ((3,), ())], [((1,), (1,))]]
SCENARIOS = {
    "every step": ({"optimizer": "adam"}, UNEVEN),
    "every third step": ({"optimizer": "nupi", "every": 3}, UNEVEN),
    "explicit slack, after a warm-up": ({"optimizer": "sgd", "slack": "explicit", "warmup": 2}, UNEVEN),
    "by epochs, one rank idle": ({"optimizer": "adam", "every": "epoch"}, IDLE),
}


def run_scenario(name: str, ranks: list[int]) -> torch.Tensor:
    """The multipliers after every step, as seen by a process that feeds the micro-batches of these ranks."""
    arguments, epochs = SCENARIOS[name]
    rng = torch.Generator().manual_seed(5)
    dual = PrimalDual(DescentProblem(3, 0.1, 0.8), 0.1, resilience=0.2, **arguments)
    states = []
    for epoch in epochs:
        for step in epoch:
            for rank, sizes in enumerate(step):
                for size in sizes:
                    losses = torch.rand(4, generator=rng, dtype=torch.float64) + 0.5
                    if rank in ranks:
                        dual.observe(losses * size, size)
            dual.step()
            states.append(state_of(dual))
        dual.end_epoch()
        states.append(state_of(dual))
    return torch.stack(states)


def rank_of_two(rank: int, folder: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    torch.set_num_threads(1)
    found = {name: run_scenario(name, [rank]) for name in SCENARIOS}
    # A loss that is NaN on one rank stops both.
    dual = PrimalDual(DescentProblem(1, 0.1))
    dual.observe(torch.tensor([1.0, math.nan if rank else 1.0]))
    try:
        dual.step()
    except NonFiniteLossError as error:
        found["error"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.barrier()  # gloo may abort a rank whose peer is gone already
    distributed.destroy_process_group()


def test_two_ranks_with_unequal_counts_are_one(tmp_path):
    multiprocessing.start_processes(rank_of_two, (str(tmp_path),), nprocs=2, start_method=prepared())
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name in SCENARIOS:
        assert torch.equal(first[name], second[name]), "every rank holds the same multipliers"
        alone = run_scenario(name, [0, 1])
        torch.testing.assert_close(first[name], alone, rtol=0, atol=1e-12)
        assert alone[:, :4].max() > 0.01
    assert first["error"] == second["error"] and "layer [1] is not finite" in first["error"]


# --- a network


class Blocks(nn.Module):
    """Residual blocks on vectors, every layer's output read as it is."""

    def __init__(self, depth: int, width: int, generator: torch.Generator):
        super().__init__()

        def parameter(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns, generator=generator) * 0.3 / rows**0.5)

        self.up = nn.ParameterList(parameter(width, 32) for _ in range(depth))
        self.down = nn.ParameterList(parameter(32, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        outputs = [x]
        for up, down in zip(self.up, self.down, strict=True):
            outputs.append(outputs[-1] + torch.tanh(outputs[-1] @ up) @ down)
        return outputs


def denoising(seed: int):
    """A model, and a sampler of (noisy, clean) vectors from a random three-dimensional subspace."""
    rng = torch.Generator().manual_seed(seed)
    basis = torch.randn(3, 12, generator=rng) / 3**0.5

    def sample(size: int):
        clean = torch.randn(size, 3, generator=rng) @ basis
        return clean + 0.7 * torch.randn(size, 12, generator=rng), clean

    return Blocks(7, 12, rng), sample


def losses_of(model: Blocks, batch) -> torch.Tensor:
    noisy, clean = batch
    return torch.stack([((output - clean) ** 2).mean() for output in model(noisy)])


@pytest.mark.parametrize("stop_gradient", [False, True])
def test_multipliers_that_stay_at_zero_train_the_very_same_network_as_erm(stop_gradient):
    """Constant offsets that fall by half each layer: no constraint ever binds, no gradient changes."""
    offsets = 100 * 0.5 ** torch.arange(8)
    problem = DescentProblem(7, 0.1, cap=1000.0, stop_gradient=stop_gradient)
    duals = {
        "λ at 0": PrimalDual(problem, resilience=0.1),
        "no constraint": PrimalDual(DescentProblem(7, alpha=None)),
        "no PrimalDual": None,
    }
    ends = {}
    for name, dual in duals.items():
        model, sample = denoising(seed=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(25):
            losses = losses_of(model, sample(32)) + offsets
            (dual.lagrangian(losses) if dual else losses[-1]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if dual:
                dual.observe(losses.detach())
                dual.step()
                assert not dual.multipliers.any() and dual.weights.tolist() == [0] * 7 + [1]
        ends[name] = torch.nn.utils.parameters_to_vector(model.parameters())
    assert torch.equal(ends["λ at 0"], ends["no PrimalDual"])
    assert torch.equal(ends["no constraint"], ends["no PrimalDual"])


@pytest.mark.parametrize("seed", [2, 4])
def test_the_plain_loop_meets_the_constraints_that_erm_does_not(seed):
    """The loop of the README, to the letter, on fresh samples; judged on others."""
    model, sample = denoising(seed)
    loader = [sample(64) for _ in range(800)]
    held_out = sample(20_000)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def layer_losses(batch):
        return losses_of(model, batch)

    problem = DescentProblem(depth=7, alpha=0.1, stop_gradient=False)
    dual = PrimalDual(problem, lr=0.03, optimizer="adam", resilience=0.05)
    for batch in loader:
        losses = layer_losses(batch)  # (L+1,): f_0 … f_L
        dual.lagrangian(losses).backward()
        optimizer.step()
        optimizer.zero_grad()
        dual.observe(losses.detach())
        dual.step()
        assert dual.multipliers.shape == (8,) and (dual.multipliers >= 0).all()

    erm, again = denoising(seed)
    loader = [again(64) for _ in range(800)]
    optimizer = torch.optim.Adam(erm.parameters(), lr=2e-3)
    for batch in loader:
        losses_of(erm, batch)[-1].backward()
        optimizer.step()
        optimizer.zero_grad()

    with torch.no_grad():
        constrained, unconstrained = losses_of(model, held_out), losses_of(erm, held_out)
    # In parts of the last loss: met to 2 % (the slack is ρλ, and 20,000 samples are not all), by ERM missed
    # by over 5 %, at the same last loss.
    assert problem.violations(constrained).max() < 0.02 * constrained[-1]
    assert problem.violations(unconstrained).max() > 0.05 * unconstrained[-1]
    assert constrained[-1] < 1.02 * unconstrained[-1]
    assert (constrained[1:] < constrained[:-1]).all()
    assert dual.weights.shape == (8,) and dual.slack.shape == (8,) and dual.multipliers[0] == 0


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


def test_what_was_warm_is_warm_where_it_goes_on():
    """Another warm-up given to the one that goes on does not take the constraints away, nor move their schedule."""
    before, after = (PrimalDual(DescentProblem(1, 0.5), warmup=warmup, every=2) for warmup in (1, 9))
    for _ in range(4):
        before.observe(torch.tensor([1.0, 1.0]))
        before.step()
    after.load_state_dict(before.state_dict())
    assert after.warm and after.warmup == 1 and torch.equal(after.weights, before.weights)


def test_the_state_of_an_older_version_is_refused_and_changes_nothing():
    dual = PrimalDual(DescentProblem(3, 0.1))
    dual.observe(torch.tensor([4.0, 3.0, 2.0, 1.0]))
    dual.step()
    before = dual.state_dict()
    older = {**before, "totals": before["totals"][:5], "steps": 7}  # sums of the layers and one count
    with pytest.raises(InputError, match="older"):
        dual.load_state_dict(older)
    after = dual.state_dict()
    assert after["steps"] == 1 and torch.equal(after["multipliers"], before["multipliers"])
