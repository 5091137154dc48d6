"""Who wins on embedding models: the cells of embedding_plan.md, run in this process, and their tables."""

import argparse
import csv
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import descend
from benchmarks.unrolled import Interval, hash_of, interval, read_rows, table_lines
from descend.evaluation.layers import few, measure
from descend.results import first_within
from descend.run import Run
from descend.tasks.text.pairs import read_pairs, split_validation
from reproduction.table import holm

SEARCHED, SEEDS = range(3), range(5)
"""The seeds of the rates, and of the arms at their chosen rate."""

HELD_OUT = ("telephone", "travel")
"""The genres of the test data."""

TRIPLETS, PAIRS = 1000, 500
"""Test samples."""

LENGTH = 48
"""The longest text, in tokens."""

BATCH = 16


class Model(NamedTuple):
    """A model of the study.

    Attributes:
        depth: L.
        steps: Optimizer steps.
        rates: The learning rates.
        seeds: How many seeds a rate has.
        arms: Names of its arms.
    """

    depth: int
    steps: int
    rates: tuple[float, ...]
    seeds: range
    arms: tuple[str, ...]


AS_GIVEN = "as given"
"""The arm of a model that was not trained."""

ARMS: dict[str, dict[str, Any]] = {
    "erm": {"method": "erm"},
    "linear": {"method": "linear"},
    "useful-.8": {"method": "useful", "strength": 0.8},
    "within-.1": {"within": 0.1},
    "adaptive": {"n_layers_per_step": 1},
    "adaptive-all": {"n_layers_per_step": -1},
}

MODELS = {
    "minilm": Model(6, 100, (2e-5, 5e-5, 1e-4), SEARCHED, tuple(ARMS)),
    "mpnet": Model(12, 60, (2e-5,), range(2), ("erm", "linear", "within-.1", "adaptive")),
}

PRIMARY: tuple[tuple[str, str, str | int], ...] = (
    ("linear", "adaptive", "inner"),
    ("linear", "adaptive", "last"),
    ("within-.1", "adaptive", "inner"),
    ("within-.1", "linear", "last"),
    ("linear", "erm", "last"),
)
"""Two arms and what is compared of them: see `score`."""

OTHERS = (
    *(("within-.1", "linear", layer) for layer in range(1, 6)),
    ("within-.1", "linear", "inner"),
    ("linear", "adaptive-all", "inner"),
    ("within-.1", "adaptive-all", "inner"),
)
"""Comparisons of the record that the plan does not name."""


class Cell(NamedTuple):
    """One training with its measurements."""

    model: str
    arm: str
    rate: float
    seed: int


