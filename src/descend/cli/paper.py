"""The command ``descend paper``: plain training beside the paper's constraints, on one page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from descend.cli.parsing import levels, talk
from descend.cli.runs import check_free_for_page, compare_runs, finish
from descend.cli.settings import given_settings, known_settings
from descend.declared import GENERATED
from descend.errors import refuse
from descend.settings import settings_of_others

METHODS = {"constrained": "constrained", "plain": "erm"}
"""Folder → the method of its run: first the one whose settings may be refused."""

FOR_GENERATED = {"max_steps": 1200}
"""Generated clips need fewer steps than the study's videos."""

OPTIONS: dict[str, dict[str, Any]] = {
    "--printed": dict(action="store_true", help="the paper's settings as printed, even where they did not hold"),
    "--seeds": dict(type=int, default=1, metavar="N", help="so many runs of each, with seeds from --seed on [1]"),
    "--test-noise": dict(type=levels, metavar="LEVELS", help="γ: 0,0.1,0.2 or 0:2:0.25 [8, to 3.5 × training]"),
}


def paper(words: Sequence[str]) -> None:
    """Train, evaluate and compare."""
    given = given_settings(words, command="paper", options=OPTIONS, without=("method", "preset"))
    name, out = given.pop("recipe"), Path(given.pop("output_dir"))
    printed, seeds, noise = (given.pop(option) for option in ("printed", "seeds", "test_noise"))
    talk(given)
    refuse((seeds < 1, f"--seeds must be at least 1; got {seeds}."))
    check_free_for_page(out)
    from descend.recipes import configure
    from descend.report import write_page  # noqa: F401  # a missing package shows before the training
    from descend.run import Run
    from descend.run.evaluating import usual_levels
    from descend.training.preset import HELD, Form
    from descend.training.preset import paper as preset
    from descend.writing import locked

    form = Form({}, {}) if printed else HELD.get(name, Form({}, {}))
    if "max_steps" in form.shared and given["data"] == GENERATED:
        form = replace(form, shared={**form.shared, **FOR_GENERATED})
    first = given.pop("seed", 0)
    configured = {}
    for seed in range(first, first + seeds):
        for folder, method in METHODS.items():
            own = form.constrained if method == "constrained" else form.plain
            settings = {**form.shared, **own, **given}
            settings = {key: each for key, each in settings.items() if key not in settings_of_others(method)}
            place = out / (folder if seeds == 1 else f"{folder}-{seed}")
            more = {"method": method, "seed": seed, "output_dir": str(place)}
            configured[place] = configure(name, preset="paper", **settings | more)
    recipe = next(iter(configured.values())).recipe
    assert recipe is not None
    tested = usual_levels(recipe) if noise is None else noise
    unit = "of the clean data’s standard deviation σ_x" if recipe.noise_is == "std" else "with γσ_x as the variance"
    print(
        f"{recipe.label if recipe.needs_model is False else name}: trained under noise γ = {recipe.noise:g}, tested at "
        f"{', '.join(f'{each:g}' for each in tested)}, in units {unit}.",
        flush=True,
    )
    usual = {key: each.default for key, each in known_settings(name).items()}
    known = preset(name, dataset=given.get("dataset", usual.get("dataset")))
    changed = form.departures({**usual, **known.settings, **known.training})
    if printed:
        print("The paper's constraints with its settings as printed, by our reading.")
    elif changed:
        print(
            f"The paper's constraints in the form that held in {form.runs} of our study. It departs from the printed "
            f"settings (in brackets) in: {', '.join(changed)}. --printed gives those."
        )
    else:
        print(f"No form of the paper's constraints held for {name} in our study: these are the printed settings.")
    for number, (place, run) in enumerate(configured.items(), 1):
        method = "plain training" if run.arguments.method == "erm" else "under the paper's constraints"
        print(f"\n{number} of {len(configured)}: {method}, seed {run.arguments.seed}", flush=True)
        finish(run.train(resume=place.exists()), evaluated_next=True)
        with locked(place):
            Run.read(place).evaluate(noise=tested)
    page, compared = compare_runs(list(configured), out)
    from descend.report.terminal import comparison_lines

    print("\n".join(["", *comparison_lines(compared), str(page)]))
