"""UT as a classifier of texts: on word embeddings, with a linear head on the mean token (the paper's Sec. 5, B.3)."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from descend.errors import InputError, refuse
from descend.models.linear_readout import LinearReadout, MeanPooledConfig, MeanPooledForSequenceClassification
from descend.models.ut import symmetric_attention, symmetric_feedforward


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
