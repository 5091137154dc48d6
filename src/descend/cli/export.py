"""The command ``descend export``: the first K layers of a run's model as a checkpoint."""

from collections.abc import Sequence
from pathlib import Path

from descend.cli.checks import check_run
from descend.cli.parsing import add_talk, command_parser, talk
from descend.errors import InputError


def export(words: Sequence[str]) -> None:
    """Write the first K layers of a run's model."""
    parser = command_parser(
        "export",
        "Write the first K layers of a run's model, with its final norm and head, as a plain checkpoint.",
        "RUN --layers K --out DIR [options]",
    )
    parser.add_argument("run", type=Path, help="folder of a trained run")
    parser.add_argument(
        "--layers", required=True, metavar="K", help="a number; or auto, the smallest within --tolerance"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help="with --layers auto: how much worse than full depth, on validation data at the training noise: percentage "
        "points of an accuracy, percent of an error [1]",
    )
    parser.add_argument("--model", default="model", help="model or best_feasible [model]")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; new or empty")
    add_talk(parser)
    options = talk(parser.parse_args(words))
    auto = options.layers == "auto"
    if not auto and not options.layers.isdecimal():
        raise InputError(f"layers must be a whole number of at least 1, or auto; got {options.layers!r}.")
    if options.tolerance is not None and not auto:
        raise InputError("--tolerance goes with --layers auto; leave it out, or let it choose the layers.")
    if options.tolerance is not None and not 0 <= options.tolerance <= 100:
        raise InputError(f"tolerance must lie between 0 and 100, in percent; got {options.tolerance:g}.")
    check_run(options.run, options.model)
    from descend.run.exporting import TOLERANCE, check_export, choose
    from descend.run.exporting import export as write

    check_export(options.run, None if auto else int(options.layers), options.out)
    if auto:
        tolerance = TOLERANCE if options.tolerance is None else options.tolerance
        layers, lines = choose(options.run, tolerance, options.model)
        print("\n".join(lines), flush=True)
    else:
        layers = int(options.layers)
    print("\n".join(write(options.run, layers, options.out, options.model)))
