"""Load models from folders and the Hub: bounded sizes, safetensors only, no code, no pickles."""

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.auto.auto_factory import _BaseAutoModelClass
from transformers.utils import logging

from descend.errors import InputError, reason, refuse
from descend.reading import PICKLES, is_path, read_json, suggestion

MOST_LAYERS = 1024
MOST_BLOCKS = 2**17
"""Layers times experts or groups of them."""

MOST_LABELS = 2**16
MOST_SIZE = 2**24
"""Largest value of any other whole number in a ``config.json``, such as the size of a vocabulary."""

MOST_NEW, MOST_BUFFERS, MOST_PACKED = 2**24, 2**27, 16
"""Weights that may be new beside a model's own, such as a head; numbers in its buffers, such as masks; and how many
weights one stored number of a quantized model may stand for."""

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
    if not path.exists() and is_path(source):
        words = f"can't load {what} from {str(source)!r}: expected {expected}. There is no such folder."
        raise InputError(words + suggestion(source))
    try:
        refuse_unsafe(source)
        refuse_claims(kind, source, settings.get("config"))
        # Set trust_remote_code: by default Transformers asks on the terminal whether to run a folder's code.
        # No tables of new and unused weights: callers know which head is new, and check the rest.
        with ExitStack() as after:
            after.callback(logging.set_verbosity, logging.get_verbosity())
            logging.set_verbosity_error()
            loaded = kind.from_pretrained(source, trust_remote_code=False, use_safetensors=True, **settings)
            _forget_code(loaded[0] if isinstance(loaded, tuple) else loaded)
            return loaded
    except InputError:
        raise
    # Any exception: a wrong value in config.json fails wherever it is first used.
    except Exception as error:
        why = reason(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {reason(error)}"
        raise InputError(f"can't load {what} from {str(source)!r}: expected {expected}. {why}") from None


def _forget_code(loaded: Any) -> None:
    """Remove the entry by which a stranger's configuration names code: it is not passed on to what is saved."""
    configs = [loaded, getattr(loaded, "config", None)]
    for config in configs:
        if isinstance(config, PreTrainedConfig):
            configs += [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]
        if hasattr(config, "auto_map"):
            del config.auto_map


def refuse_broken(model: torch.nn.Module, source: str | Path) -> None:
    """Refuse a model whose weights are not all finite.

    Raises:
        InputError: If some are not; it names the first of them.
    """
    if names := broken(model):
        raise InputError(f"{source} has weights that are NaN or infinite: {names}. Train or copy it again.")


def broken(model: torch.nn.Module) -> str:
    """The first three weights and saved buffers that are not finite, and how many more; empty if there is none."""
    saved = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}
    names = [name for name, tensor in saved.items() if not tensor.is_meta and not tensor.isfinite().all()]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")


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
    for index in folder.glob("*.safetensors.index.json"):
        _refuse_shards(index)
    if (folder / "adapter_config.json").is_file():
        adapter = read_json(folder / "adapter_config.json")
        base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
        if not isinstance(base, str) or not (folder / "adapter_model.safetensors").is_file():
            raise InputError(f"{folder} must hold adapter_model.safetensors, and the name of the model it is for.")
        _refuse_adapter(adapter, folder)
        if not Path(base).exists() and try_to_load_from_cache(base, "config.json") is None:
            raise InputError(
                f"{folder} holds adapters for {base!r:.80}, which is not on this machine. Load that model first, as by "
                f"hf download, or put its folder into {folder / 'adapter_config.json'}."
            )
        if not (Path(base) / "adapter_config.json").exists():  # adapters of adapters would recurse
            refuse_unsafe(base)
    if (folder / "config.json").is_file():
        config = read_json(folder / "config.json")
        _refuse_sizes(config, str(folder / "config.json"))
        layers = max((config[name] for name in _LAYERS if config.get(name)), default=0)
        tensors = sum(len(_shapes(file)) for file in weights)
        # Layers may share weights, but few models do; Transformers would allocate each layer that is missing.
        if weights and not config.get("tied") and layers > max(64, tensors):
            raise InputError(
                f"{folder / 'config.json'} asks for {layers} layers; the weights beside it are {tensors} tensors. "
                "Correct it or copy the model again."
            )


def refuse_claims(kind: Any, source: str | Path, config: Any = None) -> None:
    """Refuse a ``config.json`` whose model has more weights than lie beside it, before any of them takes memory.

    The model is built on the meta device, so that all fields of its configuration count, and none costs memory. Twice
    the weights are allowed, since a file holds tied ones once, and a new head.

    Args:
        kind: As in `load_model`; other objects than models are passed over.
        source: The folder; a name on the Hub is passed over.
        config: The model's configuration; by default that of the folder.

    Raises:
        InputError: If it has more.
    """
    folder = Path(source).expanduser()
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        base = read_json(folder / "adapter_config.json")["base_model_name_or_path"]
        return refuse_claims(getattr(kind, "_target_class", kind), base, config)
    weights = sorted(folder.glob("*.safetensors"))
    of_model = isinstance(kind, type) and issubclass(kind, PreTrainedModel | _BaseAutoModelClass)
    if not of_model or not weights or not (folder / "config.json").is_file():
        return
    if config is None:
        config = getattr(kind, "config_class", None) or AutoConfig
        config = config.from_pretrained(folder, trust_remote_code=False)
    with torch.device("meta"), no_init_weights():
        model = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    there = sum(math.prod(shape) for file in weights for shape in _shapes(file))
    packed = MOST_PACKED if getattr(config, "quantization_config", None) else 1
    for what, tensors, most in (
        ("weights", model.parameters(), 2 * packed * there + MOST_NEW),
        ("buffers", model.buffers(), 2 * there + MOST_BUFFERS),
    ):
        asked = sum(tensor.numel() for tensor in tensors)
        words = f"{folder / 'config.json'} asks for {asked:,} numbers of {what}; the files beside it hold {there:,}"
        refuse((asked > most, f"{words}. Correct it or copy the model again."))


