"""Which settings and runs a figure and its claims use."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from reproduction.records import Answer
from reproduction.report.cells import Place, Run
from reproduction.report.results import FORMS, Results, Setting

Arms = dict[str, list[Run]]
Panel = tuple[str, str, str]
"""Regime, model and data set."""

Family = dict[float, list[Run]]
"""Value of a setting → constrained runs."""


def strongest(settings: Iterable[Setting]) -> list[Setting]:
    """Of settings that differ only in their training noise, the one with the most."""
    chosen: dict[tuple[object, ...], Setting] = {}
    for setting in settings:
        key = (setting.task, setting.model, setting.data, setting.depth, setting.regime)
        if key not in chosen or setting.gamma > chosen[key].gamma:
            chosen[key] = setting
    return list(chosen.values())


def deepest(settings: Iterable[Setting]) -> list[Setting]:
    """For each task, model, data set and regime the deepest setting at its strongest training noise."""
    chosen: dict[tuple[str, ...], Setting] = {}
    for setting in strongest(settings):
        key = (setting.task, setting.model, setting.data, setting.regime)
        if key not in chosen or setting.depth > chosen[key].depth:
            chosen[key] = setting
    return list(chosen.values())


def constrained(settings: Iterable[Setting]) -> list[Run]:
    """The constrained runs of some settings, of every form."""
    return [run for setting in settings for form in FORMS for run in setting.runs(form)]


def roberta(results: Results) -> list[Setting]:
    """RoBERTa on IMDb."""
    return deepest(results.where(task="text", paired=True, model="RoBERTa", data=results.known("imdb")))


def classifiers(results: Results, *models: str) -> list[Setting]:
    """The deepest classifier of each model (or of some) on each data set."""
    chosen = deepest(results.where(task="text", paired=True))
    return [setting for setting in chosen if not models or setting.model in models]


def on_imdb(results: Results, *models: str) -> list[Setting]:
    """The deepest classifier of each of some models on IMDb."""
    return [setting for setting in classifiers(results, *models) if setting.data == results.known("imdb")]


def dust(results: Results) -> list[Setting]:
    """DUST at each depth: on UCSD if it was run there."""
    settings = strongest(results.where(task="video", model="DUST", paired=True))
    return [setting for setting in settings if setting.data == results.known("ucsd")] or settings


def by_validation(settings: Sequence[Setting]) -> Arms:
    """Each method's runs at the depth that is best on validation data, averaged over its seeds."""
    chosen: Arms = {}
    for arm in dict.fromkeys(arm for setting in settings for arm in setting.arms):
        rivals = [setting.arms[arm] for setting in settings if setting.arms.get(arm)]
        chosen[arm] = min(rivals, key=lambda runs: (_validated(runs), -runs[0].depth))
    if "erm" not in chosen and "erm-clean" in chosen and all(setting.gamma == 0 for setting in settings):
        chosen["erm"] = chosen.pop("erm-clean")
    return chosen


def _validated(runs: Sequence[Run]) -> float:
    """The kept model's validation value at the last layer, where less is better; infinite without one."""
    ends = []
    for run in runs:
        rows = run.validation.get(run.summary.metric) or run.validation.get("loss")
        sign = -1 if run.higher and run.validation.get(run.summary.metric) else 1
        row = rows[run.kept] if rows else []
        end = row[-1] if row else inf
        ends.append(sign * end if isfinite(end) else inf)
    return sum(ends) / len(ends)


def by_depth(results: Results, models: Sequence[str] = (), least: int = 2) -> dict[Panel, list[Setting]]:
    """Video settings of each panel by depth, at the strongest training noise that they share.

    The regime with the most panels comes first.

    Args:
        results: The study.
        models: Only these models; all if empty.
        least: Leave out panels with fewer depths.
    """
    by_panel: dict[Panel, list[Setting]] = {}
    for setting in results.where(task="video", paired=True):
        if not models or setting.model in models:
            by_panel.setdefault((setting.regime, setting.model, setting.data), []).append(setting)
    families = {}
    for panel, settings in by_panel.items():
        top = max(setting.gamma for setting in settings)
        family = sorted((setting for setting in settings if setting.gamma == top), key=lambda setting: setting.depth)
        if len(family) >= least:
            families[panel] = family
    regimes = [panel[0] for panel in families]
    return dict(sorted(families.items(), key=lambda item: -regimes.count(item[0][0])))


def best_depths(results: Results) -> dict[Panel, Arms]:
    """Each method's video runs at its best depth on validation data, at the strongest training noise."""
    cells = {panel: by_validation(settings) for panel, settings in by_depth(results, least=1).items()}
    return {panel: arms for panel, arms in cells.items() if arms.get("erm") and any(map(arms.get, FORMS))}


def main_regime(results: Results, *models: str, data: str = "") -> dict[Panel, Arms]:
    """`best_depths` in the regime with the most panels; regimes are not independent samples of each other."""
    cells = best_depths(results)
    regimes = [panel[0] for panel in cells]
    main = max(dict.fromkeys(regimes), key=regimes.count, default="")
    return {
        panel: arms
        for panel, arms in cells.items()
        if panel[0] == main and (not models or panel[1] in models) and data in ("", panel[2])
    }


def by_training_noise(results: Results, model: str, data: str) -> list[Setting]:
    """A text model at the depth with the most levels of training noise, by that noise."""
    settings = results.where(task="text", model=model, data=data, paired=True)
    depths = [setting.depth for setting in settings]
    chosen_depth = max(set(depths), key=lambda depth: (depths.count(depth), depth), default=None)
    return sorted((setting for setting in settings if setting.depth == chosen_depth), key=lambda setting: setting.gamma)


