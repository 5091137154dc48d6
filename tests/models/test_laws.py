"""The laws of UT's and DUST's layers, in double precision against the formulas written out by hand."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from descend.models import DUST, UT, DUSTConfig, UTConfig, dct_dictionary
from descend.models.dust import code_kernel

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


@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
@lawful
@given(seed=seeds, count=st.integers(1, 6), scale=st.floats(0.05, 1))
def test_attention_is_the_papers_formula(kernel, seed, count, scale):
    tokens, projection = draw(seed, count, PIXELS), scale * draw(seed + 1, 4, PIXELS)
    torch.testing.assert_close(ut(kernel).attend(tokens, projection), attention_by_loops(tokens, projection, kernel))


def test_heads_average_the_attention_of_their_projections():
    tokens, projection = draw(0, 5, PIXELS), 0.3 * draw(1, 4, PIXELS)
    by_hand = sum(attention_by_loops(tokens, part, "softmax") for part in projection.split(2)) / 2
    torch.testing.assert_close(ut(heads=2).attend(tokens, projection), by_hand)


@lawful
@given(seed=seeds, count=st.integers(1, 8), scale=scales)
def test_gaussian_attention_lowers_its_energy(seed, count, scale):
    """Theorem 3.1. The kernel is positive semidefinite, so its Laplacian is at most its degrees: the step is short."""
    model, tokens, projection = ut("gaussian"), draw(seed, count, PIXELS), scale * draw(seed + 1, 4, PIXELS)
    before, after = pair_energy(tokens, projection), pair_energy(model.attend(tokens, projection), projection)
    assert after <= before + 1e-12
    assert model.attention_energy(tokens, projection).item() == pytest.approx(before, abs=1e-12)


@lawful
@given(seed=seeds, count=st.integers(1, 8), length=st.floats(0.1, 4))
def test_softmax_attention_lowers_its_energy_where_norms_are_equal(seed, count, length):
    projection = draw(seed + 1, 4, PIXELS)
    tokens = draw(seed, count, PIXELS)
    tokens *= length / (tokens @ projection.T).norm(dim=-1, keepdim=True)
    moved = ut().attend(tokens, projection)
    torch.testing.assert_close(moved, ut("gaussian").attend(tokens, projection))
    assert pair_energy(moved, projection) <= pair_energy(tokens, projection) + 1e-12


# --- UT: feed-forward


@lawful
@given(seed=seeds, floor=st.floats(-2, 0), scale=st.floats(0, 3))
def test_feed_forward_lowers_its_energy(seed, floor, scale):
    """Projected gradient on Y ≥ 0 with a step of 1, short enough where no eigenvalue of S is below −2."""
    vectors = torch.linalg.qr(draw(seed, PIXELS, PIXELS)).Q
    mixer = vectors @ torch.diag(floor + scale * draw(seed + 1, PIXELS).abs()) @ vectors.T
    mixer = (mixer + mixer.T) / 2
    tokens = draw(seed + 2, 5, PIXELS).abs()
    model = ut()
    moved = model.feed(tokens, mixer)
    torch.testing.assert_close(moved, (tokens + tokens @ mixer).clamp(min=0))

    def energy(value):
        return -0.5 * torch.trace(value @ mixer @ value.T)

    assert energy(moved) <= energy(tokens) + 1e-9 * energy(tokens).abs()
    torch.testing.assert_close(model.feedforward_energy(tokens, mixer), energy(tokens))


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_symmetric_and_in_the_pixel_basis(tied):
    model = ut(tied=tied, depth=3)
    with torch.no_grad():
        model.feedforward.copy_(draw(0, *model.feedforward.shape))
    basis = dct_dictionary(SIDE, PIXELS).double().T
    weights = model.weights()
    assert len(weights) == 3
    for layer, (projection, mixer) in enumerate(weights):
        own = 0 if tied else layer
        torch.testing.assert_close(projection, model.projection[own] @ basis)
        torch.testing.assert_close(mixer, mixer.T)
        half = model.feedforward[own] / 2
        torch.testing.assert_close(basis @ mixer @ basis.T, half + half.T, rtol=1e-6, atol=1e-6)


# --- DUST: the proximal layer and its energy


def dust_energy(codes, noisy, dictionary, l1, l2):
    """F(H) of App. C.3, one sequence, term by term."""
    total = 0.0
    for t, (code, patch) in enumerate(zip(codes, noisy, strict=True)):
        total += 0.5 * (patch - dictionary @ code).square().sum().item() + l1 * code.abs().sum().item()
        for earlier in codes[:t]:
            total -= l2 * math.exp(-0.5 * (earlier - code).square().sum())
    return total


# ½ is the law's own bound, ‖D‖² the usual one.
@pytest.mark.parametrize("margin", [1.0, 0.501])
@lawful
@given(seed=seeds, count=st.integers(1, 6), scale=st.floats(0, 2), l1=st.floats(0, 3), l2=st.floats(0, 50))
def test_a_dust_layer_lowers_its_objective(margin, seed, count, scale, l1, l2):
    model, dictionary, noisy = dust(l1=l1, l2=l2), draw(seed, PIXELS, 36), 3 * draw(seed + 2, count, PIXELS)
    codes, curvature = scale * draw(seed + 1, count, 36), margin * torch.linalg.matrix_norm(dictionary, 2) ** 2
    moved = model.layer(codes, noisy, codes @ dictionary.T, dictionary, curvature)
    before, after = (dust_energy(h, noisy, dictionary, l1, l2) for h in (codes, moved))
    assert model.energy(codes, noisy, dictionary).item() == pytest.approx(before, rel=1e-9)
    assert after <= before + 1e-9 * abs(before)


def test_a_dust_layer_is_the_formula_of_its_docstring():
    """An average of a LISTA step and of attention between the codes, then the soft threshold."""
    model, l1, l2, c = dust(l1=0.05, l2=0.7), 0.05, 0.7, 6.0
    dictionary, codes, noisy = draw(0, PIXELS, 36), 0.3 * draw(1, 5, 36), draw(2, 5, PIXELS)
    expected = []
    for code, patch in zip(codes, noisy, strict=True):
        kernel = [math.exp(-0.5 * (other - code).square().sum()) for other in codes]
        lista = code + dictionary.T @ (patch - dictionary @ code) / c
        attention = sum(weight * other for weight, other in zip(kernel, codes, strict=True)) / sum(kernel)
        metric = c + l2 * sum(kernel)
        average = (c * lista + l2 * sum(kernel) * attention) / metric
        expected.append(average.sign() * (average.abs() - l1 / metric).clamp(min=0))
    moved = model.layer(codes, noisy, codes @ dictionary.T, dictionary, torch.tensor(c).double())
    torch.testing.assert_close(moved, torch.stack(expected))


@pytest.mark.parametrize(
    ("layer", "l2"),
    [("proximal", 0.0), ("alternating", 0.0), ("alternating", 1.0)],  # a frame alone attends to itself
)
def test_dust_without_attention_on_one_frame_is_ista(layer, l2):
    model = dust(depth=5, l1=0.1, l2=l2, layer=layer).eval()
    noisy, dictionary, c = draw(4, 2, 1, 3, PIXELS), model.dictionary[0], model.curvature().item()
    for sample in range(2):
        for patch in range(3):
            code = torch.zeros(36).double()
            for layer in range(6):
                found = model.layer_outputs(noisy)[layer][sample, patch, 0]
                torch.testing.assert_close(found, code)
                code = code + dictionary.T @ (noisy[sample, 0, patch] - dictionary @ code) / c
                code = code.sign() * (code.abs() - 0.1 / c).clamp(min=0)


# --- DUST: the alternating layer


def alternating_by_loops(codes, noisy, dictionary, c, l1):
    """Eq. (75), attention among the codes, then eq. (76), an ISTA step on each."""
    moved = []
    for code, patch in zip(codes, noisy, strict=True):
        weights = [math.exp(code @ other) for other in codes]
        half = sum(weight * other for weight, other in zip(weights, codes, strict=True)) / sum(weights)
        stepped = half + dictionary.T @ (patch - dictionary @ half) / c
        moved.append(stepped.sign() * (stepped.abs() - l1 / c).clamp(min=0))
    return torch.stack(moved)


@lawful
@given(seed=seeds, count=st.integers(1, 6), scale=st.floats(0, 1), l1=st.floats(0, 1), c=st.floats(1, 50))
def test_an_alternating_layer_is_the_papers_formula(seed, count, scale, l1, c):
    dictionary, codes, noisy = draw(seed, PIXELS, 36), scale * draw(seed + 1, count, 36), draw(seed + 2, count, PIXELS)
    moved = dust(layer="alternating", l1=l1).layer(codes, noisy, codes @ dictionary.T, dictionary, torch.tensor(c))
    torch.testing.assert_close(moved, alternating_by_loops(codes, noisy, dictionary, c, l1))


@pytest.mark.parametrize("tied", [True, False])
def test_the_whole_alternating_dust_keeps_its_c_wherever_its_dictionaries_go(tied):
    model = dust(layer="alternating", depth=3, tied=tied, l1=0.05, margin=1.5).eval()
    c = 1.5 * torch.linalg.matrix_norm(dct_dictionary(SIDE, 36), 2).item() ** 2
    with torch.no_grad():
        model.dictionary.add_(0.1 * draw(1, *model.dictionary.shape))
    noisy = draw(0, 2, 4, 3, PIXELS).abs()
    with torch.no_grad():
        states, predictions = model.layer_outputs(noisy), list(model.predictions(noisy))
    dictionaries = model.dictionary.detach()
    for sample in range(2):
        for place in range(3):
            codes = torch.zeros(4, 36).double()
            for layer in range(4):
                torch.testing.assert_close(states[layer][sample, place], codes, rtol=1e-6, atol=1e-7)
                read = codes @ dictionaries[0 if tied else max(0, layer - 1)].T  # by the layer's own dictionary
                torch.testing.assert_close(predictions[layer][sample, :, place], read, rtol=1e-6, atol=1e-7)
                dictionary = dictionaries[0 if tied else min(layer, 2)]
                codes = alternating_by_loops(codes, noisy[sample, :, place], dictionary, c, 0.05)


@lawful
@given(seed=seeds, scale=st.floats(0, 2), l1=st.floats(0, 3), margin=st.sampled_from([0.501, 1.0]))
def test_the_ista_half_of_an_alternating_layer_lowers_its_part_of_the_objective(seed, scale, l1, margin):
    """A frame alone is its own average: what is left of the layer is eq. (76)."""
    model = dust(layer="alternating", l1=l1)
    dictionary, codes, noisy = draw(seed, PIXELS, 36), scale * draw(seed + 1, 1, 36), 3 * draw(seed + 2, 1, PIXELS)
    curvature = margin * torch.linalg.matrix_norm(dictionary, 2) ** 2
    moved = model.layer(codes, noisy, codes @ dictionary.T, dictionary, curvature)
    before, after = (dust_energy(h, noisy, dictionary, l1, 1.0) for h in (codes, moved))
    assert after <= before + 1e-9 * abs(before)


@pytest.mark.parametrize("layer", ["alternating", "proximal"])
def test_a_given_c_is_the_inverse_step(layer):
    model = dust(layer=layer, depth=1, l1=0.0, c=7.0).eval()
    noisy = draw(0, 1, 1, 1, PIXELS)
    moved = noisy[0, 0, 0] @ model.dictionary[0] / (7 if layer == "alternating" else 8)  # λ₂ γ_tt = 1 more
    torch.testing.assert_close(model.layer_outputs(noisy)[1][0, 0, 0], moved)


def test_a_saved_c_is_loaded_and_an_old_model_is_proximal(tmp_path):
    """Models saved before there was a choice of layer don't name one in their config.json."""
    model = DUST(DUSTConfig(depth=1, patch_size=SIDE, atoms=36, layer="alternating"))
    with torch.no_grad():
        model.c.fill_(9)
        model.dictionary.mul_(2)
    model.save_pretrained(tmp_path / "new")
    loaded = DUST.from_pretrained(tmp_path / "new")
    assert loaded.config.layer == "alternating" and loaded.c == 9

    old = dust(depth=2).float().eval()
    old.save_pretrained(tmp_path / "old")
    file = tmp_path / "old" / "config.json"
    settings = json.loads(file.read_text())
    assert settings.pop("layer") == "proximal"
    file.write_text(json.dumps({name: value for name, value in settings.items() if name != "c"}))
    loaded = DUST.from_pretrained(tmp_path / "old")
    assert loaded.config.layer == "proximal"
    noisy = draw(0, 1, 3, 2, PIXELS).float()
    assert torch.equal(loaded(noisy).reconstruction, old(noisy).reconstruction)


