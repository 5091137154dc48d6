"""`UnrolledLoss` in a trainer of deepinv's protocol: the losses of `layered`, the multipliers of a `PrimalDual`."""

import copy
import gc
import json
import pickle
import weakref

import pytest
import torch
from torch import nn

import descend
from descend import InputError, NonFiniteLossError, PrimalDual, UnrolledLoss
from descend.core import DescentProblem, GeometricTarget
from tests.support import unrolled
from tests.support.unrolled import LISTA, PGD, Looped, Physics


class Trainer:
    """A training loop of deepinv's order: ``adapt_model``, then batches; evaluations run losses in training mode."""

    def __init__(self, model: nn.Module, losses: list, rate: float = 0.05, physics: nn.Module | None = None):
        self.model, self.losses, self.physics = model, losses, physics
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for loss in losses:
            self.model = loss.adapt_model(self.model)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        given = (y,) if self.physics is None else (y, self.physics)
        x_net = self.model(*given)
        values = [each(x=x, x_net=x_net, y=y, physics=self.physics, model=self.model, epoch=0) for each in self.losses]
        return sum(value.mean() for value in values)

    def train(self, batches: list, accumulate: int = 1) -> None:
        self.model.train()
        for number, (x, y) in enumerate(batches, start=1):
            self.loss(x, y).backward()
            if number % accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()

    def evaluate(self, batches: list) -> None:
        for x, y in batches:
            self.loss(x, y)


