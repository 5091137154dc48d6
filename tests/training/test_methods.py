"""The methods beside constraints: LayerSkip, R-Drop, NEFTune and own exits, each against its formulas by hand."""

from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import default_collate

from descend import DescentConfig, DescentTrainer, GaussianNoise, InputError, Objective
from descend.contract import resolve
from descend.evaluation.layers import Batches
from descend.evaluation.probes import STATE_RIDGE, fit_exits, fit_probes
from descend.methods import CLASSES
from descend.models import MARK, LayeredCausalLM, LayeredClassifier, ViTDenoiser, ViTDenoiserConfig, keep_first
from descend.seeds import Stream, generator_of
from descend.tasks.text import Classification
from tests.support import own, ranks
from tests.support.networks import QUIET, causal, moved, network


def attached(method, objective, **changes):
    """A method as a trainer of this objective has it."""
    args = DescentConfig("unused", method=method, use_cpu=True, report_to="none", seed=3, **changes)
    made = CLASSES[method](args)
    made.attach(SimpleNamespace(objective=objective, dual=args.primal_dual(objective.model.depth)))
    return made


same = partial(torch.testing.assert_close, rtol=0, atol=0)


# --- LayerSkip


def layer_skip(model=None, layers=3, **changes):
    model = model or LayeredClassifier(network("distilbert", n_layers=layers))
    task = None if isinstance(model, LayeredCausalLM) else own.Classes()
    return attached("layerskip", Objective(model, task), **changes)


@pytest.mark.parametrize(
    ("schedule", "step", "steps", "expected"),
    [
        ({}, 0, 11, [0] * 5),
        ({}, 4, 11, [(2**0.4 - 1) * (2 ** (block / 4) - 1) * 0.3 for block in range(5)]),
        ({}, 10, 11, [(2 ** (block / 4) - 1) * 0.3 for block in range(5)]),  # 0.3 for the last block
        *(
            ({"layer_dropout_schedule": "constant"}, step, steps, [0, (2**0.5 - 1) * 0.3, 0.3])
            for step, steps in ((0, 11), (9, 11), (0, 1))
        ),
    ],
)
def test_rates_grow_exponentially_with_the_block_and_the_step(schedule, step, steps, expected):
    skip = layer_skip(layers=len(expected), layer_dropout=0.3, **schedule)
    assert skip.rates(step, steps) == pytest.approx(expected)


# The number of layers, settings and the number of steps; by step e(0) … e(L) of the exits that are on.
EXITS = {
    "every second inner exit in turn": (
        *(5, {"exit_scale": 0.5, "exit_rotation": 2}, 100),
        {step: [0, 0.5, 0, 3, 0, 10] if step % 2 == 0 else [0, 0, 1.5, 0, 5, 10] for step in range(4)},
    ),
    "one inner exit in turn": (
        *(5, {}, 100),
        {
            **{0: [0, 1, 0, 0, 0, 15], 1: [0, 0, 3, 0, 0, 15], 2: [0, 0, 0, 6, 0, 15], 3: [0, 0, 0, 0, 10, 15]},
            **{4: [0, 1, 0, 0, 0, 15], 5: [0, 0, 3, 0, 0, 15]},
        },
    ),
    "the last exit alone": (3, {"exit_scale": 0.0}, 100, {7: [0, 0, 0, 1]}),
    "from the last to the first": (
        *(4, {"exit_curriculum": "gradual"}, 80),
        {
            **{0: [0, 0, 0, 0, 10], 9: [0, 0, 0, 0, 10], 10: [0, 0, 0, 6, 10], 20: [0, 0, 3, 6, 10]},
            **{29: [0, 0, 3, 6, 10], 30: [0, 1, 3, 6, 10], 79: [0, 1, 3, 6, 10]},
        },
    ),
}


@pytest.mark.parametrize(("layers", "settings", "steps", "scales"), EXITS.values(), ids=EXITS)
def test_weights_are_the_papers_scale_of_the_exits_that_are_on(layers, settings, steps, scales):
    skip = layer_skip(layers=layers, **settings)
    for step, on in scales.items():
        assert skip.weights(step, steps) == pytest.approx([scale / sum(on) for scale in on])


TOKENS = {"input_ids": torch.arange(320).reshape(64, 5) % 39 + 1, "attention_mask": torch.ones(64, 5).long()}
VIT = ViTDenoiserConfig(num_hidden_layers=3, hidden_size=16, num_attention_heads=2)
LAYERED = {
    **{name: LayeredClassifier(network(name)) for name in ("distilbert", "bert", "roberta", "descend-text-ut")},
    **{name: LayeredCausalLM(causal(name)) for name in ("llama", "gemma3_text")},
    **{"vit": ViTDenoiser(VIT), "own": own.layers()},
}
"""Models of several kinds, three blocks each."""


