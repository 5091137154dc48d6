"""What an evaluation in training says of a model: the verdict on its layers, and its metrics by name."""

from dataclasses import dataclass

from descend.core import DescentProblem
from descend.evaluation.calibration import at_temperature, temperature
from descend.evaluation.layers import LayerLosses
from descend.evaluation.satisfaction import verdict
from descend.results import Verdict
from descend.tasks import Task
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


@dataclass
class Judge:
    """Judges the layers that were measured."""

    task: Task
    ranks: Ranks
    """The processes of the run, which all use the numbers of the main process."""
    problem: DescentProblem
    """The constraints; they are the same for all methods."""
    ranking: DescentProblem
    """The problem by which models are ranked."""
    asks: bool
    """Whether the method asks for the constraints themselves."""

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
        judged = verdict(self.problem, layers, asked=self.asks)
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
