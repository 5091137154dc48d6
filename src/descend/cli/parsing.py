"""Words of a command line, read: levels of noise, a recipe with its settings, and one clear line for a mistake."""

import argparse
import difflib
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn

from descend.errors import InputError

MOST_LEVELS = 1000
"""γ that one command is judged at."""


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
            found = [round(start + step * place, 9) for place in range(count)]
        else:
            found = [float(part) for part in text.split(",")]
    except InputError:
        raise
    except (ArithmeticError, ValueError):
        raise InputError(f"noise must be levels as 0,0.1,0.2 or start:stop:step as 0:2:0.25; got {text!r}.") from None
    if not found or not all(0 <= level < float("inf") for level in found):
        raise InputError(f"noise must be levels γ of at least 0, in std of the clean data; got {text!r}.")
    return found


class Parser(argparse.ArgumentParser):
    """argparse with one clear line for a mistake, and the nearest name for an unknown flag."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, which would look at an unknown flag only after everything else."""
        known = self._option_string_actions
        for flag in (word.split("=")[0] for word in args or () if word.startswith("--")):
            if flag not in known:
                raise InputError(f"no setting {flag}{nearest(flag, known)}; {self.prog} --help lists them.")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise where argparse prints its usage and ends the process."""
        raise InputError(f"{message}; {self.prog} --help lists what can be set.")


def command_parser(command: str, about: str) -> Parser:
    """The parser of a command that has no recipe."""
    return Parser(prog=f"descend {command}", description=about, allow_abbrev=False)


def recipe_list() -> str:
    """A line for each recipe."""
    from descend.recipes import RECIPES

    return "\n".join(f"{name:16} {recipe.about}" for name, recipe in RECIPES.items())


def read_recipe(words: Sequence[str]) -> tuple[str, Any, Any, bool]:
    """A recipe's name, its settings and training arguments, and whether to resume, from the command line."""
    from transformers import HfArgumentParser

    from descend.recipes import RECIPES
    from descend.training.config import FILLED, all_measured_are_saved
    from descend.training.preset import paper

    class RecipeParser(Parser, HfArgumentParser):
        """transformers' parser of dataclasses, with ours for what it refuses."""

    if not words or words[0] not in (*RECIPES, "-h", "--help"):
        got = f"no recipe {words[0]!r}{nearest(words[0], RECIPES)}" if words else "no recipe given"
        raise InputError(f"{got}; expected one of {', '.join(RECIPES)}.")
    if words[0] in ("-h", "--help"):
        print("usage: descend train RECIPE --out RUN [settings]\n\nSettings of a recipe: descend train RECIPE --help\n")
        print(recipe_list())
        raise SystemExit(0)
    name, recipe = words[0], RECIPES[words[0]]
    parser = RecipeParser(
        [recipe.arguments(), recipe],  # type: ignore[list-item]
        prog=f"descend train {name}",
        description=f"Train: {recipe.about}.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        conflict_handler="resolve",
    )
    parser.add_argument("--out", required=True, dest="output_dir", help="folder of the run; must not hold one yet")
    parser.add_argument("--resume", action="store_true", help="go on from the last whole checkpoint in --out")
    quiet = {"disable_tqdm": not sys.stderr.isatty()}
    given = {word.split("=")[0].replace("-", "_").strip("_") for word in words if word.startswith("--")}
    parser.set_defaults(**{key: value for key, value in (recipe.training | quiet).items() if key not in FILLED})
    if "num_train_epochs" in given and "max_steps" not in given:
        parser.set_defaults(max_steps=-1)  # steps of the recipe's own would override it
    try:
        chosen = vars(parser.parse_args(list(words[1:])))
        if chosen["preset"] is not None:
            preset = paper(name, chosen["method"], chosen.get("dataset", "imdb"), given)
            parser.set_defaults(**preset.settings, **preset.training)
            chosen = vars(parser.parse_args(list(words[1:])))
        if "load_best_model_at_end" not in given:
            chosen["load_best_model_at_end"] &= all_measured_are_saved(chosen)
        if not chosen["load_best_model_at_end"] and "metric_for_best_model" not in given:
            chosen["metric_for_best_model"] = None  # no checkpoint is kept for being the best
        settings: Any = recipe(**_fields(recipe, chosen))
        args: Any = recipe.arguments()(**_fields(recipe.arguments(), chosen))
    except InputError:
        raise
    except (ValueError, ImportError) as error:
        # transformers' own checks of its arguments
        raise InputError(f"{error}") from None
    defaults = recipe.training | settings.otherwise
    args.fill({key: value for key, value in defaults.items() if key in FILLED})
    for key, value in settings.otherwise.items():
        if key not in given and key not in FILLED:
            setattr(args, key, value)
    return name, settings, args, chosen["resume"]


def _fields(kind: Any, chosen: dict[str, Any]) -> dict[str, Any]:
    """Of what was chosen, the fields of a dataclass; what two of them know, such as the longest text, is one flag."""
    return {one.name: chosen[one.name] for one in fields(kind) if one.init}


def nearest(word: str, names: Any) -> str:
    """Which of the names was perhaps meant, for the end of a message; nothing where none is near."""
    close = difflib.get_close_matches(word, list(names), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""
