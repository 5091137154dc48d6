"""What cells need, estimated before anything runs: memory, processes and floating-point operations.

The estimates are arithmetic on published sizes. Memory of training, in float32 with AdamW: 16 bytes a parameter
(weight, gradient and two moments), and for each layer and token of a step about 17 numbers for each of the model's
width (Korthikanti et al. 2022, without attention scores, which are not stored). FLOPs: 6 for each parameter that a
trained token meets and 2 where it is judged at a noise level; attention scores, validation and σ_x are left out.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from reproduction.costs import Costs
from reproduction.grid import cells, names
from reproduction.records import Cell, Settings

GIB = 2.0**30
STATE = 16
"""Bytes of a trained parameter."""
ACTIVATIONS = 17
"""Numbers of the model's width that a layer keeps for a token."""
LOGITS = 3 * 2.0**28
"""Bytes of logits that a causal language model holds at a time: a tile of 256 MiB, its softmax and its gradient."""
USABLE = 0.9
"""Share of a card's memory that is used; the rest is fragments and buffers."""
CARD_GB = 80.0
TFLOPS = 20.0
"""Sustained TFLOP/s assumed of an accelerator in float32: an assumption, not a measurement."""

BATCHES = {
    **{"video-ut": 4, "video-dust": 2, "video-vit": 4},
    **{"text-ut": 32, "text-distilbert": 32, "text-roberta": 32, "llm-sft": 16},
}
"""Recipe → its usual batch size."""
WINDOW, PATCHES, PIXELS, WORDS = 5, 100, 256, 30522
"""The recipes' usual frames of a window; patches of a frame; pixels of a patch; words of a BERT tokenizer."""
LAST_EXIT = ("erm", "neftune", "r-drop")
"""Methods that read the last layer alone in training."""


class Pretrained(NamedTuple):
    """Sizes of a published model: all parameters, width, those of a layer, and those of a language model's head."""

    parameters: float
    width: int
    layer: float
    head: float = 0.0


PRETRAINED = {
    "google/vit-base-patch16-224": Pretrained(86e6, 768, 7.1e6),
    "distilbert-base-uncased": Pretrained(66e6, 768, 7.1e6),
    "FacebookAI/roberta-large": Pretrained(355e6, 1024, 12.6e6),
    "meta-llama/Llama-3.1-8B": Pretrained(8.03e9, 4096, 218.1e6, 525.3e6),
    "{out}/models/stories260K": Pretrained(260e3, 64, 45.3e3, 32.8e3),
}


class Amount(NamedTuple):
    """Samples to train on, samples of the test part, and the mean tokens of a text (0: every sample is as long)."""

    train: int
    test: int
    tokens: int = 0


AMOUNTS = {
    # The subsets that costs.json was measured on. Videos and Alpaca run for a number of steps.
    "small": {
        **{"ucsd": Amount(0, 70), "avenue": Amount(0, 200), "shanghaitech": Amount(0, 300)},
        **{"imdb": Amount(3200, 2000, 64), "mnli": Amount(6400, 2000, 40), "alpaca": Amount(4800, 600, 180)},
    },
    # The published data sets, less the recipes' validation parts; windows of five frames.
    "paper": {
        **{"ucsd": Amount(1860, 400), "avenue": Amount(11_400, 3060), "shanghaitech": Amount(218_600, 8580)},
        **{"imdb": Amount(20_000, 25_000, 250), "mnli": Amount(314_200, 9815, 40), "alpaca": Amount(41_600, 5200, 100)},
    },
}
"""Scale → data set → how much there is of it, rounded."""


class Size(NamedTuple):
    """The size of a cell's model.

    Attributes:
        parameters: All that are trained.
        layer: Parameters that a token meets in a layer.
        readout: Parameters that a token meets in an exit.
        width: Numbers of a hidden state.
        tokens: Of the longest sample.
        gathered: Parameters that FSDP2 has whole at a time: what is outside the blocks, and a block.
    """

    parameters: float
    layer: float
    readout: float
    width: int
    tokens: int
    gathered: float


def size(cell: Cell) -> Size:
    """The size of a cell's model, by its recipe and settings."""
    given = cell.settings
    # With preset paper unrolled models have weights for each layer where they are constrained.
    tied = bool(given.get("tied", given.get("preset") != "paper"))
    if cell.recipe == "video-ut":
        layer = PIXELS * (PIXELS + 32.0)
        parameters = layer * (1 if tied else cell.depth)
        return Size(parameters, layer, 0, PIXELS, _window(given) * PATCHES, parameters)
    if cell.recipe == "video-dust":
        atoms = _number(given, "atoms", 1024)
        dictionary = float(PIXELS * atoms)
        parameters = dictionary * (1 if tied else cell.depth + 1)
        # A layer uses D twice. Tied layers take over the exit before; others compute their exits beside.
        readout = 0.0 if tied else dictionary
        return Size(parameters, 2 * dictionary, readout, atoms, _window(given) * PATCHES, parameters)
    known = PRETRAINED.get(str(given.get("model", given.get("pretrained"))))
    width = known.width if known else _number(given, "hidden_size", 128)
    if cell.recipe == "text-ut":
        layer = width * (width + 64.0)
        parameters = WORDS * width + layer * (1 if tied else cell.depth)
        return Size(parameters, layer, 0, width, _number(given, "max_length", 128), parameters)
    layer = known.layer if known else 12.0 * width**2
    head = known.head if known else 0.0
    if cell.recipe == "video-vit":
        tokens = _window(given) * (197 if known else PATCHES + 1)
        parameters, head = known.parameters if known else layer * cell.depth, float(PIXELS * width)
    else:
        tokens = _number(given, "max_length", 256 if cell.task == "language" else 128)
        parameters = known.parameters if known else layer * cell.depth + WORDS * width
    return Size(parameters, layer, head, width, tokens, parameters - layer * (cell.depth - 1))


