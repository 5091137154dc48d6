"""What is measured of classifiers: ratios, where decisions settle, exits, probes, and models we never trained."""

import shutil
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForMaskedLM, DataCollatorWithPadding

from descend import DescentClassifier, GaussianNoise, run
from descend.cli import main
from descend.errors import InputError
from descend.evaluation.evaluators import MOST_CHARACTERS
from descend.evaluation.exits import COST, exits
from descend.evaluation.layers import LayerLosses, embedding_std, metric_value
from descend.evaluation.probes import fit_probes
from descend.models import LayeredClassifier
from descend.models.exit_rule import ExitRule
from descend.results import CERTIFIED_FILE, Decisions, read_summary
from descend.tasks.text import (
    Classification,
    generate_pairs,
    generate_reviews,
    learn_tokenizer,
    read_imdb,
    tokenize,
)
from tests.support.networks import CONFIGS, network
from tests.support.subjects import batches, measured, outcome, subject

TASK = Classification()


@pytest.fixture(scope="module")
def tokenizer():
    made = learn_tokenizer(row["text"] for row in generate_reviews(300, 0))
    made.model_input_names = ["input_ids", "attention_mask"]
    return made


@pytest.fixture(scope="module")
def samples(tokenizer):
    return tokenize(Dataset.from_list(generate_reviews(60, 5)), tokenizer, 50)


def classifier(tokenizer, **settings):
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "initializer_range": 0.3} | settings
    return LayeredClassifier(network("distilbert", labels=2, **sizes).eval())


def layers_of(decisions, confidences=None, correct=None):
    decisions = torch.tensor(decisions)
    confidences = torch.zeros(decisions.shape) if confidences is None else torch.tensor(confidences)
    scores = torch.zeros(decisions.shape) if correct is None else torch.tensor(correct)
    losses = torch.rand(decisions.shape, dtype=torch.float64)
    return LayerLosses(losses, torch.arange(len(decisions)), [], scores.double(), decisions, confidences)


# --- by hand


def test_measure_of_a_classifier_is_the_computation_by_hand(tokenizer, samples):
    model, noise = classifier(tokenizer), GaussianNoise(0.5, 0.3, seed=4)
    collate = DataCollatorWithPadding(tokenizer)
    watched = []
    found = measured(model, TASK, samples, noise, 7, collate, watch=lambda *seen: watched.append(seen))
    for place in (0, 13, 59):
        row = samples[place]
        ids, label = torch.tensor([row["input_ids"]]), row["labels"]
        with torch.no_grad():
            noisy = noise(model.get_input_embeddings()(ids), indices=[place])
            hidden = model.network.distilbert(inputs_embeds=noisy, output_hidden_states=True).hidden_states
            probabilities = torch.stack([model.readout(each)[0].softmax(-1) for each in hidden])
        torch.testing.assert_close(found.losses[place], -probabilities[:, label].log().double(), rtol=1e-4, atol=1e-5)
        assert found.decisions[place].tolist() == probabilities.argmax(-1).tolist()
        torch.testing.assert_close(found.confidences[place], probabilities.amax(-1), rtol=1e-4, atol=1e-5)
        assert found.scores[place].tolist() == (probabilities.argmax(-1) == label).double().tolist()
    assert found.metrics == pytest.approx(found.scores.mean(0).tolist())
    labels, logits, losses = zip(*((batch["labels"], *last) for batch, *last in watched), strict=True)
    assert torch.cat(logits).shape == (60, 2) and torch.cat(labels).tolist() == samples["labels"]
    assert torch.equal(torch.cat(losses).double(), found.losses[:, -1])
    losses = found.losses.tolist()
    expected = [[after / before for before, after in pairwise(row)] for row in losses]
    np.testing.assert_allclose(found.ratios, expected)


def test_where_decisions_settle_and_exits_are_taken_by_confidence_and_patience():
    settling = layers_of([[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1], [2, 2, 1, 1]])
    assert settling.settled.tolist() == [0, 1, 2, 3, 2]
    sure = layers_of([[0] * 5] * 4, [[1, 0.2, 0.9, 0.1, 0], [1, 0.8, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0.7, 1]])
    assert sure.exit_layers(ExitRule(threshold=0.7)).tolist() == [2, 1, 4, 3]
    assert sure.exit_layers(ExitRule(threshold=0.95)).tolist() == [4, 4, 4, 4]
    decided = layers_of([[0, 1, 1, 1, 1], [1, 1, 0, 1, 1], [0, 1, 0, 1, 0], [1, 0, 0, 1, 1]])
    assert decided.exit_layers(ExitRule(patience=1)).tolist() == [2, 4, 4, 2]
    assert decided.exit_layers(ExitRule(patience=2)).tolist() == [3, 4, 4, 4]
    assert decided.exit_layers(ExitRule(patience=3)).tolist() == [4, 4, 4, 4]


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

    def of(first):
        correct = [[score, one, score, score] for one in first]
        found = layers_of([[0] * 4] * 1000, [[0.0, 0.6 if one == miss else 1.0, 0.6, 1.0] for one in first], correct)
        return replace(found, metrics=[metric_value(TASK, total, 1000) for total in found.scores.sum(0).tolist()])

    validation = of([miss] * wrong + [score] * (1000 - wrong))
    monkeypatch.setattr("descend.evaluation.exits._time_ratio", lambda *args, **settings: 0.5)
    monkeypatch.setattr("descend.evaluation.exits.measure", lambda *args, **settings: [validation])
    seen = subject(SimpleNamespace(depth=3), SimpleNamespace(root=False, higher_is_better=higher_is_better), [])
    chosen = outcome(exits, seen, {0.0: validation}, validation=[]).chosen
    assert chosen.layers == pytest.approx(leaves) and abs(chosen.value - validation.metrics[-1]) <= COST + 1e-12
    report = outcome(exits, seen, {0.0: of([score] * 500 + [miss] * 500)}, validation=[])
    assert report.chosen.threshold == chosen.threshold and report.full == score
    assert report.chosen.value == pytest.approx(0.5 if chosen.threshold <= 0.6 else score)
    assert report.chosen.layers == pytest.approx(1.0 if chosen.threshold <= 0.6 else 2.0)
    assert [point.patience for point in report.patience] == [1, 2] and report.chosen.time_ratio == 0.5


