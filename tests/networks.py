"""Small random networks of the library's families."""

import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    PreTrainedModel,
    RobertaConfig,
)

from descend.models import TextUTConfig

SMALL = {"vocab_size": 40, "max_position_embeddings": 20}
WIDE = SMALL | {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 32}
CONFIGS = {
    "distilbert": DistilBertConfig(**SMALL, dim=16, n_heads=2, n_layers=3, hidden_dim=32),
    "bert": BertConfig(**WIDE),
    "roberta": RobertaConfig(**WIDE),
    "descend-text-ut": TextUTConfig(vocab_size=40, hidden_size=16, num_hidden_layers=3, attention_size=8, tied=False),
}


def network(family: str, attention: str = "sdpa", labels: int = 3, **settings: float) -> PreTrainedModel:
    """A classifier with 3 blocks and random weights."""
    torch.manual_seed(0)
    config = type(CONFIGS[family]).from_dict(CONFIGS[family].to_dict() | {"num_labels": labels} | settings)
    # UT's attention is its own.
    chosen = {} if family == "descend-text-ut" else {"attn_implementation": attention}
    return AutoModelForSequenceClassification.from_config(config, **chosen)
