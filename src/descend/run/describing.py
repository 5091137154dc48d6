"""Describe a run: its settings as stored and compared, the command that trains it again, and its model card."""

import shlex
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from descend.models.linear_readout import LinearReadout
from descend.models.own_exits import MARK
from descend.recipes import GENERATED
from descend.recipes.configuring import configure
from descend.results import RunConfig, read_config
from descend.results.card import card_of_run, hub_name
from descend.settings import SMALL, options, settings_of_others
from descend.training.config import DescentArguments

_DERIVED = {"disable_tqdm", "dataloader_pin_memory", "gradient_checkpointing", "do_eval", "greater_is_better"}
"""Training arguments that say nothing about a run, or that follow from others."""

LOADING = "Load it with `import descend.models` before `AutoModelForSequenceClassification.from_pretrained`."
"""How to load a classifier that is none of Transformers' own."""

_PATHS = ("data", "model", "tokenizer", "pretrained", "cache_dir")
"""Settings whose value may be a path."""


_REUSE: dict[str, Any] = {"use_cpu": True, "accelerator_config": {"use_configured_state": True}}
"""`TrainingArguments` resets Accelerate's global state, and with it the device, so reuse the existing state. The CPU
supports every default."""


def stored(args: DescentArguments) -> dict[str, Any]:
    """The training arguments for JSON: all of Descend's, and those of Transformers that differ from their defaults."""
    defaults, values = _defaults(args), args.to_dict()
    ours = {each.name for each in fields(args)} - {each.name for each in fields(args.library)}
    settable = {each.name for each in fields(args) if each.init} - {"output_dir", "resume_from_checkpoint"}
    changed = {key for key, value in values.items() if key in settable and value != defaults[key]}
    return {key: value for key, value in values.items() if key in ours | changed}


def _defaults(args: DescentArguments) -> dict[str, Any]:
    """The arguments of this class that nobody has set, for JSON."""
    # TRL still sets its default by the deprecated name, which warns; the new name gives both the same value.
    by_name = {each.name: each.default for each in fields(args)}
    both: dict[str, Any] = {"activation_checkpointing": by_name["gradient_checkpointing"]}
    return type(args)(output_dir=args.output_dir, **_REUSE, **both).to_dict() | {"use_cpu": False}


def differences(old: dict[str, Any], new: dict[str, Any], free: set[str] | frozenset[str] = frozenset()) -> str:
    """The settings of two runs that differ, as text; empty if only those in ``free`` do.

    A setting of another method that the old run does not know, because it is newer, is no difference.
    """
    newer = settings_of_others(str(new.get("method"))) - old.keys()
    free = free | newer | {"disable_tqdm", "dataloader_pin_memory"}
    differing = sorted(key for key in (old.keys() | new.keys()) - free if old.get(key) != new.get(key))
    return ", ".join(f"{key} (was {old.get(key)}, now {new.get(key)})" for key in differing)


def train_command(config: RunConfig) -> str:
    """The command that trains a run again: what differs from a run without further settings.

    Local paths are shortened to their names, because a card may be published.
    """
    first = {name: value for name, value in (("preset", config.preset), ("method", config.method)) if value}
    basis = {name: value for name, value in config.settings.items() if name in ("dataset", "model")}
    bare = configure(config.recipe, output_dir="RUN", data=GENERATED, **_REUSE, **first, **basis)
    usual: dict[str, Any] = asdict(bare.recipe) | stored(bare.arguments) | {"data": None, "use_cpu": False}
    # A file leaves out arguments that have Transformers' default.
    defaults = _defaults(bare.arguments) | {each.name: each.default for each in fields(bare.recipe)}
    ours = {**{name: defaults[name] for name in usual}, **config.training, **config.settings}
    usual |= {name: defaults[name] for name in basis}
    left_out = _DERIVED | first.keys()
    if config.settings.get("model", SMALL) != SMALL or config.settings.get("pretrained"):
        left_out |= {"hidden_size", "depth"}
    chosen = {
        name: _published(name, value)
        for name, value in ours.items()
        if name not in left_out and value is not None and value != usual.get(name, defaults[name])
    }
    return shlex.join(["descend", "train", config.recipe, *options(first | chosen), "--out", "RUN"])


def _published(name: str, value: Any) -> Any:
    """A setting's value for others to read: of a local path its name."""
    path = isinstance(value, str) and (
        Path(value).expanduser().is_absolute() or (name in _PATHS and hub_name(value) is None)
    )
    return Path(value).name if path else value


def run_card(folder: Path, network: Any, *, own: bool = False, **more: Any) -> str:
    """The card of a run's model, or of an export of it.

    Args:
        folder: The run.
        network: The model of Transformers that is saved, with or without adapters.
        own: Whether an export's last layer had an exit of its own; a whole model says it itself.
        **more: Further arguments of `card_of_run`.
    """
    own = own or getattr(getattr(network, "config", None), MARK, False)
    note = LOADING if isinstance(network, LinearReadout) else ""
    return card_of_run(folder, network, train_command(read_config(folder)), own=own, note=note, **more)
