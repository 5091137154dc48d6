"""Scales: how much of the paper's grid is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scale:
    """How much of the paper's grid is run.

    Attributes:
        about: Its rule, in words.
        seeds: Of every cell, unless its task has its own.
        depths: Recipe → L, the smallest first.
        gammas: Task → data set → regime → training noise γ. A data set's first regime has every depth, the others the
            middle one. A task's first data set, its first regime and that one's last γ are those of ablations.
        alphas: α of the ablation of Figures 5 and 14.
        dual_lrs: η_λ of Figure 15, beside that of preset paper, 0.01.
        noises: Training noise of Figures 9 and 10.
        telling: Whether its runs say anything about the method.
        task_seeds: Task → its seeds, where they differ.
    """

    about: str
    seeds: tuple[int, ...]
    depths: Mapping[str, tuple[int, ...]]
    gammas: Mapping[str, Mapping[str, Mapping[str, tuple[float, ...]]]]
    alphas: tuple[float, ...]
    dual_lrs: tuple[float, ...]
    noises: tuple[float, ...]
    telling: bool = True
    task_seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def seeds_of(self, task: str) -> tuple[int, ...]:
        """The seeds of a task's cells."""
        return self.task_seeds.get(task, self.seeds)


_DEPTHS = {"video-ut": (3, 5, 7), "video-dust": (3, 5, 7), "text-ut": (3, 5, 7, 9)}
_VIDEO, _TEXT = (0.0, 0.09, 0.11, 0.13, 0.15), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

SCALES = {
    "smoke": Scale(
        about="generated data and tiny models for a few steps: whether everything runs, nothing about the method",
        seeds=(0, 1),
        depths=dict.fromkeys(["video-ut", "video-dust", "text-ut"], (2, 3))
        | dict.fromkeys(["video-vit", "text-distilbert", "text-roberta", "llm-sft"], (2,)),
        gammas={
            "video": {"scenes": {"strong": (0.8,)}},
            "text": {"generated": {"paper": (1.0,)}},
            "language": {"generated": {"paper": (1.5,)}},
        },
        alphas=(0.05, 0.3),
        dual_lrs=(0.1,),
        noises=(0.0, 1.0),
        telling=False,
    ),
    "small": Scale(
        about="every data set, model and depth at one training noise with three seeds; the paper's noise, other "
        "methods and ablations at one depth",
        seeds=(0, 1, 2),
        depths=_DEPTHS | {"video-vit": (6, 12), "text-distilbert": (4,), "text-roberta": (4,), "llm-sft": (5,)},
        gammas={
            "video": {
                "ucsd": {"strong": (0.8,), "paper": (0.15,)},
                "avenue": {"strong": (0.8,)},
                "shanghaitech": {"strong": (0.8,)},
            },
            "text": {"imdb": {"paper": (1.0,)}, "mnli": {"paper": (0.2,)}},
            "language": {"alpaca": {"paper": (1.5,)}},
        },
        alphas=(0.05, 0.2, 0.5),
        dual_lrs=(0.003, 0.3),
        noises=(0.0, 0.4, 1.0),
    ),
    "paper": Scale(
        about="every cell of Tables 3 and 4 and a strong regime beside, with the paper's models, and three seeds "
        "(texts: five): for a cluster",
        seeds=(0, 1, 2),
        depths=_DEPTHS | {"video-vit": (12,), "text-distilbert": (6,), "text-roberta": (24,), "llm-sft": (32,)},
        gammas={
            "video": {data: {"paper": _VIDEO, "strong": (0.8,)} for data in ("ucsd", "avenue", "shanghaitech")},
            "text": {data: {"paper": _TEXT} for data in ("imdb", "mnli")},
            "language": {"alpaca": {"paper": (1.5,)}},
        },
        alphas=(0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
        dual_lrs=(0.001, 0.003, 0.03, 0.1),
        noises=_TEXT,
        task_seeds={"text": (0, 1, 2, 3, 4)},  # printed: five runs of each setting, the best of which is reported
    ),
}
