"""`descend.evaluate`: any model evaluated from Python, with the files of ``descend evaluate``."""

import json

import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

import descend
from descend import cli
from descend.errors import InputError
from descend.results import read_summary
from descend.tasks.text import generate_reviews, learn_tokenizer
from tests.support.networks import QUIET, network
from tests.support.own import Classes, layers, mlp, samples


def trained(folder, method="constrained", noise=0.5, train=True, **settings):
    args = descend.DescentConfig(
        str(folder), method=method, max_steps=6, per_device_train_batch_size=8, **QUIET, **settings
    )
    trainer = descend.DescentTrainer(
        layers(), args, task=Classes(), noise=noise, train_dataset=samples(64), eval_dataset=samples(16, 1)
    )
    if train:
        trainer.train()
    return trainer


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    trainers = {method: trained(folder / method, method) for method in ("erm", "constrained")}
    return folder, trainers, {name: descend.evaluate(each, samples(40, 2)) for name, each in trainers.items()}


def test_a_trainers_run_gets_the_files_and_the_page(runs):
    folder, _, summaries = runs
    for method, summary in summaries.items():
        assert {"summary.json", "groups.json", "report.html"} <= {path.name for path in (folder / method).iterdir()}
        assert json.dumps(read_summary(folder / method).content()) == json.dumps(summary.content())
        assert (summary.method, summary.model, summary.depth, summary.samples) == (method, "ResidualMLP-3", 3, 40)
        assert len(summary.noise) == 8 and summary.noise[-1] == pytest.approx(3.5 * 0.5)
        assert summary.train_noise == 0.5 and summary.verdict
    assert summaries["constrained"].multipliers and summaries["constrained"].sigma > 0


def test_the_losses_are_those_of_a_loop_by_hand(runs):
    _, trainers, _ = runs
    model = trainers["erm"].objective.model.eval()
    summary = descend.evaluate(model, samples(40, 2), task=Classes())
    network = model.saved
    x, labels = (torch.stack([torch.as_tensor(each[name]) for each in samples(40, 2)]) for name in ("x", "labels"))
    state, expected = network.embed(x), []
    for block in [*network.blocks, None]:
        logits = network.head(network.norm(state))
        expected.append(torch.nn.functional.cross_entropy(logits, labels).item())
        state = state if block is None else block(state)
    assert summary.layer_losses[0.0] == pytest.approx(expected, rel=1e-5)
    assert summary.noise == [0.0] and summary.method == "plain" and summary.alpha == [0.01] * 3


def test_what_binds_is_known_only_once_a_dual_step_was_taken(tmp_path):
    """The price rule's multipliers start above 0."""
    untrained, after = trained(tmp_path / "untrained", train=False), trained(tmp_path / "trained", strength=1.0)
    assert untrained.dual.multipliers.max() == 1 and not untrained.dual.moved
    summary = descend.evaluate(untrained, samples(8, 2))
    assert summary.binding == [] and "Binding" not in summary.verdict
    summary = descend.evaluate(after, samples(8, 2))
    names = ", ".join(f"layer {layer}" for layer in summary.binding)
    assert summary.binding and summary.verdict.endswith(f" Binding (λ > 0 at the last step): {names}.")


def test_a_model_without_a_trainer_writes_only_where_it_is_told(runs, tmp_path, monkeypatch):
    _, trainers, _ = runs
    monkeypatch.chdir(tmp_path)
    descend.evaluate(trainers["erm"].objective.model, samples(8), task=Classes())
    assert list(tmp_path.iterdir()) == []
    descend.evaluate(trainers["erm"].objective.model, samples(8), task=Classes(), out="there", noise=(0, 1))
    assert (tmp_path / "there" / "report.html").is_file()


def test_another_folder_takes_the_records_along(runs, tmp_path):
    _, trainers, _ = runs
    trainer = trainers["constrained"]
    before = json.loads((trainer.args.folder / "summary.json").read_text())
    descend.evaluate(trainer, samples(40, 2), out=tmp_path / "elsewhere")
    after = json.loads((tmp_path / "elsewhere" / "summary.json").read_text())
    assert before.pop("latency").keys() == after.pop("latency").keys() and after == before
    records = (tmp_path / "elsewhere" / "records.jsonl").read_text()
    assert records == (trainer.args.folder / "records.jsonl").read_text()


