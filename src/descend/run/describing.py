"""Describe a run: its settings as stored and compared, its command, and its model card."""

import json
import shlex
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from descend.declared import is_secret, options
from descend.models import MARK, Denoiser, LinearReadout, MeanPooledForSequenceClassification
from descend.recipes import Recipe
from descend.report.card import TASKS, card_of_run
from descend.results import RunConfig, hub_name, read_config, without_adapters
from descend.settings import settings_of_others
from descend.training.config import DescentArguments

_PATHS = ("data", "model", "tokenizer", "pretrained")
"""Settings whose value may be a path."""

WRITTEN = ("cache_dir",)
"""Settings of a recipe that say where files are written: a command alone says that, no run's folder."""


def stored(args: DescentArguments) -> dict[str, Any]:
    """The training arguments for JSON: all of Descend's, and those of Transformers that differ from their defaults."""
    # `TrainingArguments` resets Accelerate's global state, and with it the device, so reuse the existing state. The CPU
    # supports every default. TRL still sets its default by the deprecated name, which warns; the new name gives both
    # the same value.
    by_name = {each.name: each.default for each in fields(args)}
    usual: dict[str, Any] = {"use_cpu": True, "accelerator_config": {"use_configured_state": True}}
    usual |= {"activation_checkpointing": by_name["gradient_checkpointing"], "output_dir": args.output_dir}
    defaults, values = type(args)(**usual).to_dict() | {"use_cpu": False}, args.to_dict()
    ours = {each.name for each in fields(args)} - {each.name for each in fields(args.library)}
    settable = {each.name for each in fields(args) if each.init and not is_secret(each.name)}
    settable -= {"output_dir", "resume_from_checkpoint"}
    changed = {key for key, value in values.items() if key in settable and value != defaults[key]}
    return {key: value for key, value in values.items() if key in ours | changed}


def differences(old: dict[str, Any], new: dict[str, Any], free: set[str] | frozenset[str] = frozenset()) -> str:
    """The settings of two runs that differ, as text; empty if only those in ``free`` do.

    A setting of another method that the old run does not know, because it is newer, is no difference.
    """
    newer = settings_of_others(str(new.get("method"))) - old.keys()
    free = free | newer | {"disable_tqdm", "dataloader_pin_memory"}
    differing = sorted(key for key in (old.keys() | new.keys()) - free if old.get(key) != new.get(key))
    return ", ".join(f"{key} (was {old.get(key)}, now {new.get(key)})" for key in differing)


def values_of(given: Iterable[str], recipe: Recipe, args: DescentArguments) -> dict[str, Any]:
    """The values of given settings for JSON, but for the folders and the bars of progress."""
    values = asdict(recipe) | args.to_dict()  # which hides tokens
    left_out = {"cache_dir", "output_dir", "disable_tqdm"}
    left_out |= {name for name in given if is_secret(name)}
    return {name: values[name] for name in given if name not in left_out and values[name] not in (None, [])}


def train_command(config: RunConfig) -> str:
    """The command that trains a run again, by the settings that it was given; empty where they are unknown.

    Local paths are shortened to their names, because a card may be published.
    """
    if not config.given:
        return ""
    # A recipe's method may change from one version of Descend to the next.
    given = {name: _published(name, value) for name, value in ({"method": config.method} | config.given).items()}
    return shlex.join(["descend", "train", config.recipe, *options(given), "--out", "RUN"])


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
    command = train_command(read_config(folder))
    note = with_code(loading_note(network), serving_line(network, Path(".")))
    return card_of_run(folder, network, command, own=own, **{"note": note} | more)


def with_code(note: str, line: str) -> str:
    """A card's note on how to load its folder, and the line of code that serves it; either may be empty."""
    return "\n\n".join(filter(None, (note, line and f"Run this in the folder: `{line}`.")))


def serving_line(network: Any, folder: Path) -> str:
    """The line of code that serves a model that was saved in a folder; empty where Transformers has none."""
    task = next((task for end, task in TASKS.items() if type(network).__name__.endswith(end)), None)
    if isinstance(network, Denoiser):
        return f"DescentDenoiser.from_pretrained({str(folder)!r})"
    # Of a text that is too long the pipeline would otherwise fail, or read what no layer was measured on.
    more = ", truncation=True" if task == TASKS["ForSequenceClassification"] else ""
    more += ", trust_remote_code=True" if isinstance(network, MeanPooledForSequenceClassification) else ""
    return "" if task is None else f'pipeline("{task}", model={json.dumps(str(folder))}{more})'


def saved_form(network: Any) -> str:
    """What will be saved of a model, and what it takes to load it, before it is trained."""
    kind = type(without_adapters(network))
    if isinstance(network, MeanPooledForSequenceClassification):
        return f"The model is saved as a {kind.__name__}, which Transformers loads with trust_remote_code=True."
    if kind.__module__.startswith("transformers."):
        adapters = "adapters for a" if kind is not type(network) else "a"
        return f"The model is saved as {adapters} {kind.__name__}, which Transformers loads without Descend."
    article = "an" if kind.__name__.startswith(tuple("AEIO")) else "a"
    return f"The model is saved as {article} {kind.__name__}, which loads where Descend is installed."


def loading_note(network: Any) -> str:
    """How to load a classifier that is none of Transformers' own; empty for one of theirs."""
    if isinstance(network, MeanPooledForSequenceClassification):
        return (
            "Load it with `trust_remote_code=True`, which runs `linear_readout.py` beside the weights; or, without "
            "that, after `import descend.models`."
        )
    if isinstance(network, LinearReadout):
        return "Load it with `import descend.models` before `AutoModelForSequenceClassification.from_pretrained`."
    return ""
