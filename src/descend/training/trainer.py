"""DescentTrainer: Transformers' Trainer with the Lagrangian as its loss and a dual step after each primal step.

`DescentMixin` implements it for any trainer that is derived from `Trainer`.
"""

import logging
import math
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from torch import Tensor, nn
from tqdm import tqdm
from transformers import TrainingArguments
from transformers.trainer_utils import has_length

from descend.core import LossSums
from descend.errors import InputError
from descend.methods import CLASSES
from descend.models import check_savable
from descend.noise import GaussianNoise, Noise
from descend.objective import Objective
from descend.results import RECORDS_FILE, Records
from descend.tasks import Task
from descend.tiles import TargetSample
from descend.training.checkpoints import (
    any_checkpoints,
    newest_whole,
    rename_damaged,
    rotate,
    step_of,
    unusable,
)
from descend.training.checks import first_losses
from descend.training.config import DescentArguments, DescentConfig
from descend.training.hf_hooks import overriding, refuse_arguments
from descend.training.order import IDLE
from descend.training.step import DualStep, EarlyStopping, Stepping

logger = logging.getLogger(__name__)

CAP_MARGIN = 1.1
"""The cap that α takes by itself, in first losses: those of other samples differ by some percent."""


class DescentMixin(Stepping):
    """Adds layerwise descent constraints to Transformers' `Trainer`, or to a trainer derived from it.

    The training loss is the Lagrangian, eq. (5); after every optimizer step comes the dual step, Algorithm 1. A layer's
    loss is the sum over all targets of the step, in all micro-batches and on all ranks, divided by their number.
    """

    def _constrain(
        self,
        args: DescentArguments,
        model: nn.Module,
        task: Task | None,
        noise: Noise | float | None,
        sample: TargetSample | None = None,
    ) -> None:
        """Set up the objective, the multipliers and the records."""
        noise = GaussianNoise(noise, seed=args.seed) if isinstance(noise, int | float) else noise
        self.objective = objective = Objective(model, task, noise, sample)
        self._exits_are_new = self.give_own_exits(args)
        # A non-finite loss ends training, so the filter is useless, and it synchronizes with the GPU twice per batch.
        args.logging_nan_inf_filter = False
        if objective.sample_fields is None:
            args.remove_unused_columns = False
        self.dual = args.primal_dual(objective.model.depth, objective.model.first_layer)
        self.method = CLASSES[args.method](args)
        self.sums = LossSums(self.dual.problem.depth, self.other_sums)
        self.records = Records(args.folder / RECORDS_FILE, args.folder.name)
        self.verdict = None
        self.chooses = False
        self.begin_run()

    def _ready(self) -> None:
        """Check the data and add the callbacks; the last part of the constructor."""
        if self.train_dataset is not None and has_length(self.train_dataset) and not len(self.train_dataset):
            raise InputError("train_dataset must hold at least one sample; got 0. Choose other samples.")
        data = {} if overriding(type(self), "get_train_dataloader") else {"training data": self.train_dataset}
        if not overriding(type(self), "get_eval_dataloader"):  # batches of a user's loader may need other samples
            evaluated = self.evaluated(self.eval_dataset)
            data |= {f"{name} evaluation data".lstrip(): each for name, each in evaluated.items()}
        self.objective.check_data(data, self.evaluation_collator(), noise=self.objective.noise is not None)
        self.check_selection()
        self.check_optimizer()
        if self._exits_are_new:
            self.fit_exits()
        self.loss_is_scaled_for_ga = True
        self.model_accepts_loss_kwargs = False  # `get_batch_samples` counts the targets
        if self.args.measures_cap and self.train_dataset is not None:
            self._measure_cap()
        self.method.attach(self)
        problem = self.dual.problem
        if problem.alpha and not problem.stop_gradient and problem.cap is None and self.is_world_process_zero():
            logger.warning(
                "alpha through both sides (stop_gradient off) without a cap pays each layer but the last for a higher "
                f"loss, and nothing bounds that of layer {problem.first}. Give a cap, such as loss/{problem.first} of "
                "the first log, or leave stop_gradient out."
            )
        self.add_callback(DualStep(self))
        if self.args.patience is not None:
            self.add_callback(EarlyStopping(self.args.patience, self))

    def _measure_cap(self) -> None:
        """Set the cap of α: a tenth above the first loss of the exit that it bounds, see `first_losses`."""
        problem, losses = self.dual.problem, first_losses(self)
        value = CAP_MARGIN * losses[problem.cap_layer].item() if losses is not None else 0.0
        if not 0 < value < math.inf:  # unknown; of a loss that is no number, the first step says so
            if self.is_world_process_zero():
                logger.warning(
                    "alpha alone takes its cap from the first losses, which can't be measured here before training. "
                    "Without one no gradient flows through a bound, and later layers may have no room left. Give a "
                    f"cap (--cap), such as loss/{problem.first} of the first log, and stop_gradient off."
                )
            return
        self.args.take_cap(float(f"{self._broadcast(value):.6g}"))
        self.dual = self.args.primal_dual(self.objective.model.depth, self.objective.model.first_layer)
        self.begin_run()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """A micro-batch's part of the Lagrangian, w·(f_0 … f_L)."""
        idle = inputs.pop(IDLE, False)
        step, micro_batch = self.state.global_step, self.computed
        self.objective.begin(step, micro_batch)
        self.method.before_pass(step, self.state.max_steps, micro_batch)
        batch = model(weights=self._weights, inner=self.method.inner or self.objective.own, **inputs)
        self.computed += 1
        self.sums.add(batch.losses, idle=idle)
        if batch.targets and not batch.lagrangian.requires_grad:
            raise InputError(
                "there is nothing to train: the loss of the last layer depends on no parameter with requires_grad. "
                "Look for torch.no_grad or detach in the model or its readout."
            )
        # An idle rank computes too, because every rank must take part in the collectives.
        lagrangian = batch.lagrangian * 0 if idle else batch.lagrangian
        total = batch.targets if num_items_in_batch is None else num_items_in_batch
        # Parallel training averages gradients over ranks; multiply by their number to get the sum.
        ranks = self.accelerator.num_processes
        share = ranks / total.clamp(min=1) if isinstance(total, Tensor) else ranks / max(total, 1)
        return (lagrangian * share, batch.sums) if return_outputs else lagrangian * share

    @property
    def _weights(self) -> list[float]:
        """w_0 … w_L of the next primal step; by default `PrimalDual.weights`."""
        return self.method.weights(self.state.global_step, self.state.max_steps)

    def _other_logs(self, sums: LossSums) -> dict[str, float]:
        """Log entries from the further sums since the last log."""
        return {}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the dual's state and the layer losses to a training log."""
        if "loss" in logs:
            sums = self.since_log.with_numbers(self._over_ranks(self.since_log.numbers))
            self.since_log.clear()
            self.logged.add(sums)
            first, losses = sums.first, sums.means
            logs |= self._other_logs(sums)
            rows: dict[str, tuple[int, list[float]]] = {"loss": (first, losses.tolist()), "weight": (0, self._weights)}
            if self.dual.problem.constrained:
                rows["multiplier"] = 0, self.dual.multipliers.tolist()
                rows["slack"] = 1, self.dual.slack[1:].tolist()
                if not first:
                    rows["violation"] = 1, self.dual.problem.violations(losses)[1:].tolist()
                    if self.dual.warm and self.is_world_process_zero() and losses.isfinite().all():
                        for sentence in self.outlook.report(losses, self.dual.multipliers):
                            logger.warning(f"step {self.state.global_step}: {sentence}")
            for name, (start, values) in rows.items():
                if self.is_world_process_zero():
                    step, level = self.state.global_step, self._level
                    self.records.rows({name: values}, first=start, step=step, split="train", noise=level)
                logs |= {f"{name}/{layer}": value for layer, value in enumerate(values, start=start)}
        super().log(logs, start_time)

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, *, calibrate: bool = True, **kwargs: Any
    ) -> Any:
        """Train, as Transformers' Trainer does.

        A second call without a checkpoint is a new run in the same folder, from the model as it is: records,
        ``best_feasible`` and the choice of the best model start over. As the optimizer keeps its state, the
        multipliers keep theirs, and there is no second warm-up.

        Args:
            resume_from_checkpoint: A checkpoint to resume from, or True for the newest undamaged one.
            calibrate: Whether to call `calibrate` at the end, which ``DescentConfig.calibrate`` switches on.
            **kwargs: Further arguments of Transformers' ``train``.

        Returns:
            Transformers' ``TrainOutput``; its ``metrics`` also have the ``temperature`` of a calibrated classifier.

        Raises:
            InputError: If the checkpoint is damaged or another trainer's, or there is none; if the folder holds files
                that the run would replace and Descend did not write; if the model's settings or its tokenizer can't
                be saved; if there is no batch to train on, or no parameter to train.
            SaveError: If a checkpoint or the records can't be written; earlier checkpoints are not affected.
        """
        checkpoint = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = self.last_checkpoint()
            others = self._from_main(lambda: any_checkpoints(self.args.folder))  # another trainer's: said below
            if checkpoint is None and not others:
                raise InputError(f"{self.args.folder} has no whole checkpoint to go on from.")
            checkpoint = checkpoint or str(others[-1])
        if checkpoint is not None and (fault := self._from_main(lambda: unusable(Path(checkpoint)))):
            raise InputError(fault)
        self.refuse_foreign_files(checkpoint, trains=True)
        if not any(parameter.requires_grad for parameter in self.objective.parameters()):
            raise InputError(
                f"there is nothing to train: all parameters of {type(self.users_model).__name__} are frozen. Set "
                "requires_grad of those to train, or add adapters."
            )
        check_savable(self.users_model, self.tokenizer_to_save)
        try:
            with self.method.installed():
                output = super().train(checkpoint, **kwargs)
        except UnpicklingError as error:
            raise InputError(f"{checkpoint} holds a pickle that is more than tensors; it is not loaded.") from error
        if self.args.should_save:  # a run killed between saving and rotating has one checkpoint too many
            rotate(self.args.folder, self.args.save_total_limit, self.state.best_model_checkpoint)
        if calibrate:
            self.calibrate()
        self.mark_model()
        if calibrate and self.temperature != 1:
            output.metrics["temperature"] = self.temperature
            if self.args.should_log:
                tqdm.write(
                    f"temperature {self.temperature:.4g}: the head's last weights are divided by it, to fit the "
                    "evaluation data."
                )
        return output

    def last_checkpoint(self) -> str | None:
        """The newest undamaged checkpoint of the run; newer damaged ones are reported and renamed."""

        def look() -> str | None:
            newest, damaged = newest_whole(self.args.folder)
            for checkpoint, fault in damaged.items():
                rename_damaged(checkpoint, fault)
            return None if newest is None else str(newest)

        return self._from_main(look)

    @property
    def kept_step(self) -> int:
        """The step of the final model: that of the best checkpoint if it was loaded at the end, else the last step."""
        best = self.state.best_model_checkpoint
        if not self.args.load_best_model_at_end or best is None:
            return self.state.global_step
        return step_of(Path(best))


