"""NEFTune (Jain et al., 2023, arXiv 2310.05914): uniform noise on word embeddings, at a strength that matches γ."""

import math
import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from torch import nn

from descend.errors import InputError
from descend.evaluation.layers import MOST_FOR_SIGMA, evenly
from descend.models import LayeredModel


def matched_alpha(std: float, lengths: Sequence[int], width: int) -> float:
    r"""The α at which NEFTune's noise has a standard deviation, for ``neftune_noise_alpha``.

    NEFTune adds numbers that are uniform within ±α/√(Td) to a batch of T tokens a row, padding included, and d
    coordinates. Their standard deviation is α/√(3Td). Its mean over batches is s for

    .. math:: \alpha = s \sqrt{3 d} \, / \, \mathrm{mean}(1/\sqrt{T})

    Args:
        std: s, the standard deviation of the noise to match, in units of the embedding.
        lengths: T of some training batches.
        width: d, the size of a word's embedding.
    """
    return std * math.sqrt(3 * width) / fmean(1 / math.sqrt(length) for length in lengths)


def batch_lengths(dataset: Any, batch_size: int, *, grouped: bool, padded: bool) -> list[int]:
    """The tokens of a row in batches like those of training, from up to 1024 texts.

    Args:
        dataset: The training texts, each with ``input_ids``.
        batch_size: Texts in a batch.
        grouped: Whether batches hold texts of like length.
        padded: Whether texts are padded to the longest of their batch; otherwise they are one row.
    """
    lengths = [len(dataset[place]["input_ids"]) for place in evenly(len(dataset), MOST_FOR_SIGMA)]
    lengths = sorted(lengths) if grouped else random.Random(0).sample(lengths, len(lengths))
    batches = [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]
    return [max(batch) if padded else sum(batch) for batch in batches]


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
