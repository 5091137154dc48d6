"""DescentTrainer: transformers' Trainer, the Lagrangian for its loss, and a dual step after each of its own."""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from descend.core import DescentProblem, PrimalDual
from descend.errors import InputError, NonFiniteLossError
from descend.evaluation.layers import LayerLosses, measure
from descend.evaluation.satisfaction import Verdict, verdict
from descend.noise import GaussianNoise
from descend.objective import Objective, Task
from descend.records import Records

DUAL_FILE = "dual.safetensors"
STATE_FILE = "descent_{}.pt"  # of each process: its own noise, and its own losses since the last dual step
RECORDS_FILE = "records.jsonl"
FEASIBLE_FOLDER = "best_feasible"


@dataclass
class DescentConfig(TrainingArguments):
    """transformers' `TrainingArguments` and the constrained problem.

    Every argument of the Trainer keeps its name and its meaning.
    """

    method: str = field(
        default="constrained",
        metadata={"help": "constrained: descent constraints, eq. (4). erm: the same loop without, eq. (3)."},
    )
    alpha: str = field(
        default="0.1",
        metadata={"help": "Step α in (0, 1): each layer must lower the loss by 1 - α. One number, or one per layer."},
    )
    alpha_decay: float = field(
        default=1.0,
        metadata={"help": "Factor q in (0, 1] of a geometric schedule α_l = α q^(l-1), where α is one number."},
    )
    cap: float | None = field(
        default=None, metadata={"help": "Bound on the loss where the chain starts; none unless given."}
    )
    first_layer: int = field(
        default=0, metadata={"help": "Where the chain starts: 0 the embedded input, 1 the first block's output."}
    )
    form: str = field(default="difference", metadata={"help": "Form of a constraint: difference or ratio."})
    stop_gradient: bool = field(
        default=False,
        metadata={"help": "No gradient through a constraint's right-hand side: no layer is paid to be worse."},
    )
    dual_lr: float = field(default=0.03, metadata={"help": "Learning rate of the multipliers, η_λ."})
    dual_optimizer: str = field(default="adam", metadata={"help": "How multipliers climb: sgd, adam or nupi."})
    dual_optim_args: str | None = field(
        default=None, metadata={"help": "Further arguments of the dual optimizer, as JSON: '{\"kp\": 5.0}'."}
    )
    dual_every: str = field(
        default="1", metadata={"help": "A dual step after this many primal steps, or 'epoch' for one per epoch."}
    )
    dual_warmup_epochs: float = field(
        default=1.0, metadata={"help": "Epochs of plain ERM before the multipliers begin to move."}
    )
    resilience: float = field(default=0.05, metadata={"help": "ρ: price of slack; 0 for hard constraints."})
    slack: str = field(default="implicit", metadata={"help": "Slack: implicit, eq. (38), or explicit, eq. (36)."})
    slack_lr: float | None = field(
        default=None, metadata={"help": "Learning rate of explicit slack; the multipliers' unless given."}
    )
    # Samples are dictionaries of the task's own making, and the Objective takes them whole.
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Drop fields of a sample that forward() does not name; leave off here."}
    )

    @property
    def folder(self) -> Path:
        """Where everything goes, ``output_dir``."""
        return Path(self.output_dir or "trainer_output")

    def alphas(self, depth: int) -> float | list[float]:
        """α of each layer, from one number, a geometric schedule or a list.

        Raises:
            InputError: If it can't be read.
        """
        try:
            values = [float(value) for value in str(self.alpha).split(",")]
        except ValueError:
            raise InputError(
                f"alpha must be one number or one per layer, as 0.3,0.2,0.1; got {self.alpha!r}."
            ) from None
        if not 0 < self.alpha_decay <= 1:
            raise InputError(f"alpha_decay must lie in (0, 1]; got {self.alpha_decay}.")
        if len(values) > 1:
            return values
        if self.alpha_decay == 1:
            return values[0]
        return [values[0] * self.alpha_decay**layer for layer in range(depth)]

    def problem(self, depth: int) -> DescentProblem:
        """The problem that a model of this depth is held to, whatever the method it was trained with."""
        return DescentProblem(
            depth,
            self.alphas(depth),
            self.cap,
            first=self.first_layer,
            form=self.form,  # type: ignore[arg-type]
            stop_gradient=self.stop_gradient,
        )

    def primal_dual(self, depth: int) -> PrimalDual:
        """The dual of the problem that training solves: the one without constraints for ERM."""
        if self.method not in ("erm", "constrained"):
            raise InputError(f"method must be erm or constrained; got {self.method!r}.")
        problem = self.problem(depth)  # checked for ERM too: it is evaluated against the same constraints
        if self.method == "erm":
            return PrimalDual(DescentProblem(depth))
        if self.dual_every != "epoch" and not self.dual_every.isdecimal():
            raise InputError(f"dual_every must be a number of steps or 'epoch'; got {self.dual_every!r}.")
        if not 0 <= self.dual_warmup_epochs < math.inf:
            raise InputError(f"dual_warmup_epochs must be at least 0; got {self.dual_warmup_epochs}.")
        return PrimalDual(
            problem,
            lr=self.dual_lr,
            optimizer=self.dual_optimizer,
            resilience=self.resilience,
            slack=self.slack,  # type: ignore[arg-type]
            slack_lr=self.slack_lr,
            every="epoch" if self.dual_every == "epoch" else int(self.dual_every),
            options=self._dual_options(),
        )

    def _dual_options(self) -> dict[str, Any]:
        try:
            options = json.loads(self.dual_optim_args or "{}")
        except ValueError:
            options = None
        if not isinstance(options, dict) or options.keys() & {"lr", "maximize", "name", "in_force"}:
            raise InputError(
                "dual_optim_args must be a JSON object of the dual optimizer's arguments other than lr, as "
                f"'{{\"kp\": 5.0}}'; got {self.dual_optim_args!r}."
            )
        return options


