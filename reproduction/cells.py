"""A cell of the study: one run, as commands that a person could type, and the rows of cells that make a study."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

Options = dict[str, Any]
"""Options of a command: a name as in Python → its value. Paths begin with one of `PLACES` in braces."""

PLACES = ("data", "models", "here", "study")
"""Folders that options name: data sets, pretrained models, this package, and the study, whose runs others replay."""

SEARCH_SEED = 1000
"""The seed of the trials of searches, which no other run has."""

SEARCHED = "searched"
"""The variant in which α and the cap are those that the search chose too."""

LAST = "last"
"""The variant whose settings are best for the last layer, of a model that is chosen by its layers."""

OTHERWISE = {SEARCHED: "searched", LAST: "last"}
"""Variant → the entry of a search's choice that it takes."""

EVERY_STEP = "every-step"
"""The variant whose run logs its weights at every step, for `REPLAYS`."""

REPLAYS = ("replayed", "mean-weights")
"""Arms with the weights that the run of `EVERY_STEP` had: at each step, and their mean over the steps."""

FIXED = ("alpha", "cap")
"""What is fixed in advance but in the variant `SEARCHED`."""

SEARCH = "search"
"""The panel of the trials."""

WHOLE = ("text", "image", "lm")
"""Recipes that train all layers of a pretrained model, and have no option for its depth."""

ARMS: dict[str, Options] = {
    "erm": {"method": "erm"},
    "erm-noisier": {"method": "erm"},
    "linear": {"method": "linear"},
    "linear-.05": {"method": "linear", "inner_weight": 0.05},
    "uniform": {"method": "uniform"},
    "probe": {"method": "probe"},
    "useful-.2": {"method": "useful", "strength": 0.2},
    "useful-.8": {"method": "useful", "strength": 0.8},
    "constrained": {"method": "constrained"},
    "paper-adam": {"method": "constrained", "preset": "paper", "dual_optimizer": "adam"},
    "algorithm-1": {"method": "constrained", "preset": "paper", "dual_optimizer": "sgd"},
    "replayed": {"method": "weighted"},
    "mean-weights": {"method": "weighted"},
}
"""Arm → its settings. ``probe`` is plain training with readouts that learn beside it; ``erm-noisier`` is ERM at more
training noise, which validation data choose; ``constrained`` is Descend's default; ``paper-adam`` moves λ by Adam as
Appendix B.1 prints, ``algorithm-1`` by projected ascent."""

PAPER_ARMS = ("paper-adam", "algorithm-1")

FIRST_EXIT = {"UT": 1, "DUST": 1}
"""Model → the exit where the chain of constraints starts; 0 for others. Exit 0 of these two has no parameter."""

CHOICES = {"erm-noisier": ("erm", "erm-noisier")}
"""Arm → the arms whose searches it takes settings from. Others take those of their own search; arms that have none, and
are not the paper's, share ERM's learning rate."""

FORMS: dict[str, Options] = {"": {}, "tied": {"tied": True}, "untied": {"tied": False}}


@dataclass(frozen=True)
class Model:
    """A model of a scale.

    Attributes:
        recipe: The recipe of ``descend train``.
        settings: Its options, the same for every arm.
        paper: Options of the paper's arms, among them α and the cap where they are fixed in advance.
        trials: Arm → what each trial of its search sets. They all have the same data, budget and seed.
        levels: Levels of the test noise.
        relative: Whether they are multiples of the setting's training noise.
        evaluate: Further options of ``descend evaluate``.
        complete: Options of ``descend complete``, for the first seed of a language model.
        by_layers: Whether searches choose by the deeper half of the layers on clean validation data, else by the last
            layer over noise.
        each: Whether each data set, depth and training noise has searches of its own.
        reused: Arm → the search that it takes its settings from everywhere, in place of `each`. With an entry for
            ``erm`` all arms have the learning rate that this search chose.
        seconds: Of a cell on one core: all but layers, and each layer.
    """

    recipe: str
    settings: Options
    paper: Options = field(default_factory=dict)
    trials: Mapping[str, Sequence[Options]] = field(default_factory=dict)
    levels: tuple[float, ...] = (0, 0.5, 1, 1.5, 2, 3)
    relative: bool = True
    evaluate: Options = field(default_factory=dict)
    complete: Options = field(default_factory=dict)
    by_layers: bool = False
    each: bool = False
    reused: Mapping[str, str] = field(default_factory=dict)
    seconds: tuple[float, float] = (60, 0)