def test_an_old_model_with_separate_dictionaries_is_read_by_its_extra_one(tmp_path):
    """Its config.json does not say so, and its file has L + 1 dictionaries."""
    old = DUST(DUSTConfig(depth=2, patch_size=SIDE, atoms=36, tied=False, extra_readout=True)).eval()
    with torch.no_grad():
        old.dictionary.add_(0.1 * draw(1, 3, PIXELS, 36).float())
    old.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    assert settings.pop("extra_readout")
    file.write_text(json.dumps(settings))
    loaded, noisy = DUST.from_pretrained(tmp_path), draw(0, 1, 3, 2, PIXELS).float()
    states = loaded.layer_outputs(noisy)
    for state, read in zip(states, loaded.predictions(noisy), strict=True):
        assert torch.equal(read, (state @ old.dictionary[2].T).transpose(1, 2))
    assert states[-1].any()


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
@pytest.mark.parametrize("margin", [0.6, 1.01])
@pytest.mark.parametrize("atoms", [256, 400, 1024])
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


# --- energies: the layer's own update is that of the gradient


def gradient(energy, at):
    """∇ of a sum of energies, by autograd."""
    at = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(energy(at).sum(), at)
    return found


def degrees(tokens, projection=None):
    """Σ_j γ_ij of every token, the self-term 1 among them, (T, 1)."""
    seen = tokens if projection is None else tokens @ projection.T
    return torch.exp(-torch.cdist(seen, seen).square() / 2).sum(-1, keepdim=True)


