"""The grid: the runs that each figure and table of the paper needs, at each scale."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

from descend.errors import InputError
from reproduction.records import Cell, Settings
from reproduction.scales import SCALES

ROOT, OUT, HERE = "{root}", "{out}", "{here}"
"""Placeholders for the folders of the data, the study and this package: a cell is the same on every machine."""


RECIPES = {
    "video": {"video-ut": "UT", "video-dust": "DUST", "video-vit": "ViT"},
    "text": {"text-ut": "UT", "text-distilbert": "DistilBERT", "text-roberta": "RoBERTa"},
    "language": {"llm-sft": "Llama"},
}
"""Task → recipe → the paper's name of its model; a task's first recipe is that of its baselines."""

COMPARED = ("erm", "paper", "constrained", "linear")
"""The arms of every cell of the tables."""

ARMS: dict[str, Settings] = {
    "erm": {"method": "erm"},
    "paper": {"method": "constrained", "preset": "paper"},
    "constrained": {"method": "constrained"},
    "linear": {"method": "linear"},
    "uniform": {"method": "uniform"},
    "erm-noisier": {"method": "erm"},
    "erm-paper": {"method": "erm", "preset": "paper"},
    "erm-clean": {"method": "erm"},
    "r-drop": {"method": "r-drop"},
    "neftune": {"method": "neftune"},
    "layerskip": {"method": "layerskip"},
}
"""Arm → its settings. ``paper`` is preset paper, our first reading of the paper's settings. ``constrained`` is the
default, with no constraint setting. ``erm-noisier`` is ERM at more training noise, which validation data choose;
``erm-paper`` is ERM with the preset's optimizer, schedule and choice of the model; ``erm-clean`` is ERM without
noise."""

FURTHER = {
    "video-ut": ("uniform", "erm-noisier", "erm-paper"),
    "video-dust": ("erm-paper",),
    "video-vit": ("uniform", "erm-noisier", "erm-paper", "layerskip"),
    "text-ut": ("uniform", "erm-noisier", "erm-paper", "r-drop", "neftune"),
    "text-distilbert": ("uniform", "erm-noisier", "erm-paper", "r-drop", "neftune", "layerskip"),
    "text-roberta": ("erm-paper",),
    "llm-sft": ("uniform", "erm-noisier", "erm-paper", "neftune", "layerskip"),
}
"""Recipe → its other arms, at the middle depth on its task's first data set. Not all methods fit all models: LayerSkip
drops blocks, NEFTune needs word embeddings, and R-Drop is for classifiers."""

ANYTIME_RECIPES = ("video-vit", "text-distilbert", "text-roberta", "llm-sft")
"""Models whose layers are blocks, which early exits and LayerSkip are for."""

NOISE_IS = {"strong": "std", "paper": "variance"}
"""Regime → what γσ_x is of a video's noise. The paper's γ fits its caps as a variance."""

FORMS: dict[str, dict[str, Settings]] = {
    "video-ut": {"tied": {"tied": True}, "untied": {"tied": False}},
    "video-dust": {
        "tied": {"tied": True},
        "untied": {"tied": False},
        "proximal": {"layer": "proximal"},
    },
}
"""Recipe → variants of its form. The recipes are tied; preset paper has weights for each layer."""

FORM_ARMS = ("erm", "paper", "constrained")


def named(**fields: Any) -> Cell:
    """A cell with its name, which ends in a hash of its settings and their revision."""
    cell = Cell(name="", **fields)
    settings = json.dumps([revision(), cell.settings, cell.judge, cell.answer], sort_keys=True)
    what = [f"{cell.recipe}-{cell.depth}", cell.data, f"{cell.gamma:g}", cell.arm, cell.variant, f"s{cell.seed}"]
    name = "_".join([*filter(None, what), hashlib.sha256(settings.encode()).hexdigest()[:8]])
    return cell.model_copy(update={"name": name})


@dataclass(frozen=True)
class Wanted:
    """A figure or a table of the paper.

    Attributes:
        about: Its content, in words.
        cells: Selects its runs from a scale's grid.
    """

    about: str
    cells: Callable[["Grid"], list[Cell]]


def names(words: Sequence[str]) -> list[str]:
    """Check names of figures and tables, ``all`` for every one; returns each once, in the paper's order.

    Raises:
        InputError: If a name is unknown.
    """
    for word in words:
        if word not in (*WANTED, "all"):
            near = get_close_matches(word, WANTED, n=1, cutoff=0.5)
            raise InputError(
                f"no figure or table {word!r}{f' (did you mean {near[0]}?)' if near else ''}; "
                "python -m reproduction list names them."
            )
    return [name for name in WANTED if name in words or "all" in words]


def cells(wanted: Sequence[str], scale: str) -> list[Cell]:
    """The runs that figures and tables need at a scale, each once."""
    grid = Grid(scale)
    return list({cell.name: cell for name in wanted for cell in WANTED[name].cells(grid)}.values())


@cache
def settings() -> dict[str, Any]:
    """The content of ``settings.json``: the settings of each scale's runs, by recipe and regime."""
    return json.loads((files("reproduction") / "settings.json").read_text(encoding="utf-8"))


