"""What the page knows of a run, and which runs belong side by side."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from descend.errors import InputError, reason
from descend.reading import json_lines, read_json
from descend.report.frames import Frames

REQUIRED = (
    *("recipe", "method", "seed", "model", "dataset", "metric", "higher_is_better"),
    *("noise", "values", "mean", "train_noise", "layer_losses"),
)

# Of what a page can show.
MOST_LEVELS, MOST_LAYERS = 1000, 1024

# In the order of legends and tables: what all are held against first, the constrained last.
METHOD_NAMES = {
    "plain": "As given",
    "erm-clean": "ERM, clean inputs",
    "erm": "ERM",
    "uniform": "Uniform weights",
    "linear": "Linear weights",
    "r-drop": "R-Drop",
    "constrained": "Constrained",
}


class Style(NamedTuple):
    """How an arm is drawn: its colour on light and on dark ground, and its symbol."""

    light: str
    dark: str
    symbol: str


# Okabe and Ito's hues for the first two, and others that stay apart from them and from each other under all three kinds
# of colour blindness. A method keeps its style on every page; a second arm of one method gets a spare one.
STYLES = {
    "plain": Style("#d55e00", "#ff9a52", "circle"),
    "erm-clean": Style("#1d1c1a", "#eceae4", "x"),
    "erm": Style("#d55e00", "#ff9a52", "circle"),
    "uniform": Style("#005c42", "#36e0a0", "square"),
    "linear": Style("#74205f", "#f3bfe0", "triangle-up"),
    "r-drop": Style("#808080", "#9a9a9a", "star"),
    "constrained": Style("#0072b2", "#5fb8f0", "diamond"),
}
SPARE_STYLES = (
    Style("#8a4a2f", "#c99a7e", "hexagon"),
    Style("#7d6b00", "#ddc94a", "cross"),
    Style("#5b57d6", "#a7a4ff", "triangle-down"),
)


# Layer → (steps, values).
History = dict[int, tuple[list[float], list[float]]]


@dataclass(frozen=True)
class RunView:
    """One evaluated run, as its ``summary.json``, ``records.jsonl`` and ``frames.npz`` tell it.

    ``history`` maps a layer to its multiplier's (steps, values); layer 0 is the cap's. ``alpha`` is one
    number per layer, or a single one for all. ``violated`` are the constraints judged to be broken, by layer, 0
    the cap's. ``limits`` holds, for each layer l, the share of f_{l−1} that f_l must not exceed, None where
    nothing is asked; it is empty if the summary does not tell. ``bounds`` are what each layer 1 … L had to reach, None
    where no constraint is in force; ``certified`` the share by which each lowers the loss at least, and ``certificate``
    the same in words. All are empty in older summaries. ``strength`` is that of a run whose bounds follow from its
    losses.
    ``layer_metrics`` are the metric as ``layer_losses`` the loss, ``probe_…`` those of linear probes; ``auc`` is the
    area under the metric over γ. ``ratios`` holds, for each layer 1 … L, the quantiles of f_l / f_{l−1} over samples
    at ``quantiles``; ``ratio_mean`` and ``ratio_median`` are over layers too. ``settled`` is the share of samples whose
    decision settles at each layer; ``exit`` and ``speculation`` are as the evaluation wrote them. ``note`` is what a
    reader should know of the run.
    ``settings`` are the run's own, without its seed. ``split`` and ``checkpoint`` say on which data
    which of the run's models was judged.
    """

    name: str
    recipe: str
    method: str
    seed: int
    model: str
    dataset: str
    metric: str
    higher_is_better: bool
    noise: list[float]
    values: list[float]
    mean: float
    train_noise: float
    layer_losses: dict[float, list[float]]
    train_value: float | None = None
    violations: list[float] = field(default_factory=list)
    violation_intervals: list[list[float]] = field(default_factory=list)
    feasible: bool | None = None
    certain: bool = False
    violated: list[int] = field(default_factory=list)
    verdict: str = ""
    limits: list[float | None] = field(default_factory=list)
    bounds: list[float | None] = field(default_factory=list)
    certified: list[float] = field(default_factory=list)
    certificate: str = ""
    strength: float | None = None
    split: str = "test"
    checkpoint: str = "model"
    shift: str = "gaussian"
    descending_share: float | None = None
    layer_metrics: dict[float, list[float]] = field(default_factory=dict)
    auc: float | None = None
    quantiles: list[float] = field(default_factory=list)
    ratios: list[list[float]] = field(default_factory=list)
    ratio_mean: float | None = None
    ratio_median: float | None = None
    settled: list[float] = field(default_factory=list)
    exit: Mapping[str, Any] = field(default_factory=dict)
    speculation: Mapping[str, Any] = field(default_factory=dict)
    probe_losses: dict[float, list[float]] = field(default_factory=dict)
    probe_metrics: dict[float, list[float]] = field(default_factory=dict)
    note: str = ""
    alpha: tuple[float, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    history: History = field(default_factory=dict)
    frames: Frames | None = None

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return len(self.layer_losses[self.train_noise]) - 1

    @property
    def constrained(self) -> bool:
        """Whether the run was trained under constraints."""
        return self.method == "constrained"

    def asks(self, layer: int) -> bool:
        """Whether a constraint is in force at this layer; all are where the summary does not tell."""
        if self.bounds:
            return self.bounds[layer - 1] is not None
        return not self.limits or self.limits[layer] is not None

    def losses_to_reach(self, level: float) -> dict[int, float]:
        """The loss that each layer under a constraint had to reach, by layer.

        A limit asks for a share of the loss before and is known at every noise level. Bounds that follow from the
        losses are known at the training noise alone.

        Args:
            level: The noise level γ.
        """
        limits = {layer: limit for layer, limit in enumerate(self.limits) if layer and limit is not None}
        if limits and level in self.layer_losses:
            return {layer: limit * self.layer_losses[level][layer - 1] for layer, limit in limits.items()}
        if level != self.train_noise:
            return {}
        return {layer: bound for layer, bound in enumerate(self.bounds, start=1) if bound is not None}

    @property
    def setting(self) -> dict[str, Any]:
        """What tells the arms of one method apart: all settings but the seed; α where training looked at it."""
        alpha = {"α": self.alpha} if self.constrained else {}
        return {"recipe": self.recipe, **alpha, **self.settings}

    @classmethod
    def read(cls, folder: Path) -> "RunView":
        """Read a run folder.

        Raises:
            InputError: If the folder has not been evaluated or one of its files is damaged.
        """
        path = folder / "summary.json"
        if not path.is_file():
            what = "is not a run folder" if not folder.is_dir() else "has no summary.json"
            raise InputError(f"{folder} {what}; run `descend evaluate {folder} --data PATH` first.")
        summary = read_json(path)
        records, frames = folder / "records.jsonl", folder / "frames.npz"
        return cls.from_summary(
            summary,
            name=folder.name or str(folder),
            source=str(path),
            history=multiplier_history(read_records(records), str(records)) if records.is_file() else {},
            frames=Frames.load(frames) if frames.is_file() else None,
        )

    @classmethod
    def from_summary(
        cls,
        summary: Mapping[str, Any],
        *,
        name: str = "",
        source: str = "summary",
        history: History | None = None,
        frames: Frames | None = None,
    ) -> "RunView":
        """Check a summary and give its entries their types.

        Args:
            summary: The content of ``summary.json``; keys beyond `REQUIRED` may be missing.
            name: What to call the run; usually its folder's name.
            source: Where the summary is from, for error messages.
            history: The multipliers over time, by `multiplier_history`.
            frames: The pictures of its evaluation.

        Raises:
            InputError: If a required entry is missing or an entry does not fit the others.
        """
        missing = [key for key in REQUIRED if not isinstance(summary, Mapping) or key not in summary]
        if missing:
            raise InputError(f"{source} must describe one evaluated run; it lacks {', '.join(missing)}.")
        try:
            run = cls(
                name=name,
                **{key: str(summary[key]) for key in ("recipe", "method", "model", "dataset", "metric")},
                seed=int(summary["seed"]),
                higher_is_better=bool(summary["higher_is_better"]),
                noise=_floats(summary["noise"]),
                values=_floats(summary["values"]),
                mean=_float(summary["mean"]),
                train_noise=float(summary["train_noise"]),
                layer_losses=_by_level(summary["layer_losses"]),
                layer_metrics=_by_level(summary.get("layer_metrics") or {}),
                auc=_maybe(summary.get("auc")),
                quantiles=_floats(summary.get("ratios", {}).get("quantiles", [])),
                ratios=[_floats(row) for row in summary.get("ratios", {}).get("by_layer", [])],
                ratio_mean=_maybe(summary.get("ratios", {}).get("mean")),
                ratio_median=_maybe(summary.get("ratios", {}).get("median")),
                settled=_floats(summary.get("settled_layer", {}).get("shares", [])),
                exit=_exit(summary.get("exit"), str(summary["metric"])),
                speculation=_speculation(summary.get("speculation")),
                probe_losses=_by_level(summary.get("probe", {}).get("layer_losses", {})),
                probe_metrics=_by_level(summary.get("probe", {}).get("layer_metrics", {})),
                note=str(summary.get("note") or ""),
                train_value=_float(summary["train_value"]) if "train_value" in summary else None,
                violations=_floats(summary.get("violations") or []),
                violation_intervals=[_floats(pair) for pair in summary.get("violation_intervals") or []],
                feasible=None if summary.get("feasible") is None else bool(summary["feasible"]),
                certain=bool(summary.get("certain")),
                violated=[int(layer) for layer in summary.get("violated") or []],
                verdict=str(summary.get("verdict") or ""),
                limits=[_maybe(limit) for limit in summary.get("limits") or []],
                bounds=[_maybe(bound) for bound in summary.get("bounds") or []],
                certified=_floats(summary.get("certified") or []),
                certificate=str(summary.get("certificate") or ""),
                strength=_maybe(summary.get("strength")),
                split=str(summary.get("split") or "test"),
                checkpoint=str(summary.get("checkpoint") or "model"),
                shift=str(summary.get("shift") or "gaussian"),
                descending_share=_maybe(summary.get("descending_share")),
                alpha=_alpha(summary.get("alpha")),
                settings=dict(summary.get("settings") or {}),
                seconds=_maybe(summary.get("seconds")),
                history=history or {},
                frames=frames,
            )
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
            kind = type(error).__name__
            raise InputError(f"{source} holds an entry of the wrong type: {kind}: {reason(error)}.") from error
        _refuse(run, source)
        return run


@dataclass(frozen=True)
class Arm:
    """The runs of one method with one setting: they differ in their seeds only."""

    label: str
    method: str
    style: Style
    runs: list[RunView]

    @property
    def limits(self) -> list[float | None]:
        """The limits that training held the layers to; empty without any, or if the seeds' differ."""
        first = self.runs[0]
        return first.limits if first.constrained and all(run.limits == first.limits for run in self.runs) else []

    def losses_to_reach(self, level: float) -> dict[int, float]:
        """What the layers had to reach at a noise level, the mean over seeds; empty for a run without constraints."""
        rows = [run.losses_to_reach(level) for run in self.runs if run.constrained and level in run.layer_losses]
        return {
            layer: fmean(row[layer] for row in rows)
            for layer in (rows[0] if rows else ())
            if all(layer in row for row in rows)
        }


