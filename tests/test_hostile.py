"""Hostile inputs of each kind: damaged records by the hundred, escape sequences, tokens, paths and weights."""

import io
import json
import random
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, DistilBertConfig, DistilBertForSequenceClassification

from descend.cli import main, without_secrets
from descend.cli.escaped import Escaped
from descend.cli.parsing import check_data
from descend.declared import options
from descend.errors import InputError
from descend.models import load_model, refuse_unsafe
from descend.models.loading import refuse_broken
from descend.reading import is_path, read_json
from descend.results import Summary
from descend.tasks.text import load_tokenizer
from tests.support.files import SUMMARY
from tests.support.runs import TINY, refused

SECONDS = 25
"""The time of the whole fuzz run; an input that takes longer than its share is a fault."""

ODD = [None, True, -1, 2**63, 10**400, 1e308, "", "\x1b[2J", "../../x", "9" * 5000, [], {}, [[]] * 500, {"": None}]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Bytes with a bit turned, a part repeated, cut out or in odd order, or brackets without end."""
    place, size = rng.randrange(len(content)), rng.randrange(1, 40)
    part = content[place : place + size]
    return rng.choice(
        [
            content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :],
            content[:place] + part * rng.randrange(2, 100) + content[place:],
            content[:place] + content[place + size :],
            content[:place],
            content[:place] + rng.randbytes(size) + content[place:],
            content[:place] + rng.choice([b"[", b"{", b"- ", b"&a *a "]) * 3000 + content[place:],
            content[:place] + rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"!!python/name:os.system x"]),
        ]
    )


def changed(tree: dict, rng: random.Random) -> bytes:
    """JSON with an odd value in the place of another one."""
    return json.dumps(tree | {rng.choice([*tree]): rng.choice(ODD)}).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A small saved classifier."""
    folder = tmp_path_factory.mktemp("hostile") / "model"
    config = DistilBertConfig(vocab_size=40, dim=8, n_layers=2, n_heads=2, hidden_dim=8, num_labels=2)
    DistilBertForSequenceClassification(config).save_pretrained(folder)
    return folder


def load(folder: Path | str) -> None:
    load_model(AutoModelForSequenceClassification, folder, "a classifier", "a model")


def test_damaged_records_are_read_or_refused_in_words_and_in_time(model, tmp_path):
    """YAML, JSON, safetensors' headers, configurations: no other error, no hang."""
    from descend.harness.loading import _check_file, _without_code

    task = b"task: a\ndataset_path: json\noutput_type: multiple_choice\nmetric_list: [{metric: acc}]\ninclude: b.yaml\n"
    header = (model / "model.safetensors").read_bytes()[:600]
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "b.yaml").write_text("doc_to_text: a\n")

    def of_yaml(file: Path) -> None:
        with _without_code():
            _check_file(str(file), False)

    kinds = {
        "a.yaml": (lambda rng: damaged(task, rng), of_yaml),
        "a.json": (lambda rng: damaged(json.dumps(SUMMARY).encode(), rng), read_json),
        "summary.json": (lambda rng: changed(SUMMARY, rng), Summary.read),
        "model.safetensors": (lambda rng: damaged(header, rng) + bytes(4000), lambda file: load(file.parent)),
        "config.json": (lambda rng: changed(config, rng), lambda file: load(file.parent)),
    }
    for name, (make, read) in kinds.items():
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        for file in model.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / "b.yaml").write_text("doc_to_text: a\n")
        began, count = time.monotonic(), 0
        while count < 20 or (time.monotonic() - began < SECONDS / len(kinds) and count < 100):
            (folder / name).write_bytes(make(random.Random(count)))
            try:
                read(folder / name)
            except InputError:
                pass
            except Exception as error:
                raise AssertionError(f"input {count} of {name}") from error
            count += 1


# --- what is shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07\x1b[2J", r"\x1b]0;owned\x07\x1b[2J"),
        ("a\x9b31mb", r"a\x9b31mb"),
        ("a\u202eb", r"a\u202eb"),
        ("a\tb\nc", "a\tb\nc"),
        ("\r  5%|#   | γ = 0.8, ‖x‖", "\r  5%|#   | γ = 0.8, ‖x‖"),
        ("\x1b[A\x1b[A", "\x1b[A\x1b[A"),  # a bar of progress moves up
        ("\x1b[A name", r"\x1b[A name"),
    ],
)
def test_control_characters_stand_as_escapes(text, shown):
    stream = io.StringIO()
    Escaped(stream).write(text)
    assert stream.getvalue() == shown


