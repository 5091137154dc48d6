"""DescentTrainer: transformers' Trainer, the Lagrangian for its loss, and a dual step after each of its own.

`DescentMixin` is all of it; what else is derived from `Trainer` takes it up the same way.
"""

import inspect
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Sampler
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    IntervalStrategy,
    has_length,
    speed_metrics,
)

from descend.checkpoints import DAMAGED, damage, load_state, newest_whole, rotate, save_state, seal
from descend.config import DescentConfig
from descend.core import Outlook
from descend.errors import InputError, NonFiniteLossError
from descend.evaluation.layers import LayerLosses, measure
from descend.evaluation.satisfaction import Verdict, verdict
from descend.noise import GaussianNoise, Noise
from descend.objective import Objective, Task
from descend.records import PART, Records, aside, put

logger = logging.getLogger(__name__)

DUAL_FILE = "dual.safetensors"
STATE_FILE = "descent_{}.safetensors"  # of each process: its own noise, and its own losses since the last dual step
RECORDS_FILE = "records.jsonl"
FEASIBLE_FOLDER = "best_feasible"
GRADIENT = "the gradient"  # how a fault begins that is none of a loss
IDLE = "idle"  # marks a micro-batch that counts nothing


class DescentMixin(Trainer):
    """What a trainer of transformers, or one derived from it, becomes under layerwise descent constraints.

    The loss is the Lagrangian, eq. (5); after every optimizer step the multipliers take theirs, Algorithm 1. A loss is
    a sum over targets divided by their number in the whole step, over micro-batches and ranks.
    """

    args: DescentConfig
    objective: Objective

    @staticmethod
    def _noise(noise: Noise | float | None, seed: int) -> Noise | None:
        return GaussianNoise(noise, seed=seed) if isinstance(noise, int | float) else noise

    @staticmethod
    def _refuse(args: DescentConfig, kwargs: dict[str, Any]) -> None:
        """What the loop can't do, before any work is done."""
        if kwargs.get("model_init") is not None:
            raise InputError("expected a model; model_init, which makes one for each trial, can't be used here.")
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

    def _constrain(self, objective: Objective, args: DescentConfig) -> None:
        """Give the trainer its problem, its multipliers and its records."""
        self.objective = objective
        self.dual = args.primal_dual(objective.model.depth)
        self.records = Records(args.folder / RECORDS_FILE, args.folder.name)
        self.verdict: Verdict | None = None
        self._outlook = Outlook(self.dual.problem)
        # Σ loss and Σ count of every exit.
        self._since_log = torch.zeros(2, objective.model.depth + 1, dtype=torch.float64)
        self._in_step = torch.zeros_like(self._since_log)  # of the step that is being taken alone
        self._fault: str | None = None  # what went wrong on this rank in the step that is being taken
        self._scale_before = 1.0
        self._idles = False  # whether this rank has no sample left in the last micro-batch of an epoch
        self._best = float("inf")
        self._began, self._earlier = time.monotonic(), 0.0
        self._aside: Path | None = None  # where a checkpoint is being written

    def _ready(self) -> None:
        """Check the data, and listen to the loop."""
        for data in (self.train_dataset, *self._evaluated(self.eval_dataset).values()):
            self.objective.task.check(data, self.objective.model.limits)
        self.loss_is_scaled_for_ga = True
        if is_deepspeed_zero3_enabled():
            raise InputError(
                "ZeRO's stage 3 keeps parameters apart outside the modules' own calls, and every layer is read there. "
                "Choose stage 2, or FSDP2."
            )
        self.model_accepts_loss_kwargs = False  # targets are counted here, once
        self.add_callback(_DualStep(self))

    # The step.

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, Tensor | int | None]:
        """The micro-batches of a step, and the number of targets in them over all ranks."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self._idles and batches and self.accelerator.gradient_state.end_of_dataloader:
            batches[-1][IDLE] = True
        count = sum(len(self.objective.task.target(batch)) for batch in batches if IDLE not in batch)
        return batches, self.accelerator.reduce(torch.tensor(count, device=device))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """A micro-batch's share of the Lagrangian, w·(f_0 … f_L)."""
        inner = self.args.method == "constrained" and self.dual.warm
        idle = inputs.pop(IDLE, False)
        lagrangian, sums, count, first = model(weights=self.dual.weights.tolist(), inner=inner, **inputs)
        # On the host, where there is double precision on every machine.
        found = torch.tensor([sums, [float(count)] * len(sums)], dtype=torch.float64)
        if idle:
            # It is computed all the same: other ranks wait for this one's part in every collective.
            found, lagrangian = torch.zeros_like(found), lagrangian * 0
        if not found.isfinite().all():
            # Where the step would be taken all ranks stop together: here others may still be computing.
            layers = [first + int(layer) for layer in (~found[0].isfinite()).nonzero()]
            self._fault = self._fault or f"the loss of layer {layers} is not finite ({list(sums)})"
            found = torch.zeros_like(found)
        if not first:
            # Ranks add their sums where the process group can.
            device = self.args.device if self.accelerator.num_processes > 1 else "cpu"
            seen = found[1, 0].item()
            self.dual.observe((found[0] / max(seen, 1)).to(device), seen)
        self._in_step[:, first:] += found
        total = count if num_items_in_batch is None else num_items_in_batch
        # Parallel training averages gradients over ranks; the sum over ranks is what a global mean needs.
        loss = lagrangian * (self.accelerator.num_processes / torch.as_tensor(total).clamp(min=1))
        return (loss, sums) if return_outputs else loss

    def _dual_step(self) -> None:
        """The multipliers' step after the primal one, which a gradient scaler may have skipped: nothing has moved."""
        if self.accelerator.optimizer_step_was_skipped or self._scale < self._scale_before:
            self.dual.skip()
            self._in_step.zero_()
            return
        if self._in_step[1, 0] and self._since_log[1, 0] < self._since_log[1, -1]:
            self._since_log.zero_()  # warm-up is over: layers are compared over the same steps
        self._since_log += self._in_step
        self._in_step.zero_()
        self.dual.step()

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The library's, and the last look before a step: one that went wrong on any rank is not taken on any."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        fault, self._fault = self._fault, None
        # A gradient scaler looks at the gradients itself, and skips the step.
        if fault is None and norm is not None and self.accelerator.scaler is None and not math.isfinite(_number(norm)):
            fault = f"{GRADIENT} is not finite (its norm is {_number(norm)})"
        failed = self.accelerator.reduce(torch.tensor(float(fault is not None), device=self.args.device))
        if failed:
            self._stop(model, fault)
        return norm

    def _stop(self, model: nn.Module, fault: str | None) -> None:
        """End training on all ranks in the state before the step, which is saved."""
        self.dual.skip()
        self._in_step.zero_()
        rank = f"process {self.args.process_index}: " if self.args.world_size > 1 else ""
        said = [f"{rank}{fault}; samples {', '.join(map(str, self._samples())) or 'unknown'}"] if fault else []
        if self.args.world_size > 1:
            said = gather_object(said)
        # What is wrong with one rank's loss is wrong with every rank's gradient.
        said = [each for each in said if GRADIENT not in each] or said
        step, kept = self.state.global_step, "."
        checkpoint = self.args.folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        stopped = checkpoint.with_name(f"stopped-{step}")
        if step and self.args.save_strategy != "no" and not checkpoint.exists():
            self._save_checkpoint(model, None)
            # Not among the checkpoints: where training has diverged, an earlier one is the better start.
            if self.args.should_save:
                shutil.rmtree(stopped, ignore_errors=True)
                checkpoint.rename(stopped)
            kept = f", and the state before it is saved in {stopped.name}."
        raise NonFiniteLossError(
            f"step {step + 1}: {'; '.join(said)}. No parameter has moved in this step{kept} Look at these samples, or "
            "lower learning_rate or dual_lr and train into another folder; --resume goes on from the last checkpoint."
        )

    def _samples(self) -> list[int]:
        """The numbers of the samples of this step on this rank; none where the data are a stream."""
        loader: Any = self.callback_handler.train_dataloader
        batches = getattr(loader, "batch_sampler", None)
        if batches is None or not has_length(loader):
            return []
        size = self.args.gradient_accumulation_steps
        epoch, step = divmod(self.state.global_step, math.ceil(len(loader) / size))
        sampler: Any = getattr(batches, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return [number for batch in islice(batches, step * size, (step + 1) * size) for number in batch]

    @property
    def _scale(self) -> float:
        """The gradient scaler's, which falls where it skips a step: a fused optimizer doesn't tell Accelerate."""
        scaler = self.accelerator.scaler
        return 1.0 if scaler is None else scaler.get_scale()

    def get_train_dataloader(self) -> DataLoader:
        """The library's loader, in which no sample of an epoch comes twice.

        Where the ranks can't share an epoch's last samples evenly, the library fills up with the first ones. Here the
        last micro-batches are short, and a rank that has none left runs one that counts nothing. A stream, whose
        length is not known, and ``batch_rebalance`` are filled up as ever.
        """
        loader = super().get_train_dataloader()
        shard = getattr(loader, "batch_sampler", None)
        if isinstance(shard, BatchSamplerShard) and type(shard.batch_sampler) is BatchSampler and shard.even_batches:
            share = _Share(shard)
            self._idles = share.idles
            # As the library hands over to a sampler that knows of ranks itself.
            shard.batch_sampler, shard.batch_size, shard.split_batches = share, None, False
            shard.num_processes, shard.process_index = 1, 0
            shard.sampler = share.sampler  # where a resumed run looks for what must know its epoch
        return loader

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """The library's; one that groups by length is made to depend on seed and epoch alone, as its others do."""
        sampler = super()._get_train_sampler(train_dataset)
        if isinstance(sampler, LengthGroupedSampler):
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return _LengthGrouped(sampler.batch_size * self.args.world_size, sampler.lengths, seed)
        return sampler

    def _run_epoch(self, **kwargs: Any) -> None:  # type: ignore[override]
        """An epoch, unless the checkpoint is that of the last step: the library's loop would take one more."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(**kwargs)

    # Measuring.

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Every layer's loss and metric at the training noise, and the verdict on the constraints.

        Args:
            eval_dataset: Samples, several data sets by name, or the name of one of the trainer's; all of the trainer's
                unless given.
            ignore_keys: Not used: predictions have no keys.
            metric_key_prefix: Of the metrics' names.

        Returns:
            The last layer's loss and metric, the worst violation, whether the constraints hold, and what
            ``compute_metrics`` makes of the last layer's predictions.
        """
        own = eval_dataset is None
        if isinstance(eval_dataset, str):
            known = self._evaluated(self.eval_dataset)
            if eval_dataset not in known:
                raise InputError(f"eval_dataset must be one of {', '.join(known)}; got {eval_dataset!r}.")
            eval_dataset = known[eval_dataset]
        datasets = self._evaluated(self.eval_dataset if own else eval_dataset)
        if not datasets:
            raise InputError("expected an eval_dataset, of the trainer or of this call; got none.")
        metrics: dict[str, float] = {}
        losses: list[float] = []
        verdicts: list[Verdict] = []
        for name, dataset in datasets.items():
            began = time.time()
            layers = self._measure(dataset)
            verdicts.append(verdict(self.args.problem(self.objective.model.depth), layers))
            prefix = f"{metric_key_prefix}_{name}" if name else metric_key_prefix
            found = self._told(layers, verdicts[-1], prefix)
            found |= speed_metrics(
                prefix, began, num_samples=len(dataset) if has_length(dataset) else len(layers.losses)
            )
            self.log(found)
            metrics |= found
            losses.append(found[f"{prefix}_loss"])
            # Other data than the trainer's own leave no trace in what a run is known and chosen by.
            if own and self.is_world_process_zero():
                self.records.rows(
                    {"loss": layers.losses.mean(0).tolist(), self.objective.task.metric: layers.metrics},
                    step=self.state.global_step,
                    split=f"validation {name}".rstrip(),
                    noise=self._level,
                )
        self.verdict = max(verdicts, key=lambda one: one.worst)
        if own and all(one.feasible for one in verdicts):
            self._keep_best_feasible(sum(losses) / len(losses))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _told(self, layers: LayerLosses, judged: Verdict, prefix: str) -> dict[str, float]:
        metrics = {
            f"{prefix}_loss": layers.losses[:, -1].mean().item(),
            f"{prefix}_{self.objective.task.metric}": layers.metrics[-1],
            f"{prefix}_violation": judged.worst,
            f"{prefix}_feasible": float(judged.feasible),
        }
        if layers.predictions is not None and self.compute_metrics is not None:
            predictions, targets = layers.predictions
            if self.preprocess_logits_for_metrics is not None:
                predictions = self.preprocess_logits_for_metrics(predictions, targets)
            losses = layers.losses[:, -1].numpy() if "loss" in (self.args.include_for_metrics or ()) else None
            theirs = self.compute_metrics(EvalPrediction(predictions.numpy(), targets.numpy(), losses=losses))
            for name, value in theirs.items():
                metrics[name if name.startswith(f"{prefix}_") else f"{prefix}_{name}"] = value
        return metrics

    def _keep_best_feasible(self, loss: float) -> None:
        """Keep a model that meets the constraints on all the trainer's evaluation data, if none was better."""
        if self.args.method == "constrained" and loss < self._best:
            self._best = loss
            kept = self.args.folder / FEASIBLE_FOLDER
            with aside(kept) if self.args.should_save else nullcontext(kept) as folder:
                self.save_pretrained(folder)
                self.save_dual(folder / DUAL_FILE)

    @staticmethod
    def _evaluated(dataset: Any) -> dict[str, Any]:
        """Data sets by name, a single one by none."""
        return dataset if isinstance(dataset, dict) else {} if dataset is None else {"": dataset}

    def _measure(self, dataset: Any) -> LayerLosses:
        noise = self.objective.noise
        if isinstance(dataset, Dataset):
            dataset = self._remove_unused_columns(dataset, "evaluation")
        own = noise.at(noise.level, seed=0, sigma=self.sigma or self._sigma(dataset)) if noise else None
        return self._seen(
            lambda: measure(
                self.objective.model,
                self.objective.task,
                dataset,
                own,
                batch_size=self.args.eval_batch_size,
                collate=self._collate_evaluation,
                device=self.args.device,
                keep_predictions=self.compute_metrics is not None,
            )
        )

    def _seen(self, look: Callable[[], Any]) -> Any:
        """What ``look`` finds in the model outside its forward pass, for which FSDP2 must gather parameters too."""
        if not hasattr(self.objective, "reshard"):
            return look()
        from torch.distributed.fsdp import register_fsdp_forward_method

        if "aside" not in vars(self.objective):
            register_fsdp_forward_method(self.objective, "aside")
        found: list[Any] = []  # what a forward pass returns might be rounded
        self.objective.aside(lambda: found.append(look()))
        self.objective.reshard()  # type: ignore[operator]
        return found[0]

    @property
    def _collate_evaluation(self) -> Any:
        """How samples become a batch where they are measured."""
        return self._get_collator_with_removed_columns(self.data_collator, "evaluation")

    @property
    def sigma(self) -> float | None:
        """σ_x: the noise's own, or that of the training data as the model embeds them now.

        None without noise, or without data that can be looked through.
        """
        noise = self.objective.noise
        if noise is None or noise.sigma is not None:
            return noise.sigma if noise else None
        known = (self.train_dataset, *self._evaluated(self.eval_dataset).values())
        data = next((each for each in known if has_length(each)), None)
        return None if data is None else self._sigma(data)

    def _sigma(self, dataset: Any) -> float:
        return self._seen(lambda: self.objective.task.sigma(self.objective.model.get_input_embeddings(), dataset))

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The mean loss, the predictions and the targets of a batch, clean, at the last layer: for `predict`."""
        task, batch = self.objective.task, self._prepare_inputs(inputs)
        with torch.no_grad():
            prediction = self._seen(lambda: list(self.objective.model.predictions(task.inputs(batch)))[-1])
        try:
            target = task.target(batch)
        except KeyError:  # what is not labelled can be predicted all the same
            target = None
        loss = None if target is None else task.losses(prediction, target).mean()
        return loss, None if prediction_loss_only else prediction, target

    @property
    def _level(self) -> float:
        return self.objective.noise.level if self.objective.noise else 0.0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the dual's state and the layer losses to a training log."""
        if "loss" in logs:
            totals = self.accelerator.reduce(self._since_log.to(self.args.device)).cpu()
            self._since_log = torch.zeros_like(self._since_log)
            first = int((totals[1] == 0).sum())  # of the exits that were looked at since
            losses = totals[0, first:] / totals[1, first:]
            found: dict[str, tuple[int, list[float]]] = {
                "loss": (first, losses.tolist()),
                "weight": (0, self.dual.weights.tolist()),
            }
            if self.args.method == "constrained":
                found["multiplier"] = 0, [self.dual.cap_multiplier.item(), *self.dual.multipliers.tolist()]
                found["slack"] = 1, self.dual.slack.tolist()
                if not first:
                    found["violation"] = 1, self.dual.problem.violations(losses).tolist()
                    if self.dual.warm and self.is_world_process_zero() and losses.isfinite().all():
                        for sentence in self._outlook.report(
                            losses, self.dual.multipliers, warmed=self.dual.warmup > 0
                        ):
                            logger.warning(f"step {self.state.global_step}: {sentence}")
            for name, (start, values) in found.items():
                if self.is_world_process_zero():
                    place: dict[str, Any] = {"step": self.state.global_step, "split": "train", "noise": self._level}
                    self.records.rows({name: values}, first=start, **place)
                logs |= {f"{name}/{layer}": value for layer, value in enumerate(values, start=start)}
        super().log(logs, start_time)

    # Saving and going on.

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Train, as the library's Trainer does.

        Args:
            resume_from_checkpoint: A checkpoint to go on from, or True for the newest that is whole.
            **kwargs: As the library's.

        Raises:
            InputError: If the checkpoint is damaged, or there is none.
            SaveError: If a checkpoint or the records can't be written; earlier checkpoints are whole.
        """
        checkpoint = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = self.last_checkpoint()
            if checkpoint is None:
                raise InputError(f"{self.args.folder} has no whole checkpoint to go on from.")
        elif checkpoint is not None:
            _check(checkpoint)
        try:
            found = super().train(checkpoint, **kwargs)
        except UnpicklingError as error:
            raise InputError(f"{checkpoint} holds a pickle that is more than tensors; it is not loaded.") from error
        if self.args.should_save:  # a run that was killed after its last checkpoint has one too many
            rotate(self.args.folder, self.args.save_total_limit, self.state.best_model_checkpoint)
        return found

    def last_checkpoint(self) -> str | None:
        """The newest checkpoint of the run that is whole; damaged ones after it are named, and put aside."""
        found: list[Any] = [None]
        if self.is_world_process_zero():
            found[0], damaged = newest_whole(self.args.folder)
            for checkpoint, fault in damaged.items():
                kept = checkpoint.with_name(DAMAGED + checkpoint.name)
                shutil.rmtree(kept, ignore_errors=True)
                checkpoint.rename(kept)
                logger.warning("%s is damaged: %s. It is now %s and is not used.", checkpoint, fault, kept.name)
        broadcast_object_list(found)
        return None if found[0] is None else str(found[0])

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._aside is None else str(self._aside)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """The library's checkpoint, written aside: its folder appears whole, with a manifest, or not at all."""
        run, wait = Path(self._get_output_dir(trial)), self.accelerator.wait_for_everyone
        checkpoint = run / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with aside(checkpoint) if self.args.should_save else nullcontext():
            wait()  # for the folder
            self._aside = run / PART
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._aside = None
            part = run / PART / checkpoint.name
            if self.state.best_model_checkpoint and self.state.best_global_step is not None:
                # Where it stands now: not where it was written, nor where an earlier command had its folder.
                self.state.best_model_checkpoint = str(run / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}")
            wait()  # for what each process has of its own
            if self.args.should_save:
                self.state.save_to_json(str(part / TRAINER_STATE_NAME))
                self.records.flush()
                seal(part)
        wait()  # for its name
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))
        if self.args.should_save:
            rotate(run, self.args.save_total_limit, self.state.best_model_checkpoint)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._aside is None:  # not before it has its name
            super()._push_from_checkpoint(checkpoint_folder)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Save the model by itself, as `from_pretrained` reads it, not the objective around it."""
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.folder)
        if state_dict is not None:
            (place,) = (name for name, module in self.objective.named_modules() if module is self.objective.model.saved)
            state_dict = {name.removeprefix(f"{place}."): value for name, value in state_dict.items()}
        self.save_pretrained(folder, state_dict)  # without the library's training_args.bin, a pickle

    def save_pretrained(self, folder: Path, state_dict: dict | None = None) -> None:
        """Write the model, and the tokenizer if there is one, as `from_pretrained` reads them.

        Where each process holds a shard, all must call this; one writes.
        """
        if state_dict is None and hasattr(self.objective, "reshard"):
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

            whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
            state_dict = get_model_state_dict(self.objective.model.saved, options=whole)
        if not self.args.should_save:
            return
        self.objective.model.saved.save_pretrained(folder, state_dict=state_dict)
        tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, self.objective.model.saved)
        step = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_text())["global_step"]
        if self.is_world_process_zero():
            self.records.truncate_after(step)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse the weights of another model, instead of a warning; a tied weight is stored once."""
        saved = self.objective.model.saved
        left_out = {*(getattr(saved, "all_tied_weights_keys", None) or ()), *(saved._keys_to_ignore_on_save or ())}
        strange = sorted({*load_result.missing_keys, *load_result.unexpected_keys} - left_out)
        if strange:
            raise InputError(f"the checkpoint is that of another model: they do not share {', '.join(strange[:3])}.")

    def _load_best_model(self) -> None:
        """The best model, and the multipliers that it was trained with."""
        best = str(self.state.best_model_checkpoint)
        _check(best)
        super()._load_from_checkpoint(best, self.objective.model.saved)
        self.dual.load_state_dict(self._descent_state(best)["dual"])

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        super()._save_optimizer_and_scheduler(output_dir)
        state: dict[str, Any] = {
            "dual": self.dual.state_dict(),
            "since_log": self._since_log.cpu(),
            "best": self._best,
            "seconds": self.seconds,
            "outlook": self._outlook.state_dict(),
            "processes": self.args.world_size,
        }
        for name, drawn in self._drawn.items():
            state[name] = drawn.state_dict()
        save_state(Path(output_dir) / STATE_FILE.format(self.args.process_index), state)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state = self._descent_state(checkpoint)
        self.dual.load_state_dict(state["dual"])
        self._since_log = state["since_log"]
        self._best = state["best"]
        self._outlook.load_state_dict(state["outlook"])
        self._began, self._earlier = time.monotonic(), state["seconds"]
        for name, drawn in self._drawn.items():
            if name not in state:
                raise InputError(
                    f"{checkpoint} is that of a run without {name}; go on with the settings that saved it."
                )
            drawn.load_state_dict(state[name])

    @property
    def _drawn(self) -> dict[str, Any]:
        """What draws random numbers of its own, which a resumed run goes on with."""
        found = {"noise": self.objective.noise, "sample": self.objective.sample}
        return {name: one for name, one in found.items() if one is not None}

    def _descent_state(self, checkpoint: str) -> dict[str, Any]:
        file = Path(checkpoint) / STATE_FILE.format(self.args.process_index)
        if not file.is_file():
            raise InputError(f"{checkpoint} is that of fewer processes; go on with as many as saved it.")
        state = load_state(file)
        if state["processes"] != self.args.world_size:
            raise InputError(
                f"{checkpoint} is that of {state['processes']} processes, each with noise and losses of its own; go on "
                f"with as many. Got {self.args.world_size}."
            )
        return state

    @property
    def seconds(self) -> float:
        """Seconds since training began, those before an interruption included."""
        return self._earlier + time.monotonic() - self._began

    def save_dual(self, path: Path) -> None:
        """Write λ, the cap's multiplier, the slack, and σ_x as the model embeds the data now; as `save_pretrained`."""
        tensors = {
            "multipliers": self.dual.multipliers,
            "cap_multiplier": self.dual.cap_multiplier,
            "slack": self.dual.slack,
        }
        sigma = self.sigma
        if sigma is not None:
            tensors["sigma"] = torch.tensor(sigma, dtype=torch.float64)
        if self.args.should_save:
            put(path, lambda part: save_file(tensors, part))


