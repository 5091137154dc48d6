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
from descend.paper.scales import SCALES
from descend.records.studies import Cell, Settings

ROOT, OUT, HERE = "{root}", "{out}", "{here}"
"""Placeholders for the folders of the data, the study and this package: a cell is the same on every machine."""


RECIPES = {
    "video": {"video-ut": "UT", "video-dust": "DUST", "video-vit": "ViT"},
    "text": {"text-ut": "UT", "text-distilbert": "DistilBERT", "text-roberta": "RoBERTa"},
    "language": {"llm-sft": "Llama"},
}
"""Task → recipe → the paper's name of its model; a task's first recipe is that of its baselines."""

COMPARED = ("erm", "constrained")
BASELINES = {"video": ("erm-clean", "uniform", "linear"), "text": ("erm-clean", "uniform", "linear", "r-drop")}

ANYTIME_RECIPES = ("video-vit", "text-distilbert", "text-roberta", "llm-sft")
"""Models whose layers are blocks, which early exits and LayerSkip are for."""

ANYTIME = {
    "video": (*COMPARED, "uniform", "linear", "layerskip"),
    "text": (*COMPARED, "uniform", "linear", "neftune", "layerskip"),
    "language": (*COMPARED, "uniform", "linear", "neftune", "layerskip"),
}
"""The methods of the anytime figure, by task; NEFTune needs word embeddings."""


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
    cells: Callable[["_Grid"], list[Cell]]


def names(words: Sequence[str]) -> list[str]:
    """Check names of figures and tables, ``all`` for every one; returns each once, in the paper's order.

    Raises:
        InputError: If a name is unknown.
    """
    for word in words:
        if word not in (*WANTED, "all"):
            near = get_close_matches(word, WANTED, n=1, cutoff=0.5)
            raise InputError(
                f"no figure or table {word!r}{f' (did you mean {near[0]}?)' if near else ''}; descend reproduce list "
                "names them."
            )
    return [name for name in WANTED if name in words or "all" in words]


def cells(wanted: Sequence[str], scale: str) -> list[Cell]:
    """The runs that figures and tables need at a scale, each once."""
    grid = _Grid(scale)
    return list({cell.name: cell for name in wanted for cell in WANTED[name].cells(grid)}.values())


@cache
def settings() -> dict[str, Any]:
    """The content of ``settings.json``: the settings of each scale's runs, by recipe and regime."""
    return json.loads((files("descend.paper") / "settings.json").read_text(encoding="utf-8"))


def revision() -> int:
    """The revision of ``settings.json``. Raise it when runs change though their settings do not."""
    return settings()["revision"]


