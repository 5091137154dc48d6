"""The command line: parse, build, call."""

import argparse
import difflib
import errno
import math
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from descend.errors import (
    InputError,
    Interrupted,
    NonFiniteLossError,
    RanksDifferError,
    SaveError,
    StudyError,
    Unsaved,
)

if TYPE_CHECKING:
    from descend.study.workers import Job

ABOUT = """\
descend: transformers whose every layer goes downhill

  descend recipes                                    what can be trained
  descend train RECIPE --out RUN [--method erm]      train one model; every setting: descend train RECIPE --help
  descend evaluate RUN [--data PATH] [--noise 0,1]   losses and errors by layer and noise, and the verdict
  descend compare RUN RUN ... --out DIR              one page over several evaluated runs
  descend report DIR                                 write the page of a run or a comparison again
  descend complete RUN --prompts FILE --out FILE     what a language model answers, in AlpacaEval's form
  descend reproduce WHAT ... --scale small --out DIR figures and tables of the paper, by runs of ours; what: list
  descend sweep RECIPE --trials N --out DIR          search the settings of each method, with as many trials for each
  descend demo [--data PATH] [--out DIR]             both methods on one video, and the page
  descend privacy [RUN] --noise 1,20,200             ε of noise on token embeddings, as local differential privacy
"""


