"""NEFTune as a method: Transformers' noise in training, ours in evaluation, and the α that matches γ."""

import pytest
import torch

from descend import DescentConfig, DescentTrainer, run
from descend.cli import main
from descend.results import read_config
from tests.support.texts import build, review_tokenizer

UNCONSTRAINED = {"alpha": None, "dual_lr": None, "dual_warmup_steps": None}
SMALL = ["--data", "generated", "--depth", "2", "--hidden-size", "16", "--max-length", "30", "--use-cpu"]
SMALL += ["--max-steps", "2"]


@pytest.fixture(scope="module")
def tokenizer():
    return review_tokenizer()


def test_sigma_is_that_of_the_noise_or_of_the_words(tmp_path, tokenizer):
    trainer = build(tmp_path, tokenizer, method="neftune", **UNCONSTRAINED)
    assert trainer.sigma == 0.02 and trainer._level == 0.5  # a σ_x that is fixed is taken as it is
    texts = [torch.tensor(text["input_ids"]) for text in trainer.train_dataset]
    words = trainer.objective.model.get_input_embeddings()(torch.cat(texts))
    free = DescentTrainer(
        trainer.objective.model,
        DescentConfig(str(tmp_path / "free"), method="neftune", use_cpu=True, report_to="none"),
        noise=0.5,
        train_dataset=trainer.train_dataset,
        data_collator=trainer.data_collator,
    )
    sigma = words.std(correction=0).item()
    assert free.sigma == pytest.approx(sigma, rel=1e-3)
    assert free.neftune_noise_alpha > 0
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
