"""The trainers with families of models that their other tests do not use: against Transformers' and TRL's own."""

import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

from descend import DescentConfig, DescentTrainer, GaussianNoise, InputError, Objective, evaluate, layered
from descend.evaluation.layers import Batches
from descend.evaluation.probes import fit_probes
from descend.tasks.text import TokenClassification, generate_instructions, learn_tokenizer, tokenize_instructions
from descend.training.sft import DescentSFTConfig, DescentSFTTrainer
from tests.support.networks import IMAGES, QUIET, causal, image_network, network
from tests.support.tagging import HEADS, Tagger, texts

NEW = ["gpt2", "gpt_neox", "olmo3", "phi", "qwen3_moe"]
ATTENTION = {"gpt2": "c_attn", "gpt_neox": "query_key_value"}


@pytest.fixture(scope="module")
def tokenizer():
    rows = generate_instructions(30).rows
    made = learn_tokenizer(text for row in rows for text in (*row.values(), "### Instruction Input Response :"))
    made.eos_token = made.sep_token
    return made


@pytest.fixture(scope="module")
def answers(tokenizer):
    return tokenize_instructions(generate_instructions(24), tokenizer, 64)[0]


def without_dropout(model):
    """Transformers draws for all tokens, we for those that are targets."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return model


def sft(folder, kind, family, tokenizer, data, peft=None, **settings):
    config = SFTConfig if kind is SFTTrainer else DescentSFTConfig
    chosen = {"router_aux_loss_coef": 0.0} if family == "qwen3_moe" else {}
    chosen |= {"max_steps": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "bf16": False}
    return kind(
        without_dropout(causal(family, vocab_size=len(tokenizer))),
        config(output_dir=str(folder), **QUIET | chosen | {"gradient_checkpointing": False} | settings),
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=peft,
    )


@pytest.mark.parametrize("family", NEW)
def test_erm_is_trls_own_trainer(family, tmp_path, tokenizer, answers):
    plain = {"optim": "sgd", "learning_rate": 0.3}  # Adam makes a step of what rounding leaves of a gradient
    ours = sft(tmp_path, DescentSFTTrainer, family, tokenizer, answers, method="erm", **plain)
    theirs = sft(tmp_path, SFTTrainer, family, tokenizer, answers, **plain)
    before = [each.detach().clone() for each in theirs.model.parameters()]
    ours.train()
    theirs.train()
    moved = [(new - old).abs().max() for old, new in zip(before, theirs.model.parameters(), strict=True)]
    assert max(moved) > 1e-3
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", NEW)
def test_adapters_on_blocks_and_head_learn_under_constraints(family, checkpointing, tmp_path, tokenizer, answers):
    target = [ATTENTION.get(family, "v_proj"), "lm_head"]
    peft = LoraConfig(task_type="CAUSAL_LM", target_modules=target, r=2, fan_in_fan_out=False)
    active = {"alpha": "0.2", "dual_lr": 0.5, "dual_warmup_steps": 0, "stop_gradient": False}
    torch.manual_seed(0)
    one = sft(
        tmp_path, DescentSFTTrainer, family, tokenizer, answers, peft, gradient_checkpointing=checkpointing, **active
    )
    one.train()
    # B is 0 before training.
    moved = [name for name, value in one.model.named_parameters() if "lora_B" in name and value.any()]
    assert {part for part in target for name in moved if f"{part}.lora_B" in name} == set(target)
    assert all("lora" in name for name, value in one.model.named_parameters() if value.requires_grad)
    assert one.evaluate(answers.select(range(8)))["eval_loss"] > 0


def test_a_mixture_of_experts_is_refused_with_a_loss_that_balances_them(tmp_path, tokenizer, answers):
    with pytest.raises(InputError, match=r"balances the experts.*router_aux_loss_coef=0"):
        sft(tmp_path, DescentSFTTrainer, "qwen3_moe", tokenizer, answers, router_aux_loss_coef=0.001)


@pytest.mark.parametrize("family", NEW)
def test_a_language_model_is_not_compiled(family, caplog):
    own = causal(family)
    Objective(own).compile(backend="eager")
    assert f"torch_compile has no effect on {type(own).__name__}" in caplog.text


# --- classifiers

CLASSIFIERS = ["electra", "albert", "deberta-v2", "modernbert", "llama", "qwen3"]


def labelled(count=24):
    return [{"input_ids": each["input_ids"], "labels": place % 3} for place, each in enumerate(texts("answer", count))]


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_plain_training_of_a_classifier_is_transformers_own(family, tmp_path, padding):
    trained = []
    for kind, config in ((DescentTrainer, DescentConfig), (Trainer, TrainingArguments)):
        settings = QUIET | {"max_steps": 3, "optim": "sgd", "learning_rate": 0.3, "per_device_train_batch_size": 8}
        one = kind(
            without_dropout(network(family)),
            config(str(tmp_path), **settings | ({"method": "erm"} if kind is DescentTrainer else {})),
            train_dataset=labelled(),
            data_collator=DataCollatorWithPadding(padding),
        )
        before = [each.detach().clone() for each in one.model.parameters()]
        one.train()
        trained.append(list(one.model.parameters()))
    assert max((new - old).abs().max() for old, new in zip(before, trained[1], strict=True)) > 1e-3
    for one, other in zip(*trained, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_a_classifier_with_adapters_learns_under_constraints_and_is_probed(family, tmp_path, padding):
    target = {"albert": "query", "electra": "query", "deberta-v2": "query_proj", "modernbert": "Wqkv"}
    peft = LoraConfig(task_type=TaskType.SEQ_CLS, target_modules=[target.get(family, "q_proj")], r=2)
    one = DescentTrainer(
        get_peft_model(network(family), peft),
        DescentConfig(str(tmp_path), **QUIET | {"max_steps": 4, "learning_rate": 1e-2, "calibrate": True}),
        noise=0.5,
        train_dataset=labelled(),
        eval_dataset=labelled(12),
        data_collator=DataCollatorWithPadding(padding),
    )
    one.train()
    moved = [name for name, value in one.model.named_parameters() if "lora_B" in name and value.any()]
    assert len(moved) == (1 if family == "albert" else 3)
    assert one.evaluate()["eval_loss"] > 0
    model, task = one.objective.model, one.objective.task
    collate = one.data_collator
    probed = fit_probes(model, task, labelled(), labelled(12), GaussianNoise(0.5, 1.0), Batches(collate=collate))
    assert len(probed.probes) == 4


# --- classifiers of images


def pictures(count=24):
    """Noise, brighter in the channel of the class."""
    pixels = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return [
        {"pixel_values": each + (torch.arange(3) == place % 3)[:, None, None], "labels": place % 3}
        for place, each in enumerate(pixels)
    ]


@pytest.mark.parametrize("family", IMAGES)
def test_plain_training_on_images_is_transformers_own(family, tmp_path):
    """In two micro-batches a step."""
    trained = []
    for kind, config in ((DescentTrainer, DescentConfig), (Trainer, TrainingArguments)):
        settings = QUIET | {"max_steps": 3, "optim": "sgd", "learning_rate": 0.3, "per_device_train_batch_size": 4}
        settings |= {"gradient_accumulation_steps": 2} | ({"method": "erm"} if kind is DescentTrainer else {})
        one = kind(image_network(family), config(str(tmp_path), **settings), train_dataset=pictures())
        before = [each.detach().clone() for each in one.model.parameters()]
        one.train()
        trained.append(list(one.model.parameters()))
    assert max((new - old).abs().max() for old, new in zip(before, trained[1], strict=True)) > 1e-3
    for one, other in zip(*trained, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("family", ["vit", "dinov2"])
def test_images_are_learned_under_constraints_and_noise_judged_and_probed(family, adapters, tmp_path):
    model = image_network(family)
    if adapters:
        model = get_peft_model(model, LoraConfig(target_modules=["q_proj"], r=2, modules_to_save=["classifier"]))
    one = DescentTrainer(
        model,
        DescentConfig(
            str(tmp_path),
            **QUIET | {"max_steps": 30, "learning_rate": 1e-2, "calibrate": True, "eval_strategy": "epoch"},
        ),
        noise=0.5,
        train_dataset=pictures(),
        eval_dataset=pictures(),
    )
    start = one.evaluate()
    one.train()
    end = one.evaluate()
    assert end["eval_loss"] < start["eval_loss"] and end["eval_accuracy"] > 0.5 and "eval_feasible" in end
    assert one.temperature is not None and one.sigma > 0
    summary = evaluate(one, pictures(12), noise=(0, 1), name="made up")
    assert summary.metric == "accuracy" and summary.verdict
    batches = Batches(collate=one.data_collator)
    probed = fit_probes(
        one.objective.model, one.objective.task, pictures(), pictures(12), GaussianNoise(0.5, 1.0), batches
    )
    assert len(probed.probes) == 4


def test_images_that_do_not_fit_and_losses_that_would_be_ignored_are_refused(tmp_path, caplog):
    grey = [{"pixel_values": torch.zeros(1, 8, 8), "labels": 0}] * 2
    texts_ = [{"input_ids": [5, 6], "labels": 0}] * 2
    for data, message in (
        (grey, r"3 channels.*\(1, 8, 8\)"),
        (texts_, r"pixel_values.*input_ids"),
        ([{"pixel_values": torch.zeros(3, 8, 8), "labels": 3}] * 2, r"label 3.*0 … 2"),
    ):
        with pytest.raises(InputError, match=message):
            DescentTrainer(image_network(), DescentConfig(str(tmp_path), **QUIET), train_dataset=data)
    own = image_network()
    Objective(own).compile(backend="eager")
    assert "torch_compile has no effect on ViTForImageClassification" in caplog.text
    own.loss_function = lambda labels, logits, config, **others: logits.sum()
    with pytest.raises(InputError, match=r"ViT.*loss"):
        Objective(own)


# --- token classification and question answering


@pytest.fixture(scope="module")
def padding():
    made = learn_tokenizer(["one two three"])
    made.model_input_names = ["input_ids", "attention_mask"]
    return made


def trainer(folder, kind, head, family, padding, model=None, **settings):
    collator = DataCollatorForTokenClassification if head == "tokens" else DataCollatorWithPadding
    chosen = QUIET | {"max_steps": 3, "per_device_train_batch_size": 8, "learning_rate": 1e-2, **settings}
    config = TrainingArguments if kind is Trainer else DescentConfig
    return kind(
        model or without_dropout(network(family, labels=3 if head == "tokens" else 2, auto=HEADS[head])),
        config(str(folder), **chosen),
        train_dataset=texts(head),
        eval_dataset=texts(head),
        data_collator=collator(padding),
    )


@pytest.mark.parametrize("family", ["distilbert", "modernbert", "albert"])
@pytest.mark.parametrize("head", HEADS)
def test_plain_training_is_transformers_own(head, family, tmp_path, padding):
    ours = trainer(tmp_path, DescentTrainer, head, family, padding, method="erm")
    theirs = trainer(tmp_path, Trainer, head, family, padding)
    ours.train()
    theirs.train()
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert type(ours.model) is type(theirs.model)
    assert ours.predict(texts(head, 8)).predictions.shape[-1] == (3 if head == "tokens" else 2)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize(("head", "metric"), [("tokens", "token_accuracy"), ("answer", "exact_match")])
def test_they_learn_under_constraints_and_noise_and_are_judged(head, metric, adapters, tmp_path, padding):
    model = network("bert", labels=3 if head == "tokens" else 2, auto=HEADS[head])
    if adapters:
        kind = TaskType.TOKEN_CLS if head == "tokens" else TaskType.QUESTION_ANS
        model = get_peft_model(model, LoraConfig(task_type=kind, target_modules=["query"], r=2))
    one = trainer(tmp_path / "run", DescentTrainer, head, "bert", padding, model, max_steps=30)
    start = one.evaluate()
    one.train()
    end = one.evaluate()
    assert end["eval_loss"] < start["eval_loss"] and 0 <= end[f"eval_{metric}"] <= 1
    assert "eval_feasible" in end
    summary = evaluate(one, texts(head), noise=(0, 1), name="made up")
    assert summary.metric == metric and summary.verdict


def test_a_model_of_ones_own_classifies_tokens(tmp_path, padding):
    torch.manual_seed(0)
    own = Tagger()
    model = layered(own, blocks="blocks", readout="head", embeddings="words")
    args = DescentConfig(str(tmp_path), **QUIET | {"max_steps": 3, "learning_rate": 1e-2})
    one = DescentTrainer(
        model,
        args,
        task=TokenClassification(),
        noise=0.5,
        train_dataset=texts("tokens"),
        data_collator=DataCollatorForTokenClassification(padding),
    )
    one.train()
    batch = {"input_ids": torch.arange(8).reshape(2, 4) + 5, "labels": torch.tensor([[0, -100, 1, 2], [-100] * 4])}
    objective = one.objective.eval()
    objective.noise = None
    losses = objective([0.0, 0.0, 0.0, 1.0], **batch)
    assert losses.targets == 3
    expected = nn.functional.cross_entropy(own(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(losses.lagrangian / 3, expected)
