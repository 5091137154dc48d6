"""A study as one table: a row for each cell that has ended, and how much better one method is than another."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from descend import InputError
from descend.jackknife import Numbers, advantage, combined, over_noise, without_each
from descend.results import put
from reproduction.cells import FIRST_EXIT, PAPER_ARMS, SEARCH, Cell
from reproduction.run import CELL_FILE, FAILED_FILE, RUN, Study, read_json

SETTING = ["model", "data", "depth", "gamma"]
"""What the runs of a comparison have in common, beside the seeds."""

DIGITS = 5
BLOCKS = 40
"""Groups of test samples that a row holds at most; single texts are put together at random, the same in every run."""

LAST = 0.1
"""The last share of a run's steps, over which losses and multipliers of training are averaged."""

ALMOST = 0.01
"""A mean that misses its bound by no more than this share counts as holding, as in the verdict of Descend."""

CONFIDENCE = 0.95

MOST_SEEDS = 1000
"""More are not considered where it is said how many seeds would decide a comparison."""

ENOUGH_GROUPS = 12
"""Fewer groups prove nothing, as in a verdict of Descend."""


@dataclass(frozen=True)
class Table:
    """A study's rows.

    Attributes:
        scale: The name of its scale.
        chosen: What its searches chose.
        edges: The edges of the histograms of f_l / f_{l−1}.
        rows: One row for each cell that has ended, trials of searches left out.
        trials: The rows of trials.
    """

    scale: str
    chosen: Mapping[str, Any]
    edges: Sequence[float]
    rows: pd.DataFrame
    trials: pd.DataFrame

    def better(self, model: str, form: str) -> str:
        """The better of the paper's two dual optimizers for a model and form, by validation data.

        A trial that holds comes first, then the metric over noise. Without a search it is ``algorithm-1``.
        """
        ranked = []
        for arm in PAPER_ARMS:
            key = " ".join(filter(None, (model, form, arm)))
            if key in self.chosen:
                ranked.append((self.chosen[key]["fixed"]["feasible"], self.chosen[key]["fixed"]["value"], arm))
        return max(ranked)[-1] if ranked else "algorithm-1"

    def where(self, **values: Any) -> pd.DataFrame:
        """The rows of these values, in the main grid unless a variant is named; ``arm="paper"`` is the `better`."""
        rows = self.rows
        for name, value in ({"variant": ""} | values).items():
            if name == "arm" and value == "paper":
                best = [self.better(row.model, row.form) == row.arm for row in rows.itertuples()]
                rows = rows[np.array(best, bool)]
            else:
                rows = rows[rows[name].isin(value) if isinstance(value, list | tuple | set) else rows[name] == value]
        return rows


