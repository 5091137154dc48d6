"""`descend.layered` reads unrolled networks: their states, fixed arguments and noise on an argument."""

import copy
import json
import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import default_collate

import descend
from descend.errors import InputError
from descend.models import DUST, UT, DUSTConfig, LayeredClassifier, TextUTConfig, UTConfig, keep_first
from descend.noise import GaussianNoise, StateNoise
from descend.run.evaluators import MOST_SAMPLES
from descend.tasks.splits import evenly
from tests.support import own, unrolled
from tests.support.cases import slow_but
from tests.support.networks import moved, network
from tests.support.unrolled import LISTA, PGD, Looped, Physics, Step, measured, sequences, sparse

BATCH = default_collate(measured(5))
CODES = default_collate(sparse(5))
POINTS = default_collate(sequences(5))


def steps_by_hand(network, y):
    """x_0 … x_K of proximal gradient descent, by its formula."""
    physics, step = Physics(), network.iteration.step
    states = [y @ physics.A]
    for _ in range(network.max_iter):
        z = states[-1] - step.size * (states[-1] @ physics.A.T - y) @ physics.A
        states.append(z + 0.1 * torch.tanh(z @ step.prior.weight.T + step.prior.bias))
    return states


def lista_by_hand(network, y):
    states = [torch.zeros(len(y), 12)]
    for layer in network.layers:
        code = states[-1] @ layer.again.T + y @ layer.encode.T
        states.append(torch.where(code.abs() > layer.threshold, code - layer.threshold * code.sign(), 0.0))
    return states


def loops_by_hand(network, x):
    states = [network.embed(x)]
    for _ in range(network.loops):
        states.append(network.block(states[-1]))
    return states


