"""What is measured: losses, metrics, probes, exits, groups, times, drafts; against computations by hand."""

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from torch.utils.data import Subset
from transformers import DataCollatorWithPadding, default_data_collator

from descend import UT, DescentProblem, GaussianNoise, UTConfig
from descend.evaluation.layers import LayerLosses, embedding_std, measure, metric_value
from descend.evaluation.probes import RIDGES, Probed, fit_probes
from descend.evaluation.satisfaction import verdict
from descend.models import LayeredCausalLM, LayeredClassifier
from descend.recipes import RECIPES
from descend.run.early import COST, REPEATS, WARM_UP, _time_ratio, agreements, exits, latency
from descend.run.evaluating import EDGES, LinearProbes, ratios, results_of
from descend.run.evaluators import input_metrics, pictures
from descend.seeds import of_sample
from descend.tasks.text import Classification, generate_reviews, tokenize
from descend.tasks.video import VideoDenoising, load_video, unpatchify
from tests.support import own, texts
from tests.support.cases import slow_but
from tests.support.networks import causal, embedded, moved, network
from tests.support.subjects import CASES, batches, measured, outcome, subject

VIDEO, TEXT, SIGMA = VideoDenoising(), Classification(), 0.2
LEVELS = [0.0, 0.5, 1.0, 2.0]
BATCHES = {"batch_size": 4, "collate": default_data_collator}


@pytest.fixture(scope="module")
def windows():
    """Of three frames, the middle one of which is shown."""
    return Subset(load_video(None, 3, stride=40, seed=0).test, range(3, 24))  # 21: no multiple of a batch


@pytest.fixture(scope="module")
def model() -> UT:
    return moved(UT(UTConfig(depth=3)), 0.002)


@pytest.fixture(scope="module")
def tokenizer():
    return texts.review_tokenizer()


@pytest.fixture
def classifier(tokenizer) -> LayeredClassifier:
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    return LayeredClassifier(network("distilbert", labels=2, initializer_range=0.3, **sizes).eval())


# --- losses and metrics


@pytest.mark.parametrize(("training", "size"), [(True, 1), (False, 16)])
@torch.no_grad()
def test_measure_is_the_computation_by_hand(model, windows, training, size):
    """Whatever the batches and the model's mode, which stays."""
    found = measured(model.train(training), VIDEO, windows, GaussianNoise(0.8, SIGMA, 7), size)
    losses, squares = [], torch.zeros(4, dtype=torch.float64)
    for place in range(len(windows)):
        clean = windows[place]["patches"]
        noise = torch.Generator().manual_seed(of_sample(7, place))
        noisy = clean + 0.8 * SIGMA * torch.randn(clean.shape, generator=noise)
        outputs = [model.readout(hidden)[0] for hidden in model.layer_outputs(noisy[None])]
        losses.append([(each - clean).norm(dim=-1).sum(0).mean().item() / 2 for each in outputs])
        squares += torch.tensor([(each - clean).double().square().mean().item() for each in outputs])
    torch.testing.assert_close(found.losses, torch.tensor(losses, dtype=torch.float64), rtol=1e-5, atol=0)
    assert found.metrics == pytest.approx((255 * (squares / len(windows)).sqrt()).tolist(), rel=1e-5)
    falls = [after < before for row in losses for before, after in pairwise(row)]
    assert found.descending_share == pytest.approx(np.mean(falls))
    assert found.groups.tolist() == [window["group"] for window in windows] and found.group_count > 1
    assert model.training is training


def test_measure_does_not_depend_on_the_default_dtype_or_device():
    """The meta device stands in for a GPU."""
    model, task, noise = own.layers(), own.Classes(), GaussianNoise(0.8, SIGMA, 7)
    batches = [default_data_collator(own.samples(4, seed)) for seed in range(3)]

    def found() -> list[float]:
        (layers,) = measure(model, task, batches, [noise])
        return [*layers.losses.mean(0).tolist(), *ratios(layers).histogram.counts[0]]

    usual = found()
    torch.set_default_dtype(torch.float64)
    try:
        assert found() == usual
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert found() == usual