@pytest.mark.parametrize("entry", ["method", "model", "dataset"])
def test_no_escape_sequence_of_a_summary_reaches_the_terminal(tmp_path, capsys, entry):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text(json.dumps(SUMMARY | {entry: "\x1b]0;owned\x07\x1b[2J"}))
    main(["compare", str(tmp_path / "run"), "--out", str(tmp_path / "page")])
    printed = "".join(capsys.readouterr())
    assert printed and not {"\x1b", "\x07"} & {*printed}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--hub-token", "hf_X", "--depth", "2"], ["--hub-token", "***", "--depth", "2"]),
        (["--hub_token=hf_X"], ["--hub-token=***"]),
        (["--storage", "postgresql://me:secret@host/db"], ["--storage", "postgresql://me:***@host/db"]),
        (["--out", "token"], ["--out", "token"]),
    ],
)
def test_the_command_that_goes_on_shows_no_secret(words, shown):
    assert without_secrets(words) == shown
    assert options({"hub_token": "hf_X", "depth": 2}) == ["--depth", "2"]


# --- names that are no paths, weights that are no numbers


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("bert-base-uncased", False),
        ("google/vit-base", False),
        ("runs/modle", True),
        ("./model", True),
        ("/tmp/none/model", True),
        ("~/model", True),
        ("a/b/c", True),
        ("model/", True),
    ],
)
def test_a_typo_in_a_path_is_no_name_on_the_hub(name, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert is_path(name) is path
    if path:
        with pytest.raises(InputError, match="There is no such folder"):
            load(name)


def test_a_word_that_resembles_a_folder_is_a_typo_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("model", "reviews", "bert-base-uncased-run"):
        (tmp_path / folder).mkdir()
    for word in ("modle", "mdel", Path("models")):
        assert is_path(word)
        for read in (load, load_tokenizer):
            with pytest.raises(InputError, match=r"Did you mean model\?.*OWNER/NAME"):
                read(word)
    with pytest.raises(InputError, match=r"Did you mean reviews\?"):
        check_data("revews", hub=True)
    assert not any(map(is_path, ("bert-base-uncased", "gpt2", "google/model")))


def test_adapters_for_a_model_that_is_not_here_ask_no_hub(tmp_path):
    save_file({"a.lora_A.weight": torch.zeros(2, 8)}, tmp_path / "adapter_model.safetensors")
    content = {"base_model_name_or_path": "somebody/model", "peft_type": "LORA", "r": 2}
    (tmp_path / "adapter_config.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="adapters for 'somebody/model', which is not on this machine"):
        refuse_unsafe(tmp_path)


def test_code_that_a_stranger_names_is_not_passed_on(model, tmp_path):
    theirs = json.loads((model / "config.json").read_text()) | {"auto_map": {"AutoConfig": "theirs.Config"}}
    (model.parent / "theirs").mkdir()
    for file in model.iterdir():
        (model.parent / "theirs" / file.name).write_bytes(file.read_bytes())
    (model.parent / "theirs" / "config.json").write_text(json.dumps(theirs))
    loaded = load_model(AutoModelForSequenceClassification, model.parent / "theirs", "a classifier", "a model")
    loaded.save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


def test_weights_that_are_no_numbers_are_named(model, tmp_path):
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    refuse_broken(load_model(AutoModelForSequenceClassification, tmp_path, "a", "b"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    weights["classifier.weight"][0] = float("inf")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"NaN or infinite: classifier\.weight, classifier\.bias"):
        refuse_broken(load_model(AutoModelForSequenceClassification, tmp_path, "a", "b"), tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        "--max-steps -5",
        "--max-steps 0",
        "--save-steps -1",
        "--eval-steps 0",
        "--seed 18446744073709551616",
        "--seed -1",
        "--depth 18446744073709551616",
        "--depth 1025",
        "--per-device-train-batch-size 18446744073709551616",
        "--ddp-timeout 18446744073709551616",
        "--dataloader-num-workers 18446744073709551616",
        "--parallelism-config 5",
        "--adam-beta1 nan",
        "--adam-beta2 1",
        "--adam-epsilon -5",
    ],
)
def test_numbers_without_a_meaning_are_one_line(tmp_path, capsys, words):
    line = refused(capsys, "train", "text-ut", "--data", "generated", "--out", tmp_path / "run", *words.split())
    assert words.split()[0].strip("-").replace("-", "_") in line.replace("-", "_") and not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", ["--optim-args 5", "--lr-scheduler-kwargs 5"])
def test_arguments_that_no_optimizer_or_schedule_takes_are_one_line(tmp_path, capsys, words):
    about = "optimizer" if "optim" in words else "schedule"
    assert main(["train", *TINY, "--out", str(tmp_path / "run"), "--max-steps", "1", *words.split()]) == 2
    assert f"descend: the {about} can't be made: " in capsys.readouterr().err.splitlines()[-1]


def test_a_count_below_zero_in_a_summary_is_refused(tmp_path, capsys):
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY | {"samples": -5}))
    assert "samples" in refused(capsys, "report", tmp_path)