def batch(cell: Cell) -> int:
    """Samples of a step."""
    return _number(cell.settings, "per_device_train_batch_size", BATCHES[cell.recipe])


def memory(cell: Cell, processes: int = 1) -> float:
    """GiB that each of some processes needs to train a cell; with several, parameters are sharded by FSDP2."""
    of = size(cell)
    activations = 4.0 * ACTIVATIONS * of.width * cell.depth * of.tokens * batch(cell)
    whole = 8 * of.gathered if processes > 1 else 0.0  # weights and gradients
    logits = LOGITS if cell.task == "language" else 0.0
    return ((STATE * of.parameters + activations) / processes + whole + logits) / GIB


def processes(cell: Cell, card: float = CARD_GB) -> int | None:
    """The fewest processes, one a card, that can train a cell without changing its batch; None if none can.

    Args:
        cell: The cell.
        card: Memory of a card in GB, 10⁹ bytes.
    """
    room = USABLE * card * 1e9 / GIB
    fitting = (count for count in range(1, batch(cell) + 1) if batch(cell) % count == 0)
    return next((count for count in fitting if memory(cell, count) <= room), None)


def steps(cell: Cell, amount: Amount) -> int:
    """Optimizer steps of a cell."""
    fixed = _number(cell.settings, "max_steps", -1)
    if fixed > 0:
        return fixed
    return math.ceil(amount.train / batch(cell)) * _number(cell.settings, "num_train_epochs", 1)


def flops(cell: Cell, amount: Amount) -> float:
    """Floating-point operations to train and judge a cell."""
    of, judge = size(cell), cell.judge
    tokens = min(amount.tokens, of.tokens) if amount.tokens else of.tokens
    inner: Any = cell.settings.get("exit_share", 1)
    exits = 1.0 if cell.settings.get("method") in LAST_EXIT else 1 + cell.depth * float(inner)
    trained = 6 * (cell.depth * of.layer + exits * of.readout) * batch(cell) * steps(cell, amount)
    samples = min(_number(judge, "most", amount.test), amount.test)
    levels: Any = judge.get("noise", [])
    judged = 2 * (cell.depth * of.layer + (cell.depth + 1) * of.readout) * samples * len(levels)
    return tokens * (trained + judged)


@dataclass(frozen=True)
class Need:
    """What the cells of one recipe need.

    Attributes:
        recipe: The recipe.
        cells: How many there are.
        memory: GiB of one process that trains the largest of them.
        processes: The fewest that can train the largest, one a card; None if none can.
        flops: Floating-point operations of all; None if the scale's data have no stated size.
        core_hours: Hours of all on one core, at the speed of scale small; None if that is not known.
    """

    recipe: str
    cells: int
    memory: float
    processes: int | None
    flops: float | None
    core_hours: float | None

    def hours(self, tflops: float) -> float | None:
        """Hours of all on one accelerator at a sustained speed."""
        return None if self.flops is None else self.flops / (tflops * 1e12) / 3600


def needs(planned: Sequence[Cell], scale: str, card: float = CARD_GB) -> list[Need]:
    """What cells need, recipe by recipe."""
    amounts = AMOUNTS.get(scale)
    found = []
    for recipe in dict.fromkeys(cell.recipe for cell in planned):
        own = [cell for cell in planned if cell.recipe == recipe]
        largest = max(own, key=memory)
        total = sum(flops(cell, amounts[cell.data]) for cell in own) if amounts else None
        speed = core_speed(recipe) if total is not None else None
        hours = total / speed / 3600 if total is not None and speed else None
        found.append(Need(recipe, len(own), memory(largest), processes(largest, card), total, hours))
    return found


def core_speed(recipe: str) -> float | None:
    """FLOP/s of a recipe on one core: those of its cells at scale small, by the seconds of ``costs.json``."""
    costs = Costs("small")
    timed = [(cell, seconds) for cell in _of(recipe) if (seconds := costs.of(cell))]
    done = sum(flops(cell, AMOUNTS["small"][cell.data]) for cell, _ in timed)
    return done / sum(seconds for _, seconds in timed) if timed else None


def _of(recipe: str) -> Iterable[Cell]:
    return (cell for cell in cells(names(["all"]), "small") if cell.recipe == recipe)


def _window(given: Settings) -> int:
    return _number(given, "window", WINDOW)


def _number(given: Settings, name: str, usual: int) -> int:
    value: Any = given.get(name, usual)
    return int(value)