@cache
def rates() -> dict[str, Any]:
    """``rates.json``: scale → recipe → arm → its learning rate, and its training noise if trials chose it."""
    return json.loads((files("reproduction") / "rates.json").read_text(encoding="utf-8"))


def revision() -> int:
    """The revision of ``settings.json``. Raise it when runs change though their settings do not."""
    return settings()["revision"]


class Grid:
    """The cells of one scale.

    Args:
        name: The scale, a key of `SCALES`.
    """

    def __init__(self, name: str):
        self.name, self.scale, self.settings = name, SCALES[name], settings()[name]
        self._tables: dict[str, list[Cell]] = {}

    def cell(
        self,
        recipe: str,
        data: str,
        arm: str,
        seed: int,
        *,
        depth: int | None = None,
        regime: str | None = None,
        gamma: float | None = None,
        variant: str = "",
        changes: Settings | None = None,
    ) -> Cell:
        """One cell. The defaults are the middle depth, the data set's first regime and that regime's last γ."""
        task = task_of(recipe)
        regimes = self.scale.gammas[task][data]
        regime = regime or next(iter(regimes))
        gamma = regimes[regime][-1] if gamma is None else gamma
        depth = depth or _middle(self.scale.depths[recipe])
        if arm == "erm-clean":
            gamma = 0.0
        elif arm == "erm" and not gamma:
            arm = "erm-clean"  # the same run
        rows, chosen = self.settings["recipes"][recipe], rates().get(self.name, {}).get(recipe, {})
        settings = {
            **{**ARMS[arm], "depth": depth, "noise": gamma, "seed": seed},
            **({"noise_is": NOISE_IS[regime]} if task == "video" else {}),
            **self.settings["data"][data],
            **rows["every"],
            **rows.get("preset" if "preset" in ARMS[arm] else "ours", {}),
            **(rows.get("paper", {}) if arm == "paper" else {}),
            **chosen.get(arm, chosen.get("erm", {})),  # falls back to ERM's
            **(changes or {}),
        }
        return named(
            task=task,
            model=RECIPES[task][recipe],
            data=data,
            depth=depth,
            gamma=gamma,
            regime=regime,
            arm=arm,
            variant=variant,
            seed=seed,
            recipe=recipe,
            settings=settings,
            judge=self.settings["judge"][task][regime],
            answer=self.settings["answer"] if task == "language" and not seed else {},
        )

    def seeds(self, recipe: str, data: str, arms: Sequence[str] = COMPARED, **other: Any) -> list[Cell]:
        """Several arms of one setting, with all seeds."""
        seeds = self.scale.seeds_of(task_of(recipe))
        return [self.cell(recipe, data, arm, seed, **other) for arm in arms for seed in seeds]

    def table(self, task: str) -> list[Cell]:
        """All compared arms for every data set, regime, recipe, depth and γ."""
        if task in self._tables:
            return list(self._tables[task])  # most figures and tables ask for one
        runs: list[Cell] = []
        for data, regimes in self.scale.gammas[task].items():
            for place, (regime, gammas) in enumerate(regimes.items()):
                for recipe in RECIPES[task]:
                    depths = self.scale.depths[recipe]
                    for depth, gamma in product([_middle(depths)] if place else depths, gammas):
                        runs += self.seeds(recipe, data, depth=depth, gamma=gamma, regime=regime)
        self._tables[task] = runs
        return list(runs)

    def single(self, task: str, *models: str) -> list[Cell]:
        """The cells of some models in a task's table: first data set, first regime, last γ."""
        data, regimes = next(iter(self.scale.gammas[task].items()))
        regime, gammas = next(iter(regimes.items()))
        setting = (data, regime, gammas[-1])
        return [
            cell
            for cell in self.table(task)
            if cell.model in models and (cell.data, cell.regime, cell.gamma) == setting
        ]

    def tables(self, *models: str, task: str | None = None) -> list[Cell]:
        """The tables of one task or all, for some models or all."""
        every = [cell for each in RECIPES if task in (None, each) for cell in self.table(each)]
        return [cell for cell in every if not models or cell.model in models]

    def further(self, *recipes: str) -> list[Cell]:
        """The arms of `FURTHER` of some recipes, or of all."""
        return [
            cell
            for recipe, arms in FURTHER.items()
            if not recipes or recipe in recipes
            for cell in self.seeds(recipe, next(iter(self.scale.gammas[task_of(recipe)])), arms)
        ]

    def whole(self, task: str | None = None) -> list[Cell]:
        """The tables of one task or all, with all other arms."""
        return self.tables(task=task) + self.further(*(RECIPES[task] if task else ()))

    def anytime(self) -> list[Cell]:
        """All arms of every model of `ANYTIME_RECIPES`, on its task's first data set."""
        runs = []
        for task, recipes in RECIPES.items():
            for recipe in recipes:
                if recipe in ANYTIME_RECIPES:
                    runs += self.seeds(recipe, next(iter(self.scale.gammas[task])))
        return runs + self.further(*ANYTIME_RECIPES)

    def forms(self) -> list[Cell]:
        """UT and DUST tied and untied, DUST by both layers, and the paper's γ as a standard deviation."""
        runs, data = [], next(iter(self.scale.gammas["video"]))
        for recipe, variants in FORMS.items():
            runs += self.seeds(recipe, data, FORM_ARMS)
            for variant, changes in variants.items():
                for arm in FORM_ARMS:
                    if changes.get("tied") != (arm != "paper"):  # else it is the table's own run
                        runs += self.seeds(recipe, data, [arm], variant=variant, changes=changes)
        regimes = self.scale.gammas["video"][data]
        if "paper" in regimes:
            for recipe in RECIPES["video"]:
                runs += self.seeds(recipe, data, FORM_ARMS, regime="paper")
                changed: Settings = {"noise_is": "std"}
                runs += self.seeds(recipe, data, FORM_ARMS, regime="paper", variant="noise_is=std", changes=changed)
        return runs

    def ablation(self, recipe: str, task: str, variants: Mapping[str, Settings], **other: Any) -> list[Cell]:
        """Runs of preset paper with changed settings, by the variant's name, and the unchanged arms."""
        data = next(iter(self.scale.gammas[task]))
        compared = self.seeds(recipe, data, **other)
        for variant, changes in variants.items():
            compared += self.seeds(recipe, data, ["paper"], variant=variant, changes=changes, **other)
        return compared

    def infeasible(self) -> list[Cell]:
        """A run whose constraints can't be met, with the shallowest UT: beside it preset paper is feasible."""
        variants = {"infeasible": self.settings["infeasible"]}
        return self.ablation("video-ut", "video", variants, depth=min(self.scale.depths["video-ut"]))

    def alphas(self) -> list[Cell]:
        """RoBERTa with several α."""
        variants: dict[str, Settings] = {f"alpha={alpha:g}": {"alpha": alpha} for alpha in self.scale.alphas}
        return self.ablation("text-roberta", "text", variants)

    def noises(self, *recipes: str) -> list[Cell]:
        """Text recipes at several levels of training noise."""
        data = next(iter(self.scale.gammas["text"]))
        pairs, arms = product(recipes, self.scale.noises), ("erm", "paper", "constrained")
        return [cell for recipe, gamma in pairs for cell in self.seeds(recipe, data, arms, gamma=gamma)]

    def dual_lrs(self) -> list[Cell]:
        """RoBERTa with several dual learning rates."""
        variants: dict[str, Settings] = {f"dual_lr={rate:g}": {"dual_lr": rate} for rate in self.scale.dual_lrs}
        return self.ablation("text-roberta", "text", variants)


