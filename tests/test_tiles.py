"""Exits through a wide head, tile by tile: against plain autograd, and the sample against the whole."""

import pytest
import torch
from torch.nn import functional as F

from descend import InputError, Objective, Task
from descend.models import LayeredCausalLM
from descend.tasks.text import NextToken
from descend.tiles import TILE, TargetSample, rows_per_tile, tiled
from tests.support.networks import causal

SIZES = (7, 7, 3, 11)
WEIGHTS = (0.5, 0.0, -0.25, 1.0)


def setup(dtype=torch.float64, sizes=SIZES):
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(size + 2, 5, generator=generator, dtype=dtype).requires_grad_() for size in sizes]
    rows = [torch.randperm(size + 2, generator=generator)[:size] for size in sizes]  # two that nothing is told from
    targets = [torch.randint(9, (size,), generator=generator) for size in sizes]
    head = torch.randn(9, 5, generator=generator, dtype=dtype).requires_grad_()
    scale = torch.rand(5, generator=generator, dtype=dtype).requires_grad_()

    def losses(hidden, target):
        return F.cross_entropy(F.linear(hidden * scale, head), target, reduction="none")

    return states, rows, targets, losses, [head, scale]


@pytest.mark.parametrize("sizes", [SIZES, (0, 0, 0, 0)])
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_sums_and_gradients_are_those_of_plain_autograd(size, sizes):
    """Also of a batch without targets; an exit that weighs nothing has no gradient."""
    states, rows, targets, losses, parameters = setup(sizes=sizes)
    total, sums = tiled(states, rows, targets, WEIGHTS, losses, parameters, size)
    (3 * total).backward()
    found = [each.grad for each in (*states, *parameters)]
    states, rows, targets, losses, parameters = setup(sizes=sizes)
    parts = zip(states, rows, targets, strict=True)
    plain = torch.stack([losses(state[row], target).sum() for state, row, target in parts])
    expected = plain @ torch.tensor(WEIGHTS, dtype=torch.float64)
    (3 * expected).backward()
    torch.testing.assert_close(sums, plain.detach())
    torch.testing.assert_close(total, expected)
    assert not sums.requires_grad and found[1] is None and all(each is not None for each in found[4:])
    for one, parameter in zip(found, (*states, *parameters), strict=True):
        torch.testing.assert_close(torch.zeros_like(parameter) if one is None else one, parameter.grad)


def test_no_more_logits_than_a_tile():
    states, rows, targets, losses, parameters = setup(torch.bfloat16)
    seen = []

    def watched(hidden, target):
        seen.append((len(hidden), torch.is_grad_enabled()))
        return losses(hidden, target)

    _, sums = tiled(states, rows, targets, WEIGHTS, watched, parameters, 4)
    # 21 rows weigh something and fill five tiles and a bit; the seven that weigh nothing are apart, without gradient.
    assert seen == [(4, True)] * 5 + [(1, True), (4, False), (3, False)]
    assert sums.dtype == torch.float32  # of half precision


def test_frozen_heads_and_states_that_need_no_gradient():
    states, rows, targets, losses, parameters = setup()
    with torch.no_grad():
        total, sums = tiled(states, rows, targets, WEIGHTS, losses, parameters, 4)
    assert not total.requires_grad and sums.isfinite().all()
    frozen = [state.detach() for state in states]
    total, _ = tiled(frozen, rows, targets, WEIGHTS, losses, parameters, 4)
    total.backward()
    assert all(each.grad is not None for each in parameters)


