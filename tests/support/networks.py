"""Small models of Transformers' families, with random weights."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AlbertConfig,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    XLMRobertaConfig,
)

from descend.models import MeanPooledConfig, TextUTConfig
from descend.models.library import PER_LAYER

SMALL = {"vocab_size": 40, "max_position_embeddings": 20}
WIDE = SMALL | {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 32}
NARROW = {"dim": 16, "n_heads": 2, "n_layers": 3, "hidden_dim": 32}
DECODER = WIDE | {"num_key_value_heads": 1, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
CONFIGS = {
    "distilbert": DistilBertConfig(**SMALL, **NARROW),
    "bert": BertConfig(**WIDE),
    "roberta": RobertaConfig(**WIDE),
    "xlm-roberta": XLMRobertaConfig(**WIDE),
    "mpnet": MPNetConfig(**WIDE),
    "electra": ElectraConfig(**WIDE, embedding_size=24),
    "albert": AlbertConfig(**WIDE, embedding_size=8, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    "deberta-v2": DebertaV2Config(
        **WIDE,
        pooler_hidden_size=16,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=4,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
    ),
    "modernbert": ModernBertConfig(
        **WIDE,
        pad_token_id=1,
        local_attention=4,
        embedding_dropout=0.1,
        mlp_dropout=0.1,
        classifier_dropout=0.1,
        cls_token_id=2,
        sep_token_id=3,
        bos_token_id=2,
        eos_token_id=3,
    ),
    "llama": LlamaConfig(**DECODER),
    "mistral": MistralConfig(**DECODER),
    "qwen2": Qwen2Config(**DECODER),
    "qwen3": Qwen3Config(**DECODER, head_dim=8),
    "descend-mean-pooled": MeanPooledConfig(BertConfig(**WIDE)),
    "descend-text-ut": TextUTConfig(vocab_size=40, hidden_size=16, num_hidden_layers=3, attention_size=8, tied=False),
}


PIXELS = {
    **{"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 32},
    **{"image_size": 8, "patch_size": 4, "mlp_ratio": 2},
}
IMAGES = {
    "vit": {},
    "deit": {"architectures": ["DeiTForImageClassification"]},
    "vit_msn": {},
    "dinov2": {},
    "dinov2_with_registers": {},
}


def image_network(family: str = "vit", labels: int = 3, **settings: Any) -> PreTrainedModel:
    """A classifier of images of 8×8 pixels with 3 blocks and random weights."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **PIXELS | IMAGES[family] | {"num_labels": labels} | settings)
    return AutoModelForImageClassification.from_config(config)


OWN_ATTENTION = ("descend-mean-pooled", "descend-text-ut", "deberta-v2", "mpnet")
"""Families that take masks (B, T) alone: their attention is their own, or they need the mask for more than that."""


def network(
    family: str,
    attention: str = "sdpa",
    labels: int = 3,
    auto: Any = AutoModelForSequenceClassification,
    **settings: float,
) -> PreTrainedModel:
    """A classifier with 3 blocks and random weights, or a model of another Auto class."""
    torch.manual_seed(0)
    values = {name: value for name, value in CONFIGS[family].to_dict().items() if name not in PER_LAYER}
    config = type(CONFIGS[family]).from_dict(values | {"id2label": None, "num_labels": labels} | settings)
    chosen = {} if family in OWN_ATTENTION else {"attn_implementation": attention}
    return auto.from_config(config, **chosen)


CAUSAL = {
    "llama": {},
    "mistral": {},
    "ministral": {"head_dim": 8},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "final_logit_softcapping": 3.0},
    "gemma3_text": {"head_dim": 8, "final_logit_softcapping": 3.0},
    "phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "olmo2": {},
    "olmo3": {"sliding_window": 4, "pad_token_id": 0, "eos_token_id": 2},
    "phi": {"bos_token_id": 1, "eos_token_id": 2},
    "gpt2": {"bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": {"bos_token_id": 1, "eos_token_id": 2},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "smollm3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "granite": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.25},
}


def causal(family: str = "llama", attention: str = "sdpa", **settings: object) -> PreTrainedModel:
    """A causal language model with 3 blocks and random weights."""
    torch.manual_seed(0)
    sizes = WIDE | {"num_key_value_heads": 1, "max_position_embeddings": 64}
    config = AutoConfig.for_model(family, **sizes | CAUSAL[family] | settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def unsampled() -> PreTrainedModel:
    """A language model as some are published: with a temperature, and without sampling."""
    model = causal()
    model.generation_config.temperature, model.generation_config.do_sample = 0.9, False
    return model


def change(folder: Path, name: str = "config.json", **entries: object) -> None:
    """Change entries of a JSON file of a saved model."""
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | entries))


@torch.no_grad()
def moved(model: Any, by: float) -> Any:
    """The model a little away from its start, so that its layers, norms and heads all matter, in eval mode."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def embedded(network: Any, call: Any) -> tuple[list[torch.Tensor], Any]:
    """What the network's word embedding gives on in a call, noise included, and the call's result."""
    seen = []
    handle = network.get_input_embeddings().register_forward_hook(lambda module, args, output: seen.append(output))
    result = call()
    handle.remove()
    return seen, result


QUIET = {
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "save_strategy": "no",
    "logging_steps": 1,
    "seed": 0,
    "lr_scheduler_type": "constant",
}
"""Settings of a trainer in a test."""
