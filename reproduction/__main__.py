"""python -m reproduction: the paper's figures and tables, run and drawn, from a checkout of Descend."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from descend import InputError
from reproduction.grids import SCALES
from reproduction.run import STUDY_FILE, Session, Study, jobs, listing, read_json, write_json


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 done, 1 not read, 130 interrupted. Wrong input ends it with 2."""
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (
        ("run", "run the cells that are not done"),
        ("list", "cells, done or not, and the hours left"),
        ("jobs", "write the cells that are not done as a list of command lines, for another machine"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("names", nargs="*", metavar="NAME", help="only cells whose name contains one of these")
        command.add_argument("--scale", choices=SCALES, default="small", help="how much [small]")
        command.add_argument("--out", type=Path, default=Path("study"), help="the study's folder [study]")
        command.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets [data]")
        command.add_argument("--models", type=Path, default=Path("models"), help="folder of pretrained models [models]")
        if name == "run":
            command.add_argument("--workers", type=int, default=2, help="cells at a time, one thread each [2]")
            command.add_argument("--minutes", type=float, default=float("inf"), help="then start no cell [no end]")
            command.add_argument("--again", action="store_true", help="try cells again that failed")
        if name == "jobs":
            command.add_argument("--file", type=Path, required=True, help="the list; --data and --models are there")
    collect = commands.add_parser("collect", help="write a study as one small file")
    collect.add_argument("study", type=Path, help="the study's folder")
    collect.add_argument("--out", type=Path, required=True, help="the file, a row a line")
    page = commands.add_parser("page", help="draw figures, tables and the page")
    page.add_argument("study", type=Path, help="a study's folder, or the file that collect wrote")
    page.add_argument("--out", type=Path, required=True, help="folder for them")
    for name in ("run", "list", "jobs", "collect"):
        commands.choices[name].add_argument("--known", type=Path, help="file of collect, whose cells are done [none]")
    dry = commands.add_parser("dry-run", help="what scale paper needs in memory and hours")
    dry.add_argument("--tflops", type=float, default=20.0, help="a GPU's sustained TFLOP/s, an assumption [20]")
    given = parser.parse_args(argv)
    calls = {"run": _run, "list": _list, "jobs": _jobs, "collect": _collect, "page": _page, "dry-run": _dry_run}
    try:
        status = calls[given.command](given, parser)
        sys.stdout.flush()
        return status
    except InputError as error:
        parser.error(str(error))
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _list(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    print("\n".join(listing(_study(given, parser), given.names)))
    return 0


def _jobs(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    listed, left_out = jobs(_study(given, parser), given.names)
    given.file.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.file, listed)
    print("; ".join([f"{len(listed)} jobs in {given.file}", *(f"{left} {why}" for why, left in left_out.items())]))
    return 0


def _run(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    study = _study(given, parser)
    if study.folder.is_dir() and any(study.folder.iterdir()) and not (study.folder / STUDY_FILE).is_file():
        parser.error(f"{study.folder} holds something else than a study; choose another folder with --out.")
    study.folder.mkdir(parents=True, exist_ok=True)
    write_json(study.folder / STUDY_FILE, {"scale": given.scale})
    status = Session(study, given.names, given.minutes, given.again).go(given.workers)
    print(listing(study, given.names)[-1])
    return status


def _study(given: argparse.Namespace, parser: argparse.ArgumentParser) -> Study:
    begun = read_json(given.out / STUDY_FILE)
    if begun is not None and begun["scale"] != given.scale:
        parser.error(f"{given.out} is a study of scale {begun['scale']}; give that by --scale, or another --out.")
    study = Study(given.out.absolute(), given.scale, SCALES[given.scale], given.data, given.models)
    return _knowing(study, given, parser)


def _knowing(study: Study, given: argparse.Namespace, parser: argparse.ArgumentParser) -> Study:
    """The study with the rows of ``--known``."""
    if given.known is None:
        return study
    known = replace(study, known=given.known)
    with suppress(OSError, ValueError, TypeError, KeyError):
        if known.earlier[0]["scale"] == study.name:
            return known
    parser.error(f"--known must be a file that collect wrote of scale {study.name}; got {given.known}.")


def _read(folder: Path, parser: argparse.ArgumentParser) -> Any:
    """The study of a folder, or the file itself."""
    begun = read_json(folder / STUDY_FILE) if folder.is_dir() else None
    if begun is None and not folder.is_file():
        parser.error(f"{folder} must be a study's folder, with {STUDY_FILE}, or a file that collect wrote.")
    return folder if begun is None else Study(folder.absolute(), begun["scale"], SCALES[begun["scale"]])


def _collect(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from reproduction.table import write

    study = _read(given.study, parser)
    if not isinstance(study, Study):
        parser.error(f"{given.study} must be a study's folder.")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{write(_knowing(study, given, parser), given.out)} rows in {given.out}")
    return 0


def _page(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from reproduction.page import write
    from reproduction.table import read

    print(write(read(_read(given.study, parser)), given.out))
    return 0


def _dry_run(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from reproduction.cells import cells
    from reproduction.dry_run import lines

    print("\n".join(lines(SCALES["paper"], cells(SCALES["paper"], {}), given.tflops)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
