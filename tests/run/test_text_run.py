"""Recipes of texts in a folder, with new and with pretrained models: saved, trained further, evaluated."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from descend import DescentConfig, InputError, Run, configure, run
from descend.cli import main
from descend.models import LayeredClassifier
from descend.recipes import RECIPES
from descend.results import best_layer, put, read_config, read_summary
from descend.run import EarlyExits
from descend.run.describing import saved_form
from descend.tasks.text import Classification, generate_reviews
from tests.support.cases import slow, slow_but
from tests.support.runs import SAVED, UNSAVED, said, trained
from tests.support.texts import review_folder

SMALL = f"{SAVED} --max-length 30"


def test_a_run_keeps_the_tokenizer_and_the_sigma_of_the_trained_embedding(classifier, reviews):
    config, tokenizer = read_config(classifier), AutoTokenizer.from_pretrained(classifier / "model")
    model = AutoModelForSequenceClassification.from_pretrained(classifier / "model")
    assert len(tokenizer) == model.config.vocab_size and model.config.id2label == {0: "neg", 1: "pos"}
    assert (config.model, config.dataset) == ("DistilBERT-3", f"imdb, {reviews.name}")
    recipe = RECIPES["text-distilbert"].kind(**config.settings)
    parts = recipe.load(*recipe.restore(str(classifier / "model")))
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [48, 12, 60]
    sigma = Classification().sigma(model.get_input_embeddings(), parts.train)
    assert config.sigma == pytest.approx(sigma, rel=1e-6) != pytest.approx(model.config.initializer_range, rel=1e-3)


def test_the_model_that_is_kept_is_the_best_one_and_its_multipliers_are_its_own(classifier):
    states = sorted(classifier.glob("checkpoint-*/trainer_state.json"))
    best = json.loads(states[-1].read_text())["best_model_checkpoint"]
    kept, chosen = load_file(classifier / "model" / "model.safetensors"), load_file(f"{best}/model.safetensors")
    last = {"classifier.weight", "classifier.bias"}  # the head's last weights have taken up a temperature
    assert all(torch.equal(kept[name], value) for name, value in chosen.items() if name not in last)
    scales = torch.cat([(chosen[name] / kept[name]).flatten() for name in last])
    torch.testing.assert_close(scales, torch.full_like(scales, read_config(classifier).temperature))
    multipliers = json.loads(Path(best, "descent_0.json").read_text())["dual"]["multipliers"]
    assert load_file(classifier / "dual.safetensors")["multipliers"].tolist() == multipliers[1:]


@pytest.mark.parametrize(
    ("shift", "top"), slow_but([("dropout", 0.7)], [("uniform", 3.5), ("laplace", 3.5), ("dropout", 0.7)])
)
def test_a_run_is_judged_under_other_shifts_and_on_other_data(classifier, tmp_path, shift, top):
    plain, found = Run.read(classifier).evaluate(noise=[0.0, 0.5]), Run.read(classifier).evaluate(shift=shift)
    assert (plain.shift, found.shift, plain.samples) == ("gaussian", shift, 60)
    assert found.noise[0] == 0 and found.noise[-1] == pytest.approx(top) and len(found.noise) == 8
    at = Run.read(classifier).evaluate(noise=[0.0, 0.5], shift=shift).layer_losses
    assert at[0.0] == found.layer_losses[0.0] == plain.layer_losses[0.0] and at[0.5] != plain.layer_losses[0.5]
    own = (classifier / "summary.json").read_bytes()
    elsewhere = Run.read(classifier, data=str(review_folder(tmp_path / f"{shift}-other"))).evaluate(noise=[0.0])
    assert elsewhere.dataset.endswith("other") and elsewhere.sigma == plain.sigma
    assert (classifier / "summary.json").read_bytes() == own
    again = str(review_folder(tmp_path / "moved" / f"{shift}-other"))
    with pytest.raises(InputError, match=f"holds the evaluation on .*{shift}-other, which would be lost"):
        Run.read(classifier, data=again).evaluate(noise=[0.0])
    put(classifier / f"on-{shift}-other" / "summary.json", lambda part: part.write_text("[]"))
    with pytest.raises(InputError, match=r"summary\.json is no summary of a run"):
        Run.read(classifier, data=again).evaluate(noise=[0.0])
    with pytest.raises(InputError, match=r"gaussian, uniform, laplace, dropout.*'pink'"):
        Run.read(classifier).evaluate(shift="pink")


def test_held_out_texts_in_a_file_all_count_but_for_the_files_own_training_rows(tmp_path, caplog):
    rows = [(row["text"], ("neg", "pos")[row["label"]]) for row in generate_reviews(100, 3)]
    own, other = tmp_path / "own.jsonl", tmp_path / "other.jsonl"
    for file, part in ((own, rows[:60]), (other, rows[60:])):
        file.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in part))
    out = trained(
        tmp_path / "run", "text-distilbert", f"{SMALL} --depth 2 --hidden-size 16 --dataset labelled", "--data", own
    )
    assert [len(Run.read(out, data=data).samples) for data in (None, str(own), str(other))] == [12, 12, 40]
    texts = [{tuple(row) for row in Run.read(out, data=data).samples["input_ids"]} for data in (None, str(own))]
    assert texts[0] == texts[1]
    assert len(Run.read(out / "model", task="classification", data=str(other)).samples) == 40
    assert "all 40 texts are test samples; training must not have seen them" in caplog.text
    one = tmp_path / "one.jsonl"
    one.write_text(json.dumps({"text": rows[0][0], "label": "pos"}) + "\n")
    assert Run.read(out, data=str(one)).samples["labels"] == [1]  # pos, which is the file's only class
    (tmp_path / "moved").mkdir()
    assert len(Run.read(out, data=str(own.rename(tmp_path / "moved" / own.name))).samples) == 12


@pytest.mark.slow
def test_pairs_from_disk_end_to_end(real_data, tmp_path):
    words = ["--data", real_data / "mnli" / "nyu_tsv", "--tokenizer", real_data / "tokenizers" / "bert-base-uncased"]
    out = trained(tmp_path / "run", "text-ut", f"{SMALL} --depth 2 --hidden-size 16 --dataset mnli", *words)
    found = Run.read(out).evaluate(noise=[0.0])
    assert found.samples == 2000 and 600 < found.groups < 2000  # hypotheses on one premise are one group
    assert len(AutoTokenizer.from_pretrained(tmp_path / "run" / "model")) == 30522


# --- pretrained models


@pytest.mark.parametrize("family", ["bert", "modernbert", *map(slow, ("roberta", "deberta-v2", "llama"))])
@pytest.mark.parametrize("head", ["", "-bare"])
@pytest.mark.parametrize("pooling", [None, "cls", "mean"])
def test_every_family_gets_the_head_that_is_asked_for(family, head, pooling, models, reviews):
    """In float32 whatever was saved; its own head is kept where it reads what is asked for."""
    given = {} if pooling is None else {"pooling": pooling}
    recipe = RECIPES["text"].kind(data=str(reviews), model=str(models / f"{family}{head}"), max_length=30, **given)
    recipe = recipe.completed()
    model = recipe.network(recipe.load()).saved
    expected = pooling or ("mean" if head else "cls")
    assert recipe.pooling == expected and recipe.depth == LayeredClassifier(model).depth == 3
    plain = type(model).__module__.startswith("transformers.")
    assert saved_form(model).endswith("without Descend." if plain else "trust_remote_code=True.")
    assert plain == (expected == "cls" or (family == "modernbert" and head == "-bare"))
    assert model.config.id2label == {0: "neg", 1: "pos"} and model.dtype == torch.float32
    start = AutoModelForSequenceClassification.from_pretrained(models / family, dtype=torch.float32).state_dict()
    if expected == "cls" and not head:
        assert all(torch.equal(model.state_dict()[name], value) for name, value in start.items())
    words = model.get_input_embeddings().weight
    assert any(torch.equal(words, value) for value in start.values())


def test_the_papers_recipes_start_from_pretrained_models_too(models, reviews, tmp_path):
    """UT from the words of any; a classifier at its own depth and with care; with a new linear head, or its own."""
    data = {"data": str(reviews), "max_length": 30}
    setup = RECIPES["text-ut"].kind(**data, model=str(models / "bert"), depth=4).resolve(DescentConfig(str(tmp_path)))
    assert (setup.model.depth, setup.recipe.depth, setup.recipe.hidden_size) == (4, 4, 16)
    start = AutoModelForSequenceClassification.from_pretrained(models / "bert", dtype=torch.float32)
    assert torch.equal(setup.model.get_input_embeddings().weight, start.get_input_embeddings().weight)
    chosen = configure("text-roberta", output_dir="run", **data, model=str(models / "roberta"))
    assert chosen.arguments.learning_rate == 3e-5 and chosen.recipe.completed().label == "RoBERTa-3"

    def made(place):
        linear = {"dataset": "mnli", "readout": "linear"}  # for 3 classes, where the model's own head has 2
        recipe = RECIPES["text-distilbert"].kind(data="generated", max_length=30, **linear, model=str(place))
        return recipe.network(recipe.completed().load()).saved

    model = made(models / "distilbert")
    start = AutoModelForSequenceClassification.from_pretrained(models / "distilbert", dtype=torch.float32).base_model
    assert model.score.out_features == 3
    assert all(torch.equal(model.base_model.state_dict()[name], value) for name, value in start.state_dict().items())
    torch.nn.init.constant_(model.score.bias, 0.25)
    AutoTokenizer.from_pretrained(models / "distilbert").save_pretrained(tmp_path / "trained")
    model.save_pretrained(tmp_path / "trained")
    assert made(tmp_path / "trained").score.bias.tolist() == [0.25] * 3


def test_pairs_are_told_apart_by_bert(models):
    pairs = {"data": "generated", "dataset": "mnli", "max_length": 30}
    recipe = RECIPES["text"].kind(**pairs, model=str(models / "bert-bare")).completed()
    data = recipe.load()
    assert set(data.train[0]["token_type_ids"]) == {0, 1} and len(data.labels) == 3
    assert recipe.network(data).config.num_labels == 3
    other = RECIPES["text"].kind(**pairs, model=str(models / "roberta-bare")).completed()
    assert "token_type_ids" not in other.load().train.column_names


def test_a_cut_model_on_texts_of_any_classes_says_so_wherever_it_goes(models, tmp_path, capsys):
    """Trained on a table, evaluated on one with other numbers for its classes, trained further, exported."""
    names = ["joy", "calm", "fear"]
    rows = [{"text": row["text"], "label": names[place % 3]} for place, row in enumerate(generate_reviews(60, 0))]
    file, other = tmp_path / "moods.csv", tmp_path / "other.jsonl"
    file.write_text("\n".join(["text,label", *(f"{row['text']},{row['label']}" for row in rows)]))
    other.write_text("\n".join(map(json.dumps, rows[::-1])))
    given = ["--model", models / "bert-bare", "--data", file]
    out = trained(tmp_path / "run", "text", f"{SMALL} --keep-layers 2", *given)
    config, model = read_config(out), AutoModelForSequenceClassification.from_pretrained(out / "model")
    assert (config.model, config.depth, config.dataset) == ("BERT-2", 2, "labelled, moods.csv")
    expected = {"keep_layers": 2, "pooling": "mean", "dataset": "labelled", "noise": 0.0}
    assert {name: config.settings[name] for name in expected} == expected and config.training["learning_rate"] == 3e-5
    assert model.config.id2label == {0: "calm", 1: "fear", 2: "joy"}
    for data, samples in ((None, 12), (str(other), 60)):
        summary = Run.read(out, data=data).evaluate([EarlyExits()] if data is None else [], noise=[0.0])
        assert (summary.samples, summary.model, summary.depth) == (samples, "BERT-2", 2)
    recipe = RECIPES["text"].kind(data=str(other), model=str(out / "model"), max_length=30).completed()
    assert recipe.pooling == "mean"
    assert torch.equal(recipe.network(recipe.load()).saved.score.weight, model.score.weight)
    shown, _ = said(capsys, "export", out, "--layers", "1", "--out", tmp_path / "small")
    note, last = shown.splitlines()[-2:]
    options = "truncation=True, trust_remote_code=True"
    assert last.endswith(f'Serve it: pipeline("text-classification", model="{tmp_path / "small"}", {options})')
    card = (tmp_path / "small" / "README.md").read_text()
    assert f'Run this in the folder: `pipeline("text-classification", model=".", {options})`.' in card
    assert note.startswith("Load it with `trust_remote_code=True`") and "`linear_readout.py`" in note
    assert note in " ".join((tmp_path / "small" / "README.md").read_text().split())
    assert "/" not in json.loads((tmp_path / "small" / "config.json").read_text())["encoder"].get("_name_or_path", "")
    small = AutoModelForSequenceClassification.from_pretrained(tmp_path / "small")
    assert small.config.num_hidden_layers == 1


@pytest.mark.parametrize("name", slow_but(["bert"], ["bert", "modernbert-bare"]))
def test_a_model_as_it_is_is_read_by_linear_readouts_whatever_its_head(name, models, reviews, tmp_path):
    words = ["layers", str(models / f"long-{name}"), "--data", str(reviews), "--most", "40", "--quiet"]
    for _ in range(2):  # its own results are written again
        assert main([*words, "--out", str(tmp_path / "out")]) == 0
    summary = read_summary(tmp_path / "out")
    assert summary.depth == 3 and summary.samples == 40 and "not trained" in summary.note


def test_the_layers_that_suffice_are_saved_with_their_fitted_readout(models, reviews, tmp_path, capsys):
    """The folder's classes are those that the page's accuracy counts, at the K that was chosen."""
    words = ["layers", models / "long-bert", "--data", reviews, "--most", 40, "--out", tmp_path / "out"]
    shown, _ = said(capsys, *words, "--save", tmp_path / "small", "--layers", "best")
    summary, small = (
        read_summary(tmp_path / "out"),
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "small"),
    )
    best = max(1, best_layer(summary.validation.metric, higher_is_better=True))
    assert small.config.num_hidden_layers == best and f"layer {best}:" in shown and "<- the best" in shown
    run = Run.read(tmp_path / "small", task="classification", data=str(reviews))
    again = run.evaluate(noise=[0.0], most=40)
    accuracy = summary.layer_metrics[0.0][best]
    assert again.values == [accuracy] and again.samples == 40
    assert f"accuracy {accuracy:.4f} ({summary.values[0]:.4f})" in shown.splitlines()[-1]
    card = " ".join((tmp_path / "small" / "README.md").read_text().split())
    assert f"The first {best} of 3 layers" in card and "was not trained" in card and "trust_remote_code" in card


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "2"], "add --save FOLDER"),
        (["--tolerance", "1"], "add --save FOLDER"),
        (["--save", "SMALL", "--layers", "some"], "auto, certified or best; got 'some'"),
        (["--save", "FULL"], "FULL"),
        (["--save", "SMALL", "--layers", "9"], "layers must be 1 to 3"),
        (["--save", "SMALL", "--tolerance", "3"], "tolerance must be 1, 2 or 5"),
    ],
)
def test_what_can_not_be_saved_is_said_before_layers_are_read(models, reviews, tmp_path, capsys, words, message):
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "mine").touch()
    given = [tmp_path / word if word.isupper() else word for word in words]
    out = tmp_path / "out"
    words = ["layers", models / "long-bert", "--data", reviews, "--most", 40, "--out", out, *given]
    *_, line = said(capsys, *words, status=2)[1].splitlines()
    assert message in line and not (tmp_path / "SMALL").exists() and not out.exists()


def test_results_of_a_model_as_it_is_are_named_by_its_run(classifier, monkeypatch):
    monkeypatch.chdir(classifier / "model")
    names = {".": "run-layers", "../best_feasible": "run-best_feasible-layers", "org/bert": "bert-layers"}
    assert {model: str(run.frozen_folder(model)) for model in names} == names


@pytest.mark.skipif("DESCEND_PRETRAINED" not in os.environ, reason="DESCEND_PRETRAINED, a folder of models, is not set")
@pytest.mark.parametrize(
    ("recipe", "model", "data", "label"),
    [("text", "minilm", "imdb", "BERT-2"), ("lm", "smollm2", "alpaca/alpaca_data.json", "Llama-2")],
)
def test_real_models_train(recipe, model, data, label, real_data, tmp_path):
    few = f"{UNSAVED} --max-steps 1 --per-device-train-batch-size 2 --max-length 64 --no-calibrate --keep-layers 2"
    given = ["--model", Path(os.environ["DESCEND_PRETRAINED"], model), "--data", real_data / data]
    trained(tmp_path / "run", recipe, f"{few} --validation-share 0.01", *given)
    assert Run.read(tmp_path / "run").evaluate(noise=[0.0], most=20).model == label
