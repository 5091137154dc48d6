"""What test_distributed compares: the same training in one process, or as torchrun starts it, in each of two.

    torchrun --standalone --nproc-per-node 2 -m tests.support.ranks FOLDER

Data sets of 19 samples: steps take 8, 8 and 3 of them, which two ranks can't share evenly.
"""

import gc
import math
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import Subset
from transformers import TrainerControl, TrainerState

from descend import (
    UT,
    DescentConfig,
    DescentProblem,
    DescentTrainer,
    GaussianNoise,
    InputError,
    NonFiniteLossError,
    PrimalDual,
    UTConfig,
    evaluate,
)
from descend.errors import RanksDifferError, SaveError
from descend.noise import Noise
from descend.run.training import _StopOnSignal
from descend.tasks.text import learn_tokenizer
from descend.tasks.video import VideoDenoising, load_video
from descend.training.sft import DescentSFTConfig, DescentSFTTrainer
from tests.support import own, runs
from tests.support.networks import QUIET, causal, network

SAMPLES = 19
LORA = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "lm_head"], init_lora_weights=False)
PLAIN = QUIET | {
    "bf16": False,
    "max_steps": 6,
    "max_grad_norm": 0.0,
    "alpha": "0.3",
    "cap": 0.5,
    "dual_warmup_steps": 1.0,
    "stop_gradient": False,
}
SGD = {"optim": "sgd", "learning_rate": 0.02, "dual_optimizer": "sgd", "dual_lr": 0.2, "cap": 0.05}
SAVED = {"save_strategy": "steps", "save_steps": 2}
ADAM = {"learning_rate": 1e-3, "dual_optimizer": "adam", "dual_lr": 0.1, "slack": "explicit", "slack_lr": 0.01}


