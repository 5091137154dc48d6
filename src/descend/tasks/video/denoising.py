"""The denoising task: its loss and its metric."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from descend.tasks.base import Task
from descend.tasks.video.windows import VideoWindows, unpatchify


class VideoDenoising(Task):
    """Reconstruct clean patches from noisy ones.

    The loss is the paper's, f = ½ Σ_t ‖x_t − x̂_t‖₂ over a sequence (one patch position over T frames), averaged over
    the N positions of a window. The norm is not squared, so the factor 1−α applies to an error in grey levels.
    The metric is the RMSE on the 0–255 scale over all pixels of a data set.
    """

    metric = "rmse"
    higher_is_better = False
    root = True
    separable = True

    def inputs(self, batch: dict[str, Any]) -> Tensor:
        """The patches, (B, T, N, P) in [0, 1]."""
        return batch["patches"]

    def target(self, batch: dict[str, Any]) -> Tensor:
        """The clean patches, (B, T, N, P) in [0, 1]."""
        return batch["patches"]

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """f of every sample, shape (B,)."""
        return _Loss.apply(prediction, target)

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The mean squared error of every sample in grey levels, shape (B,)."""
        return (prediction - target).float().mul(255).square().mean((1, 2, 3))

    def picture(self, patches: Tensor) -> np.ndarray:
        """The middle frame of each window (B, T, N, P) as an image: uint8 (B, SIZE, SIZE)."""
        frames = unpatchify(patches[:, patches.shape[1] // 2].float())
        return frames.mul(255).round().clamp(0, 255).to(torch.uint8).numpy()

    def sigma(self, embedding: Any, dataset: VideoWindows) -> float:
        """σ_x of all pixels: a denoiser's input embedding is the pixels themselves."""
        return dataset.sigma()


class _Loss(torch.autograd.Function):
    """½ Σ_t ‖p − x‖₂ averaged over positions; the backward pass computes p − x again.

    With an exit at every layer, storing the differences would be the largest memory cost of the constraints; p and x
    are in memory anyway. The gradient at p = x is 0.
    """

    @staticmethod
    def forward(ctx: Any, prediction: Tensor, target: Tensor) -> Tensor:
        difference = prediction - target
        # Half precision is too coarse for a sum over 256 pixels.
        wide = torch.promote_types(difference.dtype, torch.float32)
        distance = torch.linalg.vector_norm(difference, dim=-1, dtype=wide)
        ctx.save_for_backward(prediction, target, distance)
        return distance.sum((1, 2)) / (2 * distance.shape[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        prediction, target, distance = ctx.saved_tensors
        share = (grads[0] / (2 * distance.shape[2]))[:, None, None]
        scale = torch.where(distance > 0, share / distance, 0.0)
        return (prediction - target).mul_(scale[..., None].to(prediction.dtype)), None
