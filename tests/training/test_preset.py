"""`--preset paper`: eight constrained steps against a loop written by hand from the paper's equations, in doubles."""

import json
import math
from itertools import count

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from descend import DUST, UT, DescentConfig, DescentTrainer, DUSTConfig, GaussianNoise, InputError, UTConfig
from descend.cli import main
from descend.models import DistilBertLinearConfig
from descend.recipes import configure
from descend.seeds import Stream, generator_of
from descend.tasks.video import VideoDenoising
from descend.training.preset import paper
from tests.support import networks

UNROLLED = ("video-ut", "video-dust", "text-ut")
LEARNING_RATE, SAMPLES, BATCH = 1e-3, 4, 2
STEPS = 10  # an epoch of two without constraints, and four with, before each of which the slack restarts


class Windows(torch.utils.data.Dataset):
    """Windows (T, N, P) of random patches."""

    def __init__(self) -> None:
        self.patches = torch.rand(SAMPLES, 3, 2, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"patches": self.patches[place]}


def texts() -> list[dict[str, list[int] | int]]:
    ids = torch.randint(5, 40, (SAMPLES, 7), generator=torch.Generator().manual_seed(1)).tolist()
    return [{"input_ids": row, "labels": place % 2} for place, row in enumerate(ids)]


class HandWritten:
    """Algorithm 1 of the paper, with resilience: nothing of Descend is in it."""

    def __init__(self, parameters, depth, preset, optimizer):
        self.parameters = list(parameters)
        self.primal = torch.optim.Adam(self.parameters)
        self.alpha, self.cap, self.first, self.cap_layer, self.rho, explicit = (
            preset[name] for name in ("alpha", "cap", "first_layer", "cap_layer", "resilience", "slack")
        )
        self.explicit, self.optimizer, self.eta = (
            explicit == "explicit",
            optimizer,
            {"adam": 0.001, "sgd": 0.03}[optimizer],
        )
        self.lam = torch.zeros(depth + 1, dtype=torch.float64)  # the cap's first
        self.u, self.moments, self.steps, self.dual_steps = torch.zeros_like(self.lam), [0.0, 0.0], 0, 0

    def restart(self):
        self.u = torch.zeros_like(self.u)

    def ascent(self, gradient):
        """A step of plain gradient ascent, or of Adam."""
        if self.optimizer == "sgd":
            return self.eta * gradient
        self.dual_steps += 1
        self.moments = [
            rate * moment + (1 - rate) * value
            for rate, moment, value in zip((0.9, 0.999), self.moments, (gradient, gradient**2), strict=True)
        ]
        first, second = (
            moment / (1 - rate**self.dual_steps) for rate, moment in zip((0.9, 0.999), self.moments, strict=True)
        )
        return self.eta * first / (second.sqrt() + 1e-8)

    def step(self, losses, constrained):
        violations = losses[1:] - (1 - self.alpha) * losses[:-1]  # eq. (4), from the first layer of the chain on
        violations = torch.where(torch.arange(1, len(losses)) > self.first, violations, 0)
        gaps = torch.cat([(losses[self.cap_layer] - self.cap)[None], violations])
        lagrangian = losses[-1] + (self.lam * gaps).sum()  # eq. (5): a gradient through both sides
        for group in self.primal.param_groups:  # up over a tenth of the steps, then down to 0
            group["lr"] = LEARNING_RATE * (0 if self.steps < 1 else (STEPS - self.steps) / (STEPS - 1))
        self.primal.zero_grad()
        lagrangian.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.primal.step()
        self.steps += 1
        if not constrained:
            return
        gaps, before = gaps.detach(), self.lam.clone()
        slack = self.u if self.explicit else self.rho * before  # eq. (36), eq. (38)
        self.lam = (self.lam + self.ascent(gaps - slack)).clamp(min=0)
        self.u = (self.u - 0.1 * self.rho * (self.u / self.rho - before)).clamp(min=0)


def denoising(prediction, clean):
    """½ Σ_t ‖x_t − x̂_t‖₂, of sequences (B, N, T, P), averaged over positions and windows."""
    return ((prediction - clean).norm(dim=-1).sum(-1) / 2).mean()


def ut_losses(model: UT, noisy, clean):
    """Eq. (47) and (48), with the same weights in every layer."""
    hidden, losses = noisy, [denoising(noisy, clean)]
    for projection, feedforward in [(model.projection[0], model.feedforward[0])] * model.depth:
        w = projection @ model.basis
        s = model.basis.T @ ((feedforward + feedforward.T) / 2) @ model.basis
        z = torch.softmax((hidden @ w.T) @ (hidden @ w.T).transpose(-1, -2), -1) @ hidden
        hidden = torch.relu(z + z @ s)
        losses.append(denoising(hidden, clean))
    return torch.stack(losses)


