"""Commands that use what was trained or search settings: export, denoise, tasks, sweep and privacy."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.cli.parsing import COMPLETING, check_run, declared, hyphenated, levels, read, talk
from descend.cli.settings import given_settings
from descend.declared import AUTO, BEST, CERTIFIED, FORMATS
from descend.errors import InputError, refuse, refusing
from descend.settings import method_of

if TYPE_CHECKING:
    from descend.results import TaskResults


LAYERS_HELP = "a number; auto, chosen on validation data; certified, by test data; best, of validation data"
TOLERANCE_HELP = (
    "with auto, certified: how much worse than full depth at the training noise: 1, 2 or 5 points of an accuracy, "
    "percent of an error [2]"
)
FORMAT_HELP = f"{', '.join(FORMATS)}: a checkpoint, a model.onnx for onnxruntime, or an embedding model [by the model]"


def check_layers(layers: str) -> None:
    """Refuse a value of ``--layers`` that is no number and no way to choose one."""
    refuse(
        (
            layers not in (AUTO, CERTIFIED, BEST) and not layers.isdecimal(),
            f"layers must be a whole number of at least 1, auto, certified or best; got {layers!r}.",
        )
    )


def export(words: Sequence[str]) -> None:
    """Write the first K layers of a run's model."""
    options = read(
        words,
        "export",
        "Write the first K layers of a run's model, with its final norm and head, as a checkpoint of their own.",
        "RUN --layers K --out DIR [options]",
        {
            "run": dict(type=Path, help="folder of a trained run"),
            "--layers": dict(required=True, metavar="K", help=LAYERS_HELP),
            "--baseline": dict(
                type=Path,
                metavar="RUN",
                help="with auto, certified: evaluated run to be compared with [its evaluation's]",
            ),
            "--compare-with": dict(
                choices=("last", "best"),
                metavar="LAYER",
                help="with auto, certified: full depth is the last layer, or the best on validation data [its "
                "evaluation's]",
            ),
            "--tolerance": dict(type=float, help=TOLERANCE_HELP),
            "--model": dict(default="model", help="model or best_feasible [model]"),
            "--out": dict(type=Path, required=True, help="folder to write; new or empty"),
            "--format": dict(choices=FORMATS, metavar="NAME", help=FORMAT_HELP),
        },
        talks=True,
    )
    check_layers(options.layers)
    auto = not options.layers.isdecimal()
    refuse(
        (
            not auto and (options.tolerance, options.baseline, options.compare_with) != (None, None, None),
            "--tolerance, --baseline and --compare-with go with --layers auto, certified or best; leave them out, or "
            "let it choose layers.",
        ),
    )
    check_run(options.run, options.model)
    from descend.results import KEPT_WITHIN
    from descend.run import Run, exporting

    exporting.check_export(options.run, None if auto else int(options.layers), options.out, options.format)
    if auto:
        tolerance = KEPT_WITHIN if options.tolerance is None else options.tolerance
        layers, lines = exporting.choose(
            options.run,
            tolerance,
            options.model,
            options.baseline,
            how=options.layers,
            compare_with=options.compare_with,
        )
        print("\n".join(lines), flush=True)
    else:
        layers = int(options.layers)
    print("\n".join(Run.read(options.run, model=options.model).export(layers, options.out, options.format)))


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
                    help="for a trial: add noise of this γ first, in the unit of the training, and measure the error "
                    "[none]",
                ),
                "--limit": dict(type=int, metavar="N", help="only the first so many frames of each clip"),
                "--model": dict(default="model", metavar="NAME", help="model or best_feasible [model]"),
            },
            talks=True,
        )
    )
    from descend.results import DENOISERS, check_model, exported_type

    if exported_type(options["run"]) not in DENOISERS:
        check_run(options["run"], options["model"])
        check_model(options["run"], options["model"])
    from descend.run.denoising import denoise as write

    print("\n".join(write(**options)))


def tasks(words: Sequence[str]) -> None:
    """Evaluate runs of language models on lm-eval's tasks."""
    options = read(
        words,
        "tasks",
        "lm-eval's tasks for language models, over noise and at an exit; runs compared.",
        "RUN ... --tasks NAMES --out FILE [options]",
        {
            "runs": dict(
                type=Path, nargs="+", metavar="RUN", help="folders of trained runs of lm or llm-sft, or of exports"
            ),
            "--tasks": dict(
                required=True, metavar="NAMES", help="lm-eval's names or YAML files: arc_easy,my_task.yaml"
            ),
            "--out": dict(type=Path, required=True, help="JSON file to write"),
            "--noise": dict(type=levels, default="0", metavar="LEVELS", help="levels γ: 0,1,2 or 0:2:0.5 [0]"),
            "--layer": dict(type=int, help="K: evaluate exit K [full depth]"),
            "--model": dict(default="model", help="model or best_feasible [model]"),
            "--limit": dict(type=int, help="only the first so many samples of a task"),
            "--batch-size": dict(type=int, default=1, help="texts at a time; on a CPU one always [1]"),
            "--seed": dict(type=int, default=0, help="of the noise [0]"),
            "--trust-code": dict(action="store_true", help="run the Python that YAML files name"),
        },
        talks=True,
    )
    names = [name.strip() for name in options.tasks.split(",") if name.strip()]
    if not names:
        raise InputError("--tasks must name a task of lm-eval, or its YAML file; got none.")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    from descend.harness.evaluating import evaluate_tasks

    results = evaluate_tasks(
        options.runs,
        names,
        options.out,
        noise=options.noise,
        layer=options.layer,
        checkpoint=options.model,
        limit=options.limit,
        batch_size=options.batch_size,
        seed=options.seed,
        trust_code=options.trust_code,
    )
    print("\n".join([*task_lines(results), str(options.out)]))


