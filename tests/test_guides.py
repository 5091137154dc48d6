"""What README, guides, tutorials and the page of families tell people to type does what it says."""

import ast
import inspect
import json
import re
import runpy
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, DataCollatorForTokenClassification, TrainingArguments

import descend
from descend.cli import main
from descend.models import causal, images
from descend.models.encoders import FAMILIES
from descend.tasks.text import generate_instructions
from descend.tasks.text.corpus import generate_triplets
from tests.support import networks, own, tagging, unrolled
from tests.support.cases import slow_but
from tests.support.documented import ROOT, commands, help_of, python_blocks, words_of
from tests.support.networks import QUIET, network
from tests.support.sources import write_frames, write_video
from tests.support.texts import review_folder, review_tokenizer, samples

GUIDES = ROOT / "docs" / "guides"
README = ROOT / "README.md"
FAMILY_PAGE = ROOT / "docs" / "reference" / "families.md"
*TRAINS, JUDGES = python_blocks(FAMILY_PAGE)
TUTORIAL = ROOT / "docs" / "tutorials" / "own_model.py"
LINES = [
    (page.name, line)
    for page in [README, ROOT / "reproduction" / "README.md", *sorted(GUIDES.glob("*.md"))]
    for line in commands(page)
]


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
    for name, make in (("encoder", partial(network, "bert", labels=2)), ("causal", networks.causal)):
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
def run(data, working_directory, monkeypatch, capsys):
    """Run the commands of a page in an empty folder, with fewer steps and small data."""
    monkeypatch.setenv("DESCEND_CACHE", str(data / "cache"))
    places = {"FOLDER": "words", "TEXTS": "reviews", "DATA": "reviews", "VIDEOS": "videos/testing"}
    places |= {name: name for name in ("alpaca_data.json", "alpaca_eval.json")}
    fewer = {
        "train": ["--max-steps", "4"],
        "sweep": ["--max-steps", "4", "--trials", "1"],
        "paper": ["--max-steps", "4", "--dual-warmup-steps", "0", "--depth", "2", "--window", "2", "--stride", "10"],
        "evaluate": ["--limit", "20"],
    }

    def run(page: Path) -> None:
        for line in commands(page, run=True):
            words = words_of(line)
            if "runs/images" in words:  # tests/run/test_image_run.py runs them
                continue
            texts = {"imdb", "classification"} & set(words)
            of_line = {"PATH": "reviews" if texts else "videos", "PRETRAINED": "causal" if "lm" in words else "encoder"}
            given = {word: str(data / place) for word, place in (places | of_line).items()}
            given |= {"MODEL_FOLDER": "runs/imdb/model"} | ({"PRETRAINED": "small"} if "llm-sft" in words else {})
            words = [given.get(word, word) for word in words] + fewer.get(words[0], [])
            words += ["--depth", "2", "--hidden-size", "16"] if "llm-sft" in words else []
            words += ["--max-new-tokens", "4"] if "--prompts" in words else []
            assert main(words) == 0, f"{line}: {capsys.readouterr().err}"

    return run


# --- commands and Python that run here; those of images, exits, export and tasks run in the tests of their rooms

LEFT = {
    README: ("paper/report.html", "as-is/report.html", "small/model.safetensors"),
    GUIDES / "denoise.md": ("cleaned/00", "trial/01"),
    GUIDES / "language.md": ("constrained.json", "page/completions.html"),
    GUIDES / "own_data.md": (
        *("page/report.html", "runs/texts/report.html", "runs/imdb/report.html", "runs/imdb/model/report.html"),
    ),
    GUIDES / "privacy.md": (),
    GUIDES / "several_gpus.md": ("runs/constrained/model/model.safetensors",),
    GUIDES / "sweep.md": ("sweep/report.html",),
    GUIDES / "unrolled.md": ("runs/pgd/report.html", "runs/pgd-erm/report.html", "runs/lista/report.html"),
}
QUICK = (README, *(GUIDES / name for name in ("denoise.md", "privacy.md", "several_gpus.md")))


@pytest.mark.parametrize("page", slow_but(QUICK, LEFT), ids=lambda page: page.name)
def test_its_commands_run(run, page):
    run(page)
    assert all(Path(place).exists() for place in LEFT[page])
    if page.name == "denoise.md":
        write_video(Path("clip.mp4"), 6)
        scope = {"frames": np.zeros((3, 90, 120, 3), np.uint8)}
        exec(*python_blocks(page), scope)
        assert scope["cleaned"].shape == (6, 160, 160) and scope["after_3"].shape == (3, 160, 160)


