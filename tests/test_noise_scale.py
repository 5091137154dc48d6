"""All that turns a noise level γ into a standard deviation, for both readings of γσ_x, against numbers by hand."""

import json
import math
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from descend import UT, DescentDenoiser, UTConfig
from descend.harness.prefixes import PrefixDraws
from descend.noise import GaussianNoise, LaplaceNoise, UniformNoise
from descend.noise_scale import noise_std
from descend.privacy import Release
from descend.recipes import RECIPES
from descend.run.denoising import denoise
from descend.training.preset import paper
from reproduction.theory import distance as noise_distance
from tests.support.sources import write_frames
from tests.support.texts import build, review_tokenizer

CASES = [  # γ, σ_x, what γσ_x is, the noise's standard deviation
    (0.8, 0.2, "std", 0.16),
    (0.8, 0.2, "variance", 0.4),
    (0.45, 0.05, "std", 0.0225),
    (0.45, 0.05, "variance", 0.15),
]
CLEAN = torch.zeros(1, 400, 100)


def drawn(noise, indices=None) -> float:
    """The standard deviation of what a noise adds to 40,000 numbers."""
    return (noise(CLEAN, indices=indices) - CLEAN).std().item()


def by_prefix(level, sigma, noise_is) -> float:
    """As lm-eval's tasks are read: each token has the draw of its prefix."""
    draws = PrefixDraws()
    draws.follow(torch.arange(CLEAN.shape[1])[None])
    return drawn(GaussianNoise(level, sigma, noise_is=noise_is), draws)


def distance(level, sigma, noise_is) -> float:
    """The study's distance of an input under noise from the clean one, whose unit is σ_x or √σ_x."""
    run = SimpleNamespace(settings={"noise_is": noise_is}, gamma=0.0)
    return noise_distance(run, level) * {"std": sigma, "variance": math.sqrt(sigma)}[noise_is]


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
    "privacy": lambda level, sigma, noise_is: Release(0.1, 1.0, sigma=sigma, noise_is=noise_is).guarantee(level).std,
    "privacy by dimension": lambda level, sigma, noise_is: (
        Release.of_dimension(0.1, 4, sigma=sigma, noise_is=noise_is).guarantee(level).std
    ),
    "distance": distance,
    "recipe": lambda level, sigma, noise_is: drawn(
        RECIPES["text-distilbert"](data="generated", noise=level, noise_is=noise_is).corruption(sigma, seed=0)
    ),
}


@pytest.mark.parametrize(("level", "sigma", "noise_is", "expected"), CASES)
@pytest.mark.parametrize("caller", CALLERS)
def test_all_take_the_same_standard_deviation(caller, level, sigma, noise_is, expected):
    assert float(CALLERS[caller](level, sigma, noise_is)) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("level", "sigma", "noise_is", "expected"), CASES)
def test_neftune_is_matched_to_it(tmp_path, level, sigma, noise_is, expected):
    trainer = build(tmp_path, review_tokenizer(), method="neftune", alpha=None, dual_lr=None, dual_warmup_steps=None)
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
    data = SimpleNamespace(name="clips", train=(), validation=(), test=(), frame_sizes=None, sigma=sigma)
    lines, _ = RECIPES["video-ut"](data="generated", **settings).about(data)
    assert f"standard deviation {255 * expected:.0f} of 255 grey levels" in lines[-1]


def test_the_papers_noise_on_video_is_nine_tenths_of_the_data():
    settings = paper("video-ut").settings
    noise = RECIPES["video-ut"](data="generated", **settings).corruption(0.179, seed=0)
    assert noise.std(0.179) / 0.179 == pytest.approx(0.92, abs=0.005)


def test_it_is_known_without_torch():
    code = "import sys, descend.privacy, reproduction.theory; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