# --- σ_x


class Unknown(Classification):
    """A task that knows nothing of the embedding, so that σ_x is measured by forward passes."""

    def sigma(self, embedding, dataset):
        """Not known."""


@pytest.mark.parametrize("most", [1024, 20])
@pytest.mark.parametrize("batch_size", [7, 64])
def test_sigma_is_that_of_all_tokens_of_the_samples_however_they_are_batched(tokenizer, monkeypatch, most, batch_size):
    monkeypatch.setattr("descend.evaluation.layers.MOST_FOR_SIGMA", most)
    random = np.random.default_rng(0)
    # Texts of one word each first, then of many, long and short: no batch is like all of them, and most have padding.
    texts = [[5] * 4] * 20 + [random.integers(5, 50, random.integers(2, 50)).tolist() for _ in range(40)]
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": 0} for ids in texts]
    model = classifier(tokenizer)
    used = [texts[60 * (2 * place + 1) // (2 * min(most, 60))] for place in range(min(most, 60))]
    words = model.get_input_embeddings().weight.detach().double().numpy()
    expected = words[np.concatenate(used)].std()
    collate = DataCollatorWithPadding(tokenizer)
    assert embedding_std(model, Unknown(), rows, batches(batch_size, collate)) == pytest.approx(expected)
    assert not model.get_input_embeddings()._forward_hooks, "nothing is left on the model"


# --- probes


def test_probes_read_what_a_layer_knows_and_leave_the_model_alone(tokenizer):
    rows = tokenize(Dataset.from_list(generate_reviews(300, 7)), tokenizer, 80)
    # The first token's embedding alone tells the class; the head, which is random, does not know.
    good, bad = (tokenizer.convert_tokens_to_ids(word) for word in ("good", "bad"))
    rows = rows.map(lambda row: {"input_ids": [good if row["labels"] else bad, *row["input_ids"][1:]]})
    model, collate = classifier(tokenizer, max_position_embeddings=90), DataCollatorWithPadding(tokenizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    clean = GaussianNoise(0.0, 1.0)
    train, validation = rows.select(range(160)), rows.select(range(160, 200))
    probed = fit_probes(model, TASK, train, validation, clean, batches(collate=collate))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    held = rows.select(range(200, 300))
    both = measured(probed, TASK, held, collate=collate)
    assert len(both.metrics) == 8 and min(both.metrics[4:]) > 0.9 and max(both.metrics[:4]) < 0.8


# --- models that we never trained


@pytest.fixture
def plain(tmp_path, tokenizer):
    folder = tmp_path / "model"
    classifier(tokenizer).saved.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for side, count, seed in (("train", 40, 0), ("test", 20, 1)):
        for number, row in enumerate(generate_reviews(count, seed)):
            review = tmp_path / "reviews" / side / ("neg", "pos")[row["label"]] / f"{number}_1.txt"
            review.parent.mkdir(parents=True, exist_ok=True)
            review.write_text(" ".join([row["text"]] * (1 + 9 * (number == 0))))  # one is long
    return folder, tmp_path / "reviews"


def test_a_plain_classifier_is_evaluated_probed_and_left_early(plain):
    folder, data = plain
    options = {"noise": [1.0, 0.0], "probe": True, "exit": True, "frames": 20}
    summary = run.evaluate(folder, task="classification", data=str(data), **options)
    assert summary == read_summary(folder) and summary.noise == [0.0, 1.0]
    assert (summary.model, summary.method, summary.dataset, summary.samples) == (
        "DistilBERT-3",
        "plain",
        "imdb, reviews",
        20,
    )
    assert "did not train this model" in summary.note and "--probe" in summary.note
    assert (summary.status, summary.asked) == ("not_asked", False) and "training did not ask" in summary.verdict
    assert summary.layers_needed and not summary.layers_needed.chosen  # its validation data are unknown
    assert summary.auc == pytest.approx(sum(summary.values) / 2)
    assert set(summary.layer_losses) == {0.0, 1.0} == set(summary.probe.layer_losses)
    assert len(summary.layer_metrics[1.0]) == 4 and len(summary.ratios.by_layer) == 3
    assert sum(summary.settled_layer.shares) == pytest.approx(1)
    assert {"confidence", "patience", "full", "chosen", "depth"} == summary.exit.model_fields_set
    kept, tokenizer = Decisions.read(folder / "decisions.json"), AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert {each.text.endswith(" …") for each in kept.texts} == {True, False} and kept.noise == 0
    for each in kept.texts:
        assert len(each.text) <= MOST_CHARACTERS + 2 and len(each.decisions) == 4
        if not each.text.endswith(" …"):
            with torch.no_grad():
                sure, answer = model(**tokenizer(each.text, return_tensors="pt")).logits.softmax(-1)[0].max(-1)
            assert each.decisions[-1].answer == model.config.id2label[int(answer)]
            assert each.decisions[-1].confidence == pytest.approx(float(sure), abs=1e-4)
    ids = np.concatenate(tokenize(read_imdb(data)["train"], tokenizer, 64)["input_ids"])
    words = model.get_input_embeddings().weight[ids]
    # Of all training texts less those kept for validation.
    assert summary.sigma == pytest.approx(words.std().item(), rel=0.02)


def test_the_exits_of_a_plain_classifier_are_certified_on_data_that_it_has_not_seen(plain, capsys):
    folder, data = plain
    words = ["--task", "classification", "--data", str(data), "--noise", "0", "--exit", "--risk", "0.5"]
    assert main(["evaluate", str(folder), *words, "--confidence", "0.5"]) == 2
    assert "data that it has not seen" in capsys.readouterr().err
    assert not (folder / CERTIFIED_FILE).exists()  # nobody said that the model was not trained on these data
    assert main(["evaluate", str(folder), *words, "--confidence", "0.5", "--unseen"]) == 0
    assert DescentClassifier.from_pretrained(folder).exit.risk == 0.5


def test_what_a_plain_model_needs_is_said(plain, tmp_path, tokenizer):
    folder, _ = plain
    with pytest.raises(InputError, match=r"distilbert.*--task classification"):
        run.evaluate(folder)
    with pytest.raises(InputError, match="--data"):
        run.evaluate(folder, task="classification")
    with pytest.raises(InputError, match=r"imdb, mnli.*--dataset"):
        run.evaluate(folder, task="classification", data=str(tmp_path))
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    for name in ("train", "dev_matched"):
        lines = [
            f"{row['text']}\t{row['pair']}\t{('entailment', 'neutral', 'contradiction')[row['label']]}"
            for row in generate_pairs(20, 0)
        ]
        (pairs / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tgold_label", *lines]))
    with pytest.raises(InputError, match=r"2 labels.*mnli.*3: entailment, neutral, contradiction"):
        run.evaluate(folder, task="classification", data=str(pairs))


def test_the_labels_of_a_head_are_met_by_their_names(plain, tmp_path):
    folder, data = plain
    plainly = run.evaluate(folder, task="classification", data=str(data), noise=[0.0])
    turned = tmp_path / "turned"
    shutil.copytree(folder, turned)
    model = AutoModelForSequenceClassification.from_pretrained(turned)
    with torch.no_grad():  # the same classifier, its classes the other way round
        for parameter in (model.classifier.weight, model.classifier.bias):
            parameter.copy_(parameter.flip(0))
    model.config.id2label, model.config.label2id = {0: "POSITIVE", 1: "NEGATIVE"}, {"POSITIVE": 0, "NEGATIVE": 1}
    model.save_pretrained(turned)
    again = run.evaluate(turned, task="classification", data=str(data), noise=[0.0])
    assert again.values == plainly.values
    np.testing.assert_allclose(again.layer_losses[0.0], plainly.layer_losses[0.0], rtol=1e-5)
    model.config.id2label = {0: "up", 1: "down"}
    model.save_pretrained(turned)
    with pytest.raises(InputError, match=r"up, down.*imdb.*neg, pos"):
        run.evaluate(turned, task="classification", data=str(data), noise=[0.0])


def test_what_was_not_trained_as_a_classifier_is_not_judged_as_one(plain, tmp_path):
    folder, data = plain

    def refused(match):
        with pytest.raises(InputError, match=match):
            run.evaluate(folder, task="classification", data=str(data), noise=[0.0])

    for file in folder.glob("tokenizer*"):
        shutil.move(file, tmp_path)
    refused(r"classifier|special tokens")
    for file in tmp_path.glob("tokenizer*"):
        shutil.move(file, folder)
    BertForMaskedLM(type(CONFIGS["bert"])(**CONFIGS["bert"].to_dict() | {"vocab_size": 500})).save_pretrained(folder)
    refused(r"classifier: .*classifier\.")
    with pytest.raises(InputError, match=r"--dataset.*--task"):
        run.evaluate(folder, dataset="imdb")
    with pytest.raises(InputError, match=r"dataset.*imdb, mnli.*'sst2'"):
        run.evaluate(folder, task="classification", data=str(data), dataset="sst2")
