"""What an evaluation in training says of a model, and which evaluated model of a run is the best."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from descend.core import DescentProblem, PrimalDual
from descend.evaluation.calibration import COST_TOLERANCE, at_temperature, temperature
from descend.evaluation.layers import LayerLosses
from descend.evaluation.satisfaction import verdict
from descend.methods import Method
from descend.results import Verdict
from descend.tasks import Task
from descend.training.config import DescentArguments
from descend.training.measuring import Predictions
from descend.training.ranks import Ranks


@dataclass
class Judged:
    """A model on an evaluation set."""

    layers: LayerLosses
    """The losses and metrics of its layers."""
    divisor: float
    """The temperature by which its logits were divided."""
    verdict: Verdict
    """Whether its layers meet the constraints."""
    metrics: dict[str, float]
    """Its metrics by name, such as ``eval_loss``."""


class Selection:
    """Judges the models of a run that are evaluated, and chooses the best one.

    Args:
        args: The training arguments.
        ranks: The processes of the run, which all use the numbers of the main process.
        task: The metric.
        method: Says whether the constraints are asked for.
        dual: Knows the problem that training solves, and the warm-up.
        problem: The constraints; they are the same for all methods.
        names: The names of the trainer's evaluation sets; a single one has the empty name.

    Attributes:
        ranking: The problem by which models are ranked: the one that training solves, or ERM where nothing is asked.
        verdict: That of the last evaluation of the trainer's own data, or of the best model if it was loaded.
        verdicts: Those of this process's evaluations of the trainer's own data, by step.
        chooses: Whether the last evaluation was on the trainer's own data; early stopping counts no other.
        least: The lowest loss of a feasible model.
        best_meets: Whether the best model so far is feasible.
    """

    def __init__(
        self,
        args: DescentArguments,
        ranks: Ranks,
        task: Task,
        method: Method,
        dual: PrimalDual[DescentProblem],
        problem: DescentProblem,
        names: Collection[str],
    ):
        self.args = args
        self.ranks = ranks
        self.task = task
        self.method = method
        self.dual = dual
        self.problem = problem
        self.names = names
        self.ranking = dual.problem if method.asks else DescentProblem(problem.depth)
        self.verdict: Verdict | None = None
        self.verdicts: dict[int, Verdict] = {}
        self.chooses = False
        self.restart()

    def restart(self) -> None:
        """Start over for a new run; the last verdict stays."""
        self.least = math.inf
        self.best_meets = False
        self.verdicts.clear()

    @property
    def in_warmup(self) -> bool:
        """Whether the constraints are not yet in force."""
        return self.method.asks and self.dual.steps <= self.dual.warmup

    def divisor(self, layers: LayerLosses) -> float | None:
        """The temperature that fits the logits best; None if none within the range does."""
        return self.ranks.broadcast(temperature(layers, self.task, self.ranking))

    def judge(
        self,
        layers: LayerLosses,
        prefix: str,
        predictions: Predictions | None,
        further: dict[str, float],
        *,
        tempers: bool,
    ) -> Judged:
        """Judge a model by its layers on an evaluation set. All ranks must call this.

        Args:
            layers: The losses of its layers.
            prefix: Of the metrics' names.
            predictions: Collects the last layer's predictions for ``compute_metrics``; None without it.
            further: Further metrics, without the prefix.
            tempers: Whether to judge a classifier at the temperature with which it would be saved.
        """
        divisor = 1.0
        if tempers and layers.logits is not None:
            divisor = self.divisor(layers) or 1.0
            layers = at_temperature(layers, self.task, divisor)
        judged = verdict(self.problem, layers, asked=self.method.asks)
        metrics = further | {
            "loss": layers.losses[:, -1].mean().item(),
            self.task.metric: layers.metrics[-1],
            "violation": judged.worst,
            "feasible": float(bool(judged.feasible)),
            "merit": self.ranking.merit(layers.losses.mean(0)).item(),
        }
        if predictions is not None:
            predictions.add_kept(layers)
            metrics |= {name.removeprefix(f"{prefix}_"): value for name, value in predictions.metrics().items()}
        # Ranks may differ by rounding.
        judged, metrics = self.ranks.broadcast((judged, metrics))
        return Judged(layers, divisor, judged, {f"{prefix}_{name}": value for name, value in metrics.items()})

    def add(self, step: int, verdicts: list[Verdict], losses: list[float]) -> bool:
        """Take the verdicts on the trainer's own data at a step.

        Args:
            step: The step.
            verdicts: One for each of the trainer's evaluation sets.
            losses: The last layer's loss on each.

        Returns:
            Whether the model is feasible, and its mean loss is the lowest of those that are.
        """
        self.verdict = self.verdicts[step] = max(
            verdicts, key=lambda each: (not each.feasible, math.isnan(each.worst), each.worst)
        )
        loss = sum(losses) / len(losses)
        feasible = self.method.asks and all(each.feasible for each in verdicts)
        if not (feasible and loss < self.least):
            return False
        self.least = loss
        return True

    def loaded(self, step: int) -> None:
        """Take back the verdict at the step of a model that was loaded; None if another process gave it."""
        self.verdict = self.verdicts.get(step)

    def is_best(self, metrics: dict[str, float], best: float | None) -> bool:
        """Whether a model is the best so far, see `beats_best`; always False during warm-up."""
        if not self.beats_best(metrics, best) or self.in_warmup:
            return False
        self.best_meets = self._meets(metrics)
        return True

    def beats_best(self, metrics: dict[str, float], best: float | None) -> bool:
        """Whether an evaluated model is better than the best so far.

        A model that meets its constraints on the evaluation data is better than one that does not, unless it is more
        than 1 % worse in ``metric_for_best_model``: an untrained model meets almost any constraint. Otherwise, and
        without constraints, the metric decides, as in Transformers.

        Args:
            metrics: The result of ``evaluate``.
            best: The metric of the best model so far; None if there is none.

        Raises:
            InputError: If the metric is not in it: only then are those of ``compute_metrics`` known.
        """
        if self.args.metric_for_best_model is None:
            return False
        self.args.check_best_metric(name.removeprefix("eval_") for name in metrics)
        value = metrics[f"eval_{self.args.metric_for_best_model.removeprefix('eval_')}"]
        if not math.isfinite(value) or best is None:
            return math.isfinite(value)
        allowance = COST_TOLERANCE * abs(best) * (self._meets(metrics) - self.best_meets)
        return value > best - allowance if self.args.greater_is_better else value < best + allowance

    def _meets(self, metrics: dict[str, float]) -> bool:
        """Whether a model meets its constraints on all of the trainer's evaluation sets."""
        names = (f"eval_{name}_feasible" if name else "eval_feasible" for name in self.names)
        return self.method.asks and all(metrics.get(name, 0.0) for name in names)

    def state_dict(self) -> dict[str, Any]:
        """The best result so far."""
        return {"best": self.least, "best_meets": self.best_meets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`, or its JSON."""
        self.least, self.best_meets = state["best"], state["best_meets"]
