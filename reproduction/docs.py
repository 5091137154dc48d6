"""Write what the documentation shows of a study: study.png, study_cells.md and study_tables.md in docs/results.

python -m reproduction.docs docs/results/small docs/results
"""

import sys
from math import isfinite
from pathlib import Path
from textwrap import fill

import matplotlib.pyplot as plt

from reproduction.report.anytime_figures import table_anytime
from reproduction.report.cells import arm_name
from reproduction.report.chart import arm_style
from reproduction.report.comparison_tables import table_arms, table_forms
from reproduction.report.estimates import Interval, gain, robust
from reproduction.report.lost_settings import LEVEL, NOTABLE, Beside, beside_erm
from reproduction.report.opening import ARMS
from reproduction.report.overview import INTERVALS, feasible, overview
from reproduction.report.paper_tables import printed
from reproduction.report.results import FORMS, Results
from reproduction.report.settings_tables import table_1, table_2, table_5
from reproduction.report.tables import with_ends
from reproduction.report.theory_figures import table_theory

HEAD = f"""# The study, cell by cell

**Question.** In which settings do constraints win and lose against plain training, and why?

**Answer.** Both tables are made from the cells of [the study](study.md) by

    python -m reproduction.docs docs/results/small docs/results

The *form* is preset paper or Descend's default, UCSD is Ped2. *Preset paper* is
[our first reading of the paper's settings](../explanation/departures.md#what-the-study-ran-as-preset-paper), with
guesses and departures. ERM and the form have the mean RMSE over test
noise for video, the area under the accuracy for texts and the language model. The gain is that of the form over ERM,
in per cent of ERM's number, with its interval.
{fill(INTERVALS, 120)}
*Hold* counts the runs whose
constraints hold on test data. *Printed* is the gain in the paper's Table 3 or 4, where it has this setting: its models,
data, noise and settings are not ours, so a sign that differs says nothing against the paper.

*Why behind* follows from the numbers of `table-lost`. *Level* is a gain within {LEVEL:g} %. *Fits the training data
less well* means that the last layer's loss on training samples is more than {NOTABLE:g} % higher than ERM's.
*Generalizes less well* means that it is not, while that on test data is; where neither is, the *last loss at the
training noise* is *not higher*, and the loss of quality is that at other noise, or of the metric alone. *At chance* is
an accuracy within 0.01 of a guess's. *Not decided* means that the interval contains 0.

Areas of texts are over γ = 0 to 2, our guess of the paper's range. ShanghaiTech has one test clip: intervals there are
over seeds and within that clip, and say nothing of other clips. In 44 intervals of 95 % one expects about two that
exclude 0 by chance."""

TABLES = """# Tables of the study

**Question.** What does each method give over all settings, with which settings, and what does the theory say?

**Answer.** These are tables that `python -m reproduction report` makes of the cells of [the study](study.md), written
here by

    python -m reproduction.docs docs/results/small docs/results

UCSD is Ped2. *Diverged* counts runs without a finite loss. *Preset paper* is
[our first reading of the paper's settings](../explanation/departures.md#what-the-study-ran-as-preset-paper). *ERM
with preset paper* is `erm-paper`, plain training with its optimizer and schedule."""


RECIPE = "erm-paper"

APART = f"""### What of it is due to its optimizer and schedule

The arm `{RECIPE}` is ERM with the optimizer, the schedule and the choice of the model that preset paper has, and
with a learning rate of its own. *Optimizer and schedule* is its gain over ERM over test noise, in per cent.
*Constraints* is the gain of preset paper over `{RECIPE}`; UT and DUST then also have separate weights in each layer."""


def main(study: Path, out: Path) -> None:
    """Write all three."""
    results = Results.read(study)
    picture(results, out / "study.png")
    (out / "study_cells.md").write_text(page(results), encoding="utf-8")
    (out / "study_tables.md").write_text(tables(results), encoding="utf-8")


