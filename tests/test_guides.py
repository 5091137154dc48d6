"""The commands and the Python of the guides: run on small data, or their options looked up."""

import contextlib
import inspect
import io
import json
import re
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import descend
from descend.cli import main
from descend.tasks.text import generate_instructions
from tests.support.documented import ROOT, commands, python_blocks, words_of
from tests.support.networks import causal, network
from tests.support.own import ResidualMLP, mlp
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
    rows = generate_instructions(60).rows.to_list()
    for name, count in (("alpaca_data.json", 60), ("alpaca_eval.json", 4)):
        (place / name).write_text(json.dumps(rows[:count]))
    return place


@pytest.fixture
def run(data, tmp_path, monkeypatch, capsys):
    """Run the commands of a guide in an empty folder, with fewer steps and small data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DESCEND_CACHE", str(data / "cache"))
    places = {"FOLDER": "words", "TEXTS": "reviews", "VIDEOS": "videos/testing"}
    places |= {name: name for name in ("alpaca_data.json", "alpaca_eval.json")}
    fewer = {"train": ["--max-steps", "4"], "sweep": ["--max-steps", "4", "--trials", "1"]}
    smaller = ["--depth", "2", "--hidden-size", "16"]

    def run(page: str) -> None:
        for line in commands(GUIDES / page, run=True):
            words = words_of(line)
            texts = {"imdb", "classification"} & set(words)
            mine = places | {
                "PATH": "reviews" if texts else "videos",
                "PRETRAINED": "causal" if "lm" in words else "encoder",
            }
            own = {word: str(data / place) for word, place in mine.items()}
            own |= {"NAME_OR_FOLDER": "small", "MODEL_FOLDER": "runs/imdb/model"}
            words = [own.get(word, word) for word in words] + fewer.get(words[0], [])
            words += smaller if "llm-sft" in words else []
            words += ["--max-new-tokens", "4"] if "--prompts" in words else []
            assert main(words) == 0, f"{line}: {capsys.readouterr().err}"

    return run


# --- commands and Python that run here; those of images, exits, export and tasks run in the tests of their rooms

LEFT = {
    "denoise.md": ("cleaned/00", "trial/01"),
    "language.md": ("constrained.json", "page/report.html"),
    "own_data.md": ("page/report.html", "runs/imdb/report.html", "runs/imdb/model/report.html"),
    "privacy.md": (),
    "resume.md": ("runs/constrained/model/model.safetensors",),
    "sweep.md": ("sweep/report.html",),
}


@pytest.mark.parametrize("page", LEFT)
def test_its_commands_run(run, page):
    run(page)
    assert all(Path(place).exists() for place in LEFT[page])
    if page == "denoise.md":
        write_video(Path("clip.mp4"), 6)
        scope = {"frames": np.zeros((3, 90, 120, 3), np.uint8)}
        exec(*python_blocks(GUIDES / page), scope)
        assert scope["cleaned"].shape == (6, 160, 160) and scope["after_3"].shape == (3, 160, 160)


def test_resume_in_a_script():
    trainer = Mock()
    exec(*python_blocks(GUIDES / "resume.md"), {"trainer": trainer})
    trainer.train.assert_called_once_with(resume_from_checkpoint=True)


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
    trains = trains.replace("NAME_OR_FOLDER", "llm")
    exec(trains.replace("exit_share=", "use_cpu=True, bf16=False, max_steps=1, exit_share="), scope)
    assert scope["trainer"].summary.samples and "open: " in capsys.readouterr().out.splitlines()[-1].lower()
    inputs = tokenizer("the plot was", return_tensors="pt", return_token_type_ids=False)
    exec(leaves, {"model": scope["trainer"].model.eval(), "inputs": inputs | {"do_sample": False}})


def test_own_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "rand", lambda *shape: torch.ones(5, 4))
    reads, reads_by_a_function, answers, cuts, loads = python_blocks(GUIDES / "own_model.md")
    scope = {"module": mlp(), "ResidualMLP": ResidualMLP}
    whole = deepcopy(scope["module"])
    exec(reads, scope)
    assert scope["model"].depth == 3
    (function,) = re.findall(r"``(lambda .*?)``", inspect.getdoc(descend.layered))
    assert function in reads_by_a_function
    for block in (reads_by_a_function, answers, cuts):
        exec(block, scope)
    assert torch.equal(scope["answers"][-1], whole(torch.ones(5, 4))) and len(scope["answers"]) == 4
    assert torch.equal(scope["answer"], scope["answers"][2])
    Path("FOLDER").mkdir()
    save_file(whole.state_dict(), "FOLDER/model.safetensors")
    exec(loads, scope)
    assert torch.equal(scope["model"].head.weight, whole.head.weight)


# --- every command, whether it runs here or not


@cache
def options_of(*words: str) -> set[str]:
    """The options that the help of a command names."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main([*words, "--help-all" if words[0] == "train" else "--help"])
    known = set(re.findall(r"--[\w-]+", shown.getvalue()))
    return known | {option.replace("_", "-") for option in known}


@pytest.mark.parametrize(("page", "line"), LINES, ids=lambda part: part[:60])
def test_every_option_exists(page, line):
    command, *rest = words_of(line)
    known = options_of(command, *rest[: command in ("train", "sweep")])
    if command == "sweep":  # it takes every setting of the recipe
        known = known | options_of("train", rest[0])
    assert known and {word.partition("=")[0] for word in rest if word.startswith("--")} <= known
