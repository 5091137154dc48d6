"""Saving any torch module as safetensors, its tied weights, eval mode and attributes; a layered model around one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from descend.errors import InputError, reason
from descend.models.layered import LayeredModel

WEIGHTS_FILE = "model.safetensors"


def save_module(
    module: nn.Module, folder: str | Path, state_dict: dict[str, Tensor] | None = None, **options: Any
) -> None:
    """Save a module with its ``save_pretrained`` method, or its state dict as ``model.safetensors``.

    Args:
        module: The user's module. Load it again with ``module.load_state_dict(load_file(folder / "model.safetensors"),
            strict=False)``; a tied weight is stored once.
        folder: Created if it does not exist.
        state_dict: The weights, if they were gathered from several processes.
        **options: Arguments of a Hugging Face model's ``save_pretrained``.
    """
    pretrained = getattr(module, "save_pretrained", None)
    if pretrained is not None:
        pretrained(folder, state_dict=state_dict, **options)
        return
    refuse_unsavable(module)
    tied = tied_names(module)
    weights = module.state_dict() if state_dict is None else state_dict
    tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items() if name not in tied}
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_file(tensors, Path(folder) / WEIGHTS_FILE, metadata={"format": "pt"})


def check_savable(module: nn.Module, tokenizer: Any = None) -> None:
    """Try to save what a model is saved with in a temporary folder; of its weights it looks at what kind they are.

    Args:
        module: Any module; of Transformers' models the configurations are saved.
        tokenizer: Its tokenizer, or a processor of another kind; None without one.

    Raises:
        InputError: If its weights, its configuration, its generation config or the tokenizer can't be saved.
    """
    refuse_unsavable(module)
    parts = {"tokenizer": tokenizer}
    if isinstance(module, PreTrainedModel):
        parts |= {"config": module.config, "generation_config": getattr(module, "generation_config", None)}
    with TemporaryDirectory() as folder:
        for name, part in parts.items():
            try:
                if part is not None:
                    part.save_pretrained(folder)
            except OSError:
                raise
            except Exception as error:
                raise InputError(
                    f"the model can't be saved with its {name}: {' '.join(str(error).split())} Change it first."
                ) from error


def refuse_unsavable(module: nn.Module) -> None:
    """Raise an error for weights that safetensors can't hold, without writing or copying them.

    Args:
        module: Any module. Of one with its own ``save_pretrained``, such as a model with adapters, only what is trained
            is looked at; Transformers knows how to save what it has quantized.

    Raises:
        InputError: If an entry of the state dict is no tensor, is sparse or of a type that can't be written, or shares
            memory with another one that is not the same parameter.
    """
    name = type(module).__name__
    if not hasattr(module, "save_pretrained"):
        tied = tied_names(module)
        state = {key: value for key, value in module.state_dict().items() if key not in tied}
        if shared := _overlapping(state):
            raise InputError(
                f"{name} can't be saved: {' and '.join(shared)} share memory, and are not one parameter. Tie weights "
                "by assigning the parameter itself, or give one of them a copy (.clone())."
            )
    elif isinstance(module, PreTrainedModel) and not getattr(module, "_hf_peft_config_loaded", False):
        if getattr(module, "hf_quantizer", None) is not None:
            return
        left_out = {*(module._keys_to_ignore_on_save or ())}
        state = {key: value for key, value in module.state_dict().items() if key not in left_out}
        try:
            state = remove_tied_weights_from_state_dict(state, module)
        except RuntimeError as error:
            raise InputError(f"{name} can't be saved: {' '.join(str(error).split())}") from None
    else:
        state = {key: value for key, value in module.named_parameters() if value.requires_grad}
    kinds: dict[tuple[type, torch.dtype], str] = {}
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"{name} can't be saved: {key} in its state dict is a {type(value).__name__}, and only tensors can be. "
                "Keep it in a buffer, or leave it out of the state dict (get_extra_state, state_dict)."
            )
        if value.layout != torch.strided:
            raise InputError(
                f"{name} can't be saved: {key} is a sparse tensor ({value.layout}). Make it dense (.to_dense()), or "
                "register the buffer with persistent=False."
            )
        kinds.setdefault((type(value), value.dtype), key)
    for (_, dtype), key in kinds.items():
        try:
            save({key: _corner(state[key])})
        except Exception as error:  # each kind of tensor has its own
            raise InputError(
                f"{name} can't be saved: {key}, a {type(state[key]).__name__} of {dtype}, can't be written as "
                f"safetensors: {reason(error)} Dequantize it, or train adapters beside it."
            ) from None


def _corner(value: Tensor) -> Tensor:
    """At most one number of a tensor, of its class and type, on the CPU; nothing of one without values."""
    local = value.to_local() if hasattr(value, "to_local") else value
    corner = local.detach()[(slice(0, 1),) * local.dim()]
    return torch.empty_like(corner, device="cpu") if local.is_meta else corner.cpu().contiguous()


def _overlapping(state: Mapping[str, Any]) -> list[str]:
    """The names of two tensors that have memory in common; empty if no two have."""
    spans = []
    for name, value in state.items():
        if isinstance(value, Tensor) and value.layout == torch.strided and value.is_contiguous() and not value.is_meta:
            local = value.to_local() if hasattr(value, "to_local") else value
            if local.nbytes:
                spans.append((str(local.device), local.data_ptr(), local.data_ptr() + local.nbytes, name))
    for first, second in pairwise(sorted(spans)):  # if any two overlap, two neighbours do
        if first[0] == second[0] and second[1] < first[2]:
            return [first[3], second[3]]
    return []


def tied_names(module: nn.Module) -> set[str]:
    """The names in a state dict of tensors that an earlier name in it already has."""
    tensors = module.state_dict(keep_vars=True)
    first = {id(value): name for name, value in reversed(tensors.items())}
    return {*tensors} - {*first.values()}


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode inside the ``with`` block; after it the mode of each submodule is restored."""
    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for each, mode in modes.items():
            each.training = mode


