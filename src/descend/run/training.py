"""Training: a recipe carried out in a folder, so that it can be repeated and resumed."""

import math
import signal
import sys
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import distributed
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging as transformers_logging

from descend.config import DescentConfig
from descend.errors import InputError, Interrupted, reason
from descend.recipes import Recipe
from descend.records import read_json, write_json
from descend.trainer import DUAL_FILE, DescentMixin

# Loading and saving a small model is no news; training and evaluation have bars of their own.
transformers_logging.disable_progress_bar()
datasets.disable_progress_bars()

CONFIG_FILE = "config.json"


def train(name: str, recipe: Recipe, args: DescentConfig, *, resume: bool = False) -> DescentMixin:
    """Carry out a recipe in ``args.output_dir``.

    Args:
        name: The recipe's name.
        recipe: Its settings.
        args: Its training arguments.
        resume: Go on from the folder's last checkpoint; from the start if it has none.

    Raises:
        InputError: If the folder exists (without ``resume``), or was made with other settings (with it).
        Interrupted: On Ctrl-C or SIGTERM, after a checkpoint was saved.
    """
    out, first = args.folder, args.process_index == 0
    recipe.check()
    args.primal_dual(recipe.depth)  # a wrong setting shows here, before any data are read
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"the output folder {out} exists; choose another with --out, or go on with --resume.")
    measured = {"loss", "violation", "feasible", recipe.task().metric}
    chosen = (args.metric_for_best_model or "loss").removeprefix("eval_")
    if chosen not in measured:
        raise InputError(f"metric_for_best_model must be one of {', '.join(sorted(measured))}; got {chosen!r}.")
    # What one process of a machine decodes, or has made into tokens, the others read.
    with args.main_process_first(desc="reading the data"):
        data = recipe.load()
    for note in getattr(data, "notes", ()) if first else ():
        tqdm.write(f"{data.name}: {note}", file=sys.stderr)
    args.warmup(_steps(args, len(data.train)))  # type: ignore[arg-type]
    set_seed(args.seed)
    model = recipe.network(data)
    noise = recipe.corruption(data.sigma, args.seed)
    config = {
        "descend": version("descend"),
        "recipe": name,
        "method": args.method,
        "seed": args.seed,
        "model": recipe.label,
        "dataset": data.name,
        "sigma": noise.sigma,
        "settings": asdict(recipe),
        "training": _stored(args),
        "versions": {each: version(each) for each in ("torch", "transformers", "accelerate")},
    }
    if resume:
        _same_run(out / CONFIG_FILE, config)
    try:
        trainer = recipe.trainer(model, args, noise, data, [stop := _StopOnSignal()])
    except (ValueError, ImportError, RuntimeError, OSError) as error:  # the libraries' own checks of their arguments
        if isinstance(error, InputError) or (isinstance(error, OSError) and error.errno):
            raise
        raise InputError(reason(error)) from error
    # All have looked at the folder by now.
    if first:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / CONFIG_FILE, config)
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    if not args.disable_tqdm:
        trainer.add_callback(_Bar)
    checkpoint = _last_checkpoint(out) if resume else None
    with stop:
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except ImportError as error:  # a setting that needs a library which is not there
            raise InputError(reason(error)) from error
        step, steps = trainer.state.global_step, trainer.state.max_steps
        if stop.asked and step < steps:
            raise Interrupted(f"stopped at step {step} of {steps}; saved in {out}.")
        trainer.evaluate()
        # On all processes: each may hold a part of the model.
        trainer.save_pretrained(out / "model")
        trainer.save_dual(out / DUAL_FILE)
        sigma = trainer.sigma
        if first:
            write_json(out / CONFIG_FILE, config | {"sigma": sigma, "seconds": round(trainer.seconds, 1)})
    return trainer


def _steps(args: DescentConfig, windows: int) -> int:
    """How many steps a run will take."""
    if args.max_steps > 0:
        return args.max_steps
    step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return math.ceil(args.num_train_epochs * windows / step)


def _stored(args: DescentConfig) -> dict[str, Any]:
    """The training arguments as JSON has them: all of Descend's own, and transformers' where they were changed."""
    defaults = type(args)(output_dir=args.output_dir, use_cpu=True).to_dict() | {"use_cpu": False}
    own = {one.name for one in fields(args)} - {one.name for one in fields(args.library)}
    keep = {one.name for one in fields(args) if one.init} - {"output_dir", "resume_from_checkpoint"}
    changed = {key for key, value in args.to_dict().items() if key in keep and value != defaults[key]}
    return {key: value for key, value in args.to_dict().items() if key in own | changed}


def _same_run(path: Path, config: dict[str, Any]) -> None:
    """Refuse to go on in a folder that other settings made."""
    before = read_json(path)
    steps = {"max_steps", "num_train_epochs", "save_steps", "eval_steps", "logging_steps"}
    free = steps | {"disable_tqdm", "dataloader_pin_memory"}
    old, new = ({**each["settings"], **each["training"], "recipe": each["recipe"]} for each in (before, config))
    differing = sorted(key for key in (old.keys() | new.keys()) - free if old.get(key) != new.get(key))
    if differing:
        pairs = ", ".join(f"{key} (was {old.get(key)}, now {new.get(key)})" for key in differing)
        raise InputError(f"{path.parent} was made with other settings: {pairs}. Give the same command to resume.")


def _last_checkpoint(out: Path) -> str | None:
    """The newest whole checkpoint: the trainer writes its state last."""
    found = [path.parent for path in out.glob("checkpoint-*/trainer_state.json")]
    return str(max(found, key=lambda path: int(path.name.split("-")[1]))) if found else None


class _StopOnSignal(TrainerCallback):
    """On the first Ctrl-C or SIGTERM finish the step, save and stop; on the second stop at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> None:
        self._before = {each: signal.signal(each, self._ask) for each in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *error: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        if args.world_size > 1:  # whoever was asked, all stop at the same step
            asked = torch.tensor(float(self.asked), device=args.device)
            distributed.all_reduce(asked)
            self.asked = bool(asked)
        if not self.asked:
            return None
        control.should_save = control.should_training_stop = True
        return control


class _Bar(ProgressCallback):
    """The trainer's progress bar, with the loss beside it in place of a line per log."""

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        shown = {name: logs[name] for name in ("loss", "eval_loss", "eval_violation") if name in (logs or {})}
        if state.is_world_process_zero and self.training_bar is not None and shown:
            self.training_bar.set_postfix({name: f"{value:.3f}" for name, value in shown.items()})
