"""A folder with our linear readout: it serves where Descend is not installed, and Descend never runs its file."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig

from descend.inference import DescentClassifier
from descend.models import MeanPooledConfig, MeanPooledForSequenceClassification, linear_readout
from descend.tasks.text import generate_reviews, learn_tokenizer

TEXTS = [row["text"] for row in generate_reviews(5, seed=1)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder that `save_pretrained` wrote, and the logits of `TEXTS`."""
    folder = tmp_path_factory.mktemp("saved") / "small"
    tokenizer = learn_tokenizer(TEXTS)
    torch.manual_seed(0)
    encoder = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, initializer_range=0.5
    )
    model = MeanPooledForSequenceClassification(MeanPooledConfig(encoder, num_labels=3)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        return folder, model(inputs["input_ids"], inputs["attention_mask"]).logits


def test_the_file_beside_the_weights_is_ours_and_needs_torch_and_transformers_alone(saved):
    folder, _ = saved
    (file,) = folder.glob("*.py")
    assert file.name == "linear_readout.py" and file.read_bytes() == Path(linear_readout.__file__).read_bytes()
    imported = [
        name
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    ]
    assert {name.partition(".")[0] for name in imported} == {"typing", "torch", "transformers"}


@pytest.mark.slow
def test_a_pipeline_serves_the_folder_where_descend_is_not_installed(saved, tmp_path):
    folder, logits = saved
    code = f"""
import json, sys
sys.modules["descend"] = None  # importing it fails
from transformers import pipeline
classify = pipeline("text-classification", model={str(folder)!r}, trust_remote_code=True)
print(json.dumps(classify({TEXTS!r}, top_k=3, batch_size=5)))
"""
    place = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=place)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    served = torch.tensor([[dict_of(answer)[f"LABEL_{number}"] for number in range(3)] for answer in answers])
    torch.testing.assert_close(served, logits.softmax(-1), rtol=1e-5, atol=1e-6)


def dict_of(answer):
    return {each["label"]: each["score"] for each in answer}


def test_descend_loads_its_own_class_and_never_runs_the_file(saved, tmp_path, monkeypatch):
    folder, logits = saved
    monkeypatch.setattr("builtins.input", lambda question="": pytest.fail("asked to run code"))
    file, ran = folder / "linear_readout.py", tmp_path / "ran"
    file.write_text(f"open({str(ran)!r}, 'w')\n{file.read_text('utf-8')}")
    assert type(AutoModelForSequenceClassification.from_pretrained(folder)) is MeanPooledForSequenceClassification
    answers = DescentClassifier.from_pretrained(folder).predict(TEXTS)
    assert [answer.index for answer in answers] == logits.argmax(-1).tolist()
    assert not ran.exists()
