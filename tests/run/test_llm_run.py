"""A language model from the command line: trained, evaluated, asked, on generated and on real data."""

import hashlib
import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from descend.reading import read_json
from descend.recipes import RECIPES
from descend.results import read_config, read_summary
from examples import convert_llama2c as llama2c
from tests.support.runs import SMALL, UNSAVED, refused, said, trained


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "eval.json"
    rows = [
        {"instruction": "say these words again", "input": "red sun", "dataset": "d"},
        {"instruction": "red " * 600, "dataset": "long"},
        {"instruction": "say these words again", "input": "red cat", "dataset": "d"},
        *[{"instruction": "say the first of these words : one two"}] * 3,
        {"instruction": "<script>alert(1)</script>"},
    ]
    file.write_text(json.dumps(rows))
    return file


@pytest.mark.slow
def test_a_run_is_evaluated_with_all_that_a_classifier_is(language, capsys):
    out, _ = said(capsys, "evaluate", language, "--noise", "0,0.5,1", "--exit")
    assert re.search(r"Llama-3 constrained on generated instructions: token_accuracy [\d.]+ at γ = 0, ", out)
    assert "layers agree with" in out
    found = read_summary(language)
    assert found.metric == "token_accuracy" and len(found.layer_losses[0.5]) == 4
    assert found.groups == 231 < found.samples  # of 250 texts, and of their tokens: those of one prompt are one group
    assert len(found.violations) == 3 and found.ratios.histogram
    drafts = found.speculation.layers
    assert [one.layer for one in drafts] == [1, 2] and all(0 <= one.acceptance <= 1 for one in drafts)
    page = (language / "report.html").read_text()
    assert "layers agree with" in page and "Token accuracy" in page


@pytest.mark.slow
def test_the_losses_of_a_summary_are_those_of_the_saved_model(language, capsys):
    """By Transformers alone: hidden states, final norm and head, one text at a time."""
    said(capsys, "evaluate", language, "--noise", "0")
    found, recipe = read_summary(language), RECIPES["llm-sft"].kind(**read_config(language).settings)
    model = AutoModelForCausalLM.from_pretrained(language / "model").eval()
    total, count, right = torch.zeros(4, dtype=torch.float64), 0, 0
    for row in recipe.load(*recipe.restore(str(language / "model"))).test:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])[1:]
        with torch.no_grad():
            answer = model(input_ids=ids, output_hidden_states=True)
            inner = [model.lm_head(model.model.norm(each)) for each in answer.hidden_states[:-1]]
            every = torch.stack([*inner, answer.logits])[:, 0, :-1].double()
        told = labels != -100
        total -= every.log_softmax(-1)[:, told].gather(-1, labels[told].expand(4, -1)[..., None]).sum((1, 2))
        count += int(told.sum())
        right += int((every[-1, told].argmax(-1) == labels[told]).sum())
    assert found.samples == count and found.values[0] == pytest.approx(right / count, abs=2 / count)
    assert found.layer_losses[0] == pytest.approx((total / count).tolist(), rel=1e-4)


def test_answers_are_alpacaevals(language, prompts, tmp_path, capsys):
    flags = ["--out", tmp_path / "a.json", "--max-new-tokens", "6", "--noise", "0"]
    out, _ = said(capsys, "complete", language, "--prompts", prompts, *flags)
    assert out == f"{tmp_path / 'a.json'}: 6 answers; left out 1 whose prompt fills the context\n"
    rows = read_json(tmp_path / "a.json")
    assert {tuple(row) for row in rows} == {("instruction", "output", "generator", "dataset")}
    assert [row["dataset"] for row in rows] == ["d", "d", "", "", "", ""]
    assert {row["generator"] for row in rows} == {"Llama-3 constrained, γ = 0"} and not [*tmp_path.glob("*.partial")]