@pytest.mark.slow
def test_constraints_of_ones_own_print_what_the_page_shows_and_cooper_agrees(capsys):
    page = GUIDES / "constraints.md"
    rate, gap, coopers = python_blocks(page)
    scope: dict = {}
    exec(rate, scope)
    multiplier = scope["dual"].multipliers.item()
    exec(coopers, scope)
    assert scope["problem"].recall.multiplier.weight.item() == pytest.approx(multiplier, abs=1e-2)
    exec(gap, scope)
    assert scope["gap"] == pytest.approx(0.05, abs=1e-3) and scope["dual"].multipliers.max() > 0.01
    numbers = re.compile(r"\d+\.\d+")
    shown = " ".join(re.findall(r"```text\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
    printed = [float(each) for each in numbers.findall(capsys.readouterr().out)]
    assert [float(each) for each in numbers.findall(shown)] == pytest.approx(printed, abs=0.011)


def test_resume_in_a_script():
    trainer = Mock()
    exec(*python_blocks(GUIDES / "several_gpus.md"), {"trainer": trainer})
    trainer.train.assert_called_once_with(resume_from_checkpoint=True)


@pytest.mark.slow
@pytest.mark.usefixtures("working_directory")
def test_language_in_a_script(capsys):
    tokenizer = review_tokenizer()
    tokenizer.eos_token = "[PAD]"
    words = {"vocab_size": len(tokenizer), "max_position_embeddings": 40, "num_hidden_layers": 5}
    network("llama", auto=AutoModelForCausalLM, **words).save_pretrained("llm")
    tokenizer.save_pretrained("llm")
    trains, leaves = python_blocks(GUIDES / "language.md")
    rows = Dataset.from_list([{"prompt": "the plot was ", "completion": "good"}] * 4)
    scope = {"train": rows, "validation": rows, "test": rows}
    trains = trains.replace("PRETRAINED", "llm")
    exec(trains.replace("exit_share=", "use_cpu=True, bf16=False, max_steps=1, exit_share="), scope)
    assert "certify anything: 4 groups, at least" in capsys.readouterr().out.splitlines()[-1]
    inputs = tokenizer("the plot was", return_tensors="pt", return_token_type_ids=False)
    exec(leaves, {"model": scope["trainer"].model.eval(), "inputs": inputs | {"do_sample": False}})


@pytest.mark.slow
@pytest.mark.usefixtures("working_directory")
def test_the_guide_to_embedding_models(data, capsys):
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments  # takes seconds

    Path("pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in generate_triplets(200, 0)))
    page = GUIDES / "embeddings.md"
    for line in commands(page, run=True):
        words = [
            {"PRETRAINED": str(data / "encoder"), "PAIRS": "pairs.jsonl"}.get(word, word) for word in words_of(line)
        ]
        words += ["--max-steps", "2"] if words[0] == "train" else []
        words += ["--tolerance", "5"] if words[0] == "export" else []
        assert main(words) == 0, f"{line}: {capsys.readouterr().err}"
    serves, trains = python_blocks(page)
    exec(serves)
    model = SentenceTransformer("small", device="cpu")
    args = SentenceTransformerTrainingArguments("trained", max_steps=2, use_cpu=True, report_to="none")
    rows = Dataset.from_list(generate_triplets(16, 1))
    scope: dict = {"model": model, "args": args, "train_dataset": rows}
    exec(trains, scope)
    assert scope["loss"].losses.isfinite().all()


def classes_of_the_tutorial() -> dict:
    """The model and task that the guide names, without the tutorial's training."""
    script = ast.parse(TUTORIAL.read_text("utf-8"))
    script.body = [each for each in script.body if isinstance(each, ast.Import | ast.ImportFrom | ast.ClassDef)]
    scope: dict = {}
    exec(compile(script, str(TUTORIAL), "exec"), scope)
    return {name: scope[name] for name in ("ResidualMLP", "Digits")}


@pytest.mark.usefixtures("working_directory")
def test_the_guide_to_your_own_model():
    trains, reads, answers, cuts, loads = python_blocks(GUIDES / "own_model.md")
    scope = classes_of_the_tutorial()
    torch.manual_seed(0)
    scope["module"] = scope["ResidualMLP"]()
    scope["module"].norm = nn.Identity()  # the block is about a module with a norm before its head
    whole = deepcopy(scope["module"])
    (function,) = re.findall(r"``(lambda .*?)``", inspect.getdoc(descend.layered))
    assert function in reads
    exec(reads, scope)
    assert scope["model"].depth == 6
    torch.manual_seed(1)
    pixels = torch.rand(5, 64)
    for block in (answers, cuts):
        torch.manual_seed(1)
        exec(block, scope)
    assert torch.equal(scope["answers"][-1], whole(pixels)) and len(scope["answers"]) == 7
    assert torch.equal(scope["answer"], scope["answers"][2])
    assert torch.equal(scope["shallow"](pixels), scope["answers"][2])

    digits = [{"pixels": torch.rand(64), "labels": number % 10} for number in range(24)]
    given = classes_of_the_tutorial() | {"train": digits[:8], "validation": digits[8:16], "test": digits[16:]}
    exec(trains.replace("num_train_epochs=20", "max_steps=1, use_cpu=True"), given)
    assert "held to the full depth of erm" in given["answers"]["linear"]
    Path("FOLDER").mkdir()
    save_file(whole.state_dict(), "FOLDER/model.safetensors")
    exec(loads, scope)
    assert torch.equal(scope["model"].head.weight, whole.head.weight)


@pytest.mark.usefixtures("working_directory")
def test_the_guide_to_unrolled_networks(capsys):
    page = GUIDES / "unrolled.md"
    makes, trains, no_worse, *_ = python_blocks(page)
    scope: dict = {}
    exec(makes, scope)
    exec(trains.replace("max_steps", "use_cpu=True, max_steps"), scope)
    shown = json.loads(re.search(r"```text\n(\[.*\])\n", page.read_text("utf-8"))[1])
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == pytest.approx(shown, rel=0.1)
    assert len(shown) == 11 and scope["network"].max_iter == 5
    exec(no_worse, scope)
    assert scope["model"].depth == 10 and scope["args"].after == 5


class DeepinvTrainer:
    """What the guide needs of deepinv's trainer: its order of calls, and a checkpoint after each epoch."""

    saved: ClassVar[dict] = {}

    def __init__(self, model, physics, optimizer, train_dataloader, epochs, losses):
        self.model, self.physics, self.optimizer, self.losses = model, physics, optimizer, [losses]
        self.batches, self.epochs = train_dataloader, epochs

    def train(self):
        self.model = self.losses[0].adapt_model(self.model)
        begun = self.load_model()
        for epoch in range(begun["epoch"] + 1 if begun else 0, self.epochs):
            for x, y in self.batches:
                self.optimizer.zero_grad()
                x_net = self.model(y, self.physics)
                loss = self.losses[0](x=x, x_net=x_net, y=y, physics=self.physics, model=self.model, epoch=epoch)
                loss.mean().backward()
                self.optimizer.step()
            self.save_model("last", epoch)

    def save_model(self, filename, epoch, state=None):
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.saved[filename] = deepcopy({"epoch": epoch, **parts} | state)

    def load_model(self):
        if self.saved:
            self.model.load_state_dict(self.saved["last"]["model"])
            self.optimizer.load_state_dict(self.saved["last"]["optimizer"])
        return self.saved.get("last")


def test_the_guide_to_another_trainer_saves_and_resumes(capsys):
    (block,) = (block for block in python_blocks(GUIDES / "unrolled.md") if "UnrolledLoss" in block)
    block = block.replace("fixed_point.iterator", "iteration.step").replace('out["est"][0]', 'out["x"]')
    block = block.replace("steps=epochs", "steps=4")  # also of the run that ends early
    x, y = (torch.stack([each[name] for each in unrolled.measured(16)]) for name in ("labels", "y"))
    batches = [(x[:8], y[:8]), (x[8:], y[8:])]

    def printed(epochs: int) -> str:
        torch.manual_seed(0)
        model = unrolled.PGD(5)
        scope = {"deepinv": SimpleNamespace(Trainer=DeepinvTrainer), "descend": descend, "torch": torch, "x": x, "y": y}
        scope |= {"model": model, "physics": unrolled.Physics(), "train_dataloader": batches, "epochs": epochs}
        exec(block, scope | {"optimizer": torch.optim.Adam(model.parameters(), lr=0.05)})
        return capsys.readouterr().out

    whole = printed(4)
    DeepinvTrainer.saved.clear()
    assert printed(2) != whole == printed(4) and len(json.loads(whole)) == 6
    assert DeepinvTrainer.saved["last"]["descend"]["steps"] == 8


# --- README


def test_in_place_of_trainer(tmp_path, capsys):
    """README's first Python block, around a small classifier and a script's own variables."""
    tokenizer = review_tokenizer()
    rows = Dataset.from_list(samples(tokenizer, 24, 0))
    model = network("distilbert", labels=2, vocab_size=len(tokenizer), max_position_embeddings=80)
    before = model.classifier.weight.detach().clone()
    args = TrainingArguments(str(tmp_path), max_steps=2, report_to="none", use_cpu=True)
    scope = {"model": model, "args": args, "data": dict.fromkeys(("train", "validation", "test"), rows)}
    scope["tokenizer"] = tokenizer
    exec(python_blocks(README)[0], scope)
    assert not torch.equal(before, model.classifier.weight)
    assert "constraint" in capsys.readouterr().out.splitlines()[-1] and len(scope["trainer"].evaluate(rows)) > 3


def test_a_model_of_ones_own(tmp_path, capsys):
    """Its second Python block, around a small module."""
    module = own.mlp()
    module.norm = nn.Identity()
    args = descend.DescentConfig(tmp_path / "run", max_steps=2, use_cpu=True)
    given = {"module": module, "args": args, "task": own.Classes(), "train": own.samples(8), "test": own.samples(8)}
    exec(python_blocks(README)[1], given)
    assert "8 groups, at least 12 are needed" in capsys.readouterr().out.splitlines()[-1]
    assert (tmp_path / "run" / "report.html").is_file()


# --- the page of families


HEADS = ("Text classification", "token classification", "question answering", "language modelling")


def test_its_lists_are_the_codes():
    page = FAMILY_PAGE.read_text("utf-8")
    section = page.split("## Texts\n")[1].split("\n## ")[0]
    listed = {}
    for heads, names in re.findall(r"^- \*\*([^*]+)\*\*: (.*?)\.$", section, re.MULTILINE | re.DOTALL):
        told = heads.lower().split(", ")
        for name in re.findall(r"`([\w-]+)`", names):
            assert name not in listed
            listed[name] = tuple(head.lower() in told for head in HEADS)
    texts = {name: (True, bool(row.token_head), bool(row.answer_head)) for name, row in FAMILIES.items()}
    assert listed == {
        name: (*texts.get(name, (False, False, False)), name in causal.FAMILIES)
        for name in [*FAMILIES, *causal.FAMILIES]
    }
    assert re.findall(r"^\| [^|]+ \| `(\w+)` \| [^|]+ \|$", page, re.MULTILINE)[1:] == [*images.FAMILIES]


def test_its_families_without_drafts_are_the_codes():
    (listed,) = re.findall(r"does not work with (.*?)\.\n-", FAMILY_PAGE.read_text("utf-8"), re.DOTALL)
    names = re.findall(r"`([\w-]+)`", listed)
    assert len(names) == len(set(names))
    assert set(names) == {name for name, row in causal.FAMILIES.items() if not row.drafts}


@pytest.mark.parametrize("block", TRAINS, ids=["tokens", "answer", "own"])
def test_its_code_trains(block, tmp_path):
    torch.manual_seed(0)
    head = "answer" if "start_positions" in block else "tokens"
    network("bert", labels=3 if head == "tokens" else 2, auto=tagging.HEADS[head]).save_pretrained(tmp_path / "model")
    tokenizer = review_tokenizer()
    given = {
        "args": TrainingArguments(str(tmp_path / "run"), **QUIET | {"max_steps": 1}),
        "train": tagging.texts(head),
        "validation": tagging.texts(head, 8),
        "tokenizer": tokenizer,
        "collator": DataCollatorForTokenClassification(tokenizer),
        "tagger": tagging.Tagger(),
    }
    exec(block.replace('"MODEL"', repr(str(tmp_path / "model"))), given)
    assert given["trainer"].state.global_step == 1


def test_its_code_judges_a_plain_classifier(working_directory):
    tokenizer = review_tokenizer()
    network("bert", labels=2, vocab_size=len(tokenizer), max_position_embeddings=80).save_pretrained("MODEL")
    given = {"test": Dataset.from_list(samples(tokenizer, 12, 0)), "tokenizer": tokenizer}
    exec(JUDGES, given)
    assert given["summary"].samples == 12 and (working_directory / "plain" / "summary.json").is_file()


# --- the tutorial on a model of your own


@pytest.mark.slow
def test_the_tutorial_ends_in_a_page_that_compares_both(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [str(TUTORIAL), str(tmp_path / "out")])
    runpy.run_path(str(TUTORIAL), run_name="__main__")
    page = tmp_path / "out" / "page"
    assert f"{page / 'report.html'}" in capsys.readouterr().out
    erm, constrained = json.loads((page / "summary.json").read_text())["runs"]
    assert (erm["method"], constrained["method"]) == ("erm", "constrained")
    assert constrained["train_value"] > 0.9 and constrained["feasible"]


# --- every command, whether it runs here or not


@cache
def options_of(*words: str) -> set[str]:
    """The options that the help of a command names."""
    shown = help_of(*words, "--help-all" if words[0] in ("train", "paper") else "--help")
    known = {option for no in ("no-", "") for option in re.findall(r"--[\w-]+", shown.replace("[no-]", no))}
    return known | {option.replace("_", "-") for option in known}


@pytest.mark.parametrize(("page", "line"), LINES, ids=lambda part: part[:60])
def test_every_option_exists(page, line):
    command, *rest = words_of(line)
    known = options_of(command, *rest[: command in ("train", "paper", "sweep")])
    if command == "sweep":  # it takes every setting of the recipe
        known = known | options_of("train", rest[0])
    assert known and {word.partition("=")[0] for word in rest if word.startswith("--")} <= known