@dataclass(frozen=True)
class Gain:
    """How much better a method is than another, in per cent of the other's number.

    Attributes:
        value: The gain; above 0 ours is better. ±∞ if a run of one of them diverged, NaN if of both or without runs.
        low: Of the 95 % interval; NaN if there is none.
        high: Of the same.
        p: Two-sided; NaN without an interval.
        seeds: Seeds that both have.
        groups: Groups of test samples.
        parts: The variance over seeds and that over groups, each with its degrees of freedom; one that is not known is
            left out.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    seeds: int = 0
    groups: int = 0
    parts: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def tested_p(self) -> float:
        """The p-value; NaN below `ENOUGH_GROUPS` groups.

        The interval stays: it says how much these seeds and these groups vary, and may be too narrow for others.
        """
        return self.p if self.groups >= ENOUGH_GROUPS else math.nan

    @property
    def verdict(self) -> str:
        """``better`` or ``worse`` by the interval over several seeds, or because a run diverged; else ``undecided``."""
        return "better" if self.surely_above(0) else "worse" if self.surely_below(0) else "undecided"

    def surely_above(self, bound: float) -> bool:
        """Whether the gain is above a bound: by its interval over several seeds, or because the other diverged."""
        return self.value == math.inf or (self.seeds > 1 and self.low > bound)

    def surely_below(self, bound: float) -> bool:
        """Whether the gain is below a bound: by its interval over several seeds, or because ours diverged."""
        return self.value == -math.inf or (self.seeds > 1 and self.high < bound)

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return {math.inf: "the other diverged", -math.inf: "diverged"}.get(self.value, "–")
        # A number near 0 has a second decimal, so that one sees on which side of 0 it is.
        value, low, high = (
            f"{each:+.{1 if abs(each) >= 0.05 else 2}f}".replace("-0.00", "+0.00")
            for each in (self.value, self.low, self.high)
        )
        interval = "" if math.isnan(self.low) else f" ({low} to {high})"
        return f"{value} %{interval}".replace("-", "−")


def at_levels(rows: pd.DataFrame, wanted: Callable[[float, float], bool]) -> pd.DataFrame:
    """Rows as if they had been evaluated at some levels only.

    Args:
        rows: The rows; those of runs that diverged stay as they are.
        wanted: Whether a level is taken: the level, and the training noise.
    """
    changed = []
    for row in rows.to_dict("records"):
        if row["diverged"]:
            changed.append(row)
            continue
        places = [place for place, level in enumerate(row["noise"]) if wanted(level, row["gamma"])]
        cut = {name: [row[name][place] for place in places] for name in ("noise", "values", "scores")}
        value = float(over_noise(cut["noise"], np.array(cut["values"], float), row["higher"]))
        changed.append({**row, **cut, "number": value})
    return pd.DataFrame(changed, columns=rows.columns)


def beyond(level: float, gamma: float) -> bool:
    """Whether a test noise is stronger than that of training."""
    return level > gamma


def up_to(level: float, gamma: float) -> bool:
    """Whether a test noise is at most that of training."""
    return level <= gamma


def gain(ours: pd.DataFrame, theirs: pd.DataFrame) -> Gain:
    """How much better a method is, over the seeds that both have, see `descend.jackknife.advantage`."""
    shared = sorted(set(ours.seed) & set(theirs.seed))
    pair = [runs[runs.seed.isin(shared)].sort_values("seed") for runs in (ours, theirs)]
    gone = [bool(runs.diverged.any()) for runs in pair]
    if not shared or any(gone):
        return Gain(math.nan if not shared or all(gone) else math.inf if gone[1] else -math.inf, seeds=len(shared))
    a, b = (
        Numbers(runs.number.to_numpy(float), np.stack([_left_out(run) for run in runs.itertuples()])) for runs in pair
    )
    found = advantage(a, b, bool(pair[0].higher.iloc[0]), sizes=np.array(pair[0].counts.iloc[0], float))
    return Gain(found.value, found.low, found.high, found.p, len(shared), found.groups, found.parts)


def seeds_that_decide(value: float, parts: Mapping[str, tuple[float, float]], seeds: int, level: float) -> float | None:
    """The smallest number of seeds at which a difference would have an interval that does not hold 0.

    The difference and its spread over seeds stay as they were observed. The variance over groups of test samples does
    not fall with more seeds.

    Args:
        value: The difference.
        parts: The variances of its mean, as in `Gain`.
        seeds: The number of seeds of that mean.
        level: One less the confidence, two-sided.

    Returns:
        The number; infinity if none is enough with these groups; None if more than `MOST_SEEDS` are needed or the
        spread over seeds is not known.
    """
    if "seeds" not in parts:
        return None
    one = parts["seeds"][0] * seeds
    others = [part for name, part in parts.items() if name != "seeds"]

    def decides(*variances: tuple[float, float]) -> bool:
        error, freedom = combined([*variances, *others])
        return not error or abs(value) > student.ppf(1 - level / 2, freedom) * error

    if others and not decides():
        return math.inf
    enough = (number for number in range(2, MOST_SEEDS + 1) if decides((one / number, number - 1)))
    return next(enough, None)


def _left_out(run: Any) -> np.ndarray:
    """A run's number with each group of test samples left out, (K,)."""
    counts, scores = np.array(run.counts, float), np.array(run.scores, float)  # (K,), (G, K)
    if len(counts) < 2:
        return np.array([run.number])
    return over_noise(run.noise, without_each(counts, scores, run.root), run.higher)


