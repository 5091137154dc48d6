"""Draw README's picture, the quality of a pretrained model along its layers, from docs/results/layers.json.

    python benchmarks/layers_picture.py docs/results/layers.json docs/layers.png

It prints the numbers that README tells: the mean test accuracy of every layer over seeds.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from gate import PLANS

SETTING, WITHIN = "minilm", 0.02
NAMES = {"probe": "plain training", "linear-1": "all layers trained, weights l/L"}
STYLES = {"probe": {"color": "#666666", "marker": "o"}, "linear-1": {"color": "#1f5fa8", "marker": "s"}}


def main(source: Path, out: Path) -> None:
    """Plot the mean accuracy of each layer over seeds, with all seeds behind it, and the layer that suffices."""
    cells, exits = json.loads(source.read_text())[SETTING], PLANS[SETTING].exits
    figure, axis = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    scores = {recipe: np.array([run["clean"]["scores"] for run in cells[recipe].values()]) for recipe in NAMES}
    least = scores["probe"].mean(0)[-1] - WITHIN
    axis.axhspan(least, least + WITHIN, color="#2e8b57", alpha=0.15, lw=0)
    for recipe, runs in scores.items():
        mean = runs.mean(0)
        axis.plot(exits, runs.T, color=STYLES[recipe]["color"], alpha=0.2, lw=1)
        axis.plot(exits, mean, label=NAMES[recipe], **STYLES[recipe])
        needed = next(layer for place, layer in enumerate(exits) if (mean[place:] >= least).all())
        axis.annotate(
            f"{needed} of {exits[-1]} layers",
            (needed, mean[exits.index(needed)]),
            (0, 14 if recipe != "probe" else -20),
            textcoords="offset points",
            ha="center",
            color=STYLES[recipe]["color"],
        )
        print(recipe, len(runs), "seeds:", *(f"{value:.3f}" for value in mean), f"K = {needed}")
    axis.set(xlabel="layer", ylabel="accuracy on test texts", title="MiniLM fine-tuned on IMDb")
    axis.legend(loc="lower right")
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
