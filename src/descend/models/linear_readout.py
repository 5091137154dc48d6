"""Classifiers with one linear layer on the mean of an encoder's last hidden states, or on the first of them.

This file needs PyTorch and Transformers alone. `save_pretrained` puts a copy of it beside the weights, so that the
folder is loaded where Descend is not installed, by ``trust_remote_code=True``. Descend itself never runs such a copy.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class LinearReadout(PreTrainedModel):
    """The base of these classifiers: logits = A·h + b, with h a text's pooled last hidden state.

    Transformers' heads for DistilBERT and RoBERTa have two layers with a nonlinearity between them. This head is called
    `score`, a name that they don't use, so that loading a pretrained classifier leaves it newly initialized.
    """

    head_name = "score"
    dropout: nn.Dropout

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Classify.

        Args:
            input_ids: Tokens (B, T).
            attention_mask: 0 for padding, (B, T).
            inputs_embeds: Embeddings (B, T, H) instead of tokens.
            labels: Classes (B,), for the loss.
            **kwargs: Arguments of the encoder, such as ``output_hidden_states``.

        Returns:
            Logits (B, C), and the mean cross-entropy if labels are given.
        """
        encoded = self.base_model(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )
        hidden = encoded.last_hidden_state
        pooled = hidden[:, 0] if self.config.classifier_pooling == "cls" else masked_mean(hidden, attention_mask)
        logits = getattr(self, self.head_name)(self.dropout(pooled))
        return SequenceClassifierOutput(
            loss=None if labels is None else F.cross_entropy(logits, labels),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )


def masked_mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """The mean (B, H) over the tokens of ``hidden`` (B, T, H) where ``mask`` (B, T) is true; over all for None."""
    if mask is None:
        return hidden.mean(1)
    weights = mask.to(hidden.dtype)
    return torch.einsum("bth,bt->bh", hidden, weights) / weights.sum(1, keepdim=True).clamp(min=1)


def _of_encoder(name: str) -> Any:
    """A field of the encoder's configuration, to read and to change, as `resize_token_embeddings` does."""
    return property(
        lambda config: getattr(config.encoder, name), lambda config, value: setattr(config.encoder, name, value)
    )


class EncoderInside(PreTrainedConfig):
    """Configuration of a model around an encoder of any family.

    Args:
        encoder: The encoder's configuration, or its entries with ``model_type``.
    """

    has_no_defaults_at_init = True

    def __init__(self, encoder: PreTrainedConfig | dict[str, Any], **kwargs: Any):
        self.take(AutoConfig.for_model(**encoder) if isinstance(encoder, dict) else encoder)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):  # the trainer aligns them with the tokenizer's
            kwargs.setdefault(name, getattr(self.encoder, name, None))
        super().__init__(**kwargs)

    def take(self, encoder: PreTrainedConfig) -> None:
        """Make a configuration the encoder's."""
        encoder.use_cache = False  # a decoder's keys and values, which a classifier needs once
        encoder.dtype = None  # that of the whole model
        encoder.name_or_path = ""  # saved it would name a folder of this machine
        self.encoder = encoder

    num_hidden_layers = _of_encoder("num_hidden_layers")
    vocab_size = _of_encoder("vocab_size")


class MeanPooledConfig(EncoderInside):
    """Configuration of `MeanPooledForSequenceClassification`.

    Args:
        encoder: The encoder's configuration, or its entries with ``model_type``.
        dropout: Dropout rate of the pooled state.
        classifier_pooling: ``mean``, that of the tokens that are no padding; or ``cls``, the first token.
    """

    model_type = "descend-mean-pooled"

    def __init__(
        self,
        encoder: PreTrainedConfig | dict[str, Any],
        dropout: float = 0.1,
        classifier_pooling: str = "mean",
        **kwargs: Any,
    ):
        if classifier_pooling not in ("mean", "cls"):
            raise ValueError(f"classifier_pooling must be mean or cls; got {classifier_pooling!r}.")
        self.dropout, self.classifier_pooling = dropout, classifier_pooling
        super().__init__(encoder, **kwargs)


class MeanPooledForSequenceClassification(LinearReadout):
    """Any encoder that `AutoModel` loads, or a decoder, with one linear layer on the mean of its last hidden states.

    Or on the first of them alone, as ``classifier_pooling`` says.

    Args:
        config: Its configuration.
        encoder: The pretrained encoder; None for a new one.
    """

    config_class = MeanPooledConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    # The encoder chooses its attention itself.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True
    config: MeanPooledConfig

    def __init__(self, config: MeanPooledConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.encoder: Any = (
            AutoModel.from_config(config.encoder, trust_remote_code=False) if encoder is None else encoder
        )
        config.take(self.encoder.config)  # its own knows its attention, which makes its mask
        if hasattr(self.encoder, "pooler"):
            self.encoder.pooler = nn.Identity()  # the linear layer takes its place
        self.dropout = nn.Dropout(config.dropout)
        self.score = nn.Linear(config.encoder.hidden_size, config.num_labels or 2)
        self.post_init()


MeanPooledConfig.register_for_auto_class()
MeanPooledForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
