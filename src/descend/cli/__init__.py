"""The command line: parse, build, call. It imports nothing slow before the command is known to need it."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from descend import extras
from descend.cli import commands, demo, paper, runs
from descend.cli.escaped import Escaped
from descend.cli.parsing import COMPLETING, TALK, Parser, hyphenated, nearest, read
from descend.declared import is_secret
from descend.errors import (
    InputError,
    Interrupted,
    NonFiniteLossError,
    RanksDifferError,
    SaveError,
    Unsaved,
    reason,
)
from descend.reading import plain_text, shown

ABOUT = """\
descend: training under which every layer lowers the loss, and how many layers suffice

  recipes      what can be trained
  train        train one model: descend train RECIPE --data PATH --out RUN
  paper        plain training beside the paper's constraints: one page
  layers       how many layers a pretrained model needs, as it is
  evaluate     losses and errors of a run by layer and noise, and the verdict
  compare      one page over several evaluated runs
  report       write the page of a run, comparison or sweep again
  export       the first K layers of a run as a checkpoint of their own
  denoise      frames of your videos, denoised by a run of a video recipe
  complete     answers of a language model, in AlpacaEval's form
  tasks        lm-eval's tasks over noise and at an exit; runs compared
  sweep        search each method's settings, with equally many trials
  demo         the paper's constraints on video, layers needed for digits: a page
  privacy      ε of noise on token embeddings, as local differential privacy
  completion   completion in the shell: bash, zsh or fish

What you want, and the method; docs/results/README.md has the evidence and the cost:

  fewer layers suffice           train --method linear
  one known number K of them     train --keep-layers K
  bounds that you state          train --alpha A, --within W or --after L
  every layer lowers the loss    train --method constrained; with the paper's settings: paper
  robustness to noise            train --noise GAMMA

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


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "recipes": runs.recipes,
    "train": runs.train,
    "paper": paper.paper,
    "layers": runs.layers,
    "evaluate": runs.evaluate,
    "compare": runs.compare,
    "report": runs.report,
    "export": commands.export,
    "denoise": commands.denoise,
    "complete": runs.complete,
    "tasks": commands.tasks,
    "sweep": commands.sweep,
    "demo": demo.demo,
    "privacy": commands.privacy,
    "completion": completion,
}


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
    name, *rest = words
    if name not in COMMANDS:
        return _complain(f"no command {name!r}{nearest(name, COMMANDS)}; descend --help lists them.", 2)
    if odd := [word for word in rest if not plain_text(word)]:
        return _complain(f"expected arguments in UTF-8; got {shown(odd[0])}. Rename the file or folder.", 2)
    again = _how_to_go_on(name, rest)
    streams, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), Escaped(sys.stdout), Escaped(sys.stderr)  # type: ignore[assignment]
    # A scheduler's SIGTERM stops a command as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    environment = {variable: os.environ[variable] for variable in TALK if variable in os.environ}
    try:
        with extras.required(f"descend {name}"):
            COMMANDS[name](rest)
    except InputError as error:
        return _complain(str(error), 2)
    except (NonFiniteLossError, RanksDifferError) as error:
        return _complain(str(error), 1)
    except SaveError as error:
        return _complain(f"{error}{again}", 1)
    except Unsaved as error:
        return _complain(str(error), 130)
    except (KeyboardInterrupt, Interrupted) as error:
        return _complain(f"{str(error) or 'interrupted.'}{again}", 130)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        words = [str(each) for each in (error.filename, error.strerror) if each]
        return _complain(": ".join(words) or reason(error), 1)
    finally:
        sys.stdout, sys.stderr = streams
        signal.signal(signal.SIGTERM, before)
        for variable in TALK:
            os.environ.pop(variable, None)
        os.environ.update(environment)
    return 0


def _how_to_go_on(name: str, words: Sequence[str]) -> str:
    """A sentence with the command that resumes this one; empty if none does."""
    if name == "train":
        words = [*(word for word in words if word != "--resume"), "--resume"]
    elif name != "sweep" and (name != "complete" or any(word.startswith("--compare") for word in words)):
        return ""
    return f" Go on with: {shlex.join(['descend', name, *without_secrets(words)])}"


def without_secrets(words: Sequence[str]) -> list[str]:
    """The words of a command without tokens, and without the password in the URL of a database."""
    shown: list[str] = []
    for word in words:
        secret = bool(shown) and is_secret(hyphenated(shown[-1]).lstrip("-").replace("-", "_"))
        flag, equals, _ = hyphenated(word).partition("=")
        if secret and not word.startswith("--"):
            shown.append("***")
        elif equals and is_secret(flag.lstrip("-").replace("-", "_")):
            shown.append(f"{flag}=***")
        else:
            shown.append(re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", word))
    return shown


def _complete() -> None:
    """Answer a shell that completes a word; ends the process."""
    import argcomplete

    words = argcomplete.lexers.split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3][1:]
    if words and words[0] in COMMANDS:
        COMMANDS[words[0]](words[1:])  # its parser answers
    parser = Parser()
    parser.add_argument("command", choices=list(COMMANDS))
    argcomplete.autocomplete(parser)


def _complain(message: str, status: int) -> int:
    print(f"descend: {message}", file=sys.stderr)
    return status