class DescentTrainer(Trainer):
    """transformers' `Trainer` under layerwise descent constraints.

    The loss is the Lagrangian, eq. (5); after every optimizer step the multipliers take theirs, Algorithm 1. A loss is
    a sum over samples divided by the number of samples in the whole step, over micro-batches and ranks.
    λ, slack, weights, layer losses and violations go where logs go, and into ``records.jsonl`` of the output folder.
    `evaluate` measures every layer on the evaluation set, at the training noise, and keeps the best model that meets
    the constraints there in ``best_feasible``.

    Args:
        model: A `LayeredModel`.
        args: A `DescentConfig`.
        task: The data's loss and metric.
        noise: Noise on the inputs; None for none.
        **kwargs: As `Trainer` takes them: ``train_dataset``, ``eval_dataset``, ``callbacks``, ``optimizers`` …

    Raises:
        NonFiniteLossError: In training, before the step, if a layer's loss is NaN or infinite.
    """

    args: DescentConfig
    objective: Objective

    def __init__(
        self,
        model: nn.Module,
        args: DescentConfig,
        task: Task,
        noise: GaussianNoise | None = None,
        **kwargs: Any,
    ):
        self.objective = Objective(model, task, noise)
        self.dual = args.primal_dual(self.objective.model.depth)
        self.records = Records(args.folder / RECORDS_FILE, args.folder.name)
        self.verdict: Verdict | None = None
        self._since_log = torch.zeros(self.objective.model.depth + 2, dtype=torch.float64)
        self._best = float("inf")
        self._began, self._earlier = time.monotonic(), 0.0
        super().__init__(model=self.objective, args=args, **kwargs)
        self.loss_is_scaled_for_ga = True
        self.add_callback(_DualStep(self))

    # The step.

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, Tensor | int | None]:
        """The micro-batches of a step, and the number of samples in them over all ranks."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        count = sum(len(self.objective.task.target(batch)) for batch in batches)
        return batches, self.accelerator.gather(torch.tensor(count, device=device)).sum()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """A micro-batch's share of the Lagrangian, w·(f_0 … f_L)."""
        weights = self.dual.weights
        sums, count = model(weights=weights, **inputs)
        detached = sums.detach()
        if not detached.isfinite().all():
            layers = [int(layer) for layer in (~detached.isfinite()).nonzero()]
            raise NonFiniteLossError(
                f"step {self.state.global_step + 1}: the loss of layer {layers} is not finite "
                f"({detached.tolist()}). No parameter has moved. Lower learning_rate or dual_lr, or go on from the "
                f"last checkpoint with --resume."
            )
        self.dual.observe(detached / count, count)
        self._since_log = self._since_log.to(sums.device)
        self._since_log += torch.cat([detached.double(), detached.new_tensor([count], dtype=torch.float64)])
        total = count if num_items_in_batch is None else num_items_in_batch
        # Parallel training averages gradients over ranks; the sum over ranks is what a global mean needs.
        loss = torch.dot(weights.to(sums), sums) * (self.accelerator.num_processes / total)
        return (loss, sums) if return_outputs else loss

    def _run_epoch(self, **kwargs: Any) -> None:  # type: ignore[override]
        """An epoch, unless the checkpoint is that of the last step: the library's loop would take one more."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(**kwargs)

    # Measuring.

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Every layer's loss and metric at the training noise, and the verdict on the constraints."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        layers = self._measure(dataset)
        self.verdict = verdict(self.args.problem(self.objective.model.depth), layers)
        losses = layers.losses.mean(0).tolist()
        metrics = {
            f"{metric_key_prefix}_loss": losses[-1],
            f"{metric_key_prefix}_{self.objective.task.metric}": layers.metrics[-1],
            f"{metric_key_prefix}_violation": max(self.verdict.violations),
            f"{metric_key_prefix}_feasible": float(self.verdict.feasible),
        }
        self.log(metrics)
        if self.is_world_process_zero():
            self.records.rows(
                {"loss": losses, self.objective.task.metric: layers.metrics},
                step=self.state.global_step,
                split="validation",
                noise=self._level,
            )
            if self.args.method == "constrained" and self.verdict.feasible and losses[-1] < self._best:
                self._best = losses[-1]
                self.objective.model.save_pretrained(self.args.folder / FEASIBLE_FOLDER)
                self.save_dual(self.args.folder / FEASIBLE_FOLDER / DUAL_FILE)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _measure(self, dataset: Any) -> LayerLosses:
        noise = self.objective.noise
        return measure(
            self.objective.model,
            self.objective.task,
            dataset,
            level=self._level,
            sigma=noise.sigma if noise else 0.0,
            batch_size=self.args.eval_batch_size,
            device=self.args.device,
        )

    @property
    def _level(self) -> float:
        return self.objective.noise.level if self.objective.noise else 0.0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the dual's state and the layer losses to a training log."""
        if "loss" in logs:
            totals = self.accelerator.reduce(self._since_log).cpu()
            self._since_log = torch.zeros_like(self._since_log)
            losses = totals[:-1] / totals[-1]
            by_layer = {"loss": losses.tolist(), "weight": self.dual.weights.tolist()}
            by_constraint: dict[str, list[float]] = {}
            if self.args.method == "constrained":
                by_constraint = {
                    "violation": self.dual.problem.violations(losses).tolist(),
                    "multiplier": self.dual.multipliers.tolist(),
                    "slack": self.dual.slack.tolist(),
                }
                by_layer["multiplier"] = [self.dual.cap_multiplier.item(), *by_constraint.pop("multiplier")]
            if self.is_world_process_zero():
                place: dict[str, Any] = {"step": self.state.global_step, "split": "train", "noise": self._level}
                self.records.rows(by_layer, **place)
                self.records.rows(by_constraint, first=1, **place)
            for name, values in by_layer.items():
                logs |= {f"{name}/{layer}": value for layer, value in enumerate(values)}
            for name, values in by_constraint.items():
                logs |= {f"{name}/{layer}": value for layer, value in enumerate(values, start=1)}
        super().log(logs, start_time)

    # Saving and going on.

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Save the model by itself, as `from_pretrained` reads it, not the objective around it."""
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.folder)
        if state_dict is not None:
            state_dict = {name.removeprefix("model."): value for name, value in state_dict.items()}
        self.objective.model.save_pretrained(folder, state_dict=state_dict)
        torch.save(self.args, folder / "training_args.bin")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, self.objective.model)
        step = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_text())["global_step"]
        self.records.truncate_after(step)

    def _load_best_model(self) -> None:
        super()._load_from_checkpoint(str(self.state.best_model_checkpoint), self.objective.model)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        super()._save_optimizer_and_scheduler(output_dir)
        state: dict[str, Any] = {
            "dual": self.dual.state_dict(),
            "since_log": self._since_log.cpu(),
            "best": self._best,
            "seconds": self.seconds,
        }
        if self.objective.noise:
            state["noise"] = self.objective.noise.state_dict()
        torch.save(state, Path(output_dir) / STATE_FILE.format(self.args.process_index))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state = torch.load(Path(checkpoint) / STATE_FILE.format(self.args.process_index), weights_only=True)
        self.dual.load_state_dict(state["dual"])
        self._since_log = state["since_log"]
        self._best = state["best"]
        self._began, self._earlier = time.monotonic(), state["seconds"]
        if self.objective.noise:
            self.objective.noise.load_state_dict(state["noise"])

    @property
    def seconds(self) -> float:
        """Seconds since training began, those before an interruption included."""
        return self._earlier + time.monotonic() - self._began

    def save_dual(self, path: Path) -> None:
        """Write λ, the cap's multiplier and the slack."""
        tensors = {
            "multipliers": self.dual.multipliers,
            "cap_multiplier": self.dual.cap_multiplier,
            "slack": self.dual.slack,
        }
        save_file(tensors, path)


class _DualStep(TrainerCallback):
    """Where the trainer's loop tells the dual that a step, or an epoch, is over."""

    def __init__(self, trainer: DescentTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # Only now is it known how many steps an epoch has.
        self.steps = math.ceil(len(kwargs["train_dataloader"]) / args.gradient_accumulation_steps)
        self.trainer.dual.warmup = round(args.dual_warmup_epochs * self.steps)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # An epoch is over where the next begins: a checkpoint of its last step goes on alike, an epoch that was
        # interrupted is not over, and the slack after the very last step stays for the record.
        if state.global_step and state.global_step % self.steps == 0:
            self.trainer.dual.end_epoch()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer.dual.step()
