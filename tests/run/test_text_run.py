"""A text recipe carried out in a folder: what is stored, taken up again, evaluated elsewhere and refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel

from descend import DescentClassifier, DescentConfig, run
from descend.cli import main
from descend.errors import InputError
from descend.recipes import RECIPES
from descend.results import read_config
from descend.tasks.text import Classification, generate_reviews, learn_tokenizer
from tests.support.networks import network
from tests.support.texts import review_folder

SMALL = ["--depth", "2", "--hidden-size", "16", "--max-length", "30", "--use-cpu", "--logging-steps", "1"]
STEPS = [
    "--max-steps",
    "6",
    "--eval-strategy",
    "steps",
    "--eval-steps",
    "3",
    "--save-strategy",
    "steps",
    "--save-steps",
    "3",
]
DUAL = ["--dual-warmup-steps", "0", "--dual-lr", "0.1", "--learning-rate", "0.01"]


def train(out, *flags, recipe="text-ut", status=0):
    assert (
        main(["train", recipe, "--data", "generated", *SMALL, *STEPS, *DUAL, "--out", str(out), *map(str, flags)])
        == status
    )
    return out


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return review_folder(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, reviews):
    """A finished run on files; read it, don't change it."""
    return train(tmp_path_factory.mktemp("finished") / "run", "--data", reviews)


def test_a_run_keeps_the_tokenizer_and_the_sigma_of_the_trained_embedding(finished, reviews):
    config = json.loads((finished / "config.json").read_text())
    model = AutoModelForSequenceClassification.from_pretrained(finished / "model")
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    assert len(tokenizer) == model.config.vocab_size
    recipe = RECIPES["text-ut"](data=str(reviews), depth=2, hidden_size=16, max_length=30)
    parts = recipe.load(recipe.restore(str(finished / "model")))
    assert {side: len(getattr(parts, side)) for side in ("train", "validation", "test")} == {
        "train": 48,
        "validation": 12,
        "test": 60,
    }
    sigma = Classification().sigma(model.get_input_embeddings(), parts.train)
    assert config["sigma"] == pytest.approx(sigma, rel=1e-6)
    assert sigma != pytest.approx(model.config.initializer_range, rel=1e-3)
    assert (config["model"], config["dataset"]) == ("UT-2", f"imdb, {reviews.name}")
    assert model.config.id2label == {0: "neg", 1: "pos"}


def test_the_model_that_is_kept_is_the_best_one_and_its_multipliers_are_its_own(finished):
    states = sorted(finished.glob("checkpoint-*/trainer_state.json"))
    best = json.loads(states[-1].read_text())["best_model_checkpoint"]
    kept, chosen = load_file(finished / "model" / "model.safetensors"), load_file(f"{best}/model.safetensors")
    # All but the head's last weights, which have taken up a temperature.
    last = {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(kept[name], value) for name, value in chosen.items() if name not in last)
    scales = torch.cat([(chosen[name] / kept[name]).flatten() for name in last])
    torch.testing.assert_close(scales, torch.full_like(scales, read_config(finished).temperature))
    stored = json.loads(Path(best, "descent_0.json").read_text())["dual"]["multipliers"]
    assert load_file(finished / "dual.safetensors")["multipliers"].tolist() == stored[1:]


def test_a_run_is_judged_from_its_folder_alone_and_on_other_data(finished, reviews, tmp_path):
    own = run.evaluate(finished, noise=[0.0, 2.0])
    assert own.samples == 60 and set(own.layer_losses) == {0.0, 1.0, 2.0}
    other = tmp_path / "other"
    for side in ("train", "test"):
        for label in ("neg", "pos"):
            (other / side / label).mkdir(parents=True)
    for number, row in enumerate(generate_reviews(15, 9)):
        for side in ("train", "test"):
            (other / side / ("neg", "pos")[row["label"]] / f"{number}_1.txt").write_text(row["text"])
    elsewhere = run.evaluate(finished, noise=[0.0, 2.0], data=str(other))
    assert elsewhere.samples == 15 and elsewhere.sigma == own.sigma


@pytest.mark.parametrize(("shift", "top"), [("uniform", 3.5), ("laplace", 3.5), ("dropout", 0.7)])
def test_a_run_is_judged_under_other_shifts(finished, tmp_path, shift, top):
    plain = run.evaluate(finished, noise=[0.0, 0.5])
    found = run.evaluate(finished, shift=shift)
    assert found.shift == shift and plain.shift == "gaussian"
    assert found.noise[0] == 0 and found.noise[-1] == pytest.approx(top) and len(found.noise) == 8
    assert found.layer_losses[0.0] == plain.layer_losses[0.0]
    at = run.evaluate(finished, noise=[0.5], shift=shift).layer_losses[0.5]
    assert at != plain.layer_losses[0.5]
    with pytest.raises(InputError, match=r"gaussian, uniform, laplace, dropout.*'pink'"):
        run.evaluate(finished, shift="pink")


