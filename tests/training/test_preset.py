"""`--preset paper`: ten steps against a loop written by hand from the paper's equations, in doubles; and other methods.

Deep supervision and plain training are the same loop, whose loss is a sum with fixed shares.
"""

import json
import math

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, DistilBertConfig

from descend import DUST, UT, DescentConfig, DescentTrainer, DUSTConfig, GaussianNoise, UTConfig
from descend.models import MeanPooledConfig
from descend.recipes import configure
from descend.seeds import Stream, generator_of
from descend.tasks.video import VideoDenoising
from descend.training.preset import paper
from tests.support import networks, runs
from tests.support.by_hand import adam, sgd
from tests.support.cases import slow

LEARNING_RATE, SAMPLES, BATCH, SIGMA = 1e-3, 4, 2, 0.18
STEPS = 10  # an epoch of two without constraints, and four with, before each of which the slack restarts
SHARES = {"erm": [0, 0, 0, 1], "uniform": [1 / 4, 1 / 4, 1 / 4, 1 / 4], "linear": [0, 1 / 6, 2 / 6, 3 / 6]}


def random(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


WINDOWS = [{"patches": patches} for patches in random(SAMPLES, 3, 2, 256)]
TEXTS = [
    {"input_ids": row, "labels": place % 2} for place, row in enumerate((5 + 35 * random(SAMPLES, 7)).int().tolist())
]


class HandWritten:
    """Algorithm 1 of the paper, with resilience: nothing of Descend is in it."""

    def __init__(self, parameters, preset, optimizer, shares):
        self.parameters = list(parameters)
        self.primal = torch.optim.Adam(self.parameters)
        self.alpha, self.cap, self.first, self.cap_layer, self.rho = (
            preset[name] for name in ("alpha", "cap", "first_layer", "cap_layer", "resilience")
        )
        self.explicit = preset["slack"] == "explicit"
        self.ascent, self.shares = {"adam": adam(0.001), "sgd": sgd(0.03)}[optimizer], shares
        self.lam = torch.zeros(4, dtype=torch.float64)  # the cap's first
        self.u, self.steps = torch.zeros_like(self.lam), 0

    def step(self, losses, constrained):
        violations = losses[1:] - (1 - self.alpha) * losses[:-1]  # eq. (4), from the first layer of the chain on
        violations = torch.where(torch.arange(1, len(losses)) > self.first, violations, 0)
        gaps = torch.cat([(losses[self.cap_layer] - self.cap)[None], violations])
        # Eq. (5): the last loss, and a gradient through both sides of the constraints.
        lagrangian = losses @ torch.tensor(self.shares, dtype=torch.float64) + (self.lam * gaps).sum()
        for group in self.primal.param_groups:  # up over a tenth of the steps, then down to 0
            group["lr"] = LEARNING_RATE * (0 if self.steps < 1 else (STEPS - self.steps) / (STEPS - 1))
        self.primal.zero_grad()
        lagrangian.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.primal.step()
        self.steps += 1
        if constrained:
            gaps, before = gaps.detach(), self.lam.clone()
            slack = self.u if self.explicit else self.rho * before  # eq. (36), eq. (38)
            self.lam = (self.lam + self.ascent(gaps - slack)).clamp(min=0)
            self.u = (self.u - 0.1 * self.rho * (self.u / self.rho - before)).clamp(min=0)


def noisy_sequences(rows, level, draws):
    """Noisy and clean sequences (B, N, T, P); the level is a variance."""
    clean = torch.stack([row["patches"] for row in rows])
    noisy = clean + math.sqrt(level * SIGMA) * torch.randn(clean.shape, generator=draws, dtype=torch.float64)
    return noisy.transpose(1, 2), clean.transpose(1, 2)


def denoising(prediction, clean):
    """½ Σ_t ‖x_t − x̂_t‖₂, of sequences (B, N, T, P), averaged over positions and windows."""
    return ((prediction - clean).norm(dim=-1).sum(-1) / 2).mean()


def ut_losses(model: UT, rows, level, draws):
    """Eq. (47) and (48), with the same weights in every layer."""
    hidden, clean = noisy_sequences(rows, level, draws)
    losses = [denoising(hidden, clean)]
    for projection, feedforward in [(model.projection[0], model.feedforward[0])] * model.depth:
        w = projection @ model.basis
        s = model.basis.T @ ((feedforward + feedforward.T) / 2) @ model.basis
        z = torch.softmax((hidden @ w.T) @ (hidden @ w.T).transpose(-1, -2), -1) @ hidden
        hidden = torch.relu(z + z @ s)
        losses.append(denoising(hidden, clean))
    return torch.stack(losses)


def dust_losses(model: DUST, rows, level, draws):
    """Eq. (75) and (76), with the threshold λ₁/c; each layer is read by its own dictionary."""
    noisy, clean = noisy_sequences(rows, level, draws)
    threshold = model.config.l1 / model.c
    code = torch.zeros(*noisy.shape[:-1], model.config.atoms, dtype=torch.float64)
    losses = [denoising(torch.zeros_like(clean), clean)]
    for d in model.dictionary:
        mixed = torch.softmax(code @ code.transpose(-1, -2), -1) @ code
        moved = mixed + (noisy - mixed @ d.T) @ d / model.c
        code = moved.sign() * (moved.abs() - threshold).clamp(min=0)
        losses.append(denoising(code @ d.T, clean))
    return torch.stack(losses)


def text_losses(model, rows, level, draws):
    """Every layer read by the head at its first token; the noise's standard deviation is γσ_x, in single precision."""
    ids, labels = (torch.tensor([row[name] for row in rows]) for name in ("input_ids", "labels"))
    encoder = model.encoder
    words = encoder.embeddings.word_embeddings(ids)
    sigma = words.detach().float().std(correction=0)
    noisy = words + level * sigma * torch.randn(words.shape, generator=draws, dtype=torch.float64)
    positions = encoder.embeddings.position_embeddings(torch.arange(ids.shape[1]))
    hidden = encoder.embeddings.LayerNorm(noisy + positions)
    losses = [nn.functional.cross_entropy(model.score(hidden[:, 0]), labels)]
    for block in encoder.transformer.layer:
        hidden = block(hidden)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        losses.append(nn.functional.cross_entropy(model.score(hidden[:, 0]), labels))
    return torch.stack(losses)


def classifier(tied):
    torch.manual_seed(0)
    encoder = DistilBertConfig(
        **networks.SMALL, **networks.NARROW, dropout=0.0, attention_dropout=0.0, attn_implementation="eager"
    )
    return AutoModelForSequenceClassification.from_config(
        MeanPooledConfig(encoder, dropout=0.0, classifier_pooling="cls")
    )


VARIANCE = {"sigma": SIGMA, "noise_is": "variance"}
RECIPES = {
    "video-ut": (lambda tied: UT(UTConfig(depth=3, tied=tied)), ut_losses, WINDOWS, VARIANCE, VideoDenoising()),
    "video-dust": (lambda tied: DUST(DUSTConfig(depth=3, tied=tied)), dust_losses, WINDOWS, VARIANCE, VideoDenoising()),
    "text-distilbert": (classifier, text_losses, TEXTS, {}, None),
}


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        *((recipe, {"method": "constrained"}) for recipe in RECIPES),
        *(slow((recipe, {"method": "constrained", "dual_optimizer": "sgd"})) for recipe in ("video-ut", "video-dust")),
        *(slow(("video-ut", {"method": method})) for method in SHARES),
    ],
)
def test_every_step_is_that_by_hand(tmp_path, recipe, settings):
    make, losses_of, data, noise, task = RECIPES[recipe]
    method, seen, traced = settings["method"], [], []
    preset = paper(recipe, method)
    level, tied = preset.settings["noise"], preset.settings.get("tied")

    def collate(samples):
        seen.append(samples)
        return {name: torch.stack([torch.as_tensor(each[name]) for each in samples]) for name in samples[0]}

    args = {
        **{name: value for name, value in networks.QUIET.items() if name not in preset.training},
        **{"learning_rate": LEARNING_RATE, "per_device_train_batch_size": BATCH, "max_steps": STEPS},
        **settings,
    }
    ours = DescentTrainer(
        make(tied).double(),
        DescentConfig.paper(recipe, str(tmp_path), eval_strategy="no", **args),
        task=task,
        noise=GaussianNoise(level, seed=0, **noise),
        train_dataset=data,
        data_collator=collate,
    )
    ours.train()
    theirs = make(tied).double()
    shares = SHARES.get(method, SHARES["erm"])
    loop = HandWritten(theirs.parameters(), preset.training, settings.get("dual_optimizer", "adam"), shares)
    for step, rows in enumerate(seen[:STEPS]):
        if step % 2 == 0:  # the slack restarts after every epoch
            loop.u = torch.zeros_like(loop.u)
        losses = losses_of(theirs, rows, level, generator_of(Stream.NOISE, 0, 0, step, 0))
        loop.step(losses, constrained=method == "constrained" and step >= 2)
        traced.append((losses.tolist(), loop.lam.tolist()))
    for name, parameter in ours.objective.model.saved.named_parameters():
        torch.testing.assert_close(dict(theirs.named_parameters())[name], parameter, rtol=0, atol=1e-6)
    slack = loop.u if loop.explicit else loop.rho * loop.lam
    assert ours.dual.slack.tolist() == pytest.approx(slack.tolist(), abs=1e-8)
    assert (loop.lam.max() > 0.004) == (method == "constrained")
    logs = [log for log in ours.state.log_history if "loss/3" in log]
    for log, (losses, lam) in zip(logs, traced, strict=True):
        expected = {f"loss/{layer}": loss for layer, loss in enumerate(losses) if f"loss/{layer}" in log}
        if method == "constrained":
            expected |= {f"multiplier/{layer}": each for layer, each in enumerate(lam)}
        else:
            expected |= {f"weight/{layer}": share for layer, share in enumerate(shares)}
        if "violation/3" in log:
            expected |= {"violation/3": losses[3] - (1 - loop.alpha) * losses[2]}
        assert {name: log[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert ("violation/3" in logs[-1]) == (method == "constrained")


def test_the_preset_on_the_command_line_is_recorded_with_what_overrides_it(tmp_path):
    flags = """--data generated --depth 2 --use-cpu --window 2 --stride 20 --cap 3 --preset paper --max-steps 4
        --dual-warmup-steps 1 --cap 9 --no-tied"""
    config = json.loads((runs.trained(tmp_path / "run", "video-ut", flags) / "config.json").read_text())
    assert config["preset"] == "paper"
    assert config["overridden"] == ["cap", "dual_warmup_epochs", "max_steps", "tied"]
    training = config["training"]
    assert (training["alpha"], training["cap"], training["cap_layer"], training["slack"]) == (0.22, 9, 1, "explicit")
    assert (training["stop_gradient"], training["first_layer"], training["load_best_model_at_end"]) == (False, 1, True)
    assert config["settings"]["tied"] is False and config["settings"]["noise_is"] == "variance"


OF_TEXTS = {"noise": 1.0, "alpha": 0.226, "cap": 1.99}
OF_LLAMA = {"noise": 1.5, "alpha": 0.05, "cap": 12.0, "num_train_epochs": 2.0, "per_device_train_batch_size": 4}


@pytest.mark.parametrize(
    ("recipe", "given", "expected"),
    [
        # The rate of the dual follows its optimizer.
        ("video-ut", {}, {"dual_lr": 0.001}),
        ("video-ut", {"dual_optimizer": "sgd"}, {"dual_lr": 0.03}),
        ("video-ut", {"dual_optimizer": "sgd", "dual_lr": 0.1}, {"dual_lr": 0.1}),
        ("video-ut", {"dual_optimizer": "nupi"}, {"dual_lr": None}),
        # Layers share weights, but not those of a constrained DUST.
        *(
            (name, {"dataset": "imdb"} if name == "text-ut" else {}, {"tied": name != "video-dust"})
            for name in ("video-ut", "video-dust", "text-ut")
        ),
        ("video-ut", {"method": "erm"}, {"tied": True}),
        ("video-dust", {"method": "erm"}, {"tied": True}),
        ("text-ut", {"method": "erm", "dataset": "imdb"}, {"tied": True}),
        ("video-ut", {"dual_optimizer": "fixed"}, {"resilience": 0.0, "slack": "implicit"}),
        # Through both sides, whoever gives the cap.
        *(("text", {"model": "m", "dataset": name, "cap": 2.0}, {"stop_gradient": False}) for name in ("imdb", None)),
        ("image", {"model": "m", "cap": 2.0}, {"stop_gradient": False}),
        ("image", {"model": "m", "cap": 2.0, "stop_gradient": True}, {"stop_gradient": True}),
        # What stands in for DistilBERT and for Llama has the paper's settings too.
        ("text", {"dataset": "mnli", "model": "m"}, OF_TEXTS | {"pooling": "cls"}),
        ("text-distilbert", {"dataset": "mnli", "model": "m"}, OF_TEXTS | {"readout": "linear"}),
        *((name, {"model": "m"}, OF_LLAMA) for name in ("lm", "llm-sft")),
    ],
)
def test_settings_of_the_preset(recipe, given, expected):
    made = configure(recipe, data="generated", preset="paper", **given)
    found = vars(made.recipe) | vars(made.arguments)
    assert {name: found[name] for name in expected} == expected
