"""The trainers with families of models: plain training is Transformers' or TRL's own, and constraints are learned.

And nothing of TRL's is lost: packing, chat templates, metrics.
"""

import math
import socket
import sys
from collections import Counter

import pytest
import torch
from datasets import Dataset
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

from descend import DescentConfig, DescentTrainer, InputError, evaluate
from descend.tasks.text import generate_instructions, learn_tokenizer, tokenize_instructions
from descend.training.sft import DescentSFTConfig, DescentSFTTrainer
from tests.support.cases import slow, slow_but
from tests.support.networks import IMAGES, QUIET, causal, image_network, moved, network
from tests.support.ranks import fitted
from tests.support.tagging import HEADS, texts

FAMILIES = {
    "text": ["distilbert", "electra", "albert", "deberta-v2", "modernbert", "llama", "qwen3"],
    "tokens": ["distilbert", "modernbert", "albert"],
    "answer": ["distilbert", "modernbert", "albert"],
    "image": list(IMAGES),
    "language": ["llama", "gpt2", "gpt_neox", "olmo3", "phi", "qwen3_moe"],
}
CASES = [(kind, family) for kind, families in FAMILIES.items() for family in families]
TASKS = {"text": "SEQ_CLS", "tokens": "TOKEN_CLS", "answer": "QUESTION_ANS", "language": "CAUSAL_LM", "image": None}
"""PEFT's names of the heads."""
METRICS = {"text": "accuracy", "tokens": "token_accuracy", "answer": "exact_match", "image": "accuracy"}
# The modules that adapters are put on, and a language model's head.
TARGETS = {
    **{"albert": "query", "bert": "query", "electra": "query", "deberta-v2": "query_proj", "modernbert": "Wqkv"},
    **{"distilbert": "q_lin", "gpt2": "c_attn", "gpt_neox": "query_key_value"},
}
ACTIVE = {"alpha": "0.2", "dual_lr": 0.5, "dual_warmup_steps": 0, "stop_gradient": False}


@pytest.fixture(scope="module")
def tokenizer():
    rows = generate_instructions(50).rows
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


def made(folder, kind, family, tokenizer, *, plain=False, adapters=None, noise=None, model=None, data=None, **settings):
    """A trainer of ours, or with ``plain`` the one of Transformers or TRL that it stands for."""
    model, data = model or base(kind, family, tokenizer), data or rows(kind, tokenizer)
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


def test_what_max_length_cuts_is_said_or_refused_before_training(tmp_path, tokenizer, caplog):
    given = [{"prompt": "say " * words, "completion": "red " * answer} for words, answer in ((2, 1), (2, 60), (60, 1))]
    settings = {"data": Dataset.from_list(given), "completion_only_loss": True}
    made(tmp_path, "language", "llama", tokenizer, max_length=20, **settings)
    said = "train data: 2 of 3 texts reach max_length=20 and are cut there; 1 of them lose their whole answer"
    assert said in caplog.text
    with pytest.raises(InputError, match="max_length=2 cuts off the answer of all 3 rows of the train data set"):
        made(tmp_path, "language", "llama", tokenizer, max_length=2, **settings)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("text", "albert"),
        ("tokens", "distilbert"),
        ("answer", "modernbert"),
        ("language", "llama"),
        ("image", "dinov2"),
    ],
)
def test_a_model_set_to_return_tuples_trains_as_one_that_returns_its_outputs_by_name(kind, family, tmp_path, tokenizer):
    losses = []
    for by_name in (True, False):
        model = base(kind, family, tokenizer)
        model.config.return_dict = by_name
        ours = fitted(made(tmp_path / str(by_name), kind, family, tokenizer, model=model, max_steps=1))
        losses.append(ours.evaluate()["eval_loss"])
        assert model.config.return_dict is by_name
    assert losses[0] == losses[1]


FAST = {
    ("text", "distilbert"),
    ("tokens", "distilbert"),
    ("answer", "distilbert"),
    ("language", "llama"),
    ("image", "vit"),
}


