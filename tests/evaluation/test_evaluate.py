"""Any model evaluated: by `descend.evaluate` from memory, and from a folder that somebody else's training wrote."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

import descend
from descend import DescentClassifier, InputError, Run
from descend.cli import main
from descend.results import Decisions, read_summary
from descend.run import EarlyExits, LinearProbes
from descend.run.evaluators import MOST_CHARACTERS
from descend.tasks.images import ImageClassification
from descend.tasks.text import Classification, generate_reviews, learn_tokenizer, read_imdb, tokenize
from tests.support import ranks, subjects, texts
from tests.support.networks import QUIET, network
from tests.support.own import Classes, layers, mlp, samples

# --- from memory


trainer = partial(ranks.points, max_steps=6, strength=1.0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trainers that have trained, and the summaries of their evaluation, by method."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for method in ("erm", "constrained"):
        ours = ranks.fitted(trainer(folder / method, method=method, given={"noise": 0.5}))
        found[method] = ours, descend.evaluate(ours, samples(40, 2))
    return found


@pytest.mark.parametrize("method", ["erm", "constrained"])
def test_a_trainers_run_gets_the_files_and_the_page(runs, method):
    ours, summary = runs[method]
    folder = ours.args.folder
    assert {"summary.json", "groups.json", "report.html"} <= {path.name for path in folder.iterdir()}
    assert json.dumps(read_summary(folder).content()) == json.dumps(summary.content())
    assert (summary.method, summary.model, summary.depth, summary.samples) == (method, "ResidualMLP-3", 3, 40)
    assert (len(summary.noise), summary.noise[-1], summary.train_noise) == (8, pytest.approx(3.5 * 0.5), 0.5)
    # K is chosen on the trainer's own eval_dataset, if that is not what the model is evaluated on
    assert summary.validation.samples == 12 and summary.layers_needed.chosen.keys() == {1, 2, 5}
    assert summary.sigma > 0 and ("Binding" in summary.verdict) == bool(summary.binding) == (method == "constrained")
    assert summary.binding == [layer for layer, price in enumerate(summary.multipliers, start=1) if price > 0]
    # The price rule's p, where multipliers move; hard constraints.
    assert (summary.max_multiplier, summary.cap_slack) == (None if method == "erm" else 1.0, 0.0)
    assert (summary.dual is None) == (method == "erm") and "held to its own full depth" in summary.answer


@pytest.mark.parametrize("most", [8, 12])
def test_no_layer_is_chosen_on_the_samples_that_test_it(runs, tmp_path, monkeypatch, most):
    """Nor on some of them, where there are more than are taken to choose. Another folder takes the records along."""
    ours, _ = runs["constrained"]
    monkeypatch.setattr("descend.run.evaluators.MOST_TO_CHOOSE", most)
    summary = descend.evaluate(ours, samples(12, 1), out=tmp_path, noise=(0,))  # those of its own eval_dataset
    assert summary.validation is None and not summary.layers_needed.chosen
    assert (tmp_path / "records.jsonl").read_text() == (ours.args.folder / "records.jsonl").read_text()


@pytest.mark.slow
def test_validation_data_are_read_without_noise_and_at_the_training_level_or_where_asked(tmp_path):
    """And a baseline that was not read at the run's level says so before anything is measured."""
    made = {name: trainer(tmp_path / name, given={"noise": noise}) for name, noise in (("plain", None), ("noisy", 0.5))}
    given = {"noise": (0, 0.5, 1), "validation": samples(12, 1)}

    def found(name, **more):
        return descend.evaluate(made[name], samples(24, 2), **given, **more)

    for asked, levels in ((None, [0, 0.5]), ([2], [0, 0.5, 2]), ("all", [0, 0.5, 1])):
        assert [*found("noisy", validation_noise=asked).validation.layer_metrics] == levels
    whole = found("noisy", validation_noise="all")
    assert whole.validation.layer_metrics[0.5] == whole.validation.metric
    plain = tmp_path / "plain"
    found("plain")
    before = (tmp_path / "noisy" / "summary.json").read_bytes()
    with pytest.raises(InputError, match=r"plain was not evaluated at γ = 0\.5 on .* --validation-noise 0\.5"):
        found("noisy", baseline=plain)
    assert (tmp_path / "noisy" / "summary.json").read_bytes() == before
    found("plain", validation_noise=[0.5])
    assert found("noisy", baseline=plain).layers_needed.chosen
    for wrong in ("every", [-1.0]):
        with pytest.raises(InputError, match=r"'every'|-1"):
            found("noisy", validation_noise=wrong)


