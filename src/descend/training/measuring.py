"""Evaluation while training: every layer at the training noise, the verdict, and the best feasible model."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import EvalPrediction, TrainingArguments
from transformers.trainer_pt_utils import EvalLoopContainer
from transformers.trainer_utils import (
    EvalLoopOutput,
    IntervalStrategy,
    denumpify_detensorize,
    has_length,
    speed_metrics,
)
from transformers.utils import is_datasets_available

from descend.core import DescentProblem
from descend.errors import InputError
from descend.evaluation.calibration import COST_TOLERANCE, TEMPERATURES, at_temperature, temperature
from descend.evaluation.layers import Batches, LayerLosses, WatchRows, embedding_std, measure
from descend.evaluation.satisfaction import verdict
from descend.models import PLACES, LayeredCausalLM, LayeredClassifier, changed
from descend.progress import progress
from descend.results import DUAL_FILE, FEASIBLE_FOLDER, Verdict, atomic_folder, put
from descend.tasks.text import Classification
from descend.training.config import MEASURED
from descend.training.hf_hooks import TrainerHooks, overriding

if is_datasets_available():
    import datasets

logger = logging.getLogger(__name__)


class Predictions:
    """The last layer's predictions for ``compute_metrics``, gathered as Transformers' `Trainer` does.

    Args:
        args: The training arguments; ``eval_do_concat_batches`` and ``include_for_metrics`` work as in Transformers.
        compute: The user's ``compute_metrics``.
        preprocess: The user's ``preprocess_logits_for_metrics``: called with the logits and labels of each batch, it
            may return a tensor or a tuple of tensors. None for the logits as they are.
    """

    def __init__(
        self,
        args: TrainingArguments,
        compute: Callable[..., dict[str, Any]],
        preprocess: Callable[[Tensor, Tensor], Any] | None,
    ):
        self.args, self.compute, self.preprocess = args, compute, preprocess
        self._columns = [EvalLoopContainer(args.eval_do_concat_batches, padding_index=-100) for _ in range(3)]

    def add(self, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Add the last layer's logits and losses of a batch, and its labels."""
        predictions = logits if self.preprocess is None else self.preprocess(logits, labels)
        for column, values in zip(self._columns, (predictions, labels, losses), strict=True):
            column.add(values)
            column.to_cpu_and_numpy()

    def metrics(self) -> dict[str, Any]:
        """The user's metrics over all batches, as numbers that JSON can hold."""
        predictions, labels, losses = (column.get_arrays() for column in self._columns)
        asked = "loss" in (self.args.include_for_metrics or ())
        found = self.compute(EvalPrediction(predictions, labels, losses=losses if asked else None))
        return denumpify_detensorize(found)


