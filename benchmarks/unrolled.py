"""Who wins on unrolled networks: the cells of unrolled_plan.md, run in this process, and their tables."""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

import descend
from descend.evaluation.layers import Batches, measure
from descend.models import evaluating
from descend.noise import StateNoise
from descend.training import DescentTrainer
from reproduction.table import holm

RATES = (3e-3, 1e-2, 3e-2)
SEARCHED, SEEDS = range(3), range(5)
"""The seeds of the rates, and of the arms at their chosen rate."""

SAME: dict[str, Any] = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "lr_scheduler_type": "linear",
    "weight_decay": 0.0,
    "calibrate": False,
    "logging_steps": 100,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}
"""Settings of all cells."""


class Network(NamedTuple):
    """A network with its problem.

    Attributes:
        recipe: The recipe; empty for the looped transformer, which is a network of this file.
        iterations: K.
        settings: Of the recipe and the training.
        tied: Whether it can run past K.
        shifts: Name → the test data, the noise level γ and its kind.
        without: Arms that it is not trained by.
    """

    recipe: str
    iterations: int
    settings: dict[str, Any]
    tied: bool
    shifts: dict[str, tuple[str, float, str]]
    without: tuple[str, ...] = ()


def _shifts(other: str, trained: float = 0.1) -> dict[str, tuple[str, float, str]]:
    """The shifts of a recipe whose other signals have this name."""
    levels = {f"noise {level:g}": ("generated", level, "gaussian") for level in (0.0, 0.2, 0.4)}
    return {
        "as trained": ("generated", trained, "gaussian"),
        **levels,
        "other operator": ("other-operator", trained, "gaussian"),
        "other signals": (other, trained, "gaussian"),
        "noise between layers": ("generated", trained, "states"),
    }


_LISTA = {"max_steps": 1500, "per_device_train_batch_size": 128}
_PGD = {"max_steps": 1000, "per_device_train_batch_size": 32}
_LOOPED = {"max_steps": 600, "per_device_train_batch_size": 32}

NETWORKS = {
    "LISTA": Network("lista", 10, _LISTA, False, _shifts("denser")),
    "PGD": Network("pgd", 5, _PGD, False, _shifts("finer")),
    "LISTA tied": Network("lista", 10, {**_LISTA, "tied": True}, True, _shifts("denser"), ("geometric-.8",)),
    "PGD tied": Network("pgd", 5, {**_PGD, "tied": True}, True, _shifts("finer"), ("geometric-.8",)),
    "looped": Network(
        "",
        6,
        _LOOPED,
        True,
        {f"noise {level:g}": ("", level, "gaussian") for level in (0.0, 0.5, 1.0)},
        ("linear", "geometric-.2", "geometric-.8", "alpha-.1", "penalty", "erm-2K"),
    ),
}

FIRST = ("erm", "linear", "geometric-.2", "random-2K", "no-worse")
"""The arms of the primary comparisons, which run before the others."""

ARMS: dict[str, dict[str, Any]] = {
    "erm": {"method": "erm"},
    "linear": {"method": "linear"},
    "geometric-.2": {"method": "constrained", "strength": 0.2},
    "geometric-.8": {"method": "constrained", "strength": 0.8},
    "alpha-.1": {"method": "constrained", "alpha": 0.1},
    "penalty": {
        "method": "constrained",
        "alpha": 1e-6,
        "stop_gradient": True,
        "dual_optimizer": "fixed",
        "dual_lr": 1.0,
        "dual_warmup_steps": 0.0,
        "resilience": 0.0,
    },
}
"""Arms of all networks, over K iterations."""

FURTHER_ARMS: dict[str, dict[str, Any]] = {
    "erm-2K": {"method": "erm"},
    "linear-2K": {"method": "linear"},
    "random-2K": {"method": "random-depth"},
    "no-worse": {"method": "constrained", "after": True},
    "no-worse-.1": {"method": "constrained", "after": True, "alpha": 0.1},
}
"""Arms of tied networks, over 2K iterations; ``after`` is K."""

_DISTANCES = {"loss": "distance", "between": True}
_RATIOS = {
    "method": "constrained",
    "alpha": 0.05,
    "form": "ratio",
    "stop_gradient": False,
    "dual_lr": 1e-3,
    "dual_warmup_steps": 0.0,
    "resilience": 0.0,
}

