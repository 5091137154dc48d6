"""What the README tells people to type does what it says."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import TrainingArguments

from descend.cli import main
from descend.tasks.text import generate_instructions, generate_reviews, learn_tokenizer
from tests.support.networks import network

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^    (descend .*|make .*)$", README, re.MULTILINE)


@pytest.fixture
def clips(tmp_path):
    """A folder in the layout `training/frames/01/*.jpg`, as the README names it."""
    rng = np.random.default_rng(0)
    for side, count in (("training", 3), ("testing", 2)):
        for clip in range(count):
            folder = tmp_path / "videos" / side / "frames" / f"{clip:02d}"
            folder.mkdir(parents=True)
            for frame in range(12):
                pixels = rng.integers(0, 256, (20, 20), dtype=np.uint8)
                Image.fromarray(pixels).resize((200, 180)).save(folder / f"{frame:03d}.jpg")
    return tmp_path / "videos"


@pytest.fixture
def reviews(tmp_path):
    """A folder in the layout of aclImdb, and one with a vocabulary."""
    for seed, side in enumerate(("train", "test")):
        for number, row in enumerate(generate_reviews(20, seed)):
            file = tmp_path / "reviews" / side / ("neg", "pos")[row["label"]] / f"{number}_5.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(row["text"])
    (tmp_path / "words").mkdir()
    words = sorted({word for row in generate_reviews(20, 0) for word in row["text"].split()})
    (tmp_path / "words" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    return tmp_path / "reviews"


def test_the_plain_loop(capsys):
    """The first Python block, around a small network with three layers of its own."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(7))
    optimizer = torch.optim.Adam(layers.parameters(), 1e-2)
    loader = [torch.randn(16, 4) for _ in range(30)]
    before = layers[0].weight.detach().clone()

    def layer_losses(batch):
        hidden, losses = batch, [batch.square().mean()]
        for layer in layers:
            hidden = hidden + layer(hidden)
            losses.append(hidden.square().mean())
        return torch.stack(losses)

    scope = {"layer_losses": layer_losses, "optimizer": optimizer, "loader": loader}
    exec(PYTHON[0], scope)
    assert scope["dual"].multipliers.shape == (8,)
    # They begin at the price 1, and have moved.
    assert (scope["dual"].multipliers >= 0).all() and (scope["dual"].multipliers[1:] < 1).any()
    assert not torch.equal(before, layers[0].weight)


def test_the_trainer(tmp_path, monkeypatch, capsys):
    """The second Python block, as it is."""
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(PYTHON[1], scope)
    trainer = scope["trainer"]
    assert trainer.verdict.sentence() in capsys.readouterr().out
    assert trainer.dual.multipliers.shape == (4,)
    assert (trainer.dual.multipliers > 0).any()
    assert (tmp_path / "runs" / "example" / "records.jsonl").is_file()


def test_a_classifier_of_the_librarys(tmp_path):
    """The third Python block, around a small classifier and a script's own variables."""
    rows = Dataset.from_list(generate_reviews(24, 0))
    tokenizer = learn_tokenizer(rows["text"])
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    rows = rows.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=20), batched=True)
    model = network("distilbert", labels=2, vocab_size=len(tokenizer))
    before = model.classifier.weight.detach().clone()
    args = TrainingArguments(str(tmp_path), max_steps=2, report_to="none", use_cpu=True)
    scope = {"model": model, "args": args, "data": {"train": rows, "validation": rows}, "tokenizer": tokenizer}
    exec(PYTHON[2], scope)
    assert not torch.equal(before, model.classifier.weight)
    assert len(scope["trainer"].evaluate()) > 3


def test_leaving_early(tmp_path, monkeypatch, capsys):
    """The fourth Python block, as it is, on a small random model in a run folder."""
    monkeypatch.chdir(tmp_path)
    tokenizer = learn_tokenizer(["a film to remember, dull from start to end"])
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    network("distilbert", labels=2, vocab_size=len(tokenizer)).save_pretrained("runs/imdb/model")
    tokenizer.save_pretrained("runs/imdb/model")
    exec(PYTHON[3], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0].startswith("LABEL_") for line in lines] == [True, True]


def test_the_commands(clips, reviews, tmp_path, monkeypatch, capsys):
    """Every `descend` line in its order, on three small clips and forty reviews, with fewer steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DESCEND_CACHE", str(tmp_path / "cache"))
    rows = generate_instructions(60).rows.to_list()
    for name in ("alpaca_data.json", "alpaca_eval.json"):
        (tmp_path / name).write_text(json.dumps(rows))
    lines = [line for line in COMMANDS if line.startswith("descend")]
    assert len(lines) >= 6
    for line in lines:
        line = line.replace("NAME_OR_FOLDER", "small").replace("MODEL_FOLDER", "runs/imdb/model")
        line = line.replace("FOLDER", str(tmp_path / "words"))
        words = shlex.split(line.replace("PATH", str(reviews if "imdb" in line else clips)))[1:]
        if words[0] in ("train", "sweep"):
            words += ["--max-steps", "4"]
        if words[0] == "sweep":
            words += ["--trials", "1"]
        if "llm-sft" in words:
            words += ["--depth", "2", "--hidden-size", "16"]
        if words[0] == "complete":
            words += ["--max-new-tokens", "4"]
        assert main(words) == 0, capsys.readouterr().err
    for folder in ("page", "runs/imdb", "runs/imdb/model"):
        assert (tmp_path / folder / "report.html").stat().st_size > 1_000_000


def test_make_has_the_targets_it_names():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {line.split("#")[0].split()[1] for line in COMMANDS if line.startswith("make")}
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_every_linked_file_is_there():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("http") or (ROOT / link).is_file(), link
