"""A classifier of the library's under the trainer, on generated reviews: padding, noise, checkpoints, resume."""

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from tests.support.networks import network
from tests.support.texts import build, review_tokenizer, samples


@pytest.fixture(scope="module")
def tokenizer():
    return review_tokenizer()


@pytest.mark.parametrize("family", ["distilbert", "bert", "roberta"])
def test_a_classifier_is_trained_measured_and_saved_as_the_librarys_own(tmp_path, tokenizer, family):
    trainer = build(tmp_path, tokenizer, family)
    trainer.train()
    assert (trainer.dual.multipliers[1:] > 0).all()
    metrics = trainer.evaluate()
    assert 0 <= metrics["eval_accuracy"] <= 1 and len(trainer.verdict.violations) == 3
    trainer.save_model(str(tmp_path / "model"))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    for name, value in trainer.objective.model.network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_the_measurement_does_not_depend_on_how_samples_are_batched(tmp_path, tokenizer):
    trainer = build(tmp_path, tokenizer, per_device_eval_batch_size=1)
    alone = trainer._measure(trainer._evaluation_loader(trainer.eval_dataset))
    trainer.args.per_device_eval_batch_size = 40
    together = trainer._measure(trainer._evaluation_loader(trainer.eval_dataset))
    torch.testing.assert_close(together.losses, alone.losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["constrained", "r-drop"])
def test_a_resumed_run_is_bit_equal(tmp_path, tokenizer, method):
    whole = build(tmp_path, tokenizer, method=method)
    whole.train()
    again = build(tmp_path, tokenizer, method=method)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for one, other in zip(whole.objective.parameters(), again.objective.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(whole.dual.multipliers, again.dual.multipliers)


def test_without_constraints_and_noise_it_is_the_librarys_own_trainer(tmp_path, tokenizer):
    # Without dropout, which the readouts of inner layers draw too.
    still = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    ours = build(tmp_path / "ours", tokenizer, method="erm", calibrate=False, save_strategy="no", model=still)
    ours.objective.noise = None
    ours.train()
    plain = network("distilbert", labels=2, vocab_size=len(tokenizer), max_position_embeddings=80, **still)
    settings = {"max_steps": 6, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "save_strategy": "no"}
    settings |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "seed": 0, "logging_steps": 1}
    Trainer(
        plain,
        TrainingArguments(output_dir=str(tmp_path / "theirs"), **settings),
        train_dataset=samples(tokenizer, 64, 0),
        data_collator=DataCollatorWithPadding(tokenizer),
    ).train()
    trained = ours.objective.model.network.state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5)
    start = network("distilbert", labels=2, vocab_size=len(tokenizer), max_position_embeddings=80, **still)
    assert not torch.equal(start.classifier.weight, plain.classifier.weight)
