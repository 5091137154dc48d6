"""Small models of Transformers' families, with random weights."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    PreTrainedModel,
)

from descend.models import MeanPooledConfig, TextUTConfig
from descend.models.library import PER_LAYER

SMALL = {"vocab_size": 40, "max_position_embeddings": 20}
WIDE = SMALL | {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 32}
NARROW = {"dim": 16, "n_heads": 2, "n_layers": 3, "hidden_dim": 32}
SPECIAL = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
DECODER = WIDE | SPECIAL | {"num_key_value_heads": 1}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
HEADS = {"head_dim": 8}
# As many relative positions as a batch of the tests has texts, of which they are none.
RELATIVE = {"pooler_hidden_size": 16, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
ENCODERS = {
    "distilbert": SMALL | {"dim": 16, "n_heads": 2, "n_layers": 3, "hidden_dim": 32},
    "bert": WIDE,
    "ernie": WIDE,
    "fnet": WIDE,
    "luke": WIDE | {"entity_vocab_size": 8, "entity_emb_size": 8, "bos_token_id": 2, "eos_token_id": 3},
    "markuplm": WIDE | {"max_depth": 2, "xpath_unit_hidden_size": 4, "bos_token_id": 2, "eos_token_id": 3},
    "mobilebert": WIDE | {"embedding_size": 8, "intra_bottleneck_size": 8, "true_hidden_size": 8},
    "rembert": WIDE | {"input_embedding_size": 8, "bos_token_id": 2, "eos_token_id": 3},
    "roc_bert": WIDE
    | {"pronunciation_embed_dim": 8, "pronunciation_vocab_size": 40, "shape_embed_dim": 8, "shape_vocab_size": 40},
    "megatron-bert": WIDE,
    "layoutlm": WIDE | {"max_2d_position_embeddings": 8},
    "gte": WIDE | HEADS,
    "nomic_bert": WIDE | HEADS,
    "roberta": WIDE,
    "xlm-roberta": WIDE,
    "camembert": WIDE,
    "data2vec-text": WIDE,
    "mpnet": WIDE,
    "xlm-roberta-xl": WIDE,
    "roberta-prelayernorm": WIDE,
    # As ESM-2: token 4 stands for a masked residue.
    "esm": WIDE | {"pad_token_id": 1, "mask_token_id": 4, "position_embedding_type": "rotary", "token_dropout": True},
    "electra": WIDE | {"embedding_size": 24},
    "convbert": WIDE | {"embedding_size": 8, "conv_kernel_size": 3, "head_ratio": 1},
    "roformer": WIDE | {"embedding_size": 8},
    "yoso": WIDE,
    "jina_embeddings_v3": WIDE,
    "albert": WIDE | {"embedding_size": 8, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "deberta": WIDE | RELATIVE | {"max_relative_positions": 4, "position_biased_input": False},
    "deberta-v2": WIDE
    | RELATIVE
    | {"position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False},
    "modernbert": WIDE
    | SPECIAL
    | {"local_attention": 4, "cls_token_id": 2, "sep_token_id": 3}
    | {"embedding_dropout": 0.1, "mlp_dropout": 0.1, "classifier_dropout": 0.1},
    "modernbert-decoder": WIDE | SPECIAL | {"local_attention": 4, "cls_token_id": 2, "sep_token_id": 3},
    **dict.fromkeys(("llama", "arcee", "exaone4", "mistral", "nemotron", "olmo", "olmo2", "phi3", "qwen2"), DECODER),
    **dict.fromkeys(("smollm3", "stablelm", "starcoder2", "phi", "persimmon", "gpt2", "falcon"), DECODER),
    **dict.fromkeys(("gpt_bigcode", "gpt_neox", "biogpt"), DECODER),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "glm", "glm4", "helium", "hunyuan_v1_dense"), DECODER | HEADS),
    **dict.fromkeys(("ministral", "ministral3", "qwen3", "seed_oss"), DECODER | HEADS),
    "diffllama": DECODER | {"num_key_value_heads": 2},
    "gpt_oss": DECODER | HEADS | LOCAL_EXPERTS,
    "mixtral": DECODER | LOCAL_EXPERTS,
    "olmo3": DECODER | {"sliding_window": 4},
    "qwen2_moe": DECODER | EXPERTS | {"shared_expert_intermediate_size": 16},
    "qwen3_moe": DECODER | EXPERTS | HEADS,
    "gptj": DECODER | {"rotary_dim": 4},
    # As many heads, each with its bias, as a batch of the tests has texts.
    "mpt": DECODER | {"max_seq_len": 20, "num_attention_heads": 8},
    "opt": DECODER | {"ffn_dim": 32, "word_embed_proj_dim": 16},
}
CONFIGS = {name: AutoConfig.for_model(name, **settings) for name, settings in ENCODERS.items()} | {
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
    "beit": {},
    "ijepa": {},
}


def image_network(family: str = "vit", labels: int = 3, **settings: Any) -> PreTrainedModel:
    """A classifier of images of 8×8 pixels with 3 blocks and random weights."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **PIXELS | IMAGES[family] | {"num_labels": labels} | settings)
    return AutoModelForImageClassification.from_config(config)


OWN_ATTENTION = (
    *("descend-mean-pooled", "descend-text-ut", "deberta", "deberta-v2", "mpnet", "convbert", "megatron-bert"),
    *("fnet", "luke", "markuplm", "rembert", "roformer", "yoso", "mpt", "gemma2", "gpt_oss", "gptj"),
)
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


UNNAMED = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CAUSAL = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "olmo2"), UNNAMED),
    **dict.fromkeys(("apertus", "arcee", "bitnet", "exaone4", "flex_olmo", "nemotron", "olmo"), UNNAMED),
    **dict.fromkeys(("olmoe", "phi", "phi3", "gpt2", "gpt_neox", "gpt_bigcode", "falcon"), UNNAMED),
    **dict.fromkeys(("smollm3", "stablelm", "starcoder2", "persimmon", "biogpt"), UNNAMED),
    **dict.fromkeys(("cwm", "ernie4_5", "glm", "glm4", "helium", "hunyuan_v1_dense"), UNNAMED | HEADS),
    **dict.fromkeys(("gemma", "ministral", "ministral3", "qwen3", "seed_oss"), UNNAMED | HEADS),
    **dict.fromkeys(("gemma2", "gemma3_text", "vaultgemma"), HEADS | {"final_logit_softcapping": 3.0}),
    "diffllama": UNNAMED | {"num_key_value_heads": 2},
    "gpt_oss": UNNAMED | HEADS | LOCAL_EXPERTS,
    "mixtral": UNNAMED | LOCAL_EXPERTS,
    "phimoe": UNNAMED | LOCAL_EXPERTS,
    "olmo3": UNNAMED | {"sliding_window": 4},
    "qwen2_moe": UNNAMED | EXPERTS | {"shared_expert_intermediate_size": 16},
    "qwen3_moe": HEADS | EXPERTS,
    "granite": {"logits_scaling": 4.0},
    "granitemoe": UNNAMED | LOCAL_EXPERTS | {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.25},
    "cohere2": UNNAMED | {"logit_scale": 0.25},
    "gptj": UNNAMED | {"rotary_dim": 4},
    "opt": UNNAMED | {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "xglm": UNNAMED | {"ffn_dim": 32},
}
EAGER = ("gemma2", "gpt_oss", "gptj", "vaultgemma", "xglm")
"""Language models whose attention SDPA can't compute."""


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