def test_a_model_without_its_trainer_is_measured_and_nothing_is_written_unasked(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = runs["erm"][0].objective.model.eval()
    summary = descend.evaluate(model, samples(40, 2), task=Classes())
    assert summary.layer_losses[0.0] == subjects.measured(model, Classes(), samples(40, 2)).losses.mean(0).tolist()
    assert summary.noise == [0.0] and summary.method == "plain" and summary.alpha == [0.01] * 3
    # It writes only where it is told to.
    assert list(tmp_path.iterdir()) == []
    descend.evaluate(model, samples(8), task=Classes(), out="there", noise=(0, 1))
    assert (tmp_path / "there" / "report.html").is_file()


def test_nothing_binds_before_a_dual_step_and_without_noise_inputs_are_clean(tmp_path):
    """The price rule's multipliers start above 0."""
    untrained = trainer(tmp_path)
    summary = descend.evaluate(untrained, samples(8, 2))
    assert untrained.dual.multipliers.max() == 1 and summary.binding == [] and "Binding" not in summary.verdict
    assert (summary.noise, summary.train_noise) == ([0.0], 0.0)


def test_a_classifier_needs_no_task_and_a_plain_trainer_lends_its_model_and_collator(tmp_path):
    """Of texts of different lengths, with columns that no model reads."""
    rows = generate_reviews(12, 0)
    tokenizer = learn_tokenizer([row["text"] for row in rows])
    rows = [{**row, "idx": place, **tokenizer(row["text"][: 20 + 5 * place])} for place, row in enumerate(rows)]
    model = network("bert", labels=2, vocab_size=len(tokenizer), max_position_embeddings=80)
    tokens = [{name: row[name] for name in ("input_ids", "attention_mask", "label")} for row in rows]
    alone = descend.evaluate(model, tokens, collate=DataCollatorWithPadding(tokenizer))
    plain = Trainer(model, TrainingArguments(str(tmp_path / "plain"), **QUIET), processing_class=tokenizer)
    for data in (rows, Dataset.from_list(rows)):
        summary = descend.evaluate(plain, data)
        assert summary.layer_losses[0.0] == pytest.approx(alone.layer_losses[0.0], rel=1e-5)
    assert (summary.metric, summary.model) == ("accuracy", "BertForSequenceClassification-3")
    assert list((tmp_path / "plain").iterdir()) == []
    with pytest.raises(InputError, match=r"don't make a batch.*DataCollatorWithPadding"):
        descend.evaluate(model, rows)


class Pixels(torch.nn.Sequential):
    """A user's classifier of images, whose task does not know how many classes it has."""

    def forward(self, pixel_values):
        return super().forward(pixel_values)


def of_pixels():
    network = Pixels(torch.nn.Flatten(), torch.nn.Linear(12, 12), torch.nn.Linear(12, 12), torch.nn.Linear(12, 3))
    return descend.layered(network, blocks=[network[1], network[2]], readout="3", embeddings="0")


IMAGE = {"pixel_values": np.zeros((3, 2, 2), np.float32), "label": 0}
OF_IMAGES = {"model": of_pixels(), "task": ImageClassification()}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"task": None}, "descend.Task"),
        ({"model": mlp()}, "descend.layered"),
        ({"model": "bert"}, r"expected a trainer or a model; got str\."),
        ({"model": trainer}, "expected no task: the trainer has one"),
        ({"dataset": samples(1)}, "2 samples.*1"),
        ({"noise": ()}, "noise must hold at least one level"),
        ({"noise": (-1,)}, "noise must be.*-1"),
        ({"noise": "0.5"}, "noise must be a level γ"),
        ({"noise": True}, "noise must be a level γ"),
        ({"split": "dev"}, "split.*'dev'"),
        ({"model": layers(embeddings=None), "noise": (0, 1)}, "embeddings"),
        ({"dataset": [{"y": torch.rand(4), "labels": 1}] * 4}, "ResidualMLP.*'x'"),
        (OF_IMAGES | {"dataset": [IMAGE | {"label": -1}] * 2}, r"has label -1; expected at least 0\. Correct"),
        (
            OF_IMAGES | {"dataset": [IMAGE | {"pixel_values": np.zeros((2, 2), np.float32)}] * 2},
            r"pixel_values, \(C, height, width\).*the shape \(2, 2\)",
        ),
    ],
)
def test_what_can_not_be_evaluated(tmp_path, change, names):
    given = {"model": layers(), "dataset": samples(8), "task": Classes()} | change
    model = trainer(tmp_path / "run") if given["model"] is trainer else given["model"]
    with pytest.raises(InputError, match=names):
        descend.evaluate(**given | {"model": model, "out": tmp_path / "out"})
    assert not (tmp_path / "out").exists()