class Measuring(TrainerHooks):
    """A trainer whose evaluation measures every layer."""

    other_metrics: tuple[str, ...] = ()
    """Further metrics of an evaluation."""
    _samples = 0
    """The samples that the current evaluation has read."""
    chooses: bool
    """Whether the last evaluation was on the trainer's own data; only then can the model become the best."""

    def is_best(self, metrics: dict[str, float]) -> bool:
        """Whether a model is the best so far, see `beats_best`; always False during warm-up."""
        if not self.beats_best(metrics) or self.in_warmup:
            return False
        self._best_meets = self._meets(metrics)
        return True

    def check_selection(self) -> None:
        """Check what evaluations in training rest on: their data, calibration, and `metric_for_best_model`."""
        datasets = self.evaluated(self.eval_dataset)
        for name, data in datasets.items():
            if self.evaluates and has_length(data) and len(data) < 2:  # a verdict has a confidence interval
                which = f"eval_dataset {name}".rstrip()
                raise InputError(f"{which} must hold at least 2 samples; got {len(data)}. Leave it out, or give more.")
        if self.args.calibrate and self._has_logits and not self._calibrates:
            logger.warning(
                "calibrate needs one eval_dataset and evaluations in training (eval_strategy); one of them is missing. "
                "The classifier stays as it is trained, at temperature 1."
            )
        task, names = self.objective.task, [name for name in datasets if name]
        chosen = (self.args.metric_for_best_model or "").removeprefix("eval_")
        measured = self.measured
        if chosen in measured and names:
            raise InputError(
                f"metric_for_best_model must say of which evaluation data it is: {names[0]}_{chosen}, for one; got "
                f"{chosen!r}."
            )
        if self.evaluates and self.compute_metrics is None and type(self).evaluate.__module__.startswith("descend."):
            self.args.check_best_metric({f"{name}_{metric}" for name in names for metric in measured} or measured)
        # Transformers takes a metric for higher-is-better unless its name ends in loss.
        falls = {"violation", "merit"} | (set() if task.higher_is_better else {task.metric})
        if chosen in falls | {f"{name}_{metric}" for name in names for metric in falls}:
            self.args.greater_is_better = False

    @property
    def evaluates(self) -> bool:
        """Whether there are evaluations during training."""
        return IntervalStrategy(self.args.eval_strategy) != IntervalStrategy.NO

    @property
    def ranking(self) -> DescentProblem:
        """The problem by which models are ranked: the one that training solves, or ERM where nothing is asked."""
        return self.dual.problem if self.method.asks else DescentProblem(self.objective.model.depth)

    @property
    def in_warmup(self) -> bool:
        """Whether the constraints are not yet in force."""
        return self.method.asks and self.dual.steps <= self.dual.warmup

    def beats_best(self, metrics: dict[str, float]) -> bool:
        """Whether an evaluated model is better than the best so far.

        A model that meets its constraints on the evaluation data is better than one that does not, unless it is more
        than 1 % worse in ``metric_for_best_model``: an untrained model meets almost any constraint. Otherwise, and
        without constraints, the metric decides, as in Transformers.

        Args:
            metrics: The result of `evaluate`.

        Raises:
            InputError: If the metric is not in it: only then are those of ``compute_metrics`` known.
        """
        if self.args.metric_for_best_model is None:
            return False
        self.args.check_best_metric(name.removeprefix("eval_") for name in metrics)
        value, best = metrics[f"eval_{self.args.metric_for_best_model.removeprefix('eval_')}"], self.state.best_metric
        if not math.isfinite(value) or best is None:
            return math.isfinite(value)
        meets = self._meets(metrics)
        allowance = COST_TOLERANCE * abs(best) * (meets - self._best_meets)
        return value > best - allowance if self.args.greater_is_better else value < best + allowance

    def _meets(self, metrics: dict[str, float]) -> bool:
        names = (f"eval_{name}_feasible" if name else "eval_feasible" for name in self.evaluated(self.eval_dataset))
        return self.method.asks and all(metrics.get(name, 0.0) for name in names)

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
            self.refuse_foreign_files()
        if isinstance(eval_dataset, str):
            known = self.evaluated(self.eval_dataset)
            if eval_dataset not in known:
                raise InputError(f"eval_dataset must be one of {', '.join(known)}; got {eval_dataset!r}.")
            eval_dataset = known[eval_dataset]
        datasets = self.evaluated(self.eval_dataset if is_own else eval_dataset)
        if not datasets and overriding(type(self), "get_eval_dataloader"):
            datasets = {"": None}
        if not datasets:
            raise InputError("expected an eval_dataset, of the trainer or of this call; got none.")
        metrics: dict[str, float] = {}
        losses: list[float] = []
        verdicts: list[Verdict] = []
        for name, dataset in datasets.items():
            began = time.time()
            predictions = None
            if self.compute_metrics is not None:
                predictions = Predictions(self.args, self.compute_metrics, self.preprocess_logits_for_metrics)
            loader = self.evaluation_loader(dataset, name if is_own else "")
            self.callback_handler.eval_dataloader = loader
            self._samples = 0
            layers = self._measure(loader, predictions, calls_back=True)
            model = self.objective.model
            divisor = 1.0
            if is_own and self.is_in_train and layers.logits is not None:
                # Measure a candidate at the temperature with which it would be saved.
                divisor = self._broadcast(temperature(layers, self.objective.task, self.ranking)) or 1.0
                layers = at_temperature(layers, self.objective.task, divisor)
            held = verdict(self.args.problem(model.depth, model.first_layer), layers, asked=self.method.asks)
            prefix = f"{metric_key_prefix}_{name}" if name else metric_key_prefix
            # Ranks may differ by rounding: all use the main process's numbers.
            held, named = self._broadcast((held, self._named_metrics(layers, held, prefix, predictions)))
            verdicts.append(held)
            batches = math.ceil(self._samples / self.args.eval_batch_size)  # as Transformers counts them
            named |= speed_metrics(prefix, began, num_samples=self._samples, num_steps=batches)
            self.log(named)
            metrics |= named
            losses.append(named[f"{prefix}_loss"])
            # Only the trainer's own evaluation set affects records and model selection.
            if is_own and self.is_world_process_zero():
                self.records.rows(
                    {"loss": layers.losses.mean(0).tolist(), self.objective.task.metric: layers.metrics},
                    step=self.state.global_step,
                    split=f"validation {name}".rstrip(),
                    noise=self._level,
                )
        if is_own:  # the card calls it that of the evaluation data
            self.verdict = self._verdicts[self.state.global_step] = max(verdicts, key=lambda each: each.worst)
            if all(each.feasible for each in verdicts):
                self._keep_best_feasible(sum(losses) / len(losses), divisor)
        self.chooses = is_own and metric_key_prefix == "eval"
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _named_metrics(
        self, layers: LayerLosses, verdict: Verdict, prefix: str, predictions: Predictions | None
    ) -> dict[str, float]:
        metrics = {
            f"{prefix}_loss": layers.losses[:, -1].mean().item(),
            f"{prefix}_{self.objective.task.metric}": layers.metrics[-1],
            f"{prefix}_violation": verdict.worst,
            f"{prefix}_feasible": float(bool(verdict.feasible)),
            f"{prefix}_merit": self.ranking.merit(layers.losses.mean(0)).item(),
        }
        if predictions is not None:
            if layers.logits is not None:
                rows = (layers.logits[0][:, -1], layers.logits[1], layers.losses[:, -1])
                for batch in zip(*(values.split(self.args.eval_batch_size) for values in rows), strict=True):
                    predictions.add(*batch)
            for name, value in predictions.metrics().items():
                metrics[name if name.startswith(f"{prefix}_") else f"{prefix}_{name}"] = value
        return metrics

    def _keep_best_feasible(self, loss: float, divisor: float) -> None:
        """Save a feasible model in ``best_feasible`` if its loss is the lowest so far.

        Args:
            loss: The last layer's loss, averaged over the trainer's evaluation sets.
            divisor: The temperature by which its logits were divided in this evaluation.
        """
        if self.method.asks and loss < self._best:
            self._best = loss
            place = self.args.folder / FEASIBLE_FOLDER
            with atomic_folder(place) if self.args.should_save else nullcontext(place) as folder:
                tempered = self.objective.model.tempered(divisor) if divisor != 1 else nullcontext()
                with tempered, changed(self, temperature=self.temperature * divisor):
                    self.save_pretrained(folder)
                self.save_dual(folder / DUAL_FILE)

    @staticmethod
    def evaluated(dataset: Any) -> dict[str, Any]:
        """Name → data set; a single data set has the empty name."""
        return dataset if isinstance(dataset, dict) else {} if dataset is None else {"": dataset}

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
        return self._batches().loader(dataset)

    def _batches(self, collate: Callable[[list[Any]], Any] | None = None) -> Batches:
        """How samples become batches of an evaluation; by default by `evaluation_collator`."""
        return Batches(self.args.eval_batch_size, self.args.device, collate or self.evaluation_collator())

    def measure_layers(self, samples: Any) -> LayerLosses:
        """Measure every layer on samples, batched as those of an evaluation, at the training noise."""
        return self._measure(self._batches().loader(samples))

    def _measure(self, loader: Any, predictions: Predictions | None = None, *, calls_back: bool = False) -> LayerLosses:
        """Measure every layer on a data set at the training noise.

        Args:
            loader: Its batches.
            predictions: Collects the last layer's predictions here, unless a temperature is still to be applied.
            calls_back: Whether callbacks hear of each batch.
        """
        noise = self.objective.noise
        self.objective.eval()  # not undone here: training steps call train()
        fixed = noise.at(noise.level, seed=0, sigma=self._sigma_for(loader)) if noise else None

        def watch(batch: dict[str, Any], prediction: Tensor | None, losses: Tensor) -> None:
            if predictions is not None and not self._calibrates:
                whole = self._at_every_token(batch) if prediction is None or self._has_places(batch) else prediction
                predictions.add(whole, self.labels_of(batch), losses)
            self._samples += len(next(value for value in batch.values() if isinstance(value, Tensor) and value.ndim))
            if calls_back:
                self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)

        def look() -> LayerLosses:
            # A callback that hears of each batch shows its own progress.
            quiet = calls_back or self.args.disable_tqdm or not self.is_world_process_zero()
            total = len(loader.dataset) if has_length(getattr(loader, "dataset", None)) else None
            with progress(total, "measuring layers", "sample", leave=False, quiet=quiet) as bar:
                (layers,) = measure(
                    self.objective.model,
                    self.objective.task,
                    map(self.on_device, loader),
                    [fixed],
                    watch=watch,
                    watch_rows=self._watch_rows(),
                    keep_logits=self._calibrates,
                    progress=bar,
                )
            return layers

        with self.compute_loss_context_manager():
            return self._gathered(look)

    def _watch_rows(self) -> WatchRows | None:
        """What looks at the last exit's logits of a language model, tile by tile; None for nothing."""
        return None

    @property
    def _calibrates(self) -> bool:
        """Whether to calibrate the logits: it needs a single evaluation set, and evaluations during training."""
        single = len(self.evaluated(self.eval_dataset)) == 1
        return self.args.calibrate and self._has_logits and self.evaluates and single

    @property
    def _has_logits(self) -> bool:
        """Whether every layer gives logits of classes that one temperature can divide."""
        model, task = self.objective.model, self.objective.task
        return isinstance(task, Classification) and isinstance(model, LayeredClassifier) and model.can_be_tempered

    def calibrate(self) -> None:
        """Divide a classifier's logits by the temperature that fits the evaluation data best.

        `train` calls this at the end of training. It does nothing if ``DescentConfig.calibrate`` is off, and if no
        temperature within the range fits, which it says.
        """
        if self._calibrates:
            ((name, dataset),) = self.evaluated(self.eval_dataset).items()
            measured = self._measure(self.evaluation_loader(dataset, name))
            divisor = self._broadcast(temperature(measured, self.objective.task, self.ranking))
            if divisor is not None:
                self.objective.model.temper(divisor)
                self.temperature *= divisor
            elif self.is_world_process_zero():
                logger.warning(
                    f"not calibrated: no temperature from {TEMPERATURES[0]:.3g} to {TEMPERATURES[-1]:.3g} fits the "
                    "evaluation data best. The classifier makes no mistake on them, or knows nothing of them."
                )

    def _gathered(self, look: Callable[[], Any]) -> Any:
        """Call ``look``, which reads the model outside its forward pass, with parameters gathered under FSDP2."""
        if not hasattr(self.objective, "reshard"):
            return look()
        from torch.distributed.fsdp import register_fsdp_forward_method

        if "read_outside_forward" not in vars(self.objective):
            register_fsdp_forward_method(self.objective, "read_outside_forward")
        results: list[Any] = []  # a list, because FSDP2 may cast the result of a forward pass
        self.objective.read_outside_forward(lambda: results.append(look()))
        self.objective.reshard()  # type: ignore[operator]
        return results[0]

    @property
    def sigma(self) -> float | None:
        """σ_x: that of the noise if it is fixed, else that of the training data under the current embedding.

        None without noise, or if all data are streams.
        """
        noise = self.objective.noise
        if noise is None or noise.sigma is not None:
            return noise.sigma if noise else None
        known = (self.train_dataset, *self.evaluated(self.eval_dataset).values())
        data = next((each for each in known if has_length(each)), None)
        return None if data is None else self._sigma(data)

    def _sigma_for(self, loader: Any) -> float:
        """σ_x of the noise in an evaluation: `sigma`, or that of the evaluated data where it is None."""
        sigma, dataset = self.sigma, getattr(loader, "dataset", None)
        if sigma is None and not has_length(dataset):
            raise InputError(
                "expected data of known length, to measure σ_x on; got streams alone. Give noise=GaussianNoise(level, "
                "sigma)."
            )
        return self._sigma(dataset, loader.collate_fn) if sigma is None else sigma

    def _sigma(self, dataset: Any, collate: Callable[[list[Any]], Any] | None = None) -> float:
        batches = self._batches(collate)
        return self._gathered(lambda: embedding_std(self.objective.model, self.objective.task, dataset, batches))

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
        task, batch = self.objective.task, self.on_device(inputs)
        prediction, losses = self.predicted(batch)
        if losses is None:  # samples without labels have predictions only
            return None, None if prediction_loss_only else prediction, None
        owners = task.owners(batch).cpu()
        size = len(next(value for value in batch.values() if isinstance(value, Tensor) and value.ndim))
        counts = owners.bincount(minlength=size)  # of each sample: several processes may read one twice
        sums = torch.zeros(len(counts), dtype=torch.float64, device="cpu").index_add(0, owners, losses.cpu().double())
        self._losses += self.gather_function(list(zip(sums.tolist(), counts.tolist(), strict=True)))
        loss = losses.sum() / max(len(losses), 1)
        return (loss, None, None) if prediction_loss_only else (loss, prediction, self.labels_of(batch))

    def predicted(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """The last layer's predictions of a batch without noise, and its losses; None for these without labels."""
        task, model = self.objective.task, self.objective.model
        by_token = self._has_places(batch)

        def look() -> Tensor:
            return self._at_every_token(batch) if by_token else list(model.predictions(task.inputs(batch)))[-1]

        with torch.no_grad(), self.compute_loss_context_manager():
            prediction = self._gathered(look)
        try:
            target = task.target(batch)
        except KeyError:
            return prediction, None
        places = task.inputs(batch).get(PLACES) if by_token else None
        return prediction, task.losses(prediction if places is None else prediction.flatten(0, 1)[places], target)

    def _has_places(self, batch: dict[str, Any]) -> bool:
        """Whether targets are inside a text, so that predictions are of tokens."""
        if isinstance(self.objective.model, LayeredCausalLM):
            return True
        inputs = self.objective.task.inputs(batch)
        return isinstance(inputs, Mapping) and PLACES in inputs

    def _at_every_token(self, batch: dict[str, Any]) -> Tensor:
        """The last layer's logits at every token of a batch, (B, T, C), whichever are targets."""
        model, task = self.objective.model, self.objective.task
        inputs = batch if isinstance(model, LayeredCausalLM) else task.inputs(batch)
        states = model.layer_outputs({name: inputs[name] for name in inputs if name not in ("labels", PLACES)})
        return model.readout(states[-1])

    def labels_of(self, batch: dict[str, Any]) -> Tensor:
        """The labels for ``compute_metrics``; where targets are inside a text they have an entry for every token."""
        return batch["labels"] if self._has_places(batch) else self.objective.task.target(batch)

    @property
    def measured(self) -> set[str]:
        """The metrics of an evaluation, without those of ``compute_metrics``."""
        return {*MEASURED, self.objective.task.metric, *self.other_metrics}

    @property
    def _level(self) -> float:
        return self.objective.noise.level if self.objective.noise else 0.0

    def save_dual(self, path: Path) -> None:
        """Write λ, the cap's multiplier, whether they moved, the slack and the current σ_x. All ranks must call this.

        Args:
            path: The file.
        """
        multipliers = self.dual.multipliers
        tensors = {
            "multipliers": multipliers[1:].clone(),
            "cap_multiplier": multipliers[0].clone(),
            "slack": self.dual.slack[1:].clone(),
            "moved": torch.tensor(self.dual.moved),
        }
        if (sigma := self.sigma) is not None:
            tensors["sigma"] = torch.tensor(sigma, dtype=torch.float64)
        if self.args.should_save:
            put(path, partial(save_file, tensors))
