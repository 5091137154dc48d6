"""The commands and the Python of the guides: run on small data, or their options looked up."""

import contextlib
import inspect
import io
import json
import re
from copy import deepcopy
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import descend
from descend.cli import COMMANDS, main
from descend.recipes import RECIPES
from descend.tasks.text import generate_instructions
from tests.support.documented import ROOT, commands, python_blocks, words_of
from tests.support.networks import causal, network
from tests.support.sources import write_frames, write_video
from tests.support.texts import review_folder, review_tokenizer

GUIDES = ROOT / "docs" / "guides"
PAGES = sorted([ROOT / "README.md", ROOT / "docs" / "reproduce.md", *GUIDES.glob("*.md")])
LINES = [(page.name, line) for page in PAGES for line in commands(page)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Small data of every kind: clips, reviews, a vocabulary."""
    place = tmp_path_factory.mktemp("data")
    for side, count in (("training", 3), ("testing", 2)):
        for clip in range(count):
            write_frames(place / "videos" / side / "frames" / f"{clip:02d}", 12, size=(200, 180))
    review_folder(place / "reviews")
    tokenizer = review_tokenizer()
    tokenizer.eos_token = "[CLS]"
    for name, make in (("encoder", partial(network, "bert")), ("causal", causal)):
        model = make(vocab_size=len(tokenizer), max_position_embeddings=300)
        (model if name == "causal" else model.base_model).save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    (place / "words").mkdir()
    (place / "words" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "was"]))
    return place


@pytest.fixture
def run(data, tmp_path, monkeypatch, capsys):
    """Run the commands of a guide in an empty folder, with fewer steps and small data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DESCEND_CACHE", str(data / "cache"))

    def run(page: str) -> None:
        for line in commands(GUIDES / page, run=True):
            words = words_of(line)
            source = "reviews" if {"imdb", "classification"} & set(words) else "videos"
            own = {"PATH": str(data / source), "FOLDER": str(data / "words"), "TEXTS": str(data / "reviews")}
            own["PRETRAINED"] = str(data / ("causal" if "lm" in words else "encoder"))
            own |= {
                "VIDEOS": str(data / "videos" / "testing"),
                "NAME_OR_FOLDER": "small",
                "MODEL_FOLDER": "runs/imdb/model",
            }
            words = [own.get(word, word) for word in words]
            if words[0] in ("train", "sweep"):
                words += ["--max-steps", "4"]
            if words[0] == "sweep":
                words += ["--trials", "1"]
            if "llm-sft" in words:
                words += ["--depth", "2", "--hidden-size", "16"]
            if words[0] == "complete" and "--compare" not in words:
                words += ["--max-new-tokens", "4"]
            assert main(words) == 0, f"{line}: {capsys.readouterr().err}"

    return run


# --- commands and Python that run here; those of exits, export and tasks run in the tests of their rooms


def test_own_data(run):
    run("own_data.md")
    for place in ("page", "runs/imdb", "runs/imdb/model"):
        assert (Path(place) / "report.html").read_text().count("<svg") > 3


def test_denoise(run):
    run("denoise.md")
    assert len(list(Path("cleaned/00").iterdir())) == 12 and len(list(Path("trial/01").iterdir())) == 24
    write_video(Path("clip.mp4"), 6)
    (block,) = python_blocks(GUIDES / "denoise.md")
    scope = {"frames": np.zeros((3, 90, 120, 3), np.uint8)}
    exec(block, scope)
    assert scope["cleaned"].shape == (6, 160, 160) and scope["after_3"].shape == (3, 160, 160)


def test_resume(run):
    run("resume.md")
    (block,) = python_blocks(GUIDES / "resume.md")

    class Trainer:
        def train(self, resume_from_checkpoint):
            self.resumed = resume_from_checkpoint

    trainer = Trainer()
    exec(block, {"trainer": trainer})
    assert trainer.resumed is True


def test_sweep(run):
    run("sweep.md")
    assert Path("sweep/report.html").is_file()


def test_privacy(run, capsys):
    run("privacy.md")
    assert "1,771" in capsys.readouterr().out


def test_language(run):
    rows = generate_instructions(60).rows.to_list()
    for name, count in (("alpaca_data.json", 60), ("alpaca_eval.json", 4)):
        Path(name).write_text(json.dumps(rows[:count]))
    run("language.md")
    assert len(json.loads(Path("constrained.json").read_text())) == 4


def test_language_in_a_script(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokenizer = review_tokenizer()
    tokenizer.eos_token = "[PAD]"
    words = {"vocab_size": len(tokenizer), "max_position_embeddings": 40, "num_hidden_layers": 5}
    network("llama", auto=AutoModelForCausalLM, **words).save_pretrained("llm")
    tokenizer.save_pretrained("llm")
    trains, leaves = python_blocks(GUIDES / "language.md")
    rows = Dataset.from_list([{"prompt": "the plot was ", "completion": "good"}] * 4)
    scope = {"train": rows, "validation": rows, "test": rows}
    small = {"NAME_OR_FOLDER": "llm", "exit_share=": "use_cpu=True, bf16=False, max_steps=1, exit_share="}
    for word, value in small.items():
        trains = trains.replace(word, value)
    exec(trains, scope)
    assert scope["trainer"].summary.samples and "open: " in capsys.readouterr().out.splitlines()[-1].lower()
    inputs = tokenizer("the plot was", return_tensors="pt", return_token_type_ids=False)
    exec(leaves, {"model": scope["trainer"].model.eval(), "inputs": inputs | {"do_sample": False}})


def test_own_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reads, reads_by_a_function, answers, cuts, loads = python_blocks(GUIDES / "own_model.md")

    class ResidualMLP(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
            self.norm = torch.nn.LayerNorm(4)
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            hidden = self.embed(x)
            for block in self.blocks:
                hidden = block(hidden)
            return self.head(self.norm(hidden))

    module = ResidualMLP()
    whole = deepcopy(module)
    scope = {"module": module, "ResidualMLP": ResidualMLP}
    exec(reads, scope)
    assert scope["model"].depth == 3
    exec(reads_by_a_function, scope)
    (function,) = re.findall(r"``(lambda .*?)``", inspect.getdoc(descend.layered))
    assert function in reads_by_a_function
    monkeypatch.setattr(torch, "rand", lambda *shape: torch.ones(shape))
    exec(answers, scope)
    exec(cuts, scope)
    x = torch.ones(5, 3)
    assert torch.equal(scope["answers"][-1], whole(x)) and len(scope["answers"]) == 4
    assert torch.equal(scope["answer"], scope["answers"][2]) and not torch.equal(scope["answer"], whole(x))
    module = scope["module"] = whole
    Path("FOLDER").mkdir()
    save_file(module.state_dict(), "FOLDER/model.safetensors")
    exec(loads, scope)
    assert torch.equal(scope["model"].head.weight, module.head.weight)


def test_the_script_that_makes_a_tasks_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (script,) = python_blocks(GUIDES / "tasks.md")
    words = " ".join(f"word{number}" for number in range(20))
    Path("prompts.json").write_text(json.dumps([{"instruction": "say it", "output": words}] * 3))
    monkeypatch.setattr("sys.argv", ["make.py", "prompts.json"])
    exec(script, {})
    rows = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and all(len(set(row["choices"])) == 4 for row in rows)
    assert all(row["choices"][row["label"]] == " ".join(words.split()[:16]) for row in rows)


# --- every command, whether it runs here or not


@cache
def help_of(*words: str) -> str:
    """What a command says of its options."""
    for flag in ("--help-all", "--help"):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()):
            try:
                status = main([*words, flag])
            except SystemExit as end:
                status = end.code or 0
        if status == 0:
            return shown.getvalue()
    raise AssertionError(f"descend {' '.join(words)} has no help")


@pytest.mark.parametrize(("page", "line"), LINES, ids=lambda part: part[:60])
def test_every_option_exists(page, line):
    command, *rest = words_of(line)
    assert command in COMMANDS
    recipe = [rest[0]] if command in ("train", "sweep") else []
    assert not recipe or rest[0] in RECIPES
    known = set(re.findall(r"--[\w-]+", help_of(command, *recipe)))
    if command == "sweep":  # it takes every setting of the recipe
        known |= set(re.findall(r"--[\w-]+", help_of("train", *recipe)))
    known |= {option.replace("_", "-") for option in known}
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known


def test_a_wrong_option_would_be_seen():
    assert "--strength" in help_of("train", "video-ut") and "--strenght" not in help_of("train", "video-ut")
