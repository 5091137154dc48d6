"""What Transformers' and TRL's own example scripts do with a trainer, theirs or ours: only the class's name differs.

The steps are those of ``run_glue.py``, ``run_clm.py`` (Transformers 5.23) and ``sft.py`` (TRL 1.16), on small models.
"""

import json
import math

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from transformers import (
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    default_data_collator,
)
from trl import SFTConfig, SFTTrainer
from trl.scripts import sft

from descend import DescentTrainer
from descend.tasks.text import generate_reviews, learn_tokenizer
from descend.training.sft import DescentSFTTrainer
from tests.support.networks import causal, network

QUIET = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "seed": 0}
BLOCK = 51


@pytest.fixture(scope="module")
def tokenizer():
    made = learn_tokenizer(row["text"] for row in generate_reviews(200, 0))
    made.model_input_names = ["input_ids", "attention_mask"]
    return made


def reviews(tokenizer, count, seed):
    rows = Dataset.from_list(generate_reviews(count, seed))
    return rows.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=60), batched=True)


def blocks(tokenizer, count):
    """`run_clm.py` joins all texts and cuts them into blocks, whose labels are their own tokens."""
    ids = [token for row in generate_reviews(200, 1) for token in tokenizer(row["text"])["input_ids"]]
    rows = [ids[start : start + BLOCK] for start in range(0, count * BLOCK, BLOCK)]
    return Dataset.from_list([{"input_ids": row, "attention_mask": [1] * BLOCK, "labels": row} for row in rows])


# --- run_glue.py


