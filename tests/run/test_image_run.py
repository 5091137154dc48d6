"""The recipe `image` carried out in a folder: trained, evaluated, exported, and as its guide says."""

import base64
import io
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

from descend import DescentConfig, DescentTrainer, Run
from descend.cli import main
from descend.results import Decisions, read_config, read_summary
from tests.support.documented import ROOT, commands, python_blocks, words_of
from tests.support.networks import image_network
from tests.support.runs import SAVED, trained
from tests.support.sources import image_folder

SHORT = f"{SAVED} --learning-rate 0.003 --per-device-train-batch-size 8 --quiet"


def train(model, out, settings, data="generated"):
    return trained(out, "image", f"{SHORT} {settings}", "--model", model, "--data", data)


def held_out(out):
    """A run's test samples."""
    return Run.read(out).samples


@pytest.fixture(scope="module")
def finished(models, tmp_path_factory):
    """A finished run of a backbone; read it, don't change it."""
    out = tmp_path_factory.mktemp("finished") / "run"
    return train(models / "backbone", out, "--keep-layers 2 --noise 0.2")


def test_a_backbone_gets_a_head_for_the_classes_and_its_processors_size(finished):
    config, model = read_config(finished), AutoModelForImageClassification.from_pretrained(finished / "model")
    assert (config.model, config.depth, config.settings["image_size"]) == ("Dinov2-2", 2, 16)
    assert model.config.id2label == {0: "diagonal", 1: "horizontal", 2: "vertical"}
    assert (model.config.num_hidden_layers, model.config.image_size, model.config.out_indices) == (2, 16, [2])
    processor = AutoImageProcessor.from_pretrained(finished / "model")
    assert processor.size["height"] == 16 and list(processor.image_mean) == [0.1] * 3
    assert "pipeline_tag: image-classification" in (finished / "model" / "README.md").read_text()
    test = held_out(finished)
    pixels = processor(Image.fromarray(test.side.pictures[0]), return_tensors="pt")["pixel_values"][0]
    assert torch.equal(test[0]["pixel_values"], pixels)


def test_a_run_is_probed_left_early_and_its_page_shows_images_and_what_each_layer_takes_them_for(out):
    assert main(["evaluate", str(out), "--noise", "0,0.2", "--exit", "--probe"]) == 0
    summary = read_summary(out)
    assert summary.metric == "accuracy" and summary.samples == 60 and summary.exit is not None
    assert len(summary.layer_losses[0.2]) == 3 and (out / "report.html").is_file()
    shown = Decisions.read(out / "decisions.json").texts
    assert [each.text.split(",")[0] for each in shown] == ["diagonal", "vertical"]  # the first and the last class
    for each in shown:
        assert [decision.right for decision in each.decisions] == [
            decision.answer == each.text.split(",")[0] for decision in each.decisions
        ]
        place = int(each.text.split()[-1])
        with Image.open(io.BytesIO(base64.b64decode(each.picture.partition(",")[2]))) as image:
            seen = torch.tensor(list(image.convert("L").tobytes())).float()
        sample = held_out(out)[place]["pixel_values"]
        assert torch.corrcoef(torch.stack([seen, sample.mean(0).flatten()]))[0, 1] > 0.9


def test_a_head_with_the_datas_classes_is_trained_further_in_its_own_numbers(models, tmp_path):
    out = train(models / "named", tmp_path / "run", "--method erm", data=image_folder(tmp_path / "data", count=12))
    model = AutoModelForImageClassification.from_pretrained(out / "model")
    assert model.config.id2label == {0: "dogs", 1: "cats"} and model.config.image_size == 8
    samples = held_out(out)
    assert {tuple(sample["pixel_values"].shape) for sample in samples} == {(3, 8, 8)}
    assert samples.side.pictures[0].parent.name == "cats" and samples[0]["labels"] == 1
    other = image_folder(tmp_path / "other", sides=(".",), count=2)
    assert main(["evaluate", str(out), "--data", str(other), "--noise", "0"]) == 0
    assert (read_summary(out / "on-other").samples, read_summary(out / "on-other").dataset) == (4, "other")


@pytest.mark.slow
def test_the_guides_commands_and_python_run(models, working_directory):
    shutil.copytree(models / "named", "PRETRAINED")
    guide = (ROOT / "docs" / "guides" / "own_data.md").read_text("utf-8")
    page = working_directory / "images.md"
    page.write_text(re.search(r"^## Images\n.*?(?=^## )", guide, re.MULTILINE | re.DOTALL)[0])
    assert len(commands(page)) == 3
    for line in commands(page):
        words = words_of(line)
        more = (
            [*SHORT.split(), "--data", str(image_folder(working_directory / "data", count=12))]
            if words[0] == "train"
            else []
        )
        assert main([*words, *more]) == 0
    (strips,) = python_blocks(page)
    exec(strips, {})
    train("BACKBONE", "runs/own", "--method erm")
    args = DescentConfig("runs/script", max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
    samples = [{"pixel_values": torch.zeros(3, 8, 8), "labels": number % 3} for number in range(8)]
    trainer = DescentTrainer(image_network(), args, train_dataset=samples, eval_dataset=samples)
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.skipif("DESCEND_PRETRAINED" not in os.environ, reason="DESCEND_PRETRAINED, a folder of models, is not set")
def test_a_real_dinov2_learns_digits(tmp_path):
    settings = (
        "--image-size 28 --keep-layers 3 --per-device-train-batch-size 32 "
        "--max-steps 45 --eval-steps 45 --save-steps 45"
    )
    out = train(Path(os.environ["DESCEND_PRETRAINED"], "dinov2"), tmp_path / "run", settings, data="digits")
    assert held_out(out)[0]["pixel_values"].shape == (3, 28, 28)
    assert main(["evaluate", str(out), "--noise", "0"]) == 0
    assert read_summary(out).layer_metrics[0][-1] > 0.5
