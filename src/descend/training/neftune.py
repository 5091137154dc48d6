"""NEFTune (Jain et al., 2023, arXiv 2310.05914): uniform noise on word embeddings, at a strength that matches γ."""

import math
from statistics import fmean
from typing import Any

from torch import nn

from descend.errors import InputError
from descend.evaluation.layers import MOST_FOR_SIGMA, evenly
from descend.models import LayeredModel


def matched_alpha(std: float, dataset: Any, width: int) -> float:
    r"""The α at which NEFTune's noise has a standard deviation, for ``neftune_noise_alpha``.

    NEFTune adds numbers that are uniform within ±α/√(Td) to a batch of texts of T tokens and d coordinates. Their
    standard deviation is α/√(3Td). At the texts' mean length T it is γσ_x for

    .. math:: \alpha = \gamma \sigma_x \sqrt{3 T d}

    Args:
        std: γσ_x, in units of the embedding.
        dataset: The training texts, each with ``input_ids``; the mean length is that of up to 1024 of them.
        width: d, the size of a word's embedding.
    """
    length = fmean(len(dataset[place]["input_ids"]) for place in evenly(len(dataset), MOST_FOR_SIGMA))
    return std * math.sqrt(3 * length * width)


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
