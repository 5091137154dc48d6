"""The layers of the model that is trained, measured at the training noise, and the last one's predictions."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import EvalPrediction, TrainingArguments
from transformers.trainer_pt_utils import EvalLoopContainer
from transformers.trainer_utils import denumpify_detensorize, has_length

from descend.errors import InputError
from descend.evaluation.layers import Batches, LayerLosses, WatchRows, embedding_std, measure
from descend.models import PLACES, LayeredCausalLM, LayeredClassifier
from descend.objective import Objective
from descend.progress import progress
from descend.tasks.text import Classification


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

    def add_kept(self, layers: LayerLosses) -> None:
        """Add the logits that a measurement has kept, and that a temperature may have divided, batch by batch."""
        if layers.logits is not None:
            logits, labels = layers.logits
            size = self.args.eval_batch_size
            columns = logits[:, -1].split(size), labels.split(size), layers.losses[:, -1].split(size)
            for batch in zip(*columns, strict=True):
                self.add(*batch)

    def metrics(self) -> dict[str, Any]:
        """The user's metrics over all batches, as numbers that JSON can hold."""
        predictions, labels, losses = (column.get_arrays() for column in self._columns)
        asked = "loss" in (self.args.include_for_metrics or ())
        found = self.compute(EvalPrediction(predictions, labels, losses=losses if asked else None))
        return denumpify_detensorize(found)


@dataclass
class Measurer:
    """Reads the layers of a model outside its forward pass, also where its parameters are shards."""

    objective: Objective
    """The layer losses of the model, as they are trained."""
    args: TrainingArguments
    on_device: Callable[[dict[str, Any]], dict[str, Any]]
    """Moves a batch to the model's device."""
    context: Callable[[], AbstractContextManager[Any]]
    """Opens the context of a forward pass, such as autocast."""

    @property
    def tempers(self) -> bool:
        """Whether every layer gives logits of classes that one temperature can divide."""
        model, task = self.objective.model, self.objective.task
        return isinstance(task, Classification) and isinstance(model, LayeredClassifier) and model.can_be_tempered

    def batches(self, collate: Callable[[list[Any]], Any]) -> Batches:
        """How samples become batches of an evaluation."""
        return Batches(self.args.eval_batch_size, self.args.device, collate)

    def measure(
        self,
        loader: Any,
        sigma: float | None,
        watch: Callable[[dict[str, Any], Tensor | None, Tensor], None],
        *,
        watch_rows: WatchRows | None = None,
        keep_logits: bool = False,
        quiet: bool = True,
    ) -> LayerLosses:
        """Measure every layer on a data set at the training noise.

        Args:
            loader: Its batches.
            sigma: σ_x of the noise; None without noise.
            watch: Called with each batch, the last layer's predictions, and its losses.
            watch_rows: Looks at the last exit's logits of a language model, tile by tile.
            keep_logits: Whether to keep the logits, for a temperature.
            quiet: Whether to show no progress.
        """
        noise = self.objective.noise
        self.objective.eval()  # not undone here: training steps call train()
        fixed = noise.at(noise.level, seed=0, sigma=sigma) if noise else None
        total = len(loader.dataset) if has_length(getattr(loader, "dataset", None)) else None

        def look() -> LayerLosses:
            with progress(total, "measuring layers", "sample", leave=False, quiet=quiet) as bar:
                (layers,) = measure(
                    self.objective.model,
                    self.objective.task,
                    map(self.on_device, loader),
                    [fixed],
                    watch=watch,
                    watch_rows=watch_rows,
                    keep_logits=keep_logits,
                    progress=bar,
                )
            return layers

        with self.context():
            return self._gathered(look)

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

    def sigma(self, datasets: Any, collate: Callable[[list[Any]], Any]) -> float | None:
        """σ_x: that of the noise if it is fixed, else that of data under the current embedding.

        Args:
            datasets: Data sets, of which the first whose length is known is taken.
            collate: Makes batches of them.

        Returns:
            None without noise, or if all data are streams.
        """
        noise = self.objective.noise
        if noise is None or noise.sigma is not None:
            return noise.sigma if noise else None
        data = next((each for each in datasets if has_length(each)), None)
        if data is None:
            return None
        model, task, batches = self.objective.model, self.objective.task, self.batches(collate)
        return self._gathered(lambda: embedding_std(model, task, data, batches))

    def sigma_of(self, loader: Any) -> float:
        """σ_x of the data that a loader reads.

        Raises:
            InputError: If their length is not known.
        """
        dataset = getattr(loader, "dataset", None)
        if not has_length(dataset):
            raise InputError(
                "expected data of known length, to measure σ_x on; got streams alone. Give noise=GaussianNoise(level, "
                "sigma)."
            )
        sigma = self.sigma([dataset], loader.collate_fn)
        assert sigma is not None
        return sigma

    def predicted(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """The last layer's predictions of a batch without noise, and its losses; None for these without labels."""
        task, model = self.objective.task, self.objective.model
        by_token = self._has_places(batch)

        def look() -> Tensor:
            return self._at_every_token(batch) if by_token else list(model.predictions(task.inputs(batch)))[-1]

        with torch.no_grad(), self.context():
            prediction = self._gathered(look)
        try:
            target = task.target(batch)
        except KeyError:
            return prediction, None
        places = task.inputs(batch).get(PLACES) if by_token else None
        return prediction, task.losses(prediction if places is None else prediction.flatten(0, 1)[places], target)

    def sums_by_sample(self, batch: dict[str, Any], losses: Tensor) -> list[tuple[float, int]]:
        """The sum of each sample's losses, and the number of its targets."""
        owners = self.objective.task.owners(batch).cpu()
        counts = owners.bincount(minlength=size_of(batch))
        sums = torch.zeros(len(counts), dtype=torch.float64, device="cpu").index_add(0, owners, losses.cpu().double())
        return list(zip(sums.tolist(), counts.tolist(), strict=True))

    def for_metrics(self, batch: dict[str, Any], prediction: Tensor | None) -> Tensor:
        """The predictions for ``compute_metrics``: where targets are inside a text, the logits at every token."""
        return self._at_every_token(batch) if prediction is None or self._has_places(batch) else prediction

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


def size_of(batch: dict[str, Any]) -> int:
    """The number of samples in a batch."""
    return len(next(value for value in batch.values() if isinstance(value, Tensor) and value.ndim))
