"""Recipes of pretrained models, text and lm: small models, and real ones where DESCEND_PRETRAINED is their folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from descend import run
from descend.cli import main
from descend.models import LayeredClassifier
from descend.recipes import RECIPES
from descend.results import read_config, read_summary
from descend.tasks.text import generate_instructions, generate_pairs, generate_reviews, learn_tokenizer
from tests.support.networks import causal, network
from tests.support.texts import review_folder

STEPS = ["--max-steps", "4", "--eval-strategy", "steps", "--eval-steps", "2", "--save-strategy", "steps"]
STEPS += ["--save-steps", "2", "--use-cpu", "--logging-steps", "1", "--dual-warmup-steps", "0"]


def train(out, recipe, *flags, status=0):
    assert main(["train", recipe, *STEPS, "--out", str(out), *map(str, flags)]) == status
    return out


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return review_folder(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Family → the folder of a small pretrained model with its tokenizer: with a head of 2 classes, or ``-bare``."""
    place = tmp_path_factory.mktemp("models")
    texts = [*generate_reviews(100, 0), *generate_pairs(100, 0)]
    tokenizer = learn_tokenizer(text for row in texts for text in (row["text"], row.get("pair", "")))
    tokenizer.eos_token = tokenizer.sep_token
    for family in ("bert", "roberta", "modernbert", "deberta-v2", "llama"):
        sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 40, "pad_token_id": 0}
        own = network(family, labels=2, **sizes)
        own.config.id2label, own.config.label2id = {0: "neg", 1: "pos"}, {"neg": 0, "pos": 1}
        for name, model in ((family, own), (f"{family}-bare", own.base_model)):
            model.half().save_pretrained(place / name)
            tokenizer.save_pretrained(place / name)
    causal("llama", vocab_size=len(tokenizer)).half().save_pretrained(place / "causal")
    tokenizer.save_pretrained(place / "causal")
    return place


@pytest.fixture(scope="module")
def finished(tmp_path_factory, models, reviews):
    """A run of a BERT without a head, cut to 2 of 3 blocks; read it, don't change it."""
    out = tmp_path_factory.mktemp("finished") / "run"
    flags = ["--model", models / "bert-bare", "--data", reviews, "--max-length", "30", "--keep-layers", "2"]
    return train(out, "text", *flags)


