"""Hugging Face classifiers in layers, held against the library's own outputs."""

import json

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertForSequenceClassification,
    DistilBertModel,
    MPNetConfig,
    RobertaModel,
)

from descend.errors import InputError
from descend.models import LayeredClassifier
from descend.models.encoders import FAMILIES
from descend.models.linear_readout import with_linear_readout
from tests.support.networks import CONFIGS, WIDE, network


@pytest.fixture
def batch():
    tokens = torch.randint(5, 40, (4, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    for row, length in enumerate((9, 5, 2, 7)):
        tokens[row, length:], mask[row, length:] = 1, 0
    return {"input_ids": tokens, "attention_mask": mask}


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"albert"}))  # Transformers has no checkpointing for ALBERT
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


@pytest.mark.parametrize(("family", "encoder"), [("distilbert", DistilBertModel), ("roberta", RobertaModel)])
def test_a_linear_readout_is_one_matrix_on_the_first_token_of_every_layer(family, encoder, batch, tmp_path):
    """Against Transformers' bare encoder with the same weights, and a product written out."""
    original = network(f"descend-{family}-linear").eval()
    model = LayeredClassifier(original)
    original.base_model.save_pretrained(tmp_path)
    config = CONFIGS[family].to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config))
    reference = encoder.from_pretrained(tmp_path).eval()
    hidden = reference(**batch, output_hidden_states=True).hidden_states
    for state, logits in zip(hidden, model.predictions(batch), strict=True):
        for row in range(4):
            expected = [original.score.weight[c] @ state[row, 0] + original.score.bias[c] for c in range(3)]
            torch.testing.assert_close(logits[row], torch.stack(expected))
    labels = torch.tensor([0, 2, 1, 1])
    output = original(**batch, labels=labels)
    expected = -output.logits.log_softmax(-1)[range(4), labels].mean()
    torch.testing.assert_close(output.loss, expected)
    assert {name.split(".")[0] for name in original.state_dict()} == {family, "score"}
    for name, parameter in original.named_parameters():
        assert "pooler" not in name and "classifier" not in name, parameter


@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_a_linear_readout_drops_the_head_of_a_pretrained_classifier(family, tmp_path):
    """Its two layers, DistilBERT's second of the very shape, are not taken for the new one; its encoder is."""
    torch.manual_seed(0)
    theirs = network(family)
    theirs.config.id2label, theirs.config.label2id = {0: "x", 1: "y", 2: "z"}, {"x": 0, "y": 1, "z": 2}
    theirs.save_pretrained(tmp_path)
    kind = type(CONFIGS[f"descend-{family}-linear"])
    config = with_linear_readout(AutoConfig.from_pretrained(tmp_path), kind)
    assert not config.architectures and config.num_labels == 2 and config.id2label[0] == "LABEL_0"
    config.num_labels = 3
    ours, loading = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, config=config, output_loading_info=True
    )
    assert set(loading["missing_keys"]) == {"score.weight", "score.bias"}
    for name, value in theirs.base_model.state_dict().items():
        assert torch.equal(ours.base_model.state_dict()[name], value), name
    assert not ours.score.bias.any() and 0.005 < ours.score.weight.std() < 0.05


def test_what_is_no_classifier_or_of_no_known_family_is_refused():
    with pytest.raises(InputError, match=r"distilbert, bert, roberta, .*descend-text-ut.*'mpnet'"):
        LayeredClassifier(AutoModelForSequenceClassification.from_config(MPNetConfig(**WIDE)))
    with pytest.raises(InputError, match=r"ForSequenceClassification.*BertForMaskedLM"):
        LayeredClassifier(BertForMaskedLM(CONFIGS["bert"]))
    assert LayeredClassifier(BertForSequenceClassification(CONFIGS["bert"])).depth == 3
