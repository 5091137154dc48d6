"""The trainers with families of models: plain training is Transformers' or TRL's own, and constraints are learned."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    default_data_collator,
)
from trl import SFTConfig, SFTTrainer

from descend import DescentConfig, DescentTrainer, GaussianNoise, evaluate, layered
from descend.evaluation.layers import Batches
from descend.evaluation.probes import fit_probes
from descend.tasks.text import TokenClassification, generate_instructions, learn_tokenizer, tokenize_instructions
from descend.training.sft import DescentSFTConfig, DescentSFTTrainer
from tests.support.networks import IMAGES, QUIET, causal, image_network, network
from tests.support.tagging import HEADS, Tagger, texts

FAMILIES = {
    "text": ["distilbert", "electra", "albert", "deberta-v2", "modernbert", "llama", "qwen3"],
    "tokens": ["distilbert", "modernbert", "albert"],
    "answer": ["distilbert", "modernbert", "albert"],
    "image": list(IMAGES),
    "language": ["llama", "gpt2", "gpt_neox", "olmo3", "phi", "qwen3_moe"],
}
CASES = [(kind, family) for kind, families in FAMILIES.items() for family in families]
METRICS = {"text": "accuracy", "tokens": "token_accuracy", "answer": "exact_match", "image": "accuracy"}
# The modules that adapters are put on, and a language model's head.
TARGETS = {"albert": "query", "bert": "query", "electra": "query", "deberta-v2": "query_proj", "modernbert": "Wqkv"}
TARGETS |= {"distilbert": "q_lin", "gpt2": "c_attn", "gpt_neox": "query_key_value"}
ACTIVE = {"alpha": "0.2", "dual_lr": 0.5, "dual_warmup_steps": 0, "stop_gradient": False}


@pytest.fixture(scope="module")
def tokenizer():
    rows = generate_instructions(30).rows
    made = learn_tokenizer(text for row in rows for text in (*row.values(), "### Instruction Input Response :"))
    made.eos_token = made.sep_token
    made.model_input_names = ["input_ids", "attention_mask"]
    return made


def pictures(count=24):
    """Noise, brighter in the channel of the class."""
    pixels = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return [
        {"pixel_values": each + (torch.arange(3) == place % 3)[:, None, None], "labels": place % 3}
        for place, each in enumerate(pixels)
    ]


def rows(kind, tokenizer):
    if kind == "text":
        return [{"input_ids": each["input_ids"], "labels": n % 3} for n, each in enumerate(texts("answer"))]
    if kind == "language":
        return tokenize_instructions(generate_instructions(24), tokenizer, 64)[0]
    return pictures() if kind == "image" else texts(kind)


def base(kind, family, tokenizer):
    """A model without dropout, which Transformers draws for all tokens, and we for those that are targets."""
    heads = {"labels": 3 if kind == "tokens" else 2, "auto": HEADS[kind]} if kind in HEADS else {}
    if kind == "language":
        model = causal(family, vocab_size=len(tokenizer))
    else:
        model = image_network(family) if kind == "image" else network(family, **heads)
    for module in model.modules():
        module.p = 0.0 if isinstance(module, nn.Dropout) else getattr(module, "p", None)
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return model


def made(folder, kind, family, tokenizer, *, plain=False, adapters=None, noise=None, **settings):
    """A trainer of ours, or with ``plain`` the one of Transformers or TRL that it stands for."""
    model, data = base(kind, family, tokenizer), rows(kind, tokenizer)
    if kind == "language":
        kinds = (SFTTrainer, SFTConfig) if plain else (DescentSFTTrainer, DescentSFTConfig)
        settings |= {"bf16": False} | ({"router_aux_loss_coef": 0.0} if family == "qwen3_moe" else {})
        given = {"processing_class": tokenizer, "peft_config": adapters}
    else:
        kinds = (Trainer, TrainingArguments) if plain else (DescentTrainer, DescentConfig)
        collators = {"tokens": DataCollatorForTokenClassification(tokenizer), "image": default_data_collator}
        given = {"data_collator": collators.get(kind, DataCollatorWithPadding(tokenizer))}
        model = get_peft_model(model, adapters) if adapters else model
    args = kinds[1](str(folder), **QUIET | {"max_steps": 3, "gradient_checkpointing": False} | settings)
    given |= {"train_dataset": data, "eval_dataset": data} | ({} if plain else {"noise": noise})
    return kinds[0](model, args, **given)


@pytest.mark.parametrize(("kind", "family"), CASES)
def test_plain_training_is_the_librarys_own(kind, family, tmp_path, tokenizer):
    """By SGD: Adam makes a step of what rounding leaves of a gradient."""
    # Of some other families Transformers adds up the means of micro-batches.
    parts = 2 if kind in ("image", "language") else 1
    settings = {"optim": "sgd", "learning_rate": 0.3, "per_device_train_batch_size": 8 // parts}
    settings |= {"gradient_accumulation_steps": parts}
    ours = made(tmp_path, kind, family, tokenizer, method="erm", **settings)
    theirs = made(tmp_path, kind, family, tokenizer, plain=True, **settings)
    before = [each.detach().clone() for each in theirs.model.parameters()]
    ours.train()
    theirs.train()
    assert max((new - old).abs().max() for old, new in zip(before, theirs.model.parameters(), strict=True)) > 1e-3
    assert type(ours.model) is type(theirs.model)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    if kind in HEADS:
        assert ours.predict(texts(kind, 8)).predictions.shape[-1] == (3 if kind == "tokens" else 2)


@pytest.mark.parametrize(("kind", "family"), [case for case in CASES if case[0] in ("text", "language")])
def test_adapters_learn_under_constraints_and_noise_and_are_what_is_saved(kind, family, tmp_path, tokenizer):
    target = [TARGETS.get(family, "q_proj" if kind == "text" else "v_proj")]
    target += ["lm_head"] * (kind == "language")
    task = "CAUSAL_LM" if kind == "language" else "SEQ_CLS"
    adapters = LoraConfig(task_type=task, target_modules=target, r=2, fan_in_fan_out=False)
    active = ACTIVE | {"learning_rate": 1e-2, "gradient_checkpointing": family != "albert"}  # Transformers' has none
    one = made(tmp_path, kind, family, tokenizer, adapters=adapters, noise=0.5, **active)
    one.train()
    # B is 0 before training.
    moved = [name for name, value in one.model.named_parameters() if "lora_B" in name and value.any()]
    assert {part for part in target for name in moved if f"{part}.lora_B" in name} == set(target)
    assert len(moved) == (1 if family == "albert" else 3) + (kind == "language")
    learns = [name for name, value in one.model.named_parameters() if value.requires_grad]
    assert all("lora" in name or "modules_to_save" in name for name in learns)
    assert one.evaluate()["eval_loss"] > 0
    one.save_model(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    batch = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "attention_mask": torch.ones(1, 4).long()}
    loaded = PeftModel.from_pretrained(base(kind, family, tokenizer), tmp_path / "saved").eval()
    torch.testing.assert_close(loaded(**batch).logits, one.model.eval()(**batch).logits)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize(
    ("kind", "family"), [("image", "vit"), ("image", "dinov2"), ("tokens", "bert"), ("answer", "bert")]
)
def test_they_learn_under_constraints_and_noise_and_are_judged_and_probed(kind, family, adapters, tmp_path, tokenizer):
    tasks = {"tokens": "TOKEN_CLS", "answer": "QUESTION_ANS", "image": None}
    head = {"modules_to_save": ["classifier"]} if kind == "image" else {}
    peft = LoraConfig(task_type=tasks[kind], target_modules=[TARGETS.get(family, "q_proj")], r=2, **head)
    settings = {"max_steps": 30, "learning_rate": 1e-2, "calibrate": True, "eval_strategy": "epoch"}
    one = made(tmp_path / "run", kind, family, tokenizer, adapters=peft if adapters else None, noise=0.5, **settings)
    start = one.evaluate()
    one.train()
    end = one.evaluate()
    assert end["eval_loss"] < start["eval_loss"] and "eval_feasible" in end and one.sigma > 0
    assert (0.5 if kind == "image" else 0) <= end[f"eval_{METRICS[kind]}"] <= 1
    data = rows(kind, tokenizer)
    summary = evaluate(one, data, noise=(0, 1), name="made up")
    assert summary.metric == METRICS[kind] and summary.verdict
    if kind == "image":
        objective, batches = one.objective, Batches(collate=one.data_collator)
        assert (
            len(fit_probes(objective.model, objective.task, data, data, GaussianNoise(0.5, 1.0), batches).probes) == 4
        )


def test_a_model_of_ones_own_classifies_tokens(tmp_path, tokenizer):
    torch.manual_seed(0)
    own = Tagger()
    model = layered(own, blocks="blocks", readout="head", embeddings="words")
    args = DescentConfig(str(tmp_path), **QUIET | {"max_steps": 3, "learning_rate": 1e-2})
    given = {"train_dataset": texts("tokens"), "data_collator": DataCollatorForTokenClassification(tokenizer)}
    one = DescentTrainer(model, args, task=TokenClassification(), noise=0.5, **given)
    one.train()
    batch = {"input_ids": torch.arange(8).reshape(2, 4) + 5, "labels": torch.tensor([[0, -100, 1, 2], [-100] * 4])}
    objective = one.objective.eval()
    objective.noise = None
    losses = objective([0.0, 0.0, 0.0, 1.0], **batch)
    assert losses.targets == 3
    expected = nn.functional.cross_entropy(own(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(losses.lagrangian / 3, expected)
