"""Plain training (ERM)."""

from descend.methods.base import Method, Style


class ERM(Method):
    """The last exit's loss and nothing else."""

    name = "erm"
    about = "(3), plain training"
    label = "ERM"
    style = Style("#d55e00", "#ff9a52", "o")
    order = 10