@contextmanager
def changed(thing: Any, **values: Any) -> Iterator[None]:
    """Attributes of an object inside the ``with`` block; after it they are as before, or gone if it had none."""
    before = {name: vars(thing)[name] for name in values.keys() & vars(thing).keys()}
    vars(thing).update(values)
    try:
        yield
    finally:
        for name in values:
            vars(thing).pop(name)
        vars(thing).update(before)


def close(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal except for rounding in the coarser of their types; a NaN equals a NaN."""
    if first.shape != second.shape:
        return False
    if first.is_complex() and second.is_complex():
        first, second = (torch.view_as_real(each.resolve_conj()) for each in (first, second))
    if not first.is_floating_point():
        return torch.equal(first, second)
    coarser = max(torch.finfo(first.dtype).eps, torch.finfo(second.dtype).eps)
    tolerance = 0.1 * coarser**0.5
    scale = 1e-6
    if second.numel():
        largest = second.detach().nan_to_num(0.0, 0.0, 0.0).abs().max()
        scale = max(float(largest), scale)
    atol = tolerance * scale
    return torch.allclose(first.double(), second.double(), rtol=tolerance, atol=atol, equal_nan=True)


def cuda_devices(module: nn.Module) -> list[int]:
    """The indices of the CUDA devices that hold a module's parameters, for `torch.random.fork_rng`."""
    return sorted({each.device.index or 0 for each in module.parameters() if each.device.type == "cuda"})


class WrappedModel(LayeredModel):
    """A layered model around another module, `network`, which is the one that is trained and saved."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self.training = network.training  # a loaded model is in eval mode

    @property
    def saved(self) -> Any:
        """The module inside."""
        return self.network

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """The forward pass of the module inside."""
        return self.network(*args, **inputs)
