"""Noise: its size, its own generator, draws that belong to a sample, and the seeds of all that is drawn."""

import json
import math
import re
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from descend import UT, DescentDenoiser, InputError, UTConfig
from descend.harness.model import PrefixDraws
from descend.models import LayeredImageClassifier
from descend.noise import GaussianNoise, LaplaceNoise, Noise, SampleDraws, StateNoise, TokenDropout, UniformNoise
from descend.noise_scale import noise_std
from descend.privacy import guarantee
from descend.recipes import RECIPES
from descend.run.denoising import denoise
from descend.seeds import Stream, derived, generator_of, of_sample
from descend.tasks.video import VideoDenoising
from descend.tiles import TargetSample
from descend.training.hf_hooks import LengthGrouped
from descend.training.preset import paper
from reproduction.theory import distance as noise_distance
from tests.support.networks import embedded, image_network, network
from tests.support.ranks import classifier
from tests.support.sources import write_frames

CLEAN = torch.full((4, 3, 100, 256), 0.5)


@pytest.mark.parametrize("indices", [None, range(4)])
@pytest.mark.parametrize("kind", [GaussianNoise, UniformNoise, LaplaceNoise])
def test_additive_kinds_have_their_own_shape_and_leave_the_global_generator_alone(kind, indices):
    before = torch.get_rng_state()
    difference = kind(0.8, 0.2)(CLEAN, indices=indices) - CLEAN
    assert torch.equal(torch.get_rng_state(), before)  # dropout draws from it
    std = difference.std().item()
    assert std == pytest.approx(0.16, rel=0.02)
    assert difference.mean().item() == pytest.approx(0, abs=0.002)
    kurtosis = {GaussianNoise: 3, UniformNoise: 9 / 5, LaplaceNoise: 6}[kind]
    assert (difference**4).mean().item() / std**4 == pytest.approx(kurtosis, rel=0.05)


def test_levels_are_scalings_of_one_draw_and_level_zero_draws_nothing():
    noise = GaussianNoise(0.0, 0.2, seed=3)
    assert noise(CLEAN) is CLEAN
    assert torch.equal(noise.at(1.0)(CLEAN), GaussianNoise(1.0, 0.2, seed=3)(CLEAN))
    one, two = (noise.at(level)(CLEAN, indices=range(4)) - CLEAN for level in (0.5, 1.0))
    torch.testing.assert_close(2 * one, two)
    assert GaussianNoise(0.5, 0.2)(CLEAN.bfloat16()).dtype == torch.bfloat16
    assert GaussianNoise(0.5).at(1.0, sigma=2.0).sigma == 2.0 == GaussianNoise(0.5, 2.0).at(1.0).sigma


def own(indices, shape, seed=0, keep=None) -> torch.Tensor:
    """The unit draws that belong to samples."""
    return GaussianNoise(1.0, 1.0, seed)(torch.zeros(len(indices), *shape), keep, indices)


def test_own_draws_depend_on_the_seed_and_the_index_alone_and_not_on_padding():
    together = own([7, 3, 5], (2, 10), seed=4)
    for place, index in enumerate([7, 3, 5]):
        assert torch.equal(own([index], (2, 10), seed=4)[0], together[place])
    assert not torch.equal(own([7], (2, 10), seed=5)[0], together[0]) and not torch.equal(together[0], together[1])
    assert torch.equal(own([5], (9,))[0], torch.randn(9, generator=torch.Generator().manual_seed(of_sample(0, 5))))
    keep = torch.tensor([[True] * 5 + [False] * 3, [False] * 2 + [True] * 6])
    padded = own([7, 3], (8, 4), keep=keep)
    assert torch.equal(padded[0, :5], own([7], (5, 4))[0]) and torch.equal(padded[1, 2:], own([3], (6, 4))[0])
    assert not padded[~keep].any()
    clean = torch.rand(2, 8, 4)
    assert torch.equal((GaussianNoise(0.5, 1.0)(clean, keep) != clean).all(-1), keep)  # fresh ones neither


# --- other kinds


def test_token_dropout_drops_whole_tokens_as_often_as_it_says():
    """A probability, whatever γσ_x is otherwise."""
    clean = torch.ones(10, 500, 4)
    noisy = TokenDropout(0.3)(clean)
    assert ((noisy == 0).all(-1) | (noisy == 1).all(-1)).all()
    assert (noisy == 0).float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(noisy, TokenDropout(0.3, noise_is="variance")(clean))


