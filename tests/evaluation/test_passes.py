"""How often evaluation runs the model, and that its shortcuts give what plain passes over each level give."""

from dataclasses import replace

import pytest
import torch
from transformers import default_data_collator

from descend.evaluation import layers
from descend.evaluation.evaluate import evaluate
from descend.evaluation.exits import exits
from descend.evaluation.layers import measure, read_exits
from descend.evaluation.probes import Probed
from descend.evaluation.speculation import agreements, expected_speed, speculation
from descend.models import LayeredCausalLM
from descend.noise import GaussianNoise, Noise
from descend.tasks.text.language import IGNORED
from tests.support.networks import causal
from tests.support.subjects import CASES, batches, measured, outcome, subject, texts

LEVELS = [0.0, 0.5, 1.0, 2.0]


class Count:
    """Samples that went through a model's input embedding."""

    def __init__(self, model):
        self.samples = 0
        model.get_input_embeddings().register_forward_hook(self._add)

    def _add(self, module, args, output):
        self.samples += len(output)


BATCHES = {"batch_size": 4, "collate": default_data_collator}


@pytest.mark.parametrize("name", CASES)
def test_all_layers_at_all_levels_take_one_forward_pass_for_each_level(name):
    model, task, data = CASES[name]()
    count = Count(model)
    evaluate(subject(model, task, data, GaussianNoise(0.5, 0.3), levels=LEVELS, **BATCHES))
    assert count.samples <= 1.1 * len(LEVELS) * len(data)


def test_probes_and_exits_take_no_pass_of_their_own_over_the_evaluated_samples():
    model, task, data = CASES["classifier"]()
    model.eval()
    noise, probes = GaussianNoise(0.5, 0.3), torch.nn.ModuleList(torch.nn.Linear(16, 3) for _ in range(4))
    seen = replace(subject(model, task, data, noise, levels=LEVELS, **BATCHES), probed=Probed(model, probes))
    count, kept = Count(model), {}
    summary = evaluate(seen, [lambda _, levels: kept.update(levels) or []])
    assert count.samples <= 1.1 * len(LEVELS) * len(data)
    for level in LEVELS:
        predictions, batch = [], default_data_collator(data)
        with torch.no_grad(), noise.at(level).on(model, indices=range(len(data))):
            inputs = task.inputs(batch)
            looks = model.looks(inputs)
            for probe, hidden in zip(probes, model.layer_outputs(inputs), strict=True):
                predictions.append(probe(model.pooled(hidden, looks)))
        losses = torch.stack([task.losses(each, task.target(batch)) for each in predictions]).double().mean(1)
        right = torch.stack([each.argmax(-1) == task.target(batch) for each in predictions]).double().mean(1)
        assert summary.probe.layer_losses[level] == pytest.approx(losses.tolist(), rel=1e-5)
        assert summary.probe.layer_metrics[level] == pytest.approx(right.tolist())
        assert torch.equal(kept[level].losses, measured(model, task, data, noise.at(level), **BATCHES).losses)
    before = count.samples
    known = outcome(exits, seen, kept, validation=data[:5])
    timed = 2 * len(data) + 2 * 4  # with and without leaving, the first batch of each twice
    assert count.samples - before <= 5 + timed
    unknown = outcome(exits, seen, validation=data[:5])
    assert known.confidence == unknown.confidence and known.full == unknown.full


@pytest.mark.parametrize("name", CASES)
def test_several_levels_at_once_are_what_each_is_alone_with_one_draw_for_each_sample(name, monkeypatch):
    model, task, data = CASES[name]()
    drawn, draw = [], GaussianNoise.draw
    monkeypatch.setattr(GaussianNoise, "draw", lambda self, *given: drawn.append(1) or draw(self, *given))
    noise = GaussianNoise(0.5, 0.3, seed=5)
    noises = [None, *(noise.at(level) for level in LEVELS)]
    together = measure(model, task, batches(**BATCHES).of(data), noises)
    assert len(drawn) == len(data)
    for each, at_once in zip(noises, together, strict=True):
        alone = measured(model, task, data, each, **BATCHES)
        assert torch.equal(at_once.losses, alone.losses) and at_once.metrics == alone.metrics


