"""The laws of UT's and DUST's layers, in double precision against the formulas written out by hand."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from descend.models import DUST, UT, DUSTConfig, UTConfig, dct_dictionary
from descend.models.dust import code_kernel
from descend.models.ut import symmetric_attention, symmetric_feedforward
from tests.support.networks import moved

SIDE = 4  # of a patch; P = 16 pixels
PIXELS = SIDE**2

lawful = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
scales = st.floats(0.05, 5)


def draw(seed, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ut(kernel="softmax", heads=1, **settings):
    return UT(UTConfig(patch_size=SIDE, attention_size=4, kernel=kernel, heads=heads, **settings)).double()


def dust(**settings):
    return DUST(DUSTConfig(**{"patch_size": SIDE, "atoms": 36, "layer": "proximal", **settings})).double()


def gradient(energy, at):
    """∇ of a sum of energies, by autograd."""
    at = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(energy(at).sum(), at)
    return found


def degrees(tokens):
    """Σ_j γ_ij of every token, the self-term 1 among them, (T, 1)."""
    return torch.exp(-torch.cdist(tokens, tokens).square() / 2).sum(-1, keepdim=True)


# --- UT: attention


def attention_by_loops(tokens, projection, kernel):
    """Eq. (47), and eq. (49) with its weights of keys, token by token."""
    moved = []
    for query in tokens:
        total, mean = 0.0, torch.zeros_like(query)
        for key in tokens:
            weight = math.exp((projection @ query) @ (projection @ key))
            if kernel == "gaussian":
                weight *= math.exp(-0.5 * (projection @ key).square().sum())
            total, mean = total + weight, mean + weight * key
        moved.append(mean / total)
    return torch.stack(moved)


def pair_energy(tokens, projection):
    """Σ_{i<j} ρ(½‖W y_i − W y_j‖²) with ρ(z) = −exp(−z)."""
    pairs = [(one, other) for i, one in enumerate(tokens) for other in tokens[i + 1 :]]
    return sum(-math.exp(-0.5 * (projection @ (one - other)).square().sum()) for one, other in pairs)


@lawful
@given(seed=seeds, count=st.integers(1, 8), scale=scales)
def test_gaussian_attention_is_a_gradient_step_that_lowers_its_energy(seed, count, scale):
    """Theorem 3.1. The kernel is positive semidefinite, so its Laplacian is at most its degrees: the step is short.

    Eq. (45) less its norm term: W y moves by −∇/Σ_j γ_ij; the gradient reaches y through Wᵀ once more.
    """
    model, tokens, projection = ut("gaussian"), draw(seed, count, PIXELS), scale * draw(seed + 1, 4, PIXELS)
    moved = symmetric_attention(tokens, projection, kernel="gaussian")
    assert pair_energy(moved, projection) <= pair_energy(tokens, projection) + 1e-12
    slope = gradient(lambda y: model.attention_energy(y, projection), tokens)
    way = (moved - tokens) @ projection.T @ projection
    torch.testing.assert_close(way, -slope / degrees(tokens @ projection.T), rtol=1e-6, atol=1e-8)


@lawful
@given(seed=seeds, count=st.integers(2, 8), scale=scales)
def test_softmax_attention_never_raises_the_sum_weighed_by_its_own_keys(seed, count, scale):
    """β_j = exp(½‖W y_j‖²) of its input: so nor the plain sum where norms are equal, or of two tokens."""
    tokens, projection = draw(seed, count, PIXELS), scale * draw(seed + 1, 4, PIXELS)
    seen = tokens @ projection.T

    def weighed(now, norms):
        return -(torch.exp(norms[:, None] + norms - torch.cdist(now, now).square() / 2)).triu(1).sum()

    moved = symmetric_attention(tokens, projection) @ projection.T
    squares = seen.square().sum(-1) / 2
    norms = squares - squares.max()  # the weights but for a factor
    assert weighed(moved, norms) <= weighed(seen, norms) + 1e-12
    pair = symmetric_attention(tokens[:2], projection)
    assert pair_energy(pair, projection) <= pair_energy(tokens[:2], projection) + 1e-12
    even, eye = seen / seen.norm(dim=-1, keepdim=True).clamp(min=1e-9), torch.eye(4, dtype=torch.float64)
    assert pair_energy(symmetric_attention(even, eye), eye) <= pair_energy(even, eye) + 1e-12


def test_softmax_attention_may_raise_the_sum_of_tokens_of_unequal_norms():
    """A long token far from two near ones draws one of them away: the docstring promises no more than holds."""
    tokens, eye = torch.tensor([[0.0], [-0.8], [4.7]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    assert pair_energy(symmetric_attention(tokens, eye), eye) > pair_energy(tokens, eye) + 0.5
    moved = symmetric_attention(tokens, eye, kernel="gaussian")
    assert pair_energy(moved, eye) < pair_energy(tokens, eye)


# --- UT: feed-forward


@lawful
@given(seed=seeds, floor=st.floats(-2, 0), scale=st.floats(0, 3))
def test_feed_forward_is_a_projected_gradient_step_that_lowers_its_energy(seed, floor, scale):
    """Eq. (46) and (48): a step of length 1 on Y ≥ 0, short enough where no eigenvalue of S is below −2."""
    vectors = torch.linalg.qr(draw(seed, PIXELS, PIXELS)).Q
    mixer = vectors @ torch.diag(floor + scale * draw(seed + 1, PIXELS).abs()) @ vectors.T
    model, mixer, tokens = ut(), (mixer + mixer.T) / 2, draw(seed + 2, 5, PIXELS).abs()
    moved = symmetric_feedforward(tokens, mixer)
    slope = gradient(lambda y: model.feedforward_energy(y, mixer), tokens)
    torch.testing.assert_close(moved, (tokens - slope).clamp(min=0))
    torch.testing.assert_close(moved, (tokens + tokens @ mixer).clamp(min=0))
    before, after = (-0.5 * torch.trace(y @ mixer @ y.T) for y in (tokens, moved))
    assert after <= before + 1e-9 * before.abs()


# --- DUST: the proximal layer and its energy


def dust_energy(codes, noisy, dictionary, l1, l2):
    """F(H) of App. C.3, one sequence, term by term."""
    total = 0.0
    for t, (code, patch) in enumerate(zip(codes, noisy, strict=True)):
        total += 0.5 * (patch - dictionary @ code).square().sum().item() + l1 * code.abs().sum().item()
        for earlier in codes[:t]:
            total -= l2 * math.exp(-0.5 * (earlier - code).square().sum())
    return total


@lawful
@given(
    margin=st.sampled_from([1.0, 0.501]),  # ½ is the law's own bound, ‖D‖² the usual one
    seed=seeds,
    count=st.integers(1, 6),
    scale=st.floats(0, 2),
    l1=st.floats(0, 3),
    l2=st.floats(0, 50),
)
def test_a_proximal_layer_is_a_proximal_gradient_step_that_lowers_its_objective(margin, seed, count, scale, l1, l2):
    """Eq. (74) less its norm term: soft(h − ∇/m, λ₁/m) with m_t = c + λ₂ Σ_s γ_st and ∇ of all but the ℓ1 norm."""
    model, dictionary, noisy = dust(l1=l1, l2=l2, c=1.0), draw(seed, PIXELS, 36), 3 * draw(seed + 2, count, PIXELS)
    codes, curvature = scale * draw(seed + 1, count, 36), margin * torch.linalg.matrix_norm(dictionary, 2) ** 2
    moved = model.layer(codes, noisy, codes @ dictionary.T, dictionary, curvature)
    metric = curvature + l2 * degrees(codes)
    slope = gradient(lambda h: model.energy(h, noisy, dictionary) - l1 * h.abs().sum(), codes)
    smooth = codes - slope / metric
    torch.testing.assert_close(moved, smooth.sign() * (smooth.abs() - l1 / metric).clamp(min=0), rtol=1e-6, atol=1e-8)
    before, after = (dust_energy(h, noisy, dictionary, l1, l2) for h in (codes, moved))
    assert after <= before + 1e-9 * abs(before)


def proximal_by_loops(codes, noisy, dictionary, c, l1, l2):
    """An average of a LISTA step and of attention between the codes, then the soft threshold."""
    moved = []
    for code, patch in zip(codes, noisy, strict=True):
        kernel = [math.exp(-0.5 * (other - code).square().sum()) for other in codes]
        metric = c + l2 * sum(kernel)
        lista = c * code + dictionary.T @ (patch - dictionary @ code)
        average = (lista + l2 * sum(weight * other for weight, other in zip(kernel, codes, strict=True))) / metric
        moved.append(average.sign() * (average.abs() - l1 / metric).clamp(min=0))
    return torch.stack(moved)


# --- DUST: the alternating layer


def alternating_by_loops(codes, noisy, dictionary, c, l1, l2):
    """Eq. (75), attention among the codes, in which λ₂ cancels, then eq. (76), an ISTA step on each."""
    moved = []
    for code, patch in zip(codes, noisy, strict=True):
        weights = [math.exp(code @ other) for other in codes]
        half = sum(weight * other for weight, other in zip(weights, codes, strict=True)) / sum(weights)
        stepped = half + dictionary.T @ (patch - dictionary @ half) / c
        moved.append(stepped.sign() * (stepped.abs() - l1 / c).clamp(min=0))
    return torch.stack(moved)


LAYERS = {"proximal": proximal_by_loops, "alternating": alternating_by_loops}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_code_weighs_more_than_itself_however_it_is_rounded(dtype):
    """γ ≤ 1: a Gram matrix in bfloat16 has errors of 1 and more, which an exponential would blow up."""
    codes = (5 * draw(5, 100, 1, 36) + 0.01 * draw(6, 100, 4, 36)).to(dtype)
    kernel = code_kernel(codes)
    assert kernel.max() == 1 and (kernel.diagonal(dim1=-2, dim2=-1) == 1).all()


# --- DUST: the step


def spectral(model):
    return torch.linalg.matrix_norm(model.dictionary.detach(), 2) ** 2


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("atoms", "margin"), [(256, 1.01), (400, 0.6), (400, 1.01), (1024, 1.01)])
def test_curvature_is_the_squared_norm_of_the_dictionary(atoms, margin, tied):
    model = DUST(DUSTConfig(depth=2, atoms=atoms, layer="proximal", margin=margin, tied=tied))
    torch.testing.assert_close(model.curvature(), margin * spectral(model), rtol=1e-3, atol=0)


@pytest.mark.parametrize("atoms", [400, 1024])
def test_curvature_is_tracked_while_the_dictionary_trains(atoms):
    """Three power iterations a step, from the last step's vector; evaluation does not move that vector."""
    torch.manual_seed(0)
    model = DUST(DUSTConfig(depth=2, atoms=atoms, layer="proximal")).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    start = spectral(model)
    for _ in range(50):
        clean = torch.rand(1, 1, 20, 1) * torch.rand(20, 256)
        (model(clean + 0.15 * torch.randn(1, 3, 20, 256)).reconstruction - clean).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert spectral(model) > 1.05 * start  # there was something to track
    torch.testing.assert_close(model.curvature(), 1.01 * spectral(model), rtol=0.02, atol=0)
    kept = model.leading.clone()
    model.eval().curvature()
    assert torch.equal(model.leading, kept)