PRECURSOR_ARMS: dict[str, dict[str, Any]] = {
    "distance": {"method": "erm", **_DISTANCES},
    "precursor": {**_RATIOS, **_DISTANCES, "dual_every": "epoch"},
    "precursor-step": {**_RATIOS, **_DISTANCES},
}
"""Arms of LISTA alone."""

AFTERWARDS: dict[str, dict[str, Any]] = {
    "alpha-.1-exempt": {"method": "constrained", "alpha": "exempt"},
    "ratio-.1": {"method": "constrained", "alpha": 0.1, "form": "ratio"},
}
"""Arms of PGD that were tried after the others were seen: the last iteration is exempt from α, and the ratio form."""


class Interval(NamedTuple):
    """A mean difference, half the width of its 95 % interval, and the two-sided p of Student's test."""

    mean: float
    half: float
    p: float


class Cell(NamedTuple):
    """One training with its evaluations."""

    network: str
    arm: str
    rate: float
    seed: int


def arms_of(name: str) -> dict[str, dict[str, Any]]:
    """The arms of a network."""
    further = FURTHER_ARMS if NETWORKS[name].tied else {}
    every = ARMS | further | {"LISTA": PRECURSOR_ARMS, "PGD": AFTERWARDS}.get(name, {})
    return {arm: settings for arm, settings in every.items() if arm not in NETWORKS[name].without}


def open_cells(rows: Sequence[dict[str, Any]]) -> Iterator[Cell]:
    """The cells that are not among rows, by worth: an arm's runs at all rates, then further seeds at the chosen one."""
    done = {Cell(*(row[name] for name in Cell._fields)) for row in rows}
    every = [(name, arm) for name in NETWORKS for arm in arms_of(name)]
    for name, arm in sorted(every, key=lambda pair: pair[1] not in FIRST):
        cells = [Cell(name, arm, rate, seed) for rate in RATES for seed in SEARCHED]
        if all(cell in done for cell in cells):
            rate = chosen_rate(rows, name, arm)
            cells = [Cell(name, arm, rate, seed) for seed in SEEDS]
        yield from (cell for cell in cells if cell not in done)


