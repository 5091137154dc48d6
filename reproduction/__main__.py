"""python -m reproduction: the paper's figures and tables, run and drawn, from a checkout of Descend."""

import os
import sys
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from descend.cli import carried_out
from descend.cli.parsing import add_talk, command_parser, talk
from descend.cli.runs import complete, evaluated, line_of, train
from descend.errors import InputError, StudyError
from descend.settings import options as flags

if TYPE_CHECKING:
    from reproduction.workers import Job

PROGRAM = "python -m reproduction"

MOST_TRAIN_SAMPLES = 200
"""Training samples that a cell is also measured on, at most: the theory needs their losses in test mode."""


def reproduce(words: Sequence[str]) -> None:
    """Run what figures and tables of the paper need, and draw them."""
    parser = command_parser(
        "",
        "Figures and tables of the paper: runs what is missing, several at a time, and draws them beside the paper's. "
        "The same command goes on where it was stopped; on several machines with one disk they share the work.",
        "WHAT ... [options]\n       python -m reproduction report STUDY",
        program=PROGRAM,
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
    from reproduction.grid import WANTED

    if options.what == ["list"]:
        print("\n".join(f"{name:14} {wanted.about}" for name, wanted in WANTED.items()))
        return
    from reproduction.dry_run import by_hand_lines, plan_lines
    from reproduction.plan import CARD_GB, TFLOPS
    from reproduction.records import CELLS_FILE
    from reproduction.study import Study

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


def report(words: Sequence[str]) -> None:
    """Write the page of a study again."""
    parser = command_parser("report", "Write figures, tables and page of a study again.", "STUDY", program=PROGRAM)
    parser.add_argument("study", type=Path, help="folder of a study, with cells.jsonl")
    study = parser.parse_args(words).study
    from reproduction.records import CELLS_FILE

    if not (study / CELLS_FILE).is_file():
        raise InputError(f"{study} has no {CELLS_FILE}; expected the folder of a study.")
    draw(study)


def draw(out: Path, figures: Collection[str] | None = None) -> None:
    """Write a study's figures, tables and page, and print its claims.

    Args:
        out: The study's folder.
        figures: Print the claims of these figures and tables; None for all.
    """
    from reproduction.cell_store import mixed
    from reproduction.report import write_study
    from reproduction.report.cells import arm_name

    for warning in mixed(out):
        print(f"WARNING: {warning}", file=sys.stderr, flush=True)
    claims, page = write_study(out)
    for claim in claims:
        if figures is None or claim.figure in figures:
            form = f", {arm_name(claim.form)}" if claim.form else ""
            print(f"{claim.figure}{form}: {claim.held}. {claim.claim} {claim.sentence}")
    print(page)


def _carry_out(threads: int | None, job: "Job") -> None:
    """Train and judge a cell of a study in this process, or what is left of it."""
    import torch

    from descend.run import finished
    from reproduction.cell_store import ANSWERS_FILE, answered

    if threads is not None:
        torch.set_num_threads(threads)
    folder, begun = str(job.folder), (job.folder / "config.json").is_file()
    settings, judge, answer = map(job.resolved, (job.cell.settings, job.cell.judge, job.cell.answer))
    if not finished(job.folder):
        train([job.cell.recipe, *flags(settings), "--out", folder, *(["--resume"] if begun else [])])
    if not (job.folder / "summary.json").is_file():
        most = judge.get("most")
        train_samples = min(most, MOST_TRAIN_SAMPLES) if isinstance(most, int) else MOST_TRAIN_SAMPLES
        print(line_of(evaluated([folder, *flags(judge)], train_samples=train_samples)[1]))
    for gamma in answered(job.cell):
        file = job.folder / ANSWERS_FILE.format(gamma=gamma)
        if not file.is_file():
            complete([folder, *flags(answer), "--noise", f"{gamma:g}", "--out", str(file)])


def _convert(models: dict[Path, Path]) -> None:
    """Make folders that transformers reads of models that a study starts from."""
    from transformers.utils import logging

    from descend.results import locked
    from descend.results.ownership import atomic_folder
    from examples.convert_llama2c import convert

    logging.disable_progress_bar()
    for target, source in models.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent, wait=True):
            if not target.exists():
                with atomic_folder(target) as part:
                    convert(source, part)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for; returns the exit status, as that of ``descend``."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = report if words[:1] == ["report"] else reproduce
    return carried_out(command, words[command is report :], program=PROGRAM, goes_on=command is reproduce)


if __name__ == "__main__":
    sys.exit(main())
