"""Train a recipe in a folder, so that the run can be repeated and resumed."""

import logging
import math
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import torch
from torch import distributed
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import has_length
from transformers.utils import is_datasets_available
from transformers.utils import logging as transformers_logging

from descend.declared import flag_of
from descend.errors import InputError, Interrupted, Unsaved, reason
from descend.methods import CLASSES
from descend.progress import is_quiet, progress
from descend.recipes import Data, Recipe
from descend.report.words import verdict_sentence
from descend.results import (
    CONFIG_FILE,
    DUAL_FILE,
    FEASIBLE_FOLDER,
    LEDGER_FILE,
    MODELS,
    RunConfig,
    atomic_folder,
    forget_results,
    read_config,
    refuse_foreign,
    write_card,
)
from descend.run.describing import WRITTEN, differences, run_card, saved_form, stored, values_of
from descend.training import DescentMixin
from descend.training.checkpoints import DAMAGED, STOPPED, checkpoints
from descend.training.config import PROBLEM, DescentConfig
from descend.training.preset import Preset, paper
from descend.writing import LOCK_FILE, PART, locked

# Loading and saving need no progress bar; training and evaluation show their own progress.
transformers_logging.disable_progress_bar()
if is_datasets_available():
    from datasets import disable_progress_bars

    disable_progress_bars()

FEW_STEPS = 100
"""Below it a new head may be hardly trained: after 39 steps a fine-tuned encoder was worse than an untrained one with
fitted readouts."""


_OF_LENGTH = frozenset({"max_steps", "num_train_epochs", "save_steps", "eval_steps", "logging_steps"})
_OF_LENGTH |= {"load_best_model_at_end", "metric_for_best_model", "greater_is_better"}  # these depend on the steps
"""Settings that may differ where a run is resumed, as for a longer one."""


def train(
    recipe: Recipe,
    args: DescentConfig,
    given: Sequence[str] = (),
    *,
    resume: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    loaded: Data | None = None,
) -> DescentMixin:
    """Train a recipe in ``args.output_dir``.

    Args:
        recipe: What to train.
        args: Its training arguments.
        given: Names of the settings that the user gave, for the command of the model card; without them it has none.
        resume: Resume from the folder's newest whole checkpoint, or from the start if it has none.
        callbacks: Further callbacks of the training loop.
        loaded: The recipe's data, if they are loaded already.

    Raises:
        InputError: If the folder holds a run and ``resume`` is False, if it holds a checkpoint of other settings, or
            if another process writes there.
        Interrupted: On Ctrl-C or SIGTERM, after a checkpoint was saved.
        KeyboardInterrupt: On the same where there is nothing new to save.
        SaveError: If the disk is full or fails.
    """
    with _StopOnSignal() as stop:
        return _train(recipe, args, given, resume, stop, callbacks, loaded)