@pytest.mark.parametrize("kind", LAYERED)
def test_dropped_rows_leave_a_block_as_they_entered_it(kind):
    inputs = {"vit": torch.rand(32, 2, 100, 256), "own": torch.rand(64, 4)}.get(kind, TOKENS)
    model = LAYERED[kind].train()
    for each in model.modules():
        each.p = 0.0 if isinstance(each, torch.nn.Dropout) else getattr(each, "p", None)
    skip = layer_skip(model, layer_dropout=0.6, layer_dropout_schedule="constant")
    whole = model.layer_outputs(inputs)
    with skip.installed():
        skip.before_pass(0, 10)
        states = [each.flatten(0, -3) if kind == "vit" else each for each in model.layer_outputs(inputs)]
        model.eval()
        same(model.layer_outputs(inputs), whole)
    passed = [(after == before).flatten(1).all(1).double().mean() for before, after in pairwise(states)]
    assert passed[0] == 0 and passed[1] == pytest.approx(0.6 * (2**0.5 - 1), abs=0.12)
    assert passed[2] == pytest.approx(0.6, abs=0.15)
    model.train()
    same(model.layer_outputs(inputs), whole)  # no hook is left


def test_recomputed_blocks_repeat_their_draw(tmp_path):
    found = []
    for again in (False, True):
        settings = {"method": "layerskip", "layer_dropout": 0.5, "gradient_checkpointing": again}
        found.append(ranks.weights(ranks.fitted(ranks.classifier(tmp_path / str(again), **settings))))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


# --- NEFTune


def test_training_is_transformers_own_neftune_and_evaluation_has_our_noise(tmp_path):
    made = partial(ranks.classifier, noise=GaussianNoise(0.5, 0.02, seed=1), dropout=0.1, neftune_noise_alpha=3.0)
    ours = ranks.fitted(made(tmp_path / "ours", method="neftune"))
    plain = made(tmp_path / "plain", method="erm")
    noise, plain.objective.noise = plain.objective.noise, None
    plain.train()
    plain.objective.noise = noise
    assert torch.equal(ranks.weights(ours), ranks.weights(plain))
    assert ours.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    assert ours._level == 0.5


# --- R-Drop


def test_the_step_is_that_of_two_passes_by_hand():
    """Of five texts of one to nine tokens; each pass has the noise that is its own: the draw covers both."""
    generator, lengths = torch.Generator().manual_seed(0), torch.tensor([[9], [4], [1], [7], [6]])
    ids, mask = torch.randint(1, 40, (5, 9), generator=generator), (torch.arange(9) < lengths).long()
    labels = torch.tensor([0, 2, 1, 1, 0])
    model = network("distilbert", dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0).double().train()
    with torch.no_grad():  # as it is made it tells all texts alike
        for layer in (model.pre_classifier, model.classifier):
            layer.weight.mul_(30)
    ours = Objective(model, noise=GaussianNoise(0.8, 0.3, seed=4))
    attached("r-drop", ours, r_drop=0.7)
    found = ours([0.0, 0.0, 0.0, 1.0], input_ids=ids, attention_mask=mask, labels=labels)
    words = model.get_input_embeddings()(ids)
    draw = torch.randn(10, *words.shape[1:], generator=generator_of(Stream.NOISE, 4, 0), dtype=torch.float64)
    kept = mask.bool()[..., None]
    passes = [
        model(inputs_embeds=torch.where(kept, words + 0.8 * 0.3 * each, words), attention_mask=mask).logits
        for each in draw.chunk(2)
    ]
    first, second = (logits.log_softmax(-1) for logits in passes)
    entropy = sum(torch.nn.functional.cross_entropy(logits, labels, reduction="sum") for logits in passes) / 2
    ways = ((first, second), (second, first))  # KL(q‖p), and the other way round
    apart = sum(torch.nn.functional.kl_div(*way, reduction="sum", log_target=True) for way in ways) / 2
    assert apart > 1e-3
    torch.testing.assert_close(found.lagrangian, entropy + 0.7 * apart, rtol=1e-12, atol=1e-12)
    assert (found.sums[-1], found.targets) == (pytest.approx(entropy.item(), rel=1e-12), 5)
    slopes, expected = (
        torch.autograd.grad(loss, list(model.parameters())) for loss in (found.lagrangian, entropy + 0.7 * apart)
    )
    torch.testing.assert_close(slopes, expected, rtol=1e-10, atol=1e-12)
    assert max(each.abs().max() for each in expected) > 0.01
    half = first.bfloat16()
    assert ours.task.disagreement(half, half).tolist() == [0] * 5
    assert ours.task.disagreement(half, second.bfloat16()).dtype == torch.float32


