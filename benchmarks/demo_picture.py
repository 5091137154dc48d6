"""Draw docs/demo.png from a demo's folder.

python benchmarks/demo_picture.py demo docs/demo.png
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np


def main(demo: Path, out: Path) -> None:
    """Plot the error by layer of both methods, and one test frame as each layer reads it."""
    names = {"erm": "plain training (ERM)", "constrained": "Descend"}
    figure, axes = plt.subplots(1, 2, figsize=(13, 4.2), width_ratios=[1, 2.1], layout="constrained")
    strips, curves = [], {}
    for (method, name), color in zip(names.items(), ("tab:gray", "tab:blue"), strict=True):
        summary = json.loads((demo / method / "summary.json").read_text())
        level = min(summary["layer_metrics"], key=lambda each: abs(float(each) - summary["train_noise"]))
        curves[method] = summary["layer_metrics"][level]
        axes[0].plot(curves[method], "o-", color=color, label=name)
        frames = np.load(demo / method / "frames.npz")
        place = int(np.abs(frames["noise"] - summary["train_noise"]).argmin())
        strips.append(np.hstack([*frames["reconstruction"][place, :, 0], frames["clean"][0]]))
    axes[0].set(xlabel="layer", ylabel="RMSE of its output, test clips", ylim=(0, None))
    axes[0].legend()
    axes[1].imshow(np.vstack(strips), cmap="gray", vmin=0, vmax=255)
    width = strips[0].shape[1] / (len(curves["erm"]) + 1)
    labels = [*(f"layer {layer}" for layer in range(len(curves["erm"]))), "clean"]
    axes[1].set_xticks([(place + 0.5) * width for place in range(len(labels))], labels)
    axes[1].set_yticks([(place + 0.5) * strips[0].shape[0] for place in range(2)], ["ERM", "Descend"])
    figure.savefig(out, dpi=110)
    print({method: [round(value, 1) for value in curve] for method, curve in curves.items()})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
