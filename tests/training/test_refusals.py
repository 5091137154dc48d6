"""What the trainers refuse, each in one line: when they are made, at an evaluation, or before the first step."""

import os
from unittest import mock

import pytest
import torch
from datasets import IterableDataset
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from torch import nn
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, TrainerCallback, TrainingArguments, default_data_collator

from descend import DescentConfig, DescentTrainer, InputError, Objective, layered
from descend.models import LayeredClassifier
from descend.models.own_exits import MARK
from descend.recipes import configure
from descend.tasks.text import Classification, learn_tokenizer
from descend.training.hf_hooks import refuse_arguments
from tests.support import own, ranks
from tests.support.networks import QUIET, causal, image_network, network
from tests.support.ranks import denoiser, points

BY_STEPS = {"eval_strategy": "steps", "eval_steps": 2}


class NoStep(TrainerCallback):
    """What is refused is refused before the first step."""

    def on_step_begin(self, args, state, control, **kwargs):
        raise AssertionError("a step was begun")


def rows(count=20, without=(), **changes):
    """Texts of 5 tokens in two classes; of a field named in ``changes`` one sample has another value."""
    made = [{"input_ids": [5, 6, 7, 8, 9], "attention_mask": [1] * 5, "labels": n % 2} for n in range(count)]
    for name, (place, value) in changes.items():
        made[place][name] = value
    return [{name: each[name] for name in each if name not in without} for each in made]


def texts(folder, data=None, model=None, args=None, **given):
    """A trainer of a classifier of texts."""
    usual = {"train_dataset": data or rows(), "eval_dataset": None, "data_collator": DataCollatorWithPadding(TOKENIZER)}
    usual |= {"model": network("distilbert", labels=2) if model is None else model, "task": None}
    return points(folder, given=usual | {"callbacks": [NoStep()]} | given, **{"max_steps": 2} | (args or {}))


def language(folder, model, **given):
    """Transformers' trainer of a language model."""
    data = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 4
    return texts(folder, data, model, data_collator=default_data_collator, **given)


def images(folder, data):
    return texts(folder, data, image_network(), data_collator=default_data_collator)


TOKENIZER = learn_tokenizer(["a text"])
TOKENIZER.eos_token = TOKENIZER.sep_token
LORA = LoraConfig(task_type="SEQ_CLS", target_modules=["q_lin"])
PROMPT = PromptTuningConfig(
    task_type=TaskType.SEQ_CLS, num_virtual_tokens=3, token_dim=16, num_transformer_submodules=1, num_attention_heads=2,
    num_layers=3,
)  # fmt: skip
KNOWN = "accuracy, feasible, loss, merit, violation"


def without_sampling():
    """A language model as some are published: with a temperature, and without sampling."""
    model = causal()
    model.generation_config.temperature, model.generation_config.do_sample = 0.9, False
    return model


def balancing():
    model = image_network()
    model.loss_function = lambda labels, logits, config, **others: logits.sum()
    return model


def own_stack():
    stack = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    return layered(stack, blocks=[stack[0], stack[1]], readout="2")


class Unsavable:
    """A processor that can't be written."""

    def save_pretrained(self, folder):
        raise TypeError("no JSON")


class Short(DescentTrainer):
    """Its loader has a single sample, of which evaluation knows no spread."""

    def get_eval_dataloader(self, eval_dataset=None):
        return DataLoader(own.samples(1), batch_size=4)


def unmade(folder):
    """An optimizer from before the model had own exits."""
    model = network("distilbert", labels=2)
    return texts(
        folder, model=model, args={"method": "probe"}, optimizers=(torch.optim.AdamW(model.parameters()), None)
    )


def without_exits(folder):
    """A folder that should hold own exits, and does not."""
    model = network("bert")
    setattr(model.config, MARK, True)
    model.save_pretrained(folder)
    return Objective(type(model).from_pretrained(folder))