class Sparse(Noise):
    """A noise of the user's own, with a parameter: it moves a share of the numbers up."""

    def __init__(self, share, *args, **settings):
        super().__init__(*args, **settings)
        self.share, self.drawn = share, []

    def draw(self, like, generator):
        self.drawn.append(len(like))
        return (torch.rand(like.shape, generator=generator) < self.share).to(like)


@pytest.mark.parametrize("indices", [None, [4, 5]])
def test_a_noise_of_the_users_own_keeps_its_parameters_and_has_its_own_draws(indices):
    clean, keep = torch.zeros(2, 300, 40), torch.arange(300) < torch.tensor([[300], [100]])
    draws = None if indices is None else SampleDraws(indices)
    for share in (0.25, 0.75):
        noise = Sparse(share, 9.0, 0.5, noise_is="variance")
        for level, std in ((0.5, 0.5), (2.0, 1.0)):
            added = noise.at(level)(clean, keep, draws)
            assert not added[~keep].any() and added[keep].unique().tolist() == [0.0, std]
            assert added[keep].mean().item() == pytest.approx(share * std, rel=0.05)
        # One draw of each sample, which sees no padding, serves all levels.
        assert noise.drawn == ([2, 2] if indices is None else [300, 100])


ROWS, IDS, IMAGES = torch.zeros(2, 6, 4), torch.arange(12).view(2, 6), image_network()
KINDS = (GaussianNoise, UniformNoise, LaplaceNoise, TokenDropout)


def of_prefixes(noise) -> torch.Tensor:
    draws = PrefixDraws()
    draws.follow(IDS)
    return noise(ROWS, indices=draws)


DRAWS = {
    **{f"{kind.__name__} of a batch": lambda kind=kind: kind(0.5, 1.0)(ROWS) for kind in KINDS},
    **{f"{kind.__name__} of samples": lambda kind=kind: kind(0.5, 1.0)(ROWS, indices=[3, 5]) for kind in KINDS},
    **{f"{kind.__name__} of prefixes": lambda kind=kind: of_prefixes(kind(0.5, 1.0)) for kind in KINDS[:3]},
    "targets": lambda: TargetSample(0.5)(40, torch.device("cpu")),
    "made-up frames": UT(UTConfig(depth=1)).probe_inputs,
    "made-up images": lambda: LayeredImageClassifier(IMAGES).probe_inputs()["pixel_values"],
}


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_do_not_depend_on_the_default_dtype_or_device(draw):
    """The meta device, which does not mix with the CPU either, stands in for a GPU."""
    usual = DRAWS[draw]()
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            found = DRAWS[draw]()
        finally:
            torch.set_default_dtype(torch.float32)
        assert torch.equal(found, usual), dtype
    with torch.device("meta"):
        assert torch.equal(DRAWS[draw](), usual)


@pytest.mark.parametrize("noise_is", ["std", "variance"])
def test_without_a_sigma_it_is_measured_in_every_batch_and_padding_left_out(noise_is):
    clean = torch.randn(6, 50, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1
    keep = torch.arange(50) < torch.tensor([[50], [40], [30], [20], [10], [50]])
    clean[~keep] = 100.0
    for masked, sigma in ((keep, clean[keep].std(correction=0)), (None, clean.std(correction=0))):
        known = GaussianNoise(0.5, sigma.item(), seed=3, noise_is=noise_is)(clean, masked)
        measured = GaussianNoise(0.5, seed=3, noise_is=noise_is)(clean, masked)
        torch.testing.assert_close(measured, known, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda level=level: GaussianNoise(level, 0.2), rf"at least 0.*got {level}")
            for level in (-0.1, math.nan, math.inf)
        ),
        (lambda: GaussianNoise(0.5, noise_is="snr"), r"noise_is.*'std'.*'variance'.*'snr'"),
        (lambda: RECIPES["video-ut"].kind(data="generated", noise_is="snr"), r"noise_is.*'std'.*'variance'.*'snr'"),
        (lambda: TokenDropout(1.5), r"probability.*1\.5"),
        (lambda: TokenDropout(0.5).at(1.5), r"probability.*1\.5"),
        (lambda: GaussianNoise(0.5)(torch.zeros(6, 2), indices=range(6)), "sigma"),
        (lambda: derived(Stream.NOISE, -1), "at least 0; got -1"),
        (lambda: GaussianNoise(1.0, 1.0)(torch.zeros(5, 2, 8), indices=[0, 1]), r"each of 2 samples.*\(5, 2, 8\)"),
    ],
)
def test_what_is_no_noise_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


