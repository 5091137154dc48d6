"""What a blur makes of the demo's noisy test frames, for comparison with its models.

python benchmarks/blur.py
"""

import math

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from descend import GaussianNoise
from descend.tasks.video import load_video, unpatchify

WINDOW, LEVEL = 5, 0.8


def main() -> None:
    """Print the RMSE of the noisy frames, of each frame blurred, and of the mean of a window blurred."""
    data = load_video(None, WINDOW)
    noise = GaussianNoise(LEVEL, data.sigma, seed=0)
    errors: dict[str, list[float]] = {}
    for place in range(len(data.test)):
        patches = torch.as_tensor(data.test[place]["patches"])[None]
        clean, noisy = (255 * unpatchify(each)[0].numpy() for each in (patches, noise(patches, indices=[place])))
        shown = {"as they are": noisy}
        for spread in (1, 1.5, 2):
            shown[f"each blurred, σ {spread} pixels"] = gaussian_filter(noisy, (0, spread, spread))
            shown[f"mean of {WINDOW} blurred, σ {spread} pixels"] = gaussian_filter(noisy.mean(0), spread)[None]
        for name, frames in shown.items():
            errors.setdefault(name, []).append(float(np.square(frames - clean).mean()))
    for name, values in errors.items():
        print(f"{name}: RMSE {math.sqrt(sum(values) / len(values)):.1f}")


if __name__ == "__main__":
    main()
