"""The command ``descend paper``: plain training beside the paper's constraints, on one page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.cli.parsing import levels, talk
from descend.cli.runs import carry_out, check_free_for_page, compare_runs, refuse_ranks
from descend.cli.settings import given_settings, known_settings
from descend.declared import GENERATED, flag_of
from descend.errors import refuse
from descend.settings import settings_of_others

if TYPE_CHECKING:
    from descend.training.preset import Form

METHODS = {"constrained": "constrained", "plain": "erm"}
"""Folder → the method of its run. The constrained one is first: it may be refused, and then nothing is lost."""

FOR_GENERATED = {"max_steps": 1200}
"""Generated clips need fewer steps than the study's videos."""

OPTIONS: dict[str, dict[str, Any]] = {
    "--printed": dict(action="store_true", help="the paper's settings as printed, even where they did not hold"),
    "--seeds": dict(type=int, default=1, metavar="N", help="so many runs of each, with seeds from --seed on [1]"),
    "--test-noise": dict(type=levels, metavar="LEVELS", help="γ: 0,0.1,0.2 or 0:2:0.25 [8, to 3.5 × training]"),
}


def paper(words: Sequence[str]) -> None:
    """Train, evaluate and compare."""
    about = (
        "Plain training beside the paper's constraints. Defaults in brackets are those of descend train; the paper's "
        "settings, or the form that held in our study, replace some, and OUT/constrained/config.json lists all. The "
        "recipe"
    )
    left_out = ("method", "preset", "strength", "after", "within", *settings_of_others(*METHODS.values()))
    given = given_settings(words, command="paper", about=about, options=OPTIONS, without=left_out)
    recipe, out = given.pop("recipe"), Path(given.pop("output_dir"))
    printed, seeds, noise = (given.pop(option) for option in ("printed", "seeds", "test_noise"))
    talk(given)
    refuse((seeds < 1, f"--seeds must be at least 1; got {seeds}."))
    refuse_ranks("paper")
    check_free_for_page(out)
    from descend.recipes import configure
    from descend.report import write_page  # noqa: F401  # a missing package shows before the training
    from descend.report.terminal import comparison_lines
    from descend.run.evaluating import usual_levels
    from descend.training import preset

    form = preset.Form({}, {}) if printed else preset.HELD.get(recipe, preset.Form({}, {}))
    if "max_steps" in form.shared and given["data"] == GENERATED:
        form = replace(form, shared={**form.shared, **FOR_GENERATED})
    form = form.beside(given)
    first = given.pop("seed", 0)
    runs = {}
    for seed in range(first, first + seeds):
        for name, method in METHODS.items():
            settings = {**form.shared, **(form.constrained if method == "constrained" else form.plain), **given}
            folder = out / (name if seeds == 1 else f"{name}-{seed}")
            place = {"method": method, "seed": seed, "output_dir": str(folder)}
            runs[folder] = configure(recipe, preset="paper", **settings | place)
    others = sorted(each.name for name in METHODS for each in out.glob(f"{name}*") if each not in runs)
    refuse(
        (
            bool(others),
            f"{out} holds runs of other seeds, which the page would leave out: {', '.join(others)}. Choose another "
            "folder with --out.",
        )
    )
    trained = next(iter(runs.values())).recipe
    assert trained is not None  # of a run that was configured
    trained = trained.completed()  # a pretrained model's depth is known now
    tested = usual_levels(trained) if noise is None else noise
    print("\n".join(_announced(recipe, trained, form, given, tested, printed)), flush=True)
    for number, (folder, run) in enumerate(runs.items(), 1):
        method = "plain training" if run.arguments.method == "erm" else "under the paper's constraints"
        print(f"\n{number} of {len(runs)}: {method}, seed {run.arguments.seed}", flush=True)
        carry_out(run, tested, resume=folder.exists())
    page, compared = compare_runs(list(runs), out)
    print("\n".join(["", *comparison_lines(compared), str(page)]))


def _announced(
    name: str, recipe: Any, form: "Form", given: dict[str, Any], tested: Sequence[float], printed: bool | None
) -> list[str]:
    """What is about to be done: the noise with its unit, and where the settings come from."""
    from descend.training import preset

    unit = "of the clean data’s standard deviation σ_x" if recipe.noise_is == "std" else "with γσ_x as the variance"
    levels = f"trained under noise γ = {recipe.noise:g}, tested at {', '.join(f'{each:g}' for each in tested)}"
    lines = [f"{recipe.label}, {recipe.depth} layers: {levels}, in units {unit}."]
    usual = {key: each.default for key, each in known_settings(name).items()}
    read = preset.paper(name, dataset=given.get("dataset", usual.get("dataset")))
    chosen = {**read.settings, **read.training, **form.shared, **form.constrained}
    yours = ", ".join(flag_of(key) for key in sorted(given) if key in chosen)
    but = f", but for your {yours}" if yours else ""
    if printed:
        lines.append(f"The paper's constraints as printed, by our reading{but}.")
    elif form.runs:
        changed = ", ".join(form.departures({**usual, **read.settings, **read.training}))
        lines.append(
            f"The form of the paper's constraints that held in {form.runs} of our study{but}. It departs from our "
            f"reading of the paper, in brackets, in: {changed}. --printed takes that."
        )
    else:
        lines.append(
            f"No form of the paper's constraints is known to hold for {name}: this is the paper's, by our reading{but}."
        )
    final = {**chosen, **given}
    alpha = final["alpha"] if isinstance(final["alpha"], int | float) else ", ".join(map(str, final["alpha"]))
    cap = f"{final['cap']:g}" if final.get("cap") else "from the first losses"
    lines.append(
        f"Asked: α = {alpha}, each layer's loss at most 1 − α times the one before it; the cap on the first: {cap}."
    )
    return lines
