"""Studies made up for tests: a ``cells.jsonl`` as a study writes it, its numbers with effects that are known."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

LEVELS = {
    "video": [0.0, 0.4, 0.8, 1.2, 1.6, 2.0],
    "text": [0.0, 0.5, 1.0, 1.5, 2.0],
    "language": [0.0, 1.0, 1.5, 2.0, 3.0],
}
ALPHA = 0.1
GROUPS, BINS = 12, 24

# How much better constrained is than ERM: a share of the error, or of what is left to a perfect accuracy.
Effect = Callable[[dict[str, Any], float], float]


def _better(cell: dict[str, Any], noise: float) -> float:
    return 0.02 + 0.05 * noise


def _same(cell: dict[str, Any], noise: float) -> float:
    return 0.0


def _worse(cell: dict[str, Any], noise: float) -> float:
    return -0.05 - 0.05 * noise


BETTER, SAME, WORSE = _better, _same, _worse


def line(
    task: str,
    model: str,
    data: str,
    depth: int,
    gamma: float,
    arm: str,
    seed: int,
    *,
    regime: str = "paper",
    variant: str = "",
    effect: Effect = BETTER,
    answers: bool = False,
    **changed: Any,
) -> dict[str, Any]:
    """One finished cell; ``changed`` are entries of its summary."""
    cell = {"task": task, "model": model, "data": data, "depth": depth, "gamma": gamma, "regime": regime}
    cell |= {"arm": arm, "variant": variant, "seed": seed, "recipe": f"{task}-{model.lower()}"}
    where = f"{task} {model} {data} {depth} {gamma} {regime}"
    # The same test samples whatever the run; seeds of their own.
    shared = np.random.default_rng(sum(map(ord, data)))
    own = np.random.default_rng(sum(map(ord, where + arm + variant)) + 1000 * seed)
    name = "_".join(filter(None, [f"{cell['recipe']}-{depth}", data, f"{gamma:g}", regime, arm, variant, f"s{seed}"]))
    cell |= {"name": name, "settings": {"learning_rate": 3e-3}, "judge": {}}
    noise, higher = LEVELS[task], task != "video"
    constrained = arm in ("paper", "constrained")
    gain = [effect(cell, level) if constrained else 0.0 for level in noise]
    counts = [100] * GROUPS
    hard = 1 + 0.1 * shared.normal(size=GROUPS)
    jitter = 1 + 0.002 * own.normal()
    if higher:
        wrong = [
            min(0.5, 0.12 + 0.13 * level - 0.03 * gamma * level) * (1 - one)
            for level, one in zip(noise, gain, strict=True)
        ]
        scores = [[100 * (1 - min(0.95, share * h * jitter)) for h in hard] for share in wrong]
    else:
        error = [(4 + 9 * level - 0.2 * depth) * (1 - one) * jitter for level, one in zip(noise, gain, strict=True)]
        scores = [[100 * (value * h) ** 2 for h in hard] for value in error]
    totals = np.array(scores).sum(1) / sum(counts)
    values = (totals if higher else np.sqrt(totals)).tolist()
    layers = np.arange(depth + 1)
    smooth = 0.8**layers
    uneven = np.interp(layers, [0, depth - 1, depth], [1, 0.9, 0.8**depth]) + 0.1 * np.sin(2.4 * layers) * (
        layers < depth
    )
    path = smooth if constrained else uneven
    losses = {
        level: ((0.5 + level) * (path + 0.15 * max(0, level - gamma) * (1 - one)) * jitter).tolist()
        for level, one in zip(noise, gain, strict=True)
    }
    losses.setdefault(gamma, ((0.5 + gamma) * path * jitter).tolist())
    limits = [None, *[1 - ALPHA] * depth]
    trained = losses[gamma]
    missed = [trained[layer] - (1 - ALPHA) * trained[layer - 1] for layer in range(1, depth + 1)]
    edges = np.geomspace(0.1, 10, BINS + 1)
    middle = np.sqrt(edges[1:] * edges[:-1])
    centre = 0.85 if constrained else 1.02
    bins = [np.round(400 * np.exp(-((np.log(middle / centre) / 0.3) ** 2))).astype(int).tolist() for _ in range(depth)]
    metric = {"video": "rmse", "text": "accuracy", "language": "token_accuracy"}[task]
    at_gamma = values[min(range(len(noise)), key=lambda place: abs(noise[place] - gamma))]
    settings = {"learning_rate": 3e-3, "max_steps": 400}
    if constrained:
        settings |= {"dual_lr": 0.03, "resilience": 0.05, "dual_optimizer": "adam"}
        settings["stop_gradient"] = arm != "paper"  # preset paper descends its Lagrangian
    summary = {
        **{
            "recipe": cell["recipe"],
            "method": "constrained" if arm == "paper" else arm.removesuffix("-clean"),
            "seed": seed,
            "model": f"{model}-{depth}",
        },
        **{"dataset": data, "metric": metric, "higher_is_better": higher, "noise": noise, "values": values},
        **{"mean": float(np.mean(values)), "auc": float(np.trapezoid(values, noise)), "train_noise": gamma},
        **{"train_value": at_gamma, "layer_losses": {str(level): row for level, row in losses.items()}},
        "layer_metrics": {
            str(level): (np.clip(1 - np.array(row) / 3, 0, 1) if higher else 20 * np.array(row)).tolist()
            for level, row in losses.items()
        },
        **{"violations": missed, "violation_intervals": [[value - 0.01, value + 0.01] for value in missed]},
        **{"feasible": max(missed) <= 0, "certain": True, "limits": limits, "alpha": [ALPHA] * depth},
        **{"violated": [layer for layer, value in enumerate(missed, start=1) if value > 0]},
        "verdict": "Feasible: every constraint holds."
        if max(missed) <= 0
        else "INFEASIBLE: layer 1 breaks its constraint.",
        **{"descending_share": 0.8 if constrained else 0.6, "settings": settings, "cap": 1.5 if constrained else None},
        "ratios": {
            **{"mean": 0.9, "median": 0.88 if constrained else 1.0, "quantiles": [0.05, 0.25, 0.5, 0.75, 0.95]},
            "by_layer": [[0.5, 0.7, centre, 1.0, 1.4]] * depth,
            "histogram": {"edges": edges.tolist(), "counts": bins},
        },
    } | changed
    if model in ("UT", "DUST"):
        falling = 100 * 0.9**layers * (1 + 0.001 * own.random(depth + 1))
        summary["energy"] = {str(level): (falling + 10 * level).tolist() for level in losses}
    steps = list(range(10, 410, 10))
    rise = 1 - np.exp(-np.array(steps) / 80)
    curves: dict[str, Any] = {
        "loss": [[value * (1 + 2 * np.exp(-step / 60)) for value in trained] for step in steps],
        "weight": [[0.0] * depth + [1.0] for _ in steps],
    }
    if constrained:
        curves["multiplier"] = [[0.0, *(0.3 * r * (1 + layer) / depth for layer in range(depth))] for r in rise]
        curves["weight"] = [[-0.2 * r] * depth + [1 + 0.3 * r] for r in rise]
        curves["violation"] = [[value + 0.2 * (1 - r) for value in summary["violations"]] for r in rise]
        curves["slack"] = [[0.01 * r] * depth for r in rise]
    blocks = 1 + 0.002 * shared.normal(size=(depth + 1, GROUPS))
    blocks /= blocks.mean(1, keepdims=True)
    by_block = {
        **{"noise": list(losses), "counts": counts},
        "losses": [(100 * np.array(row)[:, None] * blocks).tolist() for row in losses.values()],
    }
    found = {
        "cell": cell,
        "summary": summary,
        "groups": {"noise": noise, "root": not higher, "counts": counts, "scores": scores, "layers": by_block},
        "curves": {quantity: {"steps": steps, "values": rows} for quantity, rows in curves.items()},
        "train_losses": [0.98 * loss for loss in trained],
        "validation": {"steps": [200, 400], "loss": [trained, [value - 0.01 for value in trained]]},
        "seconds": 30.0,
    }
    if answers:
        found["completions"] = list(_answers(arm, noise))
    return found


def _answers(arm: str, noise: Iterable[float]) -> Iterator[dict[str, Any]]:
    for level in noise:
        for prompt in range(6):
            fresh = " ".join(f"word{prompt * 50 + place}" for place in range(12))
            again = " a monitor a mouse" * (int(2 * level) if arm not in ("paper", "constrained") else int(0.4 * level))
            yield {"prompt": f"List the parts of number {prompt}.", "noise": level, "text": fresh + again}


def small(effect: Effect = BETTER, seeds: int = 3) -> list[dict[str, Any]]:
    """A study with every task, model, data set and ablation once, as the small scale has them."""
    arms = ("erm-clean", "erm", "paper", "constrained", "uniform", "linear")
    found = []

    def add(task: str, model: str, data: str, depth: int, gamma: float, names: Iterable[str], **other: Any) -> None:
        for arm, seed in product(names, range(seeds)):
            level = 0.0 if arm == "erm-clean" else gamma
            found.append(line(task, model, data, depth, level, arm, seed, effect=effect, **other))

    for model, depth in product(("UT", "DUST"), (3, 5)):
        add("video", model, "ucsd", depth, 0.8, arms if (model, depth) == ("UT", 3) else arms[1:4], regime="strong")
    add("video", "ViT", "ucsd", 6, 0.8, arms[1:4], regime="strong")
    add("video", "UT", "avenue", 3, 0.8, arms[1:4], regime="strong")
    add("video", "UT", "ucsd", 3, 0.15, arms[1:4])
    broken = {"feasible": False, "verdict": "INFEASIBLE: layers 2 and 3 break theirs.", "violations": [0.0, 0.4, 0.3]}
    broken["violated"] = [2, 3]
    add("video", "UT", "ucsd", 3, 0.8, ["paper"], regime="strong", variant="infeasible", **broken)
    for variant, names in {"untied": ("erm", "constrained"), "tied": ("paper",)}.items():
        add("video", "UT", "ucsd", 3, 0.8, names, regime="strong", variant=variant)
    add("video", "UT", "ucsd", 3, 0.15, arms[1:4], variant="noise_is=std")
    for model, depth in (("UT", 3), ("DistilBERT", 4), ("RoBERTa", 6)):
        add("text", model, "imdb", depth, 1.0, [*arms, "r-drop"] if model == "UT" else arms[1:4])
    add("text", "UT", "mnli", 3, 0.2, arms[1:4])
    for gamma in (0.0, 0.4):
        add("text", "DistilBERT", "imdb", 4, gamma, ("erm" if gamma else "erm-clean", "paper", "constrained"))
    for alpha in (0.05, 0.3, 0.5):
        add(
            "text",
            "RoBERTa",
            "imdb",
            6,
            1.0,
            ["paper"],
            variant=f"alpha={alpha:g}",
            limits=[None, *[1 - alpha] * 6],
        )
    for rate in (0.001, 0.01, 0.1):
        add("text", "RoBERTa", "imdb", 6, 1.0, ["paper"], variant=f"dual_lr={rate:g}")
    add("text", "RoBERTa", "imdb", 6, 1.0, ["paper"], variant="resilience=0")
    add("language", "Llama", "alpaca", 5, 1.5, arms[1:4], answers=True)
    return found


def write(out: Path, lines: Iterable[dict[str, Any]], what: Sequence[str] = ("all",), scale: str = "") -> Path:
    """Write a study's folder; of no scale that is known, all lines are drawn, whether a scale asks for them or not."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "cells.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in lines)
    (out / "study.json").write_text(json.dumps({"scale": scale, "what": [*what], "versions": {}}))
    return out
