"""Commands on single runs: train, evaluate, compare, show."""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.cli.commands import FORMAT_HELP, LAYERS_HELP, TOLERANCE_HELP, check_layers
from descend.cli.parsing import check_data, check_run, levels, levels_or_all, read
from descend.cli.settings import read_recipe, recipe_list
from descend.declared import AUTO, CERTIFIED, DIGITS, FORMATS, PAIRS, SPLITS, TEXTS
from descend.errors import InputError, refuse
from descend.progress import is_quiet
from descend.reading import read_json, refuse_file

if TYPE_CHECKING:
    from descend.results import Results, Summary
    from descend.run import Run
    from descend.run.evaluating import FurtherEvaluator


def recipes(words: Sequence[str]) -> None:
    """List the recipes."""
    read(words, "recipes", "List the recipes.")
    print(recipe_list())


def train(words: Sequence[str]) -> None:
    """Train one model."""
    configured, resume = read_recipe(words)

    trainer = configured.train(resume=resume)
    if trainer.args.process_index == 0:
        finish(trainer)


def evaluate(words: Sequence[str]) -> None:
    """Evaluate a trained run."""
    show(*evaluated(words))


def show(folder: Path, summary: "Summary") -> None:
    """Print an evaluation's lines, and draw its page."""
    from descend.report.terminal import run_lines
    from descend.run.in_memory import draw_page

    print("\n".join(run_lines(summary)))
    if (page := draw_page(folder)) is not None:
        print(page)


_KINDS = ("gaussian", "uniform", "laplace", "dropout", "states")

EVALUATE: dict[str, dict[str, dict[str, Any]]] = {
    "data": {
        "--data": dict(metavar="PATH", help="other data; results go to RUN/on-NAME [the run's own]"),
        "--split": dict(choices=SPLITS, metavar="PART", default="test", help=f"{', '.join(SPLITS)} [test]"),
        "--limit --most": dict(
            dest="most",
            type=int,
            metavar="N",
            help="only N samples, evenly spaced [all]",
        ),
    },
    "model": {
        "--model": dict(metavar="NAME", default="model", help="model or best_feasible of the run [model]"),
        "--task": dict(choices=("classification",), help="evaluate a classifier of Transformers"),
        "--dataset": dict(choices=TEXTS, help="with --task: kind of texts [by the files]"),
        "--iterations": dict(type=int, metavar="N", help="iterations of a tied network, past its L [L]"),
        "--baseline": dict(type=Path, metavar="RUN", help="evaluated run to be compared with [full depth]"),
        "--compare-with": dict(
            choices=("last", "best"),
            metavar="LAYER",
            help="full depth is the last layer, or the best on validation data [best where last is 2 %% worse; else "
            "last]",
        ),
    },
    "noise": {
        "--noise": dict(type=levels, metavar="LEVELS", help="γ: 0,0.1,0.2 or 0:2:0.25 [8, to 3.5 × training]"),
        "--validation-noise": dict(
            type=levels_or_all, metavar="LEVELS", help="γ of validation data, or: all [0 and the training's]"
        ),
        "--shift": dict(choices=_KINDS, metavar="KIND", default=_KINDS[0], help=f"{', '.join(_KINDS)} [gaussian]"),
    },
    "early exits and probes": {
        "--exit": dict(action="store_true", help="evaluate early exits: accuracy by layers used"),
        "--risk": dict(type=float, metavar="X", help="with --exit: certify that so few lose an answer"),
        "--confidence": dict(type=float, metavar="X", help="with --risk: how sure that must be [0.95]"),
        "--unseen": dict(action="store_true", help="with --task and --risk: the model never saw the data"),
        "--probe": dict(action="store_true", help="fit and evaluate a linear probe at every layer"),
    },
    "output": {
        "--frames": dict(type=int, metavar="N", default=2, help="frames, images or texts to keep for the page [2]"),
    },
}
"""The options of ``descend evaluate``, in the groups of its help."""


