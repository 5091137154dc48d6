"""Commands of many runs: the paper's figures and tables, and the search of settings."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.cli.parsing import COMPLETING, add_talk, command_parser, hyphenated, levels, talk
from descend.cli.runs import complete, draw, judged, line_of, train
from descend.cli.settings import add_recipe, given_settings, offered_recipes
from descend.errors import InputError, StudyError
from descend.methods import OF_METHOD
from descend.recipes import RECIPES
from descend.recipes.options import options as flags

if TYPE_CHECKING:
    from descend.paper.workers import Job

MOST_TRAIN_SAMPLES = 200
"""Training samples that a cell is also measured on, at most: the theory needs their losses in test mode."""


def reproduce(words: Sequence[str]) -> None:
    """Run what figures and tables of the paper need, and draw them."""
    parser = command_parser(
        "reproduce",
        "Figures and tables of the paper: runs what is missing, several at a time, and draws them beside the paper's. "
        "The same command goes on where it was stopped; on several machines with one disk they share the work.",
        "WHAT ... [options]",
    )
    parser.add_argument("what", nargs="+", help="figure-2, table-3, theory-1 …, all; or list, which names them")
    parser.add_argument("--scale", choices=("smoke", "small", "paper"), default="small", help="how much [small]")
    parser.add_argument("--data-root", type=Path, help="folder of the data sets; smoke needs none")
    parser.add_argument("--out", type=Path, default=Path("study"), help="folder of the study [study]")
    parser.add_argument("--workers", type=int, help="processes at a time [one for each core]")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run and what it takes, and end")
    parser.add_argument("--card", type=float, metavar="GB", help="memory of a GPU [80]")
    parser.add_argument("--tflops", type=float, metavar="X", help="a GPU's sustained TFLOP/s, for --dry-run [20]")
    add_talk(parser)
    options = talk(parser.parse_args(words))
    from descend.paper.grid import WANTED

    if options.what == ["list"]:
        print("\n".join(f"{name:14} {wanted.about}" for name, wanted in WANTED.items()))
        return
    from descend.cli.dry_run import by_hand_lines, plan_lines
    from descend.paper.plan import CARD_GB, TFLOPS
    from descend.paper.study import Study
    from descend.records.studies import CELLS_FILE

    workers = options.workers
    if workers is None:  # not all of a machine's cores are always ours; not all systems say
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise InputError(f"workers must be at least 1; got {workers}.")
    card = CARD_GB if options.card is None else options.card
    tflops = TFLOPS if options.tflops is None else options.tflops
    for name, value in (("card", card), ("tflops", tflops)):
        if not value > 0:
            raise InputError(f"{name} must be above 0; got {value:g}.")
    study = Study.of(options.what, options.scale, options.out, options.data_root)
    print(study.estimate(workers), flush=True)
    by_hand = study.by_hand(card)
    if options.dry_run:
        print("\n".join(plan_lines(study, card, tflops)), flush=True)
    if by_hand:
        print("\n".join(by_hand_lines(by_hand, card)), flush=True)
    if study.root is not None or not options.dry_run:
        study.check_data()
    if options.dry_run:
        return
    study.write()
    if models := study.models():
        _convert(models)
    threads = 1 if workers > 1 else None
    preload = ["descend.cli", "descend.run"]
    report = study.carry_out(partial(_carry_out, threads), workers=workers, preload=preload, left_out=by_hand)
    for name, why in report.diverged.items():
        print(f"{name} diverged, which is counted: {why}")
    for name, why in report.failed.items():
        print(f"{name} failed: {why}", file=sys.stderr, flush=True)
    if (study.out / CELLS_FILE).exists():
        draw(study.out, study.wanted)
    if report.failed:
        raise StudyError(f"{len(report.failed)} cells failed; each was named above. The others are done.")
    if by_hand:
        raise StudyError(
            f"{len(by_hand)} cells need several processes and were not run. Above is said what to do; then give this "
            "command again. The others are done."
        )


def _carry_out(threads: int | None, job: "Job") -> None:
    """Train and judge a cell of a study in this process, or what is left of it."""
    import torch

    from descend.paper.cell_store import ANSWERS_FILE, answered
    from descend.run import finished

    if threads is not None:
        torch.set_num_threads(threads)
    folder, begun = str(job.folder), (job.folder / "config.json").is_file()
    settings, judge, answer = map(job.resolved, (job.cell.settings, job.cell.judge, job.cell.answer))
    if not finished(job.folder):
        train([job.cell.recipe, *flags(settings), "--out", folder, *(["--resume"] if begun else [])])
    if not (job.folder / "summary.json").is_file():
        most = judge.get("most")
        train_samples = min(most, MOST_TRAIN_SAMPLES) if isinstance(most, int) else MOST_TRAIN_SAMPLES
        print(line_of(judged([folder, *flags(judge)], train_samples=train_samples)[1]))
    for gamma in answered(job.cell):
        file = job.folder / ANSWERS_FILE.format(gamma=gamma)
        if not file.is_file():
            complete([folder, *flags(answer), "--noise", f"{gamma:g}", "--out", str(file)])


def _convert(models: dict[Path, Path]) -> None:
    """Make folders that transformers reads of models that a study starts from."""
    from transformers.utils import logging

    from descend.models.llama2c import convert
    from descend.records import locked
    from descend.records.ownership import aside

    logging.disable_progress_bar()
    for target, source in models.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent, wait=True):
            if not target.exists():
                with aside(target) as part:
                    convert(source, part)


def sweep(words: Sequence[str]) -> None:
    """Search the settings of each method."""
    parser = command_parser(
        "sweep",
        "Search a recipe's settings for each method, with as many trials for each, chosen on validation data. Every "
        "setting of descend train RECIPE can be given: it holds for all trials, and is not searched. Give the same "
        "command again to continue a sweep, or in another terminal to share its trials.",
        "RECIPE --data PATH --trials N --out DIR [options] [settings]",
    )
    recipe = parser.add_argument("recipe", metavar="RECIPE", help="as descend train takes it")
    parser.add_argument("--trials", type=int, required=True, help="N, for each method: finished or pruned")
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="K", help="runs of a trial, whose mean is its value [1]"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the sweep")
    parser.add_argument("--storage", metavar="URL", help="database of the trials [sqlite:///DIR/sweep.db]")
    parser.add_argument("--method", action="append", metavar="NAME,NAME", help="methods to search [erm,constrained]")
    parser.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="NAME=LOW:HIGH",
        help="where to search a number, such as cap=1:5",
    )
    parser.add_argument(
        "--judge-noise",
        metavar="LEVELS",
        help="γ whose mean a trial is chosen by [evaluate's]",
    )
    add_talk(parser)
    if COMPLETING in os.environ:
        recipe.completer, parser.conflict_handler = offered_recipes, "resolve"  # type: ignore[attr-defined]
        add_recipe(parser, next((word for word in words if word in RECIPES), None))
        parser.parse_args(words)
    # What is left are the recipe's own settings, which its parser looks at.
    options, given = argparse.ArgumentParser.parse_known_args(parser, [hyphenated(word) for word in words])
    if "--resume" in given:
        raise InputError("a sweep goes on by itself; leave out --resume.")
    talk(options)
    # Refuses what it can before slow imports.
    given_settings([options.recipe, *given, "--out", str(options.out / "trials")])
    methods = [name for part in options.method or ["erm,constrained"] for name in part.split(",")]
    from descend.recipes import configure
    from descend.sweep.report.page import write_sweep
    from descend.sweep.results import sentences
    from descend.sweep.space import read_ranges
    from descend.sweep.worker import sweep as search

    def build(words: list[str], folder: Path) -> tuple[str, Any, Any]:
        settings = given_settings([options.recipe, *words, "--out", str(folder)])
        # A setting of one searched method is given once, for all trials.
        others = set().union(*(OF_METHOD.get(each, set()) for each in methods if each != settings["method"]))
        return configure(settings.pop("recipe"), **{key: settings[key] for key in settings.keys() - others})

    found = search(
        options.out,
        build,
        given,
        methods=list(dict.fromkeys(methods)),
        trials=options.trials,
        seeds=options.seeds,
        storage=options.storage,
        ranges=read_ranges(options.range),
        levels=None if options.judge_noise is None else levels(options.judge_noise),
    )
    print(f"\n{sentences(found)}\n{write_sweep(options.out)}")