def test_compare_takes_the_folders(runs, tmp_path, capsys):
    folder, _, _ = runs
    assert cli.main(["compare", *(str(folder / name) for name in ("erm", "constrained")), "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "summary.json").read_text())
    assert [each["method"] for each in content["runs"]] == ["erm", "constrained"]
    assert "ResidualMLP-3" in (tmp_path / "report.html").read_text()


@pytest.fixture(scope="module")
def reviews():
    """Texts with their tokens, of different lengths, and columns that no model reads."""
    rows = generate_reviews(12, 0)
    tokenizer = learn_tokenizer([row["text"] for row in rows])
    rows = [{**row, "idx": place, **tokenizer(row["text"][: 20 + 5 * place])} for place, row in enumerate(rows)]
    return tokenizer, rows, network("bert", labels=2, vocab_size=len(tokenizer), max_position_embeddings=80)


@pytest.mark.parametrize("kind", [list, Dataset.from_list])
def test_a_classifier_needs_no_task_and_columns_that_it_does_not_read_are_left_out(reviews, kind):
    tokenizer, rows, model = reviews
    summary = descend.evaluate(model, kind(rows), collate=DataCollatorWithPadding(tokenizer), noise=(0, 0.5))
    tokens = [{name: row[name] for name in ("input_ids", "attention_mask", "label")} for row in rows]
    alone = descend.evaluate(model, tokens, collate=DataCollatorWithPadding(tokenizer), noise=(0, 0.5))
    assert summary.layer_losses == alone.layer_losses and summary.settled_layer is not None
    assert (summary.metric, summary.model) == ("accuracy", "BertForSequenceClassification-3")


def test_a_plain_trainer_lends_its_model_and_collator(reviews, tmp_path):
    tokenizer, rows, model = reviews
    trainer = Trainer(model, TrainingArguments(str(tmp_path / "plain"), **QUIET), processing_class=tokenizer)
    summary = descend.evaluate(trainer, Dataset.from_list(rows))
    given = descend.evaluate(model, rows, collate=DataCollatorWithPadding(tokenizer))
    assert summary.layer_losses[0.0] == pytest.approx(given.layer_losses[0.0], rel=1e-5)
    assert summary.method == "plain" and list((tmp_path / "plain").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"task": None}, "descend.Task"),
        ({"model": mlp()}, "descend.layered"),
        ({"model": "bert"}, "str"),
        ({"dataset": samples(1)}, "2 samples.*1"),
        ({"noise": ()}, "noise"),
        ({"noise": (-1,)}, "-1"),
        ({"split": "dev"}, "split.*'dev'"),
        ({"model": layers(embeddings=None), "noise": (0, 1)}, "embeddings"),
        ({"dataset": [{"y": torch.rand(4), "labels": 1}] * 4}, "ResidualMLP.*'x'"),
    ],
)
def test_what_can_not_be_evaluated(tmp_path, change, names):
    given = {"model": layers(), "dataset": samples(8), "task": Classes()} | change
    with pytest.raises(InputError, match=names):
        descend.evaluate(given.pop("model"), given.pop("dataset"), out=tmp_path, **given)
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_has_its_task_and_texts_of_different_lengths_need_a_collator(runs, reviews):
    for given, words in (
        ((runs[1]["erm"], samples(8), Classes()), "task"),
        ((reviews[2], reviews[1], None), r"don't make a batch.*DataCollatorWithPadding"),
    ):
        with pytest.raises(InputError, match=words):
            descend.evaluate(*given[:2], task=given[2])


def test_without_noise_a_trainer_is_judged_on_clean_inputs(tmp_path):
    summary = descend.evaluate(trained(tmp_path, noise=None), samples(20, 3))
    assert summary.noise == [0.0] and summary.train_noise == 0.0
