"""Leaving early: the time until each layer can be read, what early exits cost, and drafts of a language model."""

import hashlib
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from descend.errors import refuse
from descend.evaluation.layers import LayerLosses, measure, metric_value
from descend.evaluation.risk_control import certify, on_test_data
from descend.models import LayeredCausalLM, LayeredClassifier, LayeredModel, UnrolledModel, evaluating, leave_at
from descend.progress import counted, progress
from descend.results import CONFIDENCE, ChosenExit, Drafts, ExitPoint, Exits, Latency, Speculation
from descend.run.evaluating import FurtherEvaluator, Levels
from descend.run.run import Run
from descend.tasks import Task
from descend.tasks.splits import evenly
from descend.tasks.text.language import IGNORED
from descend.tiles import rows_per_tile

WARM_UP, REPEATS = 2, 9
"""Forward passes before those that are timed, and of how many the least time of each layer is taken."""

COST = 0.005
"""What early exits may cost, in the metric: half a point of accuracy."""

THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)

PROMPTS, NEW_TOKENS = 16, 64


@torch.no_grad()
def latency(run: Run, levels: Levels) -> Iterator[tuple[str, Latency]]:
    """Time one batch up to each layer and one readout there, on clean inputs; of models that name their layers.

    The time of layer l is that of the embedding, blocks 1 … l and one readout: what a model cut after layer l needs. A
    language model reads its last token alone, as in generation. UT and DUST read every layer they pass.

    Each layer's own part is the least of `REPEATS` passes, and the parts add up: whatever else the machine does can
    only lengthen a pass, so one busy moment does not show as a slow layer. In milliseconds per sample.
    """
    model, device = run.model, torch.device(run.batches.device)
    blocks = list(dict.fromkeys(model.layer_modules))
    if not blocks and not isinstance(model, UnrolledModel):
        return
    chosen = evenly(len(run.samples), run.batches.size)
    inputs = run.task.inputs(next(run.batches.of(Subset(run.samples, chosen))))
    timed = _by_blocks if blocks else _by_predictions
    with evaluating(model):
        rounds = counted(range(WARM_UP + REPEATS), "timing layers", "round")
        passes = [timed(model, blocks, inputs, device) for _ in rounds][WARM_UP:]
    if any(len(seconds) != model.depth + 1 for seconds in passes):
        return
    parts = [[after - before for before, after in pairwise([0.0, *seconds])] for seconds in passes]
    milliseconds = [1000 / len(chosen) * least for least in accumulate(map(min, zip(*parts, strict=True)))]
    yield (
        "latency",
        Latency(
            device=device_name(device),
            batch_size=len(chosen),
            network=_shapes(model, inputs),
            milliseconds=milliseconds,
        ),
    )


def _shapes(model: nn.Module, inputs: Any) -> str:
    """A hash of what a network's time depends on: its weights' names and shapes, and those of its inputs."""
    given = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    sizes = [(name, tuple(weight.shape), str(weight.dtype)) for name, weight in model.named_parameters()]
    sizes += [("", tuple(each.shape), str(each.dtype)) for each in given if isinstance(each, Tensor)]
    return hashlib.blake2b(repr((type(model).__name__, sizes)).encode(), digest_size=8).hexdigest()