def test_useful_layers_are_trained_as_under_constraints_and_not_judged_by_them(tmp_path):
    evaluated = {
        **dict.fromkeys(["alpha", "cap", "dual_lr", "dual_optimizer", "dual_warmup_steps", "slack_lr"]),
        **{"slack": "implicit", "strength": 1.0, "eval_strategy": "steps", "eval_steps": 2},
    }
    useful, asked = (
        ranks.fitted(ranks.classifier(tmp_path / method, method=method, **evaluated))
        for method in ("useful", "constrained")
    )
    same(ranks.weights(useful), ranks.weights(asked))
    measured, judged = useful.evaluate(), asked.evaluate()
    assert useful.dual.multipliers.sum() > 0 and judged["eval_merit"] > judged["eval_loss"]
    assert measured["eval_merit"] == measured["eval_loss"] and measured["eval_violation"] == judged["eval_violation"]
    assert (useful.verdict.status, asked.verdict.asked) == ("not_asked", True)
    assert not (tmp_path / "useful" / "best_feasible").exists()


# --- own exits


def texts():
    """Four texts without padding, and their classes."""
    ids = torch.randint(5, 40, (4, 9), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 2, 1, 1])}


def test_a_probe_changes_no_bit_of_the_model(tmp_path):
    """And its exits learn: those of all layers begin as one and part."""
    plain, probed = (
        ranks.trained("classifier", tmp_path / method, 8, 1, method=method, max_grad_norm=0.01)
        for method in ("erm", "probe")
    )
    assert all(torch.equal(probed[name], plain[name]) for name in plain if name.startswith("θ "))
    exits = [probed[f"θ model.network.exits.{layer}.classifier.weight"] for layer in range(3)]
    assert not any(torch.equal(*pair) for pair in pairwise(exits))
    assert len(probed["losses"]) == 4 * 6


def test_heads_have_their_own_learning_rate(tmp_path):
    made = ranks.fitted(ranks.classifier(tmp_path, method="probe", head_lr_ratio=10.0, learning_rate=0.01))
    heads = {id(each) for each in made.objective.model.head_parameters()}
    learned = [(id(each), group["initial_lr"]) for group in made.optimizer.param_groups for each in group["params"]]
    assert {(key in heads, rate) for key, rate in learned} == {(True, 0.1), (False, 0.01)}
    assert len(dict(learned)) == len(learned) == len(list(made.model.parameters()))


def test_exits_of_a_language_model_start_at_least_squares(tmp_path):
    model = causal(attention_dropout=0.0)
    rows = [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in texts()["input_ids"]]
    layers = DescentTrainer(
        model, DescentConfig(str(tmp_path), method="probe", **QUIET), train_dataset=rows
    ).objective.model
    with torch.no_grad():
        states = layers.layer_outputs({"input_ids": texts()["input_ids"]})
        normed = [layers.head_input(state, None).flatten(0, 1).double() for state in states]
    for layer, readout in enumerate(layers.own_exits):
        gram = normed[layer].T @ normed[layer]
        ridge = STATE_RIDGE * gram.diagonal().mean()
        matrix = readout["translator"].weight.detach().double()
        slope = gram @ matrix.T - normed[layer].T @ normed[-1] + ridge * matrix.T
        assert slope.abs().max() < 1e-4 * gram.abs().max()
        torch.testing.assert_close(layers.head_input(states[layer], layer)[0, 0].double(), matrix @ normed[layer][0])


def test_exits_of_a_classifier_are_fitted_as_probes_are():
    """The same regressions, of a head that is one linear layer; the last layer's head is fitted, too."""
    model = network("descend-mean-pooled").eval()
    rows = [{name: value[row] for name, value in texts().items()} for row in range(4)] * 3
    batches, task = Batches(4), Classification()
    layers, _ = resolve(model, None, None)
    probed = fit_probes(layers, task, rows, rows, GaussianNoise(0.0, 1.0), batches)
    expected = list(probed.predictions(texts()))[4:]
    fit_exits(layers, task, rows, rows, batches)
    torch.testing.assert_close(list(layers.predictions(texts())), expected)
    with pytest.raises(InputError, match="is pre_classifier and classifier"):
        fit_exits(resolve(network("distilbert"), None, None)[0], task, rows, rows, batches)