# --- from a folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder of classifiers that nobody trained, of models that are none, and of data."""
    folder = tmp_path_factory.mktemp("plain")
    tokenizer = learn_tokenizer(row["text"] for row in generate_reviews(300, 0))
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    model = network("distilbert", labels=2, initializer_range=0.3, **sizes)
    masked = network("bert", auto=AutoModelForMaskedLM, **sizes)
    for name, saved in (("model", model), ("wordless", model), ("masked", masked)):
        saved.save_pretrained(folder / name)
    with torch.no_grad():  # the same classifier, its classes the other way round
        for parameter in model.classifier.parameters():
            parameter.copy_(parameter.flip(0))
    model.config.id2label = {0: "POSITIVE", 1: "NEGATIVE"}
    model.config.label2id = {"POSITIVE": 0, "NEGATIVE": 1}
    model.save_pretrained(folder / "turned")
    for name in ("model", "masked", "turned"):
        tokenizer.save_pretrained(folder / name)
    long = next((texts.review_folder(folder / "reviews") / "test").rglob("*.txt"))
    long.write_text(" ".join([long.read_text()] * 10))
    return folder


TASK = {"task": "classification"}


def test_a_plain_classifier_is_evaluated_probed_and_left_early(plain):
    folder, data = plain / "model", plain / "reviews"
    run = Run.read(folder, **TASK, data=str(data))
    summary = run.evaluate([LinearProbes(), EarlyExits()], noise=[1.0, 0.0], frames=60)
    assert summary == read_summary(folder) and summary.noise == [0.0, 1.0]
    assert (summary.model, summary.method, summary.dataset) == ("DistilBERT-3", "plain", "imdb, reviews")
    assert "did not train this model" in summary.note and "--probe" in summary.note
    assert (summary.status, summary.asked) == ("not_asked", False) and "training did not ask" in summary.verdict
    assert summary.layers_needed and not summary.layers_needed.chosen  # its validation data are unknown
    assert set(summary.layer_losses) == {0.0, 1.0} == set(summary.probe.layer_losses)
    assert {"confidence", "full", "chosen", "depth"} == summary.exit.model_fields_set
    kept, tokenizer = Decisions.read(folder / "decisions.json"), AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    whole = [each for each in kept.texts if not each.text.endswith(" …")]
    assert 0 < len(whole) < len(kept.texts) == 60 and max(len(each.text) for each in kept.texts) <= MOST_CHARACTERS + 2
    for each in whole:
        sure, answer = model(**tokenizer(each.text, return_tensors="pt")).logits.softmax(-1)[0].max(-1)
        assert each.decisions[3].answer == model.config.id2label[int(answer)]
        assert each.decisions[3].confidence == pytest.approx(sure.item(), abs=1e-4)
    ids = np.concatenate(tokenize(read_imdb(data)["train"], tokenizer, 64)["input_ids"])
    words = model.get_input_embeddings().weight[ids]
    # Of all training texts less those kept for validation.
    assert summary.sigma == pytest.approx(words.std().item(), rel=0.02)


def test_the_exits_of_a_plain_classifier_are_certified_on_generated_texts_that_it_has_not_seen(plain):
    words = ["--task", "classification", "--data", "generated", "--most", "20", "--noise", "0", "--exit", "--unseen"]
    assert main(["evaluate", str(plain / "model"), *words, "--risk", "0.5", "--confidence", "0.5"]) == 0
    assert DescentClassifier.from_pretrained(plain / "model").exit.risk == 0.5
    summary = read_summary(plain / "model")
    assert (summary.dataset, summary.samples) == ("generated imdb", 20)


def test_what_chooses_exits_of_a_model_without_its_run_is_not_what_judges_them(plain, tmp_path, capsys):
    """Of a table without splits a fifth is for test, and exits are chosen on a fifth of the others."""
    rows = [{"text": f"{'good' if row % 2 else 'bad'} film {row}", "label": row % 2} for row in range(100)]
    table = tmp_path / "rows.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    run = Run.read(plain / "model", **TASK, data=str(table), unseen=True)
    assert len(run.samples) == 100, "alone all are evaluated"
    summary = run.evaluate([EarlyExits(0.5, 0.5)], noise=[0.0])
    assert summary.samples == len(run.data.test) == 20
    assert (
        "20 test samples are evaluated; early exits are chosen, and probes fitted, on others" in capsys.readouterr().err
    )


