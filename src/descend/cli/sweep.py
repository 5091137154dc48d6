"""descend sweep: the search of settings."""

import os
from collections.abc import Sequence
from pathlib import Path

from descend.cli.parsing import COMPLETING, declared, hyphenated, levels, talk
from descend.cli.settings import given_settings
from descend.errors import InputError
from descend.recipes import RECIPES


def sweep(words: Sequence[str]) -> None:
    """Search the settings of each method."""
    parser = declared(
        "sweep",
        "Search a recipe's settings for each method, with as many trials for each, chosen on validation data. Every "
        "setting of descend train RECIPE can be given: it holds for all trials, and is not searched. Give the same "
        "command again to continue a sweep, or in another terminal to share its trials.",
        "RECIPE --data PATH --trials N --out DIR [options] [settings]",
        {
            "--trials": dict(type=int, required=True, help="N, for each method: finished or pruned"),
            "--seeds": dict(type=int, default=1, metavar="K", help="runs of a trial, whose mean is its value [1]"),
            "--out": dict(type=Path, required=True, help="folder of the sweep"),
            "--storage": dict(metavar="URL", help="database of the trials [sqlite:///DIR/sweep.db]"),
            "--method": dict(action="append", metavar="NAME,NAME", help="methods to search [erm and the recipe's]"),
            "--range": dict(
                action="append", default=[], metavar="NAME=LOW:HIGH", help="where to search a number, such as cap=1:5"
            ),
            "--judge-noise": dict(type=levels, metavar="LEVELS", help="γ whose mean a trial is chosen by [evaluate's]"),
        },
        talks=True,
    )
    if COMPLETING in os.environ:
        parser.parse_args(words)  # answers the shell, with the options above
    # What is left are the recipe and its settings, which the parser of descend train looks at.
    options, given = parser.parse_known_args([hyphenated(word) for word in words])
    if "--resume" in given:
        raise InputError("a sweep goes on by itself; leave out --resume.")
    # Refuses what it can before slow imports.
    settings = given_settings([*given, "--out", str(options.out)])
    name = settings.pop("recipe")
    del settings["output_dir"], settings["quiet"], settings["log_level"]
    talk(vars(options))
    usual = RECIPES[name].settings.training.get("method", "constrained")
    methods = [method for part in options.method or [f"erm,{usual}"] for method in part.split(",")]
    from descend.report import write_sweep
    from descend.sweep.results import sentences
    from descend.sweep.space import read_ranges
    from descend.sweep.worker import sweep as search

    result = search(
        options.out,
        name,
        settings,
        methods=list(dict.fromkeys(methods)),
        trials=options.trials,
        seeds=options.seeds,
        storage=options.storage,
        ranges=read_ranges(options.range),
        levels=options.judge_noise,
    )
    print(f"\n{sentences(result)}\n{write_sweep(options.out)}")
