"""Hugging Face models whose head reads every token: token classification and question answering."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models.encoders import FAMILIES, LayeredEncoder
from descend.models.library import MOST_PROBES


class LayeredTokenModel(LayeredEncoder):
    """The base of both: one head of a few modules reads each token of every layer's output."""

    def __init__(self, network: PreTrainedModel):
        super().__init__(network)
        if not self.modules_of_head:
            able = [name for name, family in FAMILIES.items() if family.token_head]
            raise InputError(
                f"model_type must be one of {', '.join(able)} for a model {self.task_class}; got "
                f"{self.config.model_type!r}. Use descend.layered(model, ...)."
            )

    @property
    @abstractmethod
    def modules_of_head(self) -> tuple[str, ...]:
        """The names of the head's modules in the order of their calls."""

    @property
    def last_of_head(self) -> nn.Module:
        """The module that gives the logits."""
        return getattr(self.library, self.modules_of_head[-1])

    def readout(self, hidden: Tensor, looks: Tensor | None = None) -> Tensor:
        """The logits (…, C) that the head reads from tokens (…, H) of one layer's output."""
        if self.family.norm is not None:
            hidden = self.library.base_model.get_submodule(self.family.norm)(hidden)
        for name in self.modules_of_head:
            hidden = getattr(self.library, name)(hidden)
        return hidden

    def predictions(self, inputs: Mapping[str, Any]) -> Iterator[Tensor]:
        """The logits of every layer: (N, C) at the N ``places`` of B·T if ``inputs`` has them, otherwise (B, T, C)."""
        states, places = self.layer_outputs(inputs), inputs.get("places")
        return (self.readout(hidden if places is None else hidden.flatten(0, 1)[places]) for hidden in states)


class LayeredTokenClassifier(LayeredTokenModel):
    """A Hugging Face token classifier whose every layer's output is read by its head.

    Args:
        network: A model of one of `FAMILIES` with a ``token_head``, as `AutoModelForTokenClassification` loads it, with
            or without PEFT adapters.

    Raises:
        InputError: If the model's family is not in the table, or it is no token classifier.
    """

    task_class = "ForTokenClassification"

    @property
    def modules_of_head(self) -> tuple[str, ...]:
        """The names of the head's modules in the order of their calls."""
        return self.family.token_head

    def probe(self) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """As many texts as classes, up to `MOST_PROBES`, with each class as a label."""
        inputs = self.made_up_tokens(min(self.config.num_labels, MOST_PROBES))
        tokens = inputs["input_ids"]
        *_, read = self.predictions(inputs)
        labels = torch.arange(tokens.numel(), device=tokens.device).reshape(tokens.shape) % self.config.num_labels
        return inputs, {"labels": labels}, read

    def cross_entropy(self, logits: Tensor, labels: Mapping[str, Tensor]) -> Tensor:
        """The mean cross-entropy over tokens."""
        return F.cross_entropy(logits.float().flatten(0, 1), labels["labels"].flatten())


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

    @property
    def modules_of_head(self) -> tuple[str, ...]:
        """The names of the head's modules in the order of their calls."""
        return self.family.answer_head

    def probe(self) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """Two short texts, with answers of two tokens."""
        inputs = self.made_up_tokens(2)
        *_, read = self.predictions(inputs)
        starts = torch.arange(2, device=read.device)
        return inputs, {"start_positions": starts, "end_positions": starts + 1}, read

    def cross_entropy(self, logits: Tensor, labels: Mapping[str, Tensor]) -> Tensor:
        """The mean of the cross-entropies of start and end."""
        places = torch.stack([labels["start_positions"], labels["end_positions"]], 1)
        return F.cross_entropy(logits.float().transpose(1, 2).flatten(0, 1), places.flatten())

    def own_logits(self, outputs: Any) -> Tensor | None:
        """The logits of start and end, (B, T, 2); None if there are none."""
        parts = [outputs.get(name) for name in ("start_logits", "end_logits")]
        return None if any(part is None for part in parts) else torch.stack(parts, -1)