def test_a_cut_model_says_its_depth_and_is_evaluated_resumed_and_exported(finished, models, reviews, tmp_path, capsys):
    config = read_config(finished)
    assert (config.model, config.depth, config.settings["keep_layers"]) == ("BERT-2", 2, 2)
    assert (config.settings["pooling"], config.settings["dataset"], config.settings["noise"]) == ("mean", "imdb", 0.0)
    assert config.training["learning_rate"] == 3e-5
    summary = run.evaluate(finished, noise=[0.0], exit=True)
    assert (summary.model, summary.depth) == ("BERT-2", 2)
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    for name in ("model", "dual.safetensors", "checkpoint-4"):  # as it was after two steps
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    flags = ["--model", models / "bert-bare", "--data", reviews, "--max-length", "30", "--keep-layers", "2"]
    train(out, "text", *flags, "--resume")
    kept, again = (load_file(each / "model" / "model.safetensors") for each in (finished, out))
    assert all(torch.equal(again[name], value) for name, value in kept.items())
    capsys.readouterr()
    assert main(["export", str(finished), "--layers", "1", "--out", str(tmp_path / "small")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Load it with `import descend.models`")
    assert "import descend.models" in (tmp_path / "small" / "README.md").read_text()
    assert "/" not in json.loads((tmp_path / "small" / "config.json").read_text())["encoder"].get("_name_or_path", "")
    code = "import descend.models; from transformers import AutoModelForSequenceClassification as A\n"
    code += f"print(A.from_pretrained({str(tmp_path / 'small')!r}).config.num_hidden_layers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "deberta-v2", "llama"])
@pytest.mark.parametrize("head", ["", "-bare"])
@pytest.mark.parametrize("pooling", [None, "cls", "mean"])
def test_every_family_gets_the_head_that_is_asked_for(family, head, pooling, models, reviews):
    """In float32 whatever was saved; its own head is kept where it reads what is asked for."""
    given = {} if pooling is None else {"pooling": pooling}
    recipe = RECIPES["text"](data=str(reviews), model=str(models / f"{family}{head}"), max_length=30, **given)
    recipe = recipe.completed()
    model = recipe.network(recipe.load()).saved
    expected = pooling or ("mean" if head else "cls")
    assert recipe.pooling == expected and recipe.depth == LayeredClassifier(model).depth == 3
    plain = type(model).__module__.startswith("transformers.")
    assert plain == (expected == "cls" or (family == "modernbert" and head == "-bare"))
    assert model.config.id2label == {0: "neg", 1: "pos"} and model.dtype == torch.float32
    start = AutoModelForSequenceClassification.from_pretrained(models / family, dtype=torch.float32).state_dict()
    ours = model.state_dict()
    if expected == "cls" and not head:
        assert all(torch.equal(ours[name], value) for name, value in start.items())
    words = model.get_input_embeddings().weight
    assert any(torch.equal(words, value) for value in start.values())


def test_pairs_are_told_apart_by_bert(models, tmp_path):
    recipe = RECIPES["text"](
        data="generated", dataset="mnli", model=str(models / "bert-bare"), max_length=30
    ).completed()
    data = recipe.load()
    assert set(data.train[0]["token_type_ids"]) == {0, 1} and len(data.labels) == 3
    assert recipe.network(data).config.num_labels == 3
    other = RECIPES["text"](data="generated", dataset="mnli", model=str(models / "roberta-bare"), max_length=30)
    assert "token_type_ids" not in other.completed().load().train.column_names


def test_texts_of_any_classes_from_a_table(models, tmp_path, capsys):
    names = ["joy", "calm", "fear"]
    rows = [f"{row['text']},{names[place % 3]}" for place, row in enumerate(generate_reviews(60, 0))]
    file = tmp_path / "moods.csv"
    file.write_text("\n".join(["text,label", *rows]))
    out = train(tmp_path / "run", "text", "--model", models / "bert-bare", "--data", file, "--max-length", "30")
    config = read_config(out)
    assert (config.settings["dataset"], config.dataset) == ("labelled", "labelled, moods.csv")
    model = AutoModelForSequenceClassification.from_pretrained(out / "model")
    assert model.config.id2label == {0: "calm", 1: "fear", 2: "joy"}
    assert run.evaluate(out, noise=[0.0]).samples == 12
    # Another table with other numbers for the same classes, and a new run from this one's head.
    other = tmp_path / "other.jsonl"
    other.write_text(
        "\n".join(json.dumps({"text": row.split(",")[0], "label": row.split(",")[1]}) for row in rows[::-1])
    )
    assert run.evaluate(out, noise=[0.0], data=str(other)).samples == 12
    recipe = RECIPES["text"](data=str(other), model=str(out / "model"), max_length=30).completed()
    assert recipe.pooling == "mean"
    network = recipe.network(recipe.load()).saved
    assert torch.equal(network.score.weight, model.score.weight)
    capsys.readouterr()
    train(tmp_path / "no", "text", "--model", models / "bert", "--data", file, "--max-length", "30", status=2)
    assert "has a head of 2 labels; labelled has 3: calm, fear, joy" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_language_model_is_cut_trained_judged_and_drafts(models, tmp_path, capsys):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(generate_instructions(80).rows.to_list()))
    flags = ["--model", models / "causal", "--data", file, "--max-length", "60", "--keep-layers", "2"]
    out = train(tmp_path / "run", "lm", *flags)
    config = read_config(out)
    assert (config.model, config.depth, config.settings["noise"]) == ("Llama-2", 2, 0.0)
    model = AutoModelForCausalLM.from_pretrained(out / "model")
    assert (model.config.num_hidden_layers, model.dtype) == (2, torch.float32)
    assert run.evaluate(out, noise=[0.0], exit=True).depth == 2
    assert main(["export", str(out), "--layers", "1", "--out", str(tmp_path / "small")]) == 0
    whole = ["--model", models / "causal", "--data", file, "--max-length", "60", "--lora", "q_proj"]
    adapted = train(tmp_path / "adapted", "lm", *whole)
    assert (adapted / "model" / "adapter_config.json").is_file()
    assert run.evaluate(adapted, noise=[0.0]).depth == 3
    answers = ["--prompts", str(file), "--max-new-tokens", "2", "--out", str(tmp_path / "answers.json")]
    assert main(["complete", str(out), *answers]) == 0


@pytest.fixture(scope="module")
def long(models):
    """The folder of small models that take texts of the usual length, with a run among them."""
    for kind in ("bert", "modernbert"):
        model = network(kind, labels=3, vocab_size=400, max_position_embeddings=200, pad_token_id=0)
        for name, each in ((f"long-{kind}", model), (f"long-{kind}-bare", model.base_model)):
            shutil.copytree(models / f"{kind}-bare", models / name)
            each.save_pretrained(models / name)
    return models


@pytest.mark.parametrize("name", ["bert", "bert-bare", "modernbert", "modernbert-bare"])
def test_a_model_as_it_is_is_read_by_linear_readouts_whatever_its_head(name, long, reviews, tmp_path):
    words = ["evaluate", str(long / f"long-{name}"), "--layers", "--data", str(reviews), "--most", "40", "--quiet"]
    for _ in range(2):  # its own results are written again
        assert main([*words, "--out", str(tmp_path / "out")]) == 0
    summary = read_summary(tmp_path / "out")
    assert summary.depth == 3 and summary.samples == 40 and "not trained" in summary.note


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("RUN", [], "RUN is the folder of a run; give RUN/model"),
        ("long-bert", ["--out", "RUN"], "RUN holds a run or a model, whose evaluation would be lost"),
        ("long-bert", ["--out", "other"], "other holds results that are not those of"),
        ("long-bert", ["--out", "file"], "file is a file"),
        ("long-bert", ["--dataset", "labelled", "--data", "file"], "file must be a folder with train"),
        ("long-bert", ["--image-size", "8"], "--image-size is none of descend train text"),
        ("nobody/nothing", [], "can't load a model from 'nobody/nothing'"),
    ],
)
def test_a_mistake_in_evaluating_a_model_as_it_is_writes_nothing(
    model, flags, message, finished, long, reviews, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, "RUN")
    run.evaluate(Path("RUN"), noise=[0.0])
    Path("other").mkdir()
    shutil.copy("RUN/summary.json", "other")
    Path("file").write_text("no data")
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    given = model if model in ("RUN", "nobody/nothing") else str(long / model)
    assert main(["evaluate", given, "--layers", "--data", str(reviews), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


def test_results_of_a_model_as_it_is_are_named_by_its_run(finished, monkeypatch):
    monkeypatch.chdir(finished / "model")
    names = {".": "run-layers", "../best_feasible": "run-best_feasible-layers", "org/bert": "bert-layers"}
    assert {model: str(run.frozen_folder(model)) for model in names} == names


@pytest.mark.parametrize(
    ("recipe", "flags", "message"),
    [
        ("text", ["--data", "generated"], "text trains a pretrained model; expected --model PATH_OR_NAME"),
        ("lm", [], "lm needs data; expected --data FILE"),
        ("text", ["--model", "nobody/nothing"], "can't load a model from 'nobody/nothing'"),
        ("text", ["--model", "MODELS/bert", "--keep-layers", "0"], "keep_layers must be at least 1; got 0"),
        (
            "text",
            ["--model", "MODELS/bert", "--keep-layers", "4"],
            "keep_layers must be 1 to 3, the layers of MODELS/bert",
        ),
        ("text", ["--model", "MODELS/bert"], "takes texts of at most 40 tokens; got --max-length 128"),
        ("text", ["--model", "MODELS/causal", "--max-length", "300"], "takes texts of at most 64 tokens"),
        (
            "text",
            ["--model", "MODELS/bert", "--dataset", "mnli", "--max-length", "30"],
            "a head of 2 labels; mnli has 3",
        ),
        ("text", ["--model", "MODELS/t5"], "'t5' can't be read by its head: it has an encoder and a decoder"),
        ("text", ["--model", "MODELS/mpnet"], "model_type must be one of distilbert, bert,"),
        ("text", ["--model", "MODELS/bert", "--pooling", "max"], "choice: 'max'"),
        ("text", ["--model", "MODELS/bert", "--depth", "2"], "no setting --depth"),
        ("lm", ["--model", "MODELS/causal", "--keep-layers", "9", "--max-length", "60"], "keep_layers must be 1 to 3"),
        (
            "lm",
            ["--model", "MODELS/causal", "--keep-layers", "2", "--lora", "q_proj", "--max-length", "60"],
            "--keep-layers and --lora exclude",
        ),
        ("lm", ["--model", "MODELS/bert"], "model_type must be one of llama"),
    ],
)
def test_what_cant_be_trained_is_one_line(recipe, flags, message, models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for kind in ("t5", "mpnet"):
        (models / kind).mkdir(exist_ok=True)
        (models / kind / "config.json").write_text(json.dumps({"model_type": kind}))
    data = [] if "needs data" in message else ["--data", "generated"]
    given = [each.replace("MODELS", str(models)) for each in flags]
    assert main(["train", recipe, *data, "--out", "nowhere", *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message.replace("MODELS", str(models)) in line and not Path("nowhere").exists()


def test_a_head_on_the_mean_is_not_replaced(finished, capsys):
    model = str(finished / "model")
    words = ["train", "text", "--model", model, "--data", "generated", "--pooling", "cls", "--max-length", "30"]
    assert main([*words, "--out", "nowhere"]) == 2
    assert "can't be replaced; leave out --pooling cls" in capsys.readouterr().err


@pytest.fixture(scope="session")
def pretrained():
    """The folder of real pretrained models, ``minilm`` and ``smollm2``: tests that need one skip where it is not."""
    folder = os.environ.get("DESCEND_PRETRAINED")
    if not folder:
        pytest.skip("set DESCEND_PRETRAINED to a folder with pretrained models to run this test")
    return Path(folder)


def test_real_models_train(pretrained, real_data, tmp_path):
    few = ["--max-steps", "1", "--use-cpu", "--per-device-train-batch-size", "2", "--eval-strategy", "no"]
    few += ["--save-strategy", "no", "--no-load-best-model-at-end", "--no-calibrate", "--keep-layers", "2"]
    words = ["--model", str(pretrained / "minilm"), "--data", str(real_data / "imdb"), "--max-length", "16"]
    words += ["--validation-share", "0.01"]
    assert main(["train", "text", *words, *few, "--out", str(tmp_path / "text")]) == 0
    assert run.evaluate(tmp_path / "text", noise=[0.0], most=20).model == "BERT-2"
    words = ["--model", str(pretrained / "smollm2"), "--data", str(real_data / "alpaca" / "alpaca_data.json")]
    words += ["--max-length", "64", "--validation-share", "0.01"]
    assert main(["train", "lm", *words, *few, "--out", str(tmp_path / "lm")]) == 0
    assert run.evaluate(tmp_path / "lm", noise=[0.0], most=20).model == "Llama-2"