def tokens(seed: int, length: int) -> list[int]:
    return torch.randint(5, 40, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


class Ripple(Noise):
    """Noise that every sample meets alike, whatever rank it is on."""

    def draw(self, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.arange(like[0].numel(), dtype=like.dtype).sin().view_as(like[0]).expand_as(like)


scenes = cache(lambda: load_video(None, 2, stride=10, seed=0))


def denoiser(folder: Path, depth: int = 2, noise: Any = 0.8, data: Any = None, **args) -> DescentTrainer:
    """A UT on generated scenes: 18 windows to train on, three steps an epoch."""
    settings = {"max_steps": 3, "per_device_train_batch_size": 6, "dual_warmup_steps": 0.0, "learning_rate": 3e-3}
    return DescentTrainer(
        UT(UTConfig(depth=depth)),
        DescentConfig(output_dir=str(folder), **QUIET | settings | args),
        task=VideoDenoising(),
        noise=GaussianNoise(noise, scenes().sigma, seed=0) if isinstance(noise, float) else noise,
        train_dataset=data or scenes().train,
        eval_dataset=Subset(scenes().validation, range(8)),
    )


def video(folder: Path, **args) -> DescentTrainer:
    windows = [{"patches": scenes().train[place]["patches"].double()} for place in (*range(18), 4)]
    ours = denoiser(folder, noise=Ripple(0.8, scenes().sigma), data=windows, **PLAIN | SGD | args)
    ours.eval_dataset = windows[:2]
    ours.objective.double()
    return ours


def classifier(folder: Path, noise: Any = None, dropout: float = 0.0, **args) -> DescentTrainer:
    rows = Dataset.from_list(
        [{"input_ids": tokens(place, 3 + place % 7), "label": place % 3} for place in range(SAMPLES)]
    )
    return DescentTrainer(
        network("distilbert", dropout=dropout, attention_dropout=dropout, seq_classif_dropout=dropout),
        DescentConfig(output_dir=str(folder), train_sampling_strategy="group_by_length", **PLAIN | ADAM | args),
        noise=noise,
        train_dataset=rows,
        eval_dataset=rows.select(range(5)),
        processing_class=learn_tokenizer(["a text"]),
    )


def language(folder: Path, peft: LoraConfig | None = None, model: Any = None, **args) -> DescentSFTTrainer:
    """Of texts of 4 to 10 tokens; in the first step those of the second of two ranks have no target at all."""
    torch.manual_seed(0)
    rows = [
        {"input_ids": ids, "labels": [-100] * len(ids) if place in (1, 3, 5, 7) else ids}
        for place, ids in enumerate(tokens(place, 4 + place % 7) for place in range(SAMPLES))
    ]
    config = DescentSFTConfig(
        output_dir=str(folder),
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        **PLAIN | ADAM | {"gradient_checkpointing": False} | args,
    )
    return DescentSFTTrainer(
        causal(attention_dropout=0.0) if model is None else model,
        config,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[8:12]),
        processing_class=learn_tokenizer(["a text"]),
        peft_config=peft,
    )


def points(folder: Path, kind: type = DescentTrainer, given: Any = None, **args) -> DescentTrainer:
    """A user's own model on points; ``given`` are arguments of the trainer, such as its task."""
    settings = QUIET | {"max_steps": 4, "per_device_train_batch_size": 8} | args
    data = {
        **{"train_dataset": own.samples(24), "eval_dataset": own.samples(12, 1)},
        **{"model": own.layers(), "task": own.Classes()},
        **(given or {}),
    }
    return kind(args=DescentConfig(str(folder), **settings), **data)


def own_model(folder: Path, **args) -> DescentTrainer:
    """A module of a user's own, whose layers are read through hooks."""
    module = own.mlp().double()
    module.head, module.norm = nn.Sequential(module.norm, module.head), nn.Identity()
    rows = [sample | {"x": sample["x"].double()} for sample in own.samples(SAMPLES)]
    given = {"model": own.layers(module, readout="head"), "train_dataset": rows, "eval_dataset": rows[:5]}
    return points(folder, given=given, **PLAIN | ADAM | args)


MADE = {
    "video": video,
    "own model": own_model,
    "classifier": classifier,
    "language": language,
    "lora": partial(language, peft=LORA),
    "own classifier": partial(classifier, exits="own", max_grad_norm=0.05),
    "own language": partial(language, exits="own", max_grad_norm=0.05),
}
# Of each, samples of a micro-batch on one of two ranks.
SIZES = {"video": 1, "own model": 2, "classifier": 2, "language": 1, "lora": 1, "own classifier": 2, "own language": 1}


def whole(each: torch.Tensor) -> torch.Tensor:
    return each.detach().full_tensor() if isinstance(each, DTensor) else each.detach().clone()


def weights(trainer) -> torch.Tensor:
    return nn.utils.parameters_to_vector(trainer.objective.parameters()).detach().clone()


def outcome(trainer) -> dict:
    """θ, λ, u and the logged losses."""
    logged = [value for row in trainer.state.log_history for name, value in row.items() if name.startswith("loss/")]
    return {
        **{f"θ {name}": whole(each) for name, each in trainer.objective.named_parameters() if each.requires_grad},
        **{"λ": trainer.dual.multipliers, "u": trainer.dual.slack},
        "losses": torch.tensor(logged, dtype=torch.float64),
    }


def trained(name: str, folder: Path, size: int, accumulation: int, start: str | None = None, **args) -> dict:
    trainer = MADE[name](folder, per_device_train_batch_size=size, gradient_accumulation_steps=accumulation, **args)
    trainer.objective.double()
    trainer.train(resume_from_checkpoint=start)
    assert trainer.model is trainer.objective.model.saved and trainer.model_wrapped is not trainer.model
    return outcome(trainer)


def resumed(folder: Path) -> list[dict]:
    """A run, and one that goes on from its checkpoint in the second epoch."""
    settings = {"size": 2, "accumulation": 2, "save_strategy": "steps", "save_steps": 4}
    return [trained("classifier", folder, start=start, **settings) for start in (None, str(folder / "checkpoint-4"))]


def fitted(trainer):
    """A trainer after its training."""
    trainer.train()
    return trainer


# --- shards


def shard(objective: nn.Module, **options) -> None:
    """As Accelerate does on a GPU: each block, and the objective with what is left."""
    blocks = objective._no_split_modules or ()
    for module in objective.modules():
        if type(module).__name__ in blocks:
            fully_shard(module, **options)
    fully_shard(objective, reshard_after_forward=True, **options)


def sharded(name: str, folder: Path, shards: bool, size: int, **args) -> dict:
    """Training on shards, or in one process without; and a verdict before, within and after it."""
    trainer = MADE[name](folder, per_device_train_batch_size=size, eval_strategy="steps", eval_steps=2, **args)
    trainer.objective.double()
    if shards:
        shard(trainer.objective)
        # Transformers' word for a model that has its gradients reduced itself: no DDP around it.
        trainer.is_distributed_loading_by_transformers = True
        assert any(isinstance(each, FSDPModule) for each in trainer.objective.model.modules()) == (name != "video")
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    if shards:
        assert all(isinstance(each, DTensor) for each in trainer.objective.parameters())
        with pytest.raises(InputError, match="shards of FSDP2"):
            evaluate(trainer, trainer.eval_dataset)
    trainer.save_pretrained(folder / "model")
    trainer.save_dual(folder / "dual.safetensors")
    seen = [row[f"eval_{what}"] for row in (before, after) for what in ("loss", "violation")]
    return outcome(trainer) | {"verdicts": torch.tensor(seen, dtype=torch.float64)}


# --- the bare dual

# Each a run's arguments and, by epoch, step and rank, the sizes of the micro-batches that the rank sees.
UNEVEN = [[((3, 1), (5,)), ((2,), (1, 1, 6)), ((4,), ())], [((1,), (7, 2)), ((), (3,)), ((8,), (1,))]]
UNUSED = [[((3,), (2,)), ((1,), (4,))], [((5,), ()), ((2, 2), ())], [((), (1,)), ((3,), ())], [((1,), (1,))]]
SCENARIOS = {
    "every step": ({"optimizer": "adam"}, UNEVEN),
    "every third step": ({"optimizer": "nupi", "every": 3}, UNEVEN),
    "explicit slack, after a warm-up": ({"optimizer": "sgd", "slack": "explicit", "warmup": 2}, UNEVEN),
    "by epochs, one rank idle": ({"optimizer": "adam", "every": "epoch"}, UNUSED),
}


def run_scenario(name: str, ranks: list[int]) -> torch.Tensor:
    """λ, u and w after every step, as seen by a process that feeds the micro-batches of these ranks."""
    arguments, epochs = SCENARIOS[name]
    rng = torch.Generator().manual_seed(5)
    dual = PrimalDual(DescentProblem(3, 0.1, 0.8), 0.1, resilience=0.2, **arguments)
    states = []
    for epoch in epochs:
        for step in epoch:
            for rank, sizes in enumerate(step):
                for size in sizes:
                    losses = torch.rand(4, generator=rng, dtype=torch.float64) + 0.5
                    if rank in ranks:
                        dual.observe(losses * size, size)
            dual.step()
            states.append(torch.cat([dual.multipliers, dual.slack, dual.weights]))
        dual.end_epoch()
        states.append(torch.cat([dual.multipliers, dual.slack, dual.weights]))
    return torch.stack(states)


def duals(folder: Path) -> dict:
    """All scenarios; and a loss that is NaN on one rank, which stops both."""
    rank = distributed.get_rank()
    found: dict[str, Any] = {name: run_scenario(name, [rank]) for name in SCENARIOS}
    dual = PrimalDual(DescentProblem(1, 0.1))
    dual.observe(torch.tensor([1.0, math.nan if rank else 1.0]))
    with pytest.raises(NonFiniteLossError) as raised:
        dual.step()
    return found | {"error": str(raised.value)}


# --- what goes wrong, and what goes over the wire


def ending(trainer, fault: type[Exception]) -> dict:
    """The step at which training ended, and the fault that ended it."""
    try:
        trainer.train()
    except fault as error:
        return {"step": trainer.state.global_step, "error": str(error)}
    return {"step": trainer.state.global_step, "error": ""}


def perturbed(folder: Path, by: float) -> dict:
    """λ_1 moves on one rank alone, after the third step."""
    trainer = classifier(folder, per_device_train_batch_size=4)

    def perturb(step: int, *_: int) -> None:
        if step == 3 and distributed.get_rank() == 1:
            trainer.dual._multipliers[1] += by

    trainer.method.before_pass = perturb
    return ending(trainer, RanksDifferError)


def poisoned(folder: Path) -> dict:
    """One sample of the second step's is no number: on one rank alone, with a sampler in order."""
    trainer = video(
        folder,
        per_device_train_batch_size=4,
        train_sampling_strategy="sequential",
        save_strategy="steps",
        save_steps=100,
    )
    trainer.train_dataset[9]["patches"][0, 0, 0] = float("nan")
    return ending(trainer, NonFiniteLossError)


def lowered(folder: Path, by: float) -> dict:
    """The second process's losses are lowered, so that its own means are negative."""
    trainer = video(folder, per_device_train_batch_size=4, max_steps=2)
    losses = trainer.objective.task.losses
    trainer.objective.task.losses = lambda *given: losses(*given) - by * distributed.get_rank()
    return ending(trainer, InputError)


def undecided(folder: Path) -> dict:
    """Processes that measure unlike losses, as unlike processors do by rounding: the second's first are the best."""
    trainer = video(folder, per_device_train_batch_size=4, patience=1, eval_strategy="steps", eval_steps=2, **SAVED)
    measure = trainer._measure

    def unlike(*given, **options):
        layers, by = measure(*given, **options), distributed.get_rank() * (1 + trainer.state.global_step)
        return replace(layers, losses=layers.losses + by)

    trainer._measure = unlike
    trainer.train()
    logged = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    return {"step": trainer.state.global_step, "logged": logged, "verdict": trainer.verdict.worst}


def unsaved(folder: Path) -> list:
    """The disk takes only small files of one process, the second and then the first; and then of none."""
    errors, before = [], resource.getrlimit(resource.RLIMIT_FSIZE)
    for rank in (1, 0, None):
        trainer = video(folder, per_device_train_batch_size=4, max_steps=2, logging_strategy="no", **SAVED)
        size = 2000 if rank == distributed.get_rank() else before[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        error = ending(trainer, SaveError)["error"]
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        distributed.barrier()  # the first process clears away what it has begun
        errors += [error, sorted(path.name for path in folder.iterdir())]
        distributed.barrier()
    return errors


def predicted(folder: Path, name: str) -> dict:
    """The losses of `evaluate` and of `predict`, whose processes share the samples and read some of them twice."""
    trainer = MADE[name](folder, per_device_eval_batch_size=3, dual_warmup_steps=0.0)
    data = trainer.train_dataset
    return {"evaluate": trainer.evaluate(data)["eval_loss"], "predict": trainer.predict(data).metrics["test_loss"]}


def traffic(folder: Path) -> dict:
    """Bytes of every collective that Python calls in three steps of plain DDP, whose gradients go another way."""
    seen: Counter = Counter()

    def counted(call, place):
        def counting(*args, **kwargs):
            seen[f"{call.__name__} of {args[place].numel() * args[place].element_size()} bytes"] += 1
            return call(*args, **kwargs)

        return counting

    trainer = classifier(
        folder, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3, dual_warmup_steps=0.0
    )
    places = {"all_reduce": 0, "all_gather": 1, "all_gather_into_tensor": 1}  # of the tensor that is sent
    calls = {name: counted(getattr(distributed, name), place) for name, place in places.items()}
    with mock.patch.multiple(distributed, **calls):
        trainer.train()
    return dict(seen)


def torn(folder: Path) -> dict:
    """A head that is sharded by itself is refused."""
    trainer = language(folder)
    trainer.is_distributed_loading_by_transformers = True
    fully_shard(trainer.objective.model.library.lm_head)
    fully_shard(trainer.objective)
    return ending(trainer, InputError)


def halved(folder: Path) -> dict:
    """Shards in half precision, as Accelerate asks for them: what comes in and goes out is rounded too."""
    objective = language(folder).objective
    shard(objective, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16, torch.bfloat16))
    batch = {"input_ids": torch.tensor([tokens(0, 9)]), "labels": torch.tensor([tokens(0, 9)])}
    found = objective([0.7, -0.4, 1.001, 1.3], **batch)
    found.lagrangian.backward()
    gradients = [each.grad for each in objective.parameters()]
    return {
        "sums": list(found.sums),
        "weighted": found.lagrangian.item(),
        "finite": all(each is not None and whole(each).isfinite().all() for each in gradients),
    }


def commanded(folder: Path) -> list[int]:
    """`descend train`: stopped by a signal to the second process alone, refused, resumed. How each ended."""
    train = partial(runs.train, folder, "--per-device-train-batch-size", "3", "--eval-steps", "1000", every=1000)

    def interrupt() -> None:
        while not (folder / "records.jsonl").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    if distributed.get_rank() == 1:
        threading.Thread(target=interrupt, daemon=True).start()
    ended = [train(steps=2000)]
    step = max(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))
    distributed.barrier()
    ended.append(train(steps=2000))
    return [*ended, train("--resume", steps=step + 2), step]


