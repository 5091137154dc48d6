"""The recipe `image` carried out in a folder: trained, resumed, evaluated, exported and refused."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoModelForImageClassification

from descend import DescentConfig, run
from descend.cli import main
from descend.results import read_config, read_summary
from tests.support.documented import ROOT, commands, python_blocks, words_of
from tests.support.images import folder, picture
from tests.support.networks import PIXELS, image_network

SHORT = ["--max-steps", "4", "--eval-strategy", "steps", "--save-strategy", "steps", "--learning-rate", "0.003"]
SHORT += ["--eval-steps", "2", "--save-steps", "2", "--use-cpu", "--quiet", "--per-device-train-batch-size", "8"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A backbone, a classifier with named classes and one with a processor of its own."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model("dinov2", **PIXELS)).save_pretrained(place / "backbone")
    image_network("vit", id2label={0: "dogs", 1: "cats"}, labels=2).save_pretrained(place / "named")
    image_network("deit").save_pretrained(place / "three")
    processing = {"size": {"shortest_edge": 18}, "crop_size": {"height": 16, "width": 16}, "image_mean": [0.1] * 3}
    processing |= {"image_processor_type": "BitImageProcessor"}
    (place / "backbone" / "preprocessor_config.json").write_text(json.dumps(processing))
    return place


def train(model, out, *flags, data="generated"):
    return main(["train", "image", "--model", str(model), "--data", str(data), *SHORT, "--out", str(out), *flags])


@pytest.fixture(scope="module")
def finished(models, tmp_path_factory):
    """A finished run of a backbone; read it, don't change it."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert train(models / "backbone", out, "--keep-layers", "2", "--noise", "0.2") == 0
    return out


def test_a_backbone_gets_a_head_for_the_classes_and_its_processors_size(finished):
    config, model = read_config(finished), AutoModelForImageClassification.from_pretrained(finished / "model")
    assert (config.model, config.depth, config.settings["image_size"]) == ("Dinov2-2", 2, 16)
    assert model.config.id2label == {0: "diagonal", 1: "horizontal", 2: "vertical"}
    assert (model.config.num_hidden_layers, model.config.image_size, model.config.out_indices) == (2, 16, [2])
    processor = AutoImageProcessor.from_pretrained(finished / "model")
    assert processor.size["height"] == 16 and list(processor.image_mean) == [0.1] * 3
    assert "pipeline_tag: image-classification" in (finished / "model" / "README.md").read_text()


