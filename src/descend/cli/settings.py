"""The command line of a recipe: its settings in groups, declared without torch."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from descend.cli.library import arguments_of
from descend.cli.parsing import (
    COLUMNS,
    COMPLETING,
    METAVARS,
    Options,
    Parser,
    add_talk,
    check_data,
    declared,
    nearest,
    talk,
)
from descend.declared import flag_of
from descend.errors import InputError
from descend.methods import CLASSES
from descend.settings import (
    LIBRARIES,
    NAMED,
    Setting,
    SFTSettings,
    check_method,
    settings_of,
)

if TYPE_CHECKING:
    from descend.recipes import Entry
    from descend.run import Run

GROUPS = {
    "data": "data dataset image_size validation_share window stride cache_dir tokenizer max_length truncate "
    "keep_markup",
    "model": "model keep_layers heal pooling pretrained depth tied hidden_size heads attention_size kernel atoms layer "
    "l1 l2 margin c dropout readout exits lora lora_rank",
    "constraints": "method preset strength alpha alpha_decay after within cap cap_layer first_layer form stop_gradient "
    "dual_lr dual_optimizer dual_optim_args dual_every dual_warmup_steps dual_warmup_epochs resilience slack slack_lr "
    "slack_optimizer",
    "settings of one method": " ".join(each.name for kind in CLASSES.values() for each in fields(kind.Settings)),
    "training": "noise noise_is max_steps num_train_epochs learning_rate head_lr_ratio lr_scheduler_type warmup_steps "
    "per_device_train_batch_size exit_share patience calibrate seed bf16 use_cpu",
    "output": "eval_steps save_steps",
}
"""Group → the settings that ``--help`` shows, ours and the most used of Transformers, in this order. Other settings
of a recipe stand at the end of ``model``."""

OF_HEADS = ("exits", "head_lr_ratio")
"""Settings that recipes of models without a head of Transformers do not have."""

SPECIAL = {"data": "PATH", "cache_dir": "PATH", "dual_optim_args": "JSON", "alpha": "X", "dual_every": "N"}
"""What stands for the value of a setting whose type does not say it."""

NEW_OR_BEGUN = "folder of the runs and the page; the same command goes on with what it began"

OTHERS = {"transformers": "other arguments of Transformers", "trl": "other arguments of TRL"}
"""Package → the title of its other settings, which ``--help-all`` shows."""


def recipe_list(command: str = "train") -> str:
    """A line for each recipe that a command takes."""
    return "\n".join(f"{name:16} {each.settings.help}" for name, each in _taken_by(command).items())


def _taken_by(command: str) -> "dict[str, Entry]":
    """Name → recipe that a command takes: ``paper`` those of the paper's method, others all."""
    from descend.recipes import RECIPES

    return {name: each for name, each in RECIPES.items() if command != "paper" or each.settings.in_paper}


def read_recipe(words: Sequence[str]) -> tuple["Run", bool]:
    """Parse the words behind ``descend train``.

    Returns:
        The recipe with its training arguments, and whether to go on from the last whole checkpoint.

    Raises:
        InputError: If there is no such recipe or setting, a value is not allowed, or the data are not there.
    """
    given = given_settings(words)
    from descend.recipes import RECIPES

    name, resume = given.pop("recipe"), given.pop("resume", False)
    talk(given)
    check_method(given, RECIPES[name].settings.usual_method())  # before PyTorch is imported

    from descend.recipes import configure

    return configure(name, **given), resume


def given_settings(
    words: Sequence[str],
    command: str = "train",
    about: str = "Train",
    options: Options | None = None,
    without: Sequence[str] = (),
) -> dict[str, Any]:
    """The settings that words give a recipe, by name, and the options of `add_talk`.

    Settings that are left to defaults are not among them.

    Args:
        words: A recipe's name and its options.
        command: The command before them.
        about: What it does, before the recipe's help.
        options: The command's own options, by one long name each; those that are not given have their defaults.
        without: Settings that the command decides.

    Raises:
        InputError: As `read_recipe`; nothing slow is imported for it.
    """
    recipes = _taken_by(command)
    place = "RUN" if command == "train" else "OUT"
    if words and words[0] in ("-h", "--help"):
        print(f"usage: descend {command} RECIPE --data PATH --out {place} [settings]\n")
        print(f"Settings of a recipe: descend {command} RECIPE --help\n\n{recipe_list(command)}")
        raise SystemExit(0)
    recipe = next((word for word in words[:1] if word in recipes), None)
    if recipe is None and COMPLETING not in os.environ:
        whose = "the paper has " if command == "paper" else ""
        got = f"{whose}no recipe {words[0]!r}{nearest(words[0], recipes)}" if words else "no recipe given"
        if words and words[0].startswith("-"):
            usage = f"descend {command} RECIPE --data PATH --out {place} [settings]"
            got = f"expected the recipe first, got {words[0]}: {usage}"
        raise InputError(f"{got}; expected one of {', '.join(recipes)}.")
    about = f"{about}: {recipes[recipe].settings.help}. " if recipe else ""
    model = "--model PATH_OR_NAME " if recipe and recipes[recipe].settings.needs_model else ""
    parser = declared(
        f"{command} {recipe or 'RECIPE'}",
        f"{about}Defaults stand in brackets; λ are the multipliers.",
        f"{model}--data PATH --out {place} [settings]",
        options,
    )
    name = parser.add_argument("recipe", help=argparse.SUPPRESS)
    name.completer = lambda **_: {key: each.settings.help for key, each in recipes.items()}  # type: ignore[attr-defined]
    parser._actions[0].help = argparse.SUPPRESS  # -h
    own = {name.lstrip("-").replace("-", "_"): each.get("default") for name, each in (options or {}).items()}
    everything = "--help-all" in words or COMPLETING in os.environ
    add_recipe(parser, recipe, everything=everything, without=without, resumes=command == "train")
    given = own | vars(parser.parse_args(list(words)))
    kind = recipes[given["recipe"]].settings
    kind.check_given(given)
    if kind.takes_files:  # others know their data by name
        check_data(given["data"], hub=kind.takes_hub_data, names=kind.names_of_data)
    given["output_dir"] = given.pop("out")
    return given