class DescentTrainer(DescentMixin):
    """Transformers' `Trainer` under layerwise descent constraints.

    λ, slack, weights, layer losses and violations are logged, and written to ``records.jsonl`` in the output folder.
    `evaluate` measures every layer on the evaluation set at the training noise, and saves the best model that meets
    the constraints there in ``best_feasible``. So ``compute_metrics`` in it, and the choice of the best model, see
    noisy inputs. ``predict`` runs the last layer without noise.

    Args:
        model: A classifier or causal language model of Transformers, with or without adapters, or a `LayeredModel`.
            ``trainer.model`` is that model, or the module inside a `LayeredModel` that wraps one.
        args: A `DescentConfig`, or Transformers' `TrainingArguments` for the default problem.
        *others: Further positional arguments of `Trainer`.
        task: The loss and metric; by default that of the Transformers model.
        noise: Noise on the inputs; a number is the level γ of Gaussian noise. None for no noise.
        **kwargs: Further arguments of `Trainer`, such as ``train_dataset``, ``eval_dataset`` and ``callbacks``.

    Raises:
        InputError: If the model, the arguments or a sample can't be used, or one process has several GPUs. During
            training under constraints, if a layer's mean loss over a step is negative (before the optimizer step).
        NonFiniteLossError: During training, if a layer's loss or a gradient is NaN or infinite (before the optimizer
            step), or a multiplier would be (before it moves).
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        *others: Any,
        task: Task | None = None,
        noise: Noise | float | None = None,
        **kwargs: Any,
    ):
        args = DescentConfig.of(args)
        refuse_arguments(type(self), args, kwargs)
        if model is None:
            raise InputError("expected a model; got None.")
        self._constrain(args, model, task, noise)
        super().__init__(self.users_model, args, *others, **kwargs)
        self._ready()

    def columns(self) -> list[str] | None:
        """The fields of a sample that the model or the task reads."""
        return self.objective.sample_fields
