"""Models of Transformers in layers, compared with Transformers' outputs; the laws of all are in test_families.py."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BertForMaskedLM,
    DistilBertModel,
    RobertaModel,
)

from descend.errors import InputError
from descend.models import LayeredCausalLM, LayeredClassifier
from descend.models.encoders import FAMILIES
from descend.models.first_layers import keep_first, merged
from tests.support.networks import CONFIGS, causal, network


@pytest.fixture
def batch():
    tokens = torch.randint(5, 40, (4, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    for row, length in enumerate((9, 5, 2, 7)):
        tokens[row, length:], mask[row, length:] = 1, 0
    return {"input_ids": tokens, "attention_mask": mask}


OWN = [name for name in FAMILIES if name.startswith("descend-")]
"""Families whose forward pass is Descend's, so that it says nothing about itself."""


@pytest.mark.parametrize("family", ["bert", "llama", *OWN])
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


@pytest.mark.parametrize("family", OWN)
def test_padding_changes_no_prediction(family, batch):
    model = LayeredClassifier(network(family).eval())
    alone = [each[0] for each in model.predictions({name: value[1:2, :5] for name, value in batch.items()})]
    for together, single in zip(model.predictions(batch), alone, strict=True):
        torch.testing.assert_close(together[1], single)


@pytest.mark.parametrize(("family", "encoder"), [("distilbert", DistilBertModel), ("roberta", RobertaModel)])
def test_a_linear_readout_is_one_matrix_on_the_first_token_of_every_layer(family, encoder, batch, tmp_path):
    """Against Transformers' bare encoder with the same weights, and a product written out."""
    original = network(f"descend-{family}-linear").eval()
    original.base_model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[family].to_dict()))
    hidden = encoder.from_pretrained(tmp_path).eval()(**batch, output_hidden_states=True).hidden_states
    for state, logits in zip(hidden, LayeredClassifier(original).predictions(batch), strict=True):
        torch.testing.assert_close(logits, state[:, 0] @ original.score.weight.T + original.score.bias)
    labels = torch.tensor([0, 2, 1, 1])
    output = original(**batch, labels=labels)
    torch.testing.assert_close(output.loss, -output.logits.log_softmax(-1)[range(4), labels].mean())
    parts = {name.split(".")[0] if "pooler" not in name else name for name in original.state_dict()}
    assert parts == {family, "score"}


@pytest.mark.parametrize(
    ("kind", "model", "message"),
    [
        (LayeredClassifier, lambda: BertForMaskedLM(CONFIGS["bert"]), r"ForSequenceClassification.*BertForMaskedLM"),
        (LayeredCausalLM, lambda: network("distilbert"), r"model_type.*llama.*FAMILIES"),
        (LayeredCausalLM, lambda: causal().base_model, r"causal.*LlamaModel"),
    ],
)
def test_what_has_another_head_is_refused(kind, model, message):
    with pytest.raises(InputError, match=message):
        kind(model())


# --- language models, and the first layers of any


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("modules", [["q_proj"], ["q_proj", "lm_head"], ["embed_tokens"]])
def test_adapters_become_part_of_the_weights(batch, tied, modules):
    torch.manual_seed(1)
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=modules, init_lora_weights=False)
    wrapped = get_peft_model(causal(tie_word_embeddings=tied), config).eval()
    expected = list(LayeredCausalLM(wrapped).predictions(batch))[2]
    plain = merged(wrapped)
    keep_first(LayeredCausalLM(plain), 2)
    torch.testing.assert_close(plain(**batch).logits, expected, rtol=1e-5, atol=1e-5)
    assert not hasattr(plain, "peft_config") and merged(plain) is plain
