"""Small models of Transformers' families, with random weights."""

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    PreTrainedModel,
    RobertaConfig,
)

from descend.models import DistilBertLinearConfig, RobertaLinearConfig, TextUTConfig

SMALL = {"vocab_size": 40, "max_position_embeddings": 20}
WIDE = SMALL | {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 32}
NARROW = {"dim": 16, "n_heads": 2, "n_layers": 3, "hidden_dim": 32}
CONFIGS = {
    "distilbert": DistilBertConfig(**SMALL, **NARROW),
    "bert": BertConfig(**WIDE),
    "roberta": RobertaConfig(**WIDE),
    "descend-distilbert-linear": DistilBertLinearConfig(**SMALL, **NARROW),
    "descend-roberta-linear": RobertaLinearConfig(**WIDE),
    "descend-text-ut": TextUTConfig(vocab_size=40, hidden_size=16, num_hidden_layers=3, attention_size=8, tied=False),
}


def network(family: str, attention: str = "sdpa", labels: int = 3, **settings: float) -> PreTrainedModel:
    """A classifier with 3 blocks and random weights."""
    torch.manual_seed(0)
    config = type(CONFIGS[family]).from_dict(CONFIGS[family].to_dict() | {"num_labels": labels} | settings)
    # UT's attention is its own.
    chosen = {} if family == "descend-text-ut" else {"attn_implementation": attention}
    return AutoModelForSequenceClassification.from_config(config, **chosen)


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
    "smollm3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "granite": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.25},
}


def causal(family: str = "llama", attention: str = "sdpa", **settings: object) -> PreTrainedModel:
    """A causal language model with 3 blocks and random weights."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
    }
    config = AutoConfig.for_model(family, **sizes | CAUSAL[family] | settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


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