def task_of(recipe: str) -> str:
    """The task of a recipe."""
    return next(task for task, recipes in RECIPES.items() if recipe in recipes)


def _middle(depths: Sequence[int]) -> int:
    return depths[(len(depths) - 1) // 2]


WANTED: dict[str, Wanted] = {
    "figure-1": Wanted("RoBERTa: loss by layer and accuracy under noise", lambda grid: grid.single("text", "RoBERTa")),
    "figure-2": Wanted("RMSE against test noise, by data set and model", lambda grid: grid.whole("video")),
    "figure-3": Wanted("RMSE against test noise, by depth", lambda grid: grid.tables("UT", "DUST", task="video")),
    "figure-4": Wanted("accuracy against test noise, by data set and model", lambda grid: grid.whole("text")),
    "figure-5": Wanted("accuracy against α", Grid.alphas),
    "figure-6": Wanted(
        "a language model: loss by layer, token accuracy under noise", lambda grid: grid.whole("language")
    ),
    "figure-7": Wanted("DUST: descent at each depth", lambda grid: grid.single("video", "DUST")),
    "figure-8": Wanted("video: error at the training noise against error beyond it", lambda grid: grid.table("video")),
    "figure-9": Wanted("DistilBERT: accuracy by training noise", lambda grid: grid.noises("text-distilbert")),
    "figure-10": Wanted(
        "UT and DistilBERT: what training noise does to the gain",
        lambda grid: grid.noises("text-ut", "text-distilbert"),
    ),
    "figure-11": Wanted(
        "a run that ends infeasible, detected by its verdict",
        Grid.infeasible,
    ),
    "figure-12": Wanted(
        "RoBERTa: ratios of single samples, with and without relaxation",
        lambda grid: grid.ablation("text-roberta", "text", {"resilience=0": {"resilience": 0}}),
    ),
    "figure-13": Wanted("loss by layer, all settings of texts", lambda grid: grid.table("text")),
    "figure-14": Wanted("accuracy against α at three levels of noise", Grid.alphas),
    "figure-15": Wanted("accuracy against η_λ at three levels of noise", Grid.dual_lrs),
    "figure-16": Wanted("completions of a language model under noise", lambda grid: grid.table("language")),
    "table-1": Wanted("settings: video", lambda grid: grid.whole("video")),
    "table-2": Wanted("settings: text", lambda grid: grid.whole("text")),
    "table-3": Wanted("mean RMSE, beside the paper's", lambda grid: grid.whole("video")),
    "table-4": Wanted("area under the accuracy, beside the paper's", lambda grid: grid.whole("text")),
    "table-5": Wanted("settings: the language model", lambda grid: grid.table("language")),
    "theory-1": Wanted("the best loss so far against Theorem 2", lambda grid: grid.tables()),
    "theory-2": Wanted("violations under shift against Corollary 3", lambda grid: grid.tables()),
    "theory-3": Wanted("UT's and DUST's energies along the layers", lambda grid: grid.tables("UT", "DUST")),
    "theory-4": Wanted("primal and dual values along training against Theorem 1", lambda grid: grid.tables()),
    "table-theory": Wanted("how a loss rises under shift, Assumption 7 and Theorem 4", lambda grid: grid.tables()),
    "table-arms": Wanted("our own: what each method gives, over all settings", lambda grid: grid.whole()),
    "table-cells": Wanted("our own: every setting, constrained against plain training", lambda grid: grid.tables()),
    "table-lost": Wanted("our own: settings in which constraints lose, and why", lambda grid: grid.tables()),
    "table-forms": Wanted("our own: weights of each layer, DUST's layers, the two readings of γ", Grid.forms),
    "anytime": Wanted("our own: quality against depth and noise, all methods", Grid.anytime),
    "table-anytime": Wanted("our own: layers needed within 1, 2, 5 % of full depth, all methods", Grid.anytime),
}
"""What can be reproduced, in the paper's order; what is our own follows."""
