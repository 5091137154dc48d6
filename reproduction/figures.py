"""Figures 1 to 15 of the paper, drawn from a study's table. Figure 16, answers, is a table."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from descend.results import put
from reproduction.cells import FIRST_EXIT
from reproduction.table import SETTING, Table

matplotlib.rcParams.update({"svg.hashsalt": "descend", "font.size": 9, "axes.spines.top": False})
matplotlib.rcParams.update({"axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3, "legend.frameon": False})

COLOURS = {
    "erm": "#444444",
    "erm-noisier": "#9a9a9a",
    "linear": "#2b8a3e",
    "constrained": "#1864ab",
    "paper-adam": "#e67700",
    "algorithm-1": "#c2255c",
}
LABELS = {
    "erm": "plain training",
    "erm-noisier": "plain training, more noise",
    "linear": "linear weights",
    "constrained": "default constraints",
    "paper-adam": "paper's form, Adam",
    "algorithm-1": "paper's form, Algorithm 1",
}
DASHES = {"": "-", "untied": "-", "tied": "--"}
SHADES = ("#c2255c", "#e67700", "#1864ab", "#2b8a3e", "#444444")

CLASSIFIERS = ("MiniLM", "RoBERTa", "DistilBERT")
"""Models of Figure 1 and of the ablations, the first that was run: MiniLM stands for RoBERTa at scale small."""

TEXT_MODELS = (*CLASSIFIERS, "MPNet", "UT-text")
LANGUAGE_MODELS = ("SmolLM2", "Llama")
VIDEO_MODELS = ("UT", "DUST", "ViT")
COMPARED = ("erm", "constrained", "paper")


class NotRunError(LookupError):
    """A figure lacks cells; the message says which."""


def some(rows: pd.DataFrame, what: str) -> pd.DataFrame:
    """Rows of runs that ended with numbers.

    Raises:
        NotRunError: If there is none.
    """
    rows = rows[~rows.diverged.astype(bool)] if len(rows) else rows
    if rows.empty:
        raise NotRunError(f"it needs {what}, of which no cell is done")
    return rows


def compared(table: Table, arms: Sequence[str] = COMPARED, **values: Any) -> pd.DataFrame:
    """Rows of some methods in the main grid: plain training, the default and the paper's form."""
    return pd.concat([table.where(arm=arm, **values) for arm in arms])


def classifier(table: Table, **values: Any) -> pd.DataFrame:
    """Rows of the first of `CLASSIFIERS` that was run on its first data set, at each training noise."""
    for model in CLASSIFIERS:
        rows = table.where(model=model, **values)
        if len(rows):
            return rows[rows.data == rows.data.iloc[0]]
    raise NotRunError(f"it needs {' or '.join(CLASSIFIERS)}, of which no cell is done")


def name_of(setting: Sequence[Any]) -> str:
    """A setting in words."""
    model, data, depth, gamma = setting
    return f"{model}-{depth} on {data}, γ = {gamma:g}"


def plain_of(model: str, form: str) -> str:
    """The form of plain training in the paper's own pair: that of DUST is untied against tied (Appendix C.4)."""
    return "tied" if (model, form) == ("DUST", "untied") else form


def label_of(arm: str, form: str) -> str:
    """A method in words."""
    return f"{LABELS[arm]}, {form}" if form else LABELS[arm]


def band(axes: Any, x: Sequence[float], runs: Sequence[Any], label: str, **style: Any) -> None:
    """A line through the means of runs, and the range of their seeds."""
    rows = np.array(runs, float)
    axes.plot(x, rows.mean(0), label=label, marker=".", **style)
    if len(rows) > 1:
        axes.fill_between(x, rows.min(0), rows.max(0), alpha=0.15, color=style.get("color"), linewidth=0)


def of_shared_seeds(rows: pd.DataFrame, by: Sequence[str] = ("arm", "form")) -> pd.DataFrame:
    """The rows of the seeds that all methods have, so that a difference is not that of other seeds; all without any."""
    shared = set.intersection(*(set(runs.seed) for _, runs in rows.groupby(list(by))))
    return rows[rows.seed.isin(shared)] if shared else rows


def against_noise(axes: Any, rows: pd.DataFrame) -> None:
    """The metric of the last layer against the test noise, a line for each method."""
    for (arm, form), runs in rows.groupby(["arm", "form"], sort=False):
        style = {"color": COLOURS[arm], "linestyle": DASHES[form]}
        band(axes, runs.noise.iloc[0], list(runs["values"]), label_of(arm, form), **style)
    axes.axvline(rows.gamma.iloc[0], color="#bbbbbb", linewidth=0.8)
    axes.set(xlabel="test noise γ", ylabel=rows.metric.iloc[0])