def glue(kind, folder, tokenizer):
    args = TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=8, eval_strategy="steps", eval_steps=2, **QUIET
    )
    trainer = kind(
        model=network("bert", labels=2, vocab_size=len(tokenizer), max_position_embeddings=64),
        args=args,
        train_dataset=reviews(tokenizer, 40, 0),
        eval_dataset=reviews(tokenizer, 24, 1),
        compute_metrics=lambda p: {"accuracy_of_script": float((p.predictions.argmax(1) == p.label_ids).mean())},
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    result = trainer.train(resume_from_checkpoint=None)
    metrics = result.metrics | {"train_samples": 40}
    trainer.save_model()
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_state()
    found = trainer.evaluate(eval_dataset=trainer.eval_dataset)
    trainer.log_metrics("eval", found)
    trainer.save_metrics("eval", found)
    predicted = trainer.predict(reviews(tokenizer, 10, 2).remove_columns("label"), metric_key_prefix="predict")
    trainer.create_model_card(finetuned_from="small", tasks="text-classification")
    return found, predicted.predictions


@pytest.mark.parametrize("kind", [Trainer, DescentTrainer])
def test_run_glue(tmp_path, tokenizer, kind):
    found, predictions = glue(kind, tmp_path, tokenizer)
    assert {"eval_loss", "eval_accuracy_of_script", "eval_runtime"} <= found.keys()
    assert predictions.shape == (10, 2)
    written = {path.name for path in tmp_path.iterdir()}
    assert {"model.safetensors", "README.md", "all_results.json", "trainer_state.json", "eval_results.json"} <= written


# --- run_clm.py


def accuracy_of_next_tokens(given):
    predictions, labels = given
    return {"accuracy": float((predictions[:, :-1].reshape(-1) == labels[:, 1:].reshape(-1)).mean())}


def clm(kind, folder, tokenizer, model=None, **settings):
    settings = {
        "compute_metrics": accuracy_of_next_tokens,
        "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(dim=-1),
        "args": TrainingArguments(str(folder), max_steps=4, per_device_train_batch_size=4, **QUIET),
    } | settings
    return kind(
        model=causal(vocab_size=len(tokenizer)) if model is None else model,
        train_dataset=blocks(tokenizer, 24),
        eval_dataset=blocks(tokenizer, 16),
        processing_class=tokenizer,
        data_collator=default_data_collator,
        **settings,
    )


@pytest.mark.parametrize("kind", [Trainer, DescentTrainer])
def test_run_clm(tmp_path, tokenizer, kind):
    trainer = clm(kind, tmp_path, tokenizer)
    trainer.train()
    trainer.save_model()
    found = trainer.evaluate()
    assert 0 <= found["eval_accuracy"] <= 1 and math.exp(found["eval_loss"]) > 1


def test_a_language_models_predictions_are_those_of_trainer(tmp_path, tokenizer):
    shapes = []

    def shape(given):
        shapes.append((given.predictions, given.label_ids))
        return {"mean": given.predictions.mean()}

    model = causal(vocab_size=len(tokenizer))
    for kind in (Trainer, DescentTrainer):
        settings = {"compute_metrics": shape, "preprocess_logits_for_metrics": None}
        trainer = clm(kind, tmp_path, tokenizer, model, **settings)
        trainer.evaluate()
        predicted = trainer.predict(blocks(tokenizer, 16))
        shapes.append((predicted.predictions, predicted.label_ids))
    assert [logits.shape for logits, _ in shapes] == [(16, BLOCK, len(tokenizer))] * 6
    for logits, labels in shapes[1:]:
        np.testing.assert_allclose(logits, shapes[0][0], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(labels, shapes[0][1])


def test_texts_of_many_lengths_are_padded_for_compute_metrics(tmp_path, tokenizer):
    found = []
    rows = [{"input_ids": list(range(5, 8 + place)), "labels": list(range(5, 8 + place))} for place in range(6)]

    class Pad(DataCollatorWithPadding):
        def __call__(self, features):
            labels = [feature["labels"] for feature in features]
            batch = super().__call__([{"input_ids": feature["input_ids"]} for feature in features])
            width = batch["input_ids"].shape[1]
            batch["labels"] = torch.tensor([row + [-100] * (width - len(row)) for row in labels])
            return batch

    model = causal(vocab_size=len(tokenizer))
    for kind in (Trainer, DescentTrainer):
        args = TrainingArguments(str(tmp_path), per_device_eval_batch_size=2, **QUIET)
        trainer = kind(
            model,
            args,
            data_collator=Pad(tokenizer),
            eval_dataset=Dataset.from_list(rows),
            compute_metrics=lambda given: found.append((given.predictions, given.label_ids)) or {},
            preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        )
        trainer.evaluate()
    (theirs, their_labels), (ours, our_labels) = found
    np.testing.assert_array_equal(our_labels, their_labels)
    np.testing.assert_array_equal(ours[our_labels != -100], theirs[our_labels != -100])


# --- what Trainer's settings mean for compute_metrics


@pytest.mark.parametrize("kind", [Trainer, DescentTrainer])
def test_logits_may_be_prepared_as_a_tuple(tmp_path, tokenizer, kind):
    kinds = []
    trainer = clm(
        kind,
        tmp_path,
        tokenizer,
        preprocess_logits_for_metrics=lambda logits, labels: (logits.argmax(-1), logits.logsumexp(-1)),
        compute_metrics=lambda given: kinds.append([part.shape for part in given.predictions]) or {},
    )
    trainer.evaluate()
    assert kinds == [[(16, BLOCK), (16, BLOCK)]]


@pytest.mark.parametrize("kind", [Trainer, DescentTrainer])
def test_metrics_may_be_computed_batch_by_batch(tmp_path, tokenizer, kind):
    batches = []

    def compute(given, compute_result):
        batches.append((tuple(given.predictions.shape), compute_result))
        return {"batches": len(batches)} if compute_result else {}

    args = TrainingArguments(
        str(tmp_path), batch_eval_metrics=True, per_device_eval_batch_size=6, include_for_metrics=["loss"], **QUIET
    )
    trainer = clm(kind, tmp_path, tokenizer, args=args, compute_metrics=compute)
    assert trainer.evaluate()["eval_batches"] == 3
    assert batches == [((6, BLOCK), False), ((6, BLOCK), False), ((4, BLOCK), True)]


@pytest.mark.parametrize("kind", [Trainer, DescentTrainer])
def test_batches_may_be_left_apart(tmp_path, tokenizer, kind):
    shapes = []
    args = TrainingArguments(str(tmp_path), eval_do_concat_batches=False, per_device_eval_batch_size=6, **QUIET)
    trainer = clm(
        kind,
        tmp_path,
        tokenizer,
        args=args,
        compute_metrics=lambda given: shapes.append([part.shape for part in given.predictions]) or {},
    )
    trainer.evaluate()
    assert shapes == [[(6, BLOCK), (6, BLOCK), (4, BLOCK)]]


# --- sft.py


@pytest.mark.parametrize("kind", [SFTTrainer, DescentSFTTrainer])
def test_trls_own_script(tmp_path, tokenizer, monkeypatch, kind):
    """The script as TRL installs it, from its command line to the saved model."""
    tokenizer.eos_token = tokenizer.sep_token
    causal(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    (tmp_path / "data").mkdir()
    for side, count in (("train", 16), ("test", 8)):
        rows = [json.dumps({"text": row["text"]}) for row in generate_reviews(count, 3)]
        (tmp_path / "data" / f"{side}.jsonl").write_text("\n".join(rows))
    monkeypatch.setattr(trl, "SFTTrainer", kind)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    flags = f"--model_name_or_path {tmp_path}/start --dataset_name {tmp_path}/data --output_dir {tmp_path}/out "
    flags += "--max_steps 4 --per_device_train_batch_size 4 --eval_strategy steps --eval_steps 2 --logging_steps 1 "
    flags += "--use_cpu --bf16 false --report_to none --use_peft --lora_target_modules q_proj v_proj --dtype float32"
    sft.main(*sft.make_parser().parse_args_and_config(flags.split()))
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    state = json.loads((tmp_path / "out" / "checkpoint-4" / "trainer_state.json").read_text())
    names = {name for row in state["log_history"] for name in row}
    assert {"loss", "mean_token_accuracy", "entropy", "num_tokens", "eval_mean_token_accuracy"} <= names
    assert ("multiplier/1" in names) == (kind is DescentSFTTrainer)


@pytest.mark.parametrize("kind", [SFTTrainer, DescentSFTTrainer])
def test_sft(tmp_path, tokenizer, kind):
    tokenizer.eos_token = tokenizer.sep_token
    args = SFTConfig(
        str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=4,
        bf16=False,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        gradient_checkpointing=False,
        **QUIET,
    )
    texts = Dataset.from_list([{"text": row["text"]} for row in generate_reviews(24, 3)])
    trainer = kind(
        model=causal(vocab_size=len(tokenizer)),
        args=args,
        train_dataset=texts.select(range(16)),
        eval_dataset=texts.select(range(16, 24)),
        processing_class=tokenizer,
        peft_config=None,
    )
    trainer.train()
    trainer.save_model(args.output_dir)
    assert trainer.evaluate()["eval_loss"] > 0