# --- on a model's embedding


def test_noise_is_on_the_embedding_inside_the_block_only_and_never_on_padding():
    """Without a mask given, padding is what the call's `attention_mask` says."""
    classifier = network("roberta").eval()
    tokens = torch.randint(5, 40, (3, 6), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": tokens, "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]])}

    def called():
        (words,), output = embedded(classifier, lambda: classifier(**batch))
        return words, output.logits

    clean, logits = called()
    with GaussianNoise(1.0, 0.5).on(classifier):
        noisy, moved = called()
    assert torch.equal((noisy != clean).all(-1), batch["attention_mask"].bool()) and not torch.equal(moved, logits)
    with pytest.raises(ZeroDivisionError), GaussianNoise(1.0, 0.5).on(classifier):
        raise ZeroDivisionError
    assert all(map(torch.equal, called(), (clean, logits)))
    with GaussianNoise(1.0, 0.5).on(classifier.bfloat16()):
        assert {each.dtype for each in called()} == {torch.bfloat16}


class Echo(torch.nn.Module):
    """Layers that return what they are given, and note it."""

    def __init__(self, shared):
        super().__init__()
        self.embedding = torch.nn.Identity()
        self.layer_modules = torch.nn.ModuleList(torch.nn.Identity() for _ in range(1 if shared else 3))
        self.shared = shared

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, x):
        states = [self.embedding(x)]
        for layer in [*self.layer_modules] * (3 if self.shared else 1):
            states.append(layer(states[-1]))
        return states


class Tenfold(torch.nn.Module):
    def forward(self, state):
        return 10 * state


@pytest.mark.parametrize("indices", [None, range(40)])
@pytest.mark.parametrize("shared", [False, True])
def test_noise_between_layers_is_drawn_anew_for_each_and_as_large_as_that_of_the_input(shared, indices):
    model, clean = Echo(shared), torch.zeros(40, 500)
    with StateNoise(0.5, 2.0).on(model, indices=indices):
        states = model(clean)
    added = [after - before for before, after in zip([clean, *states], states, strict=False)]
    assert [each.std().item() for each in added] == pytest.approx([1, 0, 1, 1], rel=0.03)  # layer 1 has the input's
    assert (
        abs(torch.corrcoef(torch.stack([added[0].flatten(), added[2].flatten(), added[3].flatten()])).triu(1)).max()
        < 0.03
    )
    if indices is not None:
        with StateNoise(0.5, 2.0).on(model, indices=range(39, -1, -1)):
            again = model(clean)
        assert torch.equal(again[3].flip(0), states[3])  # a sample's draws are its own in every batch
    assert all(torch.equal(each, clean) for each in model(clean))


def test_noise_between_layers_is_in_units_of_the_input_where_a_batch_measures_it():
    model, clean = Echo(False), 2 * torch.randn(40, 500)
    model.layer_modules = torch.nn.ModuleList(Tenfold() for _ in range(3))
    noise = StateNoise(0.5)
    for _ in range(2):
        with noise.on(model):
            states = model(clean)
        added = [states[0] - clean, *(after / 10 - before for before, after in pairwise(states))]
        assert [each.std().item() for each in added] == pytest.approx([1, 0, 1, 1], rel=0.05, abs=1e-4)
        clean = clean / 2
        noise = noise.at(1.0)


def test_noise_between_layers_needs_layers_that_are_modules_and_take_a_tensor():
    refused = pytest.raises(InputError, match="needs layers that are modules; those of UT are none")
    with refused, StateNoise(0.5, 1.0).on(UT(UTConfig(depth=2))):
        pass
    model = Echo(False)
    with StateNoise(0.5, 1.0).on(model), pytest.raises(InputError, match="called with dict"):
        model.layer_modules[0]({"x": torch.zeros(2)})


# --- what γσ_x is, the std or the variance: all that turns a level γ into a standard deviation, against numbers by hand