def _check(checkpoint: str) -> None:
    if fault := damage(Path(checkpoint)):
        raise InputError(f"{checkpoint} is damaged: {fault}. Go on from another checkpoint.")


class DescentTrainer(DescentMixin):
    """transformers' `Trainer` under layerwise descent constraints.

    λ, slack, weights, layer losses and violations go where logs go, and into ``records.jsonl`` of the output folder.
    `evaluate` measures every layer on the evaluation set, at the training noise, and keeps the best model that meets
    the constraints there in ``best_feasible``.

    Args:
        model: A `LayeredModel`, or a classifier of the library's, which stays what is trained and saved.
        args: A `DescentConfig`; transformers' own `TrainingArguments` for the default problem.
        *others: As `Trainer` takes them.
        task: The data's loss and metric; of a classifier its own unless given.
        noise: Noise on the inputs; a number is the level γ of Gaussian noise. None for none.
        **kwargs: As `Trainer` takes them: ``train_dataset``, ``eval_dataset``, ``processing_class``,
            ``compute_metrics``, ``callbacks``, ``optimizers`` …

    Raises:
        InputError: If transformers would spread a batch over several GPUs of one process, or the model, the arguments
            or a sample can't be used.
        NonFiniteLossError: In training, before the step, if a layer's loss is NaN or infinite.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments | None = None,
        *others: Any,
        task: Task | None = None,
        noise: Noise | float | None = None,
        **kwargs: Any,
    ):
        if model is None:
            raise InputError("expected a model; got None.")
        args = DescentConfig.of(args)
        self._refuse(args, kwargs)
        self._constrain(Objective(model, task, self._noise(noise, args.seed)), args)
        super().__init__(self.objective, args, *others, **kwargs)
        self._ready()

    def _set_signature_columns_if_needed(self) -> None:
        """A sample's fields are those that the network inside the objective takes, its class and its group."""
        if self._signature_columns is None:
            taken = inspect.signature(self.objective.model.library.forward).parameters
            self._signature_columns: Any = [*taken, "label", "label_ids", "labels", "group"]


