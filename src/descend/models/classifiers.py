"""Hugging Face classifiers whose every layer is read by the classifier's head."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models.library import MOST_PROBES, LibraryModel
from descend.models.linear import DistilBertLinearConfig, RobertaLinearConfig
from descend.models.text_ut import masked_mean


class Family(NamedTuple):
    """A row of `FAMILIES`: the parts of a classifier that have different names in each model family.

    Attributes:
        pool: (hidden state (B, T, H), mask (B, T) or None) → the head's input (B, H).
        head: (classifier, the head's input) → logits (B, C).
        blocks: The dotted name of the blocks, from the classifier's ``base_model``.
        longest: Configuration → the longest text in tokens; None if the model has no positions.
    """

    pool: Callable[[Tensor, Tensor | None], Tensor]
    head: Callable[[Any, Tensor], Tensor]
    blocks: str
    longest: Callable[[Any], int] | None


def _first(hidden: Tensor, mask: Tensor | None) -> Tensor:
    return hidden[:, 0]


def _distilbert(model: Any, pooled: Tensor) -> Tensor:
    return model.classifier(model.dropout(F.relu(model.pre_classifier(pooled))))


# These two heads take the first token themselves.
def _bert(model: Any, pooled: Tensor) -> Tensor:
    return model.classifier(model.dropout(model.bert.pooler(pooled[:, None])))


def _roberta(model: Any, pooled: Tensor) -> Tensor:
    return model.classifier(pooled[:, None])


def _text_ut(model: Any, pooled: Tensor) -> Tensor:
    return model.classifier(model.dropout(pooled))


def _score(model: Any, pooled: Tensor) -> Tensor:
    return model.score(model.dropout(pooled))


def _positions(config: Any) -> int:
    return config.max_position_embeddings


def _positions_after_padding(config: Any) -> int:
    return config.max_position_embeddings - config.pad_token_id - 1


FAMILIES: dict[str, Family] = {
    "distilbert": Family(_first, _distilbert, "transformer.layer", _positions),
    "bert": Family(_first, _bert, "encoder.layer", _positions),
    "roberta": Family(_first, _roberta, "encoder.layer", _positions_after_padding),
    DistilBertLinearConfig.model_type: Family(_first, _score, "transformer.layer", _positions),
    RobertaLinearConfig.model_type: Family(_first, _score, "encoder.layer", _positions_after_padding),
    "descend-text-ut": Family(masked_mean, _text_ut, "layers", None),
}
"""``config.model_type`` → the model family. Transformers has common names for embeddings and hidden states, but not for
heads and blocks."""


class _EveryRowLeft(Exception):
    """Stops a forward pass when all rows of the batch have left."""


class LayeredClassifier(LibraryModel):
    """A Hugging Face sequence classifier whose every layer's output is read by the classifier's head.

    h_0 is the embedding output and h_l the output of block l, as in Transformers' ``output_hidden_states``. The
    classifier itself, `network`, is trained and saved.

    Args:
        network: A classifier of one of `FAMILIES`, as `AutoModelForSequenceClassification` loads it, with or without
            PEFT adapters.

    Raises:
        InputError: If the classifier's family is not in the table, it is not a classifier, or it has one class only.
    """

    def __init__(self, network: PreTrainedModel):
        super().__init__(network)
        config, kind = self.config, self.config.model_type
        if kind not in FAMILIES:
            raise InputError(
                f"model_type must be one of {', '.join(FAMILIES)}; got {kind!r}. To add a family, give "
                "descend.models.classifiers.FAMILIES a row: what of a hidden state its head looks at, the head, where "
                "its blocks are, and its longest text."
            )
        if not any(each.__name__.endswith("ForSequenceClassification") for each in type(self.library).__mro__):
            raise InputError(
                f"expected a sequence classifier; got {type(self.library).__name__}. Load it with "
                "AutoModelForSequenceClassification."
            )
        if config.num_labels < 2 or config.problem_type not in (None, "single_label_classification"):
            raise InputError(
                f"expected a classifier of one label out of at least 2; got num_labels {config.num_labels} and "
                f"problem_type {config.problem_type!r}."
            )
        self.family = FAMILIES[kind]

    @property
    def limits(self) -> dict[str, int]:
        """The number of labels, the size of the vocabulary, and the longest text in tokens."""
        longest = {} if self.family.longest is None else {"length": self.family.longest(self.config)}
        return {"labels": self.config.num_labels, "vocabulary": self.config.vocab_size, **longest}

    @property
    def layer_modules(self) -> Iterable[nn.Module]:
        """The blocks of the Hugging Face model."""
        return self.library.base_model.get_submodule(self.family.blocks)

    def probe(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """One text for each class, up to `MOST_PROBES`, so that class weights change the loss."""
        embedding: Tensor = self.library.get_input_embeddings().weight
        count = min(self.config.num_labels, MOST_PROBES)
        tokens = torch.arange(4 * count, device=embedding.device).reshape(count, 4) % (len(embedding) - 4) + 4
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        *_, read = self.predictions(inputs)
        return inputs, torch.arange(count, device=embedding.device), read

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy over texts."""
        return F.cross_entropy(logits.float(), labels)

    def layer_outputs(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """h_0 … h_L, each (B, T, H), of a tokenizer's fields, such as ``input_ids`` and ``attention_mask``."""
        return self.library.base_model(**inputs, output_hidden_states=True).hidden_states

    def embedded(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of the same forward pass with words' embeddings, ``inputs_embeds``, in place of ``input_ids``."""
        others = {name: value for name, value in inputs.items() if name != "input_ids"}
        if "input_ids" not in inputs:
            return others
        ids, base = inputs["input_ids"], self.library.base_model
        places = getattr(getattr(base, "embeddings", None), "create_position_ids_from_input_ids", None)
        if places is not None and "position_ids" not in others:  # RoBERTa counts what is no padding
            others["position_ids"] = places(ids, base.embeddings.padding_idx)
        return others | {"inputs_embeds": self.get_input_embeddings()(ids)}

    def readout(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """The logits (B, C) that the classifier's head reads from one layer's output (B, T, H).

        Args:
            hidden: h_l.
            mask: 0 for padding, (B, T), for a head on the mean over tokens; None for no padding.
        """
        return self.family.head(self.library, self.family.pool(hidden, mask))

    reads_together = True

    def read_together(self, states: Sequence[Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
        """The logits (E, B, C) of E layers, by one call of the head."""
        mask = inputs.get("attention_mask")
        pooled = torch.stack([self.family.pool(hidden, mask) for hidden in states])
        return self.family.head(self.library, pooled.flatten(0, 1)).unflatten(0, pooled.shape[:2])

    @torch.no_grad()
    def temper(self, temperature: float) -> None:
        """Divide all logits by a number from now on, by scaling the weights of the head's last linear layer.

        Args:
            temperature: τ > 0.
        """
        for parameter in self._logit_layer.parameters():
            parameter.div_(temperature)

    @contextmanager
    def tempered(self, temperature: float) -> Iterator[None]:
        """Divide the logits inside the ``with`` block; after it the weights are bit-identical to before."""
        before = [parameter.detach().clone() for parameter in self._logit_layer.parameters()]
        self.temper(temperature)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._logit_layer.parameters(), before, strict=True):
                    parameter.copy_(value)

    @property
    def can_be_tempered(self) -> bool:
        """Whether the head's last layer is trained and saved; with PEFT, only if ``modules_to_save`` names it."""
        return not hasattr(self.network, "peft_config") or "modules_to_save" in self._named_logit_layer[0]

    @property
    def _logit_layer(self) -> nn.Linear:
        return self._named_logit_layer[1]

    @property
    def _named_logit_layer(self) -> tuple[str, nn.Linear]:
        """The head's last layer; with PEFT, the trained copy of it if there is one."""
        layers = [(name, each) for name, each in self.named_modules() if isinstance(each, nn.Linear)]
        return [(name, each) for name, each in layers if each.out_features == self.config.num_labels][-1]

    def predictions(self, inputs: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """The logits (B, C) of every layer."""
        mask = inputs.get("attention_mask")
        return (self.readout(hidden, mask) for hidden in self.layer_outputs(inputs))

    def exits(
        self, inputs: Mapping[str, Tensor], leave: Callable[[int, Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The logits of a forward pass with early exits: a row is not computed further after it has left.

        For inference with eager or SDPA attention, in one thread at a time, because it hooks the model's blocks.

        Args:
            inputs: As in `layer_outputs`, a batch of B rows.
            leave: Decides after each layer l = 1 … L−1 which rows leave: (l, logits (R, C) of the R remaining rows,
                their indices (R,) in the batch) → bool (R,). After layer L all rows leave.

        Returns:
            The logits (B, C) with which each row left, and the layer (B,) after which it left.
        """
        tokens, mask = inputs["input_ids" if "input_ids" in inputs else "inputs_embeds"], inputs.get("attention_mask")
        size, layer, rows = len(tokens), 0, torch.arange(len(tokens), device=tokens.device)
        left: list[tuple[Tensor, Tensor, Tensor]] = []

        def here(value: Any) -> Any:
            whole = isinstance(value, Tensor) and value.shape[:1] == (size,)
            return value[rows] if whole and len(rows) < size else value

        def before(block: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            # Transformers passes the mask of the whole batch to every block.
            return (args[0], *map(here, args[1:])), {name: here(value) for name, value in kwargs.items()}

        def after(block: nn.Module, args: Any, hidden: Tensor) -> Tensor:
            nonlocal layer, rows
            layer += 1  # a count of calls: a tied model has one block for all layers
            logits = self.readout(hidden, here(mask))
            leaves = leave(layer, logits, rows) if layer < self.depth else torch.ones_like(rows, dtype=torch.bool)
            gone, staying = leaves.nonzero()[:, 0], (~leaves).nonzero()[:, 0]
            if len(gone):
                left.append((rows[gone], logits[gone], torch.full_like(gone, layer)))
                rows, hidden = rows[staying], hidden[staying]
            if not len(rows):
                raise _EveryRowLeft
            return hidden

        handles = []
        for block in self.layer_modules:
            handles += [
                block.register_forward_pre_hook(before, with_kwargs=True),
                block.register_forward_hook(after),
            ]
        try:
            # Call the whole model, not only its encoder, so that hooks for noise and adapters run.
            self(**inputs)
        except _EveryRowLeft:
            pass
        finally:
            for handle in handles:
                handle.remove()
        places, logits, layers = map(torch.cat, zip(*left, strict=True))
        order = places.argsort()
        return logits[order], layers[order]