def holm(p: Sequence[float]) -> list[float]:
    """P-values adjusted for their number by Holm's step-down method; one that is not known counts as 1."""
    known = [1.0 if math.isnan(value) else value for value in p]
    adjusted, most = [0.0] * len(known), 0.0
    for rank, place in enumerate(sorted(range(len(known)), key=known.__getitem__)):
        most = max(most, min(1.0, (len(known) - rank) * known[place]))
        adjusted[place] = most
    return adjusted


def meets(losses: Sequence[float], alpha: float, cap: float, first: int) -> bool:
    """Whether losses f_0 … f_L meet f_first ≤ cap and f_l ≤ (1 − α) f_{l−1} after it, up to `ALMOST`."""
    chain = np.array(losses[first:])
    return bool(chain[0] <= (1 + ALMOST) * cap and (chain[1:] <= (1 + ALMOST) * (1 - alpha) * chain[:-1]).all())


_OF_ALL = ("panel", "arm", "form", "variant", "seed", "diverged", "device", "seconds")
"""Columns that a table has without rows too."""


def read(place: Path | Study) -> Table:
    """Read a study's folder, or the file that `write` made of one."""
    if isinstance(place, Study):
        head, *lines = collected(place)
    else:
        head, *lines = [json.loads(line) for line in place.read_text("utf-8").splitlines()]
    rows = pd.DataFrame([_completed(line) for line in lines], columns=None if lines else [*SETTING, *_OF_ALL])
    searched = rows.panel == SEARCH
    return Table(head["scale"], head["chosen"], head["edges"], rows[~searched], rows[searched])


def write(study: Study, out: Path) -> int:
    """Write a study as one file, a row a line; returns the number of rows."""
    lines = collected(study)
    if gone := sorted(study.earlier[1].keys() - {line.get("name") for line in lines}):
        raise InputError(
            f"{study.known} has {len(gone)} rows of cells that the grid has no more, such as {gone[0]}. Collect with "
            "the grid that they are of."
        )
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    put(out, lambda part: part.write_text(text, "utf-8"))
    return len(lines) - 1


def collected(study: Study) -> list[dict[str, Any]]:
    """A head, and a row for each cell that is done or diverged, from the files of their folders."""
    rows: list[dict[str, Any]] = []
    edges: list[float] = study.earlier[0]["edges"]
    for cell in study.cells():
        if (row := study.row(cell)) is not None:
            rows.append(row)
            continue
        folder = study.of(cell)
        summary, failed = (read_json(folder / name) for name in (f"{RUN}/summary.json", FAILED_FILE))
        fields = {name: value for name, value in cell.fields.items() if name not in ("evaluate", "complete")}
        session = read_json(folder / CELL_FILE) or {}
        fields |= {name: session.get(name) for name in ("seconds", "commit")} | {"diverged": None, "device": None}
        if summary is not None:
            edges = edges or summary["ratios"]["histogram"]["edges"]
            validated, by_layers = study.validated(cell), study.scale.models[cell.model].by_layers
            rows.append({**fields, "validated": validated, **_measured(cell, folder / RUN, summary, by_layers)})
        elif failed is not None and failed["diverged"]:
            rows.append({**fields, "diverged": failed["reason"]})
    return [{"scale": study.name, "chosen": study.chosen, "edges": _rounded(edges)}, *map(_rounded, rows)]