def _train(
    recipe: Recipe,
    args: DescentConfig,
    given: Sequence[str],
    resume: bool,
    stop: "_StopOnSignal",
    callbacks: Sequence[TrainerCallback],
    loaded: Data | None,
) -> DescentMixin:
    out, main = args.folder, args.should_save
    dataset = getattr(recipe, "dataset", "imdb")  # as it was given, which the preset depends on
    recipe = recipe.completed()
    _claim(out, resume)
    # One process of each machine decodes or tokenizes the data; the others read its cache.
    with args.main_process_first(desc="reading the data"):
        data = loaded or recipe.load()
    earlier = read_config(out) if resume and _begun(out) else None
    measured = None if earlier is None else earlier.training.get("cap")
    if args.measures_cap and isinstance(measured, float | int):
        args.take_cap(measured)  # where the run began
    run = recipe.resolve(args, data)
    for note in data.notes if main else ():
        tqdm.write(f"{data.name}: {note}", file=sys.stderr)
    assert run.recipe is not None
    recipe, preset = run.recipe, Preset()
    if args.preset is not None:
        preset = paper(recipe.name, args.method, dataset, {"dual_optimizer": args.dual_optimizer})
    config = RunConfig(
        descend=version("descend"),
        recipe=recipe.name,
        method=args.method,
        preset=args.preset,
        overridden=preset.overridden(vars(args), asdict(recipe)),
        given=values_of(given, recipe, args),
        seed=args.seed,
        model=recipe.label,
        dataset=data.name,
        sigma=run.noise.sigma,
        settings={name: value for name, value in asdict(recipe).items() if name not in WRITTEN},
        training=stored(args),
        versions={library: version(library) for library in ("torch", "transformers", "accelerate")},
        device=torch.cuda.get_device_name(args.device) if args.device.type == "cuda" else args.device.type,
    )
    if earlier is not None:
        old, new = (each.settings | each.training | {"recipe": each.recipe} for each in (earlier, config))
        free = _OF_LENGTH | ({"stop_gradient"} if args.alpha is None else set())
        if changed := differences(old, new, free):
            by_default = "method" not in given and "method" in old
            other = by_default and not differences(old, new, free | {"method"})
            advice = f"Add --method {old['method']}, its default then." if other else "Give the same command to resume."
            raise InputError(f"{out} was made with other settings: {changed}. {advice}")
    made = main and not out.exists()
    try:
        trainer = run.trainer([stop, *callbacks])
        planned = planned_steps(args, len(trainer.train_dataset))  # type: ignore[arg-type]  # TRL may have packed them
        args.warmup(*planned)
        bounds = {"cap": args.cap, "stop_gradient": args.stop_gradient}  # which the trainer may have measured
        config = config.model_copy(update={"training": config.training | bounds})
    except (ValueError, ImportError, RuntimeError, OSError) as error:  # Transformers and others check their arguments
        if made:  # by the trainer
            with suppress(OSError):
                out.rmdir()
        if isinstance(error, InputError) or (isinstance(error, OSError) and error.errno):
            raise
        raise InputError(reason(error)) from error
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_ForgetResults)
    if not args.disable_tqdm:
        trainer.add_callback(_ShowProgress)
    out.mkdir(parents=True, exist_ok=True)
    console = logging_redirect_tqdm([logging.getLogger("descend")])
    with locked(out) if main else nullcontext(), console:
        if main:
            _claim(out, resume)  # again, now that no other process can write
        checkpoint = trainer.last_checkpoint() if resume else None  # may refuse, before `config.json` is written anew
        if main:
            config.write(out / CONFIG_FILE)
        if resume and checkpoint is None and main:
            tqdm.write(f"{out} has no whole checkpoint to go on from: training from the start.", file=sys.stderr)
        if main and loaded is None:
            quiet = args.disable_tqdm or is_quiet()
            tell(recipe, data, quiet=quiet)
            if not quiet:
                tqdm.write(saved_form(trainer.model), file=sys.stderr)
            if data.labels and planned[0] < FEW_STEPS and not quiet:
                few = f"{planned[0]} steps in all: a new head may need more, by --num-train-epochs or --max-steps."
                tqdm.write(few, file=sys.stderr)
            if (unused := passed_over(args, given)) and not quiet:
                tqdm.write(f"{unused}: not used, since the method {args.method} has no multipliers.", file=sys.stderr)
            stated = [flag_of(name) for name in given if name in ("alpha", "within", "strength")]
            if stated and not trainer.method.constrained and not quiet:
                words = f"violations are measured by it, and the method {args.method} does not train for it."
                tqdm.write(f"{', '.join(stated)}: {words}", file=sys.stderr)
        try:
            trainer.train(resume_from_checkpoint=checkpoint, calibrate=False)
        except ImportError as error:  # a setting needs a library that is not installed
            raise InputError(reason(error)) from error
        if stop.saved:
            step, steps = trainer.state.global_step, trainer.state.max_steps
            raise Interrupted(f"stopped at step {step} of {steps}; saved in {out}.")
        try:
            trainer.calibrate()
            if trainer.method.asks:
                trainer.evaluate()  # the verdict on the model that is kept
        except KeyboardInterrupt:
            if checkpoints(out):
                raise
            raise Unsaved("interrupted after the last step; there is no checkpoint to go on from.") from None
        # All processes take part: each may hold a part of the model.
        with atomic_folder(out / "model") if main else nullcontext(out / "model") as folder:
            trainer.save_pretrained(folder)
        trainer.save_dual(out / DUAL_FILE)
        sigma = trainer.sigma  # on all processes
        if main:
            ended = {
                "sigma": sigma,
                "seconds": round(trainer.seconds, 1),
                "step": trainer.kept_step,
                "steps": trainer.state.global_step,
                "temperature": trainer.temperature,
                "neftune_alpha": trainer.neftune_noise_alpha,
            }
            config.model_copy(update=ended).write(out / CONFIG_FILE)
            judged = trainer.verdict
            verdict = verdict_sentence(judged, "the validation data") if judged is not None and judged.asked else ""
            trainer.records.flush()
            write_card(out / "model", run_card(out, trainer.users_model, verdict=verdict))
    return trainer


def passed_over(args: DescentConfig, given: Sequence[str]) -> str:
    """The flags of given settings that neither this method nor an evaluation uses; empty if there are none."""
    used = {"method", *PROBLEM}
    return ", ".join(flag_of(name) for name in given if name in args.idle - used)


def tell(recipe: Recipe, data: Data, *, quiet: bool) -> None:
    """Print what is read, and warnings; if ``quiet`` warnings alone."""
    told = (recipe.about(data), recipe.about_noise(data))
    lines, warnings = ([line for part in side for line in part] for side in zip(*told, strict=True))
    for line in [*([] if quiet else lines), *(f"WARNING: {warning}" for warning in warnings)]:
        tqdm.write(line, file=sys.stderr)