def asked(folder: Path) -> dict:
    """The second process is asked to stop: both stop, and the first one's own first signal is still its first."""
    with _StopOnSignal() as stop:
        control, args = TrainerControl(), SimpleNamespace(world_size=2, device="cpu")
        stop.on_step_begin(args, TrainerState(), control)
        if distributed.get_rank() == 1:
            signal.raise_signal(signal.SIGTERM)
        stop.on_step_end(args, TrainerState(), control)
        found = {"stopping": stop.stopping, "asked": stop.asked, "saves": control.should_save}
        if distributed.get_rank() == 0:
            signal.raise_signal(signal.SIGTERM)
        return found


SKIP = {"method": "layerskip", "layer_dropout_schedule": "constant"}
WORK = {
    **{name: partial(trained, name, size=size, accumulation=4 // size) for name, size in SIZES.items()},
    **{f"{name} in shards": partial(sharded, name, shards=True, size=4) for name in SIZES},
    "sampled": partial(trained, "language", size=1, accumulation=4, exit_share=0.5),
    "sampled in shards": partial(sharded, "language", shards=True, size=4, exit_share=0.5),
    "whole layers": partial(trained, "classifier", size=2, accumulation=2, layer_dropout=0.0, **SKIP),
    "skipped layers": partial(trained, "classifier", size=2, accumulation=2, layer_dropout=0.5, **SKIP),
    "skipped layers in shards": partial(sharded, "classifier", shards=True, size=4, layer_dropout=0.5, **SKIP),
    "resumed": resumed,
    "duals": duals,
    "perturbed": partial(perturbed, by=1e-4),
    "rounded": partial(perturbed, by=1e-15),
    "poisoned": poisoned,
    "lowered by 1": partial(lowered, by=1.0),
    "lowered by 3": partial(lowered, by=3.0),
    "undecided": undecided,
    "unsaved": unsaved,
    "predicted": partial(predicted, name="language"),
    "predicted classes": partial(predicted, name="classifier"),
    "traffic": traffic,
    "halved": halved,
    "torn": torn,
    "asked": asked,
    "commanded": commanded,
}
"""What each process does, in its own folder: name → a function of the folder."""


def main(folder: Path) -> None:
    gc.freeze()  # what is imported stays: the collector, whom every training calls, need not look through it
    found = {name: work(folder=folder / name) for name, work in WORK.items()}
    torch.save(found, folder / f"{distributed.get_rank()}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