# --- the dictionary


@pytest.mark.parametrize("side", [4, 8, 16])
def test_as_many_atoms_as_pixels_are_the_orthonormal_dct(side):
    dictionary = dct_dictionary(side, side**2).double()
    torch.testing.assert_close(dictionary.T @ dictionary, torch.eye(side**2).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(dictionary[:, 0], torch.full((side**2,), 1 / side).double(), rtol=0, atol=1e-6)
    steps = dictionary.T.unflatten(-1, (side, side)).diff(dim=-1).square().sum((-2, -1))
    assert steps[0] < 1e-12 and steps[: side**2 // 2].mean() < steps[side**2 // 2 :].mean()


@pytest.mark.parametrize("atoms", [256, 289, 400, 1024])
def test_atoms_have_unit_norm_and_four_times_as_many_are_a_tight_frame(atoms):
    """D Dᵀ = 4 I: with samples at half pixels, ‖D‖² = 4 for the usual 1024 atoms of 16×16 patches."""
    dictionary = dct_dictionary(16, atoms)
    torch.testing.assert_close(dictionary.norm(dim=0), torch.ones(atoms))
    if atoms == 1024:
        torch.testing.assert_close(dictionary @ dictionary.T, 4 * torch.eye(256), rtol=0, atol=1e-5)


# --- whole models, by loops over samples and patch positions


class WholeUT:
    """UT by hand: its weights are symmetric, stored in the basis of the DCT, and each layer's own unless tied."""

    def __init__(self, tied, **settings):
        self.model = moved(ut(depth=3, tied=tied, **settings), 0.05)
        self.config, basis = self.model.config, dct_dictionary(SIDE, PIXELS).double().T
        half = self.model.feedforward.detach() / 2
        self.projections = (self.model.projection.detach() @ basis).expand(3, -1, -1)
        self.mixers = (basis.T @ (half + half.mT) @ basis).expand(3, -1, -1)

    def start(self, noisy):
        return noisy

    def move(self, tokens, noisy, place):
        parts = self.projections[place].chunk(self.config.heads)
        attended = sum(attention_by_loops(tokens, part, self.config.kernel) for part in parts) / len(parts)
        return (attended + attended @ self.mixers[place]).clamp(min=0)

    def read(self, tokens, place):
        return tokens

    def energy(self, tokens, noisy, place):
        mixed = torch.trace(tokens @ self.mixers[place] @ tokens.T).item()
        return pair_energy(tokens, self.projections[place]) - 0.5 * mixed


class WholeDUST:
    """DUST by hand: an alternating one keeps its c wherever its dictionaries go; that of a proximal one follows."""

    def __init__(self, tied, layer="proximal", c=None):
        settings = {"layer": layer, "depth": 3, "tied": tied, "l1": 0.05, "l2": 0.7, "margin": 1.5, "c": c}
        self.model, self.by_loops = moved(dust(**settings), 0.05), LAYERS[layer]
        self.dictionaries = self.model.dictionary.detach().expand(3, -1, -1)
        self.curvature = self.model.curvature().expand(3)
        if c or layer == "alternating":
            start = 1.5 * torch.linalg.matrix_norm(dct_dictionary(SIDE, 36), 2).item() ** 2
            assert self.curvature.tolist() == pytest.approx([c or start] * 3)

    def start(self, noisy):
        return torch.zeros(len(noisy), 36).double()

    def move(self, codes, noisy, place):
        return self.by_loops(codes, noisy, self.dictionaries[place], self.curvature[place], 0.05, 0.7)

    def read(self, codes, place):
        return codes @ self.dictionaries[place].T

    def energy(self, codes, noisy, place):
        return dust_energy(codes, noisy, self.dictionaries[place], 0.05, 0.7)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((WholeUT, settings) for settings in ({}, {"kernel": "gaussian"}, {"heads": 2})),
        *((WholeDUST, {"layer": layer, "c": c}) for layer in LAYERS for c in (None, 7.0)),
    ],
)
@torch.no_grad()
def test_a_whole_model_is_its_layers_with_their_own_weights(kind, settings, tied):
    """What it computes, reads and the energies of all layers; h_0 is read by the first layer's weights."""
    whole, noisy = kind(tied, **settings), draw(0, 2, 4, 3, PIXELS).abs()
    states, predictions = whole.model.layer_outputs(noisy), list(whole.model.predictions(noisy))
    energies = torch.zeros(4, 2).double()
    for sample, place in product(range(2), range(3)):
        sequence = noisy[sample, :, place]
        tokens = whole.start(sequence)
        for layer in range(4):
            own = max(0, layer - 1)
            torch.testing.assert_close(states[layer][sample, place], tokens, rtol=1e-6, atol=1e-7)
            read = predictions[layer][sample, :, place]
            torch.testing.assert_close(read, whole.read(tokens, own), rtol=1e-6, atol=1e-7)
            energies[layer, sample] += whole.energy(tokens, sequence, own) / 3
            tokens = whole.move(tokens, sequence, min(layer, 2))
    torch.testing.assert_close(whole.model.energies(noisy), energies, rtol=1e-6, atol=1e-7)