def finished(folder: Path) -> bool:
    """Whether a folder holds a finished run."""
    return (folder / CONFIG_FILE).is_file() and read_config(folder).finished


def _claim(out: Path, resume: bool) -> None:
    """Refuse a folder that a new run would overwrite, or that holds no run to resume."""
    left = (LOCK_FILE, PART, LEDGER_FILE)  # files of a run that was killed early
    if not out.exists() or (out.is_dir() and all(path.name.startswith(left) for path in out.iterdir())):
        return
    if resume:
        read_config(out)
        refuse_foreign([out / name for name in (CONFIG_FILE, MODELS[0], DUAL_FILE)], "another folder with --out")
    elif (out / CONFIG_FILE).is_file() and not _begun(out):
        raise InputError(
            f"the output folder {out} holds a run without a checkpoint; start it over with --resume, with these "
            "settings or others, or choose another with --out."
        )
    else:
        raise InputError(f"the output folder {out} exists; choose another with --out, or resume the run with --resume.")


def _begun(out: Path) -> bool:
    """Whether a run has saved something that a run of other settings would overwrite."""
    saved = [
        out / "model",
        out / FEASIBLE_FOLDER,
        *out.glob(f"{DAMAGED}*"),
        *out.glob(f"{STOPPED}*"),
        *checkpoints(out),
    ]
    return any(path.exists() for path in saved)


def planned_steps(args: DescentConfig, windows: int) -> tuple[int, int]:
    """The number of steps of a run, and of an epoch."""
    batch = args.train_batch_size * args.world_size
    batches = windows // batch if args.dataloader_drop_last else math.ceil(windows / batch)
    epoch = max(1, math.ceil(batches / args.gradient_accumulation_steps))
    return args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch), epoch


class _StopOnSignal(TrainerCallback):
    """On the first Ctrl-C or SIGTERM finish the step or the evaluation, save and stop; on the second stop at once.

    Before the first step and after the last there is nothing new to save, so the first signal stops at once. All
    processes stop after the same step, whichever of them got the signal.
    """

    def __init__(self) -> None:
        self.asked = self.stopping = self.saved = self.stepping = False

    def __enter__(self) -> "_StopOnSignal":
        # Python gives signals to the main thread alone, and lets no other one take them.
        taken = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()
        self._before = {each: signal.signal(each, self._ask) for each in taken}
        return self

    def __exit__(self, *error: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _ask(self, *_: object) -> None:
        again, self.asked = self.asked, True
        if again or not self.stepping:
            raise KeyboardInterrupt
        if not is_quiet():  # to stderr, and not by print, which a signal may have cut off halfway
            with suppress(OSError):  # the terminal may be gone
                os.write(2, b"\nstopping after this step, and its evaluation if one is due; Ctrl-C stops at once.\n")

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.asked and not self.stepping:  # Python ignores what is raised in a weak reference's callback
            raise KeyboardInterrupt
        self.stepping = True

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.stopping = self.asked
        if args.world_size > 1:
            # `asked` counts the signals of this process alone.
            asked = torch.tensor(float(self.asked), device=args.device)
            distributed.all_reduce(asked, distributed.ReduceOp.MAX)
            self.stopping = bool(asked)
        control.should_save |= self.stopping

    on_evaluate = on_step_end

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.saved = self.stopping
        control.should_training_stop |= self.stopping

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.stopping and (state.epoch or 0) % 1:  # stopped within the epoch
            control.should_log = control.should_evaluate = control.should_save = False

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.stepping = False


class _ForgetResults(TrainerCallback):
    """At a run's next step, removes its evaluation: that is of an earlier model."""

    begun = False

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        out = args.folder
        if not self.begun and state.is_world_process_zero and forget_results(out):
            tqdm.write(f"{out}: its evaluation, of an earlier step, is removed; evaluate again.", file=sys.stderr)
        self.begun = True


class _ShowProgress(ProgressCallback):
    """Shows the steps, the time left and the last logged losses, on the main process."""

    training_bar: Any
    prediction_bar: Any

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.current_step = state.global_step
        if state.is_world_process_zero:
            self.training_bar = progress(state.max_steps, "training", "step", initial=state.global_step)

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            if self.prediction_bar is None:
                count = len(eval_dataloader) if has_length(eval_dataloader) else None
                self.prediction_bar = progress(count, "evaluating", "part", leave=False)
            self.prediction_bar.update()

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        names = ("loss", "eval_loss", *(["eval_violation"] if CLASSES[args.method].asks else []))
        shown = {name: logs[name] for name in names if name in (logs or {})}
        if self.training_bar is not None and shown:
            values = ", ".join(f"{name} {value:.3f}" for name, value in shown.items())
            self.training_bar.set_postfix_str(values, refresh=False)