def device_name(device: torch.device) -> str:
    """The device in words, such as ``NVIDIA H100`` or ``CPU (x86_64), 1 thread``."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine() or 'unknown'}), {threads} thread{'s' * (threads > 1)}"


def _by_blocks(model: LayeredModel, blocks: list[nn.Module], inputs: Any, device: torch.device) -> list[float]:
    """Seconds to each layer, from hooks on the blocks."""
    stamps: list[float] = []

    def before(*_: Any) -> None:
        if not stamps:
            stamps.append(now(device))

    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block.register_forward_pre_hook(before))
            stack.enter_context(block.register_forward_hook(lambda *_: stamps.append(now(device))))
        began = now(device)
        state = model.layer_outputs(inputs)[-1]
    read = now(device)
    model.readout(state[:, -1] if isinstance(model, LayeredCausalLM) else state)
    readout = now(device) - read
    return [stamp - began + readout for stamp in stamps]


def _by_predictions(model: LayeredModel, blocks: list[nn.Module], inputs: Any, device: torch.device) -> list[float]:
    """Seconds to each layer, of a model that computes a layer when its prediction is asked for."""
    began = now(device)
    return [now(device) - began for _ in model.predictions(inputs)]


def now(device: torch.device) -> float:
    """The time at which all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class EarlyExits(FurtherEvaluator):
    """Early exits of a classifier, chosen on validation data; of a language model the drafts of its first layers.

    Args:
        risk: Certify the exit threshold for this risk, see `descend.evaluation.risk_control`; it is saved with the
            model, where `DescentClassifier` finds it. None for the threshold that costs at most `COST`.
        confidence: With ``risk``, how sure that bound must be; 0.95 unless given.

    Raises:
        InputError: If a value lies not between 0 and 1, or ``confidence`` is given without ``risk``.
    """

    def __init__(self, risk: float | None = None, confidence: float | None = None):
        refuse(
            (
                risk is None and confidence is not None,
                "--confidence goes with --risk; add --risk, such as --risk 0.01.",
            ),
            *(
                (
                    share is not None and not (isinstance(share, float | int) and 0 < share < 1),
                    f"--{name} must be a number between 0 and 1, such as 0.01; got {share}.",
                )
                for name, share in (("risk", risk), ("confidence", confidence))
            ),
        )
        self.risk = risk
        self.confidence = CONFIDENCE if confidence is None else confidence

    def check(self, run: Run) -> None:
        """Refuse a risk of a language model, or on data that a model without its run may have seen."""
        refuse(
            (
                self.risk is not None and run.alone and not run.unseen,
                "--risk takes data that the model has not seen, in any split; what a model without its run was trained "
                "on is unknown, and on its training data it loses too few answers. Give data that it has not seen by "
                "--data, and say that it has not by --unseen.",
            )
        )
        super().check(run)
        refuse(
            (
                self.risk is not None and not isinstance(run.model, LayeredClassifier),
                "--risk certifies the exits of classifiers; a language model's drafts are checked by all its layers. "
                "Leave out --risk.",
            )
        )

    def __call__(self, run: Run, levels: Levels) -> Iterable[tuple[str, Any]]:
        """Yields ``exit`` of a classifier, ``speculation`` of a language model."""
        if isinstance(run.model, LayeredClassifier):
            return exits(run, levels, validation=run.data.validation, risk=self.risk, confidence=self.confidence)
        return speculation(run, levels, ignored=IGNORED)


def exits(
    run: Run,
    levels: Levels,
    *,
    validation: Dataset,
    risk: float | None = None,
    confidence: float = CONFIDENCE,
) -> Iterator[tuple[str, Exits]]:
    """A classifier's metric against the mean number of layers used, on clean inputs, by confidence.

    The threshold is chosen on ``validation``: of those that cost at most `COST`, the one with the fewest layers; or
    with ``risk`` the boldest one that `certify` certifies. It is then compared with full depth on the run's data;
    the time is measured with layers really skipped.

    Args:
        run: A classifier with `exits`, and the samples to report.
        levels: What was measured on them; clean inputs are measured here where they are not among the levels.
        validation: Samples to choose the threshold on.
        risk: The share of samples that may lose an answer that full depth has right; None to choose by `COST`.
        confidence: How sure that bound must be.
    """
    model, task, batches = run.model, run.task, run.batches
    with progress(len(validation), "choosing exits", "validation sample") as bar:  # type: ignore[arg-type]
        (chosen_on,) = measure(model, task, batches.of(validation), progress=bar)
    reported = levels.get(0.0)
    if reported is None:
        with progress(len(run.samples), "evaluating exits", "sample") as bar:
            (reported,) = measure(model, task, batches.of(run.samples), progress=bar)
    guarantee = None
    if risk is not None:
        guarantee = on_test_data(certify(chosen_on, risk, confidence, noise=0.0), reported)
    threshold = _affordable(chosen_on, task) if guarantee is None else guarantee.threshold
    point = _reached(reported, task, threshold)
    ratio = 1.0 if threshold is None else _time_ratio(run, threshold)
    result = Exits(
        full=reported.metrics[-1],
        depth=model.depth,
        confidence=[_reached(reported, task, each) for each in THRESHOLDS],
        chosen=ChosenExit(layers=point.layers, value=point.value, threshold=threshold, time_ratio=ratio),
    )
    yield "exit", result if guarantee is None else result.model_copy(update={"guarantee": guarantee})


def _affordable(measured: LayerLosses, task: Task) -> float:
    """The threshold with the fewest layers among those that cost at most `COST`."""
    sign = 1 if task.higher_is_better else -1
    points = [_reached(measured, task, threshold) for threshold in THRESHOLDS]
    enough = [point for point in points if sign * (measured.metrics[-1] - point.value) <= COST + 1e-12]
    cheapest = min(enough, key=lambda point: point.layers, default=None)
    return (cheapest and cheapest.threshold) or 1.0


