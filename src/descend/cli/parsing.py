"""Parsing of the command line: noise levels, a recipe with its settings, and one line for a mistake."""

import argparse
import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from descend.errors import InputError

if TYPE_CHECKING:
    from descend.recipes import Recipe

MOST_LEVELS = 1000
"""Most noise levels γ of one command."""


def levels(text: str) -> list[float]:
    """Noise levels from ``0,0.1,0.2`` or ``start:stop:step``, the stop included.

    Raises:
        InputError: If it is neither, or a level is negative.
    """
    try:
        if ":" in text:
            start, stop, step = (float(part) for part in text.split(":"))
            count = math.floor((stop - start) / step + 1e-9) + 1
            if count > MOST_LEVELS:
                raise InputError(f"noise must be at most {MOST_LEVELS} levels; {text} names {count}.")
            values = [round(start + step * place, 9) for place in range(count)]
        else:
            values = [float(part) for part in text.split(",")]
    except InputError:
        raise
    except (ArithmeticError, ValueError):
        raise InputError(f"noise must be levels as 0,0.1,0.2 or start:stop:step as 0:2:0.25; got {text!r}.") from None
    if not values or not all(0 <= level < float("inf") for level in values):
        raise InputError(f"noise must be levels γ of at least 0, in std of the clean data; got {text!r}.")
    return values


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line, with the nearest name for an unknown flag."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown flags first; argparse would look at them last."""
        known = self._option_string_actions
        for flag in (word.split("=")[0] for word in args or () if word.startswith("--")):
            if flag not in known:
                hyphenated = [name for name in known if "_" not in name]
                raise InputError(f"no setting {flag}{nearest(flag, hyphenated)}; {self.prog} --help lists them.")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise; argparse would print its usage and end the process."""
        raise InputError(f"{message}; {self.prog} --help lists what can be set.")


def command_parser(command: str, about: str) -> Parser:
    """The parser of a command that has no recipe."""
    return Parser(prog=f"descend {command}", description=about, allow_abbrev=False)


def recipe_list() -> str:
    """A line for each recipe."""
    from descend.recipes import RECIPES

    return "\n".join(f"{name:16} {RECIPES.about(name)}" for name in RECIPES)


class TrainCommand(NamedTuple):
    """A parsed ``descend train``.

    Attributes:
        name: The recipe's name.
        recipe: The recipe.
        arguments: Its training arguments.
        resume: Whether to go on from the last whole checkpoint.
    """

    name: str
    recipe: "Recipe"
    arguments: Any
    resume: bool


def read_recipe(words: Sequence[str]) -> TrainCommand:
    """Parse the words behind ``descend train``.

    Raises:
        InputError: If there is no such recipe or setting, a value is not allowed, or the data are not there.
    """
    if words and words[0] in ("-h", "--help"):
        print("usage: descend train RECIPE --out RUN [settings]\n\nSettings of a recipe: descend train RECIPE --help\n")
        print(recipe_list())
        raise SystemExit(0)
    check_recipe(words)
    name, flags = words[0], list(words[1:])
    given = _given(name, flags)
    resume = given.pop("resume", False)
    given.setdefault("disable_tqdm", not sys.stderr.isatty())

    from descend.recipes import configure

    return TrainCommand(*configure(name, **given), resume)


def _given(name: str, flags: list[str]) -> dict[str, Any]:
    """The settings that flags give a recipe, by name; those that are left to defaults are not among them."""
    from transformers import HfArgumentParser

    from descend.recipes import RECIPES

    class RecipeParser(Parser, HfArgumentParser):
        """Transformers' parser of dataclasses, with our messages for what it refuses."""

    recipe = RECIPES[name]
    parser = RecipeParser(
        [recipe.arguments(), recipe],  # type: ignore[list-item]
        prog=f"descend train {name}",
        description=f"Train: {RECIPES.about(name)}.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        conflict_handler="resolve",
    )
    parser.add_argument("--out", required=True, dest="output_dir", help="folder of the run; must not hold one yet")
    parser.add_argument("--resume", action="store_true", help="go on from the last whole checkpoint in --out")
    if {"-h", "--help"}.isdisjoint(flags):
        for action in parser._actions:  # a default would look like a given value
            action.default = argparse.SUPPRESS
    else:
        parser.set_defaults(**recipe.training.arguments())
    return vars(parser.parse_args(flags))


def check_recipe(words: Sequence[str]) -> None:
    """Refuse an unknown recipe, or data that are not there, before anything slow is imported.

    Args:
        words: A recipe's name and its flags.

    Raises:
        InputError: If there is no such recipe, or no such file or folder.
    """
    from descend.recipes import RECIPES

    if not words or words[0] not in RECIPES:
        got = f"no recipe {words[0]!r}{nearest(words[0], RECIPES)}" if words else "no recipe given"
        raise InputError(f"{got}; expected one of {', '.join(RECIPES)}.")
    check_data(_value_of("--data", words[1:]), hub=words[0].startswith("text-"))


def check_data(data: str | None, *, hub: bool = False) -> None:
    """Refuse data that are not there, before anything slow is imported.

    Args:
        data: A path; None for a command without data of its own.
        hub: Whether it may be a name on the Hub as well.

    Raises:
        InputError: If there is no such file or folder.
    """
    if data is None or Path(data).expanduser().exists():
        return
    if not hub or data.startswith(("/", "./", "../", "~")) or data.count("/") > 1:
        names = " or the name of a data set on the Hub" if hub else ""
        raise InputError(f"the data {data} does not exist; expected a file or folder{names}.")


def check_run(folder: Path) -> str | None:
    """Refuse a folder that holds no run, before anything slow is imported.

    Returns:
        The name of its recipe; None if its ``config.json`` names none, as that of a model of Transformers.

    Raises:
        InputError: If it has no ``config.json``, or one that is not JSON.
    """
    from descend.records import read_json

    if (folder / "summary.json").is_file() and not (folder / "config.json").exists():
        raise InputError(
            f"{folder} holds what descend.evaluate wrote, and no run that names its data. Evaluate again from Python, "
            f"or write its page by descend report {folder}."
        )
    config = read_json(folder / "config.json")
    name = config.get("recipe") if isinstance(config, dict) else None
    return name if isinstance(name, str) else None


def _value_of(flag: str, flags: Sequence[str]) -> str | None:
    """The last value that is given to a flag; None without one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(flag, dest="value")
    try:
        return parser.parse_known_args(list(flags))[0].value
    except argparse.ArgumentError:  # the whole parser tells what is wrong
        return None


def nearest(word: str, names: Iterable[str]) -> str:
    """A suggestion of the most similar name, for the end of a message; empty if none is similar."""
    close = difflib.get_close_matches(word, list(names), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""
