"""What cells need, estimated before anything runs: against closed forms, and against the models themselves."""

import json

import pytest
import torch
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
    ViTConfig,
    ViTModel,
)

from descend import DUST, UT, DUSTConfig, UTConfig
from descend.cli.settings import read_recipe
from descend.models import TextUTConfig, TextUTForSequenceClassification
from descend.recipes import RECIPES
from descend.run import stored
from descend.settings import options as flags
from descend.training.preset import paper
from reproduction import costs, plan
from reproduction.grid import cells, named, names
from reproduction.plan import AMOUNTS, BATCHES, PRETRAINED, flops, memory, needs, processes, size, steps

PAPER = cells(names(["all"]), "paper")
GIB = 2**30


def cell_of(recipe, arm="erm", scale=PAPER, **wanted):
    found = (cell for cell in scale if (cell.recipe, cell.arm, cell.variant) == (recipe, arm, ""))
    return next(cell for cell in found if all(getattr(cell, name) == value for name, value in wanted.items()))


def changed(cell, **settings):
    fields = {**dict(cell), "settings": {**cell.settings, **settings}}
    return named(**{key: value for key, value in fields.items() if key != "name"})


def count(model):
    return sum(weights.numel() for weights in model.parameters())


def text_ut(cell):
    copies = {"num_hidden_layers": cell.depth, "tied": "preset" not in cell.settings}
    return TextUTForSequenceClassification(TextUTConfig(hidden_size=768, **copies))


@pytest.mark.parametrize("arm", ["erm", "paper"])
@pytest.mark.parametrize(
    ("recipe", "build"),
    [
        ("video-ut", lambda cell: UT(UTConfig(depth=cell.depth, tied="preset" not in cell.settings))),
        ("video-dust", lambda cell: DUST(DUSTConfig(depth=cell.depth, tied="preset" not in cell.settings))),
        ("text-ut", text_ut),
    ],
)
def test_the_size_of_an_unrolled_model_is_that_of_the_model(recipe, build, arm):
    """Preset paper has weights for each layer; of text-ut the classifier's few weights are left out."""
    cell = cell_of(recipe, arm, depth=5)
    assert size(cell).parameters == pytest.approx(count(build(cell)), rel=1e-3)


def test_the_sizes_of_pretrained_models_are_those_of_their_architectures():
    llama = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )
    roberta = RobertaConfig(
        vocab_size=50265,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=514,
        type_vocab_size=1,
    )
    with torch.device("meta"):
        built = {
            "google/vit-base-patch16-224": (ViTModel(ViTConfig(), add_pooling_layer=False), "layers"),
            "distilbert-base-uncased": (
                DistilBertForSequenceClassification(DistilBertConfig()),
                "distilbert.transformer.layer",
            ),
            "FacebookAI/roberta-large": (RobertaForSequenceClassification(roberta), "roberta.encoder.layer"),
            "meta-llama/Llama-3.1-8B": (LlamaForCausalLM(llama), "model.layers"),
        }
    assert built.keys() == {name for name in PRETRAINED if not name.startswith("{out}")}
    for name, (model, blocks) in built.items():
        known = PRETRAINED[name]
        assert known.parameters == pytest.approx(count(model), rel=0.02), name
        assert known.layer == pytest.approx(count(model.get_submodule(blocks)[0]), rel=0.01), name
        assert known.width == model.config.hidden_size
    assert PRETRAINED["meta-llama/Llama-3.1-8B"].head == pytest.approx(128256 * 4096, rel=1e-3)


def test_llama_in_float32_needs_four_cards_of_80_gb():
    cell = cell_of("llm-sft")
    state, activations, logits = 16 * 8.03e9, 4 * 17 * 4096 * 32 * 512 * 4, 3 * 2**28
    assert memory(cell) == pytest.approx((state + activations + logits) / GIB)
    gathered = 8 * (8.03e9 - 31 * 218.1e6)  # embedding, head and one block: weights and gradients
    assert memory(cell, 4) == pytest.approx(((state + activations) / 4 + gathered + logits) / GIB)
    assert state > 128e9 and memory(cell, 2) * GIB > 0.9 * 80e9 > memory(cell, 4) * GIB
    assert [processes(cell, card) for card in (192, 141, 80, 48)] == [1, 2, 4, None]


def test_all_other_cells_fit_one_card_of_80_gb():
    assert {cell.recipe for cell in PAPER if processes(cell) != 1} == {"llm-sft"}


def test_processes_divide_the_batch():
    cell = changed(cell_of("llm-sft"), per_device_train_batch_size=6)
    assert memory(cell, 2) > 0.9 * 80e9 / GIB > memory(cell, 3) and processes(cell) == 3
    assert processes(changed(cell, per_device_train_batch_size=5)) == 5


