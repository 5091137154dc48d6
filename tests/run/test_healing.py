"""A pretrained model that is cut and healed: its readout and last three blocks are trained, the rest is frozen."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from descend.errors import InputError
from descend.models import LayeredCausalLM, LayeredClassifier, LayeredImageClassifier, keep_first, train_last
from descend.results import CARD_FILE, read_config, read_summary
from tests.support.cases import slow_but
from tests.support.networks import causal, image_network, network
from tests.support.runs import SAVED, assert_same_end, said, stop_after, trained

SHORT = f"{SAVED} --per-device-train-batch-size 8 --learning-rate 0.01 --data generated --quiet"
TEXTS = "--max-length 40"
# Recipe → its settings, and names in the weights: of the blocks, and of the readout.
PARTS = {
    "text": (TEXTS, "bert.encoder.layer.", ("bert.pooler.", "classifier.")),
    "lm": (TEXTS, "model.layers.", ("model.norm.", "lm_head.")),
    "image": ("", "vit.encoder.layer.", ("vit.layernorm.", "classifier.")),
}


@pytest.fixture(scope="module")
def deep(tmp_path_factory, models) -> Path:
    """Pretrained models of five layers, by recipe; the language model's head is tied to its word embedding."""
    place = tmp_path_factory.mktemp("deep")
    tokenizer = AutoTokenizer.from_pretrained(models / "causal")
    sizes = {"vocab_size": len(tokenizer), "num_hidden_layers": 5, "max_position_embeddings": 64, "pad_token_id": 0}
    made = {
        "text": network("bert", labels=2, **sizes),
        "lm": causal("llama", tie_word_embeddings=True, **sizes),
        "image": image_network("vit", num_hidden_layers=5),
    }
    for name, model in made.items():
        model.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    return place


@pytest.mark.parametrize("recipe", slow_but(["text"], PARTS))
def test_the_readout_and_the_last_three_blocks_are_trained_and_all_below_stays_bit_equal(recipe, deep, tmp_path):
    given, blocks, readout = PARTS[recipe]
    run = trained(tmp_path / "run", recipe, f"{SHORT} {given} --keep-layers 4 --heal", "--model", deep / recipe)
    before, after = (load_file(each / "model.safetensors") for each in (deep / recipe, run / "model"))
    if recipe == "lm":  # the tied head
        before["lm_head.weight"] = before["model.embed_tokens.weight"]
        loaded = AutoModelForCausalLM.from_pretrained(run / "model")
        assert torch.equal(loaded.lm_head.weight, after["lm_head.weight"])
    learns = (*readout, *(f"{blocks}{number}." for number in (1, 2, 3)))
    assert after.keys() == {name for name in before if not name.startswith(f"{blocks}4.")}
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    # Attention does not change where all keys are shifted alike, so the gradient of a key's bias is rounding.
    expected = {name for name in after if name.startswith(learns)}
    assert moved | {name for name in expected if "key.bias" in name} == expected
    config = read_config(run)
    assert (config.method, config.training["exits"], config.depth) == ("erm", "shared", 4) and config.settings["heal"]
    card = (run / "model" / CARD_FILE).read_text()
    assert "cut to its first 4 layers and healed: the readout and the last 3 blocks were trained" in card
    assert "--keep-layers 4 --heal" in card


MODELS = {
    "classifier": lambda: LayeredClassifier(network("bert", num_hidden_layers=5)),
    "language model": lambda: LayeredCausalLM(causal(num_hidden_layers=5)),
    "images": lambda: LayeredImageClassifier(image_network("dinov2", num_hidden_layers=5)),
}


@pytest.mark.parametrize("blocks", [3, 9])
@pytest.mark.parametrize("kind", MODELS)
def test_no_gradient_is_computed_below_the_last_blocks(kind, blocks):
    model = MODELS[kind]().eval()
    inputs = model.probe_inputs()
    *_, before = model.predictions(inputs)
    train_last(model, blocks)
    frozen = max(5 - blocks, 0)
    assert [state.requires_grad for state in model.layer_outputs(inputs)] == [layer > frozen for layer in range(6)]
    *_, after = model.predictions(inputs)
    assert torch.equal(before, after)
    after.sum().backward()
    for number, block in enumerate(model.layer_modules):
        assert {each.grad is not None for each in block.parameters()} == {number >= frozen}
    assert not any(each.requires_grad for each in model.get_input_embeddings().parameters())
    assert all(each.grad is not None for each in model.last_of_head.parameters())


def test_a_cut_of_a_model_with_own_exits_begins_with_the_exit_of_its_last_layer():
    model = LayeredCausalLM(causal(num_hidden_layers=5, tie_word_embeddings=True))
    model.give_own_exits()
    with torch.no_grad():
        for parameter in model.own_exits[3].parameters():
            parameter += torch.rand_like(parameter)
    inputs = model.probe_inputs()
    expected = list(model.predictions(inputs))[3]
    keep_first(model, 3)
    train_last(model, 3)
    model.share_readout()
    *_, read = model.predictions(inputs)
    torch.testing.assert_close(read, expected)


def test_layers_that_share_one_block_are_refused():
    with pytest.raises(InputError, match="all 3 layers of AlbertForSequenceClassification share one block"):
        train_last(LayeredClassifier(network("albert")), 3)


@pytest.mark.slow
def test_a_run_that_is_stopped_and_resumed_ends_in_the_same_bits(deep, tmp_path, monkeypatch, capsys):
    settings = [*f"{SHORT} {TEXTS} --keep-layers 4 --heal --model {deep / 'text'}".split(), "--out"]
    whole, parts = tmp_path / "whole" / "run", tmp_path / "parts" / "run"  # records have the folder's name
    said(capsys, "train", "text", *settings, whole)
    stop_after(monkeypatch, 3)
    said(capsys, "train", "text", *settings, parts, status=130)
    said(capsys, "train", "text", *settings, parts, "--resume")
    assert_same_end(whole, parts, "checkpoint-4")


@pytest.mark.slow
def test_a_cut_is_held_to_the_whole_model_trained_or_as_it_is(deep, reviews, tmp_path, capsys):
    given = f"{SHORT} {TEXTS} --model {deep / 'text'} --data {reviews}"
    whole = trained(tmp_path / "whole", "text", f"{given} --method erm --exits shared")
    cut = trained(tmp_path / "cut", "text", f"{given} --keep-layers 2 --heal")
    said(capsys, "evaluate", whole, "--noise", "0")
    as_is = tmp_path / "as-is"
    said(capsys, "layers", deep / "text", "--data", reviews, "--max-length", "40", "--limit", "40", "--out", as_is)
    for baseline, limit in ((as_is, ["--limit", "40"]), (whole, [])):
        said(capsys, "evaluate", cut, "--noise", "0", "--baseline", baseline, *limit)
        needed, theirs = read_summary(cut).layers_needed, read_summary(baseline).layer_metrics[0]
        ours = read_summary(cut).layer_metrics[0][2]
        full = 5 if baseline is whole else read_summary(as_is).top  # of the model as it is the best on validation data
        assert (needed.baseline, needed.full_layer, needed.last.layer) == (f"../{baseline.name}", full, 2)
        assert needed.held_folder(cut).resolve() == baseline.resolve()
        assert needed.full == pytest.approx(theirs[full])
        assert needed.last.worse == pytest.approx(100 * (theirs[full] - ours))
    out, _ = said(capsys, "compare", whole, cut, "--out", tmp_path / "page")
    assert "held to the full depth of whole" in out
    assert "ERM, healed, 2 layers" in (tmp_path / "page" / "report.html").read_text()
