"""Readouts that are fitted to a model as it is: linear probes, and own exits, with no step of training.

They show the information in each layer, whether or not the model's own head can read it.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from descend.errors import InputError
from descend.evaluation.layers import Batches, LayerLosses, few, measure
from descend.models import TRANSLATOR, LayeredCausalLM, LayeredClassifier, LibraryModel, evaluating
from descend.noise import Noise
from descend.progress import counted, progress
from descend.tasks import Task

MOST = 5000
"""Samples that probes are fitted to: enough for a linear layer, and their features fit into memory."""

STATE_RIDGE = 0.01
"""What is added to the diagonal of a layer's second moments, in units of their mean."""

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


class ExitsOfStates(nn.Module):
    """The exits of a classifier on states that were computed before, of samples in the same order.

    Args:
        states: What the readouts look at, (L+1, S, H).
        readouts: One for each of h_0 … h_L.
    """

    def __init__(self, states: Tensor, readouts: list[nn.Linear]):
        super().__init__()
        self.states, self.readouts, self.place = states, readouts, 0

    def predictions(self, inputs: Any) -> Iterator[Tensor]:
        """Logits (B, C) of h_0 … h_L for the next B samples."""
        first, self.place = self.place, self.place + len(next(iter(inputs.values())))
        for readout, states in zip(self.readouts, self.states, strict=True):
            yield readout(states[first : self.place])


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
        train: Samples to fit to; at most `MOST`, taken evenly, are used.
        validation: Samples to choose each layer's ridge on, of `RIDGES`: a classifier has seen its training samples,
            and tells them apart better than others.
        noise: The kind that is evaluated, at the training's level.
        batches: How samples become batches.
    """
    probes, _ = _regressions(classifier, task, train, validation, batches, noise)
    return Probed(classifier, nn.ModuleList(probes).float().to(batches.device))


@torch.no_grad()
def fit_exits(
    model: LibraryModel, task: Task, train: Dataset, validation: Dataset, batches: Batches
) -> LayerLosses | None:
    """Fit own exits to a model that stays as it is, on clean samples.

    Those of a classifier whose head is one linear layer are logistic regressions, and so is the last layer's head.
    Those of a language model turn the normed state of their layer into the last layer's by least squares, token by
    token, which needs no pass through the wide head.

    Args:
        model: What to fit readouts for; it gets own exits if it has none.
        task: The samples' loss.
        train: Samples to fit to; at most `MOST`, taken evenly, are used.
        validation: Samples to choose each layer's ridge on.
        batches: How samples become batches.

    Returns:
        What the exits of a classifier give on the validation samples, where these are no more than `MOST`, since their
        layers are read for it anyway.

    Raises:
        InputError: If it is another kind of model, or its head is not one linear layer.
    """
    if isinstance(model, LayeredCausalLM):
        model.give_own_exits()
        exits: Any = model.own_exits
        for exit, matrix in zip(exits, _translations(model, task, train, batches), strict=True):
            exit[TRANSLATOR].weight.copy_(matrix)
        return None
    parts = [part for part in getattr(model, "head", ()) if isinstance(part, str)]
    linear = [part for part in parts if isinstance(model.library.get_submodule(part), nn.Linear)]
    learned = [part for part in parts if any(True for _ in model.library.get_submodule(part).parameters())]
    if not isinstance(model, LayeredClassifier) or len(learned) != 1 or learned != linear:
        raise InputError(
            "own exits are fitted to a language model, or to a classifier whose head is one linear layer; that of a "
            f"{type(model.library).__name__} is {' and '.join(learned)}. Read it by the mean: --pooling mean."
        )
    model.give_own_exits()
    probes, states = _regressions(model, task, train, validation, batches)
    heads: list[Any] = [model.part(linear[0], layer) for layer in range(len(probes))]
    for head, probe in zip(heads, probes, strict=True):
        head.load_state_dict({name: value.to(head.weight) for name, value in probe.state_dict().items()})
    if len(validation) > MOST:  # type: ignore[arg-type]
        return None
    return measure(ExitsOfStates(states.to(heads[0].weight), heads), task, batches.of(validation))[0]


@torch.no_grad()
def _translations(model: LayeredCausalLM, task: Task, train: Dataset, batches: Batches) -> list[Tensor]:
    """For each layer 0 … L−1 the matrix (H, H) that turns its normed states into the last layer's, by least squares."""
    width, where = model.config.hidden_size, next(model.parameters()).device
    grams = torch.zeros(model.depth, 2, width, width, dtype=torch.float64, device=where)
    some = few(train, MOST)
    with evaluating(model), progress(len(some), "reading layers", "sample") as bar:
        for batch in batches.of(some):
            bar.update(batches.size)
            inputs = task.inputs(batch)
            keep = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
            *inner, last = (model.head_input(state[keep], None).double() for state in model.layer_outputs(inputs))
            for (gram, cross), state in zip(grams, inner, strict=True):
                gram.addmm_(state.T, state)
                cross.addmm_(state.T, last)
    found = []
    for gram, cross in counted(grams, "fitting readouts", "layer"):
        ridge = STATE_RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        found.append(torch.linalg.solve(gram + ridge, cross).T)
    return found