@pytest.mark.parametrize(("kind", "family"), slow_but(FAST, CASES))
def test_plain_training_is_the_librarys_own(kind, family, tmp_path, tokenizer):
    """By SGD: Adam makes a step of what rounding leaves of a gradient."""
    # Of some other families Transformers adds up the means of micro-batches.
    parts = 2 if kind in ("image", "language") else 1
    settings = {
        **{"optim": "sgd", "learning_rate": 0.3},
        **{"per_device_train_batch_size": 8 // parts, "gradient_accumulation_steps": parts},
    }
    ours = fitted(made(tmp_path, kind, family, tokenizer, method="erm", **settings))
    theirs = made(tmp_path, kind, family, tokenizer, plain=True, **settings)
    before = [each.detach().clone() for each in theirs.model.parameters()]
    theirs.train()
    assert max((new - old).abs().max() for old, new in zip(before, theirs.model.parameters(), strict=True)) > 1e-3
    assert type(ours.model) is type(theirs.model)
    torch.testing.assert_close(*(list(each.model.parameters()) for each in (ours, theirs)), rtol=1e-4, atol=1e-5)
    if kind in HEADS:
        assert ours.predict(texts(kind, 8)).predictions.shape[-1] == (3 if kind == "tokens" else 2)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        *slow_but(FAST, [case for case in CASES if case[0] in ("text", "language")]),
        *(("image", "vit"), slow(("image", "dinov2")), ("tokens", "bert"), ("answer", "bert")),
    ],
)
def test_adapters_learn_under_constraints_and_noise_and_are_what_is_saved(kind, family, tmp_path, tokenizer):
    attention = TARGETS.get(family, "v_proj" if kind == "language" else "q_proj")
    target = [attention, "lm_head"] if kind == "language" else [attention]
    head = {"modules_to_save": ["classifier"]} if kind == "image" else {}
    adapters = LoraConfig(task_type=TASKS[kind], target_modules=target, r=2, fan_in_fan_out=False, **head)
    active = ACTIVE | {"learning_rate": 1e-2, "gradient_checkpointing": family != "albert"}  # Transformers' has none
    one = fitted(made(tmp_path, kind, family, tokenizer, adapters=adapters, noise=0.5, **active))
    # B is 0 before training.
    moved = [name for name, value in one.model.named_parameters() if "lora_B" in name and value.any()]
    assert {part for part in target for name in moved if f"{part}.lora_B" in name} == set(target)
    assert len(moved) == (1 if family == "albert" else 3) + (kind == "language")
    learns = [name for name, value in one.model.named_parameters() if value.requires_grad]
    assert all("lora" in name or "modules_to_save" in name for name in learns)
    metrics = one.evaluate()
    assert metrics["eval_loss"] > 0
    assert kind == "language" or 0 <= metrics[f"eval_{METRICS[kind]}"] <= 1
    one.save_model(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    batch = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "attention_mask": torch.ones(1, 4).long()}
    batch = {"pixel_values": torch.ones(1, 3, 8, 8)} if kind == "image" else batch
    loaded = PeftModel.from_pretrained(base(kind, family, tokenizer), tmp_path / "saved").eval()
    torch.testing.assert_close(loaded(**batch)[0], one.model.eval()(**batch)[0])


# --- TRL's trainer


def tuned(folder, tokenizer, learning_rate=1e-2, **given):
    return made(folder, "language", "llama", tokenizer, learning_rate=learning_rate, **given)


def test_a_batch_without_targets_moves_nothing(tmp_path, tokenizer):
    one = tuned(tmp_path, tokenizer, dataset_kwargs={"skip_prepare_dataset": True}, **ACTIVE, cap=3.0)
    one.train_dataset = one.train_dataset.map(lambda row: {"labels": [-100] * len(row["labels"])})
    before = nn.utils.parameters_to_vector(one.model.parameters())
    one.train()
    assert torch.equal(nn.utils.parameters_to_vector(one.model.parameters()), before)
    assert one.dual.multipliers.tolist() == [0.0] * 4


def test_nothing_is_read_but_the_last_layer_without_constraints(tmp_path, tokenizer):
    """In a warm-up of two steps, each of all 24 texts."""
    read = Counter()
    one = tuned(tmp_path, tokenizer, alpha="0.2", dual_warmup_steps=2, max_steps=4, per_device_train_batch_size=24)

    def reads(module, args, output):
        if args[0].dim() == 2:  # rows of a tile, not the model's own forward pass
            read[one.state.global_step] += len(args[0])

    one.objective.model.library.base_model.norm.register_forward_hook(reads)
    one.train()
    assert [read[step] / read[0] for step in range(4)] == [1, 1, 4, 4]
    logged = [[layer for layer in range(4) if f"loss/{layer}" in log] for log in one.state.log_history]
    assert logged[0] == [3] and logged[3] == [0, 1, 2, 3]


def test_packed_texts_do_not_see_each_other(tmp_path, tokenizer):
    """The same model, texts side by side or packed: the same mean loss, own noise, as many groups as texts."""
    packed = tuned(tmp_path / "packed", tokenizer, noise=1.0, packing=True, max_length=200, **ACTIVE, cap=3.0)
    assert "seq_lengths" in packed.train_dataset.column_names
    packed.train()
    assert packed.dual.multipliers.max() > 0
    model, found = packed.objective.model.saved, []
    for packing, size in ((False, 1), (True, 1), (True, 4)):
        one = tuned(
            tmp_path / f"{packing}{size}",
            tokenizer,
            model=model,
            noise=1.0,
            packing=packing,
            max_length=200,
            per_device_eval_batch_size=size,
        )
        found.append(one.evaluate()["eval_loss"])
        assert one.verdict.groups == 24
    assert found == pytest.approx([found[0]] * 3, rel=1e-5)


