"""Half precision in the forward pass: losses stay in single, and a step that a gradient scaler skips is none at all."""

import pytest
import torch
from transformers import TrainerCallback

from tests.support import ranks


@pytest.mark.parametrize(
    ("name", "settings"), [("classifier", {}), ("language", {}), ("language", {"gradient_checkpointing": True})]
)
def test_losses_are_summed_in_single_precision_under_autocast(tmp_path, name, settings):
    found = []
    for half in (False, True):
        given = settings | {"bf16": half, "max_steps": 3, "per_device_train_batch_size": 8}
        trainer = ranks.MADE[name](tmp_path / str(half), **given)
        seen = []
        forward = trainer.objective.register_forward_hook(lambda *call, seen=seen: seen.append(call[-1]))
        trainer.train()
        forward.remove()
        assert {each.lagrangian.dtype for each in seen} == {torch.float32}
        assert trainer.dual.multipliers.dtype == torch.float64
        sums = torch.tensor([list(each.sums) for each in seen if not each.first])
        assert len(sums) >= 2 and (sums != sums.bfloat16()).float().mean() > 0.8
        found.append((sums, trainer.dual.multipliers))
    (single, exact), (half, near) = found
    assert not torch.equal(single, half), "half precision was in force"
    torch.testing.assert_close(half, single, rtol=0.02, atol=0)
    torch.testing.assert_close(near, exact, rtol=0, atol=0.02)


class Watch(TrainerCallback):
    """What each step has done: whether parameters moved, λ after it, and how many steps the dual has counted."""

    def __init__(self, trainer):
        self.trainer, self.rows = trainer, []

    def parameters(self):
        return torch.nn.utils.parameters_to_vector(self.trainer.objective.parameters()).detach().clone()

    def on_step_begin(self, args, state, control, **kwargs):
        self.before = self.parameters()

    def on_step_end(self, args, state, control, **kwargs):
        moved = not torch.equal(self.before, self.parameters())
        self.rows.append((moved, self.trainer.dual.multipliers, self.trainer.dual.steps))


# A fused optimizer, the library's default, skips within: nobody is told.
@pytest.mark.parametrize(("every", "optim"), [(1, "adamw_torch_fused"), (2, "adamw_torch"), (1, "sgd")])
def test_a_step_that_the_scaler_skips_is_no_dual_step_and_its_losses_are_dropped(tmp_path, every, optim):
    settings = {"dual_optimizer": "sgd", "dual_lr": 0.5, "resilience": 0.0, "slack": "implicit", "slack_lr": None}
    trainer = ranks.classifier(
        tmp_path, optim=optim, dual_every=str(every), dual_warmup_steps=0.0, per_device_train_batch_size=4, **settings
    )
    # A loss above 2 at so large a scale overflows; after that the scale has fallen.
    with torch.no_grad():
        trainer.objective.model.library.classifier.weight.mul_(300)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-120)
    trainer.add_callback(watch := Watch(trainer))
    trainer.train()
    assert [moved for moved, *_ in watch.rows] == [False, True, True, True, True, True]
    (_, before, none), (_, after, one), (_, later, two), *_ = watch.rows
    assert (none, one, two) == (0, 1, 2) and not before.any()
    violations = [
        torch.tensor([row[f"violation/{layer}"] for layer in (1, 2, 3)], dtype=torch.float64)
        for row in trainer.state.log_history
        if "violation/1" in row
    ]
    # The first of them is that of the first step that was taken: the skipped one has no losses to log.
    if every == 1:
        torch.testing.assert_close(after[1:], (0.5 * violations[0]).clamp(min=0), rtol=1e-6, atol=1e-9)
    else:  # batches of one size: the mean over the two steps that were taken, not the one that was skipped
        assert not after.any()
        torch.testing.assert_close(
            later[1:], (0.25 * (violations[0] + violations[1])).clamp(min=0), rtol=1e-6, atol=1e-9
        )