@torch.no_grad()
def test_measure_of_a_classifier_is_the_computation_by_hand(classifier, tokenizer):
    rows, noise = tokenize(Dataset.from_list(generate_reviews(60, 5)), tokenizer, 50), GaussianNoise(0.5, 0.3, seed=4)
    found = measured(classifier, TEXT, rows, noise, 7, DataCollatorWithPadding(tokenizer))
    for place in (0, 13, 59):
        row = rows[place]
        ids, label = torch.tensor([row["input_ids"]]), row["labels"]
        noisy = noise(classifier.get_input_embeddings()(ids), indices=[place])
        hidden = classifier.network.distilbert(inputs_embeds=noisy, output_hidden_states=True).hidden_states
        probabilities = torch.stack([classifier.readout(each)[0].softmax(-1) for each in hidden])
        torch.testing.assert_close(found.losses[place], -probabilities[:, label].log().double(), rtol=1e-4, atol=1e-5)
        assert found.decisions[place].tolist() == probabilities.argmax(-1).tolist()
        torch.testing.assert_close(found.confidences[place], probabilities.amax(-1), rtol=1e-4, atol=1e-5)
        assert found.scores[place].tolist() == (probabilities.argmax(-1) == label).double().tolist()
    assert found.metrics == pytest.approx(found.scores.mean(0).tolist())
    assert found.groups.tolist() == list(range(60))  # these texts say nothing of groups
    np.testing.assert_allclose(found.ratios, found.losses[:, 1:] / found.losses[:, :-1])


class Unknown(Classification):
    """A task that knows nothing of the embedding, so that σ_x is measured by forward passes."""

    def sigma(self, embedding, dataset):
        """Not known."""


def test_sigma_is_that_of_all_tokens_of_samples_taken_evenly(classifier, tokenizer, monkeypatch):
    monkeypatch.setattr("descend.evaluation.layers.MOST_FOR_SIGMA", 20)
    random = np.random.default_rng(0)
    # Texts of one word each first, then of many, long and short: no batch is like all of them, and most have padding.
    texts = [[5] * 4] * 20 + [random.integers(5, 50, random.integers(2, 50)).tolist() for _ in range(40)]
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": 0} for ids in texts]
    words = classifier.get_input_embeddings().weight.detach().double().numpy()
    found = embedding_std(classifier, Unknown(), rows, batches(7, DataCollatorWithPadding(tokenizer)))
    assert found == pytest.approx(words[np.concatenate(texts[1::3])].std())
    assert not classifier.get_input_embeddings()._forward_hooks


def test_every_level_is_measured_and_the_verdict_taken_at_the_training_noise(model, windows):
    problem = DescentProblem(3, alpha=0.1)
    seen = subject(model, VIDEO, windows, GaussianNoise(0.8, SIGMA), levels=[1.5, 0], problem=problem)
    summary = json.loads(json.dumps(results_of(seen, [input_metrics]).summary.content()))
    at = {level: measured(model, VIDEO, windows, GaussianNoise(level, SIGMA)) for level in (0.0, 0.8, 1.5)}
    values, found = [at[0.0].metrics[-1], at[1.5].metrics[-1]], verdict(problem, at[0.8])
    known = {
        **{"noise": [0, 1.5], "values": values, "mean": np.mean(values), "auc": pytest.approx(1.5 * np.mean(values))},
        **{"train_noise": 0.8, "train_value": at[0.8].metrics[-1], "samples": 21, "groups": found.groups},
        **{"violations": found.violations, "undecided": found.undecided},
        "descending_share": at[0.8].descending_share,
    }
    assert summary.items() >= known.items()
    assert [(row["noise"], row["metric"]) for row in summary["anytime"]] == [(level, at[level].metrics) for level in at]
    # UT's exit 0 is its noisy input.
    assert summary["input_metrics"] == pytest.approx({str(level): one.metrics[0] for level, one in at.items()})


