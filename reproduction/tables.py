"""Tables 1 to 5 of the paper beside ours, the primary comparisons, and which runs hold."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from descend.jackknife import over_noise
from descend.results import put
from reproduction.cells import FIRST_EXIT, FIXED, PAPER_ARMS, SEARCHED
from reproduction.figures import LANGUAGE_MODELS, TEXT_MODELS, VIDEO_MODELS, label_of, plain_of
from reproduction.grids import SCALES
from reproduction.table import SETTING, Gain, Table, gain, holm, meets

PUBLISHED = Path(__file__).parent / "published"

NAMES = {"UT-text": "UT", "MiniLM": "DistilBERT", "MPNet": "RoBERTa", "SmolLM2": "Llama", "ped2": "ucsd"}
"""Ours → the paper's, where they differ: what stands for its model, and its name of a data set."""

DEPTHS = {"MiniLM": 12, "DistilBERT": 12, "MPNet": 24}
"""The depth that the paper prints of a model, where it is not ours."""

NEAR = 0.1
"""How much the paper's γ of video, read as a variance, may differ from ours to stand beside it, as a share."""

PAIRS = {"tied": ("tied", "untied"), "untied": ("untied", "tied"), "": ("",)}
"""Form of constrained runs → forms of plain training that they are compared with."""


PLAIN = ("erm", "erm-noisier")
"""The arms of plain training that every method is compared with."""

CHOSEN = "chosen on validation data"
"""The column that says which of the paper's two dual optimizers validation data chose."""


def published(name: str) -> pd.DataFrame:
    """A CSV file of what the paper prints."""
    return pd.read_csv(PUBLISHED / f"{name}.csv", keep_default_na=False, dtype={"printed": str})


def settings(table: Table, number: int) -> pd.DataFrame:
    """The surviving numbers of Table 1, 2 or 5, our reading of each, and the values of our runs."""
    printed = published("settings")
    rows = []
    for row in printed[printed.table == number].itertuples():
        ours = table.where(arm="paper")
        alike = ours[ours.model.isin(VIDEO_MODELS if number == 1 else (*TEXT_MODELS, *LANGUAGE_MODELS))]
        alike = alike[alike.model.replace(NAMES) == row.model]
        alike = alike[alike.data.replace(NAMES) == row.data] if row.data else alike
        used = sorted({_setting(each, row.setting) for each in alike.itertuples()} - {""}) if row.setting else []
        reading = f"{row.setting} = {row.value}" if row.setting else ""
        rows.append([row.model, row.data or "all", row.printed, reading, row.reading, ", ".join(used) or "–"])
    return pd.DataFrame(rows, columns=["model", "data", "printed", "read as", "reading", "our runs"])


def _setting(row: Any, name: str) -> str:
    """A setting of a run: as its command gave it, or as the preset did."""
    known = {"depth": row.depth, "cap": row.cap, "resilience": row.resilience, **row.settings}
    return "" if pd.isna(known.get(name)) else f"{known[name]:g}"


def beside(table: Table, number: int) -> pd.DataFrame:
    """Table 3 or 4: ours in numbers and gains, beside the paper's."""
    printed = published(f"table{number}").set_index(["model", "layers", "dataset", "train_gamma"])
    models = VIDEO_MODELS if number == 3 else TEXT_MODELS
    rows = []
    for setting, group in table.where(model=list(models)).groupby(SETTING, sort=False):
        model = setting[0]
        place = dict(zip(SETTING, setting, strict=True))
        theirs = published_place(table, place)
        for form in dict.fromkeys(group.form):
            ours = table.where(arm="paper", form=form, **place)
            plain = table.where(arm="erm", form=plain_of(model, form), **place)
            if len(ours) and len(plain):
                means = [f"{runs.number.mean():.4g}" for runs in (plain, ours)]
                best = [best_run(plain), best_run(ours)]
                row = [*setting, form, *means, str(gain(ours, plain)), *best, *_printed(printed, theirs, number)]
                rows.append(row)
    heads = [*SETTING, "form", "plain training", "paper's form", "gain", "best run: plain", "best run: paper's form"]
    return pd.DataFrame(rows, columns=[*heads, "printed of", "printed: plain", "printed: constrained", "printed: gain"])


