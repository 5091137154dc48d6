"""Draws that belong to the samples of a data set: all models and all levels of noise meet the same ones."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from descend.errors import InputError
from descend.seeds import of_sample

if TYPE_CHECKING:
    from descend.noise.base import Noise


class SampleDraws:
    """The draws of one batch's samples, made once for all levels of noise.

    Args:
        indices: The samples' numbers in the data set.
    """

    def __init__(self, indices: Sequence[int]):
        self.indices = indices
        self._batches: dict[tuple[type, int, torch.Size, torch.device], Tensor] = {}

    def __len__(self) -> int:
        """B, the number of samples in the batch."""
        return len(self.indices)

    def corrupted(self, noise: "Noise", clean: Tensor, keep: Tensor | None) -> Tensor:
        """x̃ in which each sample has the draws of its number; padding has any value.

        Args:
            noise: The noise, at one level.
            clean: x, (B, …, H).
            keep: Where noise goes, bool (B, T); None for everywhere.

        Raises:
            InputError: If the noise has no σ_x, or x has more or fewer rows than there are samples.
        """
        if noise.sigma is None:
            raise InputError("noise that belongs to samples needs a sigma, measured on the whole data set; got none.")
        if len(self) != len(clean):
            raise InputError(
                f"noise that belongs to samples needs a row of x for each of {len(self)} samples; got the "
                f"shape {tuple(clean.shape)}. The output of the input embedding must be (B, …)."
            )
        std = noise.std(noise.sigma)
        if not noise.draws_by_level:
            return noise.applied(clean.float(), self.tensor(noise, clean, keep), std).to(clean)
        rows = clean.float().cpu()
        return self._by_sample(lambda x, draws: noise.corrupt(x, std, draws), noise.seed, rows, keep).to(clean)

    def tensor(self, noise: "Noise", clean: Tensor, keep: Tensor | None) -> Tensor:
        """The draws (B, …) of `Noise.draw` in single precision on the device of x, with 0 at padding.

        Its arguments are those of `corrupted`; of the noise its class and its seed count, not its level.
        """
        key = type(noise), noise.seed, clean.shape, clean.device
        if key not in self._batches:
            like = torch.empty(()).expand(clean.shape)  # x's shape on the CPU, without memory for it
            batch = self._by_sample(noise.draw, noise.seed, like, keep)
            if clean.device.type == "cuda":
                batch = batch.pin_memory()
            self._batches[key] = batch.to(clean.device, non_blocking=True)
        return self._batches[key]

    def _by_sample(
        self, function: Callable[[Tensor, torch.Generator], Tensor], seed: int, clean: Tensor, keep: Tensor | None
    ) -> Tensor:
        """The result of a random function for each sample, (B, …), with 0 at padding.

        It is called on the CPU and without the sample's padding, so that its draws depend on neither.

        Args:
            function: Takes the rows of x that noise goes to, (…, H), and the sample's generator.
            seed: The noise's seed.
            clean: x, (B, …, H), on the CPU.
            keep: Where noise goes, bool (B, T); None for everywhere.
        """
        places = None if keep is None else keep.cpu()
        results = []
        for row, index in enumerate(self.indices):
            generator = torch.Generator("cpu").manual_seed(of_sample(seed, int(index)))
            if places is None:
                results.append(function(clean[row], generator))
                continue
            result = function(clean[row, places[row]], generator)
            results.append(result.new_zeros(clean.shape[1], *result.shape[1:]).index_put((places[row],), result))
        return torch.stack(results)
