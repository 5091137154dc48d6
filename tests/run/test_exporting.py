"""`descend export`: the first K layers of a run, chosen or given, and what is refused."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from descend.cli import main
from descend.errors import InputError
from descend.models import UT, LayeredCausalLM, LayeredClassifier, ViTDenoiser
from descend.results import read_summary
from descend.results.findings import first_within
from descend.run import export_model
from tests.support import own
from tests.support.networks import causal, network
from tests.support.texts import review_folder

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "export.md").read_text(encoding="utf-8")
STEPS = ["--max-steps", "4", "--eval-strategy", "no", "--save-strategy", "no", "--no-load-best-model-at-end"]
TEXT = ["--depth", "3", "--hidden-size", "16", "--max-length", "30", "--use-cpu", *STEPS]
VIDEO = ["--depth", "3", "--window", "2", "--stride", "30", "--use-cpu", *STEPS]


def words(capsys, *given, status=0):
    capsys.readouterr()
    assert main([str(each) for each in given]) == status
    return capsys.readouterr()


def train(folder: Path, recipe: str, *flags: object) -> Path:
    assert main(["train", recipe, "--data", "generated", "--out", str(folder), *map(str, flags)]) == 0
    return folder


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    return train(tmp_path_factory.mktemp("llm") / "run", "llm-sft", *TEXT, "--noise", "0.5")


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return review_folder(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, reviews):
    return train(tmp_path_factory.mktemp("text") / "run", "text-distilbert", *TEXT, "--data", reviews)


def texts(model):
    ids = torch.arange(4, 20).reshape(2, 8) % model.config.vocab_size
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_a_language_model_is_a_plain_checkpoint(language, tmp_path, capsys):
    out, err = words(capsys, "export", language, "--layers", "2", "--out", tmp_path / "two")
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


def test_auto_chooses_by_the_metric_that_evaluate_measures_on_validation_data(classifier, reviews, tmp_path, capsys):
    before = {path: path.read_bytes() for path in classifier.rglob("*") if path.is_file()}
    out, _ = words(capsys, "export", classifier, "--layers", "auto", "--tolerance", "100", "--out", tmp_path / "out")
    assert before == {path: path.read_bytes() for path in classifier.rglob("*") if path.is_file()}
    assert "layer 1: accuracy" in out and "K = 1 of 3" in out and "<- chosen" in out
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config.n_layers == 1
    words(capsys, "evaluate", classifier, "--split", "validation", "--noise", "1")
    metrics = json.loads((classifier / "summary.json").read_text())["layer_metrics"]["1.0"]
    assert [line.split("accuracy ")[1][:6] for line in out.splitlines() if line.startswith("layer ")] == [
        f"{value:.4f}" for value in metrics
    ]


def test_evaluate_takes_an_exported_classifier(classifier, reviews, tmp_path, capsys):
    words(capsys, "export", classifier, "--layers", "2", "--out", tmp_path / "two")
    words(capsys, "evaluate", classifier, "--noise", "0")
    flags = ["--task", "classification", "--data", reviews, "--noise", "0"]
    words(capsys, "evaluate", tmp_path / "two", *flags)
    whole, cut = (json.loads((each / "summary.json").read_text()) for each in (classifier, tmp_path / "two"))
    assert cut["layer_metrics"]["0.0"] == whole["layer_metrics"]["0.0"][:3]
    assert cut["layer_losses"]["0.0"] == pytest.approx(whole["layer_losses"]["0.0"][:3], rel=1e-5)
    words(capsys, "evaluate", classifier / "model", *flags)
    alone = json.loads((classifier / "model" / "summary.json").read_text())
    for name in ("method", "seed", "strength", "train_noise", "temperature"):
        assert alone[name] == whole[name], name
    assert "did not ask" in cut["verdict"] and "did not ask" not in alone["verdict"]
    assert (cut["method"], cut["temperature"]) == (whole["method"], whole["temperature"])


def test_video_models_and_what_a_shared_layer_means(tmp_path, capsys):
    vit = train(tmp_path / "vit", "video-vit", *VIDEO, "--hidden-size", "16")
    words(capsys, "export", vit, "--layers", "1", "--out", tmp_path / "vit1")
    assert ViTDenoiser.from_pretrained(tmp_path / "vit1").depth == 1
    ut = train(tmp_path / "ut", "video-ut", *VIDEO)
    out, _ = words(capsys, "export", ut, "--layers", "2", "--out", tmp_path / "ut2")
    assert "share one set of weights" in out and "runs 2 times" in out
    whole, cut = UT.from_pretrained(ut / "model"), UT.from_pretrained(tmp_path / "ut2")
    patches = torch.rand(1, 2, 4, 256, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cut(patches).reconstruction, list(whole.predictions(patches))[2])
    assert "vllm" not in out


def test_adapters_are_merged_and_the_type_of_weights_is_kept(language, tmp_path, capsys):
    half = tmp_path / "half"
    shutil.copytree(language, half)
    AutoModelForCausalLM.from_pretrained(half / "model", dtype=torch.bfloat16).save_pretrained(half / "model")
    words(capsys, "export", half, "--layers", "1", "--out", tmp_path / "bf16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "bf16").dtype == torch.bfloat16

    flags = ["--model", language / "model", "--lora", "q_proj,lm_head", "--learning-rate", "0.1"]
    run = train(tmp_path / "lora", "llm-sft", *TEXT, *flags)
    assert "PEFT" not in (run / "model" / "README.md").read_text()
    out, _ = words(capsys, "export", run, "--layers", "2", "--out", tmp_path / "merged")
    assert "holds adapters" in out and "vllm serve WHOLE" in out
    from peft import AutoPeftModelForCausalLM

    whole = AutoPeftModelForCausalLM.from_pretrained(run / "model").eval()
    cut = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    expected = list(LayeredCausalLM(whole).predictions(texts(cut)))[2]
    torch.testing.assert_close(cut(**texts(cut)).logits, expected, rtol=1e-5, atol=1e-5)


def test_the_card_says_where_an_export_comes_from(classifier, tmp_path, capsys):
    words(capsys, "evaluate", classifier, "--noise", "0,1")
    words(capsys, "export", classifier, "--layers", "2", "--out", tmp_path / "two")
    card = ModelCard.load(tmp_path / "two" / "README.md")
    summary = json.loads((classifier / "summary.json").read_text())
    assert "first 2 of 3 layers" in card.text and "descend train text-distilbert" in card.text
    results = {each.metric_args["noise"]: each.metric_value for each in card.data.eval_results}
    assert results == {0.0: pytest.approx(summary["layer_metrics"]["0.0"][2], rel=1e-5), 1.0: results[1.0]}


def test_the_code_of_the_page_runs(language, classifier, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(language, tmp_path / "runs" / "llm")
    shutil.copytree(classifier, tmp_path / "runs" / "imdb")
    shutil.copytree(classifier / "model", tmp_path / "saved")
    commands = re.findall(r"^    (descend export .*)$", PAGE, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words(capsys, *shlex.split(command)[1:])
    scope: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, scope)
    settings = scope["inputs"] | {"do_sample": False}
    model, draft = scope["model"], scope["draft"]
    assert torch.equal(model.generate(**settings, assistant_model=draft), model.generate(**settings))


def refused(capsys, run, out, *flags):
    _, err = words(capsys, "export", run, "--out", out, *flags, status=2)
    assert err.count("\n") == 1
    assert not Path(out).exists() or Path(out).is_file() or any(Path(out).iterdir())
    return err


@pytest.mark.parametrize("lora", [False, True])
def test_a_model_of_a_script_is_exported_and_stays_whole(tmp_path, lora):
    model = network("distilbert").eval()
    if lora:
        model = get_peft_model(
            model, LoraConfig(task_type="SEQ_CLS", target_modules=["q_lin"], init_lora_weights=False)
        )
    inputs = {"input_ids": torch.arange(5, 11)[None]}
    with torch.no_grad():
        exits = list(LayeredClassifier(model.eval()).predictions(inputs))
        export_model(model, 2, tmp_path / "two")
        cut = AutoModelForSequenceClassification.from_pretrained(tmp_path / "two").eval()
        torch.testing.assert_close(cut(**inputs).logits, exits[2], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(**inputs).logits, exits[3])
    assert cut.config.n_layers == 2 and cut.config.descend == {"exported_layers": 2, "of_layers": 3}
    assert "first 2 of 3 layers of a " in (tmp_path / "two" / "README.md").read_text()


@pytest.mark.parametrize(
    ("model", "layers", "message"),
    [
        (network("distilbert"), 4, "1 to 3, the layers of the model; got 4"),
        (network("distilbert"), 0, "got 0"),
        (own.layers(), 1, "one of your own"),
    ],
)
def test_what_export_model_refuses(tmp_path, model, layers, message):
    with pytest.raises(InputError, match=message):
        export_model(model, layers, tmp_path / "out")
    unsampled = causal()
    unsampled.generation_config.temperature, unsampled.generation_config.do_sample = 0.9, False
    with pytest.raises(InputError, match=r"its generation_config: .*do_sample"):
        export_model(unsampled, 1, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="new or an empty folder"):
        export_model(network("distilbert"), 1, tmp_path)
    assert not (tmp_path / "out").exists()


def test_wrong_input_is_one_line(language, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("descend.run.evaluating.of_run", lambda *_: pytest.fail("loaded before the input was checked"))
    monkeypatch.setattr("descend.run.exporting.of_run", lambda *_: pytest.fail("loaded before the input was checked"))
    out = tmp_path / "out"
    for layers in ("0", "4", "99"):
        assert f"1 to 3, the layers of {language}, or auto; got {layers}" in refused(
            capsys, language, out, "--layers", layers
        )
    for layers in ("two", "-1", "1.5"):
        assert layers in refused(capsys, language, out, f"--layers={layers}")
    assert "--layers auto" in refused(capsys, language, out, "--layers", "2", "--tolerance", "1")
    for tolerance in ("-1", "101", "nan"):
        assert tolerance in refused(capsys, language, out, "--layers", "auto", "--tolerance", tolerance)
    assert "config.json" in refused(capsys, tmp_path, out, "--layers", "1")
    assert f"give the run: {language}" in refused(capsys, language / "model", out, "--layers", "1")
    assert "new or an empty folder" in refused(capsys, language, language / "model", "--layers", "1")
    (tmp_path / "file").write_text("")
    assert "new or an empty folder" in refused(capsys, language, tmp_path / "file", "--layers", "1")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    config = json.loads((language / "config.json").read_text())
    (unfinished / "config.json").write_text(json.dumps(config | {"seconds": None}))
    assert "--resume" in refused(capsys, unfinished, out, "--layers", "1")


def test_a_model_that_is_not_there_is_refused(language, tmp_path, capsys):
    err = refused(capsys, language, tmp_path / "out", "--layers", "1", "--model", "nothing")
    assert "'nothing'" in err and "its models: model" in err


def test_a_family_that_can_not_be_cut_is_refused_and_nothing_is_written(classifier, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("descend.run.exporting.keep_first", lambda model, layers: None)
    err = refused(capsys, classifier, tmp_path / "out", "--layers", "1")
    assert "DistilBertForSequenceClassification" in err and "exit 1" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "full", "higher", "tolerance", "layer"),
    [
        ([0.5, 0.80, 0.90, 0.91], 0.91, True, 1, 2),
        ([0.5, 0.80, 0.8999, 0.91], 0.91, True, 1, 3),
        ([0.95, 0.92, 0.10, 0.91], 0.91, True, 1, 3),  # all deeper layers too
        ([0.5, 0.80, 0.90, 0.91], 0.93, True, 2, 3),  # of a baseline
        ([0.5, 0.80, 0.90, 0.91], 0.93, True, 1, None),
        ([12, 10.1, 10.0, 10.0], 10.0, False, 1, 1),
        ([9, 10.2, 10.0, 9.99], 9.99, False, 0, 3),
        ([-0.9, -0.985, -1.0], -1.0, False, 2, 1),  # of the absolute value
        ([9, 10.2, float("nan"), float("nan")], float("nan"), False, 1, None),
    ],
)
def test_the_smallest_layer_within_the_tolerance(values, full, higher, tolerance, layer):
    assert first_within(values, full, tolerance, higher_is_better=higher) == layer


def test_auto_is_the_choice_of_the_evaluation_and_says_what_test_data_certify(classifier, tmp_path, capsys):
    auto = ["export", classifier, "--layers", "auto", "--tolerance", "2"]
    words(capsys, "evaluate", classifier, "--noise", "1")
    summary = read_summary(classifier)
    assert summary.validation and summary.validation.samples == 12
    chosen = summary.layers_needed.choice(2)
    out, _ = words(capsys, *auto, "--out", tmp_path / "own")
    assert f"K = {max(chosen.layer, 1)} of 3: " in out and "within 2 points of its own full depth" in out
    assert "On test data: open within 2 points" in out  # so few texts certify nothing
    out, _ = words(capsys, *auto, "--baseline", classifier, "--out", tmp_path / "held")
    assert f"within 2 points of the full depth of {classifier}" in out
    bare = Path(shutil.copytree(classifier, tmp_path / "bare"))
    (bare / "groups.json").unlink()
    out, _ = words(capsys, "export", bare, *auto[2:], "--out", tmp_path / "again")
    assert f"For a certificate of K on test data: descend evaluate {bare} --model model." in out
    content = json.loads((classifier / "summary.json").read_text())
    better = Path(shutil.copytree(classifier, tmp_path / "better"))
    known = content["validation"]
    assert known["layer_metrics"] == {"1.0": known["metric"]}
    again = f"noise. Type: descend evaluate {better} --noise 1"
    for validation, refusal in (
        (known | {"layer_metrics": {"1.0": [2.0] * 4}}, "no layer is within 2 points of the full depth of"),
        (known | {"layer_metrics": {"0.0": [2.0] * 4}}, f"on validation data at γ = 1, this run's training {again}"),
        (known | {"layer_metrics": {}}, again),
        (known | {"samples": 7}, "was not evaluated on the 12 validation samples"),
        (known | {"fingerprint": "of others"}, f"If it is a run on the same data, type: descend evaluate {better}"),
        (None, "was not evaluated on the 12 validation samples"),
    ):
        (better / "summary.json").write_text(json.dumps(content | {"validation": validation}))
        assert refusal in refused(
            capsys, classifier, tmp_path / "none", "--layers", "auto", "--tolerance", "2", "--baseline", better
        )
    assert "--layers auto" in refused(capsys, classifier, tmp_path / "none", "--layers", "2", "--baseline", better)