def chosen_rate(rows: Sequence[dict[str, Any]], network: str, arm: str) -> float:
    """The rate with the lowest mean validation loss at iteration K over the seeds of the rates."""
    losses: dict[float, list[float]] = {}
    for row in rows:
        if (row["network"], row["arm"]) == (network, arm) and row["seed"] in SEARCHED and row["rate"] in RATES:
            loss = row["validation"][NETWORKS[network].iterations]
            losses.setdefault(row["rate"], []).append(loss if math.isfinite(loss) else math.inf)
    return min(losses, key=lambda rate: sum(losses[rate]) / len(losses[rate]))


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train a cell and measure it; a row."""
    network = NETWORKS[cell.network]
    chosen = dict(arms_of(cell.network)[cell.arm])
    depth = network.iterations * (2 if cell.arm in FURTHER_ARMS else 1)
    if chosen.get("after"):
        chosen["after"] = network.iterations
    if chosen.get("alpha") == "exempt":  # α of 1e-6 asks for nothing but no rise
        chosen["alpha"] = [0.1] * (depth - 1) + [1e-6]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = SAME | network.settings | chosen | {"learning_rate": cell.rate, "seed": cell.seed}
        trainer: Any
        if network.recipe:
            settings |= {"data": "generated", "depth": depth, "output_dir": folder}
            trainer = descend.configure(network.recipe, **settings).trainer()
        else:
            trainer = looped_trainer(folder, depth, settings)
        diverged = ""
        try:
            trainer.train()
        except descend.NonFiniteLossError as error:
            diverged = str(error)[:200]
        seconds = time.perf_counter() - began
        multipliers = trainer.dual.multipliers.tolist()
    row: dict[str, Any] = {**cell._asdict(), "seconds": round(seconds, 1), "multipliers": multipliers}
    if diverged:
        nothing = [math.nan] * (3 * network.iterations + 1)
        return row | {"diverged": diverged, "validation": nothing, "test": dict.fromkeys(network.shifts, nothing)}
    row["validation"] = _losses(trainer, cell.network, "validation", *next(iter(network.shifts.values())))
    row["test"] = {name: _losses(trainer, cell.network, "test", *shift) for name, shift in network.shifts.items()}
    return row


def _losses(trainer: Any, name: str, part: str, data: str, level: float, kind: str) -> list[float]:
    """The mean loss at iterations 0 to K, or to 3K of a tied network; ``mse`` or ``nmse`` whatever was trained."""
    network, objective = NETWORKS[name], trainer.objective
    dataset, sigma = _data(network.recipe, part, data)
    noise = (StateNoise if kind == "states" else descend.GaussianNoise)(level, sigma)
    iterations = 3 * network.iterations if network.tied else network.iterations
    batches = Batches(500)
    with objective.model.running(iterations) if network.tied else nullcontext(), evaluating(objective.model):
        (layers,) = measure(objective.model, objective.task, batches.of(dataset), [noise])
    values = layers.scores if network.recipe else layers.losses
    return [float(f"{value:.6g}") for value in values.mean(0).tolist()]


@cache
def _data(recipe: str, part: str, data: str) -> tuple[Any, float | None]:
    """The samples of a part, and σ_x."""
    if not recipe:
        return digits(part), 1.0
    kind = descend.configure(recipe, data="generated", output_dir="unused").recipe
    assert kind is not None
    return kind.measured(part, data), kind.measured("train").sigma  # type: ignore[attr-defined]


class LoopedTransformer(nn.Module):
    """One transformer block, run several times on the 8 rows of an image.

    Args:
        loops: How often.
        width: Of the states.
    """

    def __init__(self, loops: int, width: int = 32):
        super().__init__()
        self.loops = loops
        self.embed = nn.Linear(8, width)
        self.place = nn.Parameter(0.1 * torch.randn(8, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """The logits (B, 10) of images (B, 8, 8)."""
        hidden = self.embed(rows) + self.place
        for _ in range(self.loops):
            hidden = self.block(hidden)
        return self.read(hidden)

    def read(self, hidden: Tensor) -> Tensor:
        """The logits (B, 10) of a state (B, 8, H)."""
        return self.head(self.norm(hidden).mean(1))


class Digits(descend.Task):
    """Cross-entropy of ten digits."""

    metric, higher_is_better = "accuracy", True

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss of each image, (N,)."""
        return F.cross_entropy(prediction, target, reduction="none")

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Whether each image's digit is the likeliest, (N,)."""
        return (prediction.argmax(-1) == target).float()


