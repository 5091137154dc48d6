"""Draw README's picture, errors along the layers of two pretrained models, from reproduction/records/layers.json.

    python benchmarks/layers_picture.py docs/layers.png

Means over seeds on test data, with a thin line for each seed. It prints the numbers that README tells.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from gate import PLANS, RESULTS
from gate_table import TOLERANCE, cells_scores, layers_needed
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter
from scipy.stats import t as student

SETTINGS = {"minilm": "MiniLM on film reviews", "dinov2": "DINOv2-S on digits"}
NAMES = {
    "probe": "plain training, readouts beside it",
    "linear-1": "weights l/L",
    "descent-.8": "descend train's default",
}
STYLES = {
    "probe": {"color": "#666666", "marker": "o"},
    "linear-1": {"color": "#c2752b", "marker": "^"},
    "descent-.8": {"color": "#1f5fa8", "marker": "s"},
}


def main(out: Path) -> None:
    """Plot each layer's test error, and the layer from which on all are within 2 points of plain training's last."""
    found = json.loads(RESULTS.read_text())["seeds"]
    figure, axes = plt.subplots(1, len(SETTINGS), figsize=(9, 3.6), layout="constrained")
    for axis, (setting, title) in zip(axes, SETTINGS.items(), strict=True):
        recipes, exits = found[setting], PLANS[setting].exits
        plain = cells_scores(recipes["probe"], "clean")
        axis.axhspan(0, 100 * (1 - plain.mean(0)[-1]) + TOLERANCE, color="#2e8b57", alpha=0.15, lw=0)
        for recipe, name in NAMES.items():
            scores = cells_scores(recipes[recipe], "clean")
            errors, style = 100 * (1 - scores), STYLES[recipe]
            needed = {points: layers_needed(scores, plain, exits, points) for points in (1, TOLERANCE, 5)}
            layer = needed[TOLERANCE]
            axis.plot(exits, errors.T, color=style["color"], alpha=0.25, lw=0.8)
            axis.plot(exits, errors.mean(0), ms=4, label=f"{name}: {layer} of {exits[-1]}", **style)
            axis.plot(layer, errors.mean(0)[exits.index(layer)], "o", ms=14, mfc="none", color=style["color"])
            within = ", ".join(f"{layers} within {points}" for points, layers in needed.items())
            print(f"{setting} {recipe} {len(scores)} seeds, K = {within}")
            print("  accuracy", *(f"{value:.4f}" for value in scores.mean(0)))
            change = 100 * (scores - plain)[:, -1]
            width = student.ppf(0.975, len(change) - 1) * change.std(ddof=1) / len(change) ** 0.5
            ends = f"{change.mean() - width:+.2f} to {change.mean() + width:+.2f}"
            print(f"  last layer {change.mean():+.2f} points ({ends} over seeds)")
        axis.set(xlabel="layer", ylabel="error on test data, %", yscale="log", title=title)
        axis.yaxis.set_major_locator(FixedLocator([3, 4, 5, 7, 10, 15, 20, 25, 30, 40]))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.legend(title="layers to keep (ringed), within 2 points (green)", fontsize=8, title_fontsize=8)
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
