"""Sums of losses: added, with and without inner exits, further sums and idle micro-batches."""

import math

import pytest
import torch

from descend.core import LossSums


def test_sums_are_those_of_the_moment_and_add_up():
    step, values = LossSums(2, others=1), torch.tensor([3.0, 2.0, 1.0])
    batch = LossSums.of(values, 4, 2, torch.tensor([5.0]))
    values.add_(1)
    for idle in (False, True, False):
        step.add(batch, idle=idle)
    assert step.numbers.tolist() == [6, 4, 2, 8, 8, 8, 10]
    assert step.means.tolist() == [0.75, 0.5, 0.25] and (step.first, step.targets) == (0, 8)
    window = step.with_numbers(2 * step.numbers)
    step.clear()
    assert not step.numbers.any() and step.first == 3 and len(step.means) == 0
    assert window.values.tolist() == [12, 8, 4] and window.others.tolist() == [20]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_inner_exits_may_be_left_out_and_a_sum_that_is_not_finite_is_named(bad):
    step = LossSums(2)
    step.add(LossSums.of(torch.tensor([1.0]).bfloat16(), 2, 2))
    assert step.first == 2 and step.means.tolist() == [0.5] and step.values.dtype == torch.float64
    step.add(LossSums.of(torch.tensor([4.0, 3.0, 2.0]), 2, 2))
    assert step.counts.tolist() == [2, 2, 4] and step.values.tolist() == [4, 3, 3]
    assert step.fault is None
    step.add(LossSums.of(torch.tensor([bad, 2.0]), 1, 2))
    assert step.fault == f"the loss of layer [1] is not finite ([4.0, {bad}, 5.0])"