@cache
def digits(part: str) -> list[dict[str, Any]]:
    """A part of scikit-learn's 1,797 images: 1,000 to train on, 300 for validation, the others for test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).tolist()
    ends = {"train": slice(0, 1000), "validation": slice(1000, 1300), "test": slice(1300, None)}[part]
    rows = torch.tensor(images, dtype=torch.float32).view(-1, 8, 8) / 16
    return [{"rows": rows[index], "labels": int(labels[index])} for index in order[ends]]


def looped_trainer(folder: str, loops: int, settings: dict[str, Any]) -> DescentTrainer:
    """The trainer of a looped transformer.

    Args:
        folder: For the run.
        loops: L.
        settings: Training arguments, and settings of recipes, which are not used.
    """
    of_recipe = ("tied", "loss", "between", "depth")
    arguments: Any = {name: value for name, value in settings.items() if name not in of_recipe}
    torch.manual_seed(settings["seed"])
    network = LoopedTransformer(loops)
    model = descend.layered(network, blocks="block", iterations="loops", readout=network.read, embeddings="embed")
    return DescentTrainer(
        model, descend.DescentConfig(output_dir=folder, **arguments), task=Digits(), train_dataset=digits("train")
    )


def read_rows(files: Sequence[Path]) -> list[dict[str, Any]]:
    """The rows of files; one that is not there, as that of a lane which has ended no cell yet, is named."""
    for file in files:
        if not file.is_file():
            print(f"{file} is not there: its cells count as open", flush=True)
    lines = [line for file in files if file.is_file() for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def run(out: Path, known: Sequence[Path], lane: str, minutes: float) -> None:
    """Run cells until none is left, or the time is over."""
    number, lanes = map(int, lane.split("/"))
    torch.set_num_threads(1)
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        rows = read_rows([*known, out])
        cells = list(open_cells(rows))
        mine = next((cell for cell in cells if hash_of(cell) % lanes == number), None)
        if mine is None:
            print(f"{len(rows)} rows; no cell of this lane is left, {len(cells)} of others", flush=True)
            return
        row = run_cell(mine)
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{len(cells) - 1} left; {' '.join(map(str, mine))}: {row['seconds']} s", flush=True)


def hash_of(cell: Sequence[Any]) -> int:
    """A number of a cell that is the same in every process."""
    return sum(map(ord, "".join(map(str, cell))))


def final(rows: Sequence[dict[str, Any]], network: str, arm: str) -> list[dict[str, Any]]:
    """The rows of an arm at its chosen rate, in the order of seeds; empty if it has none."""
    known = [row for row in rows if (row["network"], row["arm"]) == (network, arm)]
    if not any(row["seed"] in SEARCHED and row["rate"] in RATES for row in known):
        return []
    rate = chosen_rate(rows, network, arm)
    return sorted((row for row in known if row["rate"] == rate), key=lambda row: row["seed"])


def score(row: dict[str, Any], what: str, shift: str = "") -> float:
    """A row's test loss in dB: at ``K``, ``2K`` or ``3K``, or in the ``mean`` of the losses at 1 to K."""
    network = NETWORKS[row["network"]]
    losses = row["test"][shift or next(iter(network.shifts))]
    iterations = network.iterations
    ends = {"K": [iterations], "2K": [2 * iterations], "3K": [3 * iterations], "mean": range(1, iterations + 1)}[what]
    value = sum(losses[each] for each in ends) / len(ends)
    return 10 * math.log10(value) if math.isfinite(value) and value > 0 else math.inf


def difference(
    rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], what: str, shift: str = ""
) -> Interval:
    """The paired difference of two arms' scores over their seeds, in dB."""
    rivals = {row["seed"]: score(row, what, shift) for row in others}
    return interval([score(row, what, shift) - rivals[row["seed"]] for row in rows if row["seed"] in rivals])


def interval(pairs: Sequence[float]) -> Interval:
    """The mean of paired differences with its interval."""
    if len(pairs) < 2 or not all(map(math.isfinite, pairs)):
        return Interval(math.nan if not pairs else sum(pairs) / len(pairs), math.inf, math.nan)
    test = stats.ttest_1samp(pairs, 0.0)
    mean = sum(pairs) / len(pairs)
    return Interval(mean, float(test.confidence_interval(0.95).high) - mean, float(test.pvalue))