@torch.no_grad()
def _features(
    classifier: LayeredClassifier, task: Task, dataset: Dataset, batches: Batches, noise: Noise | None
) -> tuple[Tensor, Tensor]:
    """The head's inputs at every layer, (L+1, S, H), and the targets (S,)."""
    pooled: list[Tensor] = []
    targets: list[Tensor] = []
    some = few(dataset, MOST)
    with progress(len(some), "reading layers", "sample") as bar:
        for batch in batches.of(some):
            first = sum(map(len, targets))
            targets.append(task.target(batch).cpu())
            numbers = range(first, first + len(targets[-1]))
            inputs = task.inputs(batch)
            looks = classifier.looks(inputs)
            noisy = noise.on(classifier, mask=task.mask(batch), indices=numbers) if noise else nullcontext()
            with noisy:
                states = [classifier.pooled(hidden, looks) for hidden in classifier.layer_outputs(inputs)]
                pooled.append(torch.stack(states).cpu().double())
            bar.update(len(targets[-1]))
    return torch.cat(pooled, 1), torch.cat(targets)


def _regressions(
    classifier: LayeredClassifier,
    task: Task,
    train: Dataset,
    validation: Dataset,
    batches: Batches,
    noise: Noise | None = None,
) -> tuple[list[nn.Linear], Tensor]:
    """A logistic regression for each of layers 0 … L, see `fit_probes`; and what they see of the validation samples."""
    classifier.eval()
    fitted, target = _features(classifier, task, train, batches, noise)
    held, held_target = _features(classifier, task, validation, batches, noise)
    probes = []
    with progress(len(fitted) * len(RIDGES), "fitting readouts", "fit") as bar:
        for layer, held_layer in zip(fitted, held, strict=True):
            candidates = []
            for ridge in RIDGES:
                candidates.append(_fit(layer, target, classifier.limits["labels"], ridge))
                bar.update()
            losses = [F.cross_entropy(probe(held_layer), held_target).item() for probe in candidates]
            probes.append(candidates[losses.index(min(losses))])
    return probes, held


@torch.enable_grad()
def _fit(features: Tensor, target: Tensor, classes: int, ridge: float) -> nn.Linear:
    """A linear layer on features (S, H): fitted on standardised features, then expressed for the raw ones."""
    mean, spread = features.mean(0), features.std(0).clamp(min=1e-6)
    scaled = (features - mean) / spread
    weight = torch.zeros(classes, features.shape[1], dtype=features.dtype, device=features.device, requires_grad=True)
    bias = torch.zeros(classes, dtype=features.dtype, device=features.device, requires_grad=True)
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
