"""Draw docs/demo.png from a demo's folder.

python benchmarks/demo_picture.py demo docs/demo.png
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

NAMES = {"erm": "plain training (ERM)", "constrained": "Descend"}
STYLES = {
    "erm": {"color": "#666666", "marker": "o", "linestyle": "--"},
    "constrained": {"color": "#1f5fa8", "marker": "s"},
}


def main(demo: Path, out: Path) -> None:
    """Plot the error by layer of both methods, and one test frame as some layers read it."""
    figure = plt.figure(figsize=(12, 3.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 2])
    axis, curves = left.subplots(), {}
    for row, method in enumerate(NAMES):
        summary = json.loads((demo / method / "summary.json").read_text())
        level = min(summary["layer_metrics"], key=lambda each: abs(float(each) - summary["train_noise"]))
        curves[method] = summary["layer_metrics"][level]
        axis.plot(curves[method], label=NAMES[method], **STYLES[method])
        frames = np.load(demo / method / "frames.npz")
        place = int(np.abs(frames["noise"] - summary["train_noise"]).argmin())
        layers = [1, 2, 3, len(curves[method]) - 1]
        shown = [("input", frames["noisy"][place, 0])]
        shown += [(f"layer {layer}", frames["reconstruction"][place, layer, 0]) for layer in layers]
        shown += [("clean", frames["clean"][0])]
        if row == 0:
            grid = right.subplots(2, len(shown))
        for cell, (name, picture) in zip(grid[row], shown, strict=True):
            cell.imshow(picture, cmap="gray", vmin=0, vmax=255)
            cell.set(xticks=[], yticks=[], title=name if row == 0 else "")
        grid[row][0].set_ylabel(NAMES[method].split(" (")[0])
    axis.set(xlabel="layer", ylabel="RMSE on test clips (0 to 255)", ylim=(0, None))
    axis.legend()
    figure.savefig(out, dpi=110)
    print({method: [round(value, 1) for value in curve] for method, curve in curves.items()})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
