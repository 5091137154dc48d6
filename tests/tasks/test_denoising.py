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


def test_the_loss_has_the_value_and_gradient_of_plain_autograd(generator):
    target = torch.rand(2, 3, 100, 256, generator=generator)
    noisy = target + 0.1 * torch.randn(target.shape, generator=generator)
    upstream = torch.randn(2, generator=generator)
    values, gradients = [], []
    for losses in (TASK.losses, lambda p, x: (p - x).norm(dim=-1).sum(1).mean(-1) / 2):
        prediction = noisy.clone().requires_grad_()
        values.append(losses(prediction, target))
        values[-1].backward(upstream)
        gradients.append(prediction.grad)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)


def test_no_difference_has_gradient_zero_not_nan():
    target = torch.rand(1, 2, 3, 4)
    prediction = target.clone()
    prediction[0, 0, 0, 0] += 1
    prediction.requires_grad_()
    TASK.losses(prediction, target).sum().backward()
    expected = torch.zeros_like(target)
    expected[0, 0, 0, 0] = 1 / 2 / 3
    torch.testing.assert_close(prediction.grad, expected)


def test_rmse_over_a_set_is_the_direct_one_not_a_mean_of_batch_means(generator):
    target = torch.rand(7, 2, 100, 256, generator=generator)
    prediction = target + torch.linspace(0.05, 0.5, 7).view(7, 1, 1, 1) * torch.randn(target.shape, generator=generator)
    batches = [slice(0, 5), slice(5, 7)]
    total = sum(TASK.score(prediction[part], target[part]).sum().item() for part in batches)
    direct = 255 * ((prediction - target).double() ** 2).mean().sqrt().item()
    assert metric_value(TASK, total, 7) == pytest.approx(direct, rel=1e-5)
    means = [metric_value(TASK, TASK.score(prediction[p], target[p]).mean().item(), 1) for p in batches]
    assert abs(np.mean(means) - direct) > 0.01 * direct


def test_a_half_precision_prediction_has_a_full_precision_loss(generator):
    target = torch.rand(2, 3, 100, 256, generator=generator)
    exact = target + 0.1 * torch.randn(target.shape, generator=generator)
    prediction = exact.bfloat16().requires_grad_()
    losses = TASK.losses(prediction, target)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, TASK.losses(exact, target), rtol=1e-3, atol=0)
    losses.sum().backward()
    assert prediction.grad.dtype == torch.bfloat16
    reference = prediction.detach().float().requires_grad_()
    TASK.losses(reference, target).sum().backward()
    torch.testing.assert_close(prediction.grad.float(), reference.grad, rtol=0.02, atol=1e-5)


def test_both_in_half_precision_lose_nothing_in_the_sum(generator):
    target = torch.rand(1, 1, 1, 256, generator=generator).bfloat16()
    prediction = (target.float() + 0.2).bfloat16()
    expected = (prediction - target).double().norm() / 2
    assert TASK.losses(prediction, target).item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_picture_is_the_middle_frame_as_it_would_be_shown(generator):
    patches = 1.4 * torch.rand(2, 5, 100, 256, generator=generator) - 0.2
    picture = TASK.picture(patches)
    assert picture.shape == (2, 160, 160)
    assert picture.dtype == np.uint8
    expected = np.clip(np.rint(unpatchify(patches[:, 2]).numpy() * 255), 0, 255)
    np.testing.assert_array_equal(picture, expected.astype(np.uint8))


def test_the_target_is_clean():
    batch = {"patches": torch.rand(1, 2, 100, 256)}
    assert TASK.inputs(batch) is TASK.target(batch) is batch["patches"]
    assert (TASK.metric, TASK.higher_is_better) == ("rmse", False)
