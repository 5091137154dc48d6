"""The best model of a run: which evaluated model is better than those before, and whether it met its constraints."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from descend.core import DescentProblem, PrimalDual
from descend.evaluation.calibration import COST_TOLERANCE
from descend.methods import Method
from descend.results import Verdict
from descend.training.config import DescentArguments


@dataclass
class Selection:
    """Chooses the best model of a run among those that are evaluated."""

    args: DescentArguments
    method: Method
    """Says whether the constraints are asked for."""
    dual: PrimalDual[DescentProblem]
    """Knows the problem and the warm-up."""
    names: Collection[str]
    """The names of the trainer's evaluation sets; a single one has the empty name."""
    verdict: Verdict | None = None
    """That of the last evaluation of the trainer's own data, or of the best model if it was loaded."""
    chooses: bool = False
    """Whether the last evaluation was on the trainer's own data; early stopping counts no other."""
    least: float = math.inf
    """The lowest loss of a feasible model."""
    best_meets: bool = False
    """Whether the best model so far is feasible."""
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    """Those of this process's evaluations of the trainer's own data, by step."""

    def restart(self) -> None:
        """Start over for a new run; the last verdict stays."""
        self.least, self.best_meets = math.inf, False
        self.verdicts.clear()

    @property
    def problem(self) -> DescentProblem:
        """The problem by which models are ranked: the one that training solves, or ERM where nothing is asked."""
        return self.dual.problem if self.method.asks else DescentProblem(self.dual.problem.depth)

    @property
    def in_warmup(self) -> bool:
        """Whether the constraints are not yet in force."""
        return self.method.asks and self.dual.steps <= self.dual.warmup

    def judged(self, step: int, verdicts: list[Verdict], losses: list[float]) -> bool:
        """Take the verdicts on the trainer's own data at a step.

        Args:
            step: The step.
            verdicts: One for each of the trainer's evaluation sets.
            losses: The last layer's loss on each.

        Returns:
            Whether the model is feasible, and its mean loss is the lowest of those that are.
        """
        self.verdict = self.verdicts[step] = max(verdicts, key=lambda each: each.worst)
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