def test_an_interrupted_run_goes_on_bit_equal(finished, reviews, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    for name in ("model", "dual.safetensors", "checkpoint-6"):  # as it was after three steps
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    train(out, "--data", reviews, "--resume")
    again = train(tmp_path / "again", "--data", reviews)
    for name in ("model/model.safetensors", "dual.safetensors", "checkpoint-6/model.safetensors"):
        whole = load_file(finished / name)
        for other in (load_file(out / name), load_file(again / name)):
            assert all(torch.equal(other[key], value) for key, value in whole.items()), name


def test_pairs_are_told_apart_by_a_model_of_three_classes(tmp_path):
    out = train(tmp_path / "run", "--dataset", "mnli", recipe="text-distilbert")
    assert AutoModelForSequenceClassification.from_pretrained(out / "model").config.num_labels == 3
    assert json.loads((out / "config.json").read_text())["dataset"] == "generated mnli"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A pretrained encoder without a head, and its tokenizer."""
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = learn_tokenizer(row["text"] for row in generate_reviews(100, 0))
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    return folder


def test_ut_starts_from_the_word_embeddings_of_any_model(encoder, tmp_path):
    recipe = RECIPES["text-ut"](data="generated", model=str(encoder), depth=3)
    setup = recipe.resolve(DescentConfig(output_dir=str(tmp_path), use_cpu=True))
    model = setup.model
    assert (model.depth, setup.recipe.depth, setup.recipe.hidden_size) == (3, 3, 8) and recipe.hidden_size == 128
    assert torch.equal(
        model.get_input_embeddings().weight, BertModel.from_pretrained(encoder).get_input_embeddings().weight
    )


def test_a_pretrained_classifier_is_trained_at_its_own_depth_and_with_care(tmp_path, reviews):
    tokenizer = learn_tokenizer(row["text"] for row in generate_reviews(100, 0))
    start = tmp_path / "start"
    tokenizer.save_pretrained(start)
    network("roberta", labels=2, vocab_size=len(tokenizer), max_position_embeddings=40, pad_token_id=0).save_pretrained(
        start
    )
    out = tmp_path / "run"
    flags = ["--model", str(start), "--data", str(reviews), "--max-length", "30", "--max-steps", "2", "--use-cpu"]
    assert main(["train", "text-roberta", "--data", "generated", *flags, "--out", str(out)]) == 0
    config = json.loads((out / "config.json").read_text())
    assert (config["model"], config["settings"]["depth"], config["training"]["learning_rate"]) == ("RoBERTa-3", 3, 3e-5)


@pytest.mark.parametrize("recipe", ["text-distilbert", "text-roberta"])
def test_a_run_with_a_linear_readout_is_resumed_judged_and_loaded(recipe, tmp_path, reviews):
    flags = ["--data", reviews, "--readout", "linear"]
    whole = train(tmp_path / "whole", *flags, recipe=recipe)
    shutil.copytree(whole, tmp_path / "part")
    for name in ("model", "dual.safetensors", "checkpoint-6"):  # as it was after three steps
        path = tmp_path / "part" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    part = train(tmp_path / "part", *flags, "--resume", recipe=recipe)
    kept, again = (load_file(out / "model" / "model.safetensors") for out in (whole, part))
    assert kept.keys() == again.keys() and all(torch.equal(again[name], value) for name, value in kept.items())
    assert kept["score.weight"].shape == (2, 16)
    loaded = DescentClassifier.from_pretrained(whole)
    assert type(loaded.model.saved).__name__.endswith("LinearForSequenceClassification")
    assert all(1 <= each.layer <= 2 for each in loaded.predict(["a film", "a book"], exit_threshold=0.5))
    assert run.evaluate(whole, noise=[0.0], exit=True).samples == 60


def test_a_pretrained_model_starts_with_a_new_linear_readout_or_goes_on_with_its_own(tmp_path, reviews, capsys):
    """Transformers' head for other classes is left out; a linear one of a run is kept, and not taken for another."""
    tokenizer = learn_tokenizer(row["text"] for row in generate_reviews(100, 0))
    start, sizes = tmp_path / "start", {"max_position_embeddings": 40, "pad_token_id": 0}
    tokenizer.save_pretrained(start)
    network("distilbert", labels=5, vocab_size=len(tokenizer), **sizes).save_pretrained(start)
    recipe = RECIPES["text-distilbert"](model=str(start), data=str(reviews), max_length=30, readout="linear")
    model = recipe.network(recipe.completed().load()).saved
    assert model.config.id2label == {0: "neg", 1: "pos"} and model.score.out_features == 2
    encoder = network("distilbert", labels=5, vocab_size=len(tokenizer), **sizes).base_model.state_dict()
    assert all(torch.equal(model.base_model.state_dict()[name], value) for name, value in encoder.items())

    with torch.no_grad():
        model.score.bias.copy_(torch.tensor([0.25, -0.25]))
    tokenizer.save_pretrained(tmp_path / "trained")
    model.save_pretrained(tmp_path / "trained")
    recipe = RECIPES["text-distilbert"](
        model=str(tmp_path / "trained"), data=str(reviews), max_length=30, readout="linear"
    )
    assert recipe.network(recipe.completed().load()).saved.score.bias.tolist() == [0.25, -0.25]
    line = refused(capsys, "--model", tmp_path / "trained", "--max-length", 30)
    assert "expected a DistilBERT, model_type 'distilbert'; " in line and "'descend-distilbert-linear'" in line


def refused(capsys, *flags, recipe="text-distilbert"):
    capsys.readouterr()
    assert main(["train", recipe, "--data", "generated", "--out", "nowhere", *map(str, flags)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_bad_settings_are_refused_in_one_line(capsys, tmp_path, reviews, encoder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = learn_tokenizer(row["text"] for row in generate_reviews(100, 0))
    model = tmp_path / "model"
    tokenizer.save_pretrained(model)
    network("distilbert", labels=2, vocab_size=len(tokenizer)).save_pretrained(model)
    line = refused(capsys, "--dataset", "sst")
    assert "'sst'" in line and "mnli" in line
    assert "max_length must be at least 3" in refused(capsys, "--max-length", 2)
    line = refused(capsys, "--readout", "deep")
    assert "'deep'" in line and "linear" in line
    assert "dropout must lie in [0, 1)" in refused(capsys, "--dropout", 1)
    assert "validation_share must lie between 0 and 1" in refused(capsys, "--validation-share", 2)
    line = refused(capsys, "--model", encoder)
    assert "expected a DistilBERT, model_type 'distilbert'" in line and "is of model_type 'bert'" in line
    assert "takes texts of at most 20 tokens; got --max-length 30" in refused(
        capsys, "--model", model, "--max-length", 30
    )
    line = refused(capsys, "--model", model, "--dataset", "mnli", "--max-length", 20)
    assert "has a head of 2 labels; mnli has 3: entailment, neutral, contradiction" in line
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(900))])
    )
    line = refused(capsys, "--model", model, "--max-length", 20, "--tokenizer", tmp_path / "words")
    assert f"words, the word embedding of {model} {len(tokenizer)}. Give the model's own tokenizer" in line
    line = refused(capsys, "--model", encoder, "--tokenizer", tmp_path / "words", recipe="text-ut")
    assert "Give the model's own tokenizer" in line
    line = refused(capsys, "--data", reviews, "--max-length", 12, "--no-truncate")
    assert f"{reviews}/" in line and "tokens; expected at most 12" in line
    line = refused(capsys, "--model", "nobody/nothing")
    assert "can't load a model from 'nobody/nothing': expected a folder with config.json" in line
    line = refused(capsys, "--data", tmp_path / "none")
    assert "does not exist" in line
    assert not (tmp_path / "nowhere").exists()


