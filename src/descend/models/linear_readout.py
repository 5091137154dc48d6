"""Classifiers of texts with a linear readout of the first token (the paper's, Sec. 5, B.3), or of the mean token."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from descend.errors import InputError, refuse
from descend.models.ut import symmetric_attention, symmetric_feedforward


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


class MeanPooledConfig(PreTrainedConfig):
    """Configuration of `MeanPooledForSequenceClassification`.

    Args:
        encoder: The encoder's configuration, or its entries with ``model_type``.
        dropout: Dropout rate of the pooled state.
        classifier_pooling: ``mean``, that of the tokens that are no padding; or ``cls``, the first token.
    """

    model_type = "descend-mean-pooled"
    has_no_defaults_at_init = True

    def __init__(
        self,
        encoder: PreTrainedConfig | dict[str, Any],
        dropout: float = 0.1,
        classifier_pooling: str = "mean",
        **kwargs: Any,
    ):
        if classifier_pooling not in ("mean", "cls"):
            raise InputError(f"classifier_pooling must be mean or cls; got {classifier_pooling!r}.")
        self.take(AutoConfig.for_model(**encoder) if isinstance(encoder, dict) else encoder)
        self.dropout, self.classifier_pooling = dropout, classifier_pooling
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


class TextUTConfig(PreTrainedConfig):
    """Configuration of `TextUTForSequenceClassification`.

    Args:
        vocab_size: Rows of the word embedding.
        hidden_size: H, the size of a word's embedding and of every hidden state.
        num_hidden_layers: L, the number of layers.
        attention_size: Dimension r of the attention's projection W.
        tied: Whether all layers share one set of weights.
        dropout: Dropout rate of the word embedding and of the pooled state.
        initializer_range: Standard deviation of a new word embedding.
        pad_token_id: The padding token.
    """

    model_type = "descend-text-ut"
    classifier_pooling = "mean"

    def __init__(
        self,
        vocab_size: int = 30522,
        hidden_size: int = 128,
        num_hidden_layers: int = 5,
        attention_size: int = 64,
        tied: bool = True,
        dropout: float = 0.1,
        initializer_range: float = 0.1,
        pad_token_id: int = 0,
        **kwargs: Any,
    ):
        refuse(
            (num_hidden_layers < 1, f"num_hidden_layers must be at least 1; got {num_hidden_layers}."),
            (attention_size < 1, f"attention_size must be at least 1; got {attention_size}."),
        )
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.attention_size = attention_size
        self.tied = tied
        self.dropout = dropout
        self.initializer_range = initializer_range
        self.pad_token_id = pad_token_id
        super().__init__(**kwargs)


class TextUTLayer(GradientCheckpointingLayer):
    """One layer, eq. (47) then (48): symmetric attention among the words of a text, then symmetric feed-forward."""

    def __init__(self, config: TextUTConfig):
        super().__init__()
        self.projection = nn.Parameter(torch.empty(config.attention_size, config.hidden_size))
        self.feedforward = nn.Parameter(torch.empty(config.hidden_size, config.hidden_size))

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """h_l of h_{l−1}, both (B, T, H); padding, where ``mask`` (B, T) is 0, is not attended to."""
        # ‖W y‖² / √r in the exponent, as in scaled dot-product attention.
        projection = self.projection / self.projection.shape[0] ** 0.25
        attended = symmetric_attention(hidden, projection, mask=mask)
        return symmetric_feedforward(attended, (self.feedforward + self.feedforward.mT) / 2)


class TextUTPreTrainedModel(PreTrainedModel):
    """The base class that Transformers needs for a model family."""

    config_class = TextUTConfig
    base_model_prefix = "ut"
    supports_gradient_checkpointing = True
    config: TextUTConfig

    def _init_weights(self, module: nn.Module) -> None:
        """Xavier initialization of W, S and the head, as in the paper; a normal distribution for word embeddings."""
        if isinstance(module, TextUTLayer):
            init.xavier_uniform_(module.projection)
            init.xavier_uniform_(module.feedforward)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.initializer_range)


class TextUT(TextUTPreTrainedModel):
    """The encoder: tokens in, L+1 hidden states out. X_0 is the word embedding without positions, as in the paper."""

    _input_embed_layer = "embeddings"

    def __init__(self, config: TextUTConfig):
        super().__init__(config)
        self.embeddings: nn.Module = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            [TextUTLayer(config) for _ in range(1 if config.tied else config.num_hidden_layers)]
        )
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool = False,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode.

        Args:
            input_ids: Tokens (B, T).
            attention_mask: 0 for padding, (B, T).
            inputs_embeds: Embeddings (B, T, H) instead of tokens.
            output_hidden_states: Whether to return h_0 … h_L too.
            **kwargs: A tokenizer's other fields, such as ``token_type_ids``: not used.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("expected either input_ids or inputs_embeds; got both or neither.")
        hidden = self.dropout(self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds)
        states = [hidden]
        for index in range(self.config.num_hidden_layers):
            hidden = self.layers[0 if self.config.tied else index](hidden, attention_mask)
            states.append(hidden)
        return BaseModelOutput(last_hidden_state=hidden, hidden_states=tuple(states) if output_hidden_states else None)


class TextUTForSequenceClassification(LinearReadout, TextUTPreTrainedModel):
    """UT on word embeddings with a linear head on the mean token."""

    head_name = "classifier"

    def __init__(self, config: TextUTConfig):
        super().__init__(config)
        self.ut = TextUT(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 2)
        self.post_init()


# Let Transformers' Auto classes load a saved folder, once this package is imported.
for _config, _model in (
    (MeanPooledConfig, MeanPooledForSequenceClassification),
    (TextUTConfig, TextUTForSequenceClassification),
):
    AutoConfig.register(_config.model_type, _config)
    AutoModelForSequenceClassification.register(_config, _model)