class _Grid:
    """The cells of one scale."""

    def __init__(self, name: str):
        self.scale, self.settings = SCALES[name], settings()[name]

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
        task = next(task for task, recipes in RECIPES.items() if recipe in recipes)
        regimes = self.scale.gammas[task][data]
        regime = regime or next(iter(regimes))
        gamma = regimes[regime][-1] if gamma is None else gamma
        depth = depth or _middle(self.scale.depths[recipe])
        if arm == "erm-clean":
            gamma = 0.0
        elif arm == "erm" and not gamma:
            arm = "erm-clean"  # the same run
        method = "erm" if arm == "erm-clean" else arm
        rows = self.settings["recipes"][recipe]
        row = rows[regime]
        for key in (data, str(depth)):
            row = row.get(key, row)
        settings = {
            **{"method": method, "depth": depth, "noise": gamma, "seed": seed},
            **self.settings["data"][data],
            **rows["every"],
            **row.get("both", {}),
            **row.get(method, row.get("erm", {})),  # falls back to ERM's settings
            **rows.get("data", {}).get(data, {}),
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
        return [self.cell(recipe, data, arm, seed, **other) for arm in arms for seed in self.scale.seeds]

    def table(self, task: str) -> list[Cell]:
        """ERM and constrained for every data set, regime, recipe, depth and γ."""
        runs = []
        for data, regimes in self.scale.gammas[task].items():
            for place, (regime, gammas) in enumerate(regimes.items()):
                for recipe in RECIPES[task]:
                    depths = self.scale.depths[recipe]
                    for depth, gamma in product([_middle(depths)] if place else depths, gammas):
                        runs += self.seeds(recipe, data, depth=depth, gamma=gamma, regime=regime)
        return runs

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

    def baselines(self, task: str) -> list[Cell]:
        """The baselines, with the task's first recipe."""
        recipe = next(iter(RECIPES[task]))
        return [cell for data in self.scale.baselines[task] for cell in self.seeds(recipe, data, BASELINES[task])]

    def whole(self, task: str) -> list[Cell]:
        """A task's table with its baselines."""
        return self.table(task) + self.baselines(task)

    def anytime(self) -> list[Cell]:
        """All methods with every model of `ANYTIME_RECIPES`, on its task's first data set."""
        runs = []
        for task, arms in ANYTIME.items():
            data = next(iter(self.scale.gammas[task]))
            for recipe in RECIPES[task]:
                runs += self.seeds(recipe, data, arms) if recipe in ANYTIME_RECIPES else []
        return runs

    def ablation(self, recipe: str, task: str, variants: Mapping[str, Settings]) -> list[Cell]:
        """Constrained runs with changed settings, by the variant's name, with the unchanged ERM and constrained runs.

        A variant that changes nothing is left out: it is the constrained run itself.
        """
        data = next(iter(self.scale.gammas[task]))
        compared = self.seeds(recipe, data)
        settings = compared[-1].settings
        for variant, changes in variants.items():
            if any(settings.get(name) != value for name, value in changes.items()):
                compared += self.seeds(recipe, data, ["constrained"], variant=variant, changes=changes)
        return compared

    def alphas(self) -> list[Cell]:
        """RoBERTa with several α."""
        variants: dict[str, Settings] = {f"alpha={alpha:g}": {"alpha": alpha} for alpha in self.scale.alphas}
        return self.ablation("text-roberta", "text", variants)

    def noises(self, *recipes: str) -> list[Cell]:
        """Text recipes at several levels of training noise."""
        data = next(iter(self.scale.gammas["text"]))
        pairs = product(recipes, self.scale.noises)
        return [cell for recipe, gamma in pairs for cell in self.seeds(recipe, data, gamma=gamma)]

    def dual_lrs(self) -> list[Cell]:
        """RoBERTa with several dual learning rates."""
        variants: dict[str, Settings] = {f"dual_lr={rate:g}": {"dual_lr": rate} for rate in self.scale.dual_lrs}
        return self.ablation("text-roberta", "text", variants)


def _middle(depths: Sequence[int]) -> int:
    return depths[(len(depths) - 1) // 2]


WANTED: dict[str, Wanted] = {
    "figure-1": Wanted("RoBERTa: loss by layer and accuracy under noise", lambda grid: grid.single("text", "RoBERTa")),
    "figure-2": Wanted("RMSE against test noise, by data set and model", lambda grid: grid.whole("video")),
    "figure-3": Wanted("RMSE against test noise, by depth", lambda grid: grid.tables("UT", "DUST", task="video")),
    "figure-4": Wanted("accuracy against test noise, by data set and model", lambda grid: grid.whole("text")),
    "figure-5": Wanted("accuracy against α", _Grid.alphas),
    "figure-6": Wanted(
        "a language model: loss by layer, token accuracy under noise", lambda grid: grid.table("language")
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
        lambda grid: grid.ablation("video-ut", "video", {"infeasible": grid.settings["infeasible"]}),
    ),
    "figure-12": Wanted(
        "RoBERTa: ratios of single samples, with and without relaxation",
        lambda grid: grid.ablation("text-roberta", "text", {"resilience=0": {"resilience": 0}}),
    ),
    "figure-13": Wanted("loss by layer, all settings of texts", lambda grid: grid.table("text")),
    "figure-14": Wanted("accuracy against α at three levels of noise", _Grid.alphas),
    "figure-15": Wanted("accuracy against η_λ at three levels of noise", _Grid.dual_lrs),
    "figure-16": Wanted("completions of a language model under noise", lambda grid: grid.table("language")),
    "table-1": Wanted("settings: video", lambda grid: grid.whole("video")),
    "table-2": Wanted("settings: text", lambda grid: grid.whole("text")),
    "table-3": Wanted("mean RMSE, beside the paper's", lambda grid: grid.whole("video")),
    "table-4": Wanted("area under the accuracy, beside the paper's", lambda grid: grid.whole("text")),
    "table-5": Wanted("settings: the language model", lambda grid: grid.table("language")),
    "theory-1": Wanted("the best loss so far against Theorem 2", lambda grid: grid.tables()),
    "theory-2": Wanted("violations under shift against Corollary 3", lambda grid: grid.tables()),
    "theory-3": Wanted("UT's and DUST's energies along the layers", lambda grid: grid.tables("UT", "DUST")),
    "anytime": Wanted("our own: quality against depth and noise, all methods", _Grid.anytime),
    "table-anytime": Wanted("our own: layers needed within 1, 2, 5 % of full depth, all methods", _Grid.anytime),
}
"""What can be reproduced, in the paper's order; what is our own follows."""