class _Share(BatchSampler):
    """One rank's micro-batches: of every R·B samples, B on each of R ranks; the last ones may be fewer.

    Args:
        shard: What the library would deal out an epoch by.
    """

    sampler: Sampler  # accelerate's and torch's loaders look for it here

    def __init__(self, shard: BatchSamplerShard):
        ranks, whole = shard.num_processes, shard.batch_sampler
        size = whole.batch_size // ranks if shard.split_batches else whole.batch_size
        super().__init__(whole.sampler, size * ranks, whole.drop_last)
        self._own = slice(size * shard.process_index, size * (shard.process_index + 1))

    @property
    def idles(self) -> bool:
        """Whether none of an epoch's last samples are this rank's."""
        last = len(self.sampler) % self.batch_size  # type: ignore[arg-type]
        return not self.drop_last and 0 < last <= self._own.start

    def __iter__(self) -> Iterator[list[int]]:
        # A loader must have something to load: a rank that idles gets a sample that another one counts.
        return (samples[self._own] or samples[:1] for samples in super().__iter__())


def _number(norm: Any) -> float:
    """A norm as a number; FSDP2 gives its parts."""
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


class _LengthGrouped(LengthGroupedSampler):
    """Samples of like length together, in an order that a resumed run, or another method, meets again.

    The library's draws from the global generator, where dropout does too.
    """

    def __init__(self, batch_size: int, lengths: list[int], seed: int):
        super().__init__(batch_size, lengths=lengths)
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.generator = torch.Generator().manual_seed(self.seed * 8191 + epoch)


