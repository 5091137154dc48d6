"""`--format onnx`: a model.onnx that onnxruntime serves where neither Descend nor PyTorch is installed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    ViTImageProcessorPil,
)

from descend import InputError, run
from descend.contract import resolve
from descend.models import LayeredClassifier, plain_output
from descend.results import read_summary
from descend.tasks.text import generate_reviews, learn_tokenizer
from tests.support.documented import ROOT, commands, python_blocks, words_of
from tests.support.networks import image_network, moved, network
from tests.support.runs import refused, said

ROWS = generate_reviews(60, seed=1)  # those of the test side of `reviews`
TEXTS = [row["text"] for row in ROWS]
HIDDEN = 'import sys\nfor name in ("descend", "torch", "transformers"):\n    sys.modules[name] = None\n'


def served(folder: Path, sources: list[str], hidden: str = HIDDEN) -> np.ndarray:
    """The logits that the code of a folder's card gives for other texts or images than its own."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (folder / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    code = re.sub(r'\["A film.*?\]|\[pixels.*?\)\]', repr(sources), code)
    code = re.sub(r"np.stack\((.*)\)", r"np.stack([pixels(path) for path in \1])", code)
    code = f"{hidden}{code}print(json.dumps(logits.tolist()))\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(done.stdout.splitlines()[-1]), np.float32)


@pytest.mark.slow
def test_a_fitted_readout_is_served_by_onnxruntime_alone_with_the_accuracy_of_the_page(
    models, reviews, tmp_path, capsys
):
    """All test texts, of which many are cut at 24 tokens, through the code of the card."""
    words = ["layers", models / "long-bert", "--data", reviews, "--most", 60, "--max-length", 24]
    words += ["--out", tmp_path / "out", "--save", tmp_path / "small", "--layers", 2, "--format", "onnx"]
    shown, err = said(capsys, *words)
    logits = served(tmp_path / "small", TEXTS)
    classes = json.loads((tmp_path / "small" / "config.json").read_text())["id2label"]
    right = [
        classes[str(row.argmax())] == ("neg", "pos")[text["label"]] for row, text in zip(logits, ROWS, strict=True)
    ]
    accuracy = read_summary(tmp_path / "out").layer_metrics[0.0][2]
    assert np.mean(right) == pytest.approx(accuracy) and 0 < accuracy < 1
    *_, last = shown.splitlines()
    assert f"accuracy {accuracy:.4f} (" in last and "in PyTorch" in last
    assert f"onnxruntime.InferenceSession('{tmp_path / 'small' / 'model.onnx'}')" in last
    assert "writing model.onnx\n" in err and "torch" not in err
    card = " ".join((tmp_path / "small" / "README.md").read_text().split())
    assert "library_name: onnx" in card and "cuts texts at 24 tokens" in card and "inputs of over 200 tokens" in card
    assert {each.name for each in (tmp_path / "small").iterdir()} == {
        *("README.md", "config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json", "written.json")
    }


@pytest.mark.slow
def test_a_runs_first_layers_give_the_logits_of_its_exit_to_the_code_of_the_page_too(
    classifier, working_directory, capsys
):
    (working_directory / "runs").mkdir()
    (working_directory / "runs" / "imdb").symlink_to(classifier)
    page = ROOT / "docs" / "guides" / "export.md"
    (line,) = (each for each in commands(page) if each.startswith("descend export ") and "onnx" in each)
    said(capsys, *words_of(line))
    (block,) = (each for each in python_blocks(page) if "onnxruntime" in each)
    scope: dict = {}
    exec(block, scope)
    assert scope["logits"].shape == (2, 2)
    whole = AutoModelForSequenceClassification.from_pretrained(classifier / "model").eval()
    inputs = AutoTokenizer.from_pretrained(classifier / "model")(
        TEXTS, padding=True, truncation=True, return_tensors="pt", return_token_type_ids=False
    )
    with torch.no_grad():
        expected = list(LayeredClassifier(whole).predictions(inputs))[2]
    np.testing.assert_allclose(served(working_directory / "served", TEXTS), expected, rtol=1e-4, atol=1e-4)
    card = (working_directory / "served" / "README.md").read_text()
    assert "descend train text-distilbert" in card and "first 2 of 3 layers" in card


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["bert", "roberta", "esm", "albert", "modernbert", "deberta-v2", "llama", "descend-text-ut"]
)
def test_families_of_texts_are_exact_and_refuse_what_is_too_long(family, tmp_path):
    tokenizer = learn_tokenizer(TEXTS)
    model = moved(network(family, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id), 0.2)
    layers = resolve(model, None, None)[0]
    run.export_model(model, 2, tmp_path / "two", tokenizer, format="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "two" / "model.onnx")
    longest = layers.limits.get("length")
    tokenizer.padding_side = "right"
    inputs = dict(
        tokenizer(
            TEXTS[:5], padding=True, truncation=True, max_length=11, return_tensors="pt", return_token_type_ids=False
        )
    )
    with torch.no_grad():
        expected = list(layers.predictions(inputs))[2]
    (logits,) = session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert logits.shape == (5, 3)
    if longest is not None:
        fits, too_long = (
            {"input_ids": torch.full((2, length), 5), "attention_mask": torch.ones(2, length).long()}
            for length in (longest, longest + 1)
        )
        with torch.no_grad():
            expected = list(layers.predictions(fits))[2]
        (logits,) = session.run(["logits"], {name: value.numpy() for name, value in fits.items()})
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            session.run(None, {name: value.numpy() for name, value in too_long.items()})


@pytest.mark.slow
@pytest.mark.parametrize("auto", [AutoModelForTokenClassification, AutoModelForQuestionAnswering])
def test_heads_that_read_each_token_have_logits_too(auto, tmp_path):
    model = moved(network("bert", auto=auto, labels=2), 0.2)
    run.export_model(model, 3, tmp_path / "all", format="onnx")
    ids = torch.arange(4, 16).reshape(2, 6)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    session = onnxruntime.InferenceSession(tmp_path / "all" / "model.onnx")
    (logits,) = session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
    np.testing.assert_allclose(logits, plain_output(model, inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vit", "dinov2", "beit"])
def test_images_of_a_folder_are_served_by_onnxruntime_alone(family, tmp_path):
    model = moved(image_network(family), 0.2)
    processor = ViTImageProcessorPil(size={"height": 8, "width": 8}, image_mean=[0.1, 0.2, 0.3], image_std=[0.5] * 3)
    run.export_model(model, 2, tmp_path / "two", processor, format="onnx")
    drawn = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), dtype=np.uint8)
    images = [Image.fromarray(each) for each in drawn]
    places = [str(tmp_path / f"{number}.png") for number in range(3)]
    for image, place in zip(images, places, strict=True):
        image.save(place)
    with torch.no_grad():
        expected = list(resolve(model, None, None)[0].predictions(processor(images, return_tensors="pt")))[2]
    np.testing.assert_allclose(served(tmp_path / "two", places), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_what_can_not_be_onnx_is_said_before_any_work(language, finished, models, tmp_path, capsys):
    out = ["--format", "onnx", "--out", tmp_path / "out"]
    for folder, recipe in ((language, "llm-sft"), (finished, "video-ut")):
        line = refused(capsys, "export", folder, "--layers", "1", *out)
        assert f"takes classifiers of texts and images; got a model of {recipe}. Leave --format out." in line
    words = ["layers", models / "causal", "--data", "generated", "--max-length", 40, *out, "--save", tmp_path / "x"]
    line = said(capsys, *words, status=2)[1]
    assert line.splitlines()[-1].endswith("got a model of lm. Leave --format out.")
    assert "--format choose what --save writes" in refused(capsys, "layers", "M", "--data", "generated", *out)
    with pytest.raises(InputError, match="format must be one of transformers, onnx, sentence-transformers; got 'gguf'"):
        run.export_model(network("bert"), 1, tmp_path / "out", format="gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_family_that_can_not_be_written_is_one_line(tmp_path, capfd):
    with pytest.raises(InputError, match=r"^Mixtral.* can't be written as ONNX: .*grouped_mm.*Leave --format out\.$"):
        run.export_model(network("mixtral"), 1, tmp_path / "one", format="onnx")
    assert list(tmp_path.iterdir()) == [] and "torch" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_a_file_that_is_off_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("descend.run.onnx.plain_output", lambda model, inputs: plain_output(model, inputs) + 1e-3)
    with pytest.raises(InputError, match=r"exit 2 on inputs of 1x20\. Nothing was written\. Leave --format out\."):
        run.export_model(moved(network("bert"), 0.2), 2, tmp_path / "two", format="onnx")
    assert list(tmp_path.iterdir()) == []
