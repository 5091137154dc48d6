"""DistilBERT and RoBERTa with the paper's readout: one linear layer on [CLS] (Sec. 5, B.3)."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    DistilBertConfig,
    DistilBertModel,
    DistilBertPreTrainedModel,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    RobertaPreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput


class DistilBertLinearConfig(DistilBertConfig):
    """Configuration of `DistilBertLinearForSequenceClassification`: the same settings as DistilBERT's."""

    model_type = "descend-distilbert-linear"


class RobertaLinearConfig(RobertaConfig):
    """Configuration of `RobertaLinearForSequenceClassification`: the same settings as RoBERTa's."""

    model_type = "descend-roberta-linear"


class LinearReadout(PreTrainedModel):
    """The base of both classifiers: logits = A·h + b, with h the last hidden state of the first token.

    Transformers' heads for these encoders have two layers with a nonlinearity between them. This head is called
    `score`, a name that they don't use, so that loading a pretrained classifier leaves it newly initialized.
    """

    score: nn.Linear
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
        logits = self.score(self.dropout(encoded.last_hidden_state[:, 0]))
        return SequenceClassifierOutput(
            loss=None if labels is None else F.cross_entropy(logits, labels),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )


class DistilBertLinearForSequenceClassification(LinearReadout, DistilBertPreTrainedModel):
    """DistilBERT with one linear layer on [CLS]."""

    config_class = DistilBertLinearConfig
    config: DistilBertLinearConfig

    def __init__(self, config: DistilBertLinearConfig):
        super().__init__(config)
        self.distilbert = DistilBertModel(config)
        self.dropout = nn.Dropout(config.seq_classif_dropout)
        self.score = nn.Linear(config.dim, config.num_labels or 2)
        self.post_init()


class RobertaLinearForSequenceClassification(LinearReadout, RobertaPreTrainedModel):
    """RoBERTa with one linear layer on its first token, <s>."""

    config_class = RobertaLinearConfig
    config: RobertaLinearConfig

    def __init__(self, config: RobertaLinearConfig):
        super().__init__(config)
        self.roberta = RobertaModel(config, add_pooling_layer=False)
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(config.hidden_size, config.num_labels or 2)
        self.post_init()


def with_linear_readout(config: PreTrainedConfig, kind: type[PreTrainedConfig]) -> PreTrainedConfig:
    """The configuration of a pretrained encoder with a new linear readout, without the classes of an earlier head.

    Args:
        config: The configuration of a DistilBERT or RoBERTa, with or without a head.
        kind: `DistilBertLinearConfig` or `RobertaLinearConfig`.
    """
    head = {"model_type", "architectures", "num_labels", "id2label", "label2id", "problem_type"}
    return kind(**{name: value for name, value in config.to_dict().items() if name not in head})


# Let Transformers' Auto classes load a saved folder, once this package is imported.
for _config, _model in (
    (DistilBertLinearConfig, DistilBertLinearForSequenceClassification),
    (RobertaLinearConfig, RobertaLinearForSequenceClassification),
):
    AutoConfig.register(_config.model_type, _config)
    AutoModelForSequenceClassification.register(_config, _model)
