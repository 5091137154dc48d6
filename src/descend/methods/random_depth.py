"""Plain training at a depth that is drawn anew at every step."""

from typing import Any

from descend.methods.base import Method, Style


class RandomDepth(Method):
    """The loss of one layer, drawn anew at every step from layers 1 … L, each as likely.

    It is how looped networks are trained to run for any number of iterations. All layers run in every step, and the
    gradient passes through those up to the drawn one. What is drawn depends on the seed and the step alone, so all
    ranks and a resumed run draw the same.
    """

    name = "random-depth"
    about = "the loss of one layer 1 … L, drawn anew at every step"
    label = "Random depth"
    style = Style("#007a87", "#6fdbe8", "8")
    order = 45

    inner = True

    @staticmethod
    def objective_weights(depth: int, settings: Any) -> list[float]:
        """1/L for layers 1 … L, the mean over the draws."""
        return [0.0] + [1 / depth] * depth

    def attach(self, trainer: Any) -> None:
        """Look up the depth."""
        super().attach(trainer)
        self.depth = trainer.objective.model.depth

    def weights(self, step: int, steps: int) -> list[float]:
        """1 for the layer that is drawn at a step."""
        from descend.seeds import Stream, derived

        drawn = 1 + derived(Stream.DEPTH, self.settings.seed, step) % self.depth
        return [float(layer == drawn) for layer in range(self.depth + 1)]