NETWORKS = {
    "proximal gradient descent": (unrolled.pgd, BATCH, "y", steps_by_hand, lambda network, x: network(x, Physics())),
    "LISTA": (unrolled.lista, CODES, "y", lista_by_hand, lambda network, x: network(x)),
    "looped transformer": (unrolled.looped, POINTS, "x", loops_by_hand, lambda network, x: network(x)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_iteration_is_read_and_the_last_one_is_the_networks_own_output(name):
    make, batch, field, by_hand, own = NETWORKS[name]
    model = make()
    model.eval()
    states = model.layer_outputs(batch)
    expected = by_hand(model.saved, batch[field])
    assert len(states) == model.depth + 1 == len(expected)
    for state, right in zip(states, expected, strict=True):
        torch.testing.assert_close(state, right)
    *_, last = model.predictions(batch)
    assert torch.equal(last, own(model.saved, batch[field]))
    assert torch.equal(last, model(**{field: batch[field]}))


class Reordered(PGD):
    """Which calls its step in another way."""

    def __init__(self, call, step=None):
        super().__init__()
        self.call = call
        self.iteration.step = step or Step()

    def forward(self, y, physics):
        x = physics.adjoint(y)
        state = {"x": x, "z": x}
        for _ in range(self.max_iter):
            state = self.call(self.iteration.step, state, y, physics)
        return state["x"]


class MeasuredFirst(Step):
    """Whose first argument is the measurement, which has the shape of no state."""

    def forward(self, y, state, physics):
        return super().forward(state, y, physics)


class Nested(Step):
    """deepinv's own dictionary."""

    def forward(self, state, y, physics):
        out = super().forward({"x": state["est"][0]}, y, physics)
        return {"est": (out["x"], out["z"]), "cost": None}


@pytest.mark.parametrize(
    "network",
    [
        Reordered(lambda step, state, y, physics: step(state, y=y, physics=physics)),
        Reordered(lambda step, state, y, physics: step(physics=physics, y=y, state=state)),
        Reordered(lambda step, state, y, physics: step(y, state, physics), MeasuredFirst()),
    ],
    ids=["state first", "by name, state last", "measurement first"],
)
def test_the_state_is_the_argument_that_the_block_before_returned(network):
    model = unrolled.pgd(network)
    for _ in range(2):  # the first pass looks for it
        states = model.layer_outputs(BATCH)
        for state, right in zip(states, steps_by_hand(network, BATCH["y"]), strict=True):
            torch.testing.assert_close(state, right)


def test_without_a_state_the_first_tensor_counts_however_deep_it_is():
    network = Reordered(lambda step, state, y, physics: step(state, y, physics), Nested())
    network.forward = lambda y, physics: nested(network, y, physics)
    states = unrolled.pgd(network, state=descend.models.calls.first_tensor).layer_outputs(BATCH)
    assert len(states) == 5 and torch.equal(states[0], Physics().adjoint(BATCH["y"]))


def nested(network, y, physics):
    x = physics.adjoint(y)
    state = {"est": (x, x), "cost": None}
    for _ in range(network.max_iter):
        state = network.iteration.step(state, y, physics)
    return state["est"][0]


# --- noise on an argument, and what is fixed


def test_noise_is_added_to_the_measurement_wherever_it_is_used():
    model = unrolled.pgd()
    noise = descend.GaussianNoise(0.5, sigma=2.0)
    with noise.on(model, indices=range(5)):
        noisy = model.layer_outputs(BATCH)
    measured_again = noise(BATCH["y"], indices=range(5))
    assert not torch.equal(measured_again, BATCH["y"])
    for state, right in zip(noisy, steps_by_hand(model.saved, measured_again), strict=True):
        torch.testing.assert_close(state, right)
    by_position = model.layer_outputs((BATCH["y"],))
    assert torch.equal(by_position[0], Physics().adjoint(BATCH["y"]))
    with noise.on(model, indices=range(5)):
        torch.testing.assert_close(model.layer_outputs((BATCH["y"],))[-1], noisy[-1])


def test_a_submodule_comes_before_an_argument_of_its_name():
    network = Looped()
    network.x = network.embed
    assert unrolled.looped(network, embeddings="x").get_input_embeddings() is network.embed


def test_what_is_fixed_moves_with_the_module_and_is_neither_trained_nor_saved():
    physics = Physics()
    physics.gain = nn.Parameter(torch.ones(()))
    model = unrolled.pgd(fixed={"physics": physics}).to("meta")
    assert model(y=BATCH["y"].to("meta")).is_meta and model(BATCH["y"].to("meta")).is_meta
    assert not any("gain" in name for name, _ in [*model.named_parameters(), *model.state_dict().items()])


def test_a_fixed_weight_that_needs_a_gradient_is_named(caplog):
    physics = Physics()
    physics.gain = nn.Parameter(torch.ones(()))
    network = PGD()
    unrolled.pgd(network, fixed={"physics": physics, "y": torch.ones(2, requires_grad=True)})
    (warned,) = caplog.records
    assert warned.levelno == logging.WARNING
    assert "no parameters of PGD, so that they are not trained: y, physics.gain. Assign" in warned.message
    caplog.clear()
    network.physics = physics  # now it is a part of what is trained
    unrolled.pgd(network, fixed={"physics": physics, "y": torch.ones(2)})
    physics.gain.requires_grad_(False)
    unrolled.pgd(fixed={"physics": physics})
    assert not caplog.records


# --- the first K blocks


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_first_blocks_give_exit_k_and_run_no_more(name, layers, monkeypatch):
    make, batch, field, _, _ = NETWORKS[name]
    model = make().eval()
    exits = list(model.predictions(batch))
    short = descend.first(model, layers)
    calls = []
    kind = type(model.layer_modules[0])
    run = kind.forward
    monkeypatch.setattr(kind, "forward", lambda *given, **named: calls.append(1) or run(*given, **named))
    assert torch.equal(short(batch[field]), exits[layers]) and len(calls) == layers
    assert torch.equal(short(**{field: batch[field]}), exits[layers])
    assert torch.equal(model(batch[field]), exits[-1])  # the model itself is as it was


def test_the_first_blocks_are_saved_under_the_networks_own_names_and_read_by_a_shallow_one():
    model = unrolled.lista().eval()
    for number, parameter in enumerate(model.parameters()):
        parameter.data += 0.01 * number
    weights = descend.first(model, 3).state_dict()
    assert {name.split(".")[1] for name in weights} == {"0", "1", "2"}
    short = LISTA(3)
    short.load_state_dict(weights)
    exits = list(model.predictions(CODES))
    assert torch.equal(short(CODES["y"]), exits[3])
    again = descend.first(unrolled.lista(), 3)
    again.load_state_dict(weights)
    assert torch.equal(again(CODES["y"]), exits[3])


def test_a_head_behind_the_blocks_reads_the_last_one_that_runs():
    model = own.layers(own.mlp()).eval()
    points = torch.ones(2, 4)
    short = descend.first(model, 2)
    assert torch.equal(short(points), list(model.predictions({"x": points}))[2])
    weights = short.state_dict()
    torch.nn.init.zeros_(weights["head.weight"])  # of the copy, which has a head of its own
    assert not torch.equal(short(points), list(model.predictions({"x": points}))[2])


@pytest.mark.parametrize("layers", [0, 11, 2.0, True])
def test_a_number_of_blocks_that_it_does_not_have_is_refused(layers):
    with pytest.raises(InputError, match=r"1 to 10.*got"):
        descend.first(unrolled.lista(), layers)
    with pytest.raises(InputError, match=r"descend\.layered.*Whole.*descend export"):
        descend.first(own.Whole(), 1)


# --- how often the block runs


def test_the_number_of_iterations_is_read_from_an_attribute_or_an_argument():
    pgd = unrolled.pgd(depth=None, iterations="max_iter")
    loops = unrolled.looped(depth=4, iterations="loops")
    assert (pgd.depth, loops.depth) == (4, 4)
    assert torch.equal(loops(POINTS["x"]), loops.saved(POINTS["x"], loops=4))
    for model, batch, by_hand in ((pgd, BATCH, "max_iter"), (loops, POINTS, "loops")):
        with model.running(7):
            states = model.layer_outputs(batch)
        assert model.depth == 4 and len(states) == 8 and getattr(model.saved, by_hand) != 7
        assert all(map(torch.equal, states, model.layer_outputs(batch)))
    longer = PGD(7)
    longer.load_state_dict(pgd.saved.state_dict())
    with pgd.running(7):
        torch.testing.assert_close(pgd.layer_outputs(BATCH)[-1], steps_by_hand(longer, BATCH["y"])[-1])


class Configured(PGD):
    """Which keeps its number of iterations in a configuration."""

    max_iter = property(lambda self: self.config.steps, lambda self, value: None)
    config = SimpleNamespace(steps=4)


def test_the_number_may_be_in_a_configuration():
    model = unrolled.pgd(Configured(), depth=None, iterations="config.steps")
    with model.running(6):
        assert len(model.layer_outputs(BATCH)) == 7
    assert Configured.config.steps == model.depth == 4


@pytest.mark.slow
def test_an_evaluation_goes_past_the_iterations_of_training(tmp_path):
    model = unrolled.pgd(depth=None, iterations="max_iter")
    trainer = trainer_of(model, unrolled.Recovery(), measured(16), tmp_path / "run")
    trainer.train()
    data = measured(20, 1)
    usual = descend.evaluate(trainer, data)
    summary = descend.evaluate(trainer, data, iterations=8)
    assert summary.layer_losses == usual.layer_losses and summary.bounds == usual.bounds
    assert usual.past_losses == {} and {len(losses) for losses in summary.past_losses.values()} == {4}
    longer = PGD(8)
    longer.load_state_dict(model.saved.state_dict())
    batch = default_collate(data)
    right = [(x - batch["labels"]).square().mean().item() for x in steps_by_hand(longer, batch["y"])]
    assert [*summary.layer_losses[0.0], *summary.past_losses[0.0]] == pytest.approx(right, rel=1e-4)
    assert summary.past_metrics == summary.past_losses  # the metric is the loss
    written = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
    assert written["past_losses"]["0.0"] == summary.past_losses[0.0]


PATCHES = torch.rand(2, 3, 4, 256, generator=torch.Generator().manual_seed(2))
WORDS = {
    "input_ids": torch.arange(5, 19).reshape(2, 7),
    "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3]),
}


def text_ut(**settings):
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "attention_size": 8}
    return LayeredClassifier(descend.models.TextUTForSequenceClassification(TextUTConfig(**sizes | settings)))


TIED = {
    "UT": (lambda: UT(UTConfig(depth=3)), PATCHES),
    "DUST": (lambda: DUST(DUSTConfig(depth=3, atoms=400)), PATCHES),
    "DUST, proximal": (lambda: DUST(DUSTConfig(depth=3, atoms=400, layer="proximal")), PATCHES),
    "text UT": (text_ut, WORDS),
    "ALBERT": (lambda: LayeredClassifier(network("albert")), WORDS),
}


@torch.no_grad()
@pytest.mark.parametrize("name", TIED)
def test_a_tied_model_runs_on_as_a_deeper_one_of_the_same_weights(name):
    make, inputs = TIED[name]
    deeper = moved(make(), 0.01)
    model = copy.deepcopy(deeper)
    keep_first(model, 2)
    right, states = list(deeper.predictions(inputs)), model.layer_outputs(inputs)
    with model.running(3):
        assert (model.depth, model.iterative) == (3, True)
        further, predictions = model.layer_outputs(inputs), list(model.predictions(inputs))
    assert (model.depth, len(further)) == (2, 4)
    for state, again in zip(states, further, strict=False):
        torch.testing.assert_close(again, state)
    for prediction, expected in zip(predictions, right, strict=True):
        torch.testing.assert_close(prediction, expected)


def own_exits():
    model = text_ut()
    model.give_own_exits()
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UT(UTConfig(depth=3, tied=False)), "UT has layers with weights of their own, 3 in all"),
        (lambda: DUST(DUSTConfig(depth=3, atoms=400, tied=False)), "DUST has layers"),
        (lambda: text_ut(tied=False), "TextUTForSequenceClassification has layers"),
        (lambda: LayeredClassifier(network("bert")), "BertForSequenceClassification has layers"),
        (own_exits, "own exits for 3 layers and none for further ones"),
    ],
)
def test_a_model_without_a_block_to_run_again_is_refused(make, message):
    with pytest.raises(InputError, match=message) as raised:
        make().running(5).__enter__()
    assert "\n" not in str(raised.value)


