"""DescentTrainer: Transformers' Trainer with the Lagrangian as its loss and a dual step after each primal step.

`DescentMixin` implements it for any trainer that is derived from `Trainer`.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader
from transformers import TrainingArguments
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.trainer_utils import IntervalStrategy, has_length

from descend.core import Outlook
from descend.errors import InputError, NonFiniteLossError
from descend.noise import GaussianNoise, Noise
from descend.objective import ExitLosses, Objective, Task
from descend.results import RECORDS_FILE
from descend.results.records import Records
from descend.tasks.text import NextToken
from descend.training.config import MEASURED, DescentArguments, DescentConfig
from descend.training.dual_step import DualStep
from descend.training.hf_hooks import overriding, refuse_overrides
from descend.training.layerskip import LayerSkip
from descend.training.neftune import batch_lengths, matched_alpha, words_of
from descend.training.order import Share
from descend.training.resuming import Resumable
from descend.training.state import StepSums
from descend.training.stopping import EarlyStopping

logger = logging.getLogger(__name__)

IDLE = "idle"  # marks a micro-batch that counts nothing


class DescentMixin(Resumable):
    """Adds layerwise descent constraints to Transformers' `Trainer`, or to a trainer derived from it.

    The training loss is the Lagrangian, eq. (5); after every optimizer step comes the dual step, Algorithm 1. A layer's
    loss is the sum over all targets of the step, in all micro-batches and on all ranks, divided by their number.
    """

    other_sums = 0
    """K, the number of sums that `_others` returns."""
    other_metrics: tuple[str, ...] = ()
    """Further metrics of an evaluation."""

    @staticmethod
    def _noise(noise: Noise | float | None, seed: int) -> Noise | None:
        return GaussianNoise(noise, seed=seed) if isinstance(noise, int | float) else noise

    @classmethod
    def _refuse(cls, args: DescentArguments, kwargs: dict[str, Any]) -> None:
        """Raise an error for arguments, and methods of a subclass, that the training loop does not support."""
        refuse_overrides(cls)
        if args.world_size > 1 and overriding(cls, "get_eval_dataloader"):
            raise InputError(
                "get_eval_dataloader can't be overridden where there are several processes: each one measures all "
                "samples, and a loader may divide them. Give the data as eval_dataset and the batches' data_collator."
            )
        if kwargs.get("model_init") is not None:
            raise InputError(
                "expected a model; got model_init, which makes one for each trial. Give the trainer a model: "
                "model=model_init()."
            )
        if kwargs.get("compute_loss_func") is not None:
            raise InputError("compute_loss_func must be left out: the loss is the task's. Give a task of your own.")
        if "inputs" in (args.include_for_metrics or ()):
            raise InputError("include_for_metrics can't hold inputs: those of a text differ in length. Leave it out.")
        started = int(os.environ.get("WORLD_SIZE", "1"))
        if started > 1 and args.world_size == 1:
            raise InputError(
                f"{started} processes were started, and none knows of the others: there is no GPU for each. Add "
                "--use-cpu (use_cpu=True) to train on CPUs."
            )
        if args.n_gpu > 1:
            raise InputError(
                f"one process must have one GPU; got {args.n_gpu}. Start one process for each with torchrun, or choose "
                "one by CUDA_VISIBLE_DEVICES=0."
            )

    def _constrain(self, objective: Objective, args: DescentArguments) -> None:
        """Set up the objective, the multipliers and the records."""
        # A non-finite loss ends training, so the filter is useless, and it synchronizes with the GPU twice per batch.
        args.logging_nan_inf_filter = False
        if objective.sample_fields is None:
            args.remove_unused_columns = False
        self.objective = objective
        self.dual = args.primal_dual(objective.model.depth, objective.model.first_layer)
        self.layer_skip = LayerSkip(args, objective.model, args.seed) if args.method == "layerskip" else None
        if args.method == "neftune":
            words_of(objective.model)  # raises for a model without words
            objective.trains_with_noise = False
        self.sums = StepSums(self.dual, self.other_sums)
        self.records = Records(args.folder / RECORDS_FILE, args.folder.name)
        self.verdict = None
        self.chooses = False
        self._scale_before = 1.0
        self._idles = False  # whether this rank's last batch of an epoch is empty
        self._begin()

    def _begin(self) -> None:
        """Reset logs, model selection and calibration for a new run; multipliers keep their state."""
        self._outlook = Outlook(self.dual.problem)
        self.sums.begin()
        self._best = float("inf")  # the lowest loss of a feasible model
        self._best_meets = False  # whether the best model so far is feasible
        self.temperature = 1.0
        self._micro_batches = count()  # their numbers in the current step
        self.summary = None  # set by `descend.evaluate`, for the model card
        self._began, self._earlier = time.monotonic(), 0.0

    def _ready(self) -> None:
        """Check the data and add the callbacks; the last part of the constructor."""
        if self.train_dataset is not None and has_length(self.train_dataset) and not len(self.train_dataset):
            raise InputError("train_dataset must hold at least one sample; got 0. Choose other samples.")
        data = {} if overriding(type(self), "get_train_dataloader") else {"training data": self.train_dataset}
        if not overriding(type(self), "get_eval_dataloader"):  # batches of a user's loader may need other samples
            own = self._evaluated(self.eval_dataset)
            data |= {f"{name} evaluation data".lstrip(): each for name, each in own.items()}
        self.objective.check_data(data, self.evaluation_collator())
        evaluates = IntervalStrategy(self.args.eval_strategy) != IntervalStrategy.NO
        for name, evaluated in self._evaluated(self.eval_dataset).items() if evaluates else ():
            self._refuse_few(name, evaluated)
        if self.args.calibrate and self.objective.has_logits and not self._calibrates:
            logger.warning(
                "calibrate needs one eval_dataset and evaluations in training (eval_strategy); one of them is missing. "
                "The classifier stays as it is trained, at temperature 1."
            )
        self.loss_is_scaled_for_ga = True
        if is_deepspeed_zero3_enabled():
            raise InputError(
                "ZeRO's stage 3 keeps parameters apart outside the modules' own calls, and every layer is read there. "
                "Choose stage 2, or FSDP2."
            )
        self.model_accepts_loss_kwargs = False  # `get_batch_samples` counts the targets
        if self.args.method == "neftune" and self.neftune_noise_alpha is None:
            self.neftune_noise_alpha = self._matched_alpha()
        self.add_callback(DualStep(self))
        # Transformers takes a metric for higher-is-better unless its name ends in loss.
        task = self.objective.task
        falls = {"violation", "merit"} | (set() if task.higher_is_better else {task.metric})
        chosen = (self.args.metric_for_best_model or "").removeprefix("eval_")
        names = [name for name in self._evaluated(self.eval_dataset) if name]
        measured = {*MEASURED, task.metric, *self.other_metrics}
        if chosen in measured and names:
            raise InputError(
                f"metric_for_best_model must say of which evaluation data it is: {names[0]}_{chosen}, for one; got "
                f"{chosen!r}."
            )
        if evaluates and self.compute_metrics is None and type(self).evaluate.__module__.startswith("descend."):
            self.args.check_best_metric({f"{name}_{metric}" for name in names for metric in measured} or measured)
        if chosen in falls | {f"{name}_{metric}" for name in names for metric in falls}:
            self.args.greater_is_better = False
        if self.args.patience is not None:
            self.add_callback(EarlyStopping(self.args.patience, self))

    def _matched_alpha(self) -> float | None:
        """NEFTune's α that matches the noise of evaluation on the training data; None without training data."""
        noise, data, sigma = self.objective.noise, self.train_dataset, self.sigma
        if data is None:
            return None
        rows: Any = data
        known = has_length(data) and "input_ids" in rows[0]
        if noise is None or noise.level == 0 or sigma is None or not known:
            raise InputError(
                "the method neftune matches a noise above 0 on tokenized training data of known length; got none. "
                "Give neftune_noise_alpha (--neftune-noise-alpha)."
            )
        lengths = batch_lengths(
            data,
            self.args.train_batch_size,
            grouped=self.args.train_sampling_strategy == "group_by_length",
            padded=not getattr(self, "padding_free", False),
        )
        return matched_alpha(noise.std(sigma), lengths, words_of(self.objective.model).embedding_dim)

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, Tensor | int | None]:
        """The micro-batches of a step, and the number of targets in them over all ranks."""
        self._micro_batches = count()
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self._idles and batches and self.accelerator.gradient_state.end_of_dataloader:
            batches[-1][IDLE] = True
        targets = sum(len(self.objective.task.target(batch)) for batch in batches if IDLE not in batch)
        if self.accelerator.num_processes == 1:
            return batches, targets
        return batches, self.accelerator.reduce(torch.tensor(targets, device=device))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """A micro-batch's part of the Lagrangian, w·(f_0 … f_L)."""
        idle = inputs.pop(IDLE, False)
        step, micro_batch = self.state.global_step, next(self._micro_batches)
        self.objective.begin(step, micro_batch)
        if self.layer_skip is not None:
            self.layer_skip.begin(step, self.state.max_steps, micro_batch)
        inner = self.dual.inner or self.layer_skip is not None
        exits = model(weights=self._weights, inner=inner, **inputs)
        # An idle rank computes too, because every rank must take part in the collectives.
        lagrangian = exits.lagrangian * 0 if idle else exits.lagrangian
        self.sums.add(exits, self._others(exits, inputs), idle=idle)
        total = exits.targets if num_items_in_batch is None else num_items_in_batch
        # Parallel training averages gradients over ranks; multiply by their number to get the sum.
        ranks = self.accelerator.num_processes
        share = ranks / total.clamp(min=1) if isinstance(total, Tensor) else ranks / max(total, 1)
        loss = lagrangian * share
        return (loss, exits.sums) if return_outputs else loss

    @property
    def _weights(self) -> list[float]:
        """w_0 … w_L of the next primal step."""
        if self.layer_skip is None:
            return self.dual.weights.tolist()
        return self.layer_skip.weights(self.state.global_step, self.state.max_steps)

    def _others(self, exits: ExitLosses, inputs: dict[str, Any]) -> Iterable[float]:
        """Other sums of a micro-batch for the logs, K numbers; they are looked at when the step ends."""
        return ()

    def _dual_step(self) -> None:
        """Take the dual step, unless a gradient scaler skipped the primal step."""
        if self.accelerator.optimizer_step_was_skipped or self._scale < self._scale_before:
            self.sums.skip()
            return
        device = self.args.device if self.accelerator.num_processes > 1 else "cpu"
        self._ascend(lambda: self.sums.take(device))

    def _ascend(self, move: Callable[[], Any]) -> None:
        """Move the multipliers; a non-finite result stops all ranks, because all use the same sums."""
        try:
            move()
        except NonFiniteLossError as error:
            raise NonFiniteLossError(f"step {self.state.global_step}: {error} {self._way_on()}") from None

    @property
    def _scale(self) -> float:
        """The gradient scaler's scale, which falls at a skipped step; Accelerate misses it with a fused optimizer."""
        scaler = self.accelerator.scaler
        return 1.0 if scaler is None else scaler.get_scale()

    def set_initial_training_values(self, args: TrainingArguments, dataloader: DataLoader) -> Any:
        """As in Transformers, but a loader without a batch is refused."""
        if has_length(dataloader) and not len(dataloader):
            raise InputError(
                "expected at least one batch to train on; the data loader has none. Give more samples, lower "
                "per_device_train_batch_size, or switch off dataloader_drop_last, which drops a batch that is not full."
            )
        return super().set_initial_training_values(args, dataloader)

    def get_train_dataloader(self) -> DataLoader:
        """Transformers' loader, changed so that each sample comes once per epoch.

        If the last samples of an epoch can't be divided evenly between ranks, Transformers repeats the first samples.
        Here the last micro-batches are shorter, and a rank without samples runs a micro-batch that is not counted.
        Streams, whose length is unknown, and ``batch_rebalance`` work as in Transformers.
        """
        with self._locating():
            loader = super().get_train_dataloader()
        shard = getattr(loader, "batch_sampler", None)
        if isinstance(shard, BatchSamplerShard) and type(shard.batch_sampler) is BatchSampler and shard.even_batches:
            share = Share(shard)
            self._idles = share.idles
            # Make Accelerate treat the batch sampler as one that shards itself.
            shard.batch_sampler, shard.batch_size, shard.split_batches = share, None, False
            shard.num_processes, shard.process_index = 1, 0
            shard.sampler = share.sampler  # resuming calls set_epoch on this attribute
        return loader

    @contextmanager
    def _locating(self) -> Iterator[None]:
        """Inside the ``with`` block the collator also notes where a language model's targets are.

        Batches that Accelerate cuts up after they are collated, such as those of a stream, are left as they are.
        """
        collate, task = self.data_collator, self.objective.task
        cuts = self.accelerator.dataloader_config.dispatch_batches or not has_length(self.train_dataset)
        if isinstance(task, NextToken) and not cuts:
            self.data_collator = task.locating(collate)
        try:
            yield
        finally:
            self.data_collator = collate

    def _other_logs(self, sums: Tensor) -> dict[str, float]:
        """Log entries from the sums of `_others` since the last log, (K,)."""
        return {}

    def _over_ranks(self, local: Tensor) -> Tensor:
        """A tensor summed over the ranks, on the host."""
        return self.accelerator.reduce(local.to(self.args.device)).cpu()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the dual's state and the layer losses to a training log."""
        if "loss" in logs:
            sums = self.sums.log(self._over_ranks)
            first, losses = sums.first, sums.means
            logs |= self._other_logs(sums.others)
            rows: dict[str, tuple[int, list[float]]] = {
                "loss": (first, losses.tolist()),
                "weight": (0, self._weights),
            }
            if self.dual.problem.constrained:
                rows["multiplier"] = 0, self.dual.multipliers.tolist()
                rows["slack"] = 1, self.dual.slack[1:].tolist()
                if not first:
                    rows["violation"] = 1, self.dual.problem.violations(losses)[1:].tolist()
                    if self.dual.warm and self.is_world_process_zero() and losses.isfinite().all():
                        for sentence in self._outlook.report(losses, self.dual.multipliers):
                            logger.warning(f"step {self.state.global_step}: {sentence}")
            for name, (start, values) in rows.items():
                if self.is_world_process_zero():
                    place: dict[str, Any] = {"step": self.state.global_step, "split": "train", "noise": self._level}
                    self.records.rows({name: values}, first=start, **place)
                logs |= {f"{name}/{layer}": value for layer, value in enumerate(values, start=start)}
        super().log(logs, start_time)


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
        **kwargs: Further arguments of `Trainer`: ``train_dataset``, ``eval_dataset``, ``processing_class``,
            ``compute_metrics``, ``callbacks``, ``optimizers`` …

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
        self._refuse(args, kwargs)
        if model is None:
            raise InputError("expected a model; got None.")
        r_drop = args.r_drop if args.method == "r-drop" else None
        self._constrain(Objective(model, task, self._noise(noise, args.seed), r_drop=r_drop), args)
        super().__init__(self.users_model, args, *others, **kwargs)
        self._ready()

    def columns(self) -> list[str] | None:
        """The fields of a sample that the model or the task reads."""
        return self.objective.sample_fields
