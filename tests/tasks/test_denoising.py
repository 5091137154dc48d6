"""The denoising task, compared with plain autograd."""

import numpy as np
import pytest
import torch

from descend.evaluation.layers import metric_value
from descend.tasks.video import VideoDenoising, unpatchify

TASK = VideoDenoising()


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("of_prediction", "of_target", "near"),
    [
        (torch.float32, torch.float32, {}),
        (torch.bfloat16, torch.float32, {"rtol": 0.02, "atol": 1e-5}),
        (torch.bfloat16, torch.bfloat16, {"rtol": 0.02, "atol": 1e-5}),
    ],
)
def test_the_loss_has_the_value_and_gradient_of_plain_autograd(generator, of_prediction, of_target, near):
    """In half precision only the difference is rounded, not the sum; where nothing differs the gradient is 0."""
    target = torch.rand(2, 3, 100, 256, generator=generator).to(of_target)
    noisy = (target + 0.1 * torch.randn(target.shape, generator=generator)).to(of_prediction)
    noisy[0, 0] = target[0, 0]
    upstream = torch.randn(2, generator=generator)
    values, gradients = [], []
    for losses in (TASK.losses, lambda p, x: (p - x).float().norm(dim=-1).sum(1).mean(-1) / 2):
        prediction = noisy.clone().requires_grad_()
        values.append(losses(prediction, target))
        values[-1].backward(upstream)
        gradients.append(prediction.grad)
    assert values[0].dtype == torch.float32 and gradients[0].dtype == of_prediction
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients, **near)
    assert of_prediction != of_target or not gradients[0][0, 0].any()


def test_rmse_over_a_set_is_the_direct_one_not_a_mean_of_batch_means(generator):
    target = torch.rand(7, 2, 100, 256, generator=generator)
    prediction = target + torch.linspace(0.05, 0.5, 7).view(7, 1, 1, 1) * torch.randn(target.shape, generator=generator)
    batches = [slice(0, 5), slice(5, 7)]
    total = sum(TASK.score(prediction[part], target[part]).sum().item() for part in batches)
    direct = 255 * ((prediction - target).double() ** 2).mean().sqrt().item()
    assert metric_value(TASK, total, 7) == pytest.approx(direct, rel=1e-5)


def test_a_picture_is_the_middle_frame_as_it_would_be_shown(generator):
    patches = 1.4 * torch.rand(2, 5, 100, 256, generator=generator) - 0.2
    picture = TASK.picture(patches)
    assert picture.shape == (2, 160, 160) and picture.dtype == np.uint8
    expected = np.clip(np.rint(unpatchify(patches[:, 2]).numpy() * 255), 0, 255)
    np.testing.assert_array_equal(picture, expected.astype(np.uint8))