MOST_LEVELS = 1000
"""γ that one command is judged at."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(ABOUT, end="")
        return 0
    # What a scheduler sends is what Ctrl-C is.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _carried_out(words)
    finally:
        signal.signal(signal.SIGTERM, before)


def _carried_out(words: list[str]) -> int:
    again = ""
    if words[0] in ("train", "demo"):
        again = f" Go on with: {shlex.join(['descend', *(word for word in words if word != '--resume'), '--resume'])}"
    elif words[0] in ("reproduce", "sweep"):
        again = f" Go on with: {shlex.join(['descend', *words])}"
    try:
        if words[0] not in COMMANDS:
            raise InputError(f"no command {words[0]!r}{_nearest(words[0], COMMANDS)}; descend --help lists them.")
        COMMANDS[words[0]](words[1:])
    except InputError as error:
        return _complain(str(error), 2)
    except (NonFiniteLossError, RanksDifferError, StudyError) as error:
        return _complain(str(error), 1)
    except SaveError as error:
        return _complain(f"{error}{again}", 1)
    except Unsaved as error:
        return _complain(str(error), 130)
    except KeyboardInterrupt:
        return _complain(f"interrupted.{again}", 130)
    except Interrupted as error:
        return _complain(f"{error}{again}", 130)
    except BrokenPipeError:  # whoever read the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno == errno.ENOSPC:
            place = error.filename or os.getcwd()
            return _complain(f"no space left on the disk of {place}; free some or use --out.", 1)
        if error.filename is None:
            raise
        return _complain(f"{error.filename}: {error.strerror}.", 1)
    return 0


def recipes(words: Sequence[str]) -> None:
    """List the recipes."""
    _parser("recipes", "List the recipes.").parse_args(words)
    from descend.recipes import RECIPES

    for name, recipe in RECIPES.items():
        print(f"{name:16} {recipe.about}")


def train(words: Sequence[str]) -> None:
    """Train one model."""
    from descend import run

    name, recipe, args, resume = _recipe(words)
    trainer = run.train(name, recipe, args, resume=resume)
    if args.process_index == 0:
        _finish(trainer)


def evaluate(words: Sequence[str]) -> None:
    """Judge a trained run."""
    from descend.report import drafted, left_early, write_page

    folder, summary = _judged(words)
    print(_line(summary))
    if "exit" in summary:
        print(left_early(summary))
    if "speculation" in summary:
        print(drafted(summary))
    print(write_page([folder], folder, f"Descend: {folder.absolute().name}"))


def _judged(words: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """The folder that was judged, and its summary."""
    parser = _parser("evaluate", "Losses and errors by layer and noise level, and the verdict on the constraints.")
    parser.add_argument("run", type=Path, help="folder of a trained run, or with --task of a model of the library's")
    parser.add_argument("--task", choices=("classification",), help="judge a classifier that descend never trained")
    parser.add_argument("--dataset", help="with --task: imdb or mnli (default: told from the files)")
    parser.add_argument("--probe", action="store_true", help="fit a linear probe to every layer, and judge it too")
    parser.add_argument("--exit", action="store_true", help="judge leaving early: accuracy against layers used")
    parser.add_argument("--data", help="data set to judge it on (default: the run's own)")
    parser.add_argument("--noise", help="levels γ: 0,0.1,0.2 or 0:2:0.25 (default: 8 up to 3.5 × training)")
    parser.add_argument("--shift", default="gaussian", help="gaussian, uniform, laplace or dropout (default: gaussian)")
    parser.add_argument("--split", choices=("test", "validation", "train"), default="test", help="(default: test)")
    parser.add_argument("--model", default="model", help="model or best_feasible (default: model)")
    parser.add_argument("--frames", type=int, default=2, help="frames to keep for the page (default: 2)")
    options = vars(parser.parse_args(words))
    if options["noise"] is not None:
        options["noise"] = levels(options["noise"])
    from descend import run
    from descend.records import locked

    folder = options.pop("run")
    with locked(folder) if folder.is_dir() else nullcontext():
        return folder, run.evaluate(folder, **options)


def compare(words: Sequence[str]) -> None:
    """Bring evaluated runs together."""
    parser = _parser("compare", "One summary.json and one page over several evaluated runs.")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of evaluated runs")
    parser.add_argument("--out", type=Path, required=True, help="folder for summary.json and report.html")
    options = parser.parse_args(words)
    print(_compare(options.runs, options.out))


def report(words: Sequence[str]) -> None:
    """Write a page again."""
    parser = _parser("report", "Write the page of an evaluated run, a comparison or a sweep again.")
    parser.add_argument("folder", type=Path, help="folder of an evaluated run, a comparison or a sweep")
    folder = parser.parse_args(words).folder
    from descend.records import read_json
    from descend.report import write_page, write_sweep

    if (folder / "sweep.json").is_file():
        print(write_sweep(folder))
        return
    summary = read_json(folder / "summary.json")
    runs = [folder]
    if isinstance(summary, dict) and "folders" in summary:
        named = summary["folders"]
        if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
            raise InputError(f"{folder / 'summary.json'}: folders must be a list of names; got {str(named)[:60]}.")
        runs = [folder / each for each in named]
    print(write_page(runs, folder, f"Descend: {folder.absolute().name}"))


def complete(words: Sequence[str]) -> None:
    """Answer prompts, or put answers side by side."""
    parser = _parser(
        "complete", "What a language model's run answers to prompts, in AlpacaEval's form; or two answers side by side."
    )
    parser.add_argument("run", type=Path, nargs="?", help="folder of a trained run of llm-sft")
    parser.add_argument("--prompts", type=Path, help="a JSON list of prompts, as alpaca_eval.json")
    parser.add_argument("--compare", type=Path, nargs="+", metavar="FILE", help="written answers, for one page")
    parser.add_argument("--out", type=Path, required=True, help="file to write; with --compare the page or its folder")
    parser.add_argument("--noise", type=float, help="γ on every token, the model's own too (default: the training's)")
    parser.add_argument("--model", default="model", help="model or best_feasible (default: model)")
    parser.add_argument("--max-new-tokens", type=int, default=256, help="longest answer (default: 256)")
    parser.add_argument("--limit", type=int, help="only the first so many prompts")
    parser.add_argument("--batch-size", type=int, default=8, help="prompts at a time (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise (default: 0)")
    options = vars(parser.parse_args(words))
    files = options.pop("compare")
    if files is not None:
        if options["run"] is not None or options["prompts"] is not None:
            raise InputError("--compare takes written answers, no run and no prompts.")
        from descend.report import write_completions

        print(write_completions(files, options["out"]))
        return
    if options["run"] is None or options["prompts"] is None:
        raise InputError("expected the folder of a run and --prompts; or --compare with written answers.")
    from descend import run

    found = run.complete(options.pop("run"), **options)
    skipped = f"; left out {found['skipped']} whose prompt fills the context" if found["skipped"] else ""
    print(f"{options['out']}: {found['written']} answers{skipped}")


def reproduce(words: Sequence[str]) -> None:
    """Run what figures and tables of the paper need, and draw them."""
    parser = _parser(
        "reproduce",
        "Figures and tables of the paper: runs what is missing, several at a time, and draws them beside the paper's. "
        "The same command goes on where it was stopped; on several machines with one disk they share the work.",
    )
    parser.add_argument("what", nargs="+", help="figure-2, table-3, theory-1 …, all; or list, which names them")
    parser.add_argument("--scale", default="small", help="smoke, small or paper (default: small)")
    parser.add_argument("--data-root", type=Path, help="folder of the data sets; smoke needs none")
    parser.add_argument("--out", type=Path, default=Path("study"), help="folder of the study (default: study)")
    parser.add_argument("--workers", type=int, help="processes at a time (default: one for each core)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run and what it takes, and end")
    options = parser.parse_args(words)
    from descend.study.grid import WANTED
    from descend.study.reproducing import Study

    if options.what == ["list"]:
        print("\n".join(f"{name:10} {wanted.about}" for name, wanted in WANTED.items()))
        return
    workers = options.workers
    if workers is None:  # not all of a machine's cores are always ours; not all systems say
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise InputError(f"workers must be at least 1; got {workers}.")
    study = Study.of(options.what, options.scale, options.out, options.data_root)
    print(study.told(workers), flush=True)
    if options.dry_run:
        return
    study.check_data()
    study.write()
    if models := study.models():
        _convert(models)
    threads = 1 if workers > 1 else None
    preload = ["descend.cli", "descend.run"]
    report = study.carry_out(partial(_carry_out, threads), workers=workers, preload=preload)
    _draw(study.out, study.wanted)
    for name, why in report.diverged.items():
        print(f"{name} diverged, which is counted: {why}")
    if report.failed:
        each = "\n".join(f"  {name}: {why}" for name, why in report.failed.items())
        raise StudyError(f"{len(report.failed)} cells failed:\n{each}\nThe others are done and kept.")


def _carry_out(threads: int | None, job: "Job") -> None:
    """Train and judge a cell of a study in this process, or what is left of it."""
    import torch

    from descend.records import read_json
    from descend.study.collected import ANSWERS_FILE, answered

    if threads is not None:
        torch.set_num_threads(threads)
    folder, config = str(job.folder), job.folder / "config.json"
    begun = config.is_file()
    if not begun or read_json(config).get("seconds") is None:
        train([job.cell.recipe, *map(job.resolved, job.cell.flags), "--out", folder, *(["--resume"] if begun else [])])
    if not (job.folder / "summary.json").is_file():
        print(_line(_judged([folder, *map(job.resolved, job.cell.judge)])[1]))
    for gamma in answered(job.cell):
        file = job.folder / ANSWERS_FILE.format(gamma=gamma)
        if not file.is_file():
            complete([folder, *map(job.resolved, job.cell.answer), "--noise", f"{gamma:g}", "--out", str(file)])


def _draw(out: Path, wanted: Sequence[str]) -> None:
    """Figures and tables of what there is, and the study's page."""
    from descend.report.study import draw, write_study_page

    for claim in draw(out, wanted):
        print(f"{claim.figure}: {claim.held}. {claim.claim} {claim.sentence}")
    print(write_study_page(out))


