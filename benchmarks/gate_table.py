"""The tables of reproduction/records/layers.md, from the cells of benchmarks/gate.py: who wins by the rule of the plan.

    python benchmarks/gate_table.py --work FOLDER    # add the cells to reproduction/records/layers.json, then print
    python benchmarks/gate_table.py                  # print what was collected

The file has for each setting and recipe, seed by seed, the mean loss and score of every exit on test data, and how much
worse the last layer is than plain training's: the 95 % interval of the ratio of the losses, paired by test sample.
"""

import argparse
import copy
import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from gate import PLANS, RECIPES, RESULTS, cell_file, chosen_rate, known, named, validation
from scipy.stats import t as student

PRIMARY = (
    ("minilm", "linear-1", "probe"),
    ("minilm", "two-stage", "linear-1"),
    ("dinov2", "linear-1", "probe"),
    ("dinov2", "two-stage", "linear-1"),
    ("smollm2", "linear-.05", "probe"),
    ("smollm2", "two-stage", "linear-.05"),
)
HARM = 0.02
"""The last layer is harmed where it is certain to lose more than this share of its loss."""

TOLERANCE = 2
"""Points of accuracy below plain training's last layer, within which a layer suffices."""

Cells = dict[str, dict[str, dict[str, dict[str, Any]]]]
"""Setting → recipe → seed → what was measured."""


def collect(work: Path) -> Cells:
    """What the cells of a folder say, in a few numbers each."""
    found: Cells = {}
    for name, plan in PLANS.items():
        for recipe in (*RECIPES, *(f"cut-{layers}" for layers in plan.cuts)):
            rate = chosen_rate(work, name, "plain" if recipe.startswith("cut-") else recipe)
            for seed in range(plan.seeds):
                file = cell_file(work, name, recipe, rate or 0.0, seed)
                if rate is None or not file.is_file():
                    continue
                cell = np.load(file)
                plain = cell_file(work, name, "plain", chosen_rate(work, name, "plain") or 0.0, seed)
                held = np.load(plain) if plain.is_file() else None
                entry: dict[str, Any] = {"rate": rate, "seconds": json.loads(str(cell["cost"]))["seconds"]}
                for level, kind in ((0.0, "clean"), (plan.gamma, "noisy")):
                    entry[kind] = measured(cell, held, f"{level:g}")
                if "refitted_0" in cell:
                    entry["refitted"] = rounded(cell["refitted_0"].mean(0))
                found.setdefault(name, {}).setdefault(named(recipe), {})[str(seed)] = entry
                if recipe == "plain" and "distilled_0" in cell:
                    # Their accuracies were not recorded.
                    distilled = {
                        kind: {
                            "losses": [*rounded(cell[f"distilled_{level:g}"].mean(0)), entry[kind]["losses"][-1]],
                            "last": entry[kind]["last"],
                        }
                        for level, kind in ((0.0, "clean"), (plan.gamma, "noisy"))
                    }
                    found[name].setdefault("distilled", {})[str(seed)] = distilled
    return found


def merged(before: Cells, new: Cells) -> Cells:
    """What was collected before with what is new; new cells take the place of those before."""
    found = copy.deepcopy(before)
    for name, recipes in new.items():
        for recipe, seeds in recipes.items():
            found.setdefault(name, {}).setdefault(recipe, {}).update(seeds)
    return found


