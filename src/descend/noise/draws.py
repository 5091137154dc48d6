"""Draws that belong to the samples of a data set: all models and all levels of noise meet the same ones."""

from collections.abc import Sequence
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
        self._batches: dict[tuple[object, int, torch.Size, torch.device], Tensor] = {}

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
        return noise.applied(clean.float(), self.tensor(noise, clean, keep), noise.std(noise.sigma)).to(clean)

    def tensor(self, noise: "Noise", clean: Tensor, keep: Tensor | None) -> Tensor:
        """The draws (B, …) of `Noise.draw` in single precision on the device of x, with 0 at padding.

        Its arguments are those of `corrupted`. Noises that `Noise.at` made of one another share the draws. They are
        made on the CPU and without the sample's padding, so that they depend on neither.
        """
        key = noise.origin, noise.seed, clean.shape, clean.device
        if key not in self._batches:
            like = torch.empty(()).expand(clean.shape)  # x's shape on the CPU, without memory for it
            places = None if keep is None else keep.cpu()
            rows = []
            for row, index in enumerate(self.indices):
                generator = torch.Generator("cpu").manual_seed(of_sample(noise.seed, int(index)))
                if places is None:
                    rows.append(noise.draw(like[row], generator))
                    continue
                drawn = noise.draw(like[row, places[row]], generator)
                rows.append(drawn.new_zeros(clean.shape[1], *drawn.shape[1:]).index_put((places[row],), drawn))
            batch = torch.stack(rows)
            if clean.device.type == "cuda":
                batch = batch.pin_memory()
            self._batches[key] = batch.to(clean.device, non_blocking=True)
        return self._batches[key]