def _convert(models: dict[Path, Path]) -> None:
    """Make folders that transformers reads of models that a study starts from."""
    from transformers.utils import logging

    from descend.models.llama2c import convert
    from descend.records import aside, locked

    logging.disable_progress_bar()
    for target, source in models.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent, wait=True):
            if not target.exists():
                with aside(target) as part:
                    convert(source, part)


def sweep(words: Sequence[str]) -> None:
    """Search the settings of each method."""
    parser = _Parser(
        prog="descend sweep",
        usage="%(prog)s RECIPE --trials N --out DIR [--storage URL] [--method NAME,NAME] [settings]",
        description="Search a recipe's settings for each method, with as many trials for each, chosen on validation "
        "data. Every setting of descend train RECIPE can be given: it holds for all trials, and is not searched. The "
        "same command again goes on, and at the same time in another terminal takes part.",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", help="as descend train takes it")
    parser.add_argument("--trials", type=int, required=True, help="N, for each method: finished or pruned")
    parser.add_argument("--out", type=Path, required=True, help="folder of the sweep")
    parser.add_argument("--storage", help="URL of the database (default: sqlite:///DIR/sweep.db)")
    parser.add_argument(
        "--method", action="append", metavar="NAME,NAME", help="methods to search (default: erm,constrained)"
    )
    # What is left are the recipe's own flags, which its parser looks at.
    options, given = argparse.ArgumentParser.parse_known_args(parser, words)
    if "--resume" in given:
        raise InputError("a sweep goes on by itself; leave out --resume.")
    methods = [name for part in options.method or ["erm,constrained"] for name in part.split(",")]
    from descend.report import write_sweep
    from descend.sweep import sentences
    from descend.sweep import sweep as search

    def build(flags: list[str], folder: Path) -> tuple[str, Any, Any]:
        return _recipe([options.recipe, *flags, "--out", str(folder)])[:3]

    found = search(
        options.out,
        build,
        given,
        methods=list(dict.fromkeys(methods)),
        trials=options.trials,
        storage=options.storage,
    )
    print(f"\n{sentences(found)}\n{write_sweep(options.out)}")


def demo(words: Sequence[str]) -> None:
    """Both methods on one video, and the page."""
    parser = _parser("demo", "Train the UT with and without constraints on one video, and show the page.")
    parser.add_argument("--data", help="videos (default: the embedded generated scenes)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder (default: demo)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--max-steps", type=int, help="training steps (default: the recipe's)")
    parser.add_argument("--resume", action="store_true", help="go on with a demo that was interrupted")
    options = parser.parse_args(words)
    from descend import run
    from descend.records import locked

    folders = [options.out / method for method in ("erm", "constrained")]
    mark = options.out / ".descend-demo"  # what a demo made, the next one may replace; nothing else
    if any(folder.exists() for folder in folders) and not mark.is_file():
        raise InputError(f"{options.out} holds runs that are not a demo's; choose another folder with --out.")
    _free_for_page(options.out)
    flags = ["video-ut", "--seed", str(options.seed)]
    flags += ["--data", options.data] if options.data else []
    flags += ["--max-steps", str(options.max_steps)] if options.max_steps is not None else []
    built = [_recipe([*flags, "--method", folder.name, "--out", str(folder)]) for folder in folders]
    options.out.mkdir(parents=True, exist_ok=True)
    mark.touch()
    for folder, (name, recipe, args, _) in zip(folders, built, strict=True):
        if not options.resume and folder.is_dir():
            with locked(folder):
                shutil.rmtree(folder)
        print(f"training {folder.name} …", flush=True)
        _finish(run.train(name, recipe, args, resume=options.resume))
        with locked(folder):
            summary = run.evaluate(folder)
        print(_line(summary), flush=True)
    print(f"\nopen {_compare(folders, options.out)}")


def privacy(words: Sequence[str]) -> None:
    """Say what noise on token embeddings is worth."""
    parser = _parser(
        "privacy",
        "What Gaussian noise on token embeddings is worth as local differential privacy: ε by noise level, for one "
        "token and for a whole text. It holds only if every embedding is clipped to a norm C, which is not done here.",
    )
    parser.add_argument("run", type=Path, nargs="?", help="folder of a run on text: its noise, σ_x and dimension")
    parser.add_argument("--noise", help="levels γ: 1,20,200 or 0:200:50 (default: the run's)")
    parser.add_argument("--delta", type=float, default=1e-5, help="δ, strictly between 0 and 1 (default: 1e-5)")
    parser.add_argument("--dimension", type=int, help="d of a token's embedding (default: the run's, or 768)")
    parser.add_argument("--sigma", type=float, help="σ_x, std of the clean embedding (default: the run's, or 1)")
    parser.add_argument("--clip", type=float, help="C, the norm that embeddings are clipped to (default: σ_x√d)")
    parser.add_argument("--tokens", type=int, default=128, help="T, the length of a text (default: 128)")
    options = parser.parse_args(words)
    if options.run is None and options.noise is None:
        raise InputError("expected --noise with levels γ such as 1,20,200, or the folder of a run; got neither.")
    wanted = None if options.noise is None else levels(options.noise)
    sigma, dimension = options.sigma, options.dimension
    if options.run is not None:
        trained, run_sigma = _trained_noise(options.run)
        wanted = [trained] if wanted is None else wanted
        sigma = run_sigma if sigma is None else sigma
        dimension = _width(options.run) if dimension is None and options.clip is None else dimension
    sigma = 1.0 if sigma is None else sigma
    from descend.privacy import Release

    if options.clip is not None:
        release = Release(options.delta, options.clip, options.tokens, sigma)
    else:
        dimension = 768 if dimension is None else dimension
        release = Release.of_dimension(options.delta, dimension, tokens=options.tokens, sigma=sigma)
    print(release.page(wanted or []))


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "recipes": recipes,
    "train": train,
    "evaluate": evaluate,
    "compare": compare,
    "report": report,
    "complete": complete,
    "reproduce": reproduce,
    "sweep": sweep,
    "demo": demo,
    "privacy": privacy,
}


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