def test_chat_templates_and_text_columns_are_prepared_as_trl_does(tmp_path, tokenizer):
    tokenizer = learn_tokenizer(["user assistant say red blue one two : ."])
    tokenizer.eos_token = tokenizer.sep_token
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ' : ' + m.content + ' . ' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant : {% endif %}"
    )
    chats = [
        {
            "prompt": [{"role": "user", "content": "say red"}],
            "completion": [{"role": "assistant", "content": "red one two"}],
        }
    ] * 24
    one = fitted(tuned(tmp_path, tokenizer, data=Dataset.from_list(chats), **ACTIVE, cap=3.0))
    assert -100 in one.train_dataset[0]["labels"]
    assert one.evaluate(Dataset.from_list(chats[:4]))["eval_loss"] > 0


@pytest.mark.parametrize("logging", [{"logging_steps": 1}, {"logging_steps": 2}, {"logging_strategy": "no"}])
def test_trls_own_metrics_are_logged(tmp_path, tokenizer, logging):
    """TRL over the same steps, ERM, and constraints, under which inner exits share the tiles of the last."""
    settings = {
        **{"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 0.0},
        **{"eval_strategy": "steps", "eval_steps": 1, **logging},
    }
    logs = {}
    for method, args in (("TRL", {}), ("erm", {"method": "erm"}), ("constrained", {"exit_share": 0.5})):
        model = moved(base("language", "llama", tokenizer), 0.5)
        one = fitted(tuned(tmp_path / method, tokenizer, plain=method == "TRL", model=model, **settings | args))
        logs[method] = [
            [log[f"{side}{name}"] for name in ("mean_token_accuracy", "entropy", "num_tokens")]
            for log in one.state.log_history
            for side in ("", "eval_")
            if f"{side}num_tokens" in log
        ]
    assert len(logs["TRL"]) == 3 + (3 // logging["logging_steps"] if "logging_steps" in logging else 0)
    for method in ("erm", "constrained"):
        # TRL's are means of micro-batches' means, ours of all tokens; the model is far from a uniform guess.
        torch.testing.assert_close(torch.tensor(logs[method]), torch.tensor(logs["TRL"]), rtol=0.03, atol=0.01)
    assert abs(logs["TRL"][0][1] - math.log(len(tokenizer))) > 0.5
    for method in ("erm", "constrained"):
        assert [row[-1] for row in logs[method]] == [row[-1] for row in logs["TRL"]]


def test_nobody_is_told_that_somebody_trains(tmp_path, tokenizer, monkeypatch):
    """TRL reports each trainer to the Hub, from a thread of its own."""
    told = []
    for module in [module for name, module in sys.modules.items() if name.split(".")[0] in ("trl", "huggingface_hub")]:
        if "send_telemetry" in vars(module):
            monkeypatch.setattr(module, "send_telemetry", lambda *args, **kwargs: told.append(args))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: told.append(args))
    monkeypatch.delenv("CI", raising=False)
    tuned(tmp_path, tokenizer, plain=True)
    assert told  # by TRL's own
    told.clear()
    tuned(tmp_path, tokenizer)
    assert told == [] and DescentSFTTrainer._send_telemetry is not SFTTrainer._send_telemetry


@pytest.mark.filterwarnings("ignore:.*chunked_nll:FutureWarning")
@pytest.mark.parametrize(("kind", "settings"), [(SFTConfig, {"loss_type": "chunked_nll"}), (TrainingArguments, {})])
def test_plain_arguments_are_taken_and_the_trainers_model_is_the_one_that_generates(
    tmp_path, tokenizer, kind, settings
):
    """And the loss by its older name."""
    model = causal(vocab_size=len(tokenizer))
    args = kind(output_dir=str(tmp_path), max_steps=1, use_cpu=True, bf16=False, report_to="none", **settings)
    one = DescentSFTTrainer(model, args, train_dataset=rows("language", tokenizer), processing_class=tokenizer)
    assert one.args.alpha is None and one.dual.problem.constrained and one.args.loss_type == "nll"
    assert one.args.exit_share == 1 and one.objective.sample is None
    one.train()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    assert one.model is model and model.generate(input_ids=ids, max_new_tokens=3, do_sample=False).shape[1] > 5
    assert model(input_ids=ids, labels=ids).loss > 0


@pytest.mark.parametrize("settings", [{}, {"packing": True}])
def test_groups_of_texts_count_in_an_evaluation_though_trls_collator_drops_them(tmp_path, tokenizer, settings):
    one = tuned(tmp_path, tokenizer, **settings)
    data = rows("language", tokenizer)
    grouped = data.add_column("group", [place // 6 for place in range(len(data))])
    found = [evaluate(one, each).groups for each in (grouped, data)]
    assert found == [len(data) // 6, len(data)]
    other = DescentSFTTrainer(one.model, one.args, train_dataset=grouped, processing_class=tokenizer)
    other.train()