CASES = [  # γ, σ_x, what γσ_x is, the noise's standard deviation
    (0.8, 0.2, "std", 0.16),
    (0.8, 0.2, "variance", 0.4),
    (0.45, 0.05, "std", 0.0225),
    (0.45, 0.05, "variance", 0.15),
]
ZEROS = torch.zeros(1, 400, 100)


def drawn(noise, indices=None) -> float:
    """The standard deviation of what a noise adds to 40,000 numbers."""
    return (noise(ZEROS, indices=indices) - ZEROS).std().item()


def by_prefix(level, sigma, noise_is) -> float:
    """As lm-eval's tasks are read: each token has the draw of its prefix."""
    draws = PrefixDraws()
    draws.follow(torch.arange(ZEROS.shape[1])[None])
    return drawn(GaussianNoise(level, sigma, noise_is=noise_is), draws)


def distance(level, sigma, noise_is) -> float:
    """The study's distance of an input from those of training, at a quarter of the level; its unit is σ_x or √σ_x."""
    run = SimpleNamespace(settings={"noise_is": noise_is}, gamma=level / 4)
    return noise_distance(run, level) * {"std": sigma / 0.75, "variance": math.sqrt(sigma) / 0.5}[noise_is]


CALLERS = {
    "the function": noise_std,
    "of a batch": lambda level, sigma, noise_is: drawn(GaussianNoise(level, sigma, noise_is=noise_is)),
    "of samples": lambda level, sigma, noise_is: drawn(GaussianNoise(level, sigma, noise_is=noise_is), [3]),
    "uniform": lambda level, sigma, noise_is: drawn(UniformNoise(level, sigma, noise_is=noise_is)),
    "Laplace": lambda level, sigma, noise_is: drawn(LaplaceNoise(level, sigma, noise_is=noise_is)),
    "at another level": lambda level, sigma, noise_is: drawn(UniformNoise(9.0, sigma, noise_is=noise_is).at(level)),
    "and of other data": lambda level, sigma, noise_is: drawn(
        LaplaceNoise(9.0, 7.0, noise_is=noise_is).at(level, seed=5, sigma=sigma), [3]
    ),
    "by prefix": by_prefix,
    "privacy": lambda level, sigma, noise_is: guarantee(level, 0.1, 1.0, sigma=sigma, noise_is=noise_is).std,
    "distance": distance,
    "recipe": lambda level, sigma, noise_is: drawn(
        RECIPES["text-distilbert"].kind(data="generated", noise=level, noise_is=noise_is).corruption(sigma, seed=0)
    ),
}


@pytest.mark.parametrize(("level", "sigma", "noise_is", "expected"), CASES)
@pytest.mark.parametrize("caller", CALLERS)
def test_all_take_the_same_standard_deviation(caller, level, sigma, noise_is, expected):
    assert float(CALLERS[caller](level, sigma, noise_is)) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("level", "sigma", "noise_is", "expected"), CASES)
def test_neftune_is_matched_to_it(tmp_path, level, sigma, noise_is, expected):
    trainer = classifier(tmp_path, noise=0.5, method="neftune", per_device_train_batch_size=1)
    trainer.objective.noise = GaussianNoise(level, sigma, noise_is=noise_is)
    shapes = [batch["input_ids"].shape[1] for batch in trainer.get_train_dataloader()]
    width = trainer.objective.model.get_input_embeddings().embedding_dim
    stds = [trainer.method.alpha(trainer) / math.sqrt(3 * length * width) for length in shapes]  # of uniform numbers
    assert sum(stds) / len(stds) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("level", "sigma", "noise_is", "expected"), CASES)
def test_a_run_on_video_says_and_adds_it(tmp_path, level, sigma, noise_is, expected):
    run, settings = tmp_path / "run", {"window": 2, "noise": level, "noise_is": noise_is}
    UT(UTConfig(depth=1)).save_pretrained(run / "model")
    config = {"recipe": "video-ut", "method": "erm", "seed": 0, "model": "UT-1", "training": {}, "sigma": sigma}
    (run / "config.json").write_text(json.dumps(config | {"settings": settings}))
    assert DescentDenoiser.from_pretrained(run).noise_std == pytest.approx(255 * expected)
    write_frames(tmp_path / "clip", 2)
    *_, error = denoise(run, tmp_path / "clip", tmp_path / "out", noise=level)
    assert float(re.search(r"added: (\S+) with it", error)[1]) == pytest.approx(255 * expected, rel=0.02)
    data = SimpleNamespace(
        name="clips", train=(), validation=(), test=(), frame_sizes=None, sigma=sigma, passed_over=""
    )
    lines, _ = RECIPES["video-ut"].kind(data="generated", **settings).about_noise(data)
    assert f"standard deviation {255 * expected:.0f} of 255 grey levels" in lines[-1]


