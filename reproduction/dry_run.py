"""What scale paper needs in memory and hours, by arithmetic on published sizes. Nothing is started.

Memory of training in float32 with Adam: 16 bytes a parameter (weight, gradient, two moments), and 17 numbers of the
width for each token of a step in each layer (Korthikanti et al. 2022). Operations: 6 for each parameter that a trained
token meets in layers and exits, 2 where it is evaluated at a noise level; attention scores are left out.
"""

from collections.abc import Sequence
from typing import NamedTuple

from reproduction.cells import PAPER_ARMS, Cell, Scale

GIB = 2.0**30


class Size(NamedTuple):
    """A model: parameters in all, in each layer and in an exit, and its width."""

    parameters: float
    layer: float
    readout: float
    width: int


class Amount(NamedTuple):
    """A data set: samples to train on and to test on, and tokens of a sample (videos: of a window of five frames)."""

    train: int
    test: int
    tokens: int


SIZES = {
    "UT": Size(516e3, 73.7e3, 0, 256),  # without weights that layers share
    "DUST": Size(1.8e6, 524e3, 262e3, 1024),
    "ViT": Size(86e6, 7.1e6, 0, 768),
    "UT-text": Size(24e6, 640e3, 1.5e3, 768),
    "DistilBERT": Size(66e6, 7.1e6, 1.5e3, 768),
    "RoBERTa": Size(355e6, 12.6e6, 2e3, 1024),
    "Llama": Size(8.03e9, 218.1e6, 525.3e6, 4096),
}

AMOUNTS = {
    "ped2": Amount(1860, 400, 500),
    "avenue": Amount(11_400, 3060, 500),
    "shanghaitech": Amount(218_600, 8580, 500),
    "imdb": Amount(20_000, 25_000, 250),
    "mnli": Amount(314_200, 9815, 40),
    "alpaca": Amount(41_600, 5200, 100),
}


def memory(cell: Cell) -> float:
    """GiB of one process that trains a cell."""
    size, tokens = SIZES[cell.model], AMOUNTS[cell.data].tokens * cell.settings["per_device_train_batch_size"]
    exits = 3 * size.readout / size.width * tokens  # logits, softmax and gradient of one exit at a time
    return (16 * size.parameters + 4 * (17 * size.width * cell.depth * tokens + exits)) / GIB


def flops(cell: Cell) -> float:
    """Floating-point operations of a cell."""
    size, amount = SIZES[cell.model], AMOUNTS[cell.data]
    read = 1 + (cell.depth if cell.arm in PAPER_ARMS else 0)
    trained = 6 * (cell.depth * size.layer + read * size.readout) * amount.train * cell.settings["num_train_epochs"]
    levels = len(cell.evaluate["noise"].split(","))
    evaluated = 2 * (cell.depth * size.layer + (cell.depth + 1) * size.readout) * amount.test * levels
    return amount.tokens * (trained + evaluated)


def lines(scale: Scale, planned: Sequence[Cell], tflops: float) -> list[str]:
    """A line for each model: cells, GiB of the largest, and hours of one GPU at a sustained speed.

    Args:
        scale: The scale.
        planned: Its cells.
        tflops: TFLOP/s of the GPU; an assumption, and too fast for small models.
    """
    rows, total = [f"{'model':12} {'cells':>6} {'GiB':>7} {'PFLOP':>10} {'GPU hours':>10}"], 0.0
    for model in scale.models:
        cells = [cell for cell in planned if cell.model == model]
        done = sum(map(flops, cells))
        hours, total = done / (tflops * 1e12) / 3600, total + done
        rows.append(f"{model:12} {len(cells):6} {max(map(memory, cells)):7.1f} {done / 1e15:10,.0f} {hours:10,.1f}")
    hours = total / (tflops * 1e12) / 3600
    return [*rows, f"{'all':12} {len(planned):6} {'':7} {total / 1e15:10,.0f} {hours:10,.1f}"]