def test_a_resumed_run_ends_in_the_same_bits(finished, models, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    for name in ("model", "checkpoint-4"):
        shutil.rmtree(tmp_path / "run" / name)
    assert train(models / "backbone", tmp_path / "run", "--keep-layers", "2", "--noise", "0.2", "--resume") == 0
    ended, again = (load_file(each / "model" / "model.safetensors") for each in (finished, tmp_path / "run"))
    assert all(torch.equal(value, again[name]) for name, value in ended.items())


def test_a_run_is_evaluated_probed_left_early_and_exported(finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    assert main(["evaluate", str(out), "--noise", "0,0.2", "--exit", "--probe"]) == 0
    summary = read_summary(out)
    assert summary.metric == "accuracy" and summary.samples == 60 and summary.exit is not None
    assert len(summary.layer_losses[0.2]) == 3 and (out / "report.html").is_file()
    assert main(["export", str(out), "--layers", "1", "--out", str(tmp_path / "one")]) == 0
    pixels = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    plain = AutoModelForImageClassification.from_pretrained(tmp_path / "one").eval()
    whole = AutoModelForImageClassification.from_pretrained(out / "model").eval()
    with torch.no_grad():
        hidden = whole.base_model.layernorm(whole.base_model(pixels, output_hidden_states=True).hidden_states[1])
        expected = whole.classifier(torch.cat([hidden[:, 0], hidden[:, 1:].mean(1)], 1))
        torch.testing.assert_close(plain(pixels).logits, expected, rtol=1e-5, atol=1e-5)


def test_a_head_with_the_datas_classes_is_trained_further_in_its_own_numbers(models, tmp_path):
    data = folder(tmp_path / "data", count=12)
    assert train(models / "named", tmp_path / "run", "--method", "erm", data=data) == 0
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run" / "model")
    assert model.config.id2label == {0: "dogs", 1: "cats"} and model.config.image_size == 8
    saved = run.loading.of_run(tmp_path / "run", "model")
    samples = saved.recipe.load(saved.restored).test
    (dogs, cats) = (next(x for x in samples if x["labels"] == number) for number in (0, 1))
    assert dogs["pixel_values"].shape == cats["pixel_values"].shape == (3, 8, 8)
    first = samples.side.pictures[0]
    assert first.parent.name == "cats" and samples[0]["labels"] == 1
    other = tmp_path / "other"
    for name in ("cats", "dogs"):
        (other / name).mkdir(parents=True)
        picture().save(other / name / "a.png")
        picture().save(other / name / "b.png")
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(other), "--noise", "0"]) == 0
    assert read_summary(tmp_path / "run" / "on-other").samples == 4
    (other / "cows").mkdir()
    picture().save(other / "cows" / "a.png")
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(other)]) == 2


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ("three", "--data digits", "head of 3 labels; digits has 10"),
        ("named", "--data FOLDER", "knows the classes dogs, cats; data has cows, dogs, and of cows the model has none"),
        ("three", "--image-size 30", "multiple of 4"),
        ("three", "--keep-layers 4", "keep_layers must be 1 to 3"),
        ("three", "--data nowhere", "does not exist; expected a file or folder, digits"),
        ("three", "--method neftune", "word embeddings"),
        ("three", "--validation-share 1", "between 0 and 1"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(model, words, message, models, tmp_path, capsys):
    data = folder(tmp_path / "data", classes=("cows", "dogs"))
    assert train(models / model, tmp_path / "run", *words.replace("FOLDER", str(data)).split()) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line and not (tmp_path / "run").exists()


def test_the_guides_commands_and_python_run(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(models / "named", "MODEL")
    for line in commands(ROOT / "docs" / "guides" / "images.md"):
        words = words_of(line)
        more = [*SHORT, "--data", str(folder(tmp_path / "data", count=12))] if words[0] == "train" else []
        assert main([*words, *more]) == 0
    strips, trains = python_blocks(ROOT / "docs" / "guides" / "images.md")
    exec(strips, {})
    assert train("BACKBONE", "runs/own", "--method", "erm") == 0
    args = DescentConfig("runs/script", max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
    samples = [{"pixel_values": torch.zeros(3, 8, 8), "labels": number % 3} for number in range(8)]
    scope = {"model": image_network(), "args": args, "train": samples, "validation": samples}
    exec(trains, scope)
    assert scope["trainer"].state.global_step == 1


PRETRAINED = os.environ.get("DESCEND_PRETRAINED")


@pytest.mark.skipif(not PRETRAINED, reason="DESCEND_PRETRAINED, the folder of pretrained models, is not set")
def test_a_real_dinov2_learns_digits(tmp_path):
    model = Path(str(PRETRAINED)) / "dinov2"
    words = ["--image-size", "28", "--keep-layers", "3", "--per-device-train-batch-size", "32", "--max-steps", "30"]
    assert train(model, tmp_path / "run", *words, "--eval-steps", "30", "--save-steps", "30", data="digits") == 0
    saved = run.loading.of_run(tmp_path / "run", "model")
    (sample, *_) = saved.recipe.load(saved.restored).test
    assert sample["pixel_values"].shape == (3, 28, 28)
    assert main(["evaluate", str(tmp_path / "run"), "--noise", "0"]) == 0
    assert read_summary(tmp_path / "run").layer_metrics[0][-1] > 0.5


def test_images_are_as_transformers_own_processor_makes_them(finished):
    saved = run.loading.of_run(finished, "model")
    test = saved.recipe.load(saved.restored).test
    processor = AutoImageProcessor.from_pretrained(finished / "model")
    pixels = processor(Image.fromarray(test.side.pictures[0]), return_tensors="pt")["pixel_values"][0]
    assert torch.equal(test[0]["pixel_values"], pixels)