def test_pairs_from_disk_end_to_end(real_data, tmp_path):
    flags = ["--dataset", "mnli", "--data", real_data / "mnli" / "nyu_tsv"]
    out = train(tmp_path / "run", *flags, "--tokenizer", real_data / "tokenizers" / "bert-base-uncased")
    found = run.evaluate(out, noise=[0.0])
    # Hypotheses on one premise are one group.
    assert found.samples == 2000 and 600 < found.groups < 2000
    assert len(AutoTokenizer.from_pretrained(out / "model")) == 30522


@pytest.mark.parametrize("recipe", ["text-distilbert", "text-roberta", "text-ut"])
def test_activations_computed_again_change_nothing(recipe, tmp_path, reviews):
    kept = ["--data", reviews, "--dropout", "0"]
    for name, flags in (("plain", []), ("again", ["--gradient-checkpointing"])):
        train(tmp_path / name, *kept, *flags, recipe=recipe)
    one, other = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("plain", "again"))
    for key, value in one.items():
        torch.testing.assert_close(other[key], value, rtol=1e-4, atol=1e-5)


def test_sizes_that_cant_be_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "hidden_size must be a multiple of heads; got 18 and 4" in refused(capsys, "--hidden-size", 18)
    assert "heads must be at least 1; got 0" in refused(capsys, "--heads", 0)
    assert "hidden_size must be at least 1; got 0" in refused(capsys, "--hidden-size", 0)
    assert "noise must be a level" in refused(capsys, "--noise", "inf")
    line = refused(capsys, "--metric-for-best-model", "f1")
    assert "metric_for_best_model must be one of accuracy, feasible, loss, merit, violation; got 'f1'" in line
