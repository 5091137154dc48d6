"""A language model from the command line: trained, evaluated, asked, on generated and on real data."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from descend.cli import main
from descend.errors import InputError
from descend.results import read_json
from examples import convert_llama2c as llama2c

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--data", "generated", "--depth", "3", "--hidden-size", "32", "--heads", "2", "--max-length", "60"]
SMALL += ["--max-steps", "12"]
SMALL += ["--eval-strategy", "no", "--save-strategy", "no", "--no-load-best-model-at-end"]


def words(capsys, *given, status=0):
    capsys.readouterr()
    assert main([str(each) for each in given]) == status
    return capsys.readouterr()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llm") / "run"
    flags = ["--alpha", "0.1", "--cap", "3", "--dual-lr", "0.5", "--exit-share", "0.25", "--noise", "0.5"]
    assert main(["train", "llm-sft", "--out", str(folder), *SMALL, *flags]) == 0
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "eval.json"
    rows = [{"instruction": "say these words again", "input": f"red {word}", "dataset": "d"} for word in ("sun", "cat")]
    rows += [{"instruction": "say the first of these words : one two"}] * 3
    rows.insert(1, {"instruction": "red " * 600, "dataset": "long"})
    rows.append({"instruction": "<script>alert(1)</script>"})
    file.write_text(json.dumps(rows))
    return file


def test_a_run_is_evaluated_with_all_that_a_classifier_is(run, capsys):
    out, err = words(capsys, "evaluate", run, "--noise", "0,0.5,1", "--exit")
    assert re.search(r"Llama-3 constrained on generated instructions: mean token_accuracy", out) and not err
    assert "Drafting by the first" in out
    found = read_json(run / "summary.json")
    assert found["metric"] == "token_accuracy" and len(found["layer_losses"]["0.5"]) == 4
    assert found["groups"] == 250 < found["samples"]  # texts are independent, their tokens are not
    assert len(found["violations"]) == 3 and found["ratios"]["by_layer"] and found["settled_layer"]
    assert [one["layer"] for one in found["speculation"]["layers"]] == [1, 2]
    assert all(0 <= one["acceptance"] <= 1 for one in found["speculation"]["layers"])
    (speed,) = (one["speed"] for one in found["speculation"]["layers"] if one["speed"] is not None)
    assert speed > 0
    page = (run / "report.html").read_text()
    assert "tokens are accepted" in page and "Token accuracy" in page
    training = read_json(run / "config.json")["training"]
    assert training["exit_share"] == 0.25 and training["max_length"] == 60


def test_the_losses_of_a_summary_are_those_of_the_saved_model(run, capsys):
    """By the library alone: hidden states, final norm and head, one text at a time."""
    words(capsys, "evaluate", run, "--noise", "0")
    found = read_json(run / "summary.json")
    from descend.recipes.language import InstructionRecipe

    settings = read_json(run / "config.json")["settings"]
    recipe = InstructionRecipe(**settings)
    restored = recipe.restore(str(run / "model"))
    model = AutoModelForCausalLM.from_pretrained(run / "model").eval()
    total, count, right = torch.zeros(4, dtype=torch.float64), 0, 0
    for row in recipe.load(restored).test:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])[1:]
        with torch.no_grad():
            answer = model(input_ids=ids, output_hidden_states=True)
            inner = [model.lm_head(model.model.norm(each)) for each in answer.hidden_states[:-1]]
            every = torch.stack([*inner, answer.logits])[:, 0, :-1].double()
        told = labels != -100
        total -= every.log_softmax(-1)[:, told].gather(-1, labels[told].expand(4, -1)[..., None]).sum((1, 2))
        count += int(told.sum())
        right += int((every[-1, told].argmax(-1) == labels[told]).sum())
    assert found["samples"] == count
    assert found["layer_losses"]["0.0"] == pytest.approx((total / count).tolist(), rel=1e-4)
    assert found["values"][0] == pytest.approx(right / count, abs=2 / count)


def test_what_is_saved_speculates_with_its_first_layers(run):
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    ids = tokenizer("say the first of these words : one two", return_tensors="pt").input_ids
    settings = {"max_new_tokens": 12, "do_sample": False}
    assert torch.equal(model.generate(ids, **settings, assistant_early_exit=2), model.generate(ids, **settings))


def test_answers_are_alpacaevals(run, prompts, tmp_path, capsys):
    flags = ["--out", tmp_path / "a.json", "--max-new-tokens", "6", "--noise", "0"]
    out, _ = words(capsys, "complete", run, "--prompts", prompts, *flags)
    assert out == f"{tmp_path / 'a.json'}: 6 answers; left out 1 whose prompt fills the context\n"
    rows = read_json(tmp_path / "a.json")
    assert all(row.keys() == {"instruction", "output", "generator", "dataset"} for row in rows)
    assert [row["dataset"] for row in rows] == ["d", "d", "", "", "", ""]
    assert {row["generator"] for row in rows} == {"Llama-3 constrained, γ = 0"}
    assert not list(tmp_path.glob("*.partial"))
    out, _ = words(capsys, "complete", "--compare", tmp_path / "a.json", tmp_path / "a.json", "--out", tmp_path)
    page = Path(out.strip()).read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and page.count("<td ") == 2 * 6


def test_noise_moves_answers_and_an_interrupted_file_goes_on(run, prompts, tmp_path, capsys):
    def ask(name, *more, status=0):
        flags = ["--max-new-tokens", "6", "--noise", "1.5", "--batch-size", "2", *more]
        return words(capsys, "complete", run, "--prompts", prompts, "--out", tmp_path / name, *flags, status=status)

    ask("whole.json")
    ask("again.json")
    assert read_json(tmp_path / "whole.json") == read_json(tmp_path / "again.json")
    # As a kill leaves it: two whole batches, a third begun and a line cut in two.
    lines = [json.dumps(row) for row in read_json(tmp_path / "whole.json")]
    lines.insert(1, "null")
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (run / "config.json", prompts)]
    header = {"run": str(run.absolute()), "model": "model", "trained": digests[0], "prompts": 7}
    header |= {"prompts_file": digests[1], "noise": 1.5, "max_new_tokens": 6, "batch_size": 2, "seed": 0}
    begun = "\n".join([json.dumps(header), *lines[:4], lines[4].replace("d", "x"), lines[5][:9]])
    (tmp_path / "half.json.partial").write_text(begun)
    _, err = ask("half.json", "--seed", "1", status=2)
    assert "seed (was 0, now 1)" in err
    ask("half.json")
    assert read_json(tmp_path / "half.json") == read_json(tmp_path / "whole.json")
    _, err = ask("half.json", status=2)
    assert "exists; choose another" in err
    (tmp_path / "bad.json.partial").write_text("garbage\n")
    _, err = ask("bad.json", status=2)
    assert "was not written by descend complete" in err
    for flags, said in ((["--noise", "-1"], "noise must be a level"), (["--seed", str(10**20)], "seed must be")):
        _, err = ask("none.json", *flags, status=2)
        assert said in err and not (tmp_path / "none.json.partial").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--prompts", "none.json"], "must be a JSON file of prompts"),
        (["--compare", "none.json"], "there is no none.json"),
        ([], "expected the folder of a run and --prompts"),
    ],
)
def test_wrong_questions_are_refused(tmp_path, capsys, flags, said, run):
    given = flags if "--compare" in flags else [run, *flags] if flags else flags
    _, err = words(capsys, "complete", *given, "--out", tmp_path / "x.json", status=2)
    assert said in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--exit-share", "0"], "must lie in (0, 1]; got 0.0"),
        (["--lora", "q_proj"], "--lora needs a pretrained --model"),
        (["--dataset-text-field", "foo"], "--dataset-text-field has no effect"),
        (["--dataloader-num-workers", "-1"], "dataloader_num_workers must be at least 0"),
        (["--report-to", "wandb"], "wandb"),
        (["--heads", "3"], "hidden_size must be a multiple of heads"),
        (["--max-length", "4"], "max_length must be at least 8"),
        (["--model", "nowhere/at/all"], "can't load a model"),
        (["--data", "none.json"], "none.json does not exist"),
        (["--validation-share", "0.7"], "validation_share must lie between"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, capsys, flags, said):
    out = tmp_path / "run"
    _, err = words(capsys, "train", "llm-sft", "--out", out, *SMALL, *flags, status=2)
    assert said in err and not out.exists()


def test_adapters_are_trained_saved_and_evaluated(tmp_path, run, capsys):
    flags = ["--model", run / "model", "--lora", "q_proj,lm_head", "--noise", "0.5", "--packing"]
    flags += ["--learning-rate", "0.05", "--method", "erm"]
    words(capsys, "train", "llm-sft", "--out", tmp_path / "run", *SMALL, *flags)
    assert (tmp_path / "run" / "model" / "adapter_config.json").is_file()
    losses = []
    for folder in (run, tmp_path / "run"):
        words(capsys, "evaluate", folder, "--noise", "0")
        losses.append(read_json(folder / "summary.json")["layer_losses"]["0.0"][-1])
    assert losses[1] < losses[0] - 0.1  # it has learned more, and what it learned was loaded again
    flags = [*flags[:2], "--lora", "no"]
    _, err = words(capsys, "train", "llm-sft", "--out", tmp_path / "no", *SMALL, *flags, status=2)
    assert "--lora must name modules of the model: " in err and "q_proj" in err


def test_a_model_of_one_layer_drafts_nothing(tmp_path, capsys):
    flags = ["--depth", "1", "--dual-warmup-steps", "0"]
    words(capsys, "train", "llm-sft", "--out", tmp_path / "run", *SMALL, *flags)
    out, _ = words(capsys, "evaluate", tmp_path / "run", "--noise", "0", "--exit")
    assert "Drafting" not in out and "speculation" not in read_json(tmp_path / "run" / "summary.json")
    _, err = words(capsys, "evaluate", tmp_path / "run", "--exit", "--risk", "0.01", status=2)
    assert "--risk" in err and err.strip().count("\n") == 0


def test_other_data_without_a_usable_row_are_refused(run, tmp_path, capsys):
    (tmp_path / "long.json").write_text(json.dumps([{"instruction": "say " * 100, "output": "x"}] * 3))
    _, err = words(capsys, "evaluate", run, "--noise", "0", "--data", tmp_path / "long.json", status=2)
    assert "has no two prompts that leave room" in err


def test_an_answer_has_its_own_room_whatever_is_beside_it(tmp_path, capsys):
    run = tmp_path / "run"  # of a model that has not learned to stop
    words(capsys, "train", "llm-sft", "--out", run, *SMALL, "--learning-rate", "0", "--method", "erm")
    rows = [{"instruction": "say these words again", "input": "red sun"}, {"instruction": "red " * 495}]
    (tmp_path / "p.json").write_text(json.dumps(rows))
    found = []
    for size in (1, 2):
        flags = ["--noise", "0", "--max-new-tokens", "20", "--batch-size", size, "--out", tmp_path / f"{size}.json"]
        words(capsys, "complete", run, "--prompts", tmp_path / "p.json", *flags)
        found.append([row["output"] for row in read_json(tmp_path / f"{size}.json")])
    assert found[0] == found[1] and len(found[0][0].split()) > len(found[0][1].split())


def convert(folder, out):
    command = [sys.executable, EXAMPLES / "convert_llama2c.py", folder, out]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


def test_a_real_pretrained_model_is_converted_and_tuned(real_data, tmp_path, capsys):
    done = convert(real_data / "weights" / "stories260K", tmp_path / "stories")
    assert done.returncode == 0, done.stderr
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "stories")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "stories")
    assert model.config.vocab_size == len(tokenizer) == 512 and model.config.num_key_value_heads == 4
    ids = tokenizer("Once upon a time, there was a little girl named Lily", return_tensors="pt").input_ids
    assert ids[0, 0] == tokenizer.bos_token_id
    # A trained model knows how its stories go: far below ln 512 = 6.2 for each token.
    assert model(input_ids=ids, labels=ids).loss < 1.5
    # Greedy merges of the best score, which is how llama2.c encodes.
    for text in ("The dog's ball, 3 times!", "né naïve ☃"):
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    words(
        capsys,
        *("train", "llm-sft", "--model", tmp_path / "stories", "--data", real_data / "alpaca" / "alpaca_data.json"),
        *("--out", tmp_path / "run", "--max-steps", "4", "--noise", "1.5", "--eval-strategy", "no"),
        *("--save-strategy", "no", "--validation-share", "0.01"),
    )
    prompts = real_data / "alpaca_eval" / "alpaca_eval.json"
    flags = ["--limit", "3", "--max-new-tokens", "8", "--out", tmp_path / "o.json"]
    words(capsys, "complete", tmp_path / "run", "--prompts", prompts, *flags)
    assert [row["dataset"] for row in read_json(tmp_path / "o.json")] == ["helpful_base"] * 3


def test_a_checkpoint_that_ends_early_is_refused(real_data, tmp_path):
    source = real_data / "weights" / "stories260K"
    shutil.copy(source / "tok512.bin", tmp_path)
    whole = (source / "stories260K.bin").read_bytes()
    (tmp_path / "stories260K.bin").write_bytes(whole[:5000])
    done = convert(tmp_path, tmp_path / "out")
    assert done.returncode == 1 and "ends early" in done.stderr and "Traceback" not in done.stderr
    for content, said in ((whole[:10], "ends within its header"), (b"\0" * 64, "is no")):
        (tmp_path / "stories260K.bin").write_bytes(content)
        with pytest.raises(InputError, match=said):
            llama2c.convert(tmp_path, tmp_path / "out")
