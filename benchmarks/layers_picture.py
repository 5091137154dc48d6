"""Draw README's picture, the loss of a pretrained model along its layers, from docs/results/layers.json.

    python benchmarks/layers_picture.py docs/results/layers.json docs/layers.png

It prints the numbers that README tells.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from gate import PLANS

SETTING, WITHIN = "minilm", 1.02
NAMES = {"plain": "plain training, readouts beside it", "linear-1": "all layers trained, weights l/L"}
STYLES = {"plain": {"color": "#666666", "marker": "o"}, "linear-1": {"color": "#1f5fa8", "marker": "s"}}


def chosen(rates: dict[str, list[float]], best: float) -> list[float]:
    """The losses at the rate that the plan chooses: the least mean among those that keep the last layer."""
    kept = [losses for losses in rates.values() if losses[-1] <= WITHIN * best]
    return min(kept, key=sum)


def main(source: Path, out: Path) -> None:
    """Plot each layer's validation loss, and the layer from which on all are within 2 % of plain training's last."""
    recipes, exits = json.loads(source.read_text())["search"][SETTING], PLANS[SETTING].exits
    best = min(losses[-1] for losses in recipes["plain"].values())
    curves = {"plain": min(recipes["plain"].values(), key=lambda losses: losses[-1])}
    curves["linear-1"] = chosen(recipes["linear-1"], best)
    figure, axis = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    axis.axhspan(0, WITHIN * best, color="#2e8b57", alpha=0.15, lw=0)
    for recipe, losses in curves.items():
        axis.plot(exits, losses, label=NAMES[recipe], **STYLES[recipe])
        layer = next(layer for place, layer in enumerate(exits) if max(losses[place:]) <= WITHIN * best)
        above = recipe == "plain"
        axis.annotate(
            f"{layer} of {exits[-1]} layers suffice",
            (layer, losses[exits.index(layer)]),
            (0, 30 if above else -22),
            textcoords="offset points",
            ha="right" if above else "center",
            color=STYLES[recipe]["color"],
            arrowprops={"arrowstyle": "-", "color": STYLES[recipe]["color"]} if above else None,
        )
        print(recipe, *(f"{value:.3f}" for value in losses), f"K = {layer}")
    axis.set(xlabel="layer", ylabel="loss on validation texts", ylim=(0.33, None))
    axis.set_title("MiniLM fine-tuned on IMDb; green: within 2 % of plain training's last layer", fontsize=10)
    axis.legend()
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
