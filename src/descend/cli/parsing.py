"""Parsing of the command line: one spelling of each option, help of one line each, and one line for a mistake.

Paths and names are checked here too, before anything slow is imported.
"""

import argparse
import difflib
import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from descend.declared import GENERATED
from descend.errors import InputError
from descend.progress import QUIET
from descend.reading import CLOSE, is_path, refuse_file, suggestion

MOST_LEVELS = 1000
"""Most noise levels γ of one command."""

COLUMNS = 31
"""Width of the options' names in help."""

METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "PATH"}
"""What stands for a value in help, by its type; NAME for other types."""

OTHER_NAMES = {
    "num-train-epochs": "epochs num-epochs max-epochs n-epochs",
    "max-steps": "steps num-steps iterations iters max-iters",
    "learning-rate": "lr",
    "per-device-train-batch-size": "batch-size batch bs train-batch-size",
    "gradient-accumulation-steps": "accumulation-steps grad-accum accumulate",
    "lr-scheduler-type": "scheduler lr-scheduler schedule",
    "warmup-steps": "warmup",
    "weight-decay": "wd decay",
    "max-grad-norm": "clip grad-clip clip-grad",
    "optim": "optimizer",
    "depth": "layers num-layers n-layers num-hidden-layers blocks",
    "hidden-size": "hidden-dim dim width d-model",
    "heads": "num-heads n-heads num-attention-heads",
    "noise": "sigma gamma std noise-level noise-std noise-sigma levels",
    "data": "dataset data-dir data-path path input videos",
    "out": "output output-dir output-folder out-dir save-dir",
    "use-cpu": "device cpu no-cuda",
    "dataloader-num-workers": "workers num-workers",
    "bf16": "amp mixed-precision",
    "seed": "random-seed",
    "resume": "checkpoint ckpt resume-from resume-from-checkpoint",
    "quiet": "silent disable-tqdm",
    "log-level": "verbose debug verbosity",
}
"""Option → the names that other programs and Transformers have for it."""

COMPLETING = "_ARGCOMPLETE"
"""The environment variable by which a shell asks for completion."""

