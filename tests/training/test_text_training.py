"""A classifier of the library's under the trainer, on generated reviews: padding, noise, checkpoints, resume."""

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
)

from tests.support.texts import build, review_tokenizer


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