def dust_losses(model: DUST, noisy, clean):
    """Eq. (75) and (76), with the threshold λ₁/c; each layer is read by its own dictionary."""
    threshold = model.config.l1 / model.c
    code = torch.zeros(*noisy.shape[:-1], model.config.atoms, dtype=torch.float64)
    losses = [denoising(torch.zeros_like(clean), clean)]
    for d in model.dictionary:
        mixed = torch.softmax(code @ code.transpose(-1, -2), -1) @ code
        moved = mixed + (noisy - mixed @ d.T) @ d / model.c
        code = moved.sign() * (moved.abs() - threshold).clamp(min=0)
        losses.append(denoising(code @ d.T, clean))
    return torch.stack(losses)


def trained(tmp_path, recipe, model, data, noise, task, **settings):
    """A trainer after STEPS steps of the preset, and the batches that it saw."""
    seen: list[list[int]] = []

    def collate(samples):
        seen.append([place for sample in samples for place in range(SAMPLES) if _same(data[place], sample)])
        return {name: torch.stack([torch.as_tensor(each[name]) for each in samples]) for name in samples[0]}

    quiet = {name: value for name, value in networks.QUIET.items() if name not in paper(recipe).training}
    own = {"learning_rate": LEARNING_RATE, "per_device_train_batch_size": BATCH, "max_steps": STEPS}
    args = DescentConfig.paper(recipe, str(tmp_path), eval_strategy="no", **quiet | own | settings)
    trainer = DescentTrainer(model, args, task=task, noise=noise, train_dataset=data, data_collator=collate)
    trainer.train()
    return trainer, seen


def _same(one, other):
    return all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)


def by_hand(loop: HandWritten, batches, losses_of) -> None:
    for step, batch in enumerate(batches[:STEPS]):
        if step % 2 == 0:
            loop.restart()  # the slack, after every epoch
        loop.step(losses_of(batch), constrained=step >= 2)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    ("recipe", "model", "losses_of"),
    [
        ("video-ut", lambda tied: UT(UTConfig(depth=3, tied=tied)), ut_losses),
        ("video-dust", lambda tied: DUST(DUSTConfig(depth=3, tied=tied)), dust_losses),
    ],
)
def test_steps_of_the_unrolled_models_are_the_papers(tmp_path, recipe, model, losses_of, optimizer):
    data = Windows()
    preset = paper(recipe)
    level, sigma, tied = preset.settings["noise"], 0.18, preset.settings["tied"]
    assert preset.settings["noise_is"] == "variance" and tied is (recipe == "video-ut")
    noise = GaussianNoise(level, sigma, seed=0, noise_is="variance")
    chosen = {} if optimizer == "adam" else {"dual_optimizer": optimizer}
    ours, seen = trained(tmp_path, recipe, model(tied).double(), data, noise, VideoDenoising(), **chosen)
    theirs = model(tied).double()
    loop = HandWritten(theirs.parameters(), 3, preset.training, optimizer)
    steps = count()

    def of_batch(places):
        draws = generator_of(Stream.NOISE, 0, 0, next(steps), 0)
        clean = data.patches[places]
        noisy = clean + math.sqrt(level * sigma) * torch.randn(clean.shape, generator=draws, dtype=torch.float64)
        return losses_of(theirs, noisy.transpose(1, 2), clean.transpose(1, 2))

    by_hand(loop, seen, of_batch)
    assert loop.lam.max() > 0.004 and loop.u.max() > 0
    compare(ours, theirs, loop)


def test_steps_of_a_classifier_are_the_papers(tmp_path):
    data = texts()
    small = {"vocab_size": 40, "max_position_embeddings": 20, "dim": 16, "n_heads": 2, "n_layers": 3, "hidden_dim": 32}
    still = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    torch.manual_seed(0)
    kind = AutoModelForSequenceClassification
    first = kind.from_config(DistilBertLinearConfig(**small, **still), attn_implementation="eager").double()
    theirs = kind.from_config(DistilBertLinearConfig(**small, **still), attn_implementation="eager").double()
    theirs.load_state_dict(first.state_dict())
    preset = paper("text-distilbert")
    level = preset.settings["noise"]
    ours, seen = trained(tmp_path, "text-distilbert", first, data, GaussianNoise(level, seed=0), None)
    loop = HandWritten(theirs.parameters(), 3, preset.training, "adam")
    steps = count()

    def of_batch(places):
        draws = generator_of(Stream.NOISE, 0, 0, next(steps), 0)
        ids = torch.tensor([data[place]["input_ids"] for place in places])
        labels = torch.tensor([data[place]["labels"] for place in places])
        encoder = theirs.distilbert
        words = encoder.embeddings.word_embeddings(ids)
        # Text: the std of the noise is γσ_x. σ_x is measured in single precision.
        sigma = words.detach().float().std(correction=0)
        noisy = words + level * sigma * torch.randn(words.shape, generator=draws, dtype=torch.float64)
        positions = encoder.embeddings.position_embeddings(torch.arange(ids.shape[1]))
        hidden = encoder.embeddings.LayerNorm(noisy + positions)
        losses = [F.cross_entropy(theirs.score(hidden[:, 0]), labels)]
        for block in encoder.transformer.layer:
            hidden = block(hidden)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            losses.append(F.cross_entropy(theirs.score(hidden[:, 0]), labels))
        return torch.stack(losses)

    by_hand(loop, seen, of_batch)
    assert loop.lam.max() > 0.004
    compare(ours, theirs, loop)