def test_noise_moves_answers_and_an_interrupted_file_goes_on(language, prompts, tmp_path, capsys):
    def ask(name, *more, status=0):
        flags = ["--max-new-tokens", "6", "--noise", "1.5", "--batch-size", "2", *more]
        words = ["complete", language, "--prompts", prompts, "--out", tmp_path / name, *flags]
        return said(capsys, *words, status=status)[1]

    for name in ("whole.json", "again.json"):
        ask(name)
    assert read_json(tmp_path / "whole.json") == read_json(tmp_path / "again.json")
    # As a kill leaves it: two whole batches, a third begun and a line cut in two.
    lines = [json.dumps(row) for row in read_json(tmp_path / "whole.json")]
    lines.insert(1, "null")
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (language / "config.json", prompts)]
    header = {
        "run": str(language.absolute()),
        "model": "model",
        "trained": digests[0],
        "prompts": 7,
        "prompts_file": digests[1],
        "noise": 1.5,
        "max_new_tokens": 6,
        "batch_size": 2,
        "seed": 0,
    }
    begun = "\n".join([json.dumps(header), *lines[:4], lines[4].replace("d", "x"), lines[5][:9]])
    (tmp_path / "half.json.partial").write_text(begun)
    assert "is of other settings" in ask("half.json", "--seed", "1", status=2)
    ask("half.json")
    assert read_json(tmp_path / "half.json") == read_json(tmp_path / "whole.json")
    (tmp_path / "bad.json.partial").write_text("garbage")
    for name, flags, message in (
        ("half.json", [], "exists; choose another"),
        ("bad.json", [], "or no file of descend complete"),
        ("none.json", ["--noise", "-1"], "noise must be a level"),
        ("none.json", ["--seed", str(10**20)], "seed must be"),
    ):
        assert message in ask(name, *flags, status=2)
    assert not [*tmp_path.glob("none.json*")]


@pytest.mark.slow
def test_an_answer_has_its_own_room_whatever_is_beside_it(tmp_path, capsys):
    # Of a model that has not learned to stop.
    run = trained(tmp_path / "run", "llm-sft", f"{SMALL} --data generated --learning-rate 0 --method erm")
    rows = [{"instruction": "say these words again", "input": "red sun"}, {"instruction": "red " * 495}]
    (tmp_path / "p.json").write_text(json.dumps(rows))
    found = []
    for size in (1, 2):
        flags = ["--noise", "0", "--max-new-tokens", "20", "--batch-size", size, "--out", tmp_path / f"{size}.json"]
        said(capsys, "complete", run, "--prompts", tmp_path / "p.json", *flags)
        found.append([row["output"] for row in read_json(tmp_path / f"{size}.json")])
    assert found[0] == found[1] and len(found[0][0].split()) > len(found[0][1].split())


@pytest.mark.slow
def test_a_pretrained_model_is_cut_and_asked_and_one_layer_drafts_nothing(models, prompts, language, tmp_path, capsys):
    settings = f"{UNSAVED} --data generated --max-length 60 --max-steps 4 --keep-layers 1 --dual-warmup-steps 0"
    run = trained(tmp_path / "run", "lm", settings, "--model", models / "causal")
    config, model = read_config(run), AutoModelForCausalLM.from_pretrained(run / "model")
    assert (config.model, config.depth, config.settings["noise"]) == ("Llama-1", 1, 0.0)
    assert (model.config.num_hidden_layers, model.dtype) == (1, torch.float32)
    out, _ = said(capsys, "evaluate", run, "--noise", "0", "--exit")
    assert "agree with" not in out and read_summary(run).speculation is None
    answers = ["--prompts", prompts, "--max-new-tokens", "2", "--limit", "1", "--out", tmp_path / "answers.json"]
    said(capsys, "complete", run, *answers)
    (tmp_path / "long.json").write_text(json.dumps([{"instruction": "say " * 100, "output": "x"}] * 3))
    for words, message in (
        ([run, "--exit", "--risk", "0.01"], "--risk"),
        ([language, "--noise", "0", "--data", tmp_path / "long.json"], "has no two prompts that leave room"),
    ):
        assert message in refused(capsys, "evaluate", *words)


# --- llama2.c


@pytest.mark.slow
def test_a_real_pretrained_model_is_converted_and_tuned(real_data, tmp_path, capsys):
    llama2c.convert(real_data / "weights" / "stories260K", tmp_path / "stories")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "stories")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "stories")
    assert model.config.vocab_size == len(tokenizer) == 512 and model.config.num_key_value_heads == 4
    ids = tokenizer("Once upon a time, there was a little girl named Lily", return_tensors="pt").input_ids
    # A trained model knows how its stories go: far below ln 512 = 6.2 for each token.
    assert ids[0, 0] == tokenizer.bos_token_id and model(input_ids=ids, labels=ids).loss < 1.5
    # Greedy merges of the best score, which is how llama2.c encodes.
    for text in ("The dog's ball, 3 times!", "né naïve ☃"):
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    given = ["--model", tmp_path / "stories", "--data", real_data / "alpaca" / "alpaca_data.json"]
    settings = f"{UNSAVED} --noise 1.5 --max-length 256 --max-steps 4 --validation-share 0.01"
    trained(tmp_path / "run", "llm-sft", settings, *given)
    flags = ["--limit", "3", "--max-new-tokens", "8", "--out", tmp_path / "o.json"]
    prompts = real_data / "alpaca_eval" / "alpaca_eval.json"
    said(capsys, "complete", tmp_path / "run", "--prompts", prompts, *flags)
    assert [row["dataset"] for row in read_json(tmp_path / "o.json")] == ["helpful_base"] * 3
