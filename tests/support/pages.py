"""Run folders with made-up numbers, for the tests of pages."""

import json
from pathlib import Path

import numpy as np

NOISE = [0.0, 0.15, 0.3, 0.6, 1.0, 1.5]


def fake_run(
    folder: Path,
    method: str,
    *,
    seed: int = 0,
    train_noise: float = 0.15,
    alpha: float = 0.1,
    feasible: bool = True,
    frames: bool = True,
    **entries,
) -> Path:
    """A run folder as training and evaluation leave it, with made-up numbers."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(seed)
    depth, constrained = 7, method == "constrained"
    layers = np.arange(depth + 1)
    path = 0.86**layers if constrained else np.r_[1, 1 + 0.5 * np.sin(np.arange(1, depth)), 0.34]
    path = path * (1 + 0.02 * generator.random(depth + 1))
    losses = {level: (2 + 30 * level) * (path + 0.1 * level * (not constrained)) for level in NOISE}
    values = [4 + (9 if constrained else 14) * level + generator.random() for level in NOISE]
    violations = losses[train_noise][1:] - (1 - alpha) * losses[train_noise][:-1]
    if not feasible:
        violations[3] = 0.4
    multipliers = np.maximum(generator.normal(0, 1, depth), 0)
    summary = {
        **{"recipe": "video-ut", "method": method, "seed": seed, "model": "UT-7", "dataset": "ped2<b>"},
        **{
            "metric": "rmse",
            "higher_is_better": False,
            "noise": NOISE,
            "values": values,
            "mean": np.mean(values),
        },
        **{
            "train_noise": train_noise,
            "train_value": values[1],
            "depth": depth,
            "seconds": 93.2,
            "sigma": 0.18,
        },
        "layer_losses": {str(level): row.tolist() for level, row in losses.items()},
        "violations": violations.tolist(),
        "violation_intervals": [[value - 0.1, value + 0.1] for value in violations],
        "feasible": constrained and feasible,
        "layers_needed": {"noise": train_noise, "within": {"1": None, "2": None, "5": None}},
        "certain": feasible,
        "violated": [] if feasible else [4],
        "limits": [None, *[1 - alpha] * depth],
        **{"split": "test", "checkpoint": "model"},
        **{
            "binding": [2, 5] if constrained else [],
            "multipliers": multipliers.tolist(),
            "cap_multiplier": 0.0,
        },
        **{"descending_share": 0.93 if constrained else 0.51, "alpha": [alpha] if constrained else []},
    }
    (folder / "summary.json").write_text(json.dumps(summary | entries))
    common = {"run": folder.name, "split": "train", "noise": train_noise, "metric": "multiplier"}
    steps = np.arange(0, 2000, 10)
    rises = np.outer(1 - np.exp(-steps / 300), np.r_[0.0, multipliers])  # by step and layer, 0 the cap's
    rows = [
        {"step": int(steps[place]), "layer": layer, "value": rises[place, layer]}
        for place, layer in np.ndindex(rises.shape)
    ]
    (folder / "records.jsonl").write_text("".join(json.dumps(common | row) + "\n" for row in rows if constrained))
    if frames:
        np.savez_compressed(folder / "frames.npz", **fake_frames(depth, 0.35 if constrained else 0.7))
    return folder


def geometric(**entries) -> dict:
    """Summary entries of a run with the geometric target: bounds in place of limits, none for layer 1."""
    return {
        **{"limits": [None] * 8, "target": "geometric", "strength": 0.7},
        "bounds": [None, 5.5, 4.6, 3.9, 3.3, 2.8, 2.4],
        "certified": [0.547, 0.0351, 0.0, -0.02, None, 0.1, 0.1],
        **entries,
    }


def classifier(**entries) -> dict:
    """Summary entries of a classifier."""
    rows = {str(level): [0.5 + 0.03 * layer - 0.05 * level for layer in range(8)] for level in NOISE}
    exits = [{"threshold": 0.6, "layers": 2.5, "accuracy": 0.7}, {"threshold": 0.9, "layers": 5.0, "accuracy": 0.71}]
    return {
        **{"recipe": "text-distilbert", "model": "DistilBERT-7", "dataset": "imdb", "metric": "accuracy"},
        **{"higher_is_better": True, "values": [0.71, 0.7, 0.69, 0.66, 0.63, 0.6], "mean": 0.665, "auc": 0.99},
        **{"layer_metrics": rows, "note": "Not trained by <Descend>."},
        "ratios": {
            "mean": 0.95,
            "median": 0.9,
        },
        "latency": {
            "device": "CPU (<b>), 1 thread",
            "batch_size": 16,
            "milliseconds": [0.5 + each for each in range(8)],
        },
        "probe": {"layer_metrics": rows, "layer_losses": {str(level): [0.6] * 8 for level in NOISE}},
        "exit": {
            **{"full": 0.71, "depth": 7, "confidence": exits},
            "chosen": {"threshold": 0.9, "layers": 5.0, "accuracy": 0.71, "time_ratio": 0.8},
        },
        **entries,
    }


def fake_frames(depth: int, left: float) -> dict[str, np.ndarray]:
    """Arrays of `frames.npz`: two clips whose noise falls layer by layer to the share ``left``."""
    rows, columns = np.mgrid[:160, :160]
    generator = np.random.default_rng(1)
    ground = 120 + 50 * np.sin(columns / 11) * np.cos(rows / 17)
    clean = np.stack([np.where(abs(columns - 50 * k) + abs(rows - 80) / 3 < 20, 40, ground) for k in (1, 2)])
    noise = 46 * np.array(NOISE)[:, None, None, None] * generator.normal(size=(1, 2, 160, 160))
    shares = 1 - (1 - left) * np.arange(depth + 1) / depth

    def picture(values: np.ndarray) -> np.ndarray:
        return np.clip(values, 0, 255).astype(np.uint8)

    cleaned = np.stack([clean + share * noise + 6 * share for share in shares], axis=1)
    return {
        "clean": picture(clean),
        "noisy": picture(clean + noise),
        "reconstruction": picture(cleaned),
        "noise": np.array(NOISE),
    }
