"""Layerwise descent constraints as a means to useful layers."""

from descend.methods.base import Method, Style


class Useful(Method):
    """Layerwise descent constraints as a means to useful layers: models are judged by their layers' quality alone."""

    name = "useful"
    about = "(4) with bounds from the losses, as a means to useful layers"
    label = "Useful layers"
    style = Style("#0033ee", "#1188ff", ">")
    order = 20

    constrained = True
