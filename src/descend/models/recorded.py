"""The calls of a module's blocks in one forward pass, and whether they are the chain that `layered` reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from descend.errors import InputError
from descend.models.modules import close

PAGE = "the guide 'Your own model' of the documentation"

STACKED = "return them as one tensor, such as torch.stack((mean, variance), -1), from readout and from forward"
"""What to do about a prediction of several tensors."""


@dataclass
class Calls:
    """The calls of blocks in a forward pass, in order.

    Attributes:
        names: The dotted name of the block that was called.
        inputs: The first tensor that it took.
        outputs: The first tensor that it returned.
    """

    names: list[str] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def called(self, name: str, block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record that a block was called."""
        self.names.append(name)
        self.inputs.append(_first_tensor([*args, *kwargs.values()], f"the input of {type(block).__name__}"))

    def returned(self, block: nn.Module, output: Any) -> None:
        """Record what a block returned."""
        self.outputs.append(_first_tensor(output, f"the output of {type(block).__name__}"))

    @property
    def states(self) -> tuple[Tensor, ...]:
        """h_0 … h_L."""
        return (self.inputs[0], *self.outputs)

    def refuse_no_chain(self, network: nn.Module, blocks: tuple[str, ...]) -> None:
        """Raise an error unless the blocks ran in the order of their names, each on the output of the one before.

        Args:
            network: The user's module.
            blocks: The dotted names of its blocks.

        Raises:
            InputError: If they did not, or their outputs have several shapes.
        """
        name = type(network).__name__
        order = zip(dict.fromkeys(blocks), dict.fromkeys(self.names), strict=False)
        for listed, called in order:
            if listed != called:
                raise InputError(
                    f"blocks must be in the order in which {name} calls them; got {listed} where it calls {called}. "
                    "Give a list in that order."
                )
        shapes = {tuple(state.shape) for state in self.states}
        if len(shapes) > 1:
            raise InputError(
                f"all layer outputs of {name} must have one shape, so that one readout reads them; got "
                f"{', '.join(map(str, sorted(shapes)))}. Name blocks between which the shape stays."
            )
        for layer, (given, got) in enumerate(zip(self.inputs[1:], self.outputs, strict=False), start=1):
            if given is not got and not close(given, got):
                raise InputError(
                    f"block {layer + 1} of {name} is not given what block {layer} returns. Each block's output must be "
                    f"the next one's input: compute what comes between, such as a residual sum, inside the block. See "
                    f"{PAGE}."
                )


def refuse_no_prediction(network: nn.Module, read: Any) -> None:
    """Raise an error unless ``readout(h_L)`` is one tensor without NaN."""
    if not isinstance(read, Tensor):
        raise InputError(
            f"readout must return one tensor; got {type(read).__name__}. Return the prediction alone. If it is several "
            f"tensors, {STACKED}."
        )
    if read.isnan().any():
        raise InputError(
            f"the prediction of {type(network).__name__} must be numbers; got NaN. Look for missing values in the "
            "samples, and for a division by zero."
        )


def refuse_other_output(network: nn.Module, read: Tensor, output: Any) -> None:
    """Raise an error unless ``readout(h_L)`` is what the module itself returns.

    Args:
        network: The user's module.
        read: ``readout(h_L)``.
        output: The module's output: the prediction, or a tuple or mapping with the prediction in it. Of a mapping with
            ``logits`` only these are compared.

    Raises:
        InputError: If no tensor of the output is equal to ``read``, except for rounding.
    """
    name = type(network).__name__
    tensors = _tensors(output["logits"] if isinstance(output, Mapping) and "logits" in output else output)
    if any(close(read, tensor) for tensor in tensors):
        return
    alike = [(read - tensor).abs().max().item() for tensor in tensors if tensor.shape == read.shape]
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensor"
    difference = f"values up to {min(alike):.3g} apart" if alike else f"a {type(output).__name__} with {shapes}"
    several = f" If the prediction is several tensors, {STACKED}." if len(tensors) > 1 and not alike else ""
    raise InputError(
        f"readout(h_L), shape {tuple(read.shape)}, must equal the output of {name} itself; got {difference}. "
        f"Let readout do all that {name} does after its last block, such as a norm and pooling.{several} See {PAGE}."
    )


def _first_tensor(values: Any, what: str) -> Tensor:
    tensors = _tensors(values)
    if not tensors:
        raise InputError(f"{what} must be a tensor, or start with one; got {type(values).__name__}.")
    return tensors[0]


def _tensors(values: Any) -> list[Tensor]:
    """The tensors in a tensor, tuple, list or mapping, in their order."""
    if isinstance(values, Mapping):
        values = list(values.values())
    return [value for value in (values if isinstance(values, tuple | list) else [values]) if isinstance(value, Tensor)]
