"""Deep supervision with one weight for all exits."""

from typing import Any

from descend.methods.base import Method, Style


class Uniform(Method):
    """Deep supervision with one weight for all exits.

    Exit 0, the readout of the embedded input, is among them and trains the readout and the embedding. For UT, where it
    is the noisy input, it is a constant.
    """

    name = "uniform"
    about = "deep supervision, Σ_l c_l f_l with c_l = 1/(L+1). Exit 0, the embedded input, counts like any other"
    label = "Uniform weights"
    style = Style("#005c42", "#36e0a0", "s")
    order = 30

    @staticmethod
    def objective_weights(depth: int, settings: Any) -> list[float]:
        """1 / (L+1) each."""
        return [1 / (depth + 1)] * (depth + 1)