@dataclass(frozen=True)
class Group:
    """The arms that compare: one data set, model and training noise, judged on one split, checkpoint and shift."""

    dataset: str
    model: str
    train_noise: float
    split: str
    checkpoint: str
    shift: str
    arms: list[Arm]

    @property
    def runs(self) -> list[RunView]:
        """All runs of the group, arm by arm."""
        return [run for arm in self.arms for run in arm.runs]

    @property
    def depth(self) -> int:
        """The largest depth among the runs."""
        return max(run.depth for run in self.runs)

    @property
    def metric(self) -> str:
        """The metric's name, as a reader writes it."""
        metric = self.runs[0].metric
        return metric.upper() if len(metric) <= 4 else metric.replace("_", " ").capitalize()

    @property
    def noise_levels(self) -> list[float]:
        """The noise levels at which layer losses are known, in order."""
        return sorted({level for run in self.runs for level in run.layer_losses})


def group_runs(runs: Sequence[RunView]) -> list[Group]:
    """Gather runs by what makes them comparable (see `Group`), then by method, ERM before the others, and setting."""
    groups: dict[tuple[str, str, float, str, str, str], list[RunView]] = {}
    for run in runs:
        key = (run.dataset, run.model, run.train_noise, run.split, run.checkpoint, run.shift)
        groups.setdefault(key, []).append(run)
    return [Group(*key, arms=_arms(members)) for key, members in groups.items()]