def _refuse_shards(index: Path) -> None:
    """Refuse an index of weights that names files outside its folder, or pickles."""
    content = read_json(index)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    refuse((not isinstance(shards, dict), f"{index} must hold an object with the object weight_map."))
    for shard in set(map(str, dict(shards or {}).values())):
        outside = Path(shard).name != shard or Path(shard).suffix != ".safetensors"
        refuse((outside, f"{index} names {shard[:60]!r}; expected names of *.safetensors beside it."))


_PATTERNS = ("target_modules", "exclude_modules", "modules_to_save", "layers_pattern", "rank_pattern", "alpha_pattern")
"""Entries of an ``adapter_config.json`` that PEFT takes for regular expressions, or puts into one."""

MOST_REPEATS, MOST_PATTERN = 3, 500
"""Repetitions in a regular expression of an adapter, and its characters."""


def _refuse_adapter(adapter: dict[str, Any], folder: Path) -> None:
    """Refuse regular expressions that may never end, and ranks that the adapter's weights do not have."""
    source, file = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    for name in _PATTERNS:
        value = adapter.get(name)
        names_alone = isinstance(value, list) and name in ("target_modules", "exclude_modules")
        for pattern in [value] if isinstance(value, str) else () if names_alone else value or ():
            words = f"{source}: {name} has a regular expression that may not end: {pattern!r:.60}."
            refuse((not _ends(pattern), words))
    pattern = adapter.get("rank_pattern")
    ranks = [
        adapter.get("r"),
        adapter.get("num_virtual_tokens"),
        *(pattern.values() if isinstance(pattern, dict) else ()),
    ]
    sizes = max((max(shape, default=0) for shape in _shapes(file)), default=0)
    for rank in ranks:
        wrong = rank is not None and (type(rank) is not int or not 0 <= rank <= sizes)
        refuse((wrong, f"{source} has the rank {rank!r:.60}; the weights beside it are of at most {sizes}."))
    parts = adapter.get("layer_replication") or []
    ranges = isinstance(parts, list) and all(
        isinstance(each, list) and [*map(type, each)] == [int] * 2 for each in parts
    )
    layers = sum(end - start for start, end in parts) if ranges else math.inf
    refuse((layers > MOST_LAYERS, f"{source}: layer_replication asks for {layers:,} layers; at most {MOST_LAYERS}."))


def _ends(pattern: Any) -> bool:
    """Whether a regular expression is matched in a time that grows slowly: no repetition holds another or a choice."""
    if not isinstance(pattern, str) or len(pattern) > MOST_PATTERN:
        return False
    try:
        parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError):
        return False
    repeats = [*_repeats(parsed, False)]
    return not any(repeats) and len(repeats) <= MOST_REPEATS


def _repeats(parsed: Any, inside: bool) -> Iterator[bool]:
    """For each repetition, and each choice inside one, whether it is inside another repetition."""
    for operation, content in parsed:
        repeats = str(operation).endswith("REPEAT")
        if repeats or (inside and str(operation) == "BRANCH"):
            yield inside
        for part in content if isinstance(content, tuple | list) else [content]:
            for each in part if isinstance(part, list) else [part]:
                if hasattr(each, "getwidth"):
                    yield from _repeats(each, inside or repeats)


def _refuse_sizes(config: Any, source: str) -> None:
    if not isinstance(config, dict):
        raise InputError(f"{source} must hold an object; got {type(config).__name__}.")
    for name, value in config.items():
        if isinstance(value, dict):
            _refuse_sizes(value, f"{source}, {name}")
        most = MOST_LAYERS if name in _BLOCKS else MOST_LABELS if name == "num_labels" else MOST_SIZE
        got = str(value)[:60]
        if isinstance(value, list) and all(type(each) is int for each in value):
            value, most = sum(map(abs, value)), MOST_LAYERS if name == "depths" else most * MOST_LAYERS
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
    blocks = math.prod(config[name] for name in _BLOCKS if type(config.get(name)) is int and config[name] > 0)
    refuse((blocks > MOST_BLOCKS, f"{source} asks for {blocks:,} blocks; expected at most {MOST_BLOCKS:,}."))


def _shapes(file: Path) -> list[list[int]]:
    """The shapes in a safetensors file, by its header; none if that is damaged, which loading it will report."""
    with suppress(OSError, SafetensorError), safe_open(file, "pt") as content:
        return [content.get_slice(name).get_shape() for name in content.keys()]  # noqa: SIM118
    return []