def along_layers(axes: Any, rows: pd.DataFrame) -> None:
    """The loss along the layers at the training noise, a line for each method."""
    for (arm, form), runs in rows.groupby(["arm", "form"], sort=False):
        first = FIRST_EXIT.get(runs.model.iloc[0], 0)
        losses = [row.losses[f"{row.gamma:g}"][first:] for row in runs.itertuples()]
        style = {"color": COLOURS[arm], "linestyle": DASHES[form]}
        band(axes, range(first, first + len(losses[0])), losses, label_of(arm, form), **style)
    axes.set(xlabel="layer", ylabel="loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def panels(count: int, columns: int = 3) -> tuple[Figure, list[Any]]:
    """A figure of so many panels."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.4 * columns, 2.7 * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(count)]
    return figure, axes


def settings_of(rows: pd.DataFrame, draw: Callable[[Any, pd.DataFrame], None], columns: int = 3) -> Figure:
    """A panel for each setting."""
    groups = list(rows.groupby(SETTING, sort=False))
    figure, axes = panels(len(groups), columns)
    for place, (setting, group) in zip(axes, groups, strict=True):
        draw(place, of_shared_seeds(group))
        place.set_title(name_of(setting), fontsize=9)
    named = {name: line for place in axes for line, name in zip(*place.get_legend_handles_labels(), strict=True)}
    if named:
        figure.legend(
            named.values(),
            named,
            loc="outside lower center",
            ncols=min(columns, len(groups)),
            fontsize=7,
            handlelength=3,
        )
    return figure


def both_views(rows: pd.DataFrame) -> Figure:
    """The loss along the layers and the metric against noise, of one setting."""
    rows = of_shared_seeds(rows)
    figure, (left, right) = panels(2, 2)
    along_layers(left, rows)
    against_noise(right, rows)
    left.legend(fontsize=7)
    figure.suptitle(f"{name_of(rows[SETTING].iloc[0])}, {seeds_of(rows)}", fontsize=9)
    return figure


def strongest(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at the largest training noise of their model and data."""
    return rows[rows.gamma == rows.groupby(["model", "data"]).gamma.transform("max")]


def middle(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at the depth of their model that has most runs."""
    return rows[rows.depth == rows.groupby("model").depth.transform(lambda depths: depths.mode().iloc[0])]


def figure_1(table: Table) -> Figure:
    """A pretrained encoder on texts: the loss by layer, and the accuracy under noise."""
    rows = strongest(classifier(table))
    return both_views(some(compared(table, **dict(zip(SETTING, rows[SETTING].iloc[0], strict=True))), "an encoder"))


def figure_2(table: Table) -> Figure:
    """Video: RMSE against test noise, by model and data set."""
    rows = some(compared(table, model=list(VIDEO_MODELS)), "video")
    return settings_of(middle(strongest(rows)), against_noise)


def figure_3(table: Table) -> Figure:
    """Video: RMSE against test noise, by depth, over the seeds that all depths have; dashed is plain training."""
    rows = strongest(some(compared(table, ("erm", "paper"), model=["UT", "DUST"]), "UT or DUST"))
    groups = [
        (key, of_shared_seeds(group, ("depth", "arm")))
        for key, group in rows.groupby(["model", "data", "form"])
        if group.depth.nunique() > 1
    ]
    if not groups:
        raise NotRunError("it needs UT or DUST at two depths")
    figure, axes = panels(len(groups))
    for place, ((model, data, form), group) in zip(axes, groups, strict=True):
        for (depth, arm), runs in group.groupby(["depth", "arm"]):
            style = {
                "color": SHADES[sorted(group.depth.unique()).index(depth)],
                "linestyle": "--" if arm == "erm" else "-",
            }
            band(place, runs.noise.iloc[0], list(runs["values"]), f"{LABELS[arm]}, L = {depth}", **style)
        place.set(title=f"{model}, {form}, on {data}", xlabel="test noise γ", ylabel="rmse")
        place.legend(fontsize=6, handlelength=3)
    return figure


def figure_4(table: Table) -> Figure:
    """Texts: accuracy against test noise, by model and data set."""
    return settings_of(strongest(some(compared(table, model=list(TEXT_MODELS)), "texts")), against_noise)


def figure_6(table: Table) -> Figure:
    """A language model: the loss by layer, and the token accuracy under noise."""
    figure = both_views(some(compared(table, model=list(LANGUAGE_MODELS)), "a language model"))
    figure.axes[0].set_yscale("log")
    return figure


def figure_7(table: Table) -> Figure:
    """DUST: the loss by layer, at each depth."""
    rows = strongest(some(compared(table, model="DUST"), "DUST"))
    return settings_of(rows[rows.data == rows.data.iloc[0]], along_layers)


def figure_8(table: Table) -> Figure:
    """Video: what constraints gain over plain training of the same form at each test noise; untied DUST over tied."""
    rows = middle(strongest(some(compared(table, model=list(VIDEO_MODELS)), "video")))
    return settings_of(rows, _gain_by_noise)


def _gain_by_noise(axes: Any, rows: pd.DataFrame) -> None:
    plain = rows[rows.arm == "erm"].set_index(["form", "seed"])["values"]
    for (arm, form), runs in rows[rows.arm != "erm"].groupby(["arm", "form"], sort=False):
        other = plain_of(runs.model.iloc[0], form)
        shared = [run for run in runs.itertuples() if (other, run.seed) in plain.index]
        gains = [100 * (1 - np.array(run.values) / np.array(plain[other, run.seed])) for run in shared]
        if gains:
            style = {"color": COLOURS[arm], "linestyle": DASHES[form]}
            band(axes, runs.noise.iloc[0], gains, label_of(arm, form), **style)
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set(xlabel="test noise γ", ylabel="better than plain training by %")


def figure_9(table: Table) -> Figure:
    """An encoder on texts: accuracy under noise and the error by layer, by training noise; dashed is plain training."""
    rows = some(classifier(table, arm=["erm", "algorithm-1"]), "an encoder at several levels of training noise")
    levels = sorted(rows.gamma.unique())
    if len(levels) < 2:
        raise NotRunError("it needs an encoder at two levels of training noise")
    figure, (left, right) = panels(2, 2)
    for (gamma, arm), runs in rows.groupby(["gamma", "arm"]):
        style = {"color": SHADES[levels.index(gamma)], "linestyle": "--" if arm == "erm" else "-"}
        band(left, runs.noise.iloc[0], list(runs["values"]), f"{LABELS[arm]}, γ = {gamma:g}", **style)
        errors = [1 - np.array(row, float) for row in runs.metrics]
        band(right, range(len(errors[0])), errors, "", **style)
    left.set(xlabel="test noise γ", ylabel=rows.metric.iloc[0])
    right.set(xlabel="layer", ylabel="error at the training noise")
    left.legend(fontsize=6, handlelength=3)
    return figure


def figure_10(table: Table) -> Figure:
    """Texts: what constraints gain in area over plain training, by training noise; the paper draws accuracies."""
    rows = some(compared(table, ("erm", "algorithm-1"), model=list(TEXT_MODELS)), "texts")
    figure, (axes,) = panels(1)
    for (model, data), runs in rows.groupby(["model", "data"]):
        area = runs.pivot_table("number", "gamma", "arm").dropna()
        if {"erm", "algorithm-1"} <= set(area):
            axes.plot(area.index, 100 * (area["algorithm-1"] / area["erm"] - 1), marker="o", label=f"{model} on {data}")
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set(xlabel="training noise γ", ylabel="better than plain training by %")
    axes.legend(fontsize=7)
    return figure


def varied(table: Table, name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The main runs of an ablation and those of its variants, of the seeds that all have, with the setting's values.

    Raises:
        NotRunError: If there are fewer than two values.
    """
    place = dict(zip(SETTING, rows[SETTING].iloc[0], strict=True)) | {"arm": "algorithm-1"}
    variants = sorted(each for each in set(table.rows.variant) if each.startswith(f"{name}="))
    runs = some(table.where(variant=["", *variants], **place), "the ablation")
    runs = runs.assign(setting=[settings.get(name) for settings in runs.settings])
    runs = runs[runs.setting.notna() & runs.form.isin(("", "untied"))].sort_values("setting")
    if runs.setting.nunique() < 2:
        raise NotRunError(f"it needs the paper's form at two values of {name}")
    return of_shared_seeds(runs, ["setting"])


def seeds_of(rows: pd.DataFrame) -> str:
    """How many seeds there are, in words."""
    count = rows.seed.nunique()
    return f"{count} seeds" if count > 1 else "one seed"


def _against_setting(table: Table, name: str, symbol: str, levels: Callable[[pd.DataFrame], Sequence[float]]) -> Figure:
    rows = varied(table, name, strongest(classifier(table)))
    figure, (axes,) = panels(1)
    for level, colour in zip(levels(rows), SHADES, strict=False):
        by_seed = [
            [row.values[list(row.noise).index(level)] for row in runs.sort_values("setting").itertuples()]
            for _, runs in rows.groupby("seed")
        ]
        band(axes, sorted(set(rows.setting)), by_seed, f"test γ = {level:g}", color=colour)
    axes.set(xlabel=symbol, ylabel=rows.metric.iloc[0])
    axes.set_title(f"{name_of(rows[SETTING].iloc[0])}, {seeds_of(rows)}", fontsize=9)
    axes.set_xscale("log" if name == "dual_lr" else "linear")
    axes.legend(fontsize=7)
    return figure


def _three(rows: pd.DataFrame) -> list[float]:
    noise = rows.noise.iloc[0]
    return [noise[0], noise[len(noise) // 2], noise[-1]]


def figure_5(table: Table) -> Figure:
    """What a larger α does, in and out of distribution."""
    return _against_setting(table, "alpha", "α", lambda rows: [rows.gamma.iloc[0], rows.noise.iloc[0][-1]])


def figure_14(table: Table) -> Figure:
    """What a larger α does at three levels of noise."""
    return _against_setting(table, "alpha", "α", _three)


def figure_15(table: Table) -> Figure:
    """What the dual learning rate does at three levels of noise."""
    return _against_setting(table, "dual_lr", "η of λ", _three)


def out_of_reach(table: Table) -> pd.DataFrame:
    """The run whose α = 0.5 asks for more than any run reaches: the deepest that misses its bounds, one row.

    Raises:
        NotRunError: If there is none.
    """
    rows = some(table.where(variant="alpha=0.5"), "a run with α = 0.5")
    return some(rows[~rows.holds.astype(bool)], "a run with α = 0.5 that misses its bounds").nlargest(1, "depth")


def figure_11(table: Table) -> Figure:
    """A run whose constraints cannot be met, beside one whose can; one seed."""
    wild = out_of_reach(table)
    place = dict(zip([*SETTING, "form"], wild[[*SETTING, "form"]].iloc[0], strict=True))
    beside = compared(table, ("erm", "algorithm-1"), seed=0, **place)
    figure = both_views(pd.concat([beside, wild.assign(arm="paper-adam")]))
    for axes in figure.axes:
        for line in axes.get_lines():
            if line.get_label() == label_of("paper-adam", place["form"]):
                line.set_label("α = 0.5, infeasible")
    figure.axes[0].legend(fontsize=7)
    return figure


def figure_12(table: Table) -> Figure:
    """How much a layer changes a single text's loss, with relaxed constraints and without."""
    main = strongest(classifier(table))
    place = dict(zip(SETTING, main[SETTING].iloc[0], strict=True))
    shown = {LABELS["erm"]: table.where(arm="erm", **place), "relaxed": table.where(arm="algorithm-1", **place)}
    shown["without slack"] = table.where(variant="resilience=0", **place)
    figure, (axes,) = panels(1)
    for (label, runs), colour in zip(shown.items(), ("#444444", "#c2255c", "#e67700"), strict=True):
        if len(runs):
            counts = np.sum(list(runs.histogram), 0)
            axes.stairs(counts / counts.sum(), table.edges, color=colour, label=label)
    axes.set(xscale="log", xlabel="$f_l / f_{l-1}$ of a text", ylabel="share of (text, layer)")
    axes.set_xticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
    axes.minorticks_off()
    axes.axvline(1, color="#bbbbbb", linewidth=0.8)
    axes.legend(fontsize=7)
    return figure


def figure_13(table: Table) -> Figure:
    """Texts: the loss by layer, in every setting."""
    rows = some(compared(table, model=list(TEXT_MODELS)), "texts").sort_values("gamma", kind="stable")
    return settings_of(rows, along_layers)


FIGURES: dict[str, Callable[[Table], Figure]] = {
    f"figure-{number}": draw
    for number, draw in enumerate(
        [
            *(figure_1, figure_2, figure_3, figure_4, figure_5, figure_6, figure_7, figure_8),
            *(figure_9, figure_10, figure_11, figure_12, figure_13, figure_14, figure_15),
        ],
        1,
    )
}


def draw(table: Table, folder: Path, drawn: Mapping[str, Callable[[Table], Figure]]) -> dict[str, str]:
    """Draw every figure that has its cells as PNG and SVG; returns name → why it could not be drawn, or ''."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = {}
    for name, figure_of in drawn.items():
        try:
            figure = figure_of(table)
        except NotRunError as error:
            missing[name] = str(error)
            continue
        missing[name] = ""
        put(folder / f"{name}.png", partial(figure.savefig, dpi=110))
        put(folder / f"{name}.svg", partial(figure.savefig, metadata={"Date": None}))
    return missing
