"""Load models from folders and the Hub: bounded sizes, safetensors only, no code, no pickles."""

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig
from transformers.utils import logging

from descend.errors import InputError, reason, refuse
from descend.reading import PICKLES, read_json

MOST_LAYERS = 1024
MOST_LABELS = 2**16
MOST_SIZE = 2**24
"""Largest value of any other whole number in a ``config.json``, such as the size of a vocabulary."""

_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth")
_BLOCKS = (*_LAYERS, "num_hidden_groups", "inner_group_num", "num_experts")
"""Fields that multiply the number of modules, which are built before any weight is read."""


def load_model(kind: Any, source: str | Path, what: str, expected: str, **settings: Any) -> Any:
    """Load a model, or its configuration or image processor, from a folder or the Hub.

    Args:
        kind: A class with ``from_pretrained``, such as an Auto class.
        source: The folder or the name on the Hub.
        what: The name of the object in an error, such as "a model".
        expected: What the folder must hold, for the error.
        **settings: Arguments of `from_pretrained`.

    Raises:
        InputError: If it can't be loaded, a size in its ``config.json`` is too large for any model, or its weights are
            pickles.
    """
    path = Path(source).expanduser()
    if not path.exists() and (path.is_absolute() or str(source).startswith(".") or len(path.parts) > 2):
        raise InputError(f"can't load {what} from {str(source)!r}: expected {expected}. There is no such folder.")
    try:
        refuse_unsafe(source)
        # Set trust_remote_code: by default Transformers asks on the terminal whether to run a folder's code.
        # No tables of new and unused weights: callers know which head is new, and check the rest.
        with ExitStack() as after:
            after.callback(logging.set_verbosity, logging.get_verbosity())
            logging.set_verbosity_error()
            return kind.from_pretrained(source, trust_remote_code=False, use_safetensors=True, **settings)
    except InputError:
        raise
    # Any exception: a wrong value in config.json fails wherever it is first used.
    except Exception as error:
        why = reason(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {reason(error)}"
        raise InputError(f"can't load {what} from {str(source)!r}: expected {expected}. {why}") from None


def refuse_unsafe(source: str | Path) -> None:
    """Check the sizes in a model's ``config.json`` and its weight files before the model is built.

    Raises:
        InputError: If a size is not a number or too large for any model, or the weights are pickles, which can run code
            when opened.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return _refuse_sizes(PreTrainedConfig.get_config_dict(source)[0], str(source))
    weights = sorted(folder.glob("*.safetensors"))
    pickles = sorted(file for file in folder.iterdir() if file.suffix in PICKLES and file.name != "training_args.bin")
    if pickles and not weights:
        raise InputError(
            f"{pickles[0]} is no safetensors; a pickle can run code when it is opened. Where you trust it, convert it: "
            "load the model in a script and save_pretrained it again."
        )
    if (folder / "adapter_config.json").is_file():
        adapter = read_json(folder / "adapter_config.json")
        base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
        if not isinstance(base, str) or not (folder / "adapter_model.safetensors").is_file():
            raise InputError(f"{folder} must hold adapter_model.safetensors, and the name of the model it is for.")
        if not (Path(base) / "adapter_config.json").exists():  # adapters of adapters would recurse
            refuse_unsafe(base)
    if (folder / "config.json").is_file():
        config = read_json(folder / "config.json")
        _refuse_sizes(config, str(folder / "config.json"))
        layers = max((config[name] for name in _LAYERS if config.get(name)), default=0)
        tensors = sum(map(_tensors, weights))
        # Layers may share weights, but few models do; Transformers would allocate each layer that is missing.
        if weights and not config.get("tied") and layers > max(64, tensors):
            raise InputError(
                f"{folder / 'config.json'} asks for {layers} layers; the weights beside it are {tensors} tensors. "
                "Correct it or copy the model again."
            )


def _refuse_sizes(config: Any, source: str) -> None:
    if not isinstance(config, dict):
        raise InputError(f"{source} must hold an object; got {type(config).__name__}.")
    for name, value in config.items():
        if isinstance(value, dict):
            _refuse_sizes(value, f"{source}, {name}")
        most = MOST_LAYERS if name in _BLOCKS else MOST_LABELS if name == "num_labels" else MOST_SIZE
        got = str(value)[:60]
        refuse(
            (
                name in _LAYERS and value is not None and (type(value) is not int or value < 1),
                f"{source}: {name} must be a whole number of at least 1; got {got}.",
            ),
            (
                isinstance(value, int) and abs(value) > most and "theta" not in name,
                f"{source}: {name} must be at most {most}; got {got}.",
            ),
            (
                name.endswith("attn_implementation") and "/" in str(value),
                f"{source}: {name} asks for code from the Hub, {got}. Remove the entry.",
            ),
        )


def _tensors(file: Path) -> int:
    """The number of tensors in a safetensors file; 0 if its header is damaged, which loading it will report."""
    with suppress(OSError, SafetensorError), safe_open(file, "pt") as content:
        return len(content.keys())
    return 0
