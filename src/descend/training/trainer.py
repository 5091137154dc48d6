"""DescentTrainer: Transformers' Trainer with the Lagrangian as its loss and a dual step after each primal step.

`DescentMixin` implements it for any trainer that is derived from `Trainer`: thin overrides of its public methods, which
call the parts of a run, `Step`, `Loader`, `Checkpoints`, `Measurer` and `Selection`. Those of private
methods are in ``hf_hooks``.
"""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput, IntervalStrategy, has_length, speed_metrics
from transformers.utils import is_datasets_available

from descend.core import DescentProblem, LossSums, PrimalDual
from descend.errors import InputError, refusing
from descend.evaluation.calibration import TEMPERATURES
from descend.evaluation.layers import LayerLosses, WatchRows, few
from descend.methods import CLASSES, Method
from descend.models import changed, check_savable, evaluating
from descend.noise import GaussianNoise, Noise, StateNoise
from descend.objective import Objective
from descend.results import (
    CARD_FILE,
    DUAL_FILE,
    FEASIBLE_FOLDER,
    RECORDS_FILE,
    TRAINED_KEY,
    Records,
    Summary,
    Trained,
    Verdict,
    atomic_folder,
    forget_results,
    remove,
    write_card,
)
from descend.tasks import Task
from descend.tiles import TargetSample
from descend.training.callback import EarlyStopping
from descend.training.checkpoints import Checkpoints, rotate, step_of
from descend.training.checks import check_selection, overriding, try_metrics
from descend.training.config import MEASURED, DescentArguments, DescentConfig
from descend.training.exits import check_optimizer, fit_own_exits, give_own_exits, set_head_rate
from descend.training.hf_hooks import TrainerHooks, refuse_arguments
from descend.training.loader import Loader
from descend.training.measuring import Measurer, Predictions, size_of
from descend.training.outlook import Outlook
from descend.training.ranks import Ranks
from descend.training.saving import card, gathered, write_dual, write_model
from descend.training.selection import Selection
from descend.training.step import Step

if is_datasets_available():
    import datasets

logger = logging.getLogger(__name__)

CAP_MARGIN = 1.1
"""The cap that α takes by itself, in first losses: those of other samples differ by some percent."""

MOST_FIRST = 256
"""Training samples, taken evenly, on which the first losses are measured."""


