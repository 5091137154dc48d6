"""Hugging Face classifiers in layers, held against the library's own outputs."""

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertForSequenceClassification,
    ElectraConfig,
)

from descend.errors import InputError
from descend.models import LayeredClassifier
from descend.models.classifiers import FAMILIES
from networks import CONFIGS, WIDE, network


@pytest.fixture
def batch():
    tokens = torch.randint(5, 40, (4, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    for row, length in enumerate((9, 5, 2, 7)):
        tokens[row, length:], mask[row, length:] = 1, 0
    return {"input_ids": tokens, "attention_mask": mask}


def test_the_table_and_the_tests_know_the_same_families():
    assert CONFIGS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_readout_is_the_librarys_logits(family, attention, batch, tmp_path):
    original = network(family, attention).eval()
    model = LayeredClassifier(original)
    expected = original(**batch).logits
    outputs = model.layer_outputs(batch)
    assert len(outputs) == model.depth + 1 == 4
    assert len({hidden.shape for hidden in outputs}) == 1
    torch.testing.assert_close(model.readout(outputs[-1], batch["attention_mask"]), expected, rtol=0, atol=0)
    predictions = list(model.predictions(batch))
    torch.testing.assert_close(predictions[-1], expected, rtol=0, atol=0)
    assert [tuple(each.shape) for each in predictions] == [(4, 3)] * 4
    assert not any(torch.equal(each, expected) for each in predictions[:-1])
    model.saved.save_pretrained(tmp_path)
    chosen = {} if family == "descend-text-ut" else {"attn_implementation": attention}
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, **chosen).eval()
    torch.testing.assert_close(list(LayeredClassifier(loaded).predictions(batch)), predictions, rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_changes_nothing(family, batch):
    gradients = []
    for checkpointing in (False, True):
        model = LayeredClassifier(network(family))
        if checkpointing:
            model.network.activation_checkpointing_enable()
        model.train()
        torch.manual_seed(1)
        sum(each.logsumexp(-1).sum() for each in model.predictions(batch)).backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 8
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_no_prediction(family, batch):
    model = LayeredClassifier(network(family).eval())
    alone = [each[0] for each in model.predictions({name: value[1:2, :5] for name, value in batch.items()})]
    for together, single in zip(model.predictions(batch), alone, strict=True):
        torch.testing.assert_close(together[1], single)


def test_what_is_no_classifier_or_of_no_known_family_is_refused():
    with pytest.raises(
        InputError, match=r"one of distilbert, bert, roberta, descend-text-ut; got 'electra'. To add a family"
    ):
        LayeredClassifier(AutoModelForSequenceClassification.from_config(ElectraConfig(**WIDE)))
    with pytest.raises(InputError, match="expected a sequence classifier; got BertForMaskedLM"):
        LayeredClassifier(BertForMaskedLM(CONFIGS["bert"]))
    assert LayeredClassifier(BertForSequenceClassification(CONFIGS["bert"])).depth == 3
