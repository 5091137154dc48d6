"""ERM with own exits beside it."""

from descend.methods.base import Method, Style


class Probe(Method):
    """ERM, and own exits of the inner layers that learn beside it: the model hears nothing of them."""

    name = "probe"
    about = "(3), and beside it an exit for each layer, whose gradient does not reach the model"
    label = "ERM, own exits beside it"
    style = Style("#802000", "#c04040", "d")
    order = 90

    own_exits = True
