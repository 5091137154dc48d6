"""Finished cells without training: the files of a run, with numbers of our own."""

import json

import numpy as np

from reproduction.cells import FIRST_EXIT, SEARCH
from reproduction.run import CELL_FILE, RUN, write_json

GROUPS = {"ped1": 4, "ped2": 7, "avenue": 4, "shanghaitech": 1, "imdb": 60, "mnli": 60, "alpaca": 32}


def finish(study, cell, factor=1.0, feasible=True):
    """Write the files of an evaluated run whose metric and losses are ``factor`` times the usual ones."""
    draw = np.random.default_rng([cell.seed, len(cell.arm)])
    run, higher = study.of(cell) / RUN, cell.recipe in ("text", "text-ut", "lm", "text-distilbert", "llm-sft")
    run.mkdir(parents=True)
    levels = [float(level) for level in cell.evaluate["noise"].split(",")]
    trained, depth, groups = cell.settings["noise"], cell.depth, GROUPS.get(cell.data, 5)
    by_layer = factor * 5 * 0.7 ** np.arange(depth + 1)
    losses = {str(level): (by_layer * (1 + level)).tolist() for level in {*levels, trained, cell.gamma}}
    scores = np.array([[(0.9 / (1 + level / 4) if higher else 5 + 3 * level)] * groups for level in levels])
    scores = np.clip(factor * scores * draw.uniform(0.95, 1.05, scores.shape), 0, 1 if higher else None)
    values = scores.mean(1)
    metrics = {level: (np.linspace(2, 1, depth + 1) * values.mean()).tolist() for level in losses}
    counts = np.full(groups, 10)
    ratios = {"mean": 0.87, "median": 0.82, "histogram": {"edges": [0.5, 1, 2, 4], "counts": [[3, 1, 0]] * depth}}
    asked = cell.settings["method"] == "constrained"
    first = FIRST_EXIT.get(cell.model, 0)
    limits = [0.78 if layer > first and asked else None for layer in range(depth + 1)]
    summary = {
        **{"method": cell.settings["method"], "metric": "accuracy" if higher else "rmse", "higher_is_better": higher},
        **{"noise": levels, "values": values.tolist(), "mean": values.mean(), "auc": np.trapezoid(values, levels)},
        **{"train_noise": trained, "layer_losses": losses, "layer_metrics": metrics, "feasible": feasible},
        **{"violated": [], "limits": limits, "cap": 5.5 if asked else None, "bounds": limits[1:]},
        **{"multipliers": [0.1] * depth, "cap_multiplier": 0.1, "descending_share": 0.7, "sigma": 0.2},
        **{"ratios": ratios, "validation": None if cell.panel == SEARCH else {"layer_metrics": metrics}},
    }
    summary = {name: value for name, value in summary.items() if value is not None}  # as the real file
    squared = scores if higher else scores**2
    write_json(run / "summary.json", summary)
    write_json(
        run / "groups.json", {"counts": counts.tolist(), "scores": (squared * counts).tolist(), "root": not higher}
    )
    write_json(run / "config.json", {"seconds": 60.0, "training": {"resilience": 0.05 if asked else None}})
    rows = [
        {"split": "train", "step": step, "metric": metric, "layer": layer, "value": value}
        for step in (50, 100)
        for layer in range(depth + 1)
        for metric, value in (("loss", float(by_layer[layer])), ("multiplier", 0.1), ("weight", 0.5 - 0.1 * layer))
    ]
    (run / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for level in {0.0, cell.gamma} if cell.complete else ():
        answers = [{"instruction": "Say <b>it</b>.", "output": "a b c a b c"}]
        write_json(run / f"answers-{level:g}.json", answers)
    write_json(study.of(cell) / CELL_FILE, {**cell.fields, "seconds": 150.0})


def finish_all(study, factor=lambda cell: 1.0):
    """Finish the trials, choose, and finish every cell that then can be run."""
    for _ in range(3):
        for cell in study.cells():
            if study.state(cell) in ("to do", "no data"):
                misses = (cell.panel == SEARCH and cell.variant == "trial-1") or cell.variant == "alpha=0.5"
                finish(study, cell, factor(cell), feasible=not misses)
        study.choose()