def in_words(found: Interval) -> str:
    """A difference with its interval, bold where this excludes 0; a dash where nothing is known."""
    if math.isnan(found.mean):
        return "–"
    if not math.isfinite(found.half):
        return f"{found.mean:+.1f}" if math.isfinite(found.mean) else "diverged"
    words = f"{found.mean:+.2f} ± {found.half:.2f}"
    return f"**{words}**" if abs(found.mean) > found.half else words


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The tables of the results page, in Markdown, line by line."""
    for name, network in NETWORKS.items():
        plain = final(rows, name, "erm")
        whats = ["K", "mean", *(["2K", "3K"] if network.tied else [])]
        heads = ["at K", "mean of 1 to K", *(["at 2K", "at 3K"] if network.tied else [])]
        yield from ("", f"### {name}, K = {network.iterations}", "")
        yield from table_lines(["arm", "rate", "seeds", *heads], _by_score(rows, name, plain, whats))
        others = list(network.shifts)[1:]
        yield from ("", f"{name} at K under shifts:", "")
        yield from table_lines(["arm", *others], _by_shift(rows, name, plain, others))
    yield from ("", "### Primary comparisons", "")
    yield from table_lines(["comparison", "difference in dB", "p", "Holm at .05"], _primary(rows))


def _by_score(
    rows: Sequence[dict[str, Any]], name: str, plain: Sequence[dict[str, Any]], whats: Sequence[str]
) -> Iterator[list[str]]:
    """The cells of the first table of a network: plain training's scores, and the other arms' differences."""
    for arm in arms_of(name):
        if members := final(rows, name, arm):
            cells = [in_words(difference(members, plain, what)) for what in whats]
            if arm == "erm":
                cells = [f"{sum(score(row, what) for row in members) / len(members):.2f}" for what in whats]
            yield [f"`{arm}`", f"{members[0]['rate']:g}", str(len(members)), *cells]


def _by_shift(
    rows: Sequence[dict[str, Any]], name: str, plain: Sequence[dict[str, Any]], others: Sequence[str]
) -> Iterator[list[str]]:
    """The cells of the table of shifts of a network."""
    for arm in arms_of(name):
        if members := final(rows, name, arm):
            cells = [in_words(difference(members, plain, "K", shift)) for shift in others]
            if arm == "erm":
                cells = [f"{sum(score(row, 'K', shift) for row in members) / len(members):.2f}" for shift in others]
            yield [f"`{arm}`", *cells]


PRIMARY = [
    *((network, "geometric-.2", "erm", "K") for network in ("LISTA", "PGD")),
    *((network, "geometric-.2", "linear", "mean") for network in ("LISTA", "PGD")),
    *((network, "no-worse", "random-2K", "2K") for network in ("LISTA tied", "PGD tied")),
]
"""The comparisons of the plan: network, arm, rival, score."""


def _primary(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """The cells of the table of primary comparisons."""
    found = [
        difference(final(rows, network, arm), final(rows, network, rival), what)
        for network, arm, rival, what in PRIMARY
    ]
    adjusted = holm([each.p for each in found])
    for (network, arm, rival, what), each, p in zip(PRIMARY, found, adjusted, strict=True):
        words = f"{network}, {what}: `{arm}` against `{rival}`"
        yield [words, in_words(each), f"{each.p:.2g}", "differs" if p <= 0.05 else "open"]


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


FIGURE = {"erm": "o", "linear": "^", "geometric-.2": "D", "alpha-.1": "v", "random-2K": "P", "no-worse-.1": "s"}
"""The arms of the picture with their marks."""


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """The loss at every iteration, a panel for each network: the mean over seeds in dB."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(NETWORKS), figsize=(3.2 * len(NETWORKS), 3.2), layout="constrained")
    for panel, (name, network) in zip(panels, NETWORKS.items(), strict=True):
        for arm, mark in FIGURE.items():
            members = final(rows, name, arm)
            if not members:
                continue
            curves = torch.tensor([row["test"][next(iter(network.shifts))] for row in members], dtype=torch.float64)
            panel.plot(10 * curves.log10().mean(0), marker=mark, markersize=3, linewidth=1, label=arm)
        panel.set_title(name)
        panel.set_xlabel("iteration")
        if network.tied:
            panel.axvline(network.iterations, linestyle="--", color="grey", linewidth=0.8)
            panel.set_ylim(top=min(5.0, panel.get_ylim()[1]))
        panel.legend(fontsize=6)
    panels[0].set_ylabel("loss in dB")
    figure.savefig(file, dpi=110)


def main() -> None:
    """Run cells, print the tables of a file, or draw it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unrolled", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run the cells that are not done")
    runs.add_argument("--out", type=Path, required=True, help="file of rows, to which new ones are added")
    runs.add_argument("--known", type=Path, nargs="*", default=[], help="further files of rows")
    runs.add_argument("--lane", default="0/1", help="which part of the cells, as 0/2 [0/1]")
    runs.add_argument("--minutes", type=float, default=math.inf, help="then start no cell [no end]")
    for command, about in (("table", "print the tables"), ("draw", "draw the losses by iteration")):
        each = commands.add_parser(command, help=about, description=about)
        each.add_argument("rows", type=Path, nargs="+", help="files of rows")
        if command == "draw":
            each.add_argument("--out", type=Path, required=True, help="the picture")
    options = parser.parse_args()
    if options.command == "table":
        print("\n".join(tables(read_rows(options.rows))))
        return
    if options.command == "draw":
        draw(read_rows(options.rows), options.out)
        return
    run(options.out, options.known, options.lane, options.minutes)


if __name__ == "__main__":
    main()