def write_data(mnli: Path, folder: Path) -> None:
    """Write MNLI's rows of the training genres as ``train.tsv``, and those of the others as ``test.tsv``."""
    sides: dict[str, list[list[str]]] = {"train": [], "test": []}
    for file in sorted(mnli.glob("*.tsv")):
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
                side = "test" if row["genre"] in HELD_OUT else "train"
                sides[side].append([row["sentence1"], row["sentence2"], row["gold_label"]])
    folder.mkdir(parents=True, exist_ok=True)
    for side, rows in sides.items():
        lines = ["\t".join(row) for row in [["sentence1", "sentence2", "gold_label"], *rows]]
        (folder / f"{side}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def open_cells(rows: Sequence[dict[str, Any]]) -> Iterator[Cell]:
    """The cells that are not among rows: an arm's runs at all rates, then further seeds at the chosen one.

    A seed of all arms comes before the next one.
    """
    done = {Cell(*(row[name] for name in Cell._fields)) for row in rows}
    for name, model in MODELS.items():
        wanted = [Cell(name, AS_GIVEN, 0.0, 0)]
        for arm in model.arms:
            cells = [Cell(name, arm, rate, seed) for rate in model.rates for seed in model.seeds]
            if len(model.rates) > 1 and all(cell in done for cell in cells):
                cells = [Cell(name, arm, chosen_rate(rows, name, arm), seed) for seed in SEEDS]
            wanted += cells
        yield from sorted((cell for cell in wanted if cell not in done), key=lambda cell: cell.seed)


def chosen_rate(rows: Sequence[dict[str, Any]], model: str, arm: str) -> float:
    """The rate with the highest mean accuracy on validation data over seeds and the deeper half of the layers."""
    found: dict[float, list[float]] = {}
    for row in rows:
        if (row["model"], row["arm"]) == (model, arm) and row["seed"] in MODELS[model].seeds:
            half = row["validation"][MODELS[model].depth // 2 :]
            found.setdefault(row["rate"], []).append(sum(half) / len(half))
    return max(found, key=lambda rate: sum(found[rate]) / len(found[rate]))


def run_cell(cell: Cell, start: Path, data: Path) -> dict[str, Any]:
    """Train a cell and measure it; a row."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        network = start
        if cell.arm != AS_GIVEN:
            adapts = cell.arm.startswith("adaptive")
            network = (adaptive if adapts else trained)(cell, start, data, Path(folder) / "run")
        seconds = time.perf_counter() - began
        run = Run.frozen(str(network), str(data), task="embed", dataset="triplets", max_length=LENGTH)
        scored = Run.frozen(str(network), str(data), task="embed", dataset="scored", max_length=LENGTH)
        row: dict[str, Any] = {**cell._asdict(), "seconds": round(seconds, 1)}
        row["validation"] = _metrics(run, run.data.validation)
        row["test"] = _metrics(run, few(run.data.test, TRIPLETS))
        row["pairs"] = _metrics(scored, few(scored.data.test, PAIRS))
    return row


def _metrics(run: Run, samples: Any) -> list[float]:
    """The metric of every layer."""
    (layers,) = measure(run.model, run.task, run.batches.of(samples))
    return [round(value, 5) for value in layers.metrics]


def trained(cell: Cell, start: Path, data: Path, out: Path) -> Path:
    """Train a cell by one of our methods; the folder of its model."""
    configured = descend.configure(
        "embed",
        output_dir=str(out),
        model=str(start),
        data=str(data),
        dataset="triplets",
        max_length=LENGTH,
        max_steps=MODELS[cell.model].steps,
        per_device_train_batch_size=BATCH,
        learning_rate=cell.rate,
        seed=cell.seed,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        disable_tqdm=True,
        use_cpu=True,
        **ARMS[cell.arm],
    )
    trainer = configured.trainer()
    trainer.train()
    trainer.objective.model.saved.save_pretrained(out / "model")
    trainer.processing_class.save_pretrained(out / "model")
    return out / "model"


def adaptive(cell: Cell, start: Path, data: Path, out: Path) -> Path:
    """Train a cell by SentenceTransformers' AdaptiveLayerLoss; the folder of its model."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
    )
    from transformers import set_seed

    set_seed(cell.seed)
    model = SentenceTransformer(str(start), device="cpu")
    model.max_seq_length = LENGTH
    rows = split_validation(read_pairs(data, "triplets"), 0.2)["train"]
    columns = zip(*rows["texts"], strict=True)
    triplets = Dataset.from_dict(dict(zip(("anchor", "positive", "negative"), map(list, columns), strict=True)))
    args = SentenceTransformerTrainingArguments(
        output_dir=str(out),
        max_steps=MODELS[cell.model].steps,
        per_device_train_batch_size=BATCH,
        learning_rate=cell.rate,
        lr_scheduler_type="linear",
        warmup_steps=0.1,
        seed=cell.seed,
        eval_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    loss = losses.AdaptiveLayerLoss(model, losses.MultipleNegativesRankingLoss(model), **ARMS[cell.arm])
    SentenceTransformerTrainer(model=model, args=args, train_dataset=triplets, loss=loss).train()
    model.save(str(out / "model"), create_model_card=False)
    return out / "model"


def run(options: argparse.Namespace) -> None:
    """Run cells until none is left, or the time is over."""
    number, lanes = map(int, options.lane.split("/"))
    torch.set_num_threads(1)
    data = options.out.parent / "mnli-by-genre"
    write_data(options.mnli, data)
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        cells = list(open_cells(read_rows([*options.known, options.out])))
        mine = next((cell for cell in cells if hash_of(cell) % lanes == number), None)
        if mine is None:
            print(f"no cell of this lane is left, {len(cells)} of others", flush=True)
            return
        row = run_cell(mine, options.models / mine.model, data)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{len(cells) - 1} left; {' '.join(map(str, mine))}: {row['seconds']} s", flush=True)


def final(rows: Sequence[dict[str, Any]], model: str, arm: str) -> list[dict[str, Any]]:
    """The rows of an arm at its chosen rate, in the order of seeds; empty if it has none."""
    known = [row for row in rows if (row["model"], row["arm"]) == (model, arm)]
    rate = chosen_rate(rows, model, arm) if known else None
    return sorted((row for row in known if row["rate"] == rate), key=lambda row: row["seed"])


def score(row: dict[str, Any], what: str | int, of: str = "test") -> float:
    """A row's accuracy or ρ in points: of a layer, the ``last`` one, or the ``inner`` ones from 1 in the mean."""
    values = row[of]
    if isinstance(what, int):
        return 100 * values[what]
    return 100 * (values[-1] if what == "last" else sum(values[1:-1]) / len(values[1:-1]))


def difference(
    rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], what: str | int, of: str = "test"
) -> Interval:
    """The paired difference of two arms' scores over their seeds, in points."""
    rivals = {row["seed"]: score(row, what, of) for row in others}
    return interval([score(row, what, of) - rivals[row["seed"]] for row in rows if row["seed"] in rivals])


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The tables of the results page, in Markdown, line by line."""
    for name, model in MODELS.items():
        for of, title in (("test", "triplet accuracy in percent"), ("pairs", "Spearman's ρ × 100 of pairs")):
            yield from ("", f"### {name}: {title}", "")
            heads = ["arm", "rate", "seeds", *(f"{layer}" for layer in range(model.depth + 1))]
            yield from table_lines(heads, _by_layer(rows, name, of))
    yield from ("", "### minilm: against plain training, in points", "")
    heads = ["arm", "accuracy, mean of layers 1 to 5", "last layer", "ρ × 100, last layer", "K within 2"]
    yield from table_lines(heads, _against_plain(rows))
    yield from ("", "### minilm: ρ × 100 of the last layer by rate, over seeds 0 to 2", "")
    yield from table_lines(["arm", *(f"{rate:g}" for rate in MODELS["minilm"].rates)], _by_rate(rows))
    yield from ("", "### Primary comparisons", "")
    yield from table_lines(["comparison", "points of accuracy", "p", "Holm at .05"], _primary(rows))
    yield from ("", "### Other comparisons, not corrected", "")
    yield from table_lines(["comparison", "points of accuracy", "p"], _compared(rows, OTHERS))


def _by_layer(rows: Sequence[dict[str, Any]], name: str, of: str) -> Iterator[list[str]]:
    """A row of each arm: its means over seeds at every layer."""
    for arm in (AS_GIVEN, *MODELS[name].arms):
        if members := final(rows, name, arm):
            means = _means(members, of)
            yield [f"`{arm}`", f"{members[0]['rate']:g}", str(len(members)), *(f"{mean:.1f}" for mean in means)]


def _means(rows: Sequence[dict[str, Any]], of: str) -> list[float]:
    """The mean over rows at every layer, in points."""
    return [100 * sum(values) / len(values) for values in zip(*(row[of] for row in rows), strict=True)]


def _by_rate(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """A row of each arm of MiniLM: ρ of the last layer at each rate."""
    for arm in MODELS["minilm"].arms:
        cells = []
        for rate in MODELS["minilm"].rates:
            wanted = [Cell("minilm", arm, rate, seed) for seed in SEARCHED]
            members = [row for row in rows if Cell(*(row[name] for name in Cell._fields)) in wanted]
            cells.append(f"{_means(members, 'pairs')[-1]:.1f}" if members else "–")
        yield [f"`{arm}`", *cells]


def _against_plain(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """MiniLM's arms beside `erm`; K and all deeper layers are within two points of its last one, in the means."""
    plain = final(rows, "minilm", "erm")
    full = _means(plain, "test")[-1] / 100 if plain else math.nan
    for arm in MODELS["minilm"].arms:
        if not (members := final(rows, "minilm", arm)):
            continue
        accuracy = [mean / 100 for mean in _means(members, "test")]
        needed = first_within(accuracy, full, 2, higher_is_better=True)
        found = [("inner", "test"), ("last", "test"), ("last", "pairs")] if arm != "erm" else []
        cells = [difference(members, plain, what, of) for what, of in found]
        yield [f"`{arm}`", *([f"{mean:+.2f} ± {half:.2f}" for mean, half, _ in cells] or 3 * ["–"]), str(needed)]


def _primary(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """The primary comparisons, with Holm's correction."""
    adjusted = holm([_difference(rows, *each).p for each in PRIMARY])
    for cells, corrected in zip(_compared(rows, PRIMARY), adjusted, strict=True):
        yield [*cells, "differs" if corrected < 0.05 else "open"]


def _compared(rows: Sequence[dict[str, Any]], pairs: Sequence[tuple[str, str, str | int]]) -> Iterator[list[str]]:
    """A row of each comparison of two arms of MiniLM."""
    for one, other, what in pairs:
        mean, half, p = _difference(rows, one, other, what)
        words = {"inner": "mean of layers 1 to 5", "last": "last layer"}.get(str(what), f"layer {what}")
        yield [f"`{one}` against `{other}`, {words}", f"{mean:+.2f} ± {half:.2f}", f"{p:.2g}"]


def _difference(rows: Sequence[dict[str, Any]], one: str, other: str, what: str | int) -> Interval:
    """The difference of two arms of MiniLM at their chosen rates."""
    return difference(final(rows, "minilm", one), final(rows, "minilm", other), what)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="run cells")
    running.add_argument("--models", type=Path, required=True, help="folder with the models minilm and mpnet")
    running.add_argument("--mnli", type=Path, required=True, help="folder with MNLI's .tsv files")
    running.add_argument("--out", type=Path, required=True, help="file of rows")
    running.add_argument("--known", type=Path, nargs="*", default=[], help="other files of rows")
    running.add_argument("--lane", default="0/1", help="which cells: NUMBER/LANES")
    running.add_argument("--minutes", type=float, default=math.inf)
    running.set_defaults(call=run)
    table = commands.add_parser("table", help="print the tables")
    table.add_argument("rows", type=Path, nargs="+")
    table.set_defaults(call=lambda options: print("\n".join(tables(read_rows(options.rows)))))
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
