"""What the README tells people to type does what it says."""

import os
import re
import shutil
import subprocess

import torch
import yaml
from datasets import Dataset
from torch import nn
from transformers import TrainingArguments

import descend
from descend.cli import main
from descend.tasks.text import generate_reviews, learn_tokenizer
from tests.support import own
from tests.support.documented import ROOT, commands, python_blocks, words_of
from tests.support.networks import network
from tests.support.texts import review_folder, review_tokenizer

README = ROOT / "README.md"
TEXT = README.read_text("utf-8")
TRAINER, OWN = python_blocks(README)


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 110


def test_a_release_gives_its_links_an_address(tmp_path):
    """A package index shows README alone, without the files that its links name."""
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
    (step,) = (each["run"] for each in release["jobs"]["build"]["steps"] if "README.md" in each.get("run", ""))
    shutil.copy(README, tmp_path)
    named = {"GITHUB_SERVER_URL": "https://host", "GITHUB_REPOSITORY": "owner/name", "GITHUB_REF_NAME": "v1.2.3"}
    subprocess.run(["bash", "-ec", step], cwd=tmp_path, env=os.environ | named, check=True)
    written = (tmp_path / "README.md").read_text("utf-8")
    links = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", written)
    assert len(links) == len(re.findall(r"\]\(", TEXT)) and all(link.startswith("https://") for _, link in links)
    for picture, link in links:
        if link.startswith("https://host"):
            address, path = link.split("/v1.2.3/")
            assert address == f"https://host/owner/name/{'raw' if picture else 'blob'}"
            assert (ROOT / path.split("#")[0]).exists()


def test_in_place_of_trainer(tmp_path):
    """The first Python block, around a small classifier and a script's own variables."""
    rows = Dataset.from_list(generate_reviews(24, 0))
    tokenizer = learn_tokenizer(rows["text"])
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    rows = rows.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=20), batched=True)
    model = network("distilbert", labels=2, vocab_size=len(tokenizer))
    before = model.classifier.weight.detach().clone()
    args = TrainingArguments(str(tmp_path), max_steps=2, report_to="none", use_cpu=True)
    scope = {"model": model, "args": args, "data": {"train": rows, "validation": rows}, "tokenizer": tokenizer}
    exec(TRAINER, scope)
    assert not torch.equal(before, model.classifier.weight)
    assert len(scope["trainer"].evaluate()) > 3


def test_a_model_of_ones_own(tmp_path, capsys):
    """The second Python block, around a small module."""
    module = own.mlp()
    module.norm = nn.Identity()
    args = descend.DescentConfig(tmp_path / "run", max_steps=2, use_cpu=True)
    given = {"module": module, "args": args, "task": own.Classes(), "train": own.samples(8), "test": own.samples(8)}
    exec(OWN, given)
    assert "Open: 8 groups of samples" in capsys.readouterr().out.splitlines()[-1]
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_commands(tmp_path, monkeypatch, capsys):
    """Every `descend` line in its order, on a small encoder and a few texts."""
    monkeypatch.chdir(tmp_path)
    tokenizer = review_tokenizer()
    network("bert", labels=2, vocab_size=len(tokenizer)).bert.save_pretrained("encoder")
    tokenizer.save_pretrained("encoder")
    review_folder(tmp_path / "texts")
    lines = commands(README)
    assert len(lines) == 7
    for line in lines:
        words = [{"PRETRAINED": "encoder", "DATA": "texts"}.get(word, word) for word in words_of(line)]
        words += ["--max-length", "16"] * ("texts" in words) + ["--max-steps", "4"] * (words[0] == "train")
        assert main(words) == 0, capsys.readouterr().err
    assert (tmp_path / "page" / "report.html").read_text().count("<svg") >= 2
    assert (tmp_path / "first" / "model.safetensors").is_file()