def several_noises(results: Results, model: str, *data: str) -> dict[str, list[Setting]]:
    """Data set → `by_training_noise`, where there are at least two levels."""
    by_data = {name: by_training_noise(results, model, name) for name in map(results.known, data)}
    return {name: settings for name, settings in by_data.items() if len(settings) > 1}


@dataclass(frozen=True)
class Ablation:
    """Constrained runs that differ in one setting.

    Attributes:
        family: The runs by the setting's value.
        runs: All runs that belong here, also diverged ones whose value is unknown.
    """

    family: Family
    runs: list[Run]

    @property
    def first(self) -> Run:
        """One of the runs."""
        return next(iter(self.family.values()))[0]


def ablation(results: Results, start: str, value: Callable[[Run], float | None]) -> Ablation | None:
    """The ablation of the place with the most values; the tables' own runs are part of it.

    Args:
        results: The study.
        start: How the names of its variants start.
        value: A run's value of the setting.
    """
    families: dict[Place, Family] = {}
    for run in results.variants(start):
        try:
            given = float(run.variant.removeprefix(start))
        except ValueError:
            continue
        families.setdefault(run.place, {}).setdefault(given, []).append(run)
    if not families:
        return None
    place, family = max(families.items(), key=lambda item: len(item[1]))
    varied = set(family)
    table = [run for run in results.runs if not run.variant and run.arm == "constrained" and run.place == place]
    for run in table:
        usual = value(run)
        if usual is not None and usual not in varied:
            family.setdefault(usual, []).append(run)
    runs = [*table, *(run for members in family.values() for run in members if run.variant)]
    ordered = {key: sorted(family[key], key=lambda run: run.seed) for key in sorted(family)}
    return Ablation(ordered, runs) if len(ordered) > 1 else None


def alphas(results: Results) -> Ablation | None:
    """The ablation of α."""
    return ablation(results, "alpha=", lambda run: run.alpha)


def dual_lrs(results: Results) -> Ablation | None:
    """The ablation of the dual learning rate."""
    return ablation(results, "dual_lr=", lambda run: number_of(run, "dual_lr"))


def number_of(run: Run, name: str) -> float | None:
    """A run's setting that is a number; None otherwise."""
    value = run.summary.settings.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def made_infeasible(results: Results) -> tuple[list[Run], Setting] | None:
    """Runs made to be infeasible, and their setting. Runs picked by their verdict would say nothing about verdicts."""
    made = results.variants("infeasible")
    if not made:
        return None
    place = made[0].place
    runs = sorted((run for run in made if run.place == place), key=lambda run: run.seed)
    beside = (setting for setting in results.settings if setting.place == place)
    return runs, next(beside, Setting(*place, arms={"infeasible": runs}))


def with_ratios(results: Results) -> tuple[Setting, list[Run]] | None:
    """A setting with ratios of single samples, and its runs without relaxation.

    First choice is where relaxation was left out, then RoBERTa on IMDb, then any.
    """
    bare = results.variants("resilience=0")
    places = {run.place for run in bare}
    having = [setting for setting in results.settings if any(run.shares for run in setting.constrained)]
    ordered = [setting for setting in having if setting.place in places]
    ordered += [setting for setting in having if (setting.model, setting.data) == ("RoBERTa", results.known("imdb"))]
    chosen = next(iter([*ordered, *having]), None)
    return None if chosen is None else (chosen, [run for run in bare if run.place == chosen.place])


def deepest_constrained(results: Results) -> list[Setting]:
    """The deepest constrained settings."""
    return deepest(setting for setting in results.settings if setting.constrained)


def finite_runs(setting: Setting, arm: str) -> list[Run]:
    """A method's runs that have losses at the training noise."""
    return [run for run in setting.runs(arm) if run.losses(setting.gamma) and not run.diverged]


def depth_families(results: Results) -> list[list[Setting]]:
    """Constrained settings that differ only in depth, at least two in each family."""
    found: dict[tuple[object, ...], list[Setting]] = {}
    for setting in strongest(setting for setting in results.settings if setting.constrained):
        found.setdefault((setting.model, setting.data, setting.regime, setting.gamma), []).append(setting)
    return [sorted(family, key=lambda setting: setting.depth) for family in found.values() if len(family) > 1]


def with_energy(results: Results) -> list[Setting]:
    """The deepest settings of UT and DUST whose energies were measured."""
    settings = results.where(model=("UT", "DUST"))
    return deepest(one for one in settings if any(run.summary.energy for runs in one.arms.values() for run in runs))


def table_regimes(results: Results, task: str) -> dict[str, list[Setting]]:
    """Regime → a table's settings with ERM and constrained; the regime with the most comes first."""
    regimes: dict[str, list[Setting]] = {}
    for setting in results.where(task=task, paired=True):
        regimes.setdefault(setting.regime or "paper", []).append(setting)
    return dict(sorted(regimes.items(), key=lambda item: -len(item[1])))


def answered(results: Results) -> list[tuple[Setting, dict[str, Sequence[Answer]]]]:
    """Settings whose language models completed prompts, and the answers of each method's first seed."""
    settings = []
    for setting in results.where(task="language"):
        answers = {
            arm: next(run.completions for run in runs if run.completions)
            for arm, runs in setting.arms.items()
            if any(run.completions for run in runs)
        }
        if answers:
            settings.append((setting, answers))
    return settings
