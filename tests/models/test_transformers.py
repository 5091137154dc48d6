"""Models of Transformers in layers, compared with Transformers' outputs; the laws of all are in test_families.py."""

import json
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    DistilBertModel,
    RobertaModel,
)

from descend.errors import InputError
from descend.models import LayeredCausalLM, LayeredClassifier
from descend.models.encoders import FAMILIES
from descend.models.first_layers import keep_first, merged
from descend.models.linear_readout import with_linear_readout
from tests.support.networks import CONFIGS, causal, network


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


def test_places_are_the_rows_of_all(batch):
    model = LayeredCausalLM(causal())
    places = torch.zeros(4, 9, dtype=torch.bool)
    places[0, 3:5] = places[1, 2] = True
    rows = places.flatten().nonzero().flatten()
    for some, whole in zip(model.predictions(batch | {"places": rows}), model.predictions(batch), strict=True):
        torch.testing.assert_close(some, whole[places], rtol=1e-5, atol=1e-5)


def test_adapters_are_seen_on_blocks_and_head(batch):
    torch.manual_seed(1)
    wrapped = get_peft_model(
        causal(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    ).eval()
    model = LayeredCausalLM(wrapped)
    *_, last = model.predictions(batch)
    torch.testing.assert_close(last, wrapped(**batch).logits, rtol=0, atol=0)
    assert not torch.allclose(last, causal()(**batch).logits)
    trained = {id(each) for each in model.head.parameters() if each.requires_grad}
    assert trained == {id(p) for name, p in wrapped.named_parameters() if "lm_head.lora" in name}


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


def test_a_plain_checkpoint_needs_no_descend(batch, tmp_path):
    """In a process that has not imported descend."""
    cases = {}
    for name, model in (
        ("CausalLM", LayeredCausalLM(causal("gemma2", "eager"))),
        ("SequenceClassification", LayeredClassifier(network("roberta").eval())),
    ):
        expected = list(model.predictions(batch))[2]
        keep_first(model, 2)
        model.saved.save_pretrained(tmp_path / name)
        cases[name] = expected.flatten().tolist()
    script = """
import json, sys, torch, transformers
cases, ids, mask = json.load(sys.stdin)
for name, expected in cases.items():
    model = getattr(transformers, "AutoModelFor" + name).from_pretrained(sys.argv[1] + "/" + name)
    logits = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).logits
    torch.testing.assert_close(logits.flatten(), torch.tensor(expected), rtol=1e-5, atol=1e-5)
assert "descend" not in sys.modules
"""
    given = json.dumps([cases, batch["input_ids"].tolist(), batch["attention_mask"].tolist()])
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