def picture(results: Results, path: Path) -> None:
    """A panel of bars for each of four questions, with one bar for each method."""
    arms = {arm: given for arm, given in overview(results).items() if arm in ARMS}
    vit = overview(Results(run for run in results.runs if run.model == "ViT"))
    gained = [arm for arm in arms if arm != "erm"]
    panels: dict[str, dict[str, tuple[float, str]]] = {
        "Constraints hold, runs\n(ERM: the default's)": {
            arm: (arms[arm].feasible.number / arms[arm].feasible.total, str(arms[arm].feasible))
            for arm in arms
            if arm != "linear"
        },
        "Test loss falls at\nevery layer, runs": {
            arm: (given.falls.number / given.falls.total, str(given.falls)) for arm, given in arms.items()
        },
        "ViT's error at half depth,\nlower than ERM's by %, median": {
            arm: _percent(vit[arm].half_error) for arm in gained if arm in vit
        },
        "Over all noise, better\nthan ERM by %, median": {arm: _percent(arms[arm].over_noise.middle) for arm in gained},
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(13, 2.6), layout="constrained")
    for axis, (title, bars) in zip(axes, panels.items(), strict=True):
        for place, (arm, (value, words)) in enumerate(bars.items()):
            axis.barh(place, value, color=arm_style(arm).light)
            axis.annotate(f" {words} ", (max(value, 0), place), va="center", fontsize=8)
        axis.set_yticks(range(len(bars)), [arm_name(arm) for arm in bars])
        axis.set_title(title, fontsize=10)
        axis.invert_yaxis()
        axis.margins(x=0.35)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _percent(value: float) -> tuple[float, str]:
    """The length of a bar and its words; an infinite one is not drawn."""
    return (value if isfinite(value) else 0.0, f"{value:+z.2f}")


def page(results: Results) -> str:
    """Every setting of the tables as Markdown: each form of constraints beside ERM and beside the paper's numbers."""
    parts = [HEAD]
    for form in FORMS:
        every = beside_erm(results, form)
        won = sum(one.gained.value > 0 for one in every)
        heads = ["setting", "ERM", arm_name(form), "gain, %", "printed gain, %", "hold", "why behind"]
        if form != "paper":
            heads.remove("printed gain, %")
        rows = [heads, ["---"] * len(heads), *(_row(one, form) for one in every)]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(f"## {arm_name(form)}\n\nAhead of ERM in {won} of {len(every)} settings.\n\n{table}")
        if form == "paper":
            parts += _apart(results)
    return "\n\n".join(parts) + "\n"


def tables(results: Results) -> str:
    """Tables over all settings as Markdown, for one page."""
    makers = (table_arms, table_forms, table_anytime, table_theory, table_1, table_2, table_5)
    return "\n".join([f"{TABLES}\n", *(f"#{make(results).markdown()}" for make in makers)])


def _apart(results: Results) -> list[str]:
    """The gain of preset paper in two parts, where plain training was also run with its optimizer."""
    settings = [
        setting for setting in results.settings if setting.compares(RECIPE) and setting.compares("paper", RECIPE)
    ]
    if not settings:
        return []
    rows = [["setting", "optimizer and schedule, %", "constraints, %", "both, %"], ["---"] * 4]
    for setting in settings:
        parts = (gain(setting, RECIPE), gain(setting, "paper", RECIPE), gain(setting, "paper"))
        rows.append([setting.words, *(with_ends(each.interval, "+.1f") for each in parts)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return [f"{APART}\n\n{table}"]


def _row(one: Beside, form: str) -> list[str]:
    most, row = one.setting.reach, printed(one.setting)
    ours, theirs = (robust(tuple(runs)).summary(most).interval for runs in (one.ours, one.theirs))
    values = [with_ends(Interval(each.value), ".4g") for each in (theirs, ours)]
    papers = [f"{row.gain:+.1f}" if row else ""] if form == "paper" else []
    return [
        *(one.setting.words, *values, with_ends(one.gained, "+.1f"), *papers, str(feasible(one.ours))),
        "; ".join(one.reasons),
    ]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
