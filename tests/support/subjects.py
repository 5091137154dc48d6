"""Models with data to evaluate them on, and what single evaluators say of them."""

from typing import Any

import torch

from descend import UT, DescentProblem, GaussianNoise, UTConfig
from descend.evaluation.layers import Batches, LayerLosses, measure
from descend.models import LayeredCausalLM, LayeredClassifier, ViTDenoiser, ViTDenoiserConfig
from descend.results import Provenance
from descend.run import Run
from descend.run.evaluating import Evaluator, Levels
from descend.tasks.text import Classification, NextToken
from descend.tasks.text.language import IGNORED
from descend.tasks.video import VideoDenoising
from tests.support.networks import causal, network


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
) -> Run:
    """A model with its data, without noise unless it is given; ``batching`` has batch_size and collate."""
    return Run(
        model=model,
        tokenizer=None,
        task=task,
        samples=data,
        name="held-out data",
        problem=problem or DescentProblem(model.depth, 0.1),
        noise=noise or GaussianNoise(0.0, 1.0),
        levels=sorted({*map(float, levels)}),
        provenance=Provenance(recipe="none", method="constrained", seed=0, model="none"),
        batches=batches(**batching),
    )


def outcome(evaluator: Evaluator, subject: Run, levels: Levels | None = None, **options: Any) -> Any:
    """The one result of an evaluator; None if it yields none."""
    results = list(evaluator(subject, levels or {}, **options))
    assert len(results) <= 1
    return results[0][1] if results else None


def texts(count: int = 13, length: int = 12) -> list[dict[str, Any]]:
    """Tokens with the labels of a language model, whose prompts are four tokens."""
    ids = torch.randint(5, 40, (count, length), generator=torch.Generator().manual_seed(0)).tolist()
    return [{"input_ids": row, "attention_mask": [1] * length, "labels": [IGNORED] * 4 + row[4:]} for row in ids]


def windows(patches: int = 4) -> list[dict[str, Any]]:
    return [{"patches": row} for row in torch.rand(13, 3, patches, 256, generator=torch.Generator().manual_seed(0))]


def labelled() -> list[dict[str, Any]]:
    return [row | {"labels": place % 3} for place, row in enumerate(texts())]


CASES = {
    "UT": lambda: (UT(UTConfig(depth=3)), VideoDenoising(), windows()),
    "ViT": lambda: (ViTDenoiser(ViTDenoiserConfig(num_hidden_layers=3)), VideoDenoising(), windows(100)),
    "classifier": lambda: (LayeredClassifier(network("distilbert")), Classification(), labelled()),
    "language model": lambda: (LayeredCausalLM(causal()), NextToken(), texts()),
}
"""Kind → a model of 3 layers, its task and 13 samples."""