def task_lines(results: "TaskResults") -> list[str]:
    """A line for each curve, and for each comparison."""
    names = [f"{each.run} ({each.method})" for each in results.runs]
    at = [f"γ = {level:g}" for level in results.noise]
    text = []
    for curve in results.curves:
        values = ", ".join(
            f"{value:.4g}{_interval(low, high)} at {level}"
            for value, low, high, level in zip(curve.values, curve.low, curve.high, at, strict=True)
        )
        text.append(f"{curve.task} {curve.metric} of {names[curve.run]}, {curve.samples} samples: {values}")
    for each in results.comparisons:
        values = ", ".join(
            f"{value:+.4g}{_interval(low, high)}{'' if p is None else f' p = {p:.2g}'} at {level}"
            for value, low, high, p, level in zip(each.differences, each.low, each.high, each.p_values, at, strict=True)
        )
        text.append(f"{each.task} {each.metric}, {names[each.run]} minus {names[0]}: {values}")
    return text


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"


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
    from descend.recipes import RECIPES
    from descend.report import write_sweep
    from descend.sweep.space import read_ranges, sentences
    from descend.sweep.worker import sweep as search

    ranges = read_ranges(options.range)
    usual = "erm" if settings.get("heal") else RECIPES[name].settings.usual_method()
    asked = method_of(ranges | settings, usual)
    methods = [method for part in options.method or [f"erm,{asked}"] for method in part.split(",")]
    result = search(
        options.out,
        name,
        settings,
        methods=list(dict.fromkeys(methods)),
        trials=options.trials,
        seeds=options.seeds,
        storage=options.storage,
        ranges=ranges,
        levels=options.judge_noise,
    )
    print(f"\n{sentences(result)}\n{write_sweep(options.out)}")


def privacy(words: Sequence[str]) -> None:
    """Print ε of noise on token embeddings, by noise level."""
    options = read(
        words,
        "privacy",
        "Local differential privacy of Gaussian noise on token embeddings: ε by noise level, for one token and for a "
        "whole text. It holds only if every embedding is clipped to a norm C, which descend does not do.",
        "[RUN] [options]",
        {
            "run": dict(type=Path, nargs="?", help="a run on text or a saved model: its noise, dimension …"),
            "--noise": dict(type=levels, metavar="LEVELS", help="levels γ: 1,20,200 or 0:200:50 [the run's]"),
            "--noise-is": dict(choices=("std", "variance"), help="what γσ_x is of the noise [the run's, or std]"),
            "--delta": dict(type=float, default=1e-5, help="δ, strictly between 0 and 1 [1e-5]"),
            "--dimension": dict(type=int, help="d of a token's embedding [the run's, or 768]"),
            "--sigma": dict(type=float, help="σ_x, std of the clean embedding [the run's, or 1]"),
            "--clip": dict(type=float, help="C, the norm that embeddings are clipped to [σ_x√d]"),
            "--tokens": dict(type=int, default=128, help="T, the length of a text [128]"),
        },
    )
    if options.run is None and options.noise is None:
        raise InputError("expected --noise with levels γ such as 1,20,200, or the folder of a run; got neither.")
    chosen: dict[str, Any] = {"sigma": 1.0, "noise_is": "std", "dimension": 768}
    gammas = options.noise or []
    if options.run is not None:
        trained, chosen["sigma"], chosen["noise_is"], kind = _trained_noise(options.run)
        if not gammas:
            _refuse_other_noise(options.run, kind)
            gammas = [trained]
        if (options.dimension, options.clip) == (None, None):
            chosen["dimension"] = _width(options.run)
    chosen |= {name: value for name, value in vars(options).items() if name in chosen and value is not None}
    if chosen["sigma"] is None:
        if chosen["noise_is"] == "variance" or options.clip is not None:
            raise InputError(f"{options.run} is a saved model, which does not hold σ_x of its embedding. Give --sigma.")
        chosen["sigma"] = 1.0  # ε does not depend on it
    from descend.privacy import page

    print(page(gammas, options.delta, clip=options.clip, tokens=options.tokens, **chosen))