def test_pictures_are_of_samples_taken_evenly_at_every_level_and_layer(model, windows):
    noise = GaussianNoise(0.8, SIGMA, 3)
    found = outcome(pictures, subject(model, VIDEO, windows, noise, levels=[2, 0, 0.8, 0.8]), count=2)
    shapes = {"clean": (2,), "noisy": (3, 2), "reconstruction": (3, 4, 2)}
    assert {name: found[name].shape for name in shapes} == {name: (*each, 160, 160) for name, each in shapes.items()}
    assert found["noise"].tolist() == [0, 0.8, 2]
    # The noise is that of the measurement, by the window's own number.
    noisy = noise(windows[5]["patches"][None], indices=[5])[0]
    frame = (unpatchify(noisy[1]) * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    np.testing.assert_array_equal(found["noisy"][1, 0], frame)
    np.testing.assert_array_equal(found["reconstruction"][:, 0], found["noisy"])  # UT's layer 0


# --- passes


@pytest.mark.parametrize("name", CASES)
def test_a_level_takes_one_forward_pass_and_all_levels_one_draw_for_each_sample(name, monkeypatch):
    model, task, data = CASES[name]()
    drawn, draw = [], GaussianNoise.draw
    monkeypatch.setattr(GaussianNoise, "draw", lambda self, *given: drawn.append(1) or draw(self, *given))
    noise = GaussianNoise(0.5, 0.3, seed=5)
    seen = subject(model, task, data, noise, levels=LEVELS, **BATCHES)
    passes, summary = embedded(model, lambda: results_of(seen).summary)
    assert len(drawn) == len(data) and sum(map(len, passes)) <= 1.1 * len(LEVELS) * len(data)
    for level in LEVELS:
        alone = measured(model, task, data, noise.at(level), **BATCHES)
        assert summary.layer_losses[level] == alone.losses.mean(0).tolist()
        assert summary.layer_metrics[level] == alone.metrics
    found = outcome(latency, seen)
    assert len(found.milliseconds) == model.depth + 1 and found.milliseconds[0] > 0
    assert found.batch_size == 4 and "CPU" in found.device


def test_probes_of_sorted_samples_know_every_class(monkeypatch):
    monkeypatch.setattr("descend.evaluation.probes.MOST", 9)
    model, task, data = CASES["classifier"]()
    data = sorted([{**row, "labels": place % 3} for place, row in enumerate(data)], key=lambda row: row["labels"])
    seen, target = [], task.target
    monkeypatch.setattr(task, "target", lambda batch: seen.extend(batch["labels"].tolist()) or target(batch))
    fit_probes(model.eval(), task, data, data, GaussianNoise(0.0, 1.0), batches(**BATCHES))
    assert len(seen) == 18 and {*seen[:9]} == {*seen[9:]} == {0, 1, 2}


def test_probes_and_exits_take_no_pass_of_their_own_over_the_evaluated_samples():
    model, task, data = CASES["classifier"]()
    model.eval()
    noise, probes = GaussianNoise(0.5, 0.3), torch.nn.ModuleList(torch.nn.Linear(16, 3) for _ in range(4))

    class Fitted(LinearProbes):
        def fitted(self, run):
            return Probed(run.model, probes)

    seen = subject(model, task, data, noise, levels=LEVELS, **BATCHES)
    further = [Fitted(), partial(exits, validation=data[:5])]
    passes, summary = embedded(model, lambda: results_of(seen, further).summary)
    timed = 2 * len(data) + 2 * 4  # with and without leaving, the first batch of each twice
    assert sum(map(len, passes)) <= 1.1 * len(LEVELS) * len(data) + 5 + timed
    alone, batch = outcome(exits, seen, validation=data[:5]), default_data_collator(data)
    assert (summary.exit.confidence, summary.exit.full) == (alone.confidence, alone.full)
    inputs, target = task.inputs(batch), task.target(batch)
    for level in LEVELS:
        with torch.no_grad(), noise.at(level).on(model, indices=range(len(data))):
            states, looks = model.layer_outputs(inputs), model.looks(inputs)
            logits = [probe(model.pooled(hidden, looks)) for probe, hidden in zip(probes, states, strict=True)]
        losses = [task.losses(each, target).double().mean().item() for each in logits]
        assert summary.probe.layer_losses[level] == pytest.approx(losses, rel=1e-5)
        right = [(each.argmax(-1) == target).double().mean().item() for each in logits]
        assert summary.probe.layer_metrics[level] == pytest.approx(right)


@pytest.mark.parametrize("size", [1, 5])
def test_a_language_models_exits_are_read_by_tiles(size, monkeypatch):
    model, task, data = CASES["language model"]()
    seen, rows, read, found = [], [], model.readout, []
    monkeypatch.setattr(type(model), "readout", lambda self, hidden, **layer: rows.append(len(hidden)) or read(hidden))
    for tile in (1000, size):
        rows.clear()
        monkeypatch.setattr("descend.evaluation.layers.rows_per_tile", lambda vocabulary, tile=tile: tile)
        found.append(measured(model, task, data, **BATCHES, watch_rows=seen.append))
        seen = [torch.cat(seen)]
    assert max(rows) <= size
    for name in ("losses", "scores", "decisions", "confidences"):
        torch.testing.assert_close(*(getattr(each, name) for each in found))
    torch.testing.assert_close(*seen[0].chunk(2))


# --- probes and exits


def test_probes_are_the_ridge_regressions_that_validation_data_choose(classifier, tokenizer):
    """As scikit-learn fits them to standardized features, of all ridges the one with the lowest validation loss."""
    rows = tokenize(Dataset.from_list(generate_reviews(260, 7)), tokenizer, 60)
    good, bad = (tokenizer.convert_tokens_to_ids(word) for word in ("good", "bad"))
    told = np.random.default_rng(0).random(260) < 0.85  # of the others the first token says nothing
    words = [good if row["labels"] == one else bad for row, one in zip(rows, told, strict=True)]
    rows = Dataset.from_list(
        [row | {"input_ids": [word, *row["input_ids"][1:]]} for row, word in zip(rows, words, strict=True)]
    )
    collate = DataCollatorWithPadding(tokenizer)
    parts = [rows.select(range(160)), rows.select(range(160, 260))]
    probed = fit_probes(classifier, TEXT, *parts, GaussianNoise(0.0, 1.0), batches(collate=collate))
    chosen = []
    for layer, probe in enumerate(probed.probes):
        states, labels = [], []
        for part in parts:
            batch = collate([part[place] for place in range(len(part))])
            inputs = TEXT.inputs(batch)
            with torch.no_grad():
                hidden = classifier.layer_outputs(inputs)[layer]
                states.append(classifier.pooled(hidden, classifier.looks(inputs)).double().numpy())
            labels.append(batch["labels"].numpy())
        mean, spread = states[0].mean(0), states[0].std(0, ddof=1).clip(1e-6)
        train, held = ((each - mean) / spread for each in states)
        fits = [
            # Of two classes scikit-learn penalizes the difference of their weights alone: half as much.
            LogisticRegression(C=2 / ridge, tol=1e-9, max_iter=10_000).fit(train, labels[0])
            for ridge in RIDGES
        ]
        losses = [log_loss(labels[1], each.predict_proba(held)) for each in fits]
        best = int(np.argmin(losses))
        ours = probe(torch.from_numpy(states[1]).float()).softmax(-1).numpy()
        np.testing.assert_allclose(ours, fits[best].predict_proba(held), atol=2e-3)
        chosen.append(best)
    assert len(set(chosen)) > 1 or 0 < chosen[0] < len(RIDGES) - 1


def test_probes_read_what_a_layer_knows(classifier, tokenizer):
    rows = tokenize(Dataset.from_list(generate_reviews(300, 7)), tokenizer, 60)
    # The first token's embedding alone tells the class; the head, which is random, does not know.
    good, bad = (tokenizer.convert_tokens_to_ids(word) for word in ("good", "bad"))
    rows = rows.map(lambda row: {"input_ids": [good if row["labels"] else bad, *row["input_ids"][1:]]})
    collate = DataCollatorWithPadding(tokenizer)
    parts = rows.select(range(160)), rows.select(range(160, 200))
    probed = fit_probes(classifier, TEXT, *parts, GaussianNoise(0.0, 1.0), batches(collate=collate))
    both = measured(probed, TEXT, rows.select(range(200, 300)), collate=collate)
    assert len(both.metrics) == 8 and min(both.metrics[4:]) > 0.9 and min(both.metrics[:4]) < 0.8


def layers_of(decisions, confidences, scores):
    decisions, confidences, scores = map(torch.tensor, (decisions, confidences, scores))
    return LayerLosses(scores.double(), torch.arange(len(scores)), [], scores.double(), decisions, confidences)


def test_exits_are_taken_by_confidence():
    none = torch.zeros(3, 4).tolist()
    confidences = [[0.9, 0.5, 0.6, 0.7], [0.1, 0.6, 0.5, 0.4], [0.1, 0.1, 0.1, 0.1]]
    sure = layers_of([[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]], confidences, none)
    exits_at = {threshold: sure.exit_layers(threshold).tolist() for threshold in (0.5, 0.6, 1.0, None)}
    assert exits_at == {0.5: [1, 1, 3], 0.6: [2, 1, 3], 1.0: [3, 3, 3], None: [3, 3, 3]}


@pytest.mark.parametrize(
    ("wrong", "leaves"),
    [
        (0, 1.0),  # of 1000 samples those that the first exit gets wrong, and the mean number of layers then used
        (5, 1.0),  # half a point is allowed
        (6, 1.012),  # the next threshold keeps these six to the end
    ],
)
@pytest.mark.parametrize("higher_is_better", [True, False])
def test_an_exit_may_cost_half_a_point_on_validation_data_and_is_reported_on_others(
    monkeypatch, wrong, leaves, higher_is_better
):
    """The first exit is less sure where it is wrong. Where less is better, the scores are errors."""
    score, miss = (1.0, 0.0) if higher_is_better else (0.0, 1.0)
    task = SimpleNamespace(root=False, higher_is_better=higher_is_better)

    def of(first):
        correct = [[score, one, score, score] for one in first]
        found = layers_of([[0] * 4] * 1000, [[0.0, 0.6 if one == miss else 1.0, 0.6, 1.0] for one in first], correct)
        return replace(found, metrics=[metric_value(task, total, 1000) for total in found.scores.sum(0).tolist()])

    validation, data = of([miss] * wrong + [score] * (1000 - wrong)), of([score] * 500 + [miss] * 500)
    monkeypatch.setattr("descend.run.early._time_ratio", lambda *args, **settings: 0.5)
    monkeypatch.setattr("descend.run.early.measure", lambda *args, **settings: [validation])
    seen = subject(SimpleNamespace(depth=3), task, [])
    same, other = (outcome(exits, seen, {0.0: each}, validation=[]) for each in (validation, data))
    assert same.chosen.layers == pytest.approx(leaves)
    assert abs(same.chosen.value - validation.metrics[-1]) <= COST + 1e-12
    assert other.chosen.threshold == same.chosen.threshold and other.full == score
    layer, value = (1.0, 0.5) if other.chosen.threshold <= 0.6 else (2.0, score)
    assert (other.chosen.layers, other.chosen.value) == pytest.approx((layer, value))
    assert other.chosen.time_ratio == 0.5


def test_the_time_of_early_exits_is_that_of_the_blocks_they_run(monkeypatch):
    """A clock that ticks at each block: rows of a batch run on until the last of them has left."""
    model, task, data = CASES["classifier"]()
    model.eval()
    found, ticks = measured(model, task, data, **BATCHES), []
    threshold = found.confidences[:, 1].median().item()
    left = found.exit_layers(threshold)
    for block in model.layer_modules:
        block.register_forward_hook(lambda *_: ticks.append(1))
    monkeypatch.setattr("descend.run.early.now", lambda device: len(ticks))
    last = [int(batch.max()) for batch in left.split(4)]
    expected = sum(last) / (model.depth * len(last))
    assert 0 < expected < 1
    assert _time_ratio(subject(model, task, data, **BATCHES), threshold) == pytest.approx(expected)


# --- groups


RUNS = {
    "video-ut": {"window": 2, "stride": 10},
    "text-distilbert": {"dataset": "mnli", "hidden_size": 16, "max_length": 30},
    "text-ut": {"dataset": "imdb", "hidden_size": 16, "max_length": 12},
    "llm-sft": {"hidden_size": 16, "max_length": 60},
}


@pytest.mark.parametrize("recipe", slow_but(["text-ut", "video-ut"], RUNS))
def test_the_groups_recombine_to_the_values_of_the_summary(tmp_path, recipe):
    """So do all layers' losses and scores by at most 30 blocks of groups, whatever is measured beside them."""
    made = RECIPES[recipe].kind(data="generated", depth=2, **RUNS[recipe]).completed()
    data, task = made.load(), made.task()
    batching = {"collate": made.collate(data.tokenizer)}
    some = Subset(data.test, range(min(40, len(data.test))))
    seen = subject(made.network(data), task, some, GaussianNoise(1.0, 0.1), levels=[0.0, 2.0], **batching)
    seen.folder = tmp_path
    summary = results_of(seen).summary
    groups = json.loads((tmp_path / "groups.json").read_text())
    counts, scores, blocks = groups["counts"], np.array(groups["scores"]), groups["layers"]
    assert (sum(counts), len(counts), groups["noise"]) == (summary.samples, summary.groups, [0, 2])
    assert (len(counts) < summary.samples) == (recipe != "text-ut")
    power = 2 if task.root else 1
    assert scores.sum(1) / sum(counts) == pytest.approx(np.array(summary.values) ** power, rel=1e-5)
    assert sum(blocks["counts"]) == sum(counts) and len(blocks["counts"]) == min(30, len(counts))
    for name, by_level, root in (("losses", summary.layer_losses, 1), ("scores", summary.layer_metrics, power)):
        expected = np.array([by_level[level] for level in (0.0, 1.0, 2.0)]) ** root
        assert np.array(blocks[name]).sum(2) / sum(counts) == pytest.approx(expected, rel=1e-5)
    seen.levels = [2.0]
    results_of(seen)
    alone = json.loads((tmp_path / "groups.json").read_text())
    assert alone["layers"].pop("noise") == [1, 2] and alone["layers"]["losses"] == blocks["losses"][1:]
    assert alone | {"layers": 0} == groups | {"noise": [2], "scores": groups["scores"][1:], "layers": 0}


def test_the_histogram_of_ratios_counts_by_layer_and_its_outer_bins_are_open():
    losses = torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 100.0], [0.0, 0.0, 1.0], [1.0, float("nan"), 1.0]])
    found = ratios(LayerLosses(losses.double(), torch.arange(4), [], losses)).histogram
    edges, first, second = found.edges, *found.counts
    assert edges == list(EDGES) and len(edges) == len(first) + 1 and edges[24] == 1
    assert {edges[bin]: count for bin, count in enumerate(first) if count} == {0.5: 1, 1: 2}  # 0 after 0 is as before
    assert {bin: count for bin, count in enumerate(second) if count} == {0: 1, len(second) - 1: 2}  # 0, and 100 and ∞


