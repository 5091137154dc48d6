"""Hugging Face models whose head reads every token: token classification and question answering."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models.encoders import FAMILIES, LayeredEncoder


class LayeredTokenModel(LayeredEncoder):
    """The base of both: one head of a few modules reads each token of every layer's output."""

    head_field: ClassVar[str]
    """The field of `Family` that names the head's modules in the order of their calls."""

    def __init__(self, network: PreTrainedModel):
        super().__init__(network)
        self.modules_of_head: tuple[str, ...] = getattr(self.family, self.head_field)
        if not self.modules_of_head:
            able = [name for name, family in FAMILIES.items() if family.token_head]
            raise InputError(
                f"model_type must be one of {', '.join(able)} for a model {self.task_class}; got "
                f"{self.config.model_type!r}. Use descend.layered(model, ...)."
            )

    @property
    def last_of_head(self) -> nn.Module:
        """The module that gives the logits."""
        return getattr(self.library, self.modules_of_head[-1])

    def readout(self, hidden: Tensor) -> Tensor:
        """The logits (…, C) that the head reads from tokens (…, H) of one layer's output."""
        if self.family.norm is not None:
            hidden = self.library.base_model.get_submodule(self.family.norm)(hidden)
        for name in self.modules_of_head:
            hidden = getattr(self.library, name)(hidden)
        return hidden


class LayeredTokenClassifier(LayeredTokenModel):
    """A Hugging Face token classifier whose every layer's output is read by its head.

    Args:
        network: A model of one of `FAMILIES` with a ``token_head``, as `AutoModelForTokenClassification` loads it, with
            or without PEFT adapters.

    Raises:
        InputError: If the model's family is not in the table, or it is no token classifier.
    """

    task_class = "ForTokenClassification"
    head_field = "token_head"

    def probe_labels(self, tokens: Tensor) -> dict[str, Tensor]:
        """Each class in turn, (B, T)."""
        labels = torch.arange(tokens.numel(), device=tokens.device) % self.config.num_labels
        return {"labels": labels.reshape(tokens.shape)}


class LayeredQuestionAnswerer(LayeredTokenModel):
    """A Hugging Face model that marks where an answer starts and ends, whose every layer's output is read by its head.

    A prediction is (B, T, 2): logits of the start and of the end at each token.

    Args:
        network: A model of one of `FAMILIES` with an ``answer_head``, as `AutoModelForQuestionAnswering` loads it, with
            or without PEFT adapters.

    Raises:
        InputError: If the model's family is not in the table, or it answers no questions.
    """

    task_class = "ForQuestionAnswering"
    head_field = "answer_head"

    def probe_labels(self, tokens: Tensor) -> dict[str, Tensor]:
        """Answers of two tokens, each text's at another place."""
        starts = torch.arange(len(tokens), device=tokens.device) % 3
        return {"start_positions": starts, "end_positions": starts + 1}

    def cross_entropy(self, logits: Tensor, labels: Mapping[str, Tensor]) -> Tensor:
        """The mean of the cross-entropies of start and end."""
        places = torch.stack([labels["start_positions"], labels["end_positions"]], 1)
        return super().cross_entropy(logits.transpose(1, 2), {"labels": places})