def evaluated(words: Sequence[str]) -> tuple[Path, "Summary"]:
    """Evaluate a run without its page; returns the folder of its results, and its summary."""
    if "--layers" in words:
        raise InputError("how many layers a pretrained model needs is a command of its own: descend layers MODEL.")
    place = {"run": dict(type=Path, help="folder of a trained run, or with --task a model")}
    about = "Losses and errors by layer and noise level, and the verdict on the constraints."
    options = vars(read(words, "evaluate", about, "RUN [options]", place, groups=EVALUATE, talks=True))
    folder = options.pop("run")
    recipe = "text"
    if options["task"] is None or not (folder / "config.json").is_file():  # then it says what the folder is
        recipe = check_run(folder, options["model"])
    from descend.recipes import RECIPES, Recipe

    kind = RECIPES[recipe].settings if recipe in RECIPES else Recipe
    if kind.takes_files:
        check_data(options["data"], hub=kind.takes_hub_data, names=kind.names_of_data)
    further = _evaluators(options)
    reads = ("model", "data", "task", "dataset", "unseen")
    from descend.run import Run
    from descend.writing import locked

    run = Run.read(folder, **{name: options.pop(name) for name in reads})
    with locked(folder) if folder.is_dir() else nullcontext():
        summary = run.evaluate(further, **options)
    return run.folder or folder, summary


def _evaluators(options: dict[str, Any]) -> "list[FurtherEvaluator]":
    """The evaluators that flags ask for, which are taken out of the options; refuses flags that do not go together."""
    probe, early, risk, confidence = (options.pop(name) for name in ("probe", "exit", "risk", "confidence"))
    refuse(
        (risk is not None and not early, "--risk chooses the threshold of early exits; add --exit."),
        (
            options["unseen"] and (options["task"] is None or risk is None),
            "--unseen goes with --task and --risk; a run knows its own validation split. Leave it out.",
        ),
    )
    from descend.run import EarlyExits, LinearProbes

    further: list[FurtherEvaluator] = [LinearProbes()] if probe else []
    if early or confidence is not None:
        further.append(EarlyExits(risk, confidence))
    return further


def layers(words: Sequence[str]) -> None:
    """Say how many layers a pretrained model needs, as it is."""
    options = read(
        words,
        "layers",
        "How many layers a pretrained model needs as it is, by a readout fitted to each layer.",
        "MODEL --data DATA [options]",
        {
            "model": dict(help="folder or Hub name of a pretrained model of texts or images"),
            "--data": dict(metavar="DATA", required=True, help="data, as descend train text, image, lm, embed take"),
            "--task": dict(choices=("embed",), help="embed: pairs or triplets of texts, by an embedding model"),
            "--limit --most": dict(
                dest="most", type=int, metavar="N", help="only N samples, evenly spaced [1000; language models: 64]"
            ),
            "--dataset": dict(choices=(*TEXTS, *PAIRS), metavar="KIND", help="kind of texts [by the files]"),
            "--image-size": dict(type=int, metavar="N", help="of images, in pixels [the model's]"),
            "--max-length": dict(type=int, metavar="N", help="of texts, in tokens [128; lm: 256; embed: its own]"),
            "--compare-with": dict(
                choices=("last", "best"),
                metavar="LAYER",
                help="full depth is the last layer, or the best on validation data [best]",
            ),
            "--out": dict(type=Path, metavar="DIR", help="folder of the results [NAME-layers]"),
            "--save": dict(type=Path, metavar="FOLDER", help="also write the first K layers as a model; new or empty"),
            "--layers": dict(metavar="K", help=f"with --save: {LAYERS_HELP} [auto]"),
            "--tolerance": dict(type=float, help=TOLERANCE_HELP),
            "--format": dict(choices=FORMATS, metavar="NAME", help=f"with --save: {FORMAT_HELP}"),
        },
        talks=True,
    )
    check_data(options.data, hub=options.task is None, names=(DIGITS,) if options.task is None else ())
    refuse(
        (
            options.save is None and (options.layers, options.tolerance, options.format) != (None, None, None),
            "--layers, --tolerance and --format choose what --save writes; add --save FOLDER, or leave them out.",
        ),
        (
            (options.layers or "").isdecimal() and options.tolerance is not None,
            "--tolerance goes with --layers auto, certified or best, and not with a number. Leave one of them out.",
        ),
    )
    check_layers(options.layers or AUTO)
    from descend.results import ENOUGH_GROUPS, KEPT_WITHIN
    from descend.run import Run, exporting, frozen_folder
    from descend.writing import locked, refuse_full

    exporting.check_format(options.format, options.task or "", options.model)
    out = options.out or frozen_folder(options.model)
    refuse_file(out, "another place with --out")
    if options.save is not None:
        refuse_full(options.save, "another folder by --save")
        places = [Path(os.path.realpath(path)) for path in (out, options.save)]
        refuse(
            (
                places[0].is_relative_to(places[1]) or places[1].is_relative_to(places[0]),
                f"the results and the model need folders of their own; got --out {out} and --save {options.save}.",
            ),
        )
    given = {name: getattr(options, name) for name in ("dataset", "image_size", "max_length")}
    settings = {name: value for name, value in given.items() if value is not None}
    run = Run.frozen(options.model, options.data, out, most=options.most, task=options.task, **settings)
    exporting.check_format(options.format, run.provenance.recipe, options.model)
    tolerance = KEPT_WITHIN if options.tolerance is None else options.tolerance
    how = options.layers or AUTO
    refuse(
        (
            how == CERTIFIED and not run.task.bounded,
            f"no test certifies layers by {run.task.metric}, which is not known to be a share of the samples. Take "
            "--layers auto.",
        ),
        (
            how == CERTIFIED and len(run.samples) < ENOUGH_GROUPS,
            f"too few test samples to certify a layer: {len(run.samples)}, at least {ENOUGH_GROUPS} are needed, and "
            "hundreds to certify fewer layers. Give more data, or take --layers auto.",
        ),
    )
    exporting.check_choice(tolerance, int(how) if how.isdecimal() else None, run.depth, options.model)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        summary = run.evaluate(compare_with=options.compare_with)
    show(out, summary)
    if options.save is not None:
        number, lines = (int(how), []) if how.isdecimal() else exporting.choose(out, tolerance, how=how, answered=True)
        print("\n".join([*lines, *run.export(number, options.save, options.format)]))