def test_a_model_with_own_exits_is_trained_further(tmp_path):
    """Cut to 2 layers it keeps the exits before them; asked for a shared readout it has none."""
    model = network("bert").eval()
    layers, _ = resolve(model, None, None)
    layers.give_own_exits()
    moved(layers.own_exits, 0.1)
    with torch.no_grad():
        expected = list(layers.predictions(texts()))
        keep_first(layers, 2)
        torch.testing.assert_close(list(layers.predictions(texts())), expected[:3])
    assert layers.depth == len(layers.own_exits) == 2
    for exits in ({}, {"exits": "shared"}):
        args = DescentConfig(str(tmp_path), method="erm", **QUIET, **exits)
        assert DescentTrainer(model, args).objective.own == (not exits)
    assert not hasattr(model, "exits") and not hasattr(model.config, MARK)


# --- Random depth


def test_random_depth_takes_each_layer_as_often_and_the_same_one_wherever_a_step_is_taken(tmp_path):
    method = attached("random-depth", Objective(own.layers(), own.Classes()), max_steps=600)
    rows = torch.tensor([method.weights(step, 600) for step in range(600)])
    assert (rows.sum(1) == 1).all() and not rows[:, 0].any()
    counts = rows[:, 1:].sum(0)
    assert counts.min() > 160 and counts.max() < 240  # 200 each of three, within 3.5 standard deviations
    again = attached("random-depth", Objective(own.layers(), own.Classes()))
    assert again.weights(417, 1000) == rows[417].tolist()  # whatever was drawn before, as in a resumed run
    assert method.inner and CLASSES["random-depth"].objective_weights(4, None) == [0, 0.25, 0.25, 0.25, 0.25]


def test_steps_of_random_depth_are_those_on_the_loss_of_the_drawn_layers(tmp_path):
    """By hand: SGD on the loss of the layer that the method names at each step."""
    samples = own.samples(8)
    settings = {"optim": "sgd", "lr_scheduler_type": "constant", "learning_rate": 0.1, "max_grad_norm": 0.0}
    settings |= {"max_steps": 6, "per_device_train_batch_size": 8, "seed": 5}
    args = DescentConfig(str(tmp_path), method="random-depth", **QUIET | settings)
    torch.manual_seed(1)
    trainer = DescentTrainer(own.layers(), args, task=own.Classes(), train_dataset=samples)
    trainer.train()
    torch.manual_seed(1)
    model = own.layers()
    drawn = [trainer.method.weights(step, 6).index(1.0) for step in range(6)]
    assert len(set(drawn)) > 1
    batch = default_collate(samples)
    for layer in drawn:
        model.zero_grad()
        own.Classes().losses(list(model.predictions(batch))[layer], batch["labels"]).mean().backward()
        with torch.no_grad():
            for each in model.parameters():
                if each.grad is not None:
                    each -= 0.1 * each.grad
    for ours, expected in zip(trainer.objective.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


# --- Weights that are given


def trained(folder, method, **changes):
    """An own model's parameters after 8 steps under a method, from the same start and the same batches."""
    torch.manual_seed(1)
    args = DescentConfig(str(folder), method=method, **QUIET | {"max_steps": 8, "logging_steps": 1}, **changes)
    trainer = DescentTrainer(own.layers(), args, task=own.Classes(), train_dataset=own.samples(64))
    trainer.train()
    return [each.detach().clone() for each in trainer.objective.model.parameters()]


def test_replayed_weights_train_the_model_that_the_multipliers_trained(tmp_path):
    alpha = {"alpha": 0.5, "dual_optimizer": "sgd", "dual_lr": 5.0, "dual_warmup_steps": 2, "stop_gradient": False}
    first = trained(tmp_path / "first", "constrained", **alpha)
    again = trained(tmp_path / "again", "weighted", layer_weights=str(tmp_path / "first"))
    plain = trained(tmp_path / "plain", "erm")
    same(again, first)
    same(trained(tmp_path / "constant", "weighted", layer_weights="0,0,0,1"), plain)
    assert any(not torch.equal(ours, theirs) for ours, theirs in zip(first, plain, strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"needs layer_weights \(--layer-weights\): 4 numbers"),
        ("0,1", r"must be 4 finite numbers.*'0,1' has \[0.0, 1.0\]"),
        ("0,0,nan,1", "must be 4 finite numbers"),
        ("nowhere", "or the folder of a run whose records.jsonl has weights; got nowhere"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_the_first_step(given, message):
    with pytest.raises(InputError, match=message):
        attached("weighted", Objective(own.layers(), own.Classes()), layer_weights=given)
