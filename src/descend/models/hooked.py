"""`layered`: read every layer of a user's own module through forward hooks."""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from descend.errors import InputError
from descend.models.layered import PLACES
from descend.models.modules import WrappedModel, close, cuda_devices

PAGE = "the guide 'Your own model' of the documentation"

STACKED = "return them as one tensor, such as torch.stack((mean, variance), -1), from readout and from forward"
"""What to do about a prediction of several tensors."""

logger = logging.getLogger(__name__)


def layered(
    module: nn.Module,
    *,
    blocks: str | Sequence[nn.Module],
    readout: str | nn.Module | Callable[[Tensor], Tensor],
    embeddings: str | nn.Module | None = None,
    depth: int | None = None,
    first_layer: int = 0,
) -> "HookedModel":
    """Make any module whose blocks run one after the other a layered model, without a subclass.

    The module is not changed: forward hooks read its blocks while it computes, and are removed after each forward pass.
    The module itself is trained and saved.

    Args:
        module: The model. Its forward is called with the fields of a batch by name.
        blocks: The dotted name of the ``ModuleList``, ``ModuleDict``, ``Sequential`` or single block, or a list of
            modules in the order of their calls. Block l returns h_l, (B, …) and all of one shape, or a tuple that
            starts with it; h_0 is what the first block is called with.
        readout: Turns h_l of any l into a prediction, one tensor, so that ``readout(h_L)`` is the module's own output
            or, of a tuple or dictionary, a part of it (``logits`` if there are any): a submodule, its dotted name, or a
            function such as ``lambda h: module.head(module.norm(h))``.
        embeddings: The submodule whose output is x, (B, …), or its dotted name. It runs once in a forward pass. Noise
            is added there. Needed only with noise; by default what ``module.get_input_embeddings()`` returns, if there
            is such a method.
        depth: L, the number of block calls in a forward pass. Needed only if blocks run more than once.
        first_layer: Where the default chain of constraints starts: 0, or 1 if exit 0 is the noisy input itself.

    Raises:
        InputError: If a name or module is not in ``module``, or a value is of the wrong kind. In the first forward
            pass, if the blocks are not called ``depth`` times one after the other, or ``readout(h_L)`` differs from the
            module's own output.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"expected a torch.nn.Module; got {type(module).__name__}.")
    names = _block_names(module, blocks)
    if depth is None:
        depth = len(names)
    elif isinstance(depth, bool) or not isinstance(depth, int) or depth < len(set(names)):
        raise InputError(
            f"depth must be the number of block calls in a forward pass, at least {len(set(names))} for as many "
            f"blocks; got {depth!r}."
        )
    if not 0 <= first_layer < depth:
        raise InputError(f"first_layer must be 0 to depth - 1 = {depth - 1}; got {first_layer}.")
    if isinstance(readout, nn.Module) or not callable(readout):
        readout = _dotted_name(module, readout, "readout")
    if embeddings is None:
        getter = getattr(module, "get_input_embeddings", None)
        embeddings = getter() if callable(getter) else None
    if embeddings is not None:
        embeddings = _dotted_name(module, embeddings, "embeddings")
    return HookedModel(module, names, readout, embeddings, depth, first_layer)


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
        for listed, called in zip(dict.fromkeys(blocks), dict.fromkeys(self.names), strict=False):
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


class HookedModel(WrappedModel):
    """A user's module whose layers are read through forward hooks. Create one with `layered`.

    It stores modules by their dotted names, so that a copy of the model reads the copy's blocks.
    """

    depth: int
    """L, the number of block calls in a forward pass."""

    def __init__(
        self,
        network: nn.Module,
        blocks: Sequence[str],
        readout: str | Callable[[Tensor], Tensor],
        embeddings: str | None,
        depth: int,
        first_layer: int,
    ):
        super().__init__(network)
        self.depth = depth
        self.first_layer = first_layer
        self._block_names = tuple(blocks)
        self._readout = readout
        self._embeddings = embeddings
        self._verified = False

    @property
    def layer_modules(self) -> list[nn.Module]:
        """The blocks, each once.

        Raises:
            InputError: If the module has lost one since it was wrapped.
        """
        try:
            return [self.network.get_submodule(name) for name in dict.fromkeys(self._block_names)]
        except AttributeError as error:
            raise InputError(
                f"{type(self.network).__name__} has changed since descend.layered wrapped it: {error}. Wrap it again."
            ) from None

    def get_input_embeddings(self) -> nn.Module:
        """The module whose output is x, to which noise is added.

        Raises:
            InputError: If none was named.
        """
        if self._embeddings is None:
            raise InputError(
                f"noise is added to the output of a submodule of {type(self.network).__name__}, and none was named. "
                "Give descend.layered its dotted name as embeddings, or train and evaluate without noise."
            )
        return self.network.get_submodule(self._embeddings)

    def readout(self, hidden: Tensor) -> Tensor:
        """The prediction read from one layer's output."""
        if isinstance(self._readout, str):
            return self.network.get_submodule(self._readout)(hidden)
        return self._readout(hidden)

    def layer_outputs(self, inputs: Any) -> tuple[Tensor, ...]:
        """h_0 … h_L, read while the module computes its own output.

        Args:
            inputs: Arguments of ``forward``: a mapping by name, without the fields that it does not name, or a tuple by
                position.

        Raises:
            InputError: See `layered`.
        """
        record, output = self._run(inputs)
        if len(record.outputs) != self.depth:
            raise InputError(
                f"the blocks of {type(self.network).__name__} were called {len(record.outputs)} times in a forward "
                f"pass; expected depth = {self.depth} calls. Name the blocks that run, or give descend.layered the "
                f"depth. See {PAGE}."
            )
        if not self._verified:
            self._verify(record, output)
        return record.states

    def predictions(self, inputs: Any) -> Iterator[Tensor]:
        """The prediction of every layer; at the N ``places`` of B·T tokens, if a task puts them into the inputs.

        A task with targets inside a text, such as `TokenClassification`, does so: the readout then sees (N, H).
        """
        if not self.reads_places(inputs):
            return super().predictions(inputs)
        given = {name: value for name, value in inputs.items() if name != PLACES}
        return (self.readout(hidden.flatten(0, 1)[inputs[PLACES]]) for hidden in self.layer_outputs(given))

    def reads_places(self, inputs: Any) -> bool:
        """Whether `predictions` are those at the ``places`` of some inputs, which the module itself does not take."""
        return isinstance(inputs, Mapping) and PLACES in inputs and PLACES not in self._parameters_of_forward

    def _run(self, inputs: Any) -> tuple[Calls, Any]:
        """The blocks' calls in a forward pass, and its output; no hook is left after it.

        Args:
            inputs: Arguments by position, or those by name, of which ``forward`` is given those that it names.
        """
        record = Calls()
        gradients = torch.is_grad_enabled()

        def before(name: str, block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            record.names.append(name)
            record.inputs.append(_first_tensor([*args, *kwargs.values()], f"the input of {type(block).__name__}"))

        def after(block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if gradients and not torch.is_grad_enabled():
                raise InputError(
                    f"{type(block).__name__} runs without gradients inside a forward pass that needs them, so inner "
                    "exits would not train. With activation checkpointing, choose use_reentrant=False."
                )
            record.outputs.append(_first_tensor(output, f"the output of {type(block).__name__}"))

        with ExitStack() as hooks:
            for name, block in zip(dict.fromkeys(self._block_names), self.layer_modules, strict=True):
                hooks.enter_context(block.register_forward_pre_hook(partial(before, name), with_kwargs=True))
                hooks.enter_context(block.register_forward_hook(after))
            if not isinstance(inputs, Mapping):
                return record, self.network(*inputs) if isinstance(inputs, tuple) else self.network(inputs)
            named = self._parameters_of_forward
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in named.values()):
                inputs = {name: value for name, value in inputs.items() if name in named}
            return record, self.network(**inputs)

    @property
    def _parameters_of_forward(self) -> Mapping[str, inspect.Parameter]:
        """What the module's ``forward`` names."""
        return inspect.signature(self.network.forward).parameters

    @torch.no_grad()
    def _verify(self, record: Calls, output: Any) -> None:
        """Check once that the blocks form a chain and that ``readout(h_L)`` is the module's own output."""
        record.refuse_no_chain(self.network, self._block_names)
        with torch.random.fork_rng(devices=cuda_devices(self.network)):
            read = self.readout(record.outputs[-1])
            again = self.readout(record.outputs[-1])
        refuse_no_prediction(self.network, read)
        if self.network.training and not close(read, again):
            return  # the readout has dropout: compare in the first pass in eval mode
        refuse_other_output(self.network, read, output)
        self._verified = True


def _block_names(module: nn.Module, blocks: str | Sequence[nn.Module]) -> list[str]:
    """The dotted names of the blocks, in the order of their calls; a block that is listed twice is called twice."""
    part: Any = module.get_submodule(_dotted_name(module, blocks, "blocks")) if isinstance(blocks, str) else blocks
    if isinstance(part, nn.ModuleDict):
        part = part.values()
    names = [_dotted_name(module, block, "blocks") for block in (part if isinstance(part, Iterable) else [part])]
    if not names:
        raise InputError("blocks must hold at least one module; got none.")
    if left_out := _left_out(module, names):
        logger.warning(
            f"blocks leave out {', '.join(left_out)}, which {'is' if len(left_out) == 1 else 'are'} like {names[0]} "
            f"and before it: h_0 is the input of {names[0]}, and no constraint holds for what runs before."
        )
    return names


def _left_out(module: nn.Module, names: Sequence[str]) -> list[str]:
    """The modules before the first block, in the same container, that are like it and not named."""
    first = module.get_submodule(names[0])
    parent, _, _ = names[0].rpartition(".")
    container = module.get_submodule(parent)
    left_out: list[str] = []
    if not isinstance(container, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        return left_out
    for child_name, child in container.named_children():
        name = f"{parent}.{child_name}" if parent else child_name
        if name == names[0]:
            break
        if name not in names and _shapes(child) == _shapes(first):
            left_out.append(name)
    return left_out


def _shapes(block: nn.Module) -> tuple[type, list[torch.Size]]:
    """The class of a block and the shapes of its parameters, which all blocks of one stack share."""
    return type(block), [parameter.shape for parameter in block.parameters()]


def _dotted_name(module: nn.Module, part: str | nn.Module, argument: str) -> str:
    """The dotted name of a submodule, given as its name or itself."""
    modules = {name: inner for name, inner in module.named_modules(remove_duplicate=False) if name}
    for name, inner in modules.items():
        if name == part or inner is part:
            return name
    near = ", ".join(name for name in modules if "." not in name) or "none"
    given = repr(part) if isinstance(part, str) else f"a {type(part).__name__} that is not inside it"
    raise InputError(
        f"{argument} must be a submodule of {type(module).__name__}, the module that is trained and saved, or its "
        f"dotted name; got {given}. Its direct submodules are {near}."
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
    elif not isinstance(values, tuple | list):
        values = [values]
    return [value for value in values if isinstance(value, Tensor)]