REFUSED = [
    # data
    (lambda f: texts(f, rows(labels=(7, 2))), r"sample 7.*label 2.*0 … 1"),
    (lambda f: texts(f, eval_dataset=rows(without=["labels"])), r"labels or label or label_ids.*input_ids"),
    (lambda f: texts(f, [{"text": "a", "label": 0}] * 4), r"input_ids.*text, label"),
    (lambda f: texts(f, eval_dataset=rows(input_ids=(5, [5, 43, 6, 7, 8]))), r"sample 5.*token 43.*40"),
    (lambda f: texts(f, rows(input_ids=(3, [5] * 70), attention_mask=(3, [1] * 70))), r"sample 3.*70 tokens.*20"),
    (lambda f: texts(f, rows(input_ids=(2, []), attention_mask=(2, []))), r"sample 2.*token"),
    (lambda f: texts(f, [row | {"labels": str(row["labels"])} for row in rows()]), r"label.*whole numbers"),
    (lambda f: texts(f, [row | {"labels": [0.0, 1.0]} for row in rows()]), r"label.*whole numbers"),
    (lambda f: images(f, [{"pixel_values": torch.zeros(1, 8, 8), "labels": 0}] * 2), r"3 channels.*\(1, 8, 8\)"),
    (lambda f: images(f, [{"input_ids": [5, 6], "labels": 0}] * 2), r"pixel_values.*input_ids"),
    (lambda f: images(f, [{"pixel_values": torch.zeros(3, 8, 8), "labels": 3}] * 2), r"label 3.*0 … 2"),
    (lambda f: ranks.language(f, model=causal(vocab_size=39)), r"sample \d+ .*token 39.*39 rows"),
    (lambda f: ranks.language(f, model=causal(max_position_embeddings=8)), "at most 8"),
    (lambda f: texts(f, eval_dataset=rows(1), args=BY_STEPS), "eval_dataset must hold at least 2 samples; got 1"),
    (lambda f: texts(f, eval_dataset={"dev": rows(0)}, args=BY_STEPS), "dev must hold at least 2 samples; got 0"),
    (lambda f: texts(f).evaluate(rows(0)), "at least one target"),
    (lambda f: texts(f).evaluate(rows(1)), "at least 2 samples .*; got 1"),
    (lambda f: texts(f).evaluate(IterableDataset.from_generator(lambda: iter(()))), "at least one target"),
    (lambda f: texts(f).evaluate(), "eval_dataset"),
    (lambda f: texts(f, eval_dataset={"one": rows()}).evaluate("two"), "eval_dataset.*one.*'two'"),
    # arguments
    *(
        (
            lambda f, place=place: DescentConfig(place),
            r"a folder to write to; .*\.py is a file\. Choose another output_dir",
        )
        for place in (__file__, f"{__file__}/run")
    ),
    (lambda f: configure("text", data="d", model="m", preset="paper"), r"dataset.*imdb.*mnli.*None"),
    (lambda f: DescentConfig.paper("video-vae"), "video-ut, video-dust"),
    (lambda f: DescentConfig.paper("text-ut", dataset="sst2"), r"dataset.*imdb.*mnli.*'sst2'"),
    (lambda f: texts(f, compute_loss_func=lambda *_: 0), "compute_loss_func"),
    (lambda f: texts(f, model_init=lambda: None), "model_init"),
    (lambda f: texts(f, args={"include_for_metrics": ["inputs"]}), r"include_for_metrics.*inputs"),
    (lambda f: texts(f, eval_dataset=rows(), args=BY_STEPS | {"metric_for_best_model": "f1"}), f"of {KNOWN}; got 'f1'"),
    (
        lambda f: texts(f, eval_dataset={"a": rows()}, args=BY_STEPS | {"metric_for_best_model": "eval_f1"}),
        "a_accuracy, .*, a_violation; got 'f1'",
    ),
    (lambda f: points(f, given={"noise": True}), "noise must be a level γ of at least 0, and finite; got True"),
    (unmade, "the optimizer does not hold the own exits"),
    # models
    (lambda f: points(f, given={"model": nn.Linear(2, 2)}), "Linear"),
    (lambda f: DescentTrainer(None, DescentConfig(str(f), **QUIET)), "expected a model; got None"),
    (lambda f: texts(f, model=network("distilbert", labels=2, problem_type="regression")), "problem_type 'regression'"),
    (lambda f: Objective(balancing()), r"ViT.*loss"),
    (lambda f: LayeredClassifier(get_peft_model(network("distilbert"), PROMPT)), r"adapters.*virtual tokens"),
    (without_exits, "own exits; their weights are not in"),
    (
        lambda f: texts(f, model=own_stack(), task=Classification(), args={"method": "probe"}),
        "own exits are copies of the head of a model of Transformers",
    ),
    (
        lambda f: texts(f, model=get_peft_model(network("distilbert"), LORA), args={"exits": "own"}),
        "would not be saved beside adapters",
    ),
    (
        lambda f: language(f, causal(), args={"head_lr_ratio": 2.0}),
        "head_lr_ratio is of a classifier's head and own exits",
    ),
    (lambda f: denoiser(f, method="r-drop"), r"r-drop.*classification"),
    (lambda f: denoiser(f, method="neftune"), r"neftune.*UT"),
    (lambda f: denoiser(f, method="layerskip"), r"layerskip.*UT has 0.*2 layers"),
    (lambda f: texts(f, args={"method": "neftune"}), "neftune.*--neftune-noise-alpha"),
    # TRL's
    (lambda f: ranks.language(f, exit_share=0.0), r"\(0, 1\].*got 0"),
    (lambda f: ranks.language(f, exit_share=2.0), r"\(0, 1\].*got 2"),
    (lambda f: ranks.language(f, alpha="2"), "alpha"),
    (lambda f: ranks.language(f, loss_type="dft"), r"loss_type.*nll"),
    (lambda f: ranks.language(f, trust_remote_code=True), "trust_remote_code must be off"),
    (lambda f: ranks.language(f, gradient_checkpointing_kwargs={"use_reentrant": True}), "use_reentrant off"),
    (lambda f: ranks.language(f, gradient_checkpointing_kwargs='{"use_reentrant": true}'), "use_reentrant off"),
    (lambda f: ranks.language(f, model=nn.Linear(2, 2)), r"causal.*Linear"),
    (lambda f: ranks.language(f, model=network("bert")), "model_type must be one of"),
    (lambda f: ranks.language(f, peft=LoraConfig(task_type="CAUSAL_LM", target_modules=["nothing"])), "nothing"),
    (lambda f: ranks.language(f, model="nowhere/at/all"), "nowhere/at/all"),
    (
        lambda f: ranks.language(f, model="nowhere", model_init_kwargs={"trust_remote_code": True}),
        "model_init_kwargs must leave trust_remote_code off",
    ),
    (
        lambda f: ranks.language(f, model=causal("qwen3_moe"), router_aux_loss_coef=0.001),
        r"balances the experts.*router_aux_loss_coef=0",
    ),
    # before the first step
    (lambda f: texts(f, rows(3), args={"dataloader_drop_last": True}).train(), "at least one batch"),
    (lambda f: texts(f, rows(3), args={"dataloader_drop_last": True, "max_steps": -1}).train(), "at least one batch"),
    (lambda f: language(f, without_sampling()).train(), "its generation_config: .*temperature.*do_sample"),
    (lambda f: texts(f, processing_class=Unsavable()).train(), "its tokenizer: no JSON"),
    (lambda f: points(f, Short, **BY_STEPS).train(), "at least 2 samples .*; got 1"),
    (lambda f: points(f).train(resume_from_checkpoint=True), "has no whole checkpoint to go on from"),
    # How many steps an epoch has is known once it begins.
    *(
        (
            lambda f, late=late: texts(f, args=late | {"num_train_epochs": 1, "max_steps": -1}).train(),
            "of 3 steps of warm-up and dual_every",
        )
        for late in ({"dual_every": 100}, {"dual_every": "epoch"}, {"dual_warmup_steps": 3.0})
    ),
]


