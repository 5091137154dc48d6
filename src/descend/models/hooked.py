"""`layered`: read every layer of a user's own module through forward hooks."""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from descend.errors import InputError
from descend.models.calls import PAGE, Calls, first_tensor
from descend.models.layered import PLACES
from descend.models.modules import WrappedModel, changed, close, cuda_devices

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
    state: Callable[[Any], Tensor] = first_tensor,  # type: ignore[assignment]
    fixed: Mapping[str, Any] | None = None,
    iterations: str | None = None,
    first_layer: int = 0,
) -> "HookedModel":
    """Make any module whose blocks run one after the other a layered model, without a subclass.

    The module is not changed: forward hooks read its blocks while it computes, and are removed after each forward pass.
    The module itself is trained and saved.

    Args:
        module: The model. Its forward is called with the fields of a batch by name.
        blocks: The dotted name of the ``ModuleList``, ``ModuleDict``, ``Sequential`` or single block, or a list of
            modules in the order of their calls. Block l returns h_l, (B, …) and all of one shape, or a tuple or
            dictionary with it; h_0 is what the first block is called with.
        readout: Turns h_l of any l into a prediction, one tensor, so that ``readout(h_L)`` is the module's own output
            or, of a tuple or dictionary, a part of it (``logits`` if there are any): a submodule, its dotted name, or a
            function such as ``lambda h: module.head(module.norm(h))``.
        embeddings: The submodule whose output is x, (B, …), or its dotted name; it runs once in a forward pass. Or the
            name of an argument of ``forward`` that is x, such as a measurement. Noise is added to x. Needed only with
            noise; by default what ``module.get_input_embeddings()`` returns, if there is such a method.
        depth: L, the number of block calls in a forward pass. Needed only if blocks run more than once, and
            ``iterations`` does not say it.
        state: Gives h_l of a block's output, and alike of the argument that the next block is given: of dictionaries
            for example ``operator.itemgetter("x")``. By default the first tensor.
        fixed: Arguments of ``forward`` that are the same for all batches, by name, such as the physics of a
            measurement. They are moved to the module's device, and are neither trained nor saved.
        iterations: The attribute of the module, such as ``"max_iter"``, or the argument of its ``forward`` that says
            how often a single block runs. An evaluation can then go past L: see `evaluate`.
        first_layer: Where the default chain of constraints starts: 0, or 1 if exit 0 is the noisy input itself.

    Raises:
        InputError: If a name or module is not in ``module``, or a value is of the wrong kind. In the first forward
            pass, if a block takes or returns no state, the blocks are not called ``depth`` times one after the other, a
            state is changed in place, or ``readout(h_L)`` differs from the module's own output.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"expected a torch.nn.Module; got {type(module).__name__}.")
    names = _block_names(module, blocks)
    if iterations is not None:
        depth = _iterations(module, names, iterations, depth)
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
    taken = inspect.signature(module.forward).parameters
    if not isinstance(embeddings, str | None) or (embeddings is not None and not _is_argument(module, embeddings)):
        embeddings = _dotted_name(module, embeddings, "embeddings", f" Its forward takes {', '.join(taken)}.")
    if not callable(state):
        raise InputError(f"state must be a function that gives a tensor; got {state!r}.")
    if fixed is not None and not isinstance(fixed, Mapping):
        raise InputError(f"fixed must be a dictionary of arguments by name; got a {type(fixed).__name__}.")
    fixed = dict(fixed or {})
    _warn_untrained(module, fixed)
    unknown = [name for name in fixed if name not in taken]
    if unknown and not _takes_any(taken):
        raise InputError(
            f"fixed must name arguments of {type(module).__name__}.forward, which takes {', '.join(taken)}; got "
            f"{', '.join(map(str, unknown))}."
        )
    return HookedModel(module, names, readout, embeddings, depth, first_layer, state, fixed, iterations)


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
        state: Callable[[Any], Any],
        fixed: dict[str, Any],
        iterations: str | None,
    ):
        super().__init__(network)
        self.depth = depth
        self.first_layer = first_layer
        self._block_names = tuple(blocks)
        self._readout = readout
        self._state = state
        self._place: int | str | None = None
        self._fixed = fixed
        self._fixed_device: torch.device | None = None
        self._iterations = iterations
        self._embeddings = embeddings
        if embeddings is not None and _is_argument(network, embeddings):
            self.argument = nn.Identity()  # the argument passes through it, so that noise is added as to an embedding
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

    def blocks_of(self, layers: int) -> list[str]:
        """The names of the blocks that the first K calls run, each once; others may be among them."""
        return list(dict.fromkeys(self._block_names[:layers]))

    @contextmanager
    def running(self, iterations: int) -> Iterator[None]:
        """Let the block run another number of times inside the ``with`` block: ``depth`` is then this number.

        Args:
            iterations: At least 1.

        Raises:
            InputError: If the model does not know what says how often its block runs.
        """
        if self._iterations is None:
            raise InputError(
                f"{type(self.network).__name__} runs {self.depth} block calls, and descend.layered was not told what "
                "says how often. Of one block that runs several times give iterations, the name of an attribute or of "
                "an argument of forward."
            )
        with changed(self, depth=iterations):
            yield

    def get_input_embeddings(self) -> nn.Module:
        """The module whose output is x, to which noise is added; an identity if x is an argument of ``forward``.

        Raises:
            InputError: If none was named.
        """
        if self._embeddings is None:
            raise InputError(
                f"noise is added to the output of a submodule of {type(self.network).__name__}, or to an argument of "
                "its forward, and none was named. Give descend.layered its name as embeddings, or train and evaluate "
                "without noise."
            )
        return self.argument if hasattr(self, "argument") else self.network.get_submodule(self._embeddings)

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """The forward pass of the module inside, which is given the fixed arguments too."""
        return self._call(args, inputs)

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
        with self.recording() as record:
            output = self._output(inputs)
        return self.states(record, output)

    @contextmanager
    def recording(self) -> Iterator[Calls]:
        """Record the blocks' calls of a forward pass inside the ``with`` block; no hook is left after it."""
        record = Calls(self._state, self._place)
        gradients = torch.is_grad_enabled()

        def after(block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if gradients and not torch.is_grad_enabled():
                raise InputError(
                    f"{type(block).__name__} runs without gradients inside a forward pass that needs them, so inner "
                    "exits would not train. With activation checkpointing, choose use_reentrant=False."
                )
            record.end(block, output)

        with ExitStack() as hooks:
            for name, block in zip(dict.fromkeys(self._block_names), self.layer_modules, strict=True):
                # Before other hooks: noise between layers changes what the block is given.
                begin = partial(record.begin, name)
                hooks.enter_context(block.register_forward_pre_hook(begin, prepend=True, with_kwargs=True))
                hooks.enter_context(block.register_forward_hook(after))
            yield record

    def states(self, record: Calls, output: Any) -> tuple[Tensor, ...]:
        """h_0 … h_L of a recorded forward pass; what the blocks form is checked in the first one.

        Args:
            record: The blocks' calls, see `recording`.
            output: What the module returned.

        Raises:
            InputError: See `layered`.
        """
        if len(record.outputs) != self.depth:
            raise InputError(
                f"the blocks of {type(self.network).__name__} were called {len(record.outputs)} times in a forward "
                f"pass; expected depth = {self.depth} calls. Name the blocks that run, or give the depth, which must "
                f"be the same in every pass, or iterations. See {PAGE}."
            )
        record.refuse_changed(self.network)
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

    def _output(self, inputs: Any) -> Any:
        """The module's output for arguments by position, or by name, of which ``forward`` gets those that it names."""
        if not isinstance(inputs, Mapping):
            return self._call(inputs if isinstance(inputs, tuple) else (inputs,), {})
        named = self._parameters_of_forward
        if not _takes_any(named):
            inputs = {name: value for name, value in inputs.items() if name in named}
        return self._call((), inputs)

    def _call(self, args: Sequence[Any], inputs: Mapping[str, Any]) -> Any:
        """The output of the module for arguments by position and by name, beside the fixed ones."""
        named = self._parameters_of_forward
        by_position = dict(zip(named, args, strict=False))
        by_name = {name: value for name, value in self._fixed_on_device().items() if name not in by_position}
        by_name |= inputs
        if hasattr(self, "argument"):
            name = self._embeddings
            first = [self.argument(value) if each == name else value for each, value in by_position.items()]
            args = [*first, *args[len(first) :]]
            by_name |= {name: self.argument(by_name[name])} if name in by_name else {}
        if self._iterations is None:
            return self.network(*args, **by_name)
        if self._iterations in named:
            by_name |= {} if self._iterations in by_position | by_name else {self._iterations: self.depth}
            return self.network(*args, **by_name)
        owner, _, attribute = self._iterations.rpartition(".")
        with changed(attrgetter(owner)(self.network) if owner else self.network, **{attribute: self.depth}):
            return self.network(*args, **by_name)

    def _fixed_on_device(self) -> dict[str, Any]:
        """The fixed arguments, moved to the device of the module's parameters where they can be."""
        device = next((parameter.device for parameter in self.network.parameters()), None)
        if device is not None and device != self._fixed_device:
            self._fixed = {name: send_to_device(value, device) for name, value in self._fixed.items()}
            self._fixed_device = device
        return self._fixed

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
        self._verified, self._place = True, record.chained


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


def _iterations(module: nn.Module, blocks: list[str], name: str, depth: int | None) -> int:
    """L by the attribute or argument that says how often a block runs.

    Args:
        module: The user's module.
        blocks: The dotted names of its blocks.
        name: The dotted name of the attribute, or the name of the argument.
        depth: L as it was given.

    Raises:
        InputError: If there are several blocks, there is no such attribute or argument, or L is not its value.
    """
    kind = type(module).__name__
    if len(set(blocks)) > 1:
        raise InputError(
            f"iterations must say how often a single block of {kind} runs; got {len(set(blocks))} different blocks, "
            "which run once each. Leave it out."
        )
    taken = inspect.signature(module.forward).parameters
    value: Any = None
    if name in taken:
        value = depth if depth is not None else taken[name].default
    else:
        try:
            value = attrgetter(name)(module)
        except (AttributeError, TypeError):
            raise InputError(
                f"iterations must name an attribute of {kind} or an argument of its forward ({', '.join(taken)}); got "
                f"{name!r}."
            ) from None
    if isinstance(value, bool) or not isinstance(value, int) or (depth is not None and value != depth):
        given = "is not given" if depth is None else f"is {depth}"
        advice = "Make them equal."
        if not isinstance(value, int):
            advice = "Give depth." if name in taken else "Set it to a whole number."
        raise InputError(
            f"depth must be how often the block of {kind} runs, as {name} says; {name} is "
            f"{value if isinstance(value, int) else 'no whole number'} and depth {given}. {advice}"
        )
    return value


def _warn_untrained(module: nn.Module, fixed: Mapping[str, Any]) -> None:
    """Warn of fixed tensors, and parameters of fixed modules, that need gradients and are no weights of the module."""
    weights = {id(parameter) for parameter in module.parameters()}
    tensors = {str(name): value for name, value in fixed.items() if isinstance(value, Tensor)}
    for name, value in fixed.items():
        if isinstance(value, nn.Module):
            tensors |= {f"{name}.{inner}": parameter for inner, parameter in value.named_parameters()}
    untrained = [name for name, value in tensors.items() if value.requires_grad and id(value) not in weights]
    if untrained:
        logger.warning(
            f"fixed holds tensors that require a gradient and are no parameters of {type(module).__name__}, so that "
            f"they are not trained: {', '.join(untrained)}. Assign them to attributes of the module to train them; "
            "else call requires_grad_(False)."
        )


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


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a function takes arguments by names that it does not list."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _is_argument(module: nn.Module, name: str) -> bool:
    """Whether a name is an argument of a module's ``forward``, and of no submodule."""
    submodules = dict(module.named_modules(remove_duplicate=False))
    return name in inspect.signature(module.forward).parameters and name not in submodules


def _dotted_name(module: nn.Module, part: str | nn.Module, argument: str, more: str = "") -> str:
    """The dotted name of a submodule, given as its name or itself.

    Args:
        module: The user's module.
        part: The submodule.
        argument: The argument of `layered` that it is, for a message.
        more: What else to say there.
    """
    modules = {name: inner for name, inner in module.named_modules(remove_duplicate=False) if name}
    for name, inner in modules.items():
        if name == part or inner is part:
            return name
    near = ", ".join(name for name in modules if "." not in name) or "none"
    given = repr(part) if isinstance(part, str) else f"a {type(part).__name__} that is not inside it"
    raise InputError(
        f"{argument} must be a submodule of {type(module).__name__}, the module that is trained and saved, or its "
        f"dotted name; got {given}. Its direct submodules are {near}.{more}"
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
        f"Let readout do all that {name} does after its last block, such as a norm and pooling; state says which "
        f"tensor h_L is.{several} See {PAGE}."
    )


def _tensors(values: Any) -> list[Tensor]:
    """The tensors in a tensor, tuple, list or mapping, in their order."""
    if isinstance(values, Mapping):
        values = list(values.values())
    elif not isinstance(values, tuple | list):
        values = [values]
    return [value for value in values if isinstance(value, Tensor)]