@torch.no_grad()
def test_norms_of_the_state_are_measured_where_layers_are_iterations():
    data = measured(40, 1)
    model = unrolled.pgd(depth=None, iterations="max_iter").eval()
    summary = descend.evaluate(model, data, task=unrolled.Recovery(), iterations=9)
    assert summary.unit == "iteration" and not summary.grows
    chosen = default_collate([data[place] for place in evenly(40, MOST_SAMPLES)])
    longer = PGD(9)
    longer.load_state_dict(model.saved.state_dict())
    right = [x.square().mean().sqrt().item() for x in steps_by_hand(longer, chosen["y"])]
    assert summary.state_norms == pytest.approx(right, rel=1e-4) and len(summary.state_norms) == 10
    model.saved.iteration.step.size.fill_(-2.0)  # away from the data
    summary = descend.evaluate(model, data, task=unrolled.Recovery(), iterations=9)
    assert summary.grows and summary.state_norms[-1] > 10 * summary.state_norms[4]
    untied = descend.evaluate(unrolled.lista(), sparse(8), task=unrolled.Recovery())
    assert (untied.unit, untied.state_norms, untied.grows) == ("layer", [], False)


class Turning(nn.Module):
    """Steps of complex numbers, whose products are taken in another order than a readout does."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(8, 8, bias=False, dtype=torch.complex64)
        self.first, self.second = (
            nn.Parameter(torch.randn(*size, dtype=torch.complex64)) for size in ((8, 50), (50, 8))
        )
        self.max_iter = 4

    def forward(self, y):
        for _ in range(self.max_iter):
            y = self.step(y)
        return (y @ self.first) @ self.second


class Distance(unrolled.Recovery):
    def losses(self, prediction, target):
        return (prediction - target).abs().square().mean(1)


@torch.no_grad()
def test_a_network_of_complex_numbers_is_read_and_its_norms_are_those_of_both_parts():
    torch.manual_seed(0)
    network = Turning()
    readout = lambda state: state @ (network.first @ network.second)  # noqa: E731
    model = descend.layered(network, blocks="step", readout=readout, embeddings=None, iterations="max_iter").eval()
    y = torch.randn(12, 8, dtype=torch.complex64)
    data = [{"y": each, "labels": each} for each in y]
    summary = descend.evaluate(model, data, task=Distance(), iterations=6)
    states = [y]
    for _ in range(6):
        states.append(network.step(states[-1]))
    assert summary.state_norms == pytest.approx([each.abs().square().mean().sqrt().item() for each in states], rel=1e-5)
    other = descend.layered(network, blocks="step", readout=lambda state: 1.01 * readout(state), iterations="max_iter")
    with pytest.raises(InputError, match="must equal"):
        other.eval().layer_outputs({"y": y})


@torch.no_grad()
def test_padding_has_no_part_in_the_norm_of_a_text():
    model = text_ut().eval()
    rows = [{name: values[place] for name, values in WORDS.items()} | {"labels": place} for place in (0, 1)]
    summary = descend.evaluate(model, rows)
    states, mask = model.layer_outputs(WORDS), WORDS["attention_mask"].bool()
    right = [sum(h[row][mask[row]].square().mean() for row in (0, 1)).div(2).sqrt().item() for h in states]
    assert summary.state_norms == pytest.approx(right, rel=1e-4) and summary.past_losses == {}


COUNTS = {
    "different blocks": (lambda: unrolled.lista(iterations="depth"), "single block of LISTA.*10 different blocks"),
    "no such attribute": (lambda: unrolled.pgd(iterations="max_iters"), r"attribute of PGD.*y, physics.*'max_iters'"),
    "another depth": (lambda: unrolled.pgd(depth=5, iterations="max_iter"), "max_iter is 4 and depth is 5"),
    "neither way": (lambda: unrolled.looped(depth=None, iterations="loops"), "no whole number and depth is not given"),
    "not told": (lambda: unrolled.pgd().running(8).__enter__(), "PGD runs 4 block calls.*give iterations"),
}


@pytest.mark.parametrize("fault", COUNTS)
def test_a_number_of_iterations_that_is_not_known_is_refused_in_one_line(fault):
    make, message = COUNTS[fault]
    with pytest.raises(InputError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("model", "iterations", "message"),
    [
        (unrolled.pgd(depth=None, iterations="max_iter"), 4, "above 4.*got 4"),
        (unrolled.pgd(depth=None, iterations="max_iter"), True, "above 4.*got True"),
        (unrolled.pgd(), 8, "PGD runs 4 block calls"),
        (own.Whole(), 8, "Whole"),
    ],
)
def test_an_evaluation_that_can_not_go_further_is_refused(model, iterations, message):
    with pytest.raises(InputError, match=message):
        descend.evaluate(model, measured(8), task=unrolled.Recovery(), iterations=iterations)


# --- bad input


class Changing(Step):
    """Which adds to its state in place."""

    def forward(self, state, y, physics):
        state["x"] += super().forward(state, y, physics)["z"] * 0
        return state


class Growing(Step):
    """Whose iterations have another shape each."""

    def forward(self, state, y, physics):
        return {"x": torch.cat([state["x"], state["x"]])}


def later_in_place(step, state, y, physics):
    out = step(state, y, physics)
    out["x"].mul_(1)
    return out


FAULTS = {
    "no such part": ({"state": lambda out: out["u"]}, None, r"state must give a tensor of what Step.*KeyError.*'u'"),
    "no tensor": ({"state": lambda out: 3}, None, "state must give a tensor.*a int"),
    "no function": ({"state": "x"}, None, "state must be a function.*'x'"),
    "nothing in it": ({"state": lambda out: out["cost"]}, None, "state must give a tensor"),
    "only one side": (
        {"state": lambda out: out["x"] if "cost" not in out else None},
        None,
        "state must give a tensor of the output of Step.*NoneType",
    ),
    "several shapes": ({}, lambda: Reordered(lambda *given: given[0](*given[1:]), Growing()), "must have one shape"),
    "in place": ({}, lambda: Reordered(lambda *given: given[0](*given[1:]), Changing()), "h_0.*in place"),
    "in place outside": ({}, lambda: Reordered(later_in_place), "h_1.*output of block 1.*in place"),
    "between blocks": (
        {},
        lambda: Reordered(lambda *given: {"x": 2 * given[0](*given[1:])["x"]}),
        "block 2 of Reordered is not given what block 1 returns",
    ),
    "another part": ({"state": lambda out: out["z"]}, None, r"readout\(h_L\).*must equal.*state says"),
    "no depth": ({"depth": None}, None, "called 4 times.*depth = 1.*the depth"),
    "too deep": ({"depth": 5}, None, "called 4 times.*depth = 5"),
    "another argument": ({"fixed": {"phisics": 1}}, None, "fixed.*y, physics, compute_metrics.*phisics"),
    "not by name": ({"fixed": [Physics()]}, None, "fixed must be a dictionary.*list"),
    "no such x": ({"embeddings": "z"}, None, "embeddings.*'z'.*forward takes y, physics, compute_metrics"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_can_not_be_read_is_refused_in_one_line(fault):
    settings, make, message = FAULTS[fault]
    with torch.no_grad(), pytest.raises(InputError, match=message) as raised:
        unrolled.pgd(make and make(), **settings).layer_outputs(BATCH)
    assert "\n" not in str(raised.value)


def test_physics_that_is_not_given_is_refused_before_the_first_step(tmp_path):
    model = unrolled.pgd(fixed=None)
    with pytest.raises(InputError, match=r"'physics'.*fields y, labels.*fixed=\{name: value\}"):
        trainer_of(model, unrolled.Recovery(), measured(8), tmp_path)


# --- from training to the page


def trainer_of(model, task, train, folder, **settings):
    args = descend.DescentConfig(folder, **{"use_cpu": True, "max_steps": 3, "learning_rate": 1e-2} | settings)
    return descend.DescentTrainer(model, args, task=task, train_dataset=train, eval_dataset=train[:8], noise=0.1)


RUNS = {
    "proximal gradient descent": (unrolled.pgd, unrolled.Recovery, measured),
    "LISTA": (unrolled.lista, unrolled.Recovery, sparse),
    "looped transformer": (unrolled.looped, own.Classes, sequences),
}


@pytest.mark.parametrize("method", slow_but(["constrained"], ["erm", "linear", "constrained"]))
@pytest.mark.parametrize("name", slow_but(["LISTA"], RUNS))
def test_it_is_trained_evaluated_and_answered(name, method, tmp_path):
    make, task, samples = RUNS[name]
    model = make()
    before = copy.deepcopy(model.saved.state_dict())
    trainer = trainer_of(model, task(), samples(16), tmp_path / "run", method=method)
    trainer.train()
    assert any(not torch.equal(before[key], value) for key, value in model.saved.state_dict().items())
    summary = descend.evaluate(trainer, samples(20, 1))
    assert {len(losses) for losses in summary.layer_losses.values()} == {model.depth + 1}
    assert summary.unit == ("layer" if name == "LISTA" else "iteration")
    headline = summary.answer.splitlines()[0]
    assert summary.unit in headline.lower() and ("layer" in summary.answer) is (summary.unit == "layer")
    assert (tmp_path / "run" / "report.html").is_file()
    torch.manual_seed(0)
    loaded = make(type(model.saved)())
    loaded.saved.load_state_dict(model.saved.state_dict())
    again = descend.evaluate(loaded, samples(20, 1), task=task(), noise=[0.0])
    *_, last = model.eval().predictions(default_collate(samples(20, 1)))
    losses = task().losses(last, default_collate(samples(20, 1))["labels"])
    assert again.layer_losses[0.0][-1] == pytest.approx(losses.mean().item(), rel=1e-4)


def test_noise_between_layers_of_an_unrolled_network_changes_what_its_blocks_are_given():
    model = unrolled.looped().eval()
    clean = model.layer_outputs(POINTS)
    with StateNoise(0.5, 1.0).on(model, indices=range(5)):
        noisy = model.layer_outputs(POINTS)
    with GaussianNoise(0.5, 1.0).on(model, indices=range(5)):
        first = model.layer_outputs(POINTS)
    assert torch.equal(noisy[1], first[1]) and not torch.equal(noisy[0], clean[0])  # the input's noise is the same
    assert not torch.allclose(noisy[2], first[2])


def test_no_weight_in_the_first_step_is_no_idle_head(tmp_path, caplog):
    """With ``after`` later layers have no weight until λ rises."""
    trainer = trainer_of(unrolled.lista(), unrolled.Recovery(), sparse(16), tmp_path, after=4)
    trainer.train()
    assert "no gradient reaches" not in caplog.text


def test_after_beside_another_method_is_said_to_judge_alone(tmp_path, caplog):
    trainer_of(unrolled.lista(), unrolled.Recovery(), sparse(16), tmp_path, after=4, method="erm")
    assert "after 4 is only what the model is judged by: the method erm" in caplog.text


def test_sigma_is_that_of_the_measurement(tmp_path):
    data = measured(40)
    summary = descend.evaluate(unrolled.pgd(), data, task=unrolled.Recovery(), noise=[0.0, 0.5])
    measurements = torch.stack([sample["y"] for sample in data])
    assert summary.sigma == pytest.approx(measurements.std(correction=0).item(), rel=1e-4)