class _Parser(argparse.ArgumentParser):
    """argparse with one clear line for a mistake, and the nearest name for an unknown flag."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known = self._option_string_actions
        for flag in (word.split("=")[0] for word in args or () if word.startswith("--")):
            if flag not in known:
                raise InputError(f"no setting {flag}{_nearest(flag, known)}; {self.prog} --help lists them.")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; {self.prog} --help lists what can be set.")


def _parser(command: str, about: str) -> _Parser:
    return _Parser(prog=f"descend {command}", description=about, allow_abbrev=False)


def _recipe(words: Sequence[str]) -> tuple[str, Any, Any, bool]:
    """A recipe's name, its settings and training arguments, and whether to resume, from the command line."""
    from transformers import HfArgumentParser

    from descend.recipes import RECIPES

    class Parser(_Parser, HfArgumentParser):
        """transformers' parser of dataclasses, with ours for what it refuses."""

    if not words or words[0] not in (*RECIPES, "-h", "--help"):
        got = f"no recipe {words[0]!r}{_nearest(words[0], RECIPES)}" if words else "no recipe given"
        raise InputError(f"{got}; expected one of {', '.join(RECIPES)}.")
    if words[0] in ("-h", "--help"):
        print("usage: descend train RECIPE --out RUN [settings]\n\nSettings of a recipe: descend train RECIPE --help\n")
        recipes([])
        raise SystemExit(0)
    name, recipe = words[0], RECIPES[words[0]]
    parser = Parser(
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
    # A schedule and where it starts belong to the recipe's own α: --alpha 0.1 alone means that step at every layer.
    given = {word.split("=")[0].replace("-", "_").strip("_") for word in words if word.startswith("--")}
    literal = {"alpha_decay": 1.0, "first_layer": 0} if "alpha" in given else {}
    parser.set_defaults(**(recipe.training | literal | quiet))
    try:
        chosen = vars(parser.parse_args(list(words[1:])))
        settings: Any = recipe(**_fields(recipe, chosen))
        args: Any = recipe.arguments()(**_fields(recipe.arguments(), chosen))
    except InputError:
        raise
    except (ValueError, ImportError) as error:
        # transformers' own checks of its arguments
        raise InputError(f"{error}") from None
    for key, value in settings.otherwise.items():
        if key not in given:
            setattr(args, key, value)
    if "first_layer" not in given:  # the recipe's own gives way to a model that has fewer layers
        args.first_layer = min(args.first_layer, max(0, settings.depth - 1))
    return name, settings, args, chosen["resume"]


def _fields(kind: Any, chosen: dict[str, Any]) -> dict[str, Any]:
    """Of what was chosen, the fields of a dataclass; what two of them know, such as the longest text, is one flag."""
    return {one.name: chosen[one.name] for one in fields(kind) if one.init}


def _finish(trainer: Any) -> None:
    """Say how a run ended; an infeasible end is loud, and offers what there is."""
    found, out = trainer.verdict, trainer.args.folder
    if not trainer.dual.problem.constrained:
        print(f"trained {out}")
        return
    print(f"trained {out}: {found.sentence('the validation data')}")
    if not found.feasible:
        best = out / "best_feasible"
        offer = f"a feasible checkpoint is in {best}: descend evaluate {out} --model best_feasible"
        print(
            f"WARNING: {out} ends INFEASIBLE. "
            + (offer if best.is_dir() else "No checkpoint met the constraints: lower --alpha, or train longer."),
            file=sys.stderr,
        )


def _compare(runs: Sequence[Path], out: Path) -> Path:
    from descend.records import read_json, write_json
    from descend.report import write_page

    _free_for_page(out)
    summaries = []
    for run in runs:
        if not (run / "summary.json").is_file():
            raise InputError(f"{run} has no summary.json; run: descend evaluate {run}")
        summaries.append(read_json(run / "summary.json"))
    out.mkdir(parents=True, exist_ok=True)
    folders = [os.path.relpath(run, out) for run in runs]
    page = write_page(runs, out, f"Descend: {out.absolute().name}")  # first: it may refuse a run
    write_json(out / "summary.json", {"runs": summaries, "folders": folders})
    return page


def _free_for_page(out: Path) -> None:
    """Refuse a folder whose summary.json is not a comparison's: it would be lost."""
    page = out / "summary.json"
    if (out / "config.json").exists() or (page.exists() and not _is_comparison(page)):
        raise InputError(f"{out} holds something else than a comparison; choose another folder with --out.")


def _is_comparison(page: Path) -> bool:
    from descend.records import read_json

    content = read_json(page)
    return isinstance(content, dict) and "folders" in content


def _trained_noise(run: Path) -> tuple[float, float]:
    """γ that a run was trained with, and σ_x of its data."""
    from descend.records import read_json

    config = read_json(run / "config.json")
    if isinstance(config, dict) and config.get("sigma", 1) is None:
        raise InputError(f"{run} is not finished: σ_x of its embedding is known at its end. Go on with --resume.")
    try:
        return float(config["settings"]["noise"]), float(config["sigma"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{run / 'config.json'} is not that of a run of this version of descend: {error}.") from None


def _width(run: Path) -> int:
    """The dimension of a run's token embeddings."""
    from descend.records import read_json

    file = run / "model" / "config.json"
    if not file.is_file():
        raise InputError(f"{run} has no model to read the dimension from; finish the run first, or give --dimension.")
    config = read_json(file)
    # A denoiser of video may have a hidden size too, but its noise is on pixels: token embeddings need a vocabulary.
    found = config if isinstance(config, dict) and config.get("vocab_size") else {}
    width = found.get("hidden_size") or found.get("dim")
    if not isinstance(width, int):
        raise InputError(
            f"expected a model with token embeddings and their hidden_size or dim; {file} names none. Give "
            "--dimension, the length of each vector that the noise is added to."
        )
    return width


def _line(summary: dict[str, Any]) -> str:
    digits = 3 if summary["higher_is_better"] else 1
    curve = ", ".join(f"{value:.{digits}f}" for value in summary["values"])
    area = f", area {summary['auc']:.3f}" if summary["higher_is_better"] and summary["auc"] is not None else ""
    return (
        f"{summary['model']} {summary['method']} on {summary['dataset']}: mean {summary['metric']} "
        f"{summary['mean']:.{digits}f} over γ = {summary['noise'][0]:g} … {summary['noise'][-1]:g} ({curve}){area}, "
        f"{summary['train_value']:.{digits}f} at the training noise. {summary['verdict']}"
    )


def _nearest(word: str, names: Any) -> str:
    close = difflib.get_close_matches(word, list(names), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def _complain(message: str, status: int) -> int:
    print(f"descend: {message}", file=sys.stderr)
    return status
