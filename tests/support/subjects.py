"""Models with data to evaluate them on, and what single evaluators say of them."""

from typing import Any

from descend import DescentProblem, GaussianNoise
from descend.evaluation.evaluate import Evaluator, Levels, Subject
from descend.evaluation.layers import Batches, LayerLosses, measure
from descend.results import Provenance

PROVENANCE = Provenance(recipe="none", method="constrained", seed=0, model="none")


def batches(batch_size: int = 16, collate: Any = None) -> Batches:
    return Batches(batch_size, collate=collate)


def measured(
    model: Any, task: Any, data: Any, noise: Any = None, batch_size: int = 16, collate: Any = None, **options: Any
) -> LayerLosses:
    """Every layer at one noise level."""
    (layers,) = measure(model, task, batches(batch_size, collate).of(data), [noise], **options)
    return layers


def subject(
    model: Any, task: Any, data: Any, noise: Any = None, *, levels: Any = (0.0,), problem: Any = None, **batching: Any
) -> Subject:
    """A model with its data, without noise unless it is given; ``batching`` has batch_size and collate."""
    problem = problem or DescentProblem(model.depth, 0.1)
    noise = noise or GaussianNoise(0.0, 1.0)
    return Subject(model, task, data, problem, noise, levels, PROVENANCE, batches=batches(**batching))


def outcome(evaluator: Evaluator, subject: Subject, levels: Levels | None = None, **options: Any) -> Any:
    """The one result of an evaluator; None if it yields none."""
    results = list(evaluator(subject, levels or {}, **options))
    assert len(results) <= 1
    return results[0][1] if results else None