@dataclass(frozen=True)
class Row:
    """Cells of one model that differ in data, depth, arm, form, variant and seed, in this order.

    Attributes:
        panel: What they are for.
        model: A key of the scale's models.
        data: Keys of the scale's data.
        depths: L.
        gammas: The nominal training noise γ.
        arms: Keys of `ARMS`.
        forms: Keys of `FORMS`.
        seeds: The runs' seeds.
        variants: What an ablation changes, by its name.
        evaluate: Further options of ``descend evaluate``.
    """

    panel: str
    model: str
    data: Sequence[str]
    depths: Sequence[int]
    gammas: Sequence[float]
    arms: Sequence[str]
    seeds: Sequence[int]
    forms: Sequence[str] = ("",)
    variants: Mapping[str, Options] = field(default_factory=lambda: {"": {}})
    evaluate: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """How much of the paper is run.

    Attributes:
        about: In words.
        data: Data set → options of ``descend train``.
        models: The models.
        rows: The cells in the order of worth.
        primaries: The primary comparisons: model, depth, data, γ, form, and arm and form of what it is held against.
    """

    about: str
    data: Mapping[str, Options]
    models: Mapping[str, Model]
    rows: Sequence[Row]
    primaries: Sequence[tuple[str, int, str, float, str, str, str]] = ()


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        panel: What it is for: the panel of the first row that asks for it.
        recipe: The recipe of ``descend train``.
        model: The model's name in the scale.
        data: The data set's name in the scale.
        depth: L.
        gamma: The setting's nominal training noise γ, which ``erm-noisier`` exceeds.
        arm: A key of `ARMS`.
        form: ``tied``, ``untied`` or empty.
        variant: What an ablation or a trial changes; empty in the main grid.
        seed: The run's seed.
        settings: Options of ``descend train``.
        evaluate: Options of ``descend evaluate``.
        complete: Options of ``descend complete``; empty for none.
        waits: The search whose choice is not made yet; empty if the cell can be run.
    """

    panel: str
    recipe: str
    model: str
    data: str
    depth: int
    gamma: float
    arm: str
    form: str
    variant: str
    seed: int
    settings: Options
    evaluate: Options
    complete: Options = field(default_factory=dict)
    waits: str = ""

    @property
    def name(self) -> str:
        """The fields, and a hash of the commands without this machine's paths."""
        words = json.dumps(
            [self.recipe, options(self.settings), options(self.evaluate), options(self.complete), self.waits]
        )
        digest = hashlib.sha256(words.encode()).hexdigest()[:8]
        model = f"{self.model}-{self.depth}"
        parts = [model, self.data, f"{self.gamma:g}", self.arm, self.form, self.variant, f"s{self.seed}", digest]
        return "_".join(filter(None, parts))

    @property
    def fields(self) -> Options:
        """All of it as JSON holds it, with its name."""
        return {"name": self.name, **{key: value for key, value in asdict(self).items() if key != "waits"}}

    def commands(self, out: Path, places: Mapping[str, Path]) -> list[list[str]]:
        """The arguments of ``descend`` for each command: train, complete if it does, and evaluate.

        Args:
            out: The cell's folder.
            places: ``data``, ``models`` and ``here`` → this machine's folder.
        """
        run = str(out)
        train = ["train", self.recipe, *placed(options(self.settings), places), "--out", run, "--quiet"]
        complete = ["complete", run, *placed(options(self.complete), places)]
        answers = [
            [*complete, "--noise", f"{level:g}", "--out", f"{run}/answers-{level:g}.json"]
            for level in (dict.fromkeys((0.0, self.gamma)) if self.complete else ())
        ]
        # Arms that trained at more noise are compared on validation data at every level.
        every = [] if self.evaluate.get("split") == "validation" else ["--validation-noise", "all"]
        return [train, *answers, ["evaluate", run, *placed(options(self.evaluate), places), *every, "--quiet"]]

    def paths(self) -> list[str]:
        """The paths that it reads, with their placeholders."""
        values = [*self.settings.values(), *self.complete.values()]
        return [value for value in values if isinstance(value, str) and value.startswith("{")]


def options(given: Options) -> list[str]:
    """Options as words of a command line: ``tied=False`` is ``--no-tied``; what is None is left out."""
    words = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, str) and value.startswith("-"):  # a list of numbers would be read as an option
            words.append(f"--{flag}={value}")
        elif value is not None:
            words += [f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)]
    return words


def placed(words: Sequence[str], places: Mapping[str, Path]) -> list[str]:
    """Words with this machine's folders in place of placeholders."""
    for name, folder in places.items():
        words = [word.replace(f"{{{name}}}", str(folder)) for word in words]
    return list(words)


def search_key(scale: Scale, cell: Cell, arm: str) -> str:
    """The name of an arm's search for a cell, as in ``chosen.json``."""
    model = scale.models[cell.model]
    if arm in model.reused:
        return model.reused[arm]
    setting = (f"{cell.depth}", cell.data, f"{cell.gamma:g}") if model.each else ()
    return " ".join(filter(None, (cell.model, *setting, cell.form, arm)))


