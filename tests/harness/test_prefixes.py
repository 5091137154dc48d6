"""Noise drawn by the prefix: against a hand-written hash, and in a model's forward passes and its `generate`."""

from hashlib import blake2b

import pytest
import torch

from descend.harness.model import PrefixDraws
from descend.noise import GaussianNoise
from descend.seeds import Stream, derived
from tests.support.networks import causal, embedded

WIDTH = 16


def draws(ids, mask=None, last=None, seed=0):
    """The draws (B, T, H) of the last T tokens."""
    followed = PrefixDraws()
    followed.follow(torch.tensor(ids), None if mask is None else torch.tensor(mask))
    clean = torch.zeros(len(ids), last or len(ids[0]), WIDTH)
    return followed.tensor(GaussianNoise(1.0, 1.0, seed), clean, None)


def test_a_draw_is_that_of_the_hash_of_the_tokens_up_to_it():
    """So texts share draws as far as they share tokens."""
    key = derived(Stream.PREFIX_NOISE, 3).to_bytes(8, "little")
    tokens = [5, 9, 2, 9]
    for place, drawn in enumerate(draws([tokens], seed=3)[0]):
        prefix = b"".join(token.to_bytes(8, "little") for token in tokens[: place + 1])
        number = int.from_bytes(blake2b(prefix, digest_size=8, key=key).digest(), "little")
        assert torch.equal(drawn, torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(number))[0])


def test_padding_on_either_side_and_the_cache_change_no_draw():
    alone = draws([[5, 9, 2]])[0]
    assert torch.equal(draws([[5, 9, 2, 0, 0], [1, 2, 3, 4, 5]])[0, :3], alone)
    left = draws([[0, 0, 5, 9, 2], [1, 2, 3, 4, 5]], [[0, 0, 1, 1, 1], [1] * 5])
    assert torch.equal(left[0, 2:], alone) and not left[0, :2].any()
    assert torch.equal(draws([[0, 0, 5, 9, 2]], [[0, 0, 1, 1, 1]], last=1)[0], alone[2:])


@pytest.mark.parametrize("how", [{}, {"use_cache": False}, {"num_beams": 3}], ids=str)
@torch.no_grad()
def test_generate_sees_the_noise_of_one_forward_pass_over_its_text(how):
    """With and without the cache, with beams that change places, beside a longer prompt that pads this one."""
    network = causal()
    noise, followed = GaussianNoise(2.0, 0.3), PrefixDraws()
    ids = torch.tensor([[0, 0, 7, 11], [5, 6, 7, 8]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with noise.on(network, indices=followed), followed.following(network):
        settings = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **how}
        seen, answers = embedded(network, lambda: network.generate(ids, eos_token_id=None, **settings))
    assert "prepare_inputs_for_generation" not in vars(network)
    for row, start in ((0, 2), (1, 0)):
        text = answers[row : row + 1, start:]
        followed.follow(text)
        with noise.on(network, indices=followed):
            (whole,), _ = embedded(network, lambda text=text: network(text))
        clean = network.get_input_embeddings()(text)
        assert torch.allclose((whole - clean).std(), torch.tensor(0.6), rtol=0.2)
        if "use_cache" in how:
            assert torch.equal(seen[-1][row, start:], whole[0, :-1])
        elif not how:
            steps = torch.cat(seen, 1)[row, start:]
            assert torch.equal(steps, whole[0, :-1])
        else:  # a beam's text ends in one of the beams: its last tokens were embedded somewhere in their step
            for step, rows in enumerate(seen[1:]):
                assert (rows[:, 0] == whole[0, 4 - start + step]).all(-1).any()