def _measured(cell: Cell, run: Path, summary: Mapping[str, Any], by_layers: bool) -> dict[str, Any]:
    """What a row holds of an evaluated run; of one judged by its layers the deeper half's scores too."""
    every, level = read_json(run / "groups.json"), f"{cell.gamma:g}"
    groups = _blocks(every)
    losses, metrics = ({f"{float(key):g}": row for key, row in summary[name].items()} for name in _BY_LEVEL)
    energy = {f"{float(key):g}": row for key, row in summary.get("energy", {}).items()}
    # A trial is evaluated on validation data itself. Entries that are null are not in the file.
    measured = summary.get("validation", summary)["layer_metrics"]
    validation = {f"{float(key):g}": row[-1] for key, row in measured.items()}
    answers = [
        {"noise": gamma, "prompt": row["instruction"], "text": row["output"]}
        for gamma in dict.fromkeys((0.0, cell.gamma))
        for row in read_json(run / f"answers-{gamma:g}.json") or ()
    ]
    ratios, config = summary["ratios"], read_json(run / "config.json")
    return {
        **{name: summary.get(name) for name in _SUMMARY},
        "higher": summary["higher_is_better"],
        "losses": losses,
        "metrics": metrics[level],
        "validation": [validation[f"{level:g}"] for level in summary["noise"]],
        "energy": energy.get(level, []),
        "ratio": {"mean": ratios["mean"], "median": ratios["median"]},
        "histogram": np.sum(ratios["histogram"]["counts"], 0).tolist(),
        **{name: groups[name] for name in ("counts", "scores", "root")},
        **({"half": _half(every["layers"])} if by_layers else {}),
        "trained": _trained(run / "records.jsonl"),
        "resilience": config["training"]["resilience"],
        "device": config.get("device"),
        "answers": answers,
    }


_BY_LEVEL = ("layer_losses", "layer_metrics")
_SUMMARY = (
    *("metric", "noise", "values", "train_noise", "feasible", "violated", "limits", "cap", "bounds", "multipliers"),
    *("cap_multiplier", "descending_share", "sigma"),
)


def _trained(records: Path) -> dict[str, Any]:
    """Training over the last tenth of its logs: means by layer, and the share of all logs with a negative weight."""
    table = pd.read_json(records, lines=True)
    train = table[table.split == "train"]
    steps = sorted(train.step.unique())
    last = train[train.step >= steps[-max(1, round(LAST * len(steps)))]]
    means = {
        name: {str(layer): mean for layer, mean in rows.groupby("layer").value.mean().items()}
        for name, rows in last.groupby("metric")
        if name in ("loss", "multiplier", "slack")
    }
    weights = train[train.metric == "weight"]
    negative = float((weights.groupby("step").value.min() < 0).mean()) if len(weights) else 0.0
    return {**means, "negative": negative}


def _blocks(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Put groups together at random, the same ones in every run on the same data, until there are few enough."""
    counts, scores = np.array(groups["counts"], float), np.array(groups["scores"], float)
    if len(counts) > BLOCKS:
        parts = np.array_split(np.random.default_rng(0).permutation(len(counts)), BLOCKS)
        counts = np.array([counts[part].sum() for part in parts])
        scores = np.stack([scores[:, part].sum(1) for part in parts], 1)
    return {"counts": counts.tolist(), "scores": scores.tolist(), "root": groups["root"]}


def _half(layers: Mapping[str, Any]) -> dict[str, list[float]]:
    """The scores of layers L/2 to L at the first level, their mean summed over each block of test samples."""
    scores = np.array(layers["scores"][0], float)  # (L+1, B)
    return {"counts": layers["counts"], "scores": scores[(len(scores) - 1) // 2 :].mean(0).tolist()}


def _rounded(content: Any) -> Any:
    """Numbers of `DIGITS` significant digits; integral ones lose their point."""
    if isinstance(content, Mapping):
        return {key: _rounded(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_rounded(value) for value in content]
    if isinstance(content, float) and math.isfinite(content):
        return int(content) if content.is_integer() else float(f"{content:.{DIGITS}g}")
    return content


def _completed(row: dict[str, Any]) -> dict[str, Any]:
    """A row with what follows from its measurements."""
    if row["diverged"] is not None:
        return {**row, "diverged": True, "number": math.inf, "holds": False, "falls": False}
    first = FIRST_EXIT.get(row["model"], 0)
    losses = row["losses"][f"{row['gamma']:g}"][first:]
    value = float(over_noise(row["noise"], np.array(row["values"], float), row["higher"]))
    falls = bool((np.diff(losses) < 0).all())
    return {**row, "diverged": False, "number": value, "holds": bool(row["feasible"]), "falls": falls}