def test_flops_of_a_video_cell():
    cell = cell_of("video-ut", depth=5, data="ucsd")
    trained, tested, *_ = AMOUNTS["paper"]["ucsd"]
    count = -(-trained // 16) * 10  # ten epochs in batches of 16
    assert steps(cell, AMOUNTS["paper"]["ucsd"]) == count
    met, tokens = 5 * (256 * 256 + 32 * 256), 5 * 100
    expected = tokens * met * (6 * 16 * count + 2 * tested * len(cell.judge["noise"]))
    assert flops(cell, AMOUNTS["paper"]["ucsd"]) == pytest.approx(expected)


def test_flops_count_the_exits_that_a_method_reads():
    amount = AMOUNTS["paper"]["alpaca"]._replace(test=0)
    plain, constrained = (flops(cell_of("llm-sft", arm), amount) for arm in ("erm", "constrained"))
    blocks, head = 32 * 218.1e6, 525.3e6
    assert constrained / plain == pytest.approx((blocks + 33 * head) / (blocks + head))
    sampled = flops(changed(cell_of("llm-sft", "constrained"), exit_share=0.25), amount)
    assert sampled / plain == pytest.approx((blocks + (1 + 32 / 4) * head) / (blocks + head))


def test_a_number_of_steps_goes_before_epochs():
    cell = changed(cell_of("text-ut"), max_steps=7)
    assert steps(cell, AMOUNTS["paper"]["imdb"]) == 7
    judged = flops(changed(cell, max_steps=14), AMOUNTS["paper"]["imdb"]) - flops(cell, AMOUNTS["paper"]["imdb"])
    assert judged == pytest.approx(6 * cell.depth * 768 * (768 + 64) * 32 * 7 * 250), "and the judging cancels"


def test_usual_batches_are_those_of_the_recipes():
    assert {recipe: RECIPES[recipe].training.per_device_train_batch_size for recipe in BATCHES} == BATCHES


def test_needs_add_up_and_scale_with_the_speed_of_the_small_cells(monkeypatch):
    """Where a small cell takes a second, a recipe's speed is its mean FLOPs."""
    every = {data: [1.0, 0.0] for data in AMOUNTS["small"]}
    monkeypatch.setattr(costs, "references", lambda: {"small": {"text-ut": every}})
    small = [cell for cell in cells(names(["all"]), "small") if cell.recipe == "text-ut"]
    speed = sum(flops(cell, AMOUNTS["small"][cell.data]) for cell in small) / len(small)
    assert plan.core_speed("text-ut") == pytest.approx(speed)
    some = [cell for cell in PAPER if cell.recipe in ("text-ut", "video-ut")]
    found = {need.recipe: need for need in needs(some, "paper")}
    assert sum(need.cells for need in found.values()) == len(some)
    need = found["text-ut"]
    total = sum(flops(cell, AMOUNTS["paper"][cell.data]) for cell in some if cell.recipe == "text-ut")
    assert need.flops == pytest.approx(total) and need.core_hours == pytest.approx(total / speed / 3600)
    assert need.hours(20) == pytest.approx(total / 20e12 / 3600)
    assert found["video-ut"].core_hours is None, "no small cell of it was timed"
    assert [need.hours(20) for need in needs(cells(["table-1"], "smoke"), "smoke")] == [None] * 3


@pytest.mark.parametrize("scale", AMOUNTS)
def test_every_data_set_of_a_scale_has_its_amount(scale):
    assert {cell.data for cell in cells(names(["all"]), scale)} == AMOUNTS[scale].keys()


def test_scale_paper_has_five_runs_of_texts_and_three_of_others():
    for cell in PAPER:
        assert cell.seed in (range(5) if cell.task == "text" else range(3))
    text = [cell for cell in PAPER if (cell.recipe, cell.arm, cell.variant) == ("text-roberta", "paper", "")]
    assert {cell.seed for cell in text if cell.gamma == 0.4} == set(range(5))


def test_at_scale_paper_the_papers_form_has_the_papers_settings(monkeypatch):
    """All but the training noise, which the tables vary, and what γ is in the strong regime, which is ours."""
    monkeypatch.setattr("descend.cli.settings.check_data", lambda *args, **options: None)
    seen = set()
    for cell in PAPER:
        kind = json.dumps([cell.recipe, cell.data, cell.regime])
        if cell.arm != "paper" or cell.variant or cell.seed or kind in seen:
            continue
        seen.add(kind)
        _, recipe, args, _ = read_recipe([cell.recipe, *flags(cell.settings), "--out", "none"])
        preset = paper(cell.recipe, "constrained", cell.settings.get("dataset", "imdb"))
        values = {**{name: getattr(recipe, name) for name in preset.settings}, **stored(args)}
        varied = {"noise"} | ({"noise_is"} if cell.regime == "strong" else set())
        differing = set(preset.overridden(values))
        assert differing <= varied, cell.name
        missing = {name for name in preset.training if getattr(args, name) != preset.training[name]}
        assert not missing, cell.name
    assert len(seen) == 3 * 3 * 2 + 3 * 2 + 1  # models, data sets and regimes of videos, of texts, and Llama
