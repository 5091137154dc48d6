"""The language modelling task: predict each next token."""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from descend.tasks.base import GROUP
from descend.tasks.text.classification import IGNORED, LogitTask, check_token_labels
from descend.transfer import sent

LOCATED = "located"
"""The field of a batch that holds its `Located` targets."""


class Located:
    """Where the next token is a target, known on the host since the batch was collated.

    Looking for it on a GPU would make the host wait. This class is not a tensor because Accelerate would upload that at
    once and wait.

    Args:
        labels: Of a batch, on the CPU, (B, T).
    """

    def __init__(self, labels: Tensor):
        self._places = {labels.device: _places(labels)}

    def __len__(self) -> int:
        return len(next(iter(self._places.values())))

    def on(self, device: torch.device) -> Tensor:
        """The places (N,) on a device, as `NextToken.inputs` gives them."""
        if device not in self._places:
            self._places[device] = sent(next(iter(self._places.values())), device)
        return self._places[device]


def _places(labels: Tensor) -> Tensor:
    """Where the next token is a target, among all B·T tokens, (N,) in ascending order."""
    return F.pad(labels[:, 1:] != IGNORED, (0, 1)).flatten().nonzero().flatten()  # no token follows the last one


class NextToken(LogitTask):
    """Predict the next token wherever its label is not ignored.

    A target is a token. The loss is the cross-entropy, averaged over target tokens. The metric is the token accuracy in
    [0, 1] with teacher forcing: each prediction is made from the true tokens before it.
    """

    metric = "token_accuracy"

    def inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch without its labels and groups, and ``places`` (N,): the tokens, of B·T, before a target."""
        others = {name: value for name, value in batch.items() if name not in ("labels", GROUP, LOCATED)}
        return others | {"places": self._places_of(batch)}

    def target(self, batch: dict[str, Any]) -> Tensor:
        """The target tokens, (N,), one text after the other."""
        return batch["labels"].flatten()[self._places_of(batch) + 1]

    @staticmethod
    def located(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
        """The batch of a collator, which then knows where its targets are: no step waits for a GPU to find them."""
        batch = collate(samples)
        if isinstance(batch, MutableMapping) and isinstance(batch.get("labels"), Tensor):
            batch[LOCATED] = Located(batch["labels"])
        return batch

    @staticmethod
    def grouped(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
        """The batch of a collator with the ``group`` of its samples, which TRL's drops."""
        batch = collate(samples)
        if isinstance(samples[0], Mapping) and isinstance(samples[0].get(GROUP), int):
            batch[GROUP] = torch.tensor([sample[GROUP] for sample in samples])
        return batch

    @staticmethod
    def _places_of(batch: dict[str, Any]) -> Tensor:
        labels = batch["labels"]
        return batch[LOCATED].on(labels.device) if LOCATED in batch else _places(labels)

    def owners(self, batch: dict[str, Any]) -> Tensor:
        """The text of the batch that each target belongs to, (N,)."""
        labels, positions = batch["labels"], batch.get("position_ids")
        if positions is None:
            texts = torch.arange(len(labels), device=labels.device)[:, None].expand_as(labels)
        else:  # packed: a text begins where position_ids restart
            texts = (positions == 0).flatten().cumsum(0).reshape(labels.shape) - 1
        return texts[:, 1:][labels[:, 1:] != IGNORED]

    def check_targets(self, dataset: Any, lengths: Any, limits: dict[str, int]) -> None:
        """Raise an error unless each token has a label, `IGNORED` or one of the model's ``vocabulary``."""
        check_token_labels(dataset, lengths, limits.get("vocabulary"))
