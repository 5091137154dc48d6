"""Deep supervision with weights that grow with depth."""

from dataclasses import dataclass
from typing import Any

from descend.declared import NotNegative, setting
from descend.methods.base import Method, Style


class Linear(Method):
    """Deep supervision with a weight in proportion to l, so that exit 0 has none.

    Inner layers weigh c·l/L against 1 of the last one, with c the setting ``inner_weight``; the sum of all is 1.
    """

    name = "linear"
    about = "deep supervision with c_l ∝ l, so exit 0 has weight 0; the default of `text`, `image`, `embed`"
    label = "Linear weights"
    style = Style("#74205f", "#f3bfe0", "^")
    order = 40

    @dataclass
    class Settings:
        """The setting of linear weights.

        Attributes:
            inner_weight: c, the weight of inner layers beside the last one, w_l = c·l/L.
        """

        inner_weight: NotNegative = setting(1.0, "linear: weight c·l/L of inner layers")

    @staticmethod
    def objective_weights(depth: int, settings: Any) -> list[float]:
        """c·l/L and 1, divided by their sum."""
        weights = [settings.inner_weight * layer / depth for layer in range(depth)] + [1.0]
        return [weight / sum(weights) for weight in weights]
