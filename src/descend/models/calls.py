"""The calls of a network's blocks in one forward pass, and the states h_0 … h_L that they take and return."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from descend.errors import InputError, reason
from descend.models.modules import close

PAGE = "the guide 'Your own model' of the documentation"


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor in a tensor, tuple, list or mapping, or in one of those inside it; None without one."""
    if isinstance(value, Tensor):
        return value
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, tuple | list):
        parts = value
    return next((tensor for part in parts if (tensor := first_tensor(part)) is not None), None)


@dataclass
class Calls:
    """The calls of blocks in a forward pass, in order.

    Attributes:
        state: Gives h_l from an argument of a block, or from what the block returns.
        place: Which argument holds the state, by position or name; None if that is not known yet.
        names: The dotted name of the block that was called.
        inputs: The states in its arguments, by position or name.
        outputs: The state that it returned.
        versions: Torch's count of in-place changes, of the first call's inputs and of the outputs, at that time.
    """

    state: Callable[[Any], Any] = first_tensor
    place: int | str | None = None
    names: list[str] = field(default_factory=list)
    inputs: list[dict[int | str, Tensor]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    versions: list[tuple[Tensor, int]] = field(default_factory=list)

    def begin(self, name: str, block: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Add a call's arguments; one of them holds the state.

        Raises:
            InputError: If none does.
        """
        given: dict[int | str, Any] = dict(enumerate(args)) | dict(kwargs)
        if self.place is not None and self.place in given:
            given = {self.place: given[self.place]}
        found = {place: self._state_of(argument) for place, argument in given.items()}
        states = {place: state for place, state in found.items() if isinstance(state, Tensor)}
        if not states:
            raise self._no_state(f"what {type(block).__name__} is called with", [*given.values()], [*found.values()])
        if not self.names:
            self.versions += [(state, _version(state)) for state in states.values()]
        self.names.append(name)
        self.inputs.append(states)

    def end(self, block: nn.Module, output: Any) -> None:
        """Add what a call returned.

        Raises:
            InputError: If it holds no state.
        """
        state = self._state_of(output)
        if not isinstance(state, Tensor):
            raise self._no_state(f"the output of {type(block).__name__}", [output], [state])
        self.outputs.append(state)
        self.versions.append((state, _version(state)))

    @property
    def chained(self) -> int | str:
        """Which argument holds the output of the call before; the first one with a state if none does."""
        places = list(self.inputs[0])
        calls = list(zip(self.inputs[1:], self.outputs, strict=False))
        for place in places:
            if calls and all(states.get(place) is output for states, output in calls):
                return place
        return places[0]

    @property
    def given(self) -> list[Tensor]:
        """The state that each call was given."""
        place = self.chained
        return [states.get(place, next(iter(states.values()))) for states in self.inputs]

    @property
    def states(self) -> tuple[Tensor, ...]:
        """h_0 … h_L."""
        return (self.given[0], *self.outputs)

    def refuse_changed(self, network: nn.Module) -> None:
        """Raise an error if a state was changed in place after a block took or returned it.

        Args:
            network: The user's module.

        Raises:
            InputError: If one was: its exit would read another value.
        """
        states = self.states
        for state, version in self.versions:
            layer = next((layer for layer, each in enumerate(states) if each is state), None)
            if layer is not None and _version(state) != version:
                what = f"the output of block {layer}" if layer else "the input of block 1"
                raise InputError(
                    f"h_{layer} of {type(network).__name__}, {what}, is changed in place later in the forward pass, so "
                    f"that exit {layer} would read another value. Replace in-place operations (+=, add_, "
                    "inplace=True) by those that make a new tensor."
                )

    def refuse_no_chain(self, network: nn.Module, blocks: tuple[str, ...]) -> None:
        """Raise an error unless the blocks ran in the order of their names, each on the state of the one before.

        Args:
            network: The user's module.
            blocks: The dotted names of its blocks.

        Raises:
            InputError: If they did not, or their states have several shapes.
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
                f"{', '.join(map(str, sorted(shapes)))}. Name blocks between which the shape stays, or give "
                "state=, which takes h_l from a block's output and from its input alike."
            )
        for layer, (given, got) in enumerate(zip(self.given[1:], self.outputs, strict=False), start=1):
            if given is not got and not close(given, got):
                raise InputError(
                    f"block {layer + 1} of {name} is not given what block {layer} returns. Each block's output must be "
                    f"the next one's input: compute what comes between, such as a residual sum, inside the block. See "
                    f"{PAGE}."
                )

    def _state_of(self, value: Any) -> Any:
        """What ``state`` gives for a value, or the error by which it says that the value holds no state."""
        try:
            if self.place is not None or self.state is first_tensor:
                return self.state(value)
            with warnings.catch_warnings(action="ignore"):  # torch warns of measurement["x"] before its error
                return self.state(value)
        except Exception as error:  # the user's own function, of an argument that may be another one
            return error

    def _no_state(self, what: str, values: list[Any], results: list[Any]) -> InputError:
        """The error for values without a state, which says why of the first."""
        got = ", ".join(type(value).__name__ for value in values) or "nothing"
        if self.state is first_tensor:
            return InputError(f"{what} must be or hold a tensor; got {got}.")
        first = next(iter(results), None)
        why = f"a {type(first).__name__}"
        if isinstance(first, Exception):
            why = f"{type(first).__name__}: {reason(first).rstrip('.')}"
        return InputError(
            f"state must give a tensor of {what} ({got}); got {why}. It is called with a block's argument and with "
            "what the block returns, which must be alike, such as two dictionaries."
        )


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place; 0 of tensors of inference mode, for which torch does not count."""
    return 0 if tensor.is_inference() else tensor._version