def _trained_noise(run: Path) -> tuple[float, float | None, str, str]:
    """Training noise γ of a run or a saved model; σ_x, which only a run holds; what γσ_x is of the noise; its kind."""
    from descend.reading import read_json
    from descend.results import CONFIG_FILE, MODELS, read_config, read_trained

    path, sigma, saved = run / CONFIG_FILE, None, [read_trained(run), read_trained(run / MODELS[0])]
    records = [(each.noise, each.noise_is, _kind(each.method, each.shift)) for each in saved if each is not None]
    if saved[0] is None or (path.is_file() and "recipe" in read_json(path)):
        config = read_config(run)
        if config.sigma is None:
            raise InputError(f"{run} is not finished: σ_x of its embedding is known at its end. Resume it by --resume.")
        sigma, noise = config.sigma, config.settings.get("noise")
        if isinstance(noise, bool) or not isinstance(noise, int | float):
            raise InputError(f"{path} must hold settings.noise, a number; got {noise!r:.60}. Give --noise.")
        method = config.method if config.neftune_alpha is None else "neftune"
        kind = _kind(method, str(config.settings.get("shift", "gaussian")))
        records.append((noise, str(config.settings.get("noise_is", "std")), kind))
    if any(record != records[0] for record in records):
        told = " and ".join(f"γ = {noise}, {noise_is}, {kind}" for noise, noise_is, kind in dict.fromkeys(records))
        raise InputError(f"the records of {run} and of its model differ in the training noise: {told}. Train it again.")
    noise, noise_is, kind = records[0]
    return noise, sigma, noise_is, kind


_NO_EPSILON = {
    "uniform": "uniform noise has no finite ε: one output can rule a text out",
    "laplace": "Laplace noise has an ε by another norm, the sum of absolute values, which descend does not give",
    "dropout": "its noise is a rate of tokens left out, no standard deviation, and a token that stays is seen as it is",
    "neftune": "NEFTune's noise is uniform, which has no finite ε: one output can rule a text out",
}
"""Why other noise than Gaussian has no ε here."""


def _kind(method: str, shift: str) -> str:
    """The name of the training noise: ``gaussian``, one of `_NO_EPSILON`, or another one."""
    return "neftune" if method == "neftune" else next((each for each in _NO_EPSILON if each in shift), shift)


_WIDTHS = ("embedding_size", "word_embed_proj_dim", "hidden_size", "dim", "n_embd", "d_model")
"""Names of the dimension of a model's token embeddings; where they are projected, as in ALBERT, the first ones."""


def _refuse_other_noise(run: Path, kind: str) -> None:
    """Refuse a model whose training noise is not Gaussian: ε is that of Gaussian noise alone."""
    if kind != "gaussian":
        why = _NO_EPSILON.get(kind, f"its noise is {kind!r}, for which descend knows none")
        raise InputError(f"{run} has no ε: {why}. Give --noise for that of Gaussian noise of your choice.")


def _width(run: Path) -> int:
    """The dimension of a run's token embeddings."""
    from safetensors import safe_open

    from descend.reading import read_json
    from descend.results import ADAPTERS_FILE, CONFIG_FILE, holds_adapters, read_trained

    folder = run if read_trained(run) is not None else run / "model"
    todo = "finish the run first, or give --dimension."
    if holds_adapters(folder):  # the embeddings are in the model that they are for
        adapters = read_json(folder / ADAPTERS_FILE)
        base = adapters.get("base_model_name_or_path") if isinstance(adapters, dict) else None
        folder = Path(str(base))
        todo = f"its adapters are for {base!r:.80}, which is no folder here. Give --dimension."
    file = folder / CONFIG_FILE
    refuse((not file.is_file(), f"{run} has no model to read the dimension from; {todo}"))
    config = read_json(file)
    if isinstance(config, dict) and isinstance(config.get("encoder"), dict):  # of an embedding model, or mean pooling
        config = config["encoder"]
    # A denoiser of video may have a hidden size too, but its noise is on pixels: token embeddings need a vocabulary.
    entries = config if isinstance(config, dict) and config.get("vocab_size") else {}
    width = next((entries[name] for name in _WIDTHS if entries.get(name)), None)
    if type(width) is not int:
        raise InputError(
            f"expected a model with token embeddings and one of {', '.join(_WIDTHS)}; {file} names none. Give "
            "--dimension, the length of each vector that the noise is added to."
        )
    with refusing(f"the weights of {file.parent} can't be read", "Copy the model again."):
        shapes = [
            tensors.get_slice(name).get_shape()
            for weights in file.parent.glob("*.safetensors")
            for tensors in [safe_open(weights, "np")]
            for name in tensors.keys()  # noqa: SIM118
        ]
    embedding = [entries["vocab_size"], width]
    refuse(
        (
            bool(shapes) and embedding not in shapes,
            f"{file} names embeddings {embedding}, and its weights have none of that shape. Give --dimension.",
        )
    )
    return width
