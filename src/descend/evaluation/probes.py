"""Linear probes: the information in each layer of a classifier, whether or not its own head can read it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset

from descend.evaluation.layers import Batches
from descend.models.classifiers import LayeredClassifier
from descend.noise import Noise
from descend.tasks import Task

MOST = 5000
"""Samples that probes are fitted to: enough for a linear layer, and their features fit into memory."""

RIDGES = (1.0, 10.0, 100.0, 1000.0, 10000.0)
"""What ‖W‖²/2 may weigh against the sum of losses."""


class Probed(nn.Module):
    """A classifier whose layers are read by the shared head, and by one linear probe each.

    Args:
        classifier: The classifier.
        probes: One linear layer for each of h_0 … h_L, on what the head looks at.
    """

    def __init__(self, classifier: LayeredClassifier, probes: nn.ModuleList):
        super().__init__()
        self.classifier, self.probes = classifier, probes

    @property
    def library(self) -> nn.Module:
        """The classifier's module of Transformers."""
        return self.classifier.library

    def get_input_embeddings(self) -> nn.Module:
        """The classifier's."""
        return self.classifier.get_input_embeddings()

    def predictions(self, inputs: Any) -> Iterator[Tensor]:
        """Logits (B, C) of h_0 … h_L by the classifier's head, then by the probes, from one forward pass."""
        looks, states = self.classifier.looks(inputs), self.classifier.layer_outputs(inputs)
        yield from self.classifier.read(states, inputs)
        for probe, hidden in zip(self.probes, states, strict=True):
            yield probe(self.classifier.pooled(hidden, looks))


def fit_probes(
    classifier: LayeredClassifier,
    task: Task,
    train: Dataset,
    validation: Dataset,
    noise: Noise,
    batches: Batches,
) -> Probed:
    """Fit a logistic regression to every layer, its ridge chosen by the loss on validation samples.

    Args:
        classifier: What to probe; it is not changed.
        task: The samples' loss.
        train: Samples to fit to; the first `MOST` are used.
        validation: Samples to choose each layer's ridge on, of `RIDGES`: a classifier has seen its training samples,
            and tells them apart better than others.
        noise: The kind that is evaluated, at the training's level.
        batches: How samples become batches.
    """
    classifier.eval()

    @torch.no_grad()
    def features(dataset: Dataset) -> tuple[Tensor, Tensor]:
        """The head's inputs, (L+1, S, H), and the targets (S,)."""
        some = Subset(dataset, range(min(MOST, len(dataset))))  # type: ignore[arg-type]
        pooled: list[Tensor] = []
        targets: list[Tensor] = []
        for batch in batches.of(some):
            first = sum(map(len, targets))
            targets.append(task.target(batch).cpu())
            numbers = range(first, first + len(targets[-1]))
            inputs = task.inputs(batch)
            looks = classifier.looks(inputs)
            with noise.on(classifier, mask=task.mask(batch), indices=numbers):
                states = [classifier.pooled(hidden, looks) for hidden in classifier.layer_outputs(inputs)]
                pooled.append(torch.stack(states).double().cpu())
        return torch.cat(pooled, 1), torch.cat(targets)

    (fitted, target), (held, held_target) = features(train), features(validation)
    probes = []
    for layer, held_layer in zip(fitted, held, strict=True):
        candidates = [_fit(layer, target, classifier.limits["labels"], ridge) for ridge in RIDGES]
        losses = [F.cross_entropy(probe(held_layer), held_target).item() for probe in candidates]
        probes.append(candidates[losses.index(min(losses))])
    return Probed(classifier, nn.ModuleList(probes).float().to(batches.device))


def _fit(features: Tensor, target: Tensor, classes: int, ridge: float) -> nn.Linear:
    """A linear layer on features (S, H): fitted on standardised features, then expressed for the raw ones."""
    mean, spread = features.mean(0), features.std(0).clamp(min=1e-6)
    scaled = (features - mean) / spread
    weight = torch.zeros(classes, features.shape[1], dtype=features.dtype, requires_grad=True)
    bias = torch.zeros(classes, dtype=features.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        fit = F.cross_entropy(F.linear(scaled, weight, bias), target, reduction="sum")
        value = (fit + ridge * weight.square().sum() / 2) / len(target)
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    probe = nn.Linear(features.shape[1], classes, dtype=features.dtype)
    with torch.no_grad():
        probe.weight.copy_(weight / spread)
        probe.bias.copy_(bias - (weight / spread) @ mean)
    return probe.requires_grad_(False)
