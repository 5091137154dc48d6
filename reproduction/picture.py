"""Draw README's picture from a study's file: what the paper's constraints do to the layers, and what they give.

    python -m reproduction.picture reproduction/records/study.jsonl docs/constraints.png

UT-5 with separate weights, by projected ascent, at strong noise: means over the seeds that both methods have. It prints
the numbers that README tells.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from descend.results import put
from reproduction.table import Gain, Table, at_levels, gain, read

DATA = {"ped2": ("Ped2", "#1f5fa8"), "ped1": ("Ped1", "#c2752b"), "avenue": ("Avenue", "#2e8b57")}
"""Data set → its name and colour."""

SHOWN = "ped2"
"""The data of the first panel."""

STYLES: dict[str, dict[str, Any]] = {
    "erm": {"label": "plain training", "color": "#666666", "marker": "o"},
    "algorithm-1": {"label": "the paper's constraints", "color": "#d55e00", "marker": "s"},
}


def rows(table: Table, data: str, arm: str) -> pd.DataFrame:
    """The runs of a method."""
    return table.where(model="UT", depth=5, gamma=0.8, form="untied", data=data, arm=arm)


def _gain_at(level: float, ours: pd.DataFrame, plain: pd.DataFrame) -> Gain:
    """The gain at one noise level."""

    def alone(each: float, gamma: float) -> bool:
        return each == level

    return gain(at_levels(ours, alone), at_levels(plain, alone))


def main(study: Path, out: Path) -> None:
    """Draw both panels."""
    table = read(study)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for arm, style in STYLES.items():
        runs = rows(table, SHOWN, arm)
        losses = np.array([run.losses["0.8"] for run in runs.itertuples()])
        mean, layers = losses.mean(0), range(losses.shape[1])
        left.plot(layers, mean, ms=4, **style)
        falls = 100 * (1 - mean[2:] / mean[1:-1])
        print(f"{arm}: losses {' '.join(f'{each:.2f}' for each in mean)}, falls after layer 1 by", end=" ")
        print(f"{' '.join(f'{each:.0f}' for each in falls)} %; holds in {runs.holds.sum()} of {len(runs)}")
        if arm != "erm":
            (alpha,), (cap,) = ({each["alpha"] for each in runs.settings}, {each["cap"] for each in runs.settings})
            bounds = [cap, *((1 - alpha) * mean[1:-1])]
            left.plot(range(1, len(mean)), bounds, "_", ms=16, color=style["color"], label="its bounds: at most")
    left.set(
        xlabel="layer", ylabel="loss on test clips", yscale="log", title=f"Every layer helps: UT-5, {DATA[SHOWN][0]}"
    )
    left.set_yticks([1, 2, 3, 5], ["1", "2", "3", "5"])
    left.set_yticks([], minor=True)
    left.legend(fontsize=8)
    right.axhline(0, color="#666666", lw=1)
    right.axvline(1, color="#999999", lw=1, ls=":")
    for data, (name, colour) in DATA.items():
        ours, plain = (rows(table, data, arm) for arm in ("algorithm-1", "erm"))
        levels = ours.noise.iloc[0]
        gains = [_gain_at(level, ours, plain) for level in levels]
        values, low, high = (np.array([getattr(each, end) for each in gains]) for end in ("value", "low", "high"))
        x = np.array(levels) / 0.8
        right.plot(x, values, ms=4, marker="o", color=colour, label=name)
        right.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
        print(f"{data}: {gain(ours, plain)} over noise, {gains[0].groups} clips, {gains[0].seeds} seeds")
    right.set(xlabel="test noise / training noise", ylabel="gain in RMSE, %", title="Under noise: wins and losses")
    right.legend(fontsize=8)
    put(out, partial(figure.savefig, format="png", dpi=130))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