def published_place(table: Table, place: Mapping[str, Any]) -> tuple[Any, ...]:
    """The row of Table 3 or 4 that a setting of ours stands beside: model, layers, data set and γ_train."""
    model, data, depth, gamma = (place[name] for name in SETTING)
    if model in VIDEO_MODELS and table.scale != "paper":
        gamma = _printed_gamma(gamma, table.rows[table.rows.data == data].sigma.median())
    return NAMES.get(model, model), DEPTHS.get(model, depth), NAMES.get(data, data), gamma


def _printed_gamma(gamma: float, sigma: float) -> float | None:
    """The γ of Table 3, with γσ_x as a variance, that is nearly as strong as our standard deviation γσ_x; or None."""
    variance = gamma**2 * sigma
    nearest = min(published("table3").train_gamma.astype(float), key=lambda each: abs(each - variance))
    return nearest if math.isclose(nearest, variance, rel_tol=NEAR) else None


def best_run(runs: pd.DataFrame) -> str:
    """The number of the run that is best on validation data over noise: the paper reports the best of several."""
    value = best_number(runs)
    return "diverged" if math.isnan(value) else f"{value:.4g}"


def best_number(runs: pd.DataFrame) -> float:
    """The same as a number; NaN if all diverged."""
    ended = runs[~runs.diverged.astype(bool)]
    if ended.empty:
        return math.nan
    values = [float(over_noise(run.noise, np.array(run.validation, float), run.higher)) for run in ended.itertuples()]
    best = np.argmax(values) if ended.higher.all() else np.argmin(values)
    return float(ended.number.iloc[int(best)])


def _printed(printed: pd.DataFrame, place: tuple[Any, ...], number: int) -> list[str]:
    if place not in printed.index:
        return ["–", "–", "–", "–"]
    row, (model, depth, *_) = printed.loc[place], place
    change = Gain(100 * (row.constrained / row.unconstrained - 1) * (1 if number == 4 else -1))
    return [f"{model}-{depth}", f"{row.unconstrained:g}", f"{row.constrained:g}", str(change)]


def comparisons(table: Table) -> pd.DataFrame:
    """Every method against plain training of each form, at the setting's noise and at more, setting by setting."""
    return pd.DataFrame(
        [
            {**place, "method": label_of(arm, form), "against": other, CHOSEN: best, "gain": measured}
            for place, arm, form, other, measured, best in _compared(table)
        ],
        columns=[*SETTING, "method", "against", CHOSEN, "gain"],
    )


def _compared(table: Table) -> Iterator[tuple[dict[str, Any], str, str, str, Gain, str]]:
    for setting, group in table.where().groupby(SETTING, sort=False):
        place = dict(zip(SETTING, setting, strict=True))
        for (arm, form), runs in group[group.arm != "erm"].groupby(["arm", "form"], sort=False):
            for base, other in product(PLAIN, PAIRS[form]):
                plain = table.where(arm=base, form=other, **place)
                if len(plain) and arm != base:
                    best = arm in PAPER_ARMS and table.better(place["model"], form) == arm
                    yield place, arm, form, label_of(base, other), gain(runs, plain), "yes" if best else ""


def wins(table: Table) -> pd.DataFrame:
    """How often each method is better or worse than plain training, over the settings that it was run in."""
    every = comparisons(table).assign(verdict=lambda frame: [each.verdict for each in frame.gain])
    counted = every.groupby(["model", "method", "against"], sort=False).verdict.value_counts().unstack(fill_value=0)
    return counted.reindex(columns=["better", "undecided", "worse"], fill_value=0).reset_index()


def searched(table: Table) -> pd.DataFrame:
    """The paper's form with the α and cap that its search chose, where these are not the ones fixed in advance."""
    rows = []
    for (*setting, arm, form), runs in table.where(variant=SEARCHED).groupby([*SETTING, "arm", "form"], sort=False):
        place = dict(zip(SETTING, setting, strict=True))
        plain = table.where(arm="erm", form=plain_of(setting[0], form), **place)
        asked = ", ".join(f"{name} {runs.settings.iloc[0][name]:g}" for name in FIXED)
        held = [f"{runs[name].sum()} of {len(runs)}" for name in ("holds", "falls")]
        rows.append([*setting, label_of(arm, form), asked, *held, gain(runs, plain)])
    heads = [*SETTING, "method", "searched", "holds", "falls at every layer", "gain over plain training"]
    return pd.DataFrame(rows, columns=heads)