def searched(work: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Setting → recipe → learning rate → validation losses of the search."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, plan in PLANS.items():
        for recipe in RECIPES:
            for rate in plan.rates:
                losses = validation(work, name, recipe, rate)
                if losses is not None:
                    losses = rounded(losses)
                    found.setdefault(name, {}).setdefault(recipe, {})[f"{rate:g}"] = losses
    return found


def search(found: dict[str, dict[str, dict[str, list[float]]]]) -> None:
    """The search, every recipe at every rate."""
    for name, recipes in found.items():
        exits = PLANS[name].exits
        print(f"\n{name}: validation loss by exit, one run each\n")
        print(f"| recipe | rate | {' | '.join(map(str, exits))} |\n|---|---:|{'---:|' * len(exits)}")
        for recipe, rates in recipes.items():
            for rate, losses in rates.items():
                print(f"| {recipe} | {rate} | {' | '.join(f'{value:.4g}' for value in losses)} |")


def measured(cell: Any, plain: Any, level: str) -> dict[str, Any]:
    """Mean losses and scores of the exits, and the last layer against plain training's."""
    losses = cell[f"losses_{level}"]
    entry = {"losses": rounded(losses.mean(0)), "scores": rounded(cell[f"scores_{level}"].mean(0))}
    if plain is not None:
        entry["last"] = rounded(ratio_interval(losses[:, -1], plain[f"losses_{level}"][:, -1]))
    return entry


def rounded(values: Any) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def ratio_interval(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of mean(ours) / mean(theirs) − 1, paired by sample, to first order."""
    ratio, count = ours.mean() / theirs.mean(), len(ours)
    error = (ours - ratio * theirs).std(ddof=1) / theirs.mean() / math.sqrt(count)
    width = student.ppf(0.975, count - 1) * error
    return ratio - 1 - width, ratio - 1 + width


def ratios(cells: dict, one: str, other: str, kind: str) -> np.ndarray:
    """Log ratios of the losses of two recipes at every exit, seed by seed, (S, E)."""
    shared = sorted(cells.get(one, {}).keys() & cells.get(other, {}).keys())
    losses = [[np.log(cells[recipe][seed][kind]["losses"]) for recipe in (one, other)] for seed in shared]
    return np.array([ours - theirs for ours, theirs in losses])


def interval(values: np.ndarray, tails: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The ends of t intervals of means over seeds (S, …), simultaneous over so many."""
    count = len(values)
    error = values.std(0, ddof=1) / math.sqrt(count)
    width = student.ppf(1 - 0.025 / tails, count - 1) * error
    return values.mean(0) - width, values.mean(0) + width


def inner_of(name: str) -> list[int]:
    """The places of inner exits from layer 1 on."""
    return [place for place, layer in enumerate(PLANS[name].exits[:-1]) if layer]


def primary(found: Cells) -> None:
    """The six comparisons, with Holm's correction."""
    results = []
    for name, one, other in PRIMARY:
        cells, kind = found.get(name, {}), "noisy" if name == "ut" else "clean"
        shared = sorted(cells.get(one, {}).keys() & cells.get(other, {}).keys())
        if len(shared) < 2:
            continue
        means = [
            [np.mean(np.array(cells[recipe][seed][kind]["losses"])[inner_of(name)]) for recipe in (one, other)]
            for seed in shared
        ]
        values = np.log(np.array(means)) @ [1, -1]
        error = values.std(ddof=1) / math.sqrt(len(values))
        chance = 2 * student.sf(abs(values.mean() / error), len(values) - 1)
        results.append((chance, name, one, other, values.mean(), interval(values), len(values)))
    print("\nPrimary comparisons: mean inner test loss, in per cent, over seeds; Holm over six\n")
    print("| setting | recipes | difference | interval | p, corrected |\n|---|---|---:|---|---:|")
    worst = 0.0
    for place, (chance, name, one, other, mean, (low, high), count) in enumerate(sorted(results)):
        worst = max(worst, min(1.0, chance * (len(PRIMARY) - place)))
        ends = f"{percent(low)} to {percent(high)}"
        print(f"| {name} | {one} against {other} ({count} seeds) | {percent(mean)} | {ends} | {worst:.2g} |")


def percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f}"


def cells_scores(runs: dict[str, Any], kind: str) -> np.ndarray:
    """The accuracies of a recipe's runs at every exit, (S, E)."""
    return np.array([runs[seed][kind]["scores"] for seed in sorted(runs)])


def layers_needed(scores: np.ndarray, plain: np.ndarray, exits: Any, points: float) -> int | None:
    """The first exit from which on all means are so close to plain training's last; None if the last is not."""
    mean, limit = scores.mean(0), plain.mean(0)[-1] - points / 100
    return next((layer for place, layer in enumerate(exits) if min(mean[place:]) >= limit), None)


def table(name: str, cells: dict, kind: str) -> dict[str, set[int]]:
    """Mean losses of a setting's recipes at each exit, K, the last layer's harm, where they are worse, and time.

    K is the first exit from which on all mean accuracies are within `TOLERANCE` of plain training's last. Returns where
    they are worse.
    """
    plan = PLANS[name]
    order = ["probe", "distilled", *RECIPES[1:], *(f"cut-{layers}" for layers in plan.cuts)]
    whole = [recipe for recipe in order if recipe in cells and not recipe.startswith("cut-")]
    worse: dict[str, set[int]] = {recipe: set() for recipe in whole}
    for one, other in combinations(whole, 2):
        values = ratios(cells, one, other, kind)
        if len(values) >= 2:
            low, high = interval(values, len(plan.exits))
            worse[one] |= {layer for layer, end in zip(plan.exits, low, strict=True) if end > 0}
            worse[other] |= {layer for layer, end in zip(plan.exits, high, strict=True) if end < 0}
    print(f"\n{name}, {kind}: mean test loss by exit\n")
    heads = " | ".join(map(str, plan.exits))
    print(f"| recipe | seeds | {heads} | K | last against plain, % | harmed | worse than another at | s |")
    print("|---|---:|" + "---:|" * len(plan.exits) + "---:|---:|---:|---|---:|")
    plain = cells_scores(cells["probe"], kind)
    for recipe in order:
        runs = [cells[recipe][seed] for seed in sorted(cells.get(recipe, {}))]
        if not runs:
            continue
        losses = np.mean([run[kind]["losses"] for run in runs], 0)
        shown = [f"{value:.4g}" for value in losses]
        if recipe.startswith("cut-"):
            layers = int(recipe.removeprefix("cut-"))
            shown = [shown[0] if layer == layers else "" for layer in plan.exits]
        ends = [run[kind]["last"] for run in runs if "last" in run[kind] and not recipe.startswith("cut-")]
        last = f"{100 * np.mean(ends):+.1f}" if ends else ""
        harmed = f"{sum(low > HARM for low, _ in ends)} of {len(ends)}" if ends else ""
        at = ", ".join(map(str, sorted(worse.get(recipe, set())))) if recipe in worse else ""
        seconds = [run["seconds"] for run in runs if "seconds" in run]
        time = f"{np.mean(seconds):.0f}" if seconds else ""
        known = recipe in worse and all("scores" in run[kind] for run in runs)
        k = (layers_needed(cells_scores(cells[recipe], kind), plain, plan.exits, TOLERANCE) or "–") if known else ""
        print(f"| {recipe} | {len(runs)} | {' | '.join(shown)} | {k} | {last} | {harmed} | {at} | {time} |")
    floor = [run[kind]["losses"][-1] for run in cells.get("probe", {}).values()]
    if len(floor) > 1:
        spread = 100 * np.std(np.log(floor), ddof=1)
        print(f"\nFloor: plain training's last loss differs by {spread:.1f} % from seed to seed.")
    return worse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="folder of the cells to collect")
    args = parser.parse_args()
    if args.work is not None:
        both = {"search": searched(args.work), "seeds": merged(known()["seeds"], collect(args.work))}
        RESULTS.write_text(json.dumps(both, indent=1) + "\n")
    both = json.loads(RESULTS.read_text())
    search(both["search"])
    found: Cells = both["seeds"]
    primary(found)
    worse = {kind: {name: table(name, cells, kind) for name, cells in found.items()} for kind in ("clean", "noisy")}
    print("\nExits of all settings at which a recipe is worse than another, clean: the rule\n")
    for recipe in ("probe", "distilled", *RECIPES[1:]):
        places = {name: sorted(each[recipe]) for name, each in worse["clean"].items() if recipe in each}
        print(f"{recipe}: {sum(map(len, places.values()))} in {len(places)} settings")


if __name__ == "__main__":
    main()