class DescentMixin(TrainerHooks):
    """Adds layerwise descent constraints to Transformers' `Trainer`, or to a trainer derived from it."""

    other_sums = 0
    """K, the number of further sums in a batch's `LossSums`."""
    other_metrics: tuple[str, ...] = ()
    """Further metrics of an evaluation."""
    temperature = 1.0
    """By which `calibrate` has divided a classifier's logits."""
    summary: Summary | None = None
    """Set by `descend.evaluate`, for the model card."""

    # --- the parts of a run

    def _constrain(
        self,
        args: DescentArguments,
        model: nn.Module,
        task: Task | None,
        noise: Noise | float | None,
        sample: TargetSample | None = None,
    ) -> None:
        """Set up the objective, which the accelerator prepares in place of the model."""
        noise = GaussianNoise(noise, seed=args.seed) if isinstance(noise, int | float) else noise
        if isinstance(noise, StateNoise) and args.gradient_checkpointing:
            raise InputError(
                "noise between layers and gradient_checkpointing do not go together: layers are computed again without "
                "the noise. Leave one of them out."
            )
        self.objective = Objective(model, task, noise, sample)
        users = self.objective.model.saved
        if args.gradient_checkpointing and not hasattr(users, "gradient_checkpointing_enable"):
            raise InputError(
                "activation_checkpointing needs a model with gradient_checkpointing_enable(), as those of Transformers "
                f"have; got a {type(users).__name__}. Leave it out, or define that method."
            )
        self._exits_are_new = give_own_exits(self.objective, args)
        # A non-finite loss ends training, so the filter is useless, and it synchronizes with the GPU twice per batch.
        args.logging_nan_inf_filter = False
        if self.objective.sample_fields is None:
            args.remove_unused_columns = False

    def _ready(self) -> None:
        """Check the data, and set up the parts of the run; the last part of the constructor."""
        args, objective = self.args, self.objective
        depth, first = objective.model.depth, objective.model.first_layer
        dual = args.primal_dual(depth, first)
        self.ranks = Ranks(args)
        self.measurer = Measurer(objective, args, self.on_device, self.compute_loss_context_manager)
        self._check_data()
        further = self.compute_metrics is not None or bool(overriding(type(self), "evaluate"))
        sets = self.evaluated(self.eval_dataset)
        check_selection(args, objective.task, sets, self.measured, evaluates=self.evaluates, further=further)
        if args.calibrate and self.measurer.tempers and not self._calibrates:
            logger.warning(
                "calibrate needs one eval_dataset and evaluations in training (eval_strategy); one of them is missing. "
                "The classifier stays as it is trained, at temperature 1."
            )
        check_optimizer(objective, self.optimizer)
        loads = bool(overriding(type(self), "get_train_dataloader"))
        if self._exits_are_new and not loads:
            fit_own_exits(objective, self.train_dataset, self.measurer.batches(self.evaluation_collator()))
        self.loss_is_scaled_for_ga = True
        self.model_accepts_loss_kwargs = False  # `get_batch_samples` counts the targets
        if args.measures_cap and self.train_dataset is not None:
            self._measure_cap(dual.problem, loads)
            dual = args.primal_dual(depth, first)
        method = CLASSES[args.method](args)
        self.records = Records(args.folder / RECORDS_FILE, args.folder.name)
        self.step = Step(objective, method, dual, self.accelerator, self.ranks, args.folder, self.other_sums)
        self.loader = Loader(objective.task, args, self.accelerator, self.ranks)
        constraints = args.problem(depth, first)
        self.selection = Selection(args, self.ranks, objective.task, method, dual, constraints, sets)
        self.checkpoints = Checkpoints(args, self.ranks, [self.step, self.selection])
        method.attach(self)
        problem = dual.problem
        if problem.alpha and not problem.stop_gradient and problem.cap is None and self.ranks.is_main:
            logger.warning(
                "alpha through both sides (stop_gradient off) without a cap pays each layer but the last for a higher "
                f"loss, and nothing bounds that of layer {problem.first}. Give a cap, such as loss/{problem.first} of "
                "the first log, or leave stop_gradient out."
            )
        if args.after is not None and not method.constrained and self.ranks.is_main:
            logger.warning(
                f"after {args.after} is only what the model is judged by: the method {args.method} does not train for "
                "it, and its objective is not the loss of that layer. Choose method constrained to train for it."
            )
        self.add_callback(self.step)
        if args.patience is not None:
            self.add_callback(EarlyStopping(args.patience, self.selection))

    def _check_data(self) -> None:
        """Run a few samples of each data set through the objective."""
        if self.train_dataset is not None and has_length(self.train_dataset) and not len(self.train_dataset):
            raise InputError("train_dataset must hold at least one sample; got 0. Choose other samples.")
        data = {} if overriding(type(self), "get_train_dataloader") else {"training data": self.train_dataset}
        if not overriding(type(self), "get_eval_dataloader"):  # batches of a user's loader may need other samples
            evaluated = self.evaluated(self.eval_dataset)
            data |= {f"{name} evaluation data".lstrip(): each for name, each in evaluated.items()}
        self.objective.check_data(data, self.evaluation_collator(), noise=self.objective.noise is not None)

    def _measure_cap(self, problem: DescentProblem, loads: bool) -> None:
        """Set the cap of α: a tenth above the first loss of the exit that it bounds, on some training samples.

        That of streams, of samples behind a loader of the user's, and of a model that is sharded or not yet there is
        not measured, and there is no cap.
        """
        data: Any = self.train_dataset
        known = has_length(data) and hasattr(data, "__getitem__") and not loads
        elsewhere = self.is_fsdp_enabled or self.is_deepspeed_enabled or hasattr(self.objective, "reshard")
        value = 0.0
        if known and not elsewhere and not any(each.is_meta for each in self.objective.parameters()):
            batches = self.measurer.batches(self.evaluation_collator())
            with evaluating(self.objective):
                layers = self._measure(batches.loader(few(data, MOST_FIRST)))
            value = CAP_MARGIN * layers.losses.mean(0)[problem.cap_layer].item()
        if 0 < value < math.inf:
            self.args.take_cap(float(f"{self.ranks.broadcast(value):.6g}"))
        elif self.ranks.is_main:  # unknown; of a loss that is no number, the first step says so
            logger.warning(
                "alpha alone takes its cap from the first losses, which can't be measured here before training. "
                "Without one no gradient flows through a bound, and later layers may have no room left. Give a "
                f"cap (--cap), such as loss/{problem.first} of the first log, and stop_gradient off."
            )

    def begin_run(self) -> None:
        """Try the metrics, and begin a new run in the folder; multipliers keep their state."""
        if self.compute_metrics is not None and self.evaluates and not overriding(type(self), "evaluate"):
            sets = self.evaluated(self.eval_dataset) or {"": None}
            loaders = {name: partial(self.evaluation_loader, data, name) for name, data in sets.items()}
            try_metrics(self.measurer, loaders, self._predictions, self._check_metrics)
        self.step.restart()
        self.selection.restart()
        self.checkpoints.start_clock()
        self.temperature, self.summary = 1.0, None
        if self.ranks.is_main:  # delete the results of an earlier run
            self.records.truncate_after(-1)
            remove(self.args.folder / FEASIBLE_FOLDER)
            forget_results(self.args.folder)

    @property
    def dual(self) -> PrimalDual[DescentProblem]:
        """The multipliers."""
        return self.step.dual

    @property
    def method(self) -> Method:
        """The method of training."""
        return self.step.method

    @property
    def outlook(self) -> Outlook:
        """The warnings of constraints that will not be met."""
        return self.step.outlook

    @property
    def verdict(self) -> Verdict | None:
        """The last verdict on the trainer's own evaluation data; that of the best model, if it was loaded."""
        return self.selection.verdict

    @property
    def seconds(self) -> float:
        """Seconds of training, including those before an interruption."""
        return self.checkpoints.seconds

    # --- the loop

    def set_initial_training_values(self, args: TrainingArguments, dataloader: DataLoader) -> Any:
        """As in Transformers, but a loader without a batch is refused."""
        if has_length(dataloader) and not len(dataloader):
            raise InputError(
                "expected at least one batch to train on; the data loader has none. Give more samples, lower "
                "per_device_train_batch_size, or switch off dataloader_drop_last, which drops a batch that is not full."
            )
        return super().set_initial_training_values(args, dataloader)

    def get_train_dataloader(self) -> DataLoader:
        """Transformers' loader, changed so that each sample comes once per epoch; see `Loader.share`."""
        with changed(self, data_collator=self.loader.collator(self.data_collator, self.train_dataset)):
            loader = super().get_train_dataloader()
        self.loader.share(loader)
        return loader

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, Tensor | int | None]:
        """The micro-batches of a step, and the number of targets in them over all ranks."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.step.micro_batches = 0
        return batches, self.loader.count(batches)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """A micro-batch's part of the Lagrangian, w·(f_0 … f_L), and the sums of its exits' losses."""
        loss, batch = self.step.loss(model, inputs, num_items_in_batch, self.state)
        return (loss, batch.sums) if return_outputs else loss

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Transformers' optimizer; the head and own exits learn at ``head_lr_ratio`` times the model's rate."""
        is_new = self.optimizer is None
        with refusing("the optimizer can't be made", "Correct optim, optim_args or optim_target_modules."):
            optimizer = super().create_optimizer(*args, **kwargs)
        if is_new:
            set_head_rate(optimizer, self.objective, self.args.head_lr_ratio)
        return optimizer

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        """Transformers' schedule of the learning rate."""
        with refusing("the schedule can't be made", "Correct lr_scheduler_type or lr_scheduler_kwargs."):
            return super().create_scheduler(*args, **kwargs)

    def _other_logs(self, sums: LossSums) -> dict[str, float]:
        """Log entries from the further sums since the last log."""
        return {}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the dual's state and the layer losses to a training log."""
        if "loss" in logs:
            sums, rows = self.step.report(self.state)
            logs |= self._other_logs(sums)
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
        checkpoint = self.checkpoints.chosen(resume_from_checkpoint)
        self.checkpoints.refuse_foreign(checkpoint, self.method.asks, trains=True)
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
        return self.checkpoints.newest()

    @property
    def kept_step(self) -> int:
        """The step of the final model: that of the best checkpoint if it was loaded at the end, else the last step."""
        best = self.state.best_model_checkpoint
        if not self.args.load_best_model_at_end or best is None:
            return self.state.global_step
        return step_of(Path(best))

    # --- evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Measure every layer's loss and metric at the training noise, and check the constraints.

        The batches are those of `get_eval_dataloader` if a subclass overrides it; otherwise every process reads all
        samples in their order. A sample's number, to which its noise belongs, is its place among them.

        Args:
            eval_dataset: Samples, several data sets by name, or the name of one of the trainer's data sets; by default
                all of the trainer's.
            ignore_keys: Not used: predictions have no keys.
            metric_key_prefix: The prefix of the metrics' names.

        Returns:
            The last layer's loss and metric, the worst violation, whether the constraints hold, the merit
            (`DescentProblem.merit`) in the problem that training solves, and the result of ``compute_metrics`` for the
            last layer's predictions. During training a classifier is measured on the trainer's own data at the
            temperature with which it would be saved.

        Raises:
            InputError: If there are no samples, or a layer's mean loss on them is negative.
        """
        is_own = eval_dataset is None or eval_dataset is self.eval_dataset
        if is_own and not self.is_in_train:
            self.checkpoints.refuse_foreign(None, self.method.asks, trains=False)
        metrics: dict[str, float] = {}
        losses: list[float] = []
        verdicts: list[Verdict] = []
        for name, dataset in self._evaluation_sets(self.eval_dataset if is_own else eval_dataset).items():
            began = time.time()
            predictions = None if self.compute_metrics is None else self._predictions()
            loader = self.evaluation_loader(dataset, name if is_own else "")
            self.callback_handler.eval_dataloader = loader
            self._samples = 0
            layers = self._measure(loader, predictions, calls_back=True)
            prefix = f"{metric_key_prefix}_{name}" if name else metric_key_prefix
            tempers = is_own and self.is_in_train
            judged = self.selection.judge(layers, prefix, predictions, self._further_metrics(layers), tempers=tempers)
            verdicts.append(judged.verdict)
            batches = math.ceil(self._samples / self.args.eval_batch_size)  # as Transformers counts them
            speed = speed_metrics(prefix, began, num_samples=self._samples, num_steps=batches)
            named = judged.metrics | speed
            self.log(named)
            metrics |= named
            losses.append(named[f"{prefix}_loss"])
            # Only the trainer's own evaluation set affects records and model selection.
            if is_own and self.is_world_process_zero():
                mean = judged.layers.losses.mean(0).tolist()
                self.records.rows(
                    {"loss": mean, self.objective.task.metric: judged.layers.metrics},
                    step=self.state.global_step,
                    split=f"validation {name}".rstrip(),
                    noise=self._level,
                )
        # The card calls the trainer's own data the evaluation data.
        if is_own and self.selection.add(self.state.global_step, verdicts, losses):
            self._save_best_feasible(judged.divisor)
        self.selection.chooses = is_own and metric_key_prefix == "eval"
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _evaluation_sets(self, dataset: Any) -> dict[str, Any]:
        """Name → data set of an evaluation, from one, from several by name, or from the name of one."""
        if isinstance(dataset, str):
            known = self.evaluated(self.eval_dataset)
            if dataset not in known:
                raise InputError(f"eval_dataset must be one of {', '.join(known)}; got {dataset!r}.")
            dataset = known[dataset]
        datasets = self.evaluated(dataset)
        if not datasets and overriding(type(self), "get_eval_dataloader"):
            datasets = {"": None}
        if not datasets:
            raise InputError("expected an eval_dataset, of the trainer or of this call; got none.")
        return datasets

    def _further_metrics(self, layers: LayerLosses) -> dict[str, float]:
        """Metrics of an evaluation that the task does not know, without the prefix of their names."""
        return {}

    def _save_best_feasible(self, divisor: float) -> None:
        """Save the model in ``best_feasible``, with logits divided by the temperature of its evaluation."""
        place = self.args.folder / FEASIBLE_FOLDER
        with atomic_folder(place) if self.args.should_save else nullcontext(place) as folder:
            tempered = self.objective.model.tempered(divisor) if divisor != 1 else nullcontext()
            with tempered, changed(self, temperature=self.temperature * divisor):
                self.save_pretrained(folder)
            self.save_dual(folder / DUAL_FILE)

    def _predictions(self) -> Predictions:
        """What collects predictions for ``compute_metrics``, which is there."""
        assert self.compute_metrics is not None
        return Predictions(self.args, self.compute_metrics, self.preprocess_logits_for_metrics)

    def _check_metrics(self, names: set[str]) -> None:
        """Raise an error if an evaluation whose ``compute_metrics`` gives these lacks ``metric_for_best_model``."""
        if len(self.evaluated(self.eval_dataset)) < 2:  # of several sets names have prefixes
            self.args.check_best_metric(self.measured | names)

    @staticmethod
    def evaluated(dataset: Any) -> dict[str, Any]:
        """Name → data set; a single data set has the empty name."""
        if dataset is None:
            return {}
        return dataset if isinstance(dataset, dict) else {"": dataset}

    def evaluation_loader(self, dataset: Any, name: str = "") -> Any:
        """The batches of an evaluation set: of the user's `get_eval_dataloader`, or all samples in their order.

        Transformers' own loader may divide samples among processes, order them by length and drop the last.

        Args:
            dataset: The samples.
            name: Their name among several sets of the trainer, by which Transformers asks for them.
        """
        if overriding(type(self), "get_eval_dataloader"):
            return self.get_eval_dataloader(name or dataset)
        if is_datasets_available() and isinstance(dataset, datasets.Dataset):
            dataset = self.evaluation_columns(dataset)
        return self.measurer.batches(self.evaluation_collator()).loader(dataset)

    def _measure(self, loader: Any, predictions: Predictions | None = None, *, calls_back: bool = False) -> LayerLosses:
        """Measure every layer on a data set at the training noise.

        Args:
            loader: Its batches.
            predictions: Collects the last layer's predictions here, unless a temperature is still to be applied.
            calls_back: Whether callbacks hear of each batch.
        """
        calibrates, sigma = self._calibrates, None
        if self.objective.noise is not None:
            sigma = self.sigma
            sigma = self.measurer.sigma_of(loader) if sigma is None else sigma

        def watch(batch: dict[str, Any], prediction: Tensor | None, losses: Tensor) -> None:
            if predictions is not None and not calibrates:
                predictions.add(self.measurer.for_metrics(batch, prediction), self.measurer.labels_of(batch), losses)
            if calls_back:
                self._samples += size_of(batch)
                self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)

        return self.measurer.measure(
            loader,
            sigma,
            watch,
            watch_rows=self._watch_rows(),
            keep_logits=calibrates,
            # A callback that hears of each batch shows its own progress.
            quiet=calls_back or self.args.disable_tqdm or not self.is_world_process_zero(),
        )

    def _watch_rows(self) -> WatchRows | None:
        """What looks at the last exit's logits of a language model, tile by tile; None for nothing."""
        return None

    @property
    def evaluates(self) -> bool:
        """Whether there are evaluations during training."""
        return IntervalStrategy(self.args.eval_strategy) != IntervalStrategy.NO

    @property
    def _calibrates(self) -> bool:
        """Whether to calibrate the logits: it needs a single evaluation set, and evaluations during training."""
        single = len(self.evaluated(self.eval_dataset)) == 1
        return self.args.calibrate and self.measurer.tempers and self.evaluates and single

    def calibrate(self) -> None:
        """Divide a classifier's logits by the temperature that fits the evaluation data best.

        `train` calls this at the end of training. It does nothing if ``DescentConfig.calibrate`` is off, and if no
        temperature within the range fits, which it says.
        """
        if not self._calibrates:
            return
        ((name, dataset),) = self.evaluated(self.eval_dataset).items()
        measured = self._measure(self.evaluation_loader(dataset, name))
        divisor = self.selection.divisor(measured)
        if divisor is not None:
            self.objective.model.temper(divisor)
            self.temperature *= divisor
        elif self.is_world_process_zero():
            logger.warning(
                f"not calibrated: no temperature from {TEMPERATURES[0]:.3g} to {TEMPERATURES[-1]:.3g} fits the "
                "evaluation data best. The classifier makes no mistake on them, or knows nothing of them."
            )

    @property
    def sigma(self) -> float | None:
        """σ_x: that of the noise if it is fixed, else that of the training data under the current embedding.

        None without noise, or if all data are streams.
        """
        known = (self.train_dataset, *self.evaluated(self.eval_dataset).values())
        return self.measurer.sigma(known, self.evaluation_collator())

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As in Transformers, for `predict`, whose loss is the sum over all targets by their number.

        Transformers takes a mean of batch means, which depends on the batch size where samples have unlike numbers of
        targets, and is NaN if a batch has none.
        """
        self._losses: list[tuple[float, int]] = []
        output = super().evaluation_loop(*args, **kwargs)
        count = sum(targets for _, targets in self._losses)
        if count and output.metrics is not None:
            output.metrics[f"{kwargs['metric_key_prefix']}_loss"] = sum(loss for loss, _ in self._losses) / count
        return output

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The mean loss, the predictions and the labels of a batch at the last layer, without noise, for `predict`.

        Where targets are inside a text, as those of a language model or of a classifier of tokens, predictions are the
        logits at every token, (B, T, C), and labels those of every token.
        """
        batch = self.on_device(inputs)
        prediction, losses = self.measurer.predicted(batch)
        if losses is None:  # samples without labels have predictions only
            return None, None if prediction_loss_only else prediction, None
        # By sample, because several processes may read one twice.
        self._losses += self.gather_function(self.measurer.sums_by_sample(batch, losses))
        loss = losses.sum() / max(len(losses), 1)
        return (loss, None, None) if prediction_loss_only else (loss, prediction, self.measurer.labels_of(batch))

    @property
    def measured(self) -> set[str]:
        """The metrics of an evaluation, without those of ``compute_metrics``."""
        return {*MEASURED, self.objective.task.metric, *self.other_metrics}

    @property
    def _level(self) -> float:
        return self.objective.noise.level if self.objective.noise else 0.0

    # --- the model that is saved

    def save_pretrained(self, folder: Path, state_dict: dict | None = None) -> None:
        """Write the model and its tokenizer, if there is one, in the format of `from_pretrained`.

        All ranks must call this, because each may hold a shard; the main process writes.
        """
        weights = gathered(self.objective) if state_dict is None else state_dict
        if not self.args.should_save:
            return
        folder, resumes = Path(folder), self.checkpoints.parent is not None
        self.mark_model()
        write_model(self.users_model, folder, weights, self.trained, self.tokenizer_to_save, resumes=resumes)
        if not resumes:
            (folder / CARD_FILE).unlink(missing_ok=True)  # PEFT's
            write_card(folder, self._card())

    @property
    def trained(self) -> Trained:
        """What the model is trained with, which is saved with it."""
        noise = self.objective.noise
        of_noise: dict[str, Any] = {}
        if noise is not None:
            of_noise = {"noise": noise.level, "noise_is": noise.noise_is, "shift": noise.kind}
        return Trained(
            version=version("descend"),
            method=self.args.method,
            seed=self.args.seed,
            problem=self.args.constraints,
            temperature=self.temperature,
            **of_noise,
        )

    def mark_model(self) -> None:
        """Note in the configuration of a Transformers model what it is trained with."""
        if isinstance(self.users_model, PreTrainedModel):
            setattr(self.users_model.config, TRAINED_KEY, self.trained.content())

    @property
    def tokenizer_to_save(self) -> Any:
        """The tokenizer, or a processor of another kind, that belongs to the model; None without one."""
        return self.processing_class or getattr(self.data_collator, "tokenizer", None)

    def create_model_card(self, *_: Any, **given: Any) -> None:
        """Write our model card in place of Transformers' or TRL's, unless a user has edited it.

        Args:
            **given: Of the arguments of both libraries ``model_name``, ``finetuned_from`` (the name on the Hub of the
                model that training started from), ``language``, ``license``, ``tags`` and ``dataset_tags``.
        """
        # TRL calls this for every checkpoint.
        if not self.is_world_process_zero() or (self.checkpoints.parent is not None and not self.args.push_to_hub):
            return
        metadata = {name: given.get(name) for name in ("language", "license", "tags")}
        metadata["datasets"] = given.get("dataset_tags")
        self.args.folder.mkdir(parents=True, exist_ok=True)
        write_card(self.args.folder, self._card(given.get("model_name"), given.get("finetuned_from"), metadata))

    def _card(
        self, name: str | None = None, base_model: str | None = None, metadata: dict[str, Any] | None = None
    ) -> str:
        """The model's card, by default under the name of the output folder."""
        name, kind = name or self.args.folder.absolute().name, type(self).__name__
        return card(self.objective, self.trained, name, kind, self.verdict, self.summary, base_model, metadata)

    def save_dual(self, path: Path) -> None:
        """Write λ, the cap's multiplier, whether they moved, the slack and the current σ_x. All ranks must call this.

        Args:
            path: The file.
        """
        sigma = self.sigma
        if self.args.should_save:
            write_dual(path, self.dual, sigma)


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
