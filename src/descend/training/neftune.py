"""NEFTune (Jain et al., 2023, arXiv 2310.05914): uniform noise on word embeddings, at a strength that matches γ."""

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

from torch import nn

from descend.errors import InputError
from descend.evaluation.layers import MOST_FOR_SIGMA, embedding_std, evenly
from descend.models import LayeredModel
from descend.noise import Noise
from descend.objective import Task

DIGITS = 4
"""Significant digits of α."""


def matched_alpha(
    model: LayeredModel,
    task: Task,
    dataset: Any,
    noise: Noise,
    *,
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
) -> float:
    r"""The α at which NEFTune's noise is as strong as a noise of level γ, for ``neftune_noise_alpha``.

    NEFTune adds numbers that are uniform within ±α/√(Td) to a batch of texts of T tokens and d coordinates. Their
    standard deviation is α/√(3Td). At the texts' mean length T it is that of ``noise``, γσ_x, for

    .. math:: \alpha = \gamma \sigma_x \sqrt{3 T d}

    σ_x is measured on the model as it is, so call this before training. α stays as it is when the embedding grows.

    Args:
        model: The model.
        task: The loss and the metric.
        dataset: The training texts, each with ``input_ids``.
        noise: The noise to match.
        collate: Turns samples into a batch; torch's way unless given.

    Raises:
        InputError: If the model has no word embedding, or the noise is of level 0.
    """
    embedding = words_of(model)
    if noise.level == 0:
        raise InputError("the method neftune matches --noise, which is 0; give --neftune-noise-alpha.")
    sigma = noise.sigma or embedding_std(model, task, dataset, collate=collate)
    length = fmean(len(dataset[place]["input_ids"]) for place in evenly(len(dataset), MOST_FOR_SIGMA))
    alpha = noise.std(sigma) * math.sqrt(3 * length * embedding.embedding_dim)
    return float(f"{alpha:.{DIGITS}g}")


def words_of(model: LayeredModel) -> nn.Embedding:
    """The word embedding to which NEFTune adds its noise.

    Raises:
        InputError: If the model has none.
    """
    given = getattr(model.library, "get_input_embeddings", lambda: None)()
    if not isinstance(given, nn.Embedding):
        raise InputError(
            f"the method neftune is for models with a word embedding; got {type(model.saved).__name__}. Choose another "
            "method."
        )
    return given