@pytest.mark.parametrize(("settings", "expected"), [({"noise": 0.15}, 1.07), (paper("video-ut").settings, 6.55)])
def test_the_papers_training_noise_has_this_loss_before_any_layer(settings, expected):
    """f_0 = ½ Σ_t ‖ε_t‖₂ at T = 5, γ = .15, σ_x = .179: the variance, which the preset takes, fits the cap of 6.50."""
    clean = torch.rand(20, 5, 100, 256, generator=torch.Generator().manual_seed(0))
    noisy = RECIPES["video-ut"].kind(data="generated", **settings).corruption(0.179, seed=0)(clean)
    assert VideoDenoising().losses(noisy, clean).mean().item() == pytest.approx(expected, rel=0.02)


def test_recipes_make_their_noise_so_in_training_and_in_judging():
    for name in RECIPES:
        recipe = partial(
            RECIPES[name].kind, data="generated", **({"model": "M"} if RECIPES[name].settings.needs_model else {})
        )
        assert recipe().corruption(0.2, seed=0).noise_is == "std", name
        for shift in ("gaussian", "uniform", "laplace", "dropout"):
            if shift == "dropout" and name in ("lista", "pgd"):  # which have no tokens
                continue
            assert recipe(noise_is="variance").corruption(0.2, 0, shift).at(0.5).noise_is == "variance", name


# --- seeds


def members(seed: int) -> list[int]:
    """The seeds of one run, on eight ranks, over fifty epochs, of a thousand samples and as many places and trials."""
    return [
        *(derived(stream, seed, rank) for stream in (Stream.NOISE, Stream.TARGETS) for rank in range(8)),
        *(derived(Stream.NOISE, seed, rank, step, part) for rank in (0, 3) for step in range(9) for part in (0, 1)),
        *(derived(Stream.ORDER, seed, epoch) for epoch in range(50)),
        *(derived(Stream.SWEEP, seed, trial) for trial in range(50)),
        *(derived(Stream.COMPLETIONS, seed, start) for start in range(0, 800, 16)),
        derived(Stream.PROBES, seed),
        *(derived(Stream.DEPTH, seed, step) for step in range(50)),
        *(derived(Stream.STATES, seed, layer) for layer in range(50)),
        *(of_sample(seed, index) for index in range(1000)),
    ]


def test_no_two_streams_of_a_run_and_no_two_runs_share_a_seed():
    """Of one run also not the lower 32 bits, which are all that torch's generators on the CPU use."""
    every = []
    for seed in (*range(20), 2**31 - 1, 2**32, 2**63):
        made = members(seed)
        assert len({each % 2**32 for each in made} - {seed}) == len(made)  # Transformers uses the person's seed itself
        every += made
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("rank", [0, 1])
def test_noise_and_targets_are_those_of_rank_and_place_whatever_was_drawn_before(monkeypatch, rank):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    noise, sample = GaussianNoise(1.0, 1.0, seed=3), TargetSample(0.5, seed=3)
    for place in ((), (5, 2), (5, 1), (5, 2)):  # first in a loop that says no place, then in a trainer
        if place:
            noise.begin(*place)
            sample.begin(*place)
        drawn, chosen = (generator_of(stream, 3, rank, *place) for stream in (Stream.NOISE, Stream.TARGETS))
        for _ in range(2):  # the second pass of a micro-batch continues
            assert torch.equal(noise(torch.zeros(9)), torch.randn(9, generator=drawn))
            order = torch.randperm(9, generator=chosen)[:5]
            assert torch.equal(sample(9, torch.device("cpu")), order.sort().values)


def test_streams_are_the_same_on_every_machine():
    """Pinned: with other values a run would not repeat."""
    assert derived(Stream.NOISE, 0, 0) == 11539782348902174461
    assert LengthGrouped(4, [3, 5, 4], seed=3).generator.initial_seed() == derived(Stream.ORDER, 3, 0)
    assert derived(Stream.ORDER, 3, 7) == 627156372575053629
    assert of_sample(0, 5) == 16452687389592421902
