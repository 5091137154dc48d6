"""Layerwise descent constraints."""

from descend.methods.base import Method, Style


class Constrained(Method):
    """Layerwise descent constraints, eq. (4), which the model must meet."""

    name = "constrained"
    about = "(4)"
    label = "Constrained"
    style = Style("#0072b2", "#5fb8f0", "D")
    order = 0

    constrained = True
    asks = True
