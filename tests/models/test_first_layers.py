"""The first K layers as a model of its own: loaded again by Transformers, its output is exit K's."""

import json
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model

from descend.errors import InputError
from descend.models import DUST, UT, DUSTConfig, LayeredCausalLM, LayeredClassifier, UTConfig, ViTDenoiser, layered
from descend.models.first_layers import keep_first, merged, plain_output
from descend.models.vit import ViTDenoiserConfig
from tests.support.networks import causal, network

TEXTS = {
    "input_ids": torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0)),
    "attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
}


TINY = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
PIXELS = {"readout": "pixels", "hidden_size": 48, "patch_size": 4, "image_size": 32, "frame_size": 32, "frame_patch": 8}
DENOISERS = {
    "vit": lambda: ViTDenoiser(ViTDenoiserConfig(num_hidden_layers=3, **TINY)),
    "vit, pixels": lambda: ViTDenoiser(ViTDenoiserConfig(num_hidden_layers=3, **TINY | PIXELS)),
    "ut, tied": lambda: UT(UTConfig(depth=3, patch_size=4, attention_size=4)),
    "ut": lambda: UT(UTConfig(depth=3, patch_size=4, attention_size=4, tied=False)),
    "dust, tied": lambda: DUST(DUSTConfig(depth=3, patch_size=4, atoms=36)),
    "dust": lambda: DUST(DUSTConfig(depth=3, patch_size=4, atoms=36, tied=False)),
    "dust, proximal": lambda: DUST(DUSTConfig(depth=3, patch_size=4, atoms=36, tied=False, layer="proximal")),
}


@pytest.mark.parametrize("kind", DENOISERS)
def test_a_denoiser_of_every_kind(kind, tmp_path):
    for layers in (1, 2, 3):
        torch.manual_seed(0)
        model = DENOISERS[kind]().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        inputs = model.probe_inputs()
        expected = list(model.predictions(inputs))[layers]
        keep_first(model, layers)
        assert model.depth == layers
        model.save_pretrained(tmp_path / str(layers))
        for each in (model, type(model).from_pretrained(tmp_path / str(layers))):
            torch.testing.assert_close(plain_output(each, inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("modules", [["q_proj"], ["q_proj", "lm_head"], ["embed_tokens"]])
def test_adapters_become_part_of_the_weights(tied, modules):
    torch.manual_seed(1)
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=modules, init_lora_weights=False)
    wrapped = get_peft_model(causal(tie_word_embeddings=tied), config).eval()
    expected = list(LayeredCausalLM(wrapped).predictions(TEXTS))[2]
    plain = merged(wrapped)
    keep_first(LayeredCausalLM(plain), 2)
    torch.testing.assert_close(plain(**TEXTS).logits, expected, rtol=1e-5, atol=1e-5)
    assert not hasattr(plain, "peft_config") and merged(plain) is plain


def test_a_plain_checkpoint_needs_no_descend(tmp_path):
    """In a process that has not imported descend."""
    cases = {}
    for name, model in (
        ("CausalLM", LayeredCausalLM(causal("gemma2", "eager"))),
        ("SequenceClassification", LayeredClassifier(network("roberta").eval())),
    ):
        expected = list(model.predictions(TEXTS))[2]
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
    given = json.dumps([cases, TEXTS["input_ids"].tolist(), TEXTS["attention_mask"].tolist()])
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("layers", [0, 4, -1])
def test_layers_out_of_range_are_refused(layers):
    with pytest.raises(InputError, match=rf"1 to 3.*{layers}"):
        keep_first(LayeredCausalLM(causal()), layers)


def test_other_models_are_refused():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="HookedModel"):
        keep_first(layered(module, blocks=list(module), readout=module[0]), 1)
