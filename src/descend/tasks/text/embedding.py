"""Tasks of embedding models: triplets, of which the positive must be the nearer, and pairs with scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor
from torch.nn import functional as F

from descend.errors import InputError
from descend.tasks.base import Task
from descend.tasks.text.tokens import fields

SCALE = 20.0
"""What cosines are multiplied by in the softmax of `Triplets`, SentenceTransformers' default."""


class EmbeddingTask(Task):
    """A task whose samples are several texts each: ``input_ids`` (B, k, T), ``attention_mask`` and ``labels`` (B,).

    A prediction is the embeddings (B·k, D) of all texts, those of one sample side by side. A target is a sample.
    """

    higher_is_better = True

    def inputs(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """The B·k texts, each a row."""
        return {name: batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask")}

    def mask(self, batch: dict[str, Any]) -> Tensor:
        """Where texts are no padding, bool (B·k, T)."""
        return batch["attention_mask"].flatten(0, 1).bool()

    def check(self, dataset: Any, limits: dict[str, int]) -> None:
        """Raise an `InputError` for a sample with another number of texts, or a token that the model does not have."""
        known = fields(dataset) if len(dataset) else []
        for place in range(len(dataset) if "input_ids" in known else 0):
            texts = dataset[place]["input_ids"]
            if len(texts) != self.rows:
                raise InputError(f"sample {place} has {len(texts)} texts; expected {self.rows}.")
            longest, largest = max(map(len, texts)), max(map(max, texts))
            if longest > limits.get("length", longest) or largest >= limits.get("vocabulary", largest + 1):
                raise InputError(
                    f"sample {place} has a text of {longest} tokens with numbers up to {largest}; the model takes "
                    f"{limits.get('length')} and has {limits.get('vocabulary')}. Give the model's own tokenizer."
                )

    def texts(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """The normalized embeddings of each sample's first texts, second ones …, each (B, D)."""
        single = prediction.to(torch.promote_types(prediction.dtype, torch.float32))
        return F.normalize(single, dim=-1).unflatten(0, (len(target), self.rows)).unbind(1)


class Triplets(EmbeddingTask):
    r"""Triplets (anchor, positive, negative): the anchor must be nearer to its positive, by the cosine s.

    Training ranks among the texts of the batch, as MultipleNegativesRankingLoss does, with scale 20:

    .. math:: f = -\log \frac{e^{20 s(a_i, p_i)}}{\sum_j e^{20 s(a_i, p_j)} + \sum_j e^{20 s(a_i, n_j)}}

    Such losses are not independent of each other. So evaluations measure each triplet alone,
    :math:`\log(1 + e^{20 (s(a, n) - s(a, p))})`. The metric is the share of triplets whose positive is nearer.
    """

    metric = "triplet_accuracy"
    rows = 3

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss of each triplet alone, (B,), of embeddings (3·B, D)."""
        return F.softplus(-SCALE * self._margins(prediction, target))

    def sums(self, predictions: Tensor | Sequence[Tensor], target: Tensor) -> Tensor:
        """Σ over the batch of the ranking loss of each exit, (E,)."""
        sums = []
        for prediction in predictions:
            anchors, *others = self.texts(prediction, target)
            cosines = SCALE * anchors @ torch.cat(others).T
            right = torch.arange(len(target), device=cosines.device)
            sums.append(F.cross_entropy(cosines, right, reduction="sum"))
        return torch.stack(sums)

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """1 for each triplet whose positive is nearer, 0 for others, (B,)."""
        return (self._margins(prediction, target) > 0).float()

    def _margins(self, prediction: Tensor, target: Tensor) -> Tensor:
        """s(a, p) − s(a, n), (B,)."""
        anchor, positive, negative = self.texts(prediction, target)
        return (anchor * (positive - negative)).sum(-1)


class ScoredPairs(EmbeddingTask):
    """Pairs of texts with a score s in [−1, 1]: the loss is (cosine − s)², the metric Spearman's ρ of both.

    ρ is a property of a whole data set. `over_data` gives every pair its share in ρ.
    """

    metric = "spearman"
    rows = 2

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """(cosine − s)² of each pair, (B,), of embeddings (2·B, D)."""
        return (self.score(prediction, target) - target).square()

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The cosine of each pair, (B,)."""
        first, second = self.texts(prediction, target)
        return (first * second).sum(-1)

    def over_data(self, scores: Tensor, target: Tensor) -> Tensor:
        """ρ + the influence of each pair on it, (S, E): their mean is ρ, and their spread that of ρ by the jackknife.

        Args:
            scores: The cosines of each pair at each exit, (S, E), double.
            target: The scores, (S,).
        """
        columns = [spearman_shares(column.numpy(), target.double().numpy()) for column in scores.cpu().T]
        return torch.from_numpy(np.stack(columns, 1)).to(scores)


def spearman_shares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""ρ + the influence of each pair on Spearman's ρ, (S,).

    ρ is the correlation of U_i = F(x_i) and V_i = G(y_i), the mean ranks, with
    :math:`\rho = c / \sqrt{u v}` of their covariance and variances. A pair moves them in two ways: by its own ranks,
    and by the ranks of all other pairs, which it is a part of. Both are in its influence on c,

    .. math::
        (U_i - \bar U)(V_i - \bar V) - c + \tfrac1S \sum_j (K(x_i, x_j) - U_j)(V_j - \bar V)
        + \tfrac1S \sum_j (U_j - \bar U)(K(y_i, y_j) - V_j),

    where K(a, b) is 1 for a < b, ½ for a = b and else 0, and in those on u and v, which are alike.

    Args:
        x: One value of each pair.
        y: The other one.

    Returns:
        NaN where a value is not finite; 0 where all of one kind are equal, which ranks no pairs: so it is of the first
        token before the first layer.
    """
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return np.full(len(x), np.nan)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return np.zeros(len(x))
    u, v = ((rankdata(each) - 0.5) / len(each) for each in (x, y))
    u, v = u - u.mean(), v - v.mean()
    cov, var_u, var_v = (u * v).mean(), (u * u).mean(), (v * v).mean()
    of_cov = u * v + _as_part(x, v) + _as_part(y, u) - 3 * cov
    of_u, of_v = u * u + 2 * _as_part(x, u) - 3 * var_u, v * v + 2 * _as_part(y, v) - 3 * var_v
    root = np.sqrt(var_u * var_v)
    rho = cov / root
    return rho + of_cov / root - rho * (of_u / var_u + of_v / var_v) / 2


def _as_part(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(1/S) Σ_j K(values_i, values_j) · weights_j for each i, of weights whose sum is 0."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    total = np.concatenate([[0.0], np.cumsum(weights[order])])
    below, upto = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return (total[-1] - (total[below] + total[upto]) / 2) / len(values)
