"""Hugging Face classifiers whose every layer is read by the classifier's head, and the rule of their early exits."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from descend.errors import refuse
from descend.models.encoders import LayeredEncoder
from descend.models.own_exits import EXITS

SHARED = frozenset({"rel_embeddings", "position_bias"})
"""Arguments of a block that have no row for each text, although they may have as many rows as the batch."""


class _EveryRowLeft(Exception):
    """Stops a forward pass when all rows of the batch have left."""


class LayeredClassifier(LayeredEncoder):
    """A Hugging Face sequence classifier whose every layer's output is read by the classifier's head.

    h_0 is the embedding output and h_l the output of block l, as in Transformers' ``output_hidden_states``; a final
    norm belongs to the readout. The classifier itself, `network`, is trained and saved.

    Args:
        network: A classifier of one of `FAMILIES`, as `AutoModelForSequenceClassification` loads it, with or without
            PEFT adapters.

    Raises:
        InputError: If the classifier's family is not in the table, it is not a classifier, it has one class only, or it
            reads the last token and has no padding token.
    """

    task_class = "ForSequenceClassification"
    head_field = "head"

    def __init__(self, network: PreTrainedModel):
        super().__init__(network)
        config = self.config
        refuse(
            (
                config.num_labels < 2 or config.problem_type not in (None, "single_label_classification"),
                f"expected a classifier of one label out of at least 2; got num_labels {config.num_labels} and "
                f"problem_type {config.problem_type!r}.",
            ),
            (
                self.is_decoder and config.pad_token_id is None,
                "expected a pad_token_id in the model's configuration: the head reads the last token that is not "
                "padding; got none. Set model.config.pad_token_id to the tokenizer's.",
            ),
        )

    def probe_labels(self, tokens: Tensor) -> dict[str, Tensor]:
        """Each class once, (B,)."""
        return {"labels": torch.arange(len(tokens), device=tokens.device)}

    def readout(self, hidden: Tensor, looks: Tensor | None = None, *, layer: int | None = None) -> Tensor:
        """The logits (B, C) that the classifier's head reads from one layer's output (B, T, H).

        Args:
            hidden: h_l.
            looks: What `looks` gives for the batch, for a head on the mean or on the last token; None for no padding.
            layer: l, to read it by its own exit; None to read it as the last layer is.
        """
        return self.read_by_head(self.pooled(hidden, looks, layer=layer), layer)

    def pooled(self, hidden: Tensor, looks: Tensor | None, *, layer: int | None = None) -> Tensor:
        """The head's input (B, H) at one layer's output (B, T, H), see `readout`."""
        return self.family.pool(self.config, self.norm(layer), hidden, looks)

    reads_together = True

    def read_together(self, states: Sequence[Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
        """The logits (E, B, C) of E layers, by one call of the head."""
        looks = self.looks(inputs)
        pooled = torch.stack([self.pooled(hidden, looks) for hidden in states])
        return self.read_by_head(pooled.flatten(0, 1), None).unflatten(0, pooled.shape[:2])

    @torch.no_grad()
    def temper(self, temperature: float) -> None:
        """Divide all logits by a number from now on, by scaling the weights of each head's last linear layer.

        Args:
            temperature: τ > 0.
        """
        for parameter in self._of_logits:
            parameter.div_(temperature)

    @contextmanager
    def tempered(self, temperature: float) -> Iterator[None]:
        """Divide the logits inside the ``with`` block; after it the weights are bit-identical to before."""
        before = [parameter.detach().clone() for parameter in self._of_logits]
        self.temper(temperature)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._of_logits, before, strict=True):
                    parameter.copy_(value)

    @property
    def can_be_tempered(self) -> bool:
        """Whether the head's last layer is trained and saved; with PEFT, only if ``modules_to_save`` names it."""
        return not hasattr(self.network, "peft_config") or "modules_to_save" in self._logit_layers()[-1][0]

    def _logit_layers(self) -> list[tuple[str, nn.Linear]]:
        """The last layers of the heads and their names; the model's comes last, with PEFT its trained copy."""
        layers = [self._last_of_classes(exit.named_modules()) for exit in self.own_exits or ()]
        rest = ((name, each) for name, each in self.network.named_modules() if not name.startswith(f"{EXITS}."))
        return [*layers, self._last_of_classes(rest)]

    def _last_of_classes(self, named: Iterable[tuple[str, nn.Module]]) -> tuple[str, nn.Linear]:
        layers = [(name, each) for name, each in named if isinstance(each, nn.Linear)]
        return [(name, each) for name, each in layers if each.out_features == self.config.num_labels][-1]

    @property
    def _of_logits(self) -> list[nn.Parameter]:
        return [parameter for _, layer in self._logit_layers() for parameter in layer.parameters()]

    def read(self, states: Sequence[Tensor], inputs: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """The logits (B, C) of every layer."""
        looks = self.looks(inputs)
        return (self.readout(hidden, looks, layer=layer) for layer, hidden in enumerate(states))

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
        given, looks = inputs[name if (name := self.main_input_name) in inputs else "inputs_embeds"], self.looks(inputs)
        size, layer, rows = len(given), 0, torch.arange(len(given), device=given.device)
        left: list[tuple[Tensor, Tensor, Tensor]] = []

        def here(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(here, value))
            whole = isinstance(value, Tensor) and value.shape[:1] == (size,)
            return value[rows] if whole and len(rows) < size else value

        def before(block: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            # Transformers passes the mask of the whole batch to every block.
            return (args[0], *map(here, args[1:])), {
                name: value if name in SHARED else here(value) for name, value in kwargs.items()
            }

        def after(block: nn.Module, args: Any, output: Any) -> Any:
            nonlocal layer, rows
            hidden, others = (output[0], output[1:]) if isinstance(output, tuple) else (output, None)
            layer += 1  # a count of calls: a tied model has one block for all layers
            logits = self.readout(hidden, here(looks), layer=layer)
            leaves = leave(layer, logits, rows) if layer < self.depth else torch.ones_like(rows, dtype=torch.bool)
            gone, staying = leaves.nonzero()[:, 0], (~leaves).nonzero()[:, 0]
            if len(gone):
                left.append((rows[gone], logits[gone], torch.full_like(gone, layer)))
                rows, hidden = rows[staying], hidden[staying]
            if not len(rows):
                raise _EveryRowLeft
            return hidden if others is None else (hidden, *map(here, others))

        blocks = list(self.layer_modules)
        after_first = self.family.after_first
        follows: nn.Module | None = attrgetter(after_first)(self.library.base_model) if after_first else None
        with ExitStack() as hooks, suppress(_EveryRowLeft):
            for block in blocks:
                hooks.enter_context(block.register_forward_pre_hook(before, with_kwargs=True))
            for module in [blocks[0] if follows is None else follows, *blocks[1:]]:
                hooks.enter_context(module.register_forward_hook(after))
            # Call the whole model, not only its encoder, so that hooks for noise and adapters run.
            self(**inputs)
        places, logits, layers = map(torch.cat, zip(*left, strict=True))
        order = places.argsort()
        return logits[order], layers[order]


def leave_at(threshold: float) -> Callable[[int, Tensor, Tensor], Tensor]:
    """The rule as `LayeredClassifier.exits` calls it: a row leaves when its confidence is at least the threshold."""
    return lambda layer, logits, rows: decide(logits)[1] >= threshold


def decide(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely class (R,) of logits (R, C), and its probability (R,)."""
    confidence, decided = logits.float().softmax(-1).max(-1)
    return decided, confidence
