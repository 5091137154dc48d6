"""python -m reproduction: the paper's figures and tables, run and drawn, from a checkout of Descend."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reproduction.grids import SCALES
from reproduction.run import STUDY_FILE, Session, Study, listing, read_json, write_json


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 done, 1 some cells failed, 2 wrong input, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (("run", "run the cells that are not done"), ("list", "cells, done or not, and the hours left")):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("names", nargs="*", metavar="NAME", help="only cells whose name contains one of these")
        command.add_argument("--scale", choices=SCALES, default="small", help="how much [small]")
        command.add_argument("--out", type=Path, default=Path("study"), help="the study's folder [study]")
        command.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets [data]")
        command.add_argument("--models", type=Path, default=Path("models"), help="folder of pretrained models [models]")
        command.add_argument("--workers", type=int, default=2, help="cells at a time, one thread each [2]")
        command.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so many [no end]")
        command.add_argument("--again", action="store_true", help="try cells again that failed")
    given = parser.parse_args(argv)
    places = {"data": given.data.absolute(), "models": given.models.absolute(), "here": Path(__file__).parent}
    study = Study(given.out.absolute(), SCALES[given.scale], places)
    began = read_json(study.folder / STUDY_FILE)
    if began is not None and began["scale"] != given.scale:
        parser.error(f"{given.out} is a study of scale {began['scale']}; give that by --scale, or another --out.")
    if given.command == "list":
        print("\n".join(listing(study, given.names)))
        return 0
    study.folder.mkdir(parents=True, exist_ok=True)
    write_json(study.folder / STUDY_FILE, {"scale": given.scale})
    return Session(study, given.names, given.minutes, given.again).go(given.workers)


if __name__ == "__main__":
    sys.exit(main())
