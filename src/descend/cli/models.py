"""Commands that use the model of a run: ``descend export`` and ``descend denoise``."""

from collections.abc import Sequence
from pathlib import Path

from descend.cli.checks import check_run
from descend.cli.parsing import read
from descend.errors import InputError


def export(words: Sequence[str]) -> None:
    """Write the first K layers of a run's model."""
    options = read(
        words,
        "export",
        "Write the first K layers of a run's model, with its final norm and head, as a plain checkpoint.",
        "RUN --layers K --out DIR [options]",
        {
            "run": dict(type=Path, help="folder of a trained run"),
            "--layers": dict(required=True, metavar="K", help="a number; or auto, the smallest within --tolerance"),
            "--baseline": dict(
                type=Path,
                metavar="RUN",
                help="with --layers auto: evaluated run to be compared with [its evaluation's]",
            ),
            "--tolerance": dict(
                type=float,
                help="with --layers auto: how much worse than full depth, on validation data at the training noise: "
                "1, 2 or 5 points of an accuracy, percent of an error [2]",
            ),
            "--model": dict(default="model", help="model or best_feasible [model]"),
            "--out": dict(type=Path, required=True, help="folder to write; new or empty"),
        },
        talks=True,
    )
    auto = options.layers == "auto"
    if not auto and not options.layers.isdecimal():
        raise InputError(f"layers must be a whole number of at least 1, or auto; got {options.layers!r}.")
    if not auto and (options.tolerance, options.baseline) != (None, None):
        raise InputError(
            "--tolerance and --baseline go with --layers auto; leave them out, or let it choose the layers."
        )
    check_run(options.run, options.model)
    from descend.results.findings import KEPT_WITHIN
    from descend.run.exporting import check_export, choose
    from descend.run.exporting import export as write

    check_export(options.run, None if auto else int(options.layers), options.out)
    if auto:
        tolerance = KEPT_WITHIN if options.tolerance is None else options.tolerance
        layers, lines = choose(options.run, tolerance, options.model, options.baseline)
        print("\n".join(lines), flush=True)
    else:
        layers = int(options.layers)
    print("\n".join(write(options.run, layers, options.out, options.model)))


def denoise(words: Sequence[str]) -> None:
    """Write denoised frames of videos."""
    options = vars(
        read(
            words,
            "denoise",
            "Denoise videos with a run of a video recipe, and write every frame as a grey PNG of 160x160 pixels.",
            "RUN --data PATH --out FOLDER [options]",
            {
                "run": dict(type=Path, help="a trained run of video-ut, video-dust or video-vit, or its export"),
                "--data": dict(type=Path, required=True, help="videos or images, a folder or a file"),
                "--out": dict(type=Path, required=True, metavar="FOLDER", help="folder to write; new or empty"),
                "--layer": dict(type=int, metavar="K", help="stop after layer K [the last]"),
                "--noise": dict(
                    type=float,
                    metavar="X",
                    help="for a trial: add noise of this γ first, in std of the training data, and measure the error "
                    "[none]",
                ),
                "--model": dict(default="model", metavar="NAME", help="model or best_feasible [model]"),
            },
            talks=True,
        )
    )
    from descend.results import check_model
    from descend.results.config import DENOISERS, exported_type

    if exported_type(options["run"]) not in DENOISERS:
        check_run(options["run"], options["model"])
        check_model(options["run"], options["model"])
    from descend.run.denoising import denoise as write

    print("\n".join(write(**options)))