def test_a_loader_of_batches_is_told_apart_from_a_stream():
    with pytest.raises(InputError, match="DataLoader; give the data set in it"):
        descend.evaluate(layers(), torch.utils.data.DataLoader(samples(20, 2)), task=Classes())


@pytest.mark.parametrize("validation", [False, True])
def test_a_stream_and_no_validation_samples_are_refused_in_one_line(validation):
    given = {"validation": iter(samples(20, 1))} if validation else {}
    data = samples(20, 2) if validation else iter(samples(20, 2))
    with pytest.raises(InputError, match=f"{'validation ' * validation}samples in a list.*a stream. Read it into"):
        descend.evaluate(layers(), data, task=Classes(), **given)
    with pytest.raises(InputError, match="expected validation samples; got none"):
        descend.evaluate(layers(), samples(20, 2), task=Classes(), validation=[])


def test_validation_samples_that_are_the_evaluated_ones_choose_nothing_and_it_is_said(capsys):
    data, told = samples(20, 2), "the validation samples are the evaluated ones, so no K is chosen"
    assert descend.evaluate(layers(), data, task=Classes(), validation=data).validation is None
    assert told in capsys.readouterr().err
    with pytest.raises(InputError, match=told):
        descend.evaluate(layers(), data, task=Classes(), validation=data, compare_with="best")


def test_a_model_in_memory_with_weights_that_are_no_numbers_is_named_and_has_nothing_right(capsys):
    model = layers()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="must be numbers; got NaN"):
        descend.evaluate(model, samples(20, 2), task=Classes())
    assert "WARNING: the model has weights that are NaN or infinite: " in capsys.readouterr().err
    logits = torch.tensor([[float("nan"), 0.0], [1.0, 0.0]])
    assert Classification().score(logits, torch.tensor([0, 0])).tolist() == [0.0, 1.0]


def test_the_labels_of_a_head_are_met_by_their_names(plain):
    plainly, turned = (
        Run.read(plain / name, **TASK, data=str(plain / "reviews")).evaluate(noise=[0.0])
        for name in ("model", "turned")
    )
    assert turned.values == plainly.values
    np.testing.assert_allclose(turned.layer_losses[0.0], plainly.layer_losses[0.0], rtol=1e-5)


def test_images_of_a_users_model_are_shown_whatever_holds_them(tmp_path):
    pixels = np.random.default_rng(0).normal(size=(30, 3, 2, 2)).astype(np.float32)
    images = [{"pixel_values": each, "label": place % 3} for place, each in enumerate(pixels)]
    descend.evaluate(of_pixels(), images, task=ImageClassification(), noise=(0,), out=tmp_path)
    shown = Decisions.read(tmp_path / "decisions.json").texts
    assert [each.text for each in shown] == [f"class {place % 3}, image {place}" for place in range(1, 30, 3)]
    assert all(each.picture.startswith("data:image/png") and len(each.decisions) == 3 for each in shown)


REVIEWS = {**TASK, "data": "reviews"}


@pytest.mark.parametrize(
    ("folder", "settings", "remedy"),
    [
        ("model", {}, "saved model of distilbert, and no run of descend train"),
        ("model", TASK, "--data"),
        ("model", {**TASK, "data": "model"}, r"imdb, mnli.*--dataset"),
        ("model", {**REVIEWS, "dataset": "sst2"}, r"dataset.*imdb, mnli.*'sst2'"),
        ("model", {"dataset": "imdb"}, r"--dataset.*--task"),
        ("wordless", REVIEWS, r"classifier|special tokens"),
        ("masked", REVIEWS, r"classifier: .*classifier\."),
    ],
)
def test_what_a_plain_model_needs_is_said(plain, folder, settings, remedy):
    data = {"data": str(plain / settings["data"])} if "data" in settings else {}
    with pytest.raises(InputError, match=remedy):
        Run.read(plain / folder, **settings | data).evaluate()


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ((None, 0.9), "--risk"),
        ((0.0, None), "risk.*0"),
        ((float("nan"), None), "risk.*nan"),
        ((0.1, 1.0), "confidence.*1"),
        ((0.1, None), "not seen.*--unseen"),  # before the model is loaded: there is none
    ],
)
def test_what_a_risk_needs_is_said(plain, given, remedy):
    with pytest.raises(InputError, match=remedy):
        Run.read(plain / "nowhere", **TASK, data="generated").evaluate([EarlyExits(*given)])
