"""Draw README's picture, losses along the layers of two pretrained models, from docs/results/layers.json.

    python benchmarks/layers_picture.py docs/layers.png

Means over seeds on test data, with a thin line for each seed. It prints the numbers that README tells.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from gate import PLANS, RESULTS
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

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
WITHIN = 1.02


def main(out: Path) -> None:
    """Plot each layer's test loss, and the layer from which on all means are within 2 % of plain training's last."""
    found = json.loads(RESULTS.read_text())["seeds"]
    figure, axes = plt.subplots(1, len(SETTINGS), figsize=(9, 3.6), layout="constrained")
    for axis, (setting, title) in zip(axes, SETTINGS.items(), strict=True):
        recipes, exits = found[setting], PLANS[setting].exits
        limit = WITHIN * np.mean([cell["clean"]["losses"][-1] for cell in recipes["probe"].values()])
        axis.axhspan(0, limit, color="#2e8b57", alpha=0.15, lw=0)
        for recipe, name in NAMES.items():
            losses, scores = (np.array([c["clean"][k] for c in recipes[recipe].values()]) for k in ("losses", "scores"))
            mean = losses.mean(0)
            layer = next(layer for place, layer in enumerate(exits) if max(mean[place:]) <= limit)
            axis.plot(exits, losses.T, color=STYLES[recipe]["color"], alpha=0.25, lw=0.8)
            axis.plot(exits, mean, ms=4, label=f"{name}: {layer} of {exits[-1]}", **STYLES[recipe])
            axis.plot(layer, mean[exits.index(layer)], "o", ms=14, mfc="none", color=STYLES[recipe]["color"])
            print(setting, recipe, f"{len(losses)} seeds, K = {layer}")
            for what, values in (("loss", mean), ("accuracy", scores.mean(0))):
                print(f"  {what}", *(f"{value:.4f}" for value in values))
        axis.set(xlabel="layer", ylabel="loss on test data", yscale="log", title=title)
        axis.yaxis.set_major_locator(FixedLocator([0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 1, 1.5]))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.legend(title="layers to keep (ringed), within 2 % (green)", fontsize=8, title_fontsize=8)
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