def cells(scale: Scale, chosen: Mapping[str, Any]) -> list[Cell]:
    """The cells of a scale, each once, in the order of worth.

    A cell of a variant of `OTHERWISE` is left out where it has the same settings as the main grid's.

    Args:
        scale: The scale.
        chosen: What ``chosen.json`` holds: search → its choice.
    """
    planned: dict[str, Cell] = {}
    for row in scale.rows:
        for point in product(row.seeds, row.data, row.depths, row.gammas, row.arms, row.forms, row.variants):
            cell = _cell(scale, row, point)
            for each in _trials(scale, cell, chosen) if row.panel == SEARCH else _chosen(scale, cell, row, chosen):
                planned.setdefault(each.name, each)
    return list(planned.values())


def _cell(scale: Scale, row: Row, point: tuple[Any, ...]) -> Cell:
    """A cell before anything is chosen for it."""
    seed, data, depth, gamma, arm, form, variant = point
    model = scale.models[row.model]
    unit = gamma if model.relative else 1
    settings = {**scale.data[data], **model.settings, **ARMS[arm], **FORMS[form]}
    settings |= model.paper if arm in PAPER_ARMS else {}
    settings |= {} if model.recipe in WHOLE else {"depth": depth}
    return Cell(
        panel=row.panel,
        recipe=model.recipe,
        model=row.model,
        data=data,
        depth=depth,
        gamma=gamma,
        arm=arm,
        form=form,
        variant=variant,
        seed=seed,
        settings={**settings, "noise": gamma, "seed": seed},
        evaluate={
            "noise": ",".join(f"{level * unit:g}" for level in model.levels),
            **model.evaluate,
            **row.evaluate,
        },
        complete=model.complete if not seed and not variant else {},
    )


def _chosen(scale: Scale, cell: Cell, row: Row, chosen: Mapping[str, Any]) -> list[Cell]:
    """The cell with the settings that searches chose, and with those of its variant."""
    taken, waits = _choice(scale, cell, chosen, OTHERWISE.get(cell.variant, ""))
    if cell.variant in OTHERWISE and not waits and taken == _choice(scale, cell, chosen)[0]:
        return []
    return [replace(cell, settings={**cell.settings, **taken, **row.variants[cell.variant]}, waits=waits)]


def _choice(scale: Scale, cell: Cell, chosen: Mapping[str, Any], which: str = "") -> tuple[Options, str]:
    """What a cell takes from searches, and the search that it waits for."""
    model = scale.models[cell.model]
    which = which or ("searched" if "alpha" not in model.paper else "fixed")
    return _taken(scale, cell, chosen, which, _searches(model, cell.arm))


def _searches(model: Model, arm: str) -> list[str]:
    """The arms whose searches an arm takes settings from."""
    if arm in REPLAYS:
        return ["erm", arm]
    shares = arm not in (*model.trials, *model.reused, *PAPER_ARMS)
    own = ["erm"] if shares else CHOICES.get(arm, (arm,))
    return list(dict.fromkeys([*(["erm"] if "erm" in model.reused else []), *own]))


def _taken(scale: Scale, cell: Cell, chosen: Mapping[str, Any], which: str, arms: Sequence[str]) -> tuple[Options, str]:
    """What the searches of some arms chose for a cell, and the search that it waits for."""
    model = scale.models[cell.model]
    taken: Options = {}
    for arm in arms:
        if not model.trials.get(arm) and arm not in (*model.reused, *REPLAYS):
            continue
        key = search_key(scale, cell, arm)
        if key not in chosen:
            return {}, key
        settings = chosen[key][which]["settings"]
        if arm == "erm" and cell.arm not in ("erm", *CHOICES):  # the learning rate alone, not the number of steps
            settings = {name: value for name, value in settings.items() if name == "learning_rate"}
        taken |= settings
    return taken, ""


def _trials(scale: Scale, cell: Cell, chosen: Mapping[str, Any]) -> list[Cell]:
    """The trials of a search."""
    model = scale.models[cell.model]
    # The noise is searched at ERM's choice of everything else, and all else at its learning rate if that is shared.
    after_erm = cell.arm in CHOICES or (cell.arm != "erm" and "erm" in model.reused)
    base, waits = _taken(scale, cell, chosen, "searched", ["erm"]) if after_erm else ({}, "")
    return [
        replace(
            cell,
            variant=f"trial-{number}",
            settings={**cell.settings, **base, **trial},
            complete={},
            waits=waits,
        )
        for number, trial in enumerate(model.trials[cell.arm], 1)
    ]