@lawful
@given(seed=seeds, count=st.integers(1, 8), scale=scales)
def test_attention_is_a_gradient_step_of_its_energy(seed, count, scale):
    """Eq. (45) less its norm term: W y moves by −∇/Σ_j γ_ij; the gradient reaches y through Wᵀ once more."""
    model, tokens, projection = ut("gaussian"), draw(seed, count, PIXELS), scale * draw(seed + 1, 4, PIXELS)
    slope = gradient(lambda y: model.attention_energy(y, projection), tokens)
    moved = (model.attend(tokens, projection) - tokens) @ projection.T @ projection
    torch.testing.assert_close(moved, -slope / degrees(tokens, projection), rtol=1e-6, atol=1e-8)


@lawful
@given(seed=seeds)
def test_feed_forward_is_a_projected_gradient_step_of_its_energy(seed):
    """Eq. (46) and (48): a step of length 1, and the ReLU projects it on Y ≥ 0."""
    model, tokens, mixer = ut(), draw(seed, 5, PIXELS), draw(seed + 1, PIXELS, PIXELS)
    mixer = (mixer + mixer.T) / 2
    slope = gradient(lambda y: model.feedforward_energy(y, mixer), tokens)
    torch.testing.assert_close(model.feed(tokens, mixer), (tokens - slope).clamp(min=0))


