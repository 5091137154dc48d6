"""A run that is stopped and resumed ends as one that was not: every method, and every state that a run has to keep."""

import json
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

from descend import GaussianNoise, InputError
from descend.seeds import Stream, generator_of
from tests.support import ranks
from tests.support.runs import rows

STEPS, STOP = 7, 3
EPOCHS = {"max_steps": -1, "num_train_epochs": 3, "save_strategy": "epoch"}
CASES = {
    "erm": {"method": "erm"},
    "uniform": {"method": "uniform"},
    "linear, in micro-batches": {"method": "linear", "gradient_accumulation_steps": 2},
    "the default target": {},
    "price from 0, best model kept": {
        "dual_optim_args": '{"start": 0}',
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
    },
    "sgd, in warm-up at the stop": {"alpha": 0.1, "dual_optimizer": "sgd", "dual_warmup_steps": 5},
    "adam, explicit slack, in micro-batches": {
        "alpha": 0.1,
        "slack": "explicit",
        "gradient_accumulation_steps": 2,
        "stop_gradient": False,
    },
    "nupi, ratios, a cap, every second step": {
        "alpha": [0.1, 0.2, 0.1],
        "cap": 1.0,
        "form": "ratio",
        "dual_optimizer": "nupi",
        "dual_every": 2,
        "dual_warmup_steps": 0,
    },
    "explicit slack restarted by the epoch": {"alpha": 0.1, "slack": "explicit", "dual_every": "epoch"} | EPOCHS,
}
SAVED = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 3, "per_device_train_batch_size": 8}
NOISY = {"noise": GaussianNoise(0.5, 0.02, seed=1), "dropout": 0.1}
MADE = {
    "constrained texts": ("classifier", NOISY),
    "r-drop": ("classifier", NOISY | {"method": "r-drop"}),
    "neftune": ("classifier", NOISY | {"method": "neftune"}),
    "layerskip": ("classifier", NOISY | {"method": "layerskip", "layer_dropout": 0.5}),
    "language": ("language", {"eval_strategy": "steps", "eval_steps": 3}),
    "language, targets sampled": ("language", {"exit_share": 0.25}),
    "adapters": ("lora", {}),
    "own exits": ("own classifier", {"head_lr_ratio": 3.0}),
    "probed": ("own classifier", {"method": "probe"}),
    "own exits of a language model": ("own language", {"head_lr_ratio": 3.0}),
}


of_points = partial(
    ranks.points,
    **{"given": {"noise": 0.5}, "max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "logging_steps": 2},
    **{"per_device_train_batch_size": 4, "learning_rate": 1e-2},
)


stopping = partial(
    ranks.denoiser,
    **{"learning_rate": 0.03, "max_grad_norm": 0.0, "method": "erm", "patience": 2, "max_steps": 12},
    **{"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1},
)
"""At this rate a UT gets worse now and then."""


def ended(trainer):
    """The model, multipliers and slack; and the logs of layers and tokens: Transformers' mean loss starts anew."""
    trained = nn.utils.parameters_to_vector(trainer.objective.parameters())
    rows = trainer.state.log_history
    logs = {(row["step"], name, row[name]) for row in rows for name in row if "/" in name or "token" in name}
    return torch.cat([trained.detach(), trainer.dual.multipliers, trainer.dual.slack]), logs


MATRIX = {
    # The epochs' checkpoint is that of the first of three.
    **{name: (of_points, settings, 6 if "max_steps" in settings else STOP) for name, settings in CASES.items()},
    "early stopping, with one evaluation counted": (stopping, {}, 3),
    **{name: (ranks.MADE[kind], SAVED | settings, 2) for name, (kind, settings) in MADE.items()},
}
"""Case → a function that makes its trainer, the settings, and the step of the checkpoint that it resumes from."""


@pytest.mark.parametrize("case", MATRIX)
def test_a_resumed_run_ends_in_the_same_bits(tmp_path, case):
    make, settings, checkpoint = MATRIX[case]
    whole, resumed = (make(tmp_path, **settings) for _ in range(2))
    whole.train()
    (wanted, logs), written = ended(whole), rows(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{checkpoint}"))
    found, again = ended(resumed)
    assert torch.equal(found, wanted) and again == logs
    assert rows(tmp_path) == written
    assert json.loads(written[-1])["step"] > checkpoint


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    ranks.MADE["own classifier"](tmp_path, **SAVED).train()
    other = ranks.classifier(tmp_path, **SAVED, exits="shared")
    with pytest.raises(InputError, match="another model: they do not share exits"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_noise_is_a_function_of_step_and_micro_batch(tmp_path, monkeypatch):
    drawn, draw = [], GaussianNoise.draw

    def recorded(noise, like, generator):
        drawn.append(draw(noise, like, generator))
        return drawn[-1]

    monkeypatch.setattr(GaussianNoise, "draw", recorded)
    of_points(tmp_path, gradient_accumulation_steps=2, max_steps=2, seed=5).train()
    for place, noise in zip(product(range(2), range(2)), drawn, strict=True):
        generator = generator_of(Stream.NOISE, 5, 0, *place)
        assert torch.equal(noise, torch.randn(noise.shape, generator=generator, dtype=noise.dtype))