def compare(ours: DescentTrainer, theirs: nn.Module, loop: HandWritten) -> None:
    kept = dict(ours.objective.model.saved.named_parameters())
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(kept[name], parameter, rtol=0, atol=1e-6)
    assert ours.dual.multipliers.tolist() == pytest.approx(loop.lam.tolist(), abs=1e-7)
    slack = loop.u if loop.explicit else loop.rho * loop.lam
    assert ours.dual.slack.tolist() == pytest.approx(slack.tolist(), abs=1e-8)


def run(folder, flags):
    """The config.json of a short run on the command line."""
    words = f"train video-ut --data generated --depth 2 --window 2 --stride 20 --use-cpu --out {folder / 'run'} {flags}"
    assert main(words.split()) == 0
    return json.loads((folder / "run" / "config.json").read_text())


def test_the_preset_on_the_command_line_is_recorded_with_what_overrides_it(tmp_path):
    config = run(tmp_path, "--cap 3 --preset paper --max-steps 4 --dual-warmup-steps 1 --cap 9 --no-tied")
    assert config["preset"] == "paper"
    assert config["overridden"] == ["cap", "dual_warmup_epochs", "max_steps", "tied"]
    training = config["training"]
    assert (training["alpha"], training["cap"], training["cap_layer"], training["slack"]) == (0.22, 9, 1, "explicit")
    assert (training["stop_gradient"], training["first_layer"], training["load_best_model_at_end"]) == (False, 1, True)
    assert config["settings"]["tied"] is False and config["settings"]["noise_is"] == "variance"


def test_a_run_without_the_preset_says_so_and_has_the_epochs_that_are_asked_for(tmp_path):
    config = run(tmp_path, "--num-train-epochs 1")  # the recipe's number of steps does not override them
    assert config["preset"] is None and config["overridden"] == []
    assert config["step"] < 100 and config["training"].get("max_steps", -1) == -1


def test_layers_share_weights_but_those_of_a_constrained_dust():
    tied = {(name, how): paper(name, how).settings["tied"] for name in UNROLLED for how in ("constrained", "erm")}
    assert [key for key, shared in tied.items() if not shared] == [("video-dust", "constrained")]


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ({}, 0.001),
        ({"dual_optimizer": "sgd"}, 0.03),
        ({"dual_optimizer": "sgd", "dual_lr": 0.1}, 0.1),
        ({"dual_optimizer": "nupi"}, None),
    ],
)
def test_the_rate_of_the_dual_follows_its_optimizer(given, rate):
    assert configure("video-ut", data="generated", preset="paper", **given).arguments.dual_lr == rate


def test_pretrained_models_have_the_papers_settings_too():
    """What stands in for DistilBERT and for Llama."""
    text, like = (
        configure(name, data="d", preset="paper", dataset="mnli", **{"model": "m"})
        for name in ("text", "text-distilbert")
    )
    for each in (text, like):
        assert (each.recipe.noise, each.arguments.alpha, each.arguments.cap) == (1.0, 0.226, 1.99)
    assert text.recipe.pooling == "cls" and like.recipe.readout == "linear"
    with pytest.raises(InputError, match=r"dataset.*imdb.*mnli.*None"):
        configure("text", data="d", model="m", preset="paper")
    lm, like = (configure(name, data="d", preset="paper", model="m") for name in ("lm", "llm-sft"))
    for each in (lm, like):
        assert (each.recipe.noise, each.arguments.alpha, each.arguments.cap) == (1.5, 0.05, 12.0)
        assert (each.arguments.num_train_epochs, each.arguments.per_device_train_batch_size) == (2.0, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DescentConfig.paper("video-vae"), "video-ut, video-dust"),
        (lambda: DescentConfig.paper("text-ut", dataset="sst2"), r"dataset.*imdb.*mnli.*'sst2'"),
    ],
)
def test_what_can_not_be_is_one_clear_line(make, message):
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
