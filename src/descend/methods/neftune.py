"""NEFTune: uniform noise on word embeddings, as strong as that of evaluation."""

import math
import random
from statistics import fmean
from typing import TYPE_CHECKING, Any

from descend.errors import InputError
from descend.methods.base import Method, Style

if TYPE_CHECKING:
    from descend.models import LayeredModel
    from descend.tasks import Task

MOST_LENGTHS = 1024
"""Texts whose lengths α is matched on, taken evenly."""


class NEFTune(Method):
    r"""NEFTune (Jain et al., 2023, arXiv 2310.05914): uniform noise on word embeddings, at a strength that matches γ.

    Transformers adds numbers that are uniform within ±α/√(Td) to a batch of T tokens a row, padding included, and d
    coordinates. Their standard deviation is α/√(3Td). Its mean over batches is s, that of the noise of evaluation, for

    .. math:: \alpha = s \sqrt{3 d} \, / \, \mathrm{mean}(1/\sqrt{T})
    """

    name = "neftune"
    about = "texts only: ERM with NEFTune's noise in place of Gaussian noise (Jain et al., 2023)"
    label = "NEFTune"
    style = Style("#bb44ff", "#9944bb", "p")
    order = 70

    @staticmethod
    def check(task: "Task", model: "LayeredModel") -> None:
        """Refuse a model without a word embedding."""
        from torch import nn

        if not isinstance(words_of(model), nn.Embedding):
            raise InputError(
                f"the method neftune adds noise to word embeddings; {type(model.saved).__name__} has none. Choose "
                "another method."
            )

    def attach(self, trainer: Any) -> None:
        """Leave our noise to evaluation, and choose α, unless the settings give it."""
        super().attach(trainer)
        trainer.objective.trains_with_noise = False
        if trainer.neftune_noise_alpha is None and trainer.train_dataset is not None:
            trainer.neftune_noise_alpha = self.alpha(trainer)

    def alpha(self, trainer: Any) -> float:
        """The α that matches the noise of evaluation on the training data.

        Raises:
            InputError: If there is no noise to match, or the data have no tokens or no length.
        """
        from transformers.trainer_utils import has_length

        from descend.tasks.splits import evenly

        data: Any = trainer.train_dataset
        noise, sigma = trainer.objective.noise, trainer.sigma
        known = has_length(trainer.train_dataset) and "input_ids" in data[0]
        if noise is None or noise.level == 0 or sigma is None or not known:
            raise InputError(
                "the method neftune matches a noise above 0 on tokenized training data of known length; got none. "
                "Give neftune_noise_alpha (--neftune-noise-alpha)."
            )
        lengths = [len(data[place]["input_ids"]) for place in evenly(len(data), MOST_LENGTHS)]
        grouped, size = trainer.args.train_sampling_strategy == "group_by_length", trainer.args.train_batch_size
        lengths = sorted(lengths) if grouped else random.Random(0).sample(lengths, len(lengths))
        batches = [lengths[start : start + size] for start in range(0, len(lengths), size)]
        # Texts without padding are one row.
        rows = map(sum if getattr(trainer, "padding_free", False) else max, batches)
        width = words_of(trainer.objective.model).embedding_dim
        return noise.std(sigma) * math.sqrt(3 * width) / fmean(1 / math.sqrt(length) for length in rows)


def words_of(model: "LayeredModel") -> Any:
    """The model's own input embedding, to which NEFTune adds its noise; None if it has none."""
    return getattr(model.library, "get_input_embeddings", lambda: None)()