@pytest.mark.parametrize(("make", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_it_is_refused_in_one_line(tmp_path, make, words):
    with pytest.raises(InputError, match=words) as error:
        make(tmp_path)
    assert "\n" not in str(error.value)


ARGS = DescentConfig("unused", **QUIET)
ELSEWHERE = [
    # As torchrun starts processes without --use-cpu, where there is no GPU for each; and several GPUs in one.
    (mock.patch.dict(os.environ, WORLD_SIZE="2"), lambda f: refuse_arguments(DescentTrainer, ARGS, {}), "2 processes"),
    (mock.patch.object(DescentConfig, "n_gpu", 2), points, r"GPU.*got 2"),
    (
        mock.patch.object(TrainingArguments, "world_size", property(lambda self: 2)),
        lambda f: points(f, Short),
        r"get_eval_dataloader.*several processes.*data_collator",
    ),
    (
        mock.patch.dict(os.environ, ACCELERATE_DYNAMO_BACKEND="EAGER"),
        lambda f: texts(f, args={"method": "layerskip"}),
        r"dynamo_backend.*layerskip",
    ),
]


@pytest.mark.parametrize(("where", "make", "words"), ELSEWHERE, ids=[words for *_, words in ELSEWHERE])
def test_what_processes_and_compilers_ask_too_much_is_refused(tmp_path, where, make, words):
    with where, pytest.raises(InputError, match=words):
        make(tmp_path)


def test_a_folders_pickles_are_refused(tmp_path):
    """By the trainer itself, too: what it is given by name goes through the same door as a recipe's."""
    causal().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(causal().state_dict(), tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin.*safetensors"):
        ranks.language(tmp_path, model=str(tmp_path / "model"))
