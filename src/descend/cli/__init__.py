"""The command line: parse, build, call. It imports nothing slow before the command is known to need it."""

import errno
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from descend import extras
from descend.cli import demo, models, privacy, runs, sweep, tasks
from descend.cli.parsing import COMPLETING, TALK, Parser, nearest, read
from descend.errors import (
    InputError,
    Interrupted,
    NonFiniteLossError,
    RanksDifferError,
    SaveError,
    Unsaved,
)

ABOUT = """\
descend: transformers whose every layer lowers the expected loss

  recipes      what can be trained
  train        train one model: descend train RECIPE --data PATH --out RUN
  evaluate     losses and errors of a run by layer and noise, and the verdict
  compare      one page over several evaluated runs
  report       write the page of a run, comparison or sweep again
  export       the first K layers of a run as a plain checkpoint
  denoise      frames of your videos, denoised by a run of a video recipe
  complete     answers of a language model, in AlpacaEval's form
  tasks        lm-eval's tasks over noise and at an exit; runs compared
  reproduce    figures and tables of the paper
  sweep        search each method's settings, with equally many trials
  demo         both methods on one video, and the page
  privacy      ε of noise on token embeddings, as local differential privacy
  completion   completion in the shell: bash, zsh or fish

  descend COMMAND --help    how a command is used, and its options
  descend --version         the version
"""


def completion(words: Sequence[str]) -> None:
    """Print what a shell needs to complete commands, recipes and options."""
    options = read(
        words,
        "completion",
        "Print the code that makes a shell complete commands, recipes and options.",
        options={"shell": dict(choices=("bash", "zsh", "fish"))},
    )
    import argcomplete

    print(argcomplete.shellcode(["descend"], shell=options.shell))


def reproduce(words: Sequence[str]) -> None:
    """Say where the paper's figures and tables are."""
    if {"-h", "--help"} & set(words):
        print("usage: descend reproduce is now python -m reproduction WHAT ..., in a checkout of Descend")
        return
    raise InputError(
        "the paper's figures and tables are run in a checkout of Descend: python -m reproduction "
        f"{shlex.join(words) or 'list'}"
    )


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "recipes": runs.recipes,
    "train": runs.train,
    "evaluate": runs.evaluate,
    "compare": runs.compare,
    "report": runs.report,
    "export": models.export,
    "denoise": models.denoise,
    "complete": runs.complete,
    "tasks": tasks.tasks,
    "reproduce": reproduce,
    "sweep": sweep.sweep,
    "demo": demo.demo,
    "privacy": privacy.privacy,
    "completion": completion,
}


class _Loading:
    """A finder of modules that finds none: asked for the first slow library, it says so, once, on a terminal."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("torch", "matplotlib", "scipy"):
            sys.meta_path.remove(self)
            print("loading libraries …", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    if COMPLETING in os.environ:
        _complete()
    if not words or words[0] in ("-h", "--help"):
        print(ABOUT, end="")
        return 0
    if words[0] == "--version":
        print(f"descend {version('descend')}")
        return 0
    if words[0] not in COMMANDS:
        return _complain(f"no command {words[0]!r}{nearest(words[0], COMMANDS)}; descend --help lists them.", 2)
    if sys.stderr.isatty() and "--quiet" not in words:
        sys.meta_path.insert(0, _Loading())
    goes_on = words[0] in ("train", "demo", "sweep") or (words[0] == "complete" and "--compare" not in words)
    return carried_out(COMMANDS[words[0]], words[1:], program=f"descend {words[0]}", goes_on=goes_on)


def _complete() -> None:
    """Answer a shell that completes a word; ends the process."""
    import argcomplete

    words = argcomplete.lexers.split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3][1:]
    if words and words[0] in COMMANDS:
        COMMANDS[words[0]](words[1:])  # its parser answers
    parser = Parser()
    parser.add_argument("command", choices=list(COMMANDS))
    argcomplete.autocomplete(parser)


def carried_out(
    command: Callable[[Sequence[str]], None], words: Sequence[str], *, program: str, goes_on: bool = False
) -> int:
    """Call a command; an error that a person can mend becomes one line.

    Args:
        command: The command.
        words: Its arguments.
        program: What was typed before them.
        goes_on: Whether the same command goes on where it was interrupted, ``train`` and ``demo`` with ``--resume``.

    Returns:
        The exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted.
    """
    resumes = ["--resume"] if program in ("descend train", "descend demo") else []
    same = [*program.split(), *(word for word in words if word not in resumes), *resumes]
    again = f" Go on with: {shlex.join(same)}" if goes_on else ""
    # A scheduler's SIGTERM stops a command as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    environment = {name: os.environ.get(name) for name in TALK}
    try:
        command(words)
    except InputError as error:
        return _complain(str(error), 2)
    except (NonFiniteLossError, RanksDifferError) as error:
        return _complain(str(error), 1)
    except SaveError as error:
        return _complain(f"{error}{again}", 1)
    except Unsaved as error:
        return _complain(str(error), 130)
    except KeyboardInterrupt:
        return _complain(f"interrupted.{again}", 130)
    except Interrupted as error:
        return _complain(f"{error}{again}", 130)
    except ModuleNotFoundError as error:
        lacking = extras.missing(program, error)
        if lacking is None:
            raise
        return _complain(str(lacking), 2)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno == errno.ENOSPC:
            place = error.filename or os.getcwd()
            return _complain(f"no space left on the disk of {place}; free some or use --out.", 1)
        if error.filename is None:
            raise
        return _complain(f"{error.filename}: {error.strerror}.", 1)
    finally:
        signal.signal(signal.SIGTERM, before)
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    return 0


def _complain(message: str, status: int) -> int:
    print(f"descend: {message}", file=sys.stderr)
    return status
