"""Judging any layered model: measurements over noise, the verdict, and the files that hold them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from descend.core import DescentProblem
from descend.evaluation.probes import Probed
from descend.evaluation.robustness import Robustness, input_metrics, robustness
from descend.models.layered import LayeredModel
from descend.noise import Noise
from descend.objective import Task
from descend.results import GROUPS_FILE, SUMMARY_FILE, Provenance, Summary

PLAIN_ALPHA = 0.01
"""The α by which a model without constraints is judged: does every layer lower the loss at all?"""


@dataclass(frozen=True)
class Judgement:
    """What `judge` measured, and against which problem.

    Attributes:
        measured: Losses and metrics by layer and noise level, with the verdict.
        problem: The constraints that the verdict is about.
        task: The loss and metric.
        dataset: The data set's name.
        split: ``test``, ``validation`` or ``train``.
        shift: The kind of noise.
        sigma: σ_x of the noise.
        inputs: The metric of the noisy input itself, by level; empty where the task has none.
    """

    measured: Robustness
    problem: DescentProblem
    task: Task
    dataset: str
    split: str
    shift: str
    sigma: float | None
    inputs: dict[float, float] = field(default_factory=dict)

    def summary(self, provenance: Provenance, *, asked: bool) -> Summary:
        """The content of ``summary.json``.

        Args:
            provenance: Where the model comes from.
            asked: Whether the model was trained for these constraints.
        """
        problem = self.problem
        return Summary.of(
            self.measured.measured(self.task),
            provenance,
            verdict=self._sentence(asked, provenance.binding),
            dataset=self.dataset,
            split=self.split,
            shift=self.shift,
            alpha=list(problem.alpha or ()),
            target="geometric" if problem.alpha is None else "step",
            strength=getattr(problem.target, "strength", None),
            certificate=self.measured.verdict.certificate(),
            limits=problem.limits,
            first_layer=problem.first,
            cap=problem.cap,
            depth=problem.depth,
            sigma=self.sigma,
            **({"input_metrics": self.inputs} if self.inputs else {}),
        )

    def _sentence(self, asked: bool, binding: list[int]) -> str:
        """The verdict in words."""
        words = self.measured.verdict.sentence(f"the {'training' if self.split == 'train' else self.split} data")
        if not asked:
            words = f"Held to {PLAIN_ALPHA:.0%} less loss at every layer, which its training did not ask: {words}"
        if binding:
            names = ", ".join("the cap" if layer == 0 else f"layer {layer}" for layer in binding)
            words += f" Binding (λ > 0 at the last step): {names}."
        return words

    def write(self, folder: Path, summary: Summary) -> None:
        """Write ``summary.json`` and ``groups.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        self.measured.by_group(self.task).write(folder / GROUPS_FILE)
        summary.write(folder / SUMMARY_FILE)


def judge(
    model: LayeredModel,
    task: Task,
    dataset: Dataset,
    problem: DescentProblem,
    noise: Noise,
    *,
    levels: Sequence[float],
    name: str,
    split: str = "test",
    shift: str = "gaussian",
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    collate: Callable[[list[Any]], dict[str, Any]] | None = None,
    probed: Probed | None = None,
) -> Judgement:
    """Measure every layer at every noise level, and take the verdict at the training noise.

    Args:
        model: The model; its training mode is left as it was.
        task: Its loss and metric.
        dataset: Held-out samples.
        problem: The constraints to judge.
        noise: The training noise, at its level and with a seed that is the same for all models to be compared.
        levels: Noise levels γ, see `robustness`.
        name: The data set's name.
        split: ``test``, ``validation`` or ``train``.
        shift: The kind of noise.
        batch_size: Samples at a time.
        device: Where to compute.
        collate: How samples become a batch; torch's way unless given.
        probed: Linear probes of the model's layers, see `robustness`.
    """
    measured = robustness(
        model,
        task,
        dataset,
        problem,
        noise,
        levels=levels,
        batch_size=batch_size,
        device=device,
        collate=collate,
        probed=probed,
    )
    inputs = {}
    if hasattr(task, "picture"):  # its inputs and predictions are frames
        inputs = input_metrics(task, dataset, noise, levels=list(measured.levels), batch_size=batch_size)
    return Judgement(measured, problem, task, name, split, shift, noise.sigma, inputs)