# --- the time to each layer


def test_a_busy_moment_in_every_pass_is_no_slow_layer_and_a_model_that_names_no_layers_is_not_timed(monkeypatch):
    """A clock of 1 ms between two looks at it, and of 50 more at one place of each pass, another every time."""
    places = 4 + 3  # of a pass: its start and the first block's, the ends of three blocks, the readout's start and end
    looks, now = 0, 0.0

    def clock(device):
        nonlocal looks, now
        turn, place = divmod(looks, places)
        looks, now = looks + 1, now + 0.001 + 0.05 * (place == 1 + turn % 4)
        return now

    monkeypatch.setattr("descend.run.early.now", clock)
    seen = subject(own.layers(), own.Classes(), own.samples(4), batch_size=4)
    found = outcome(latency, seen)
    assert looks == places * (WARM_UP + REPEATS)
    assert [4 * value for value in found.milliseconds] == pytest.approx([2, 3, 4, 5])
    monkeypatch.setattr(type(seen.model), "layer_modules", [])
    assert outcome(latency, seen) is None


# --- drafting


@torch.no_grad()
def test_agreement_is_that_of_a_loop_over_tokens():
    model = LayeredCausalLM(causal(initializer_range=0.5))
    prompt = torch.tensor([[5, 6, 7]])
    answer = model.saved.generate(input_ids=prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)
    found = agreements(model, answer, prompt)
    expected = torch.zeros(2)
    for place in range(3, answer.shape[1]):
        states = model.layer_outputs({"input_ids": answer[:, :place]})
        for layer in (1, 2):
            expected[layer - 1] += (model.readout(states[layer][0, -1]).argmax() == answer[0, place]).item()
    assert found.tolist() == expected.tolist() and 0 <= found.min() <= found.max() <= 12
