"""How long a model computes until each layer can be read."""

import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.data import Subset

from descend.evaluation.evaluate import Levels, Subject
from descend.evaluation.layers import evenly
from descend.models.causal import LayeredCausalLM
from descend.models.denoiser import UnrolledModel
from descend.models.layered import LayeredModel
from descend.models.modules import evaluating
from descend.results import Latency

WARM_UP, REPEATS = 2, 9
"""Forward passes before those that are timed, and of how many the least time of each layer is taken."""


@torch.no_grad()
def latency(subject: Subject, levels: Levels) -> Iterator[tuple[str, Latency]]:
    """Time one batch up to each layer and one readout there, on clean inputs; of models that name their layers.

    The time of layer l is that of the embedding, blocks 1 … l and one readout: what a model cut after layer l needs. A
    language model reads its last token alone, as in generation. UT and DUST read every layer they pass.

    Each layer's own part is the least of `REPEATS` passes, and the parts add up: whatever else the machine does can
    only lengthen a pass, so one busy moment does not show as a slow layer. In milliseconds per sample.
    """
    model, device = subject.model, torch.device(subject.batches.device)
    blocks = list(dict.fromkeys(model.layer_modules))
    if not blocks and not isinstance(model, UnrolledModel):
        return
    chosen = evenly(len(subject.data), subject.batches.size)
    inputs = subject.task.inputs(next(subject.batches.of(Subset(subject.data, chosen))))
    timed = _by_blocks if blocks else _by_predictions
    with evaluating(model):
        passes = [timed(model, blocks, inputs, device) for _ in range(WARM_UP + REPEATS)][WARM_UP:]
    if any(len(seconds) != model.depth + 1 for seconds in passes):
        return
    parts = [[after - before for before, after in pairwise([0.0, *seconds])] for seconds in passes]
    per_sample = 1000 / len(chosen)
    milliseconds = [per_sample * least for least in accumulate(map(min, zip(*parts, strict=True)))]
    yield "latency", Latency(device=device_name(device), batch_size=len(chosen), milliseconds=milliseconds)


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