@lawful
@given(seed=seeds, count=st.integers(1, 6), scale=st.floats(0, 1), l1=st.floats(0, 1), l2=st.floats(0, 5))
def test_a_dust_layer_is_a_proximal_gradient_step_of_its_energy(seed, count, scale, l1, l2):
    """Eq. (74) less its norm term: soft(h − ∇/m, λ₁/m) with m_t = c + λ₂ Σ_s γ_st and ∇ of all but the ℓ1 norm."""
    smooth, model = dust(l1=0.0, l2=l2), dust(l1=l1, l2=l2)
    dictionary, codes, noisy = draw(seed, PIXELS, 36), scale * draw(seed + 1, count, 36), draw(seed + 2, count, PIXELS)
    curvature = torch.linalg.matrix_norm(dictionary, 2) ** 2
    metric = curvature + l2 * degrees(codes)
    moved = codes - gradient(lambda h: smooth.energy(h, noisy, dictionary), codes) / metric
    expected = moved.sign() * (moved.abs() - l1 / metric).clamp(min=0)
    found = model.layer(codes, noisy, codes @ dictionary.T, dictionary, curvature)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def alternating_dust(**settings):
    return dust(layer="alternating", **settings)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [ut, dust, alternating_dust])
def test_energies_are_those_of_the_layers_own_weights(kind, tied):
    """By loops over samples and patch positions; h_0 under the first layer's weights."""
    model = kind(depth=3, tied=tied).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * draw(1, *parameter.shape)
    noisy = draw(0, 2, 4, 3, PIXELS).abs()
    with torch.no_grad():
        found, states = model.energies(noisy), model.layer_outputs(noisy)
    assert found.shape == (4, 2)
    for layer, state in enumerate(states):
        own = 0 if tied else max(0, layer - 1)
        for sample in range(2):
            total = 0.0
            for place in range(3):
                tokens = state[sample, place].detach()
                if kind is not ut:
                    dictionary = model.dictionary[own].detach()
                    total += dust_energy(tokens, noisy[sample, :, place], dictionary, 0.02, 1.0)
                else:
                    projection, mixer = (weight.detach() for weight in model.weights()[own])
                    total += pair_energy(tokens, projection) - 0.5 * torch.trace(tokens @ mixer @ tokens.T).item()
            assert found[layer, sample].item() == pytest.approx(total / 3, rel=1e-9)
