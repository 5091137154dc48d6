"""The contract of a layered model: L+1 layer outputs, all read by one readout."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from descend.errors import InputError

PLACES = "places"
"""The field of a task's inputs that says which of B·T tokens are targets, (N,)."""


class LayeredModel(nn.Module, ABC):
    """A model whose L+1 layer outputs are all read by one shared readout.

    To use a model of your own, call `descend.layered`, which needs no subclass. Derive from this class to compute layer
    outputs in another way.

    h_0 is the embedded input and h_l the output of block l before any final norm. A norm after the last block belongs
    to the readout. Three rules hold for every model: there are L+1 outputs; ``readout(h_L)`` equals the model's own
    output; ``predictions`` are the ``readout`` of ``layer_outputs``. Where layers have readouts of their own, as own
    exits or DUST's dictionaries, ``readout`` takes the number of the layer too.

    A subclass also provides two names, each as an attribute or as a property or method of the class:

    - ``depth``: L, the number of layers.
    - ``readout``: turns one layer's output into a prediction; a submodule or a method.

    Raises:
        InputError: If a submodule is assigned to a name of this contract, which would hide it.
    """

    first_layer: int = 0
    """Where the default chain of constraints starts; 1 for a model whose exit 0 is the noisy input itself, else 0."""

    if TYPE_CHECKING:
        # Not defined at run time: there `self.depth = 6` and `self.readout = nn.Linear(…)` fulfil the contract.
        @property
        def depth(self) -> int:
            """L, the number of layers."""

        def readout(self, hidden: Tensor) -> Tensor:
            """The prediction read from any one layer's output."""

    def __setattr__(self, name: str, value: Any) -> None:
        # torch stores a submodule beside the class attribute of the same name, and the class attribute wins silently.
        if isinstance(value, nn.Module) and name in CONTRACT and hasattr(type(self), name):
            raise InputError(
                f"{type(self).__name__} assigns a submodule to self.{name}, but {name} is defined on the class as part "
                f"of the LayeredModel contract and would hide it. Rename the submodule, or use descend.layered(module, "
                f"...), which needs no subclass."
            )
        super().__setattr__(name, value)

    @property
    def saved(self) -> Any:
        """The module that is trained and saved, which is the model itself or the user's model inside it."""
        return self

    @property
    def library(self) -> Any:
        """The module whose ``forward`` names the fields of a batch; by default the one that is saved."""
        return self.saved

    @property
    def limits(self) -> dict[str, int]:
        """Bounds on a sample by name, where they are known (``labels``, ``vocabulary``, ``length``)."""
        return {}

    @property
    def layer_modules(self) -> Iterable[nn.Module]:
        """The modules of the layers, by which parallel training shards; empty if layers are not modules."""
        return ()

    @property
    def iterative(self) -> bool:
        """Whether all L layers are iterations of one block with one set of weights."""
        return len([*self.layer_modules]) == 1 < self.depth

    @abstractmethod
    def get_input_embeddings(self) -> nn.Module:
        """The module whose output is x, to which noise is added: a word embedding, or an identity on the input."""

    def running(self, iterations: int) -> AbstractContextManager[None]:
        """Let the block of an unrolled network run another number of times inside a ``with`` block: ``depth`` is this.

        Args:
            iterations: At least 1.

        Raises:
            InputError: If layers have weights of their own, so that there are none for further ones.
        """
        raise InputError(
            f"{type(self.saved).__name__} has layers with weights of their own, {self.depth} in all, and no block that "
            "runs several times. Leave iterations out, or tie the weights."
        )

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """The model's own output; by default the last of `predictions`, of one argument or of fields by name."""
        *_, last = self.predictions(args[0] if args else inputs)
        return last

    @abstractmethod
    def layer_outputs(self, inputs: Any) -> tuple[Tensor, ...]:
        """h_0 … h_L, L+1 tensors of one shape, for the inputs that the task makes of a batch."""

    def predictions(self, inputs: Any) -> Iterator[Tensor]:
        """The prediction of every layer, L+1 tensors one after the other.

        A caller that takes each loss before it asks for the next prediction holds the gradients of one exit at a time
        in the backward pass. Models that compute the readout anyway for the next layer override this to share it.
        """
        return (self.readout(hidden) for hidden in self.layer_outputs(inputs))

    reads_together: bool = False
    """Whether `read_together` is implemented, so that outputs of several layers can be read in one batch."""

    def read_together(self, states: Sequence[Tensor], inputs: Any) -> Tensor:
        """The predictions (E, B, …) read from E layers' outputs in one batch."""
        raise NotImplementedError


CONTRACT = frozenset(
    {"depth", "readout", *(name for name in vars(LayeredModel) if not name.startswith("_"))},
)
"""The attributes and methods that the contract defines; submodules can't have these names."""