def _arms(runs: Sequence[RunView]) -> list[Arm]:
    gathered: list[list[RunView]] = []
    order = list(METHOD_NAMES)
    for run in sorted(runs, key=lambda run: order.index(run.method) if run.method in order else len(order)):
        for members in gathered:
            if (members[0].method, members[0].setting) == (run.method, run.setting):
                members.append(run)
                break
        else:
            gathered.append([run])
    arms: list[Arm] = []
    for members in gathered:
        method = members[0].method
        rivals = [other[0].setting for other in gathered if other[0].method == method]
        label = ", ".join([METHOD_NAMES.get(method, method), *_differences(members[0].setting, rivals)])
        taken = [arm.style for arm in arms]
        free = [style for style in (STYLES.get(method), *SPARE_STYLES) if style and style not in taken]
        style = free[0] if free else SPARE_STYLES[len(arms) % len(SPARE_STYLES)]
        arms.append(Arm(label, method, style, sorted(members, key=lambda run: run.seed)))
    return arms


def _differences(setting: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> list[str]:
    """What of a setting the rivals have otherwise, in words."""
    return [
        _in_words(name, value) for name, value in setting.items() if any(rival.get(name) != value for rival in rivals)
    ]


def _in_words(name: str, value: Any) -> str:
    if name == "α":
        return f"α = {format_alpha(value)}"
    return str(value) if name == "recipe" else f"{name} {value}"


def format_alpha(alpha: Sequence[float] | None) -> str:
    """Write α as one number if it is one, else as its range."""
    if not alpha:
        return "none"
    low, high = min(alpha), max(alpha)
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def _refuse(run: RunView, source: str) -> None:
    """Refuse a run whose entries do not fit each other, so that no figure need ask."""
    if not run.noise or len(run.noise) != len(run.values):
        counts = f"{len(run.noise)} noise levels but {len(run.values)} values"
        raise InputError(f"{source} must have one value per noise level; got {counts}.")
    by_level = (run.layer_losses, run.layer_metrics, run.probe_losses, run.probe_metrics)
    levels = [run.train_noise, *run.noise, *(level for rows in by_level for level in rows)]
    if not all(map(isfinite, levels)) or len(set(levels)) > MOST_LEVELS:
        raise InputError(f"{source} must have finite noise levels, at most {MOST_LEVELS}; got {str(levels)[:60]}.")
    if run.train_noise not in run.layer_losses:
        raise InputError(f"{source}: layer_losses must contain the training noise {run.train_noise}.")
    if len({len(row) for row in run.layer_losses.values()}) != 1:
        raise InputError(f"{source}: layer_losses must have as many layers at every noise level.")
    if not 1 <= run.depth <= MOST_LAYERS:
        raise InputError(f"{source}: layer_losses must have 2 to {MOST_LAYERS + 1} layers; got {run.depth + 1}.")
    if run.limits and len(run.limits) != run.depth + 1:
        counts = f"{len(run.limits)} limits but {run.depth + 1} layer losses"
        raise InputError(f"{source} must have one limit per layer, from layer 0 on; got {counts}.")
    fits = {
        "violations": not run.violations or len(run.violations) == run.depth,
        "bounds": len(run.bounds) in (0, run.depth),
        "certified": len(run.certified) in (0, run.depth),
        "violation_intervals": not run.violation_intervals
        or (len(run.violation_intervals) == run.depth and all(len(pair) == 2 for pair in run.violation_intervals)),
        "ratios": not run.ratios
        or (
            len(run.ratios) == run.depth
            and len(run.quantiles) >= 2
            and all(len(row) == len(run.quantiles) for row in run.ratios)
        ),
        "settled_layer": len(run.settled) in (0, run.depth + 1),
        "layer_metrics and probe": all(len(row) == run.depth + 1 for rows in by_level[1:] for row in rows.values()),
        "multipliers": all(0 <= layer <= run.depth for layer in run.history),
    }
    wrong = ", ".join(name for name, fitting in fits.items() if not fitting)
    if wrong:
        raise InputError(f"{source} must have one entry per layer, of {run.depth} layers; got others in {wrong}.")


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Read ``records.jsonl`` row by row; a last line that was cut off, as by a kill, is left out.

    Raises:
        InputError: If another line is not a JSON object, with its number.
    """
    return (row for _, row in json_lines(path, appended=True))


def multiplier_history(records: Iterable[Mapping[str, Any]], source: str = "records") -> History:
    """The multipliers over time by layer, 0 the cap's; a resumed run's later rows win.

    Raises:
        InputError: If a row of theirs has no numbers.
    """
    layers: dict[int, dict[float, float]] = {}
    for row in records:
        if row.get("split") == "train" and row.get("metric") == "multiplier" and row.get("layer") is not None:
            try:
                layer, step, value = int(row["layer"]), float(row["step"]), _float(row["value"])
            except (KeyError, TypeError, ValueError, OverflowError):
                got = repr(dict(row))[:100]
                raise InputError(f"{source}: a multiplier's row must have numbers; got {got}. Remove it.") from None
            layers.setdefault(layer, {})[step] = value
    history: History = {}
    for layer, values in sorted(layers.items()):
        steps = sorted(values)
        history[layer] = steps, [values[step] for step in steps]
    return history


def _by_level(rows: Any) -> dict[float, list[float]]:
    """Rows by noise level, from JSON's words for numbers."""
    return {float(level): _floats(row) for level, row in rows.items()}


def _exit(found: Any, metric: str) -> dict[str, Any]:
    """What the page and the sentences use of an evaluation's ``exit``, in numbers."""
    if not found:
        return {}

    def point(one: Any, setting: str) -> dict[str, float]:
        return {name: _float(one[name]) for name in (setting, "layers", metric)}

    chosen = {**point(found["chosen"], "threshold"), "time_ratio": _float(found["chosen"]["time_ratio"])}
    return {
        "full": _float(found["full"]),
        "depth": int(found["depth"]),
        "confidence": [point(one, "threshold") for one in found["confidence"]],
        "patience": [point(one, "patience") for one in found["patience"]],
        "chosen": chosen,
    }


def _speculation(found: Any) -> dict[str, Any]:
    """The same of ``speculation``."""
    if not found:
        return {}
    return {
        "layers": [
            {"layer": int(one["layer"]), **{name: _float(one[name]) for name in ("acceptance", "speed")}}
            for one in found["layers"]
        ]
    }


def _floats(values: Any) -> list[float]:
    return [_float(value) for value in values]


def _float(value: Any) -> float:
    """A number; null stands for one that was not finite."""
    return float("nan") if value is None else float(value)


def alphas(limits: Sequence[float | None]) -> dict[int, float]:
    """The step α_l by layer, from the limits 1 − α_l of those that have one."""
    return {layer: 1 - limit for layer, limit in enumerate(limits) if limit is not None}


def _maybe(value: Any) -> float | None:
    return None if value is None else float(value)


def _alpha(value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    steps = tuple(_floats(value)) if isinstance(value, list) else (float(value),)
    return steps[:1] if len(set(steps)) == 1 else steps