def _reached(measured: LayerLosses, task: Task, threshold: float | None) -> ExitPoint:
    """The mean number of layers used, and the metric."""
    layers = measured.exit_layers(threshold)
    value = metric_value(task, measured.scores_at(layers).sum().item(), len(layers))
    return ExitPoint(threshold=threshold, layers=layers.double().mean().item(), value=value)


@torch.no_grad()
def _time_ratio(run: Run, threshold: float) -> float:
    """Seconds with early exits over seconds of the whole forward pass, batch by batch in turn."""
    model: Any = run.model
    device, seconds = torch.device(run.batches.device), [0.0, 0.0]
    model.eval()
    count = len(run.batches.loader(run.samples))
    batches = counted(run.batches.of(run.samples), "timing exits", "part", count)
    for turn, batch in enumerate(batches):
        inputs = run.task.inputs(batch)
        passes = (lambda inputs=inputs: model(**inputs), lambda inputs=inputs: model.exits(inputs, leave_at(threshold)))
        for each in passes if not turn else ():  # both are warm before they are timed
            each()
        for early in (turn % 2, 1 - turn % 2):  # each goes first in turn
            began = now(device)
            passes[early]()
            seconds[early] += now(device) - began
    return seconds[1] / seconds[0]


@torch.no_grad()
def speculation(run: Run, levels: Levels, *, ignored: int, prompts: int = PROMPTS) -> Iterator[tuple[str, Speculation]]:
    """The share of tokens on which the first k layers agree with the whole model.

    The whole model answers some prompts greedily, on clean inputs. One forward pass over each answer reads the tokens
    that every exit would have drafted.

    Args:
        run: A causal language model, and tokenized samples with ``input_ids`` and ``labels``; what comes before the
            first target is the prompt.
        levels: What was measured.
        ignored: The label of a token that is no target.
        prompts: How many samples to answer, evenly chosen.

    Yields:
        ``speculation``: for every k = 1 … L−1 in ``layers`` its ``acceptance``, the share of the answers' tokens that
        exit k predicts from the tokens before them.
    """
    model, dataset = run.model, run.samples
    if not isinstance(model, LayeredCausalLM) or model.depth < 2:
        return
    chosen = [dataset[place] for place in evenly(len(dataset), prompts)]
    asked = [_prompt(sample, ignored, run.batches.device) for sample in chosen]
    model.saved.eval()
    answers = [_answer(model, ids) for ids in counted(asked, "answering", "prompt")]
    written = sum(answer.shape[1] - ids.shape[1] for answer, ids in zip(answers, asked, strict=True))
    agreed = sum((agreements(model, *each) for each in zip(answers, asked, strict=True)), torch.zeros((), device="cpu"))
    layers = [
        Drafts(layer=layer, acceptance=share)
        for layer, share in enumerate((agreed / max(written, 1)).tolist() if written else [], start=1)
    ]
    yield "speculation", Speculation(prompts=len(asked), layers=layers)


def agreements(model: LayeredCausalLM, answer: Tensor, prompt: Tensor) -> Tensor:
    """On how many tokens of an answer each exit 1 … L−1 agrees with the whole model, (L−1,), from one forward pass.

    Args:
        model: The model.
        answer: The prompt and the tokens that the whole model wrote, (1, P + N).
        prompt: The prompt, (1, P).
    """
    count = torch.zeros(model.depth - 1, dtype=torch.float64, device="cpu")
    start, written = prompt.shape[1], answer[0, prompt.shape[1] :]
    if not len(written):
        return count
    tokens = answer[:, :-1]
    states = model.layer_outputs({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})
    size = rows_per_tile(model.limits["vocabulary"])
    for layer, hidden in enumerate(states[1:-1], start=1):
        for rows, right in zip(hidden[0, start - 1 :].split(size), written.split(size), strict=True):
            count[layer - 1] += (model.readout(rows, layer=layer).argmax(-1) == right).sum().item()
    return count


def _prompt(sample: dict[str, Any], ignored: int, device: torch.device | str) -> Tensor:
    ids, labels = sample["input_ids"], sample["labels"]
    start = next((place for place, label in enumerate(labels) if label != ignored), len(ids))
    return torch.tensor([ids[: max(1, start)]], device=device)


def _answer(model: LayeredCausalLM, ids: Tensor) -> Tensor:
    """A prompt (1, P) with what the model writes after it, (1, P + N)."""
    room = min(NEW_TOKENS, model.limits["length"] - ids.shape[1])
    network: Any = model.saved
    settings = {"max_new_tokens": room, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    return network.generate(input_ids=ids, **settings) if room > 1 else ids