def compare(words: Sequence[str]) -> None:
    """Compare evaluated runs on one page."""
    options = read(
        words,
        "compare",
        "One summary.json and one page over several evaluated runs.",
        "RUN RUN ... --out DIR",
        {
            "runs": dict(type=Path, nargs="+", metavar="RUN", help="folders of evaluated runs"),
            "--out": dict(type=Path, required=True, help="folder for summary.json and report.html"),
        },
    )
    page, compared = compare_runs(options.runs, options.out)
    from descend.report import ways_to_compare
    from descend.report.answer import Answer
    from descend.report.terminal import answer_lines
    from descend.report.words import method_words

    for each in compared:
        print(f"{each.folder} ({method_words(each.summary)}): {answer_lines(Answer.of(each.summary))}")
    for line in ways_to_compare(compared):
        print(line)
    print(page)


def report(words: Sequence[str]) -> None:
    """Write a page again."""
    folder = read(
        words,
        "report",
        "Write the page of an evaluated run, a comparison or a sweep again.",
        "DIR",
        {
            "folder": dict(type=Path, help="folder of an evaluated run, a comparison or a sweep"),
        },
    ).folder
    from descend.results import read_comparison

    if (folder / "sweep.json").is_file():
        from descend.report import write_sweep

        print(write_sweep(folder))
        return
    comparison = read_comparison(folder)
    from descend.report import write_page

    runs = _held([folder / each for each in comparison.folders])[1] if comparison else [folder]
    print(write_page(runs, folder))


def complete(words: Sequence[str]) -> None:
    """Answer prompts, or show answers side by side."""
    options = vars(
        read(
            words,
            "complete",
            "Answers of a language model to prompts, in AlpacaEval's form; or several models' side by side.",
            "RUN --prompts FILE --out FILE [options]",
            {
                "run": dict(type=Path, nargs="?", help="folder of a trained run of lm or llm-sft"),
                "--prompts": dict(type=Path, help="a JSON list or lines of prompts, as alpaca_eval.json"),
                "--compare": dict(type=Path, nargs="+", metavar="FILE", help="written answers, for one page"),
                "--out": dict(type=Path, required=True, help="file to write; with --compare the page or its folder"),
                "--noise": dict(type=float, help="γ on every token, the model's own too [the training's]"),
                "--model": dict(default="model", help="model or best_feasible [model]"),
                "--max-new-tokens": dict(type=int, default=256, help="longest answer [256]"),
                "--limit": dict(type=int, help="only the first so many prompts"),
                "--batch-size": dict(type=int, default=8, help="prompts at a time [8]"),
                "--seed": dict(type=int, default=0, help="of the noise [0]"),
            },
            talks=True,
        )
    )
    files = options.pop("compare")
    if files is not None:
        if options["run"] is not None or options["prompts"] is not None:
            raise InputError("--compare takes written answers, no run and no prompts.")
        from descend.report import write_completions

        print(write_completions(files, options["out"]))
        return
    if options["run"] is None or options["prompts"] is None:
        raise InputError("expected the folder of a run and --prompts; or --compare with written answers.")
    check_run(options["run"], options["model"])
    if not options["prompts"].is_file():
        raise InputError(f"{options['prompts']} must be a JSON file of prompts, as alpaca_eval.json; there is none.")
    from descend import run

    counts = run.complete(options.pop("run"), **options)
    skipped = f"; left out {counts['skipped']} whose prompt fills the context" if counts["skipped"] else ""
    print(f"{options['out']}: {counts['written']} answers{skipped}")