class _DualStep(TrainerCallback):
    """Where the trainer's loop tells the dual that a step, or an epoch, is over."""

    def __init__(self, trainer: DescentMixin):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # Only now is it known how many steps an epoch has, and the run.
        loader = kwargs["train_dataloader"]
        # A stream has no epochs.
        batches = len(loader) if has_length(loader) else state.max_steps * args.gradient_accumulation_steps
        self.steps = math.ceil(batches / args.gradient_accumulation_steps)
        self.trainer.dual.warmup = args.warmup(state.max_steps)
        self.postponed = False
        if state.global_step:
            args.eval_on_start = False  # it was done where the run began
        elif state.is_world_process_zero:  # what an earlier run left in the folder
            self.trainer.records.truncate_after(-1)
            shutil.rmtree(args.folder / FEASIBLE_FOLDER, ignore_errors=True)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # An epoch is over where the next begins: a checkpoint of its last step goes on alike, an epoch that was
        # interrupted is not over, and the slack after the very last step stays for the record.
        if state.global_step and state.global_step % self.steps == 0:
            self.trainer.dual.end_epoch()

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer._scale_before = self.trainer._scale

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer._dual_step()
        # What is measured where an epoch ends belongs into the checkpoint of its last step: a resumed run would not
        # take it up.
        measured = IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy)
        if control.should_save and measured and state.global_step % self.steps == 0:
            control.should_save, self.postponed = False, True

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.postponed:
            control.should_save, self.postponed = True, False
