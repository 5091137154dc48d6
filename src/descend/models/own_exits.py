"""Own exits: a copy of the readout for each inner layer, which learns beside the model.

They are a submodule of the Transformers model, ``exits``, with one dictionary of modules for each of the layers
0 … L−1, so the optimizer, sharding and ``save_pretrained`` treat them like the rest. Transformers alone ignores their
weights: the model in such a folder is the whole one with the readout of its last layer.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.utils import cached_file

from descend.errors import InputError

EXITS = "exits"
"""The submodule's name, and the first part of the names of its weights."""

MARK = "descend_own_exits"
"""The entry of ``config.json`` that says a model has own exits."""

TRANSLATOR = "translator"
"""The square matrix of a language model's own exit, between its norm and the wide head."""


class _Heard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: float | Tensor) -> Tensor:
        ctx.weight = weight
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return slope * ctx.weight, None


def heard(hidden: Tensor, weight: float | Tensor) -> Tensor:
    """A layer's output (…, H) for its own exit: what computed it hears of the exit's gradient ``weight`` times as much.

    The exit itself learns with weight 1, also where the weight is 0 and it is no more than a probe.
    """
    if isinstance(weight, Tensor) or weight:
        return _Heard.apply(hidden, weight)
    return hidden.detach()


def key_of(name: str) -> str:
    """The key of a readout's part in an own exit, of its dotted name in the model."""
    return name.replace(".", "_")


def load_saved(network: Any) -> None:
    """Load own exits from the folder, or the copy of the Hub's, that the model itself was loaded from.

    Raises:
        InputError: If their weights are not there.
    """
    source = network.config._name_or_path
    weights: dict[str, Tensor] = {}
    try:
        place = cached_file(source, "config.json", revision=getattr(network.config, "_commit_hash", None))
        for file in Path(place).parent.glob("*.safetensors"):  # type: ignore[arg-type]
            with safe_open(file, "pt") as content:
                names = [name for name in content.keys() if name.startswith(f"{EXITS}.")]  # noqa: SIM118 - no mapping
                weights |= {name.removeprefix(f"{EXITS}."): content.get_tensor(name) for name in names}
        getattr(network, EXITS).load_state_dict(weights)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"the model says that its layers have own exits; their weights are not in {source!r}. Load it from the "
            f"folder that Descend wrote, or delete {MARK} from config.json to read all layers by the last one's head."
        ) from error