_NO_BARS = (QUIET, "HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
_VERBOSITY = ("TRANSFORMERS_VERBOSITY", "DATASETS_VERBOSITY")
TALK = _NO_BARS + _VERBOSITY
"""The environment variables that `talk` sets; libraries read them when they are imported."""


Options = Mapping[str, dict[str, Any]]
"""Name of an argument, or names of an option with spaces between them → arguments of `add_argument`."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line, with the nearest name for an unknown option."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, complete or refuse; a shell's request for completion is answered here, and ends the process."""
        if COMPLETING in os.environ:
            import argcomplete

            os.environ[COMPLETING] = "2"  # the words of this parser begin behind the command
            argcomplete.autocomplete(self, always_complete_options="long")
        words = [hyphenated(word) for word in args or ()]
        for word, following in pairwise([*words, ""]):  # argparse would name a missing option before a mistyped one
            flag, _, value = word.partition("=")
            if not flag.startswith("--"):
                continue
            action = self._option_string_actions.get(flag)
            if isinstance(action, argparse.BooleanOptionalAction) and (value or following).lower() in ("true", "false"):
                raise InputError(f"{flag} takes no value; give {' or '.join(action.option_strings)}.")
            if action is None:
                near = nearest(flag, self._option_string_actions)
                raise InputError(f"no setting {flag}{near}; {self.prog} --help lists them.")
        options = super().parse_args(words, namespace)
        for name in ("out", "save"):  # a shell expands --out ~/run, and not --out=~/run
            if isinstance(place := getattr(options, name, None), str | Path):
                setattr(options, name, type(place)(Path(place).expanduser()))
        if isinstance(out := getattr(options, "out", None), str | Path):
            refuse_file(Path(out).parent, "another place with --out")
        return options

    def error(self, message: str) -> NoReturn:
        """Raise; argparse would print its usage and end the process."""
        raise InputError(f"{message.rstrip('.')}; {self.prog} --help lists what can be set.")


def hyphenated(word: str) -> str:
    """An option in its one spelling: ``--learning-rate`` for ``--learning_rate``; other words are as they were."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else word


class Lines(argparse.HelpFormatter):
    """Help with an option on each line, named once."""

    def __init__(self, prog: str, **kwargs: Any):
        width = min(shutil.get_terminal_size().columns, 120)
        super().__init__(prog, max_help_position=COLUMNS, width=width, **kwargs)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return METAVARS.get(action.type, "NAME")

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]", 1)
        return super()._format_action_invocation(action)


def add_talk(parser: Any) -> None:
    """Add the options of a command that works for long: how much it says."""
    parser.add_argument("--quiet", action="store_true", help="no progress: results, warnings and errors")
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log-level", choices=levels, metavar="LEVEL", help="debug, info, warning, error [warning]")


def talk(options: dict[str, Any]) -> None:
    """Turn progress and logging to what was asked, also for processes that this one starts.

    Args:
        options: Parsed by a parser with `add_talk`; those two are taken out.
    """
    quiet, level = options.pop("quiet"), options.pop("log_level")
    if quiet:
        os.environ |= dict.fromkeys(_NO_BARS, "1")
    elif sys.stderr.isatty():
        print("loading libraries …", file=sys.stderr, flush=True)
    if level is not None:
        import logging

        logger = logging.getLogger("descend")
        logger.setLevel(level.upper())
        if not logger.handlers:
            logger.addHandler(logging.StreamHandler())
        os.environ |= dict.fromkeys(_VERBOSITY, level)


def declared(
    command: str,
    about: str,
    usage: str | None = None,
    options: Options | None = None,
    *,
    groups: Mapping[str, Options] | None = None,
    talks: bool = False,
) -> Parser:
    """The parser of a command; defaults stand in brackets in the help.

    Args:
        command: The command's name.
        about: What it does.
        usage: How it is called; None to list its options.
        options: Its arguments and options.
        groups: Title → further options.
        talks: Whether it works for long: it takes the options of `add_talk`.
    """
    prog = f"descend {command}"
    usage = usage and f"{prog} {usage}"
    parser = Parser(prog=prog, usage=usage, description=about, allow_abbrev=False, formatter_class=Lines)
    place: Any = parser
    for title, group in {"": options or {}, **(groups or {})}.items():
        place = parser.add_argument_group(title) if title else parser
        for name, more in group.items():
            place.add_argument(*name.split(), **more)
    if talks:
        add_talk(place)
    return parser


def read(words: Sequence[str], *declaration: Any, talks: bool = False, **more: Any) -> argparse.Namespace:
    """Parse the words behind a command; it is declared as by `declared`."""
    options: argparse.Namespace = declared(*declaration, talks=talks, **more).parse_args(words)
    if talks:
        talk(vars(options))
    return options


def levels(text: str) -> list[float]:
    """Noise levels from ``0,0.1,0.2`` or ``start:stop:step``, the stop included: the type of an option.

    Raises:
        argparse.ArgumentTypeError: If it is neither, there are too many, or a level is negative.
    """
    try:
        if ":" in text:
            start, stop, step = (float(part) for part in text.split(":"))
            count = math.floor((stop - start) / step + 1e-9) + 1
            values = [round(start + step * place, 9) for place in range(min(count, MOST_LEVELS + 1))]
        else:
            values = [float(part) for part in text.split(",")]
    except (ArithmeticError, ValueError):
        raise argparse.ArgumentTypeError(
            f"noise must be levels as 0,0.1,0.2 or start:stop:step as 0:2:0.25; got {text!r}."
        ) from None
    if not 1 <= len(values) <= MOST_LEVELS or not all(0 <= level < math.inf for level in values):
        raise argparse.ArgumentTypeError(
            f"noise must be at most {MOST_LEVELS} levels γ of at least 0, in std of the clean data; got {text!r}."
        )
    return values


def levels_or_all(text: str) -> list[float] | str:
    """Noise levels as `levels` reads them, or ``all``: the type of an option."""
    return text if text == "all" else levels(text)


def nearest(word: str, names: Iterable[str]) -> str:
    """A suggestion for an unknown name, for the end of a message.

    It is the option that other programs call so, else the most similar name, else the only name with this beginning or
    ending; empty if there is none.
    """
    word, by_name = word.strip("-"), {name.strip("-"): name for name in names}
    meant = [name for name, others in OTHER_NAMES.items() if word in others.split() and name in by_name]
    close = difflib.get_close_matches(word, by_name, n=1, cutoff=CLOSE)
    part = [name for name in by_name if name.startswith(word) or name.endswith(f"-{word}")]
    names_meant = meant or close or (part if len(part) == 1 else [])
    return f" (did you mean {by_name[names_meant[0]]}?)" if names_meant else ""


def check_data(data: str | None, *, hub: bool = False, names: Sequence[str] = ()) -> None:
    """Refuse data that are not there.

    Args:
        data: A path, or `GENERATED`; None for a command that takes none.
        hub: Whether it may be a name on the Hub as well.
        names: What else it may be.

    Raises:
        InputError: If there is no such file or folder.
    """
    if data is None or data in (GENERATED, *names) or Path(data).expanduser().exists():
        return
    if not hub or is_path(data):
        others = " or the name of a data set on the Hub" if hub else "".join(f", {name}" for name in names)
        words = f"the data {data} does not exist; expected a file or folder{others}, or {GENERATED}."
        raise InputError(words + suggestion(data))


def check_run(folder: Path, model: str) -> str:
    """Refuse a folder that holds no run, or not the model that is asked for.

    Args:
        folder: The folder.
        model: The name of one of the run's models.

    Returns:
        The name of its recipe.

    Raises:
        InputError: If it is no run's, see `read_config`; or if it has no such model.
    """
    from descend.results import MODELS, check_model, read_config

    config = read_config(folder)
    if model != MODELS[0]:  # a run in training has none yet; its lock says so better
        check_model(folder, model)
    return config.recipe
