"""Draw README's picture, the loss of a pretrained model along its layers, from docs/results/layers.json.

    python benchmarks/layers_picture.py docs/layers.png

Means over seeds on test data, with a thin line for each seed. It prints the numbers that README tells.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from gate import PLANS, RESULTS

SETTING, WITHIN = "minilm", 1.02
NAMES = {"probe": "plain training, readouts beside it", "linear-1": "all layers trained, weights l/L"}
STYLES = {"probe": {"color": "#666666", "marker": "o"}, "linear-1": {"color": "#1f5fa8", "marker": "s"}}


def main(out: Path) -> None:
    """Plot each layer's test loss, and the layer from which on all means are within 2 % of plain training's last."""
    recipes, exits = json.loads(RESULTS.read_text())["seeds"][SETTING], PLANS[SETTING].exits
    runs = {name: np.array([cell["clean"]["losses"] for cell in recipes[name].values()]) for name in NAMES}
    limit = WITHIN * runs["probe"][:, -1].mean()
    figure, axis = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    axis.axhspan(0, limit, color="#2e8b57", alpha=0.15, lw=0)
    for recipe, losses in runs.items():
        style, mean = STYLES[recipe], losses.mean(0)
        axis.plot(exits, losses.T, color=style["color"], alpha=0.25, lw=0.8)
        axis.plot(exits, mean, label=NAMES[recipe], **style)
        layer = next(layer for place, layer in enumerate(exits) if max(mean[place:]) <= limit)
        above = recipe == "probe"
        axis.annotate(
            f"{layer} of {exits[-1]} layers",
            (layer, mean[exits.index(layer)]),
            (10, 40) if above else (0, -22),
            textcoords="offset points",
            ha="center",
            color=style["color"],
            arrowprops={"arrowstyle": "-", "color": style["color"]} if above else None,
        )
        print(recipe, f"{len(losses)} seeds", *(f"{value:.3f}" for value in mean), f"K = {layer}")
        print("accuracy", *(f"{value:.3f}" for value in np.mean([c["clean"]["scores"] for c in recipes[recipe].values()], 0)))
    axis.set(xlabel="layer", ylabel="loss on test texts", ylim=(0.33, None))
    title = f"MiniLM fine-tuned on IMDb, {len(runs['probe'])} seeds; green: within 2 % of plain training's last layer"
    axis.set_title(title, fontsize=10)
    axis.legend()
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
