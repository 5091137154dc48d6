"""`descend export`: the first K layers of a run, chosen or given, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from descend import InputError, Run, run
from descend.models import LayeredCausalLM, LayeredClassifier
from descend.results import read_summary
from tests.support import own
from tests.support.documented import ROOT, commands, python_blocks, words_of
from tests.support.networks import network, unsampled
from tests.support.runs import SMALL, refused, said, trained

PAGE = ROOT / "docs" / "guides" / "export.md"


def texts(model):
    ids = torch.arange(4, 20).reshape(2, 8) % model.config.vocab_size
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.slow
def test_a_language_model_is_a_plain_checkpoint(language, tmp_path, capsys):
    out, err = said(capsys, "export", language, "--layers", "2", "--out", tmp_path / "two")
    assert not err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "two")
    whole = AutoModelForCausalLM.from_pretrained(language / "model")
    expected = list(LayeredCausalLM(whole).predictions(texts(whole)))[2]
    torch.testing.assert_close(model(**texts(model)).logits, expected, rtol=1e-5, atol=1e-5)
    assert model.config.num_hidden_layers == 2 and model.config.descend["of_layers"] == 3
    assert model.dtype == whole.dtype
    folders = (tmp_path / "two", language / "model")
    generation = [json.loads((each / "generation_config.json").read_text()) for each in folders]
    vocabularies = [AutoTokenizer.from_pretrained(each).get_vocab() for each in folders]
    assert generation[0] == generation[1] and vocabularies[0] == vocabularies[1]
    # The printed lines work, and draft what greedy decoding writes.
    assert "first 2 of 3 layers" in out
    prompt = texts(whole)["input_ids"][:1]
    greedy = whole.generate(prompt, max_new_tokens=8, do_sample=False)
    lines = {line.strip() for line in out.splitlines()}
    scope = {"AutoModelForCausalLM": AutoModelForCausalLM}
    for line in (each for each in lines if each.startswith(("model =", "draft ="))):
        exec(line, scope)
    for line in (each for each in lines if each.startswith("model.generate(")):
        scope["inputs"] = {"input_ids": prompt, "max_new_tokens": 8, "do_sample": False}
        assert torch.equal(eval(line, scope), greedy)
    (vllm,) = (each for each in lines if each.startswith("vllm serve"))
    draft = json.loads(vllm.split("--speculative-config ")[1].strip("'"))
    assert draft == {"method": "draft_model", "model": str(tmp_path / "two"), "num_speculative_tokens": 5}


@pytest.mark.slow
def test_evaluate_takes_an_exported_classifier_whose_card_says_where_it_comes_from(
    classifier, reviews, tmp_path, capsys
):
    said(capsys, "evaluate", classifier, "--noise", "0,1")
    said(capsys, "export", classifier, "--layers", "2", "--out", tmp_path / "two")
    for saved in (tmp_path / "two", classifier / "model"):
        said(capsys, "evaluate", saved, "--task", "classification", "--data", reviews, "--noise", "0")
    whole, cut, alone = map(read_summary, (classifier, tmp_path / "two", classifier / "model"))
    assert cut.layer_metrics[0] == whole.layer_metrics[0][:3]
    assert cut.layer_losses[0] == pytest.approx(whole.layer_losses[0][:3], rel=1e-5)
    for name in ("method", "seed", "strength", "train_noise", "temperature"):
        assert getattr(alone, name) == getattr(whole, name), name
    assert (cut.method, cut.temperature) == (whole.method, whole.temperature) and "first 2 layers" in cut.note
    assert "did not ask" in cut.verdict and "did not ask" not in alone.verdict
    card = ModelCard.load(tmp_path / "two" / "README.md")
    assert "first 2 of 3 layers" in card.text and "descend train text-distilbert" in card.text
    results = {each.metric_args["noise"]: each.metric_value for each in card.data.eval_results}
    assert results == {level: pytest.approx(whole.layer_metrics[level][2], rel=1e-5) for level in (0, 1)}


@pytest.mark.slow
def test_adapters_are_trained_saved_evaluated_and_merged_and_the_type_of_weights_is_kept(language, tmp_path, capsys):
    half = shutil.copytree(language, tmp_path / "half")
    AutoModelForCausalLM.from_pretrained(half / "model", dtype=torch.bfloat16).save_pretrained(half / "model")
    said(capsys, "export", half, "--layers", "1", "--out", tmp_path / "bf16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "bf16").dtype == torch.bfloat16

    settings = f"{SMALL} --data generated --lora q_proj,lm_head --noise 0.5 --packing --learning-rate 0.05 --method erm"
    lora = trained(tmp_path / "lora", "llm-sft", settings, "--model", language / "model")
    assert (lora / "model" / "adapter_config.json").is_file()
    before, after = (Run.read(each).evaluate(noise=[0.0]).layer_losses[0][-1] for each in (language, lora))
    assert after < before - 0.1  # it has learned more, and what it learned was loaded again
    assert "PEFT" not in (lora / "model" / "README.md").read_text()
    line = refused(capsys, "layers", lora, "--data", "generated", "--out", tmp_path / "layers")
    assert "holds adapters of one. Write the whole by descend export RUN --layers L." in line
    out, _ = said(capsys, "export", lora, "--layers", "2", "--out", tmp_path / "merged")
    assert "holds adapters" in out and "vllm serve WHOLE" in out


@pytest.mark.slow
def test_the_code_of_the_page_runs(language, classifier, working_directory, capsys):
    shutil.copytree(language, working_directory / "runs" / "llm")
    shutil.copytree(classifier, working_directory / "runs" / "imdb")
    shutil.copytree(classifier / "model", working_directory / "saved")
    exports = [line for line in commands(PAGE) if line.startswith("descend export ") and "onnx" not in line]
    assert len(exports) == 4
    said(capsys, "evaluate", "runs/imdb", "--noise", "0,1")
    for line in exports:
        said(capsys, *words_of(line))
    scope: dict = {}
    for block in python_blocks(PAGE):
        if "onnxruntime" not in block:  # tests/run/test_onnx.py
            exec(block, scope)
    assert scope["draft"].config.num_hidden_layers == 2


def test_a_model_of_a_script_is_exported_with_its_adapters_and_stays_whole(tmp_path):
    adapters = LoraConfig(task_type="SEQ_CLS", target_modules=["q_lin"], init_lora_weights=False)
    model = get_peft_model(network("distilbert"), adapters).eval()
    inputs = {"input_ids": torch.arange(5, 11)[None]}
    with torch.no_grad():
        exits = list(LayeredClassifier(model).predictions(inputs))
        run.export_model(model, 2, tmp_path / "two")
        cut = AutoModelForSequenceClassification.from_pretrained(tmp_path / "two").eval()
        torch.testing.assert_close(cut(**inputs).logits, exits[2], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(**inputs).logits, exits[3])
    assert cut.config.n_layers == 2 and cut.config.descend == {"exported_layers": 2, "of_layers": 3}
    assert (
        "first 2 of 3 layers of DistilBertForSequenceClassification, " in (tmp_path / "two" / "README.md").read_text()
    )


@pytest.mark.parametrize("format", ["transformers", "sentence-transformers"])
def test_a_model_of_half_precision_is_exported(models, tmp_path, format):
    model = AutoModelForSequenceClassification.from_pretrained(models / "bert", dtype=torch.bfloat16)
    run.export_model(model, 2, tmp_path / "two", AutoTokenizer.from_pretrained(models / "bert"), format=format)
    (weights,) = (tmp_path / "two").glob("model.safetensors")
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("model", "layers", "place", "message"),
    [
        (network("distilbert"), 4, "out", "1 to 3, the layers of the model; got 4"),
        (network("distilbert"), 0, "out", "got 0"),
        (own.layers(), 1, "out", "one of your own"),
        (unsampled(), 1, "out", "its generation_config: .*do_sample"),
        (network("distilbert"), 1, ".", "new or an empty folder"),
    ],
)
def test_what_export_model_refuses(tmp_path, model, layers, place, message):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=message):
        run.export_model(model, layers, tmp_path / place)
    assert not (tmp_path / "out").exists()


def test_a_family_that_can_not_be_cut_is_refused_and_nothing_is_written(classifier, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("descend.run.exporting.keep_first", lambda model, layers: None)
    line = refused(capsys, "export", classifier, "--layers", "1", "--out", tmp_path / "out")
    assert "DistilBertForSequenceClassification" in line and "exit 1" in line and list(tmp_path.iterdir()) == []


def test_auto_is_the_choice_of_the_evaluation_and_says_what_test_data_certify(classifier, tmp_path, capsys):
    auto = ["export", classifier, "--layers", "auto", "--tolerance", "2"]
    said(capsys, "evaluate", classifier, "--noise", "1")
    content, summary = json.loads((classifier / "summary.json").read_text()), read_summary(classifier)
    before = {path: path.read_bytes() for path in classifier.rglob("*") if path.is_file()}
    chosen = max(summary.layers_needed.chosen[2].layer, 1)
    out, _ = said(capsys, *auto, "--out", tmp_path / "own")
    assert before == {path: path.read_bytes() for path in classifier.rglob("*") if path.is_file()}
    assert summary.answer in out and "held to its own full depth" in out
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "own").config.n_layers == chosen
    rows = [line.split("accuracy ")[1] for line in out.splitlines() if line.startswith("layer ")]
    metrics = [f"{value:.4f}" for value in summary.validation.metric]
    mark = " <- chosen within 2 points"
    place = summary.layers_needed.chosen[2].layer
    assert [row.removesuffix(mark) for row in rows] == metrics and rows[place].endswith(mark)
    assert ("The embedding alone is no model: layer 1 is taken, with 0." in out) is (place == 0)
    bare = Path(shutil.copytree(classifier, tmp_path / "bare"))
    (bare / "groups.json").unlink()
    said(capsys, "export", bare, *auto[2:], "--out", tmp_path / "again")  # the summary has the answer
    line = refused(capsys, "export", bare, *auto[2:], "--baseline", classifier, "--out", tmp_path / "none")
    assert f"{bare} has no groups.json: evaluate it again." in line
    for change in ({"checkpoint": "best_feasible"}, {"layers_needed": content["layers_needed"] | {"chosen": {}}}):
        (bare / "summary.json").write_text(json.dumps(content | change))
        line = refused(capsys, "export", bare, *auto[2:], "--out", tmp_path / "none")
        assert line.endswith(f"Type first: descend evaluate {bare}")


def test_a_certificate_says_what_layers_were_compared_with(classifier, tmp_path, capsys):
    said(capsys, "evaluate", classifier, "--noise", "1")
    content, depth = json.loads((classifier / "summary.json").read_text()), read_summary(classifier).depth
    copy = Path(shutil.copytree(classifier, tmp_path / "copy"))

    def asked(name, **needed):
        (copy / "summary.json").write_text(json.dumps(content | {"layers_needed": content["layers_needed"] | needed}))
        return ["export", copy, "--layers", "certified", "--out", tmp_path / name]

    out, _ = said(capsys, *asked("itself", within={"2": depth}))
    said_of = f"certify no smaller layer within 2 points of its own full depth: layer {depth} is that layer itself."
    assert said_of in out
    out, _ = said(capsys, *asked("smaller", within={"2": 1}))
    assert "Test data certify layer 1 within 2 points of its own full depth." in out
    embedding = asked("none", within={"2": 0}, top=0, compared_with="best")
    assert "no layer was compared with it" in refused(capsys, *embedding)


@pytest.mark.slow
def test_auto_with_a_baseline_is_the_choice_of_evaluate_and_compare(classifier, tmp_path, capsys):
    auto = ["export", classifier, "--layers", "auto"]
    said(capsys, "evaluate", classifier, "--noise", "1")
    content = json.loads((classifier / "summary.json").read_text())
    better, known = Path(shutil.copytree(classifier, tmp_path / "better")), content["validation"]
    (better / "summary.json").write_text(json.dumps(content | {"method": "erm"}))
    said(capsys, "evaluate", classifier, "--noise", "1", "--baseline", better)
    answer = read_summary(classifier).answer
    assert "held to the full depth of better" in answer
    for words in (
        [*auto, "--out", tmp_path / "evaluated"],
        [*auto, "--baseline", better, "--out", tmp_path / "held"],
        ["compare", classifier, better, "--out", tmp_path / "page"],
    ):
        assert answer in said(capsys, *words)[0]
    assert "They certify no layer." in said(capsys, *auto, "--baseline", better, "--out", tmp_path / "warned")[0]
    assert "certify no layer" in refused(capsys, *auto[:3], "certified", "--baseline", better, "--out", tmp_path / "no")
    assert known["samples"] == 12 and known["layer_metrics"].keys() == {"0.0", "1.0"}
    again = f"If it is a run on the same data, type: descend evaluate {better} --noise 1 --validation-noise 1"
    for validation, refusal in (
        (known | {"layer_metrics": {"1.0": [2.0] * 4}}, "no layer is within 2 points of the full depth of better on"),
        (known | {"layer_metrics": {"0.0": [2.0] * 4}}, again),
        (known | {"layer_metrics": {}}, again),
        (known | {"samples": 7}, "was not evaluated at γ = 1 on the 12 validation samples"),
        (known | {"fingerprint": "of others"}, again),
        (None, again),
    ):
        (better / "summary.json").write_text(json.dumps(content | {"validation": validation}))
        assert refusal in refused(capsys, *auto, "--baseline", better, "--out", tmp_path / "none")


@pytest.mark.parametrize(("changed", "words"), [("metric", "the metric rmse"), ("shift", "the noise uniform")])
def test_a_baseline_of_another_metric_or_noise_is_refused(classifier, tmp_path, capsys, changed, words):
    said(capsys, "evaluate", classifier, "--noise", "1")
    other = Path(shutil.copytree(classifier, tmp_path / "other"))
    content = json.loads((classifier / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(content | {changed: words.split()[-1]}))
    auto = ["export", classifier, "--layers", "auto", "--baseline", other, "--out", tmp_path / "none"]
    assert f"was evaluated on {words}" in refused(capsys, *auto)


def test_layers_are_counted_from_the_best_one_of_validation_data_where_asked(classifier, tmp_path, capsys):
    """By evaluate and by export alike; and an answer in estimates certifies no layer."""
    content_of = lambda: json.loads((classifier / "summary.json").read_text())  # noqa: E731
    said(capsys, "evaluate", classifier, "--noise", "1", "--compare-with", "best")
    found = content_of()
    metric = found["validation"]["metric"]
    best = max(range(len(metric)), key=metric.__getitem__)
    assert (found["layers_needed"]["compared_with"], found["layers_needed"]["top"]) == ("best", best)
    said(capsys, "evaluate", classifier, "--noise", "1", "--compare-with", "last")
    assert (content_of()["layers_needed"]["compared_with"], content_of()["layers_needed"]["top"]) == ("last", 3)
    auto = ["export", classifier, "--layers", "auto", "--out"]
    out, _ = said(capsys, *auto, tmp_path / "best", "--compare-with", "best")
    assert f"held to its own best layer, {best}." in out and content_of()["layers_needed"]["top"] == 3
    assert "held to its own full depth." in said(capsys, *auto, tmp_path / "last")[0]
    estimates = content_of() | {"layers_needed": found["layers_needed"] | {"bounded": False}}
    (classifier / "summary.json").write_text(json.dumps(estimates))
    line = refused(capsys, "export", classifier, "--layers", "certified", "--out", tmp_path / "none")
    assert (
        "no test certifies layers by Accuracy, which is not known to be a share of the samples" in line
        and "estimate" in line
    )
    words = ["--layers", "1", "--compare-with", "best", "--out", tmp_path / "none"]
    assert "go with --layers auto, certified or best" in refused(capsys, "export", classifier, *words)
    words = ["--data", "generated", "--compare-with", "best"]
    assert "there are none here" in refused(capsys, "evaluate", classifier, *words)