def test_a_noise_of_ones_own_is_still_asked_at_every_level():
    class Sign(GaussianNoise):
        def corrupt(self, clean, std, generator):
            return clean + std * torch.randn(clean.shape, generator=generator).sign()

    class Doubled(Noise):
        def corrupt(self, clean, std, generator):
            return clean + std

    data = torch.zeros(2, 5, 4)
    assert set(Sign(1.0, 0.5)(data, indices=[0, 1]).abs().unique().tolist()) == {0.5}
    assert set(Doubled(2.0, 0.5)(data, indices=[0, 1]).unique().tolist()) == {1.0}


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_language_models_exits_are_read_by_tiles(size, monkeypatch):
    model, task, data = CASES["language model"]()
    batch = default_data_collator(data)
    inputs, target = task.inputs(batch), task.target(batch)
    seen, rows = [], []
    read = model.readout
    monkeypatch.setattr(type(model), "readout", lambda self, hidden, **layer: rows.append(len(hidden)) or read(hidden))
    monkeypatch.setattr(layers, "rows_per_tile", lambda vocabulary: size)
    with torch.no_grad():
        tiled, last = read_exits(model, inputs, task, target, watch_rows=seen.append)
        logits = [read(hidden.flatten(0, 1)[inputs["places"]]) for hidden in model.layer_outputs(inputs)]
    assert max(rows) <= size and last is None
    for exit, whole in enumerate(logits):
        sure, decided = whole.float().softmax(-1).max(-1)
        torch.testing.assert_close(tiled["losses"][:, exit], task.losses(whole, target))
        torch.testing.assert_close(tiled["confidences"][:, exit], sure)
        assert torch.equal(tiled["decisions"][:, exit], decided)
        assert torch.equal(tiled["scores"][:, exit].bool(), decided == target)
    torch.testing.assert_close(torch.cat(seen), logits[-1])


# --- drafting


def test_agreement_is_that_of_a_loop_over_tokens():
    model = LayeredCausalLM(causal(initializer_range=0.5))
    prompt = torch.tensor([[5, 6, 7]])
    answer = model.saved.generate(input_ids=prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)
    with torch.no_grad():
        found = agreements(model, answer, prompt)
        expected = torch.zeros(2)
        for place in range(3, answer.shape[1]):
            states = model.layer_outputs({"input_ids": answer[:, :place]})
            for layer in (1, 2):
                expected[layer - 1] += (model.readout(states[layer][0, -1]).argmax() == answer[0, place]).item()
    assert found.tolist() == expected.tolist() and 0 <= found.min() <= found.max() <= 12


def test_all_depths_take_one_pass_and_one_drafted_answer():
    model = LayeredCausalLM(causal(num_hidden_layers=6))
    generations, generate, inside = [], model.saved.generate, []

    def outermost(**given):  # Transformers drafts by calls of its own
        if not inside:
            generations.append(given.get("assistant_early_exit"))
        inside.append(True)
        answers = generate(**given)
        inside.pop()
        return answers

    model.saved.generate = outermost
    result = outcome(speculation, subject(model, None, texts(3)), ignored=IGNORED, prompts=3)
    assert [each.layer for each in result.layers] == [1, 2, 3, 4, 5]
    assert all(0 <= each.acceptance <= 1 for each in result.layers)
    (timed,) = [each for each in result.layers if each.speed is not None]
    assert generations == [None] * 4 + [timed.layer] * 3  # one to warm up, three answers, three drafted
    best = max(result.layers, key=lambda each: expected_speed(each.layer / 6, each.acceptance))
    assert timed == best and timed.speed > 0
    # Every draft is accepted, at a quarter of the price; half of them at half of it; none.
    assert (expected_speed(0.25, 1.0), expected_speed(0.5, 0.5)) == (4, 1) and expected_speed(0.5, 0.0) < 1


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_a_model_that_can_not_draft_has_agreements_without_a_speed(family):
    """Transformers shortens a model by its configuration, which these do not look at."""
    seen = subject(LayeredCausalLM(causal(family)), None, texts(2))
    result = outcome(speculation, seen, ignored=IGNORED, prompts=2)
    assert result.tokens_per_second > 0
    assert [each.layer for each in result.layers] == [1, 2] and {each.speed for each in result.layers} == {None}
