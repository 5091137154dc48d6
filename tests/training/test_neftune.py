"""NEFTune as a method: Transformers' noise in training, ours in evaluation, and the α that matches γ."""

import math

import pytest
import torch

from descend import UT, DescentConfig, DescentTrainer, GaussianNoise, InputError, UTConfig, run
from descend.cli import main
from descend.models import LayeredClassifier
from descend.recipes.configuring import configure
from descend.tasks.text import Classification
from descend.tasks.video import VideoDenoising
from descend.training.neftune import matched_alpha
from tests.support import networks
from tests.support.texts import build, review_tokenizer

SMALL = ["--depth", "2", "--hidden-size", "16", "--max-length", "30", "--use-cpu", "--max-steps", "2"]


@pytest.fixture(scope="module")
def tokenizer():
    return review_tokenizer()


def test_noise_of_the_matched_alpha_has_the_std_of_the_noise_at_the_mean_length():
    model = LayeredClassifier(networks.network("distilbert"))
    texts = [{"input_ids": list(range(1, 1 + count)), "attention_mask": [1] * count} for count in (4, 6, 8) * 5]
    noise = GaussianNoise(0.7)
    alpha = matched_alpha(model, Classification(), texts, noise, collate=pad)
    embedding = model.get_input_embeddings()
    words = torch.cat([embedding(torch.tensor(text["input_ids"])) for text in texts])
    sigma, width = words.std(correction=0).item(), words.shape[-1]
    assert alpha == pytest.approx(0.7 * sigma * math.sqrt(3 * 6 * width), rel=1e-3)
    bound = alpha / math.sqrt(6 * width)  # as NEFTune draws it for a text of the mean length
    drawn = torch.empty(100_000).uniform_(-bound, bound, generator=torch.Generator().manual_seed(0))
    assert drawn.std().item() == pytest.approx(0.7 * sigma, rel=0.01)


def pad(texts):
    rows = [torch.tensor(text["input_ids"]) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.zeros(len(rows)).long()}


def test_training_is_transformers_own_neftune_and_evaluation_has_our_noise(tmp_path, tokenizer):
    settings = {"neftune_noise_alpha": 3.0, "alpha": None, "dual_lr": None, "dual_warmup_steps": None}
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


def test_a_resumed_run_is_bit_equal(tmp_path, tokenizer):
    settings = {"method": "neftune", "neftune_noise_alpha": 3.0, "alpha": None, "dual_lr": None}
    whole, again = (build(tmp_path, tokenizer, dual_warmup_steps=None, **settings) for _ in range(2))
    whole.train()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for one, other in zip(whole.objective.parameters(), again.objective.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_recipe_finds_the_matched_alpha_and_the_run_says_it(tmp_path):
    flags = ["--method", "neftune", "--out", f"{tmp_path}/run"]
    assert main(["train", "text-distilbert", *SMALL, *flags]) == 0
    assert main(["train", "text-distilbert", *SMALL[:-1], "4", *flags, "--resume"]) == 0
    summary = run.evaluate(tmp_path / "run", noise=[0.0])
    assert summary.method == "neftune" and summary.settings["neftune_noise_alpha"] > 0
    doubled = []
    for noise in (0.5, 1.0):
        args = {"depth": 2, "hidden_size": 16, "max_length": 30, "noise": noise, "use_cpu": True}
        chosen = configure("text-distilbert", method="neftune", output_dir=str(tmp_path / "other"), **args)
        doubled.append(chosen.recipe.resolve(chosen.arguments).arguments.neftune_noise_alpha)
    assert doubled[1] == pytest.approx(2 * doubled[0], rel=1e-3)


def test_models_without_words_and_a_missing_alpha_are_refused(tmp_path, capsys):
    for recipe in ("video-ut", "video-vit"):
        flags = ["--method", "neftune", "--data", str(tmp_path), "--out", str(tmp_path / "run")]
        assert main(["train", recipe, *flags]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "neftune" in line and "word embeddings" in line
    clean = ["train", "text-distilbert", *SMALL, "--noise", "0", "--method", "neftune"]
    assert main([*clean, "--out", f"{tmp_path}/run"]) == 2
    assert "--neftune-noise-alpha" in capsys.readouterr().err
    args = {"method": "neftune", "use_cpu": True, "report_to": "none"}
    with pytest.raises(InputError, match=r"neftune.*UT"):
        DescentTrainer(UT(UTConfig(depth=1)), DescentConfig(str(tmp_path), **args), task=VideoDenoising())
    with pytest.raises(InputError, match=r"neftune_noise_alpha.*matched_alpha"):
        DescentTrainer(networks.network("distilbert"), DescentConfig(str(tmp_path), **args))