def add_recipe(
    parser: Parser,
    recipe: str | None,
    *,
    everything: bool = False,
    without: Sequence[str] = (),
    resumes: bool = True,
) -> None:
    """Add the options of a recipe's settings, in groups.

    Args:
        parser: The parser of a command.
        recipe: The recipe's name; None while a shell completes it.
        everything: Whether help and completion show all of Transformers' arguments too.
        without: Settings that are left out.
        resumes: Whether the command writes a single run, which ``--resume`` goes on with.
    """
    from descend.recipes import RECIPES

    every = known_settings(recipe) if recipe else {}
    known = {name: each for name, each in every.items() if name not in without}
    grouped = {name for names in GROUPS.values() for name in names.split()}
    others = [name for name in settings_of(RECIPES[recipe].settings) if name not in grouped] if recipe else []
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        if title == "output":
            place = ("RUN", "folder of the run; new, or with --resume begun") if resumes else ("OUT", NEW_OR_BEGUN)
            group.add_argument("--out", required=True, metavar=place[0], help=place[1])
            if resumes:
                group.add_argument("--resume", action="store_true", help="go on from the last whole checkpoint")
        for name in [*names.split(), *(others if title == "model" else [])]:
            if setting := known.pop(name, None):
                _add(group, setting)
        if title == "output":
            add_talk(group)
            group.add_argument("--help-all", action="help", help="this help with all arguments of Transformers")
    for package, title in OTHERS.items():
        group = parser.add_argument_group(title)
        for setting in known.values():  # ours are left only where they change a default of Transformers
            if package == (setting.package if setting.package in LIBRARIES else "transformers"):
                _add(group, setting, shown=everything)
    for action in parser._actions:  # a default would look like a given value
        if action.dest not in ("quiet", "log_level"):
            action.default = argparse.SUPPRESS


def known_settings(recipe: str) -> dict[str, Setting]:
    """All settings of a recipe that the command line takes, by name, with the recipe's own defaults."""
    from descend.recipes import RECIPES

    kind = RECIPES[recipe].settings
    of_library = arguments_of("transformers") | (arguments_of("trl") if kind.arguments_kind is SFTSettings else {})
    every = of_library | settings_of(kind.arguments_kind) | settings_of(kind)
    taken = {"output_dir", "resume_from_checkpoint", "disable_tqdm", "log_level", "log_level_replica"}
    left_out = taken.union(() if kind.has_head else OF_HEADS)
    return {
        name: each._replace(default=kind.training.get(name, each.default))
        for name, each in every.items()
        if name not in left_out
    }


def _add(group: Any, setting: Setting, *, shown: bool = True) -> None:
    """Add the option of a setting."""
    flag, choices = flag_of(setting.name), setting.metadata.get("choices", ())
    ours = NAMED[setting.name].help if setting.name in NAMED else ""
    help = ours or setting.metadata.get("help", "").replace("%%", "%")  # TRL's is escaped already
    help, _, default = help.removesuffix("]").rpartition(" [") if help.endswith("]") else (help, "", "")
    if setting.kind is bool:
        more: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
    else:
        kind = str if setting.kind is object else setting.kind
        more = {key: setting.metadata[key] for key in ("choices", "nargs", "const") if key in setting.metadata}
        among = f"{{{','.join(choices)}}}"
        fits = choices and len(f"{flag} {among}") <= COLUMNS - 4
        plain = SPECIAL.get(setting.name, METAVARS.get(kind, "NAME"))
        more |= {"type": kind, "metavar": among if fits else plain}
        if choices and not fits:
            help += f": {', '.join(choices)}"
    if setting.default not in (None, MISSING):
        default = {True: "on", False: "off"}[setting.default] if setting.kind is bool else setting.default
    text = (f"{help} [{default}]" if default != "" else help).replace("%", "%%")
    group.add_argument(flag, dest=setting.name, help=text if shown else argparse.SUPPRESS, **more)