def primaries(table: Table) -> pd.DataFrame:
    """The primary comparisons with Holm's correction; those that were not run, or on too few groups, have no p."""
    rows, gains = [], []
    for model, depth, data, gamma, form, arm, other in SCALES[table.scale].primaries:
        place = {"model": model, "depth": depth, "data": data, "gamma": gamma}
        gains.append(gain(table.where(arm="paper", form=form, **place), table.where(arm=arm, form=other, **place)))
        rows.append([f"{model}-{depth}", data, table.better(model, form), form, label_of(arm, other)])
    adjusted = holm([each.tested_p for each in gains])
    words = [
        "–" if math.isnan(each.p) else f"open: {each.groups} groups" if math.isnan(each.tested_p) else f"{p:.2g}"
        for each, p in zip(gains, adjusted, strict=True)
    ]
    heads = ["model", "data", "paper's form", "form", "against"]
    counts = {"seeds": [each.seeds for each in gains], "test groups": [each.groups for each in gains]}
    measured = {"gain": gains, "p (Holm)": words, **counts}
    return pd.DataFrame(rows, columns=heads).assign(**measured)


def held(table: Table) -> pd.DataFrame:
    """How many runs hold and fall at every layer, and how many meet the bounds of the paper's form, by method."""
    rows = []
    for (model, form, arm), runs in table.where().groupby(["model", "form", "arm"]):
        bounds = SCALES[table.scale].models[model].paper
        met = "–"
        if "alpha" in bounds:
            met = f"{sum(_meets(run, bounds) for run in runs.itertuples())} of {len(runs)}"
        asked = arm not in ("erm", "erm-noisier", "linear")
        holding = f"{runs.holds.sum()} of {len(runs)}" if asked else "–"
        falling = f"{runs.falls.sum()} of {len(runs)}"
        negative = [run.trained.get("negative", 0) for run in runs.itertuples() if not run.diverged and asked]
        share = f"{100 * sum(negative) / len(negative):.0f} %" if negative else "–"
        rows.append([model, label_of(arm, form), holding, met, falling, int(runs.diverged.sum()), share])
    heads = ["model", "method", "holds", "meets α and cap of the paper's form", "falls at every layer", "diverged"]
    return pd.DataFrame(rows, columns=[*heads, "logs with a negative weight"])


def _meets(run: Any, bounds: dict[str, float]) -> bool:
    if run.diverged:
        return False
    return meets(run.losses[f"{run.gamma:g}"], bounds["alpha"], bounds["cap"], FIRST_EXIT.get(run.model, 0))


def answers(table: Table) -> pd.DataFrame:
    """Figure 16: answers of a language model to a few prompts, clean and under noise."""
    rows = []
    for run in table.where(model=list(LANGUAGE_MODELS), seed=0).itertuples():
        for answer in run.answers if not run.diverged else ():
            rows.append([answer["prompt"], f"{answer['noise']:g}", label_of(run.arm, run.form), answer["text"][:160]])
    return pd.DataFrame(rows, columns=["prompt", "γ", "method", "answer"]).sort_values(["prompt", "γ"], kind="stable")


TABLES: dict[str, tuple[str, Callable[[Table], pd.DataFrame]]] = {
    "primaries": ("The primary comparisons, named before the runs", primaries),
    "held": ("Which runs hold", held),
    "searched": ("The paper's form with a searched α, where the search chose another than the one fixed", searched),
    "wins": ("Wins and losses against plain training, by intervals", wins),
    "comparisons": ("Every method against plain training", comparisons),
    "table-1": ("Table 1: settings of video", lambda table: settings(table, 1)),
    "table-2": ("Table 2: settings of texts", lambda table: settings(table, 2)),
    "table-3": ("Table 3: mean RMSE over noise", lambda table: beside(table, 3)),
    "table-4": ("Table 4: area under the accuracy", lambda table: beside(table, 4)),
    "table-5": ("Table 5: settings of the language model", lambda table: settings(table, 5)),
    "figure-16": ("Figure 16: answers of the language model", answers),
}
"""Name → title, and what makes it."""


def write(
    table: Table, folder: Path, wanted: Mapping[str, tuple[str, Callable[[Table], pd.DataFrame]]]
) -> dict[str, pd.DataFrame]:
    """Make tables and write them as CSV; returns them by name.

    Args:
        table: The study.
        folder: The folder of the files.
        wanted: Name → title, and what makes the table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = {name: make(table) for name, (_, make) in wanted.items()}
    for name, frame in made.items():
        put(folder / f"{name}.csv", partial(frame.to_csv, index=False))
    return made
