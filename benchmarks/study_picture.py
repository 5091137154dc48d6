"""Draw docs/results/study.png from a study's folder.

python benchmarks/study_picture.py docs/results/small docs/results/study.png
"""

import sys
from math import isfinite
from pathlib import Path

import matplotlib.pyplot as plt

from descend.paper.report.cells import arm_name
from descend.paper.report.chart import arm_style
from descend.paper.report.overview import overview
from descend.paper.report.results import FORMS, Results

ARMS = ("erm", "paper", "constrained", "linear")


def main(study: Path, out: Path) -> None:
    """A panel of bars for each of four questions, with one bar for each method."""
    arms = {arm: given for arm, given in overview(Results.read(study)).items() if arm in ARMS}
    gained = [arm for arm in arms if arm != "erm"]
    panels: dict[str, dict[str, tuple[float, str]]] = {
        "Constraints hold, runs": {
            arm: (arms[arm].feasible.number / arms[arm].feasible.total, str(arms[arm].feasible))
            for arm in FORMS
            if arm in arms
        },
        "Loss falls at every layer, runs": {
            arm: (given.falls.number / given.falls.total, str(given.falls)) for arm, given in arms.items()
        },
        "Video, half depth: error\nlower than ERM's by, %": {arm: _percent(arms[arm].half_error) for arm in gained},
        "All noise: better than ERM by, %": {arm: _percent(arms[arm].over_noise.middle) for arm in gained},
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(13, 2.6), layout="constrained")
    for axis, (title, bars) in zip(axes, panels.items(), strict=True):
        for place, (arm, (value, words)) in enumerate(bars.items()):
            axis.barh(place, value, color=arm_style(arm).light)
            axis.annotate(f" {words} ", (max(value, 0), place), va="center", fontsize=8)
        axis.set_yticks(range(len(bars)), [arm_name(arm) for arm in bars])
        axis.set_title(title, fontsize=10)
        axis.invert_yaxis()
        axis.margins(x=0.35)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=110)


def _percent(value: float) -> tuple[float, str]:
    """The length of a bar and its words; an infinite one is not drawn."""
    return (value if isfinite(value) else 0.0, f"{value:+z.1f}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