@pytest.mark.parametrize("share", [1, 5])
def test_gradients_of_few_rows_join_the_backward_pass_at_their_layer(share):
    """Against plain autograd, through layers that feed one another; also of a batch that is scaled afterwards."""
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(2, 10, 5, generator=generator, dtype=torch.float64).requires_grad_()
    matrices = [torch.randn(5, 5, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]
    head = torch.randn(9, 5, generator=generator, dtype=torch.float64).requires_grad_()
    rows = [torch.randperm(20, generator=generator)[: 20 // share] for _ in range(3)] + [torch.arange(20)]
    targets = [torch.randint(9, (len(row),), generator=generator) for row in rows]

    def losses(hidden, target):
        return F.cross_entropy(F.linear(hidden, head), target, reduction="none")

    def gradients(weighted):
        states = [start.sin()]
        for matrix in matrices:
            states.append((states[-1] @ matrix).tanh())
        return torch.autograd.grad(3 * weighted(states) + states[-1].sum(), [start, *matrices, head])

    def plainly(states):
        parts = zip(states, rows, targets, WEIGHTS, strict=True)
        return sum(weight * losses(state.flatten(0, 1)[row], target).sum() for state, row, target, weight in parts)

    found = gradients(lambda states: tiled(states, rows, targets, WEIGHTS, losses, [head], 4)[0])
    torch.testing.assert_close(found, gradients(plainly))


def test_a_half_precision_head_keeps_its_gradient_over_hundreds_of_tiles():
    generator = torch.Generator().manual_seed(0)
    hidden, wide = (torch.randn(size, 16, generator=generator) for size in (1024, 64))
    targets = torch.randint(64, (1024,), generator=generator)
    rows = torch.arange(1024)

    def head_gradient(dtype, size):
        head = wide.to(torch.bfloat16).to(dtype).requires_grad_()

        def losses(states, target):
            return F.cross_entropy(F.linear(states, head).float(), target, reduction="none")

        states = hidden.to(torch.bfloat16).to(dtype).requires_grad_()
        tiled([states], [rows], [targets], [1.0], losses, [head], size)[0].backward()
        return head.grad.double()

    exact = head_gradient(torch.float64, 1024)
    error = [(head_gradient(torch.bfloat16, size) - exact).norm() / exact.norm() for size in (1024, 2)]
    assert error[1] < 1.5 * error[0], error


def test_a_tile_is_bounded_by_bytes_and_a_multiple_of_128():
    assert rows_per_tile(128_256) == 512
    assert rows_per_tile(1000) % 128 == 0 and rows_per_tile(1000) * 1000 <= TILE
    assert rows_per_tile(10 * TILE) == 128


# --- the sample


def language(sample=None, dtype=torch.float64):
    model = LayeredCausalLM(causal(num_hidden_layers=2).to(dtype))
    return Objective(model, NextToken(), sample=sample)


def texts():
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 40, (3, 12), generator=generator)
    labels = ids.clone()
    labels[:, :3] = labels[1, 8:] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def gradient(objective, found):
    objective.zero_grad()
    found.lagrangian.backward()
    return torch.cat([each.grad.flatten() for each in objective.parameters()])


@pytest.mark.parametrize("weights", [[0.7, -0.4, 1.0], [0.0, 0.0, 1.0]])
def test_own_exits_are_left_out_where_none_is_needed(weights):
    objective = language()
    objective.model.give_own_exits()
    assert objective(weights, inner=False, **texts()).sums == objective(weights, **texts()).sums[-1:]


class WholeText(Task):
    """One target for each text, read from all of its tokens."""

    def losses(self, prediction, target):
        return F.cross_entropy(prediction.transpose(1, 2), target, reduction="none").mean(1)


def test_a_task_that_names_no_places_reads_every_token():
    objective = Objective(LayeredCausalLM(causal(num_hidden_layers=2)), WholeText())
    batch = texts() | {"labels": texts()["input_ids"]}
    found = objective([0.7, -0.4, 1.0], **batch)
    inputs = objective.task.inputs(batch)
    read = [objective.task.losses(each, batch["labels"]).sum() for each in objective.model.predictions(inputs)]
    assert found.sums == pytest.approx([each.item() for each in read]) and found.targets == 3
    torch.testing.assert_close(found.lagrangian, 0.7 * read[0] - 0.4 * read[1] + read[2])
    objective.model.give_own_exits()
    with pytest.raises(InputError, match="expected places in the inputs"):
        objective([0.7, -0.4, 1.0], **batch)


def test_a_sample_has_its_size_and_its_order():
    sample = TargetSample(0.3)
    for count in (1, 3, 10, 100):
        drawn = sample(count, torch.device("cpu"))
        assert len(drawn) == -(-3 * count // 10) and (drawn.diff() > 0).all()
        assert drawn.min() >= 0 and drawn.max() < count
    assert len(sample(0, torch.device("cpu"))) == 0


@pytest.mark.slow
def test_losses_and_gradients_of_a_sample_are_unbiased():
    """Over many draws the mean estimate is the exact value, within 4 standard errors of each of its numbers."""
    weights = [0.7, -0.4, 1.0]
    exact = language()
    whole = exact(weights, **texts())
    slope = gradient(exact, whole)
    drawn = language(TargetSample(0.2, seed=1))
    sums, slopes = [], []
    for _ in range(400):
        found = drawn(weights, **texts())
        assert found.sums[-1] == whole.sums[-1]  # the last exit sees all
        sums.append(torch.tensor(found.sums, dtype=torch.float64))
        slopes.append(gradient(drawn, found))
    for estimates, truth in ((sums, torch.tensor(whole.sums, dtype=torch.float64)), (slopes, slope)):
        estimates = torch.stack(estimates)
        error = estimates.std(0) / len(estimates) ** 0.5
        assert estimates.std(0)[:-1].max() > 0
        off = (estimates.mean(0) - truth).abs() / error.clamp(min=1e-12)
        varies = error > 1e-10
        assert (off[varies] < 4.5).all() and (off[varies] < 2).double().mean() > 0.9
        torch.testing.assert_close(estimates.mean(0)[~varies], truth[~varies])


def test_inner_exits_share_their_sample():
    """A model whose layers all say the same has violations without any noise between its inner exits."""
    objective = language(TargetSample(0.2))
    for layer in objective.model.library.base_model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    found = objective([1.0] * 3, **texts())
    assert found.sums[0] == found.sums[1] != found.sums[2]