def batches_of(samples: list[dict], size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(x, y) of each batch."""
    x, y = (torch.stack([each[name] for each in samples]) for name in ("labels", "y"))
    return list(zip(x.split(size), y.split(size), strict=True))


BATCHES = batches_of(unrolled.measured(48))
CODES = batches_of(unrolled.sparse(16))
POINTS = [(torch.eye(3)[[0, 2, 1, 0]], torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(1)))]


def network(kind: type[nn.Module] = PGD) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def loss_of(method: str = "constrained", **settings: object) -> UnrolledLoss:
    """The loss of `PGD`, by default with steps enough for all tests and a fast dual."""
    if method in ("constrained", "useful"):
        settings = {"steps": 40, "strength": 0.8} | settings
    reads = {"blocks": "iteration.step", "depth": 4, "state": lambda out: out["x"]}
    return UnrolledLoss(**reads | {"method": method} | settings)


def trainer_of(loss: UnrolledLoss, **settings: object) -> Trainer:
    return Trainer(network(), [loss], physics=Physics(), **settings)


def layer_losses(x: torch.Tensor, predictions: list[torch.Tensor]) -> torch.Tensor:
    """f_0 … f_L, (L+1,), by hand."""
    return torch.stack([(each - x).square().flatten(1).mean(1).mean() for each in predictions])


# Network → its loss, its layered model, the batch, and the fields of `layered`.
NETWORKS = {
    "proximal gradient descent": (PGD, loss_of, unrolled.pgd, BATCHES[0], "y", Physics()),
    "LISTA": (LISTA, lambda method: UnrolledLoss("layers", method=method), unrolled.lista, CODES[0], "y", None),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_layer_losses_and_the_gradient_are_those_of_the_layered_model(kind):
    make, loss_for, layered, (x, y), name, physics = NETWORKS[kind]
    model = layered(network(make))
    by_hand = layer_losses(x, model.predictions({name: y}))
    weights = torch.arange(len(by_hand), dtype=torch.float32)
    (weights / weights.sum() @ by_hand).backward()
    loss = loss_for("linear")
    trainer = Trainer(network(make), [loss], physics=physics)
    value = trainer.loss(x, y)
    value.backward()
    torch.testing.assert_close(loss.losses.float(), by_hand.detach())
    torch.testing.assert_close(value.detach(), (weights / weights.sum() @ by_hand).detach())
    own = [parameter.grad for parameter in trainer.model.parameters()]
    torch.testing.assert_close(own, [parameter.grad for parameter in model.network.parameters()])


def test_a_readout_reads_each_layer():
    (x, y), looped = POINTS[0], network(Looped)
    loss = UnrolledLoss("block", depth=3, readout=looped.read, method="uniform")
    Trainer(looped, [loss]).loss(x, y)
    predictions = unrolled.looped(looped).predictions({"x": y})
    torch.testing.assert_close(loss.losses.float(), layer_losses(x, predictions).detach())


def test_there_is_one_forward_pass_and_the_model_keeps_its_names():
    calls = []
    trainer = trainer_of(loss_of())
    assert type(trainer.model) is PGD and trainer.model.state_dict().keys() == network().state_dict().keys()
    trainer.model.iteration.step.register_forward_hook(lambda *_: calls.append(1))
    trainer.train(BATCHES[:3])
    assert len(calls) == 3 * 4 and not trainer.model.iteration.step._forward_pre_hooks


def by_hand(batches: list, dual: PrimalDual, accumulate: int = 1) -> tuple[PGD, list[torch.Tensor]]:
    """The trained network, and the multipliers after each step, of a loop around `PrimalDual`."""
    model = unrolled.pgd(network())
    optimizer = torch.optim.Adam(model.network.parameters(), lr=0.05)
    multipliers = []
    for number, (x, y) in enumerate(batches, start=1):
        losses = layer_losses(x, model.predictions({"y": y}))
        (dual.weights.float() @ losses).backward()
        dual.observe(losses.detach() * len(x), len(x))
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            dual.step()
            multipliers.append(dual.multipliers)
    return model.network, multipliers


def recorded(loss: UnrolledLoss, trainer: Trainer) -> list[torch.Tensor]:
    """The multipliers after each step of a trainer's optimizer."""
    multipliers: list[torch.Tensor] = []
    trainer.optimizer.register_step_post_hook(lambda *_: multipliers.append(None))  # the loss's hook comes after it
    step = loss.dual.step

    def stepped() -> None:
        step()
        multipliers[-1] = loss.dual.multipliers

    loss.dual.step = stepped
    return multipliers


DUALS = {
    "geometric": (
        {"dual_lr": 200.0},
        lambda: PrimalDual(
            DescentProblem(4, target=GeometricTarget(0.8)), lr=200.0, optimizer="price", horizon=40, resilience=0.0
        ),
    ),
    "alpha": (
        {"strength": None, "alpha": 0.4, "dual_lr": 0.5, "dual_warmup_steps": 2},
        lambda: PrimalDual(DescentProblem(4, 0.4), lr=0.5, resilience=0.05, warmup=2),
    ),
    "after": (
        {"strength": None, "after": 2},
        lambda: PrimalDual(DescentProblem(4, target=descend.NoWorse(2), objective=[0, 0, 1, 0, 0]), lr=0.05),
    ),
}


@pytest.mark.parametrize("kind", DUALS)
@pytest.mark.parametrize("accumulate", [1, 2], ids=["each batch", "every second batch"])
def test_multipliers_and_weights_are_those_of_a_loop_by_hand(kind, accumulate):
    settings, dual = DUALS[kind]
    loss = loss_of(**settings)
    trainer = trainer_of(loss)
    multipliers = recorded(loss, trainer)
    trainer.train(BATCHES, accumulate)
    network, expected = by_hand(BATCHES, dual(), accumulate)
    assert len(multipliers) == len(BATCHES) // accumulate == loss.dual.steps
    torch.testing.assert_close(torch.stack(multipliers), torch.stack(expected), rtol=1e-4, atol=1e-6)
    assert kind == "after" or not torch.equal(multipliers[0], multipliers[-1])
    torch.testing.assert_close(dict(trainer.model.named_parameters()), dict(network.named_parameters()))


def test_an_evaluation_moves_nothing():
    """Neither one in training mode, as deepinv's, nor one without gradients, nor another optimizer's step."""
    loss, again = loss_of(), loss_of()
    trainer, other = trainer_of(loss), trainer_of(again)
    trainer.train(BATCHES[:2])
    other.train(BATCHES[:2])
    state = loss.state_dict()
    trainer.evaluate(BATCHES[2:])
    trainer.model.eval()
    with torch.no_grad():
        trainer.evaluate(BATCHES[2:])
        value = trainer.loss(*BATCHES[0])
    assert not value.requires_grad and value > 0
    trainer.optimizer.step()
    strange = nn.Parameter(torch.ones(1))
    strange.grad = torch.ones(1)
    torch.optim.SGD([strange], lr=1.0).step()
    assert json.dumps(state, default=torch.Tensor.tolist) == json.dumps(loss.state_dict(), default=torch.Tensor.tolist)
    trainer.train(BATCHES[2:])
    assert loss.dual.steps == len(BATCHES)


def test_a_resumed_run_is_bit_identical():
    whole, first = loss_of(dual_lr=200.0), loss_of(dual_lr=200.0)
    trainer, begun = trainer_of(whole), trainer_of(first)
    trainer.train(BATCHES)
    begun.train(BATCHES[:3])
    saved = pickle.dumps((begun.model.state_dict(), begun.optimizer.state_dict(), first.state_dict()))
    resumed = loss_of(dual_lr=200.0)
    goes_on = trainer_of(resumed)
    model, optimizer, multipliers = pickle.loads(saved)
    goes_on.model.load_state_dict(model)
    goes_on.optimizer.load_state_dict(optimizer)
    resumed.load_state_dict(multipliers)
    goes_on.train(BATCHES[3:])
    assert torch.equal(resumed.dual.multipliers, whole.dual.multipliers) and whole.dual.multipliers.any()
    for ours, theirs in zip(goes_on.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(resumed.losses, whole.losses)


def test_erm_is_the_supervised_loss():
    class Supervised:
        def adapt_model(self, model):
            return model

        def __call__(self, x_net, x, **kwargs):
            return (x_net - x).square().mean()

    plain = Trainer(network(), [Supervised()], physics=Physics())
    trainer = trainer_of(loss_of("erm"))
    for each in (plain, trainer):
        each.train(BATCHES)
    torch.testing.assert_close(list(trainer.model.parameters()), list(plain.model.parameters()))


LOSSES = {
    "of samples": lambda prediction, x: (prediction - x).square().mean(1),
    "their mean": nn.MSELoss(),
    "of elements": nn.MSELoss(reduction="none"),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_may_be_of_elements_of_samples_or_their_mean(kind):
    x, y = BATCHES[0]
    trainer, usual = trainer_of(loss_of("linear", loss=LOSSES[kind])), trainer_of(loss_of("linear"))
    torch.testing.assert_close(trainer.loss(x, y), usual.loss(x, y))
    assert trainer.losses[0](trainer.model(y, Physics()), x).shape == (len(x),)


def test_losses_under_autocast_are_in_single_precision():
    x, y = BATCHES[0]
    trainer, exact = trainer_of(loss_of("linear")), trainer_of(loss_of("linear"))
    with torch.autocast("cpu", torch.bfloat16):
        value = trainer.losses[0](trainer.model(y, Physics()), x)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.mean(), exact.loss(x, y), rtol=0.05, atol=0)


class Wrapped(nn.Module):
    """What another loss makes of a model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, y: torch.Tensor, physics: nn.Module) -> torch.Tensor:
        return self.model(y, physics) * 1.0


def test_another_loss_may_wrap_the_model_and_training_may_begin_again():
    class Other:
        def adapt_model(self, model):
            return Wrapped(model)

        def __call__(self, x_net, **kwargs):
            return x_net.square().mean()

    loss = loss_of()
    trainer = Trainer(network(), [loss, Other()], physics=Physics())
    assert loss.adapt_model(trainer.model) is trainer.model
    trainer.train(BATCHES)
    assert loss.dual.steps == len(BATCHES)


def test_copies_of_the_model_are_not_read_and_the_loss_does_not_outlive_its_users():
    loss = loss_of()
    trainer = trainer_of(loss)
    x, y = BATCHES[0]
    x_net = trainer.model(y, Physics())
    for copied in (copy.deepcopy(trainer.model), pickle.loads(pickle.dumps(trainer.model))):
        assert torch.equal(copied(2 * y, Physics()), trainer.model.forward(2 * y, Physics()))
    loss(x_net, x).mean().backward()
    trainer.optimizer.step()
    assert loss.dual.steps == 1
    gone, model = weakref.ref(loss), trainer.model
    del loss, trainer
    gc.collect()
    assert gone() is None and model(y, Physics()).shape == x.shape


def test_a_failed_pass_leaves_no_hook_and_the_next_one_is_read():
    trainer = trainer_of(loss_of())
    x, y = BATCHES[0]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trainer.loss(x, y[:, :5])
    assert not trainer.model.iteration.step._forward_hooks
    trainer.train(BATCHES)
    assert trainer.losses[0].dual.steps == len(BATCHES)


def fail(**settings):
    trainer = trainer_of(loss_of(**settings))
    return trainer.loss(*BATCHES[0])


def without_a_pass():
    trainer = trainer_of(loss_of())
    x, y = BATCHES[0]
    trainer.losses[0](x_net=network()(y, Physics()), x=x)


def of_another_pass():
    trainer = trainer_of(loss_of())
    x, y = BATCHES[0]
    x_net = trainer.model(y, Physics())
    trainer.model(2 * y, Physics())
    trainer.losses[0](x_net=x_net, x=x)


def of_another_number():
    trainer = trainer_of(loss_of())
    trainer.model.max_iter = 3
    trainer.loss(*BATCHES[0])


def of_another_shape():
    trainer = trainer_of(loss_of())
    x, y = BATCHES[0]
    trainer.loss(x[:, :5], y)


def without_truth():
    trainer = trainer_of(loss_of())
    trainer.loss(None, BATCHES[0][1])


def of_another_model():
    loss = loss_of()
    trainer_of(loss)
    trainer_of(loss)


WRONG = {
    "not adapted": (lambda: loss_of()(x_net=None, x=None), r"no model yet: call adapt_model"),
    "no multipliers yet": (lambda: loss_of().state_dict(), r"no model yet: call adapt_model"),
    "another model": (of_another_model, r"another PGD. Make an UnrolledLoss for each"),
    "no pass": (without_a_pass, r"expected a forward pass of the PGD that adapt_model was given; got none"),
    "another pass": (of_another_pass, r"x_net must be the output of the model's last.*Put UnrolledLoss before"),
    "another number of calls": (of_another_number, r"called 3 times in a forward pass; expected depth = 4"),
    "another shape": (of_another_shape, r"have the shape of x; got \(8, 8\) and x \(8, 5\). Give a readout"),
    "no ground truth": (without_truth, r"have the shape of x; got \(8, 8\) and x NoneType"),
    "no block": (lambda: fail(blocks="step"), r"blocks must be a submodule of PGD"),
    "a loss of something": (lambda: fail(loss=lambda a, b: 1.0), r"each of 8 samples, or their mean; got a float"),
    "a loss of other samples": (lambda: fail(loss=lambda a, b: a[:3]), r"each of 8 samples.*got \(3, 8\)"),
    "a negative loss": (lambda: fail(loss=lambda a, b: -((a - b) ** 2)), r"expected a mean loss above 0"),
    "no loss": (lambda: loss_of(loss="mse"), r"loss must be a function.*'mse'"),
    "no steps": (lambda: loss_of(steps=None), r"constrained needs steps, the number of optimizer steps"),
    "steps": (lambda: loss_of(steps=2.5), r"steps must be the number of optimizer steps in the run.*2.5"),
    "no dual step": (lambda: loss_of(steps=1, dual_warmup_steps=5), r"must leave the constraints a dual step"),
    "a method of the trainer": (
        lambda: loss_of("neftune"),
        r"one of constrained, erm, linear.*Other methods need Desc",
    ),
    "another method's setting": (lambda: loss_of(inner_weight=0.5), r"a setting of the method linear"),
    "a setting of no use": (lambda: loss_of("linear", strength=0.5), r"linear are inner_weight; got strength"),
    "a setting of the trainer": (lambda: loss_of(patience=3), r"are strength, .*; got patience"),
    "a range": (lambda: loss_of(strength=2.0), r"strength must lie in \[0, 1\]; got 2.0"),
    "two bounds": (lambda: fail(alpha=0.1), r"strength and alpha are two ways"),
    "epochs": (lambda: loss_of(dual_every="epoch"), r"dual_every must be a number of steps.*'epoch'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_one_line(case):
    wrong, message = WRONG[case]
    with pytest.raises(InputError, match=message) as raised:
        wrong()
    assert "\n" not in str(raised.value)


def test_a_loss_that_is_not_finite_stops_before_backward():
    trainer = trainer_of(loss_of())
    trainer.train(BATCHES[:1])
    x, y = BATCHES[1]
    with pytest.raises(NonFiniteLossError, match=r"expected finite layer losses; got .*nan"):
        trainer.loss(x, y * float("nan"))
    trainer.optimizer.step()
    assert trainer.losses[0].dual.steps == 1


def test_a_state_of_other_constraints_is_refused():
    loss, other = loss_of(), loss_of(first_layer=1)
    trainer_of(loss)
    trainer_of(other)
    with pytest.raises(InputError, match="the saved multipliers constrain"):
        loss.load_state_dict(other.state_dict())
