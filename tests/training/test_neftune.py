"""NEFTune as a method: Transformers' noise in training, ours in evaluation, and the α that matches γ."""

import pytest
import torch

from descend import run
from descend.cli import main
from descend.results import read_config
from tests.support.texts import build, review_tokenizer

UNCONSTRAINED = {"alpha": None, "dual_lr": None, "dual_warmup_steps": None}
SMALL = ["--data", "generated", "--depth", "2", "--hidden-size", "16", "--max-length", "30", "--use-cpu"]
SMALL += ["--max-steps", "2"]


@pytest.fixture(scope="module")
def tokenizer():
    return review_tokenizer()


def test_alpha_is_chosen_where_it_is_not_given(tmp_path, tokenizer):
    """From σ_x of the training data; a σ_x that is fixed is taken as it is."""
    trainer = build(tmp_path, tokenizer, method="neftune", **UNCONSTRAINED)
    assert trainer.sigma == 0.02 and trainer.neftune_noise_alpha > 0
    fixed, trainer.objective.noise.sigma = trainer.neftune_noise_alpha, None
    assert trainer.method.alpha(trainer) == pytest.approx(fixed * trainer.sigma / 0.02)
    assert build(tmp_path / "erm", tokenizer, method="erm").neftune_noise_alpha is None


def test_training_is_transformers_own_neftune_and_evaluation_has_our_noise(tmp_path, tokenizer):
    settings = {"neftune_noise_alpha": 3.0, **UNCONSTRAINED}
    ours = build(tmp_path / "ours", tokenizer, method="neftune", calibrate=False, **settings)
    ours.train()
    plain = build(tmp_path / "plain", tokenizer, method="erm", calibrate=False, **settings)
    noise, plain.objective.noise = plain.objective.noise, None
    plain.train()
    plain.objective.noise = noise
    for one, other in zip(ours.objective.parameters(), plain.objective.parameters(), strict=True):
        assert torch.equal(one, other)
    assert ours.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    assert ours._level == 0.5


def test_a_run_says_its_alpha_and_seeds_are_of_one_arm(tmp_path):
    flags = ["--method", "neftune", "--out", f"{tmp_path}/run"]
    assert main(["train", "text-distilbert", *SMALL, *flags]) == 0
    assert main(["train", "text-distilbert", *SMALL[:-1], "4", *flags, "--resume"]) == 0
    alpha = read_config(tmp_path / "run").neftune_alpha
    other = ["--method", "neftune", "--seed", "1", "--out", f"{tmp_path}/other"]
    assert main(["train", "text-distilbert", *SMALL[:-1], "4", *other]) == 0
    assert alpha > 0 and alpha != read_config(tmp_path / "other").neftune_alpha
    one, two = (run.evaluate(tmp_path / name, noise=[0.0]) for name in ("run", "other"))
    assert one.method == "neftune" and one.settings == two.settings
