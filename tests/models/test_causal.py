"""Causal language models in layers: what the readout reads from the last one is the library's own answer."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from descend.errors import InputError
from descend.models import LayeredCausalLM
from tests.support.networks import causal, network


def batch():
    ids = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_places_are_the_rows_of_all():
    model = LayeredCausalLM(causal())
    places = torch.zeros(2, 9, dtype=torch.bool)
    places[0, 3:5] = places[1, 2] = True
    rows = places.flatten().nonzero().flatten()
    for some, whole in zip(model.predictions(batch() | {"places": rows}), model.predictions(batch()), strict=True):
        torch.testing.assert_close(some, whole[places], rtol=1e-5, atol=1e-5)


def test_activations_computed_again_change_nothing():
    gradients = []
    for again in (False, True):
        inner = causal().train()
        if again:
            inner.gradient_checkpointing_enable()
        sum(each.square().mean() for each in LayeredCausalLM(inner).predictions(batch())).backward()
        gradients.append([parameter.grad for parameter in inner.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_saved_is_the_librarys(tmp_path):
    model = LayeredCausalLM(causal("qwen3"))
    model.saved.save_pretrained(tmp_path)
    loaded = LayeredCausalLM(AutoModelForCausalLM.from_pretrained(tmp_path))
    for one, other in zip(model.predictions(batch()), loaded.predictions(batch()), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_adapters_are_seen_on_blocks_and_head():
    torch.manual_seed(1)
    wrapped = get_peft_model(
        causal(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    ).eval()
    model = LayeredCausalLM(wrapped)
    *_, last = model.predictions(batch())
    torch.testing.assert_close(last, wrapped(**batch()).logits, rtol=0, atol=0)
    assert not torch.allclose(last, causal()(**batch()).logits)
    trained = {id(each) for each in model.head.parameters() if each.requires_grad}
    assert trained == {id(p) for name, p in wrapped.named_parameters() if "lm_head.lora" in name}


def test_limits():
    assert LayeredCausalLM(causal()).limits == {"vocabulary": 40, "length": 64}


def test_other_models_are_refused():
    with pytest.raises(InputError, match=r"model_type.*llama.*FAMILIES"):
        LayeredCausalLM(network("distilbert"))
    with pytest.raises(InputError, match=r"causal.*LlamaModel"):
        LayeredCausalLM(causal().base_model)