def carry_out(run: "Run", noise: Sequence[float], *, resume: bool = False) -> None:
    """Train a run, say how it ended, and evaluate it at noise levels in its folder."""
    from descend.run import Run
    from descend.writing import locked

    trainer = run.train(resume=resume)
    finish(trainer, evaluated_next=True)
    with locked(trainer.args.folder):
        Run.read(trainer.args.folder).evaluate(noise=noise)


def finish(trainer: Any, *, evaluated_next: bool = False) -> None:
    """Print how a run ended, with a warning if it is infeasible.

    Args:
        trainer: The trainer of the run.
        evaluated_next: Whether the command goes on with its evaluation, so that nobody has to be told of it.
    """
    from descend.report.terminal import missed_sentence
    from descend.report.words import less_words, verdict_sentence

    verdict, out, asks = trainer.verdict, trainer.args.folder, trainer.method.asks
    place = shlex.quote(str(out))
    words = ""
    if asks and not (evaluated_next and verdict.few_groups):  # the evaluation tells more
        words = (
            f": {verdict_sentence(verdict, 'the validation data')} {missed_sentence(verdict, trainer.args)}".rstrip()
        )
    print(f"trained {out}{words}")
    if not is_quiet() and not evaluated_next:
        print(f"How many layers suffice: descend evaluate {place}", file=sys.stderr)
    if asks and not verdict.feasible:
        kept = f"The best model that met the constraints is kept: descend evaluate {place} --model best_feasible"
        usual = "train longer, or for fewer steps or layers if only deep ones break; or ask for less by "
        usual += f"{less_words(trainer.args)}."
        none = f"No evaluated model met the constraints: {trainer.outlook.fault or usual}"
        print(f"WARNING: {kept if (out / 'best_feasible').is_dir() else none}", file=sys.stderr)


def compare_runs(runs: Sequence[Path], out: Path) -> tuple[Path, list["Results"]]:
    """Write the summary and the page of evaluated runs.

    Returns:
        The page; and the results, with layers held to the plain training among the runs.
    """
    from descend.results import PAGE_FILE, SUMMARY_FILE, Comparison, read_summary

    check_free_for_page(out)
    for run in runs:  # before anything slow is imported
        if not (run / SUMMARY_FILE).is_file():
            read_summary(run)
    evaluated, compared = _held(runs)
    from descend.report import write_page

    folders = [os.path.relpath(run, out) for run in runs]
    page = write_page(compared, out / PAGE_FILE)  # first: it may refuse a run
    Comparison(runs=evaluated, folders=folders).write(out / SUMMARY_FILE)
    return page, compared


def _held(runs: Sequence[Path]) -> tuple[list["Summary"], list["Results"]]:
    """The runs' summaries as they are; and all that a page shows, with layers held to the plain training among them."""
    from descend.evaluation.needed import held_to_plain
    from descend.results import Results

    found = [Results.read(run) for run in runs]
    compared = [replace(each, summary=summary) for each, summary in zip(found, held_to_plain(found), strict=True)]
    return [each.summary for each in found], compared


def refuse_ranks(command: str) -> None:
    """Refuse several processes for a command that trains and evaluates in turn, as torchrun starts them."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    advice = f"descend {command} runs in one process; got {ranks}. Start it without torchrun, which train alone takes."
    refuse((ranks > 1, advice))


def check_free_for_page(out: Path) -> None:
    """Refuse a folder whose summary.json or page is not a comparison's, since they would be overwritten."""
    from descend.results import CONFIG_FILE, PAGE_FILE, SUMMARY_FILE, SWEEP_FILE, refuse_foreign

    refuse_foreign([out / SUMMARY_FILE, out / PAGE_FILE], "another folder with --out")
    summary = read_json(out / SUMMARY_FILE) if (out / SUMMARY_FILE).exists() else {"folders": []}
    if out.is_file() or any((out / name).exists() for name in (CONFIG_FILE, SWEEP_FILE)) or "folders" not in summary:
        raise InputError(f"{out} holds something else than a comparison; choose another folder with --out.")
