"""The settings of constrained training, added to the training arguments of Transformers and TRL."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from descend.core import DescentProblem, GeometricTarget, NearLast, NoWorse, PrimalDual
from descend.core.rules import LEARNING_RATES
from descend.core.targets import step_numbers
from descend.errors import InputError, refuse
from descend.methods import CLASSES
from descend.models import MOST_LAYERS
from descend.reading import refuse_file
from descend.settings import (
    METHODS,
    STATED,
    WITH_AFTER,
    WITH_ALPHA,
    WITHOUT_ALPHA,
    DescentSettings,
    check,
    method_of,
    read_alpha,
    settings_of_others,
)
from descend.training.preset import paper

# At run time the settings have no base: deriving from `TrainingArguments` would override TRL's defaults.
if TYPE_CHECKING:
    _TrainerArguments = TrainingArguments
else:
    _TrainerArguments = object


def all_measured_are_saved(args: Mapping[str, Any]) -> bool:
    """Whether every evaluated model that may be the best is saved as a checkpoint.

    Args:
        args: Training arguments by name.
    """
    evaluated, saved = IntervalStrategy(args["eval_strategy"]), SaveStrategy(args["save_strategy"])
    if evaluated == IntervalStrategy.NO:
        return False
    steps = args["eval_steps"] or args["logging_steps"]  # as in Transformers
    alike = evaluated.value == saved.value and (saved != SaveStrategy.STEPS or steps == args["save_steps"])
    return alike or saved == SaveStrategy.BEST


def drop_what_contradicts(values: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Drop those defaults of a recipe or a preset that contradict a given setting.

    Args:
        values: Training arguments by name, which change.
        given: Those that the user gave.
    """
    values["method"] = method_of({**{name: values[name] for name in STATED}, **given}, values["method"])
    method = CLASSES.get(values["method"])  # an unknown one is refused later
    if method is not None and method.own_exits and "exits" not in given:
        values["exits"] = None
    if "num_train_epochs" in given and "max_steps" not in given:
        values["max_steps"] = -1  # the recipe's number of steps would override the epochs
    if "load_best_model_at_end" not in given and not all_measured_are_saved(values):
        values["load_best_model_at_end"] = False
    if not values.get("load_best_model_at_end") and "metric_for_best_model" not in given:
        values["metric_for_best_model"] = None


REFUSED = {
    "save_only_model": "a run can't resume without its multipliers.",
    "auto_find_batch_size": "Transformers starts again with smaller batches, but the multipliers would not. Choose "
    "per_device_train_batch_size, and gradient_accumulation_steps to make up for it.",
    "enable_jit_checkpoint": "Ctrl-C and SIGTERM already save a checkpoint, and it would catch the signal first.",
    "save_on_each_node": "one process writes a run's folder. Use a folder that all machines share.",
    "bf16_full_eval": "the verdict needs the model's own precision.",
    "fp16_full_eval": "the verdict needs the model's own precision.",
    "batch_eval_metrics": "compute_metrics sees all samples at once. To hold less of them, reduce each batch's logits "
    "in preprocess_logits_for_metrics.",
}
"""Trainer settings that we refuse, with the reason."""

USED_BY_ALL = {"preset", "exits", "head_lr_ratio", "calibrate", "patience", "dataloader_pin_memory"}
"""Settings of Descend that every method uses."""

MEASURED = ("feasible", "loss", "merit", "violation")
"""What every evaluation measures beside the task's metric, see `metric_for_best_model`."""

OF_ALPHA = {"alpha_decay": 1.0, "cap": None, "cap_layer": None, "form": "difference"}
"""Settings that belong to ``alpha``, and their defaults."""

PROBLEM = ("strength", *STATED, "alpha_decay", "cap", "cap_layer", "first_layer", "form")
"""The settings that say which constraints a model is evaluated by."""

AFTER_RATE = 0.05
"""The learning rate of the projected ascent of ``after``, whose violations are relative."""

FILLED = ("strength", "dual_optim_args")
"""Settings for which recipes have their own defaults, see `DescentArguments.fill`."""


@dataclass
class DescentArguments(DescentSettings, _TrainerArguments):
    """The constrained problem and its solution: settings that extend a trainer's own arguments."""

    library: ClassVar[type]
    """The trainer's own class of arguments, without Descend's settings."""

    def __post_init__(self) -> None:
        self._check()
        if self.patience is not None:
            self.load_best_model_at_end = True
        if self.load_best_model_at_end and self.metric_for_best_model is None:
            self.metric_for_best_model = "merit"
        if self.metric_for_best_model in ("merit", "violation"):
            self.greater_is_better = False
        super().__post_init__()

    @classmethod
    def of(cls, args: TrainingArguments | None) -> Self:
        """Convert a trainer's arguments to this class; without ours they get the default problem.

        Args:
            args: Arguments of this class, of Transformers or of TRL; None for the defaults.
        """
        if args is None:
            return cls(output_dir="trainer_output")
        if isinstance(args, cls):
            args._check()  # again: settings may have been assigned since
            return args
        config = cls.__new__(cls)
        # Skip `__post_init__`: these values were already processed.
        vars(config).update({each.name: each.default for each in fields(cls)} | vars(args))
        config._check()
        return config

    @classmethod
    def paper(cls, recipe: str, output_dir: str | None = None, *, dataset: str = "imdb", **settings: Any) -> Self:
        """Our reading of the paper's training arguments for a recipe; all others have Transformers' defaults.

        `descend.training.preset` documents for each value whether the paper prints it or we guess it.

        Args:
            recipe: The recipe's name, such as ``video-ut``.
            output_dir: The run's folder.
            dataset: ``imdb`` or ``mnli``, for text classification.
            **settings: Further arguments; they override the preset's.

        Raises:
            InputError: If there is no such recipe, or a setting is outside its range.
        """
        preset = paper(recipe, settings.get("method", "constrained"), dataset, settings)
        chosen = {"output_dir": output_dir, **preset.training, **settings}
        values: dict[str, Any] = {each.name: each.default for each in fields(cls)} | chosen
        drop_what_contradicts(values, settings)
        return cls(**{name: values[name] for name in chosen})

    def fill(self, defaults: Mapping[str, Any]) -> None:
        """Set settings that are None to a recipe's defaults, if they apply to the problem.

        ``strength`` applies where no other setting states bounds. ``dual_optim_args`` applies to the price rule only,
        for which the recipes chose the values.

        Args:
            defaults: ``strength`` and ``dual_optim_args``, or one of them.
        """
        suits = {"strength": not self.stated, "dual_optim_args": self.resolved("dual_optimizer") == "price"}
        for name, value in defaults.items():
            if getattr(self, name) is None and suits[name]:
                setattr(self, name, value)

    def _check(self) -> None:
        refuse_file(self.folder, "another output_dir")
        check(self)
        self.read_alpha()
        if self.alpha is not None and self.cap is not None and self.stop_gradient is None:
            self.stop_gradient = True
        usual = {each.name: each.default for each in fields(self)}
        every = str(self.dual_every)
        self.dual_every = int(every) if every.isdecimal() else self.dual_every
        if self.torch_compile or self.torch_compile_backend or self.torch_compile_mode:
            self.check_compilable()
        refuse(
            (
                self.preset is not None and self.alpha is None,
                "preset is only the name of settings; DescentConfig.paper(RECIPE) creates them.",
            ),
            *((bool(getattr(self, name)), f"{name} must be off: {reason}") for name, reason in REFUSED.items()),
            (
                self.max_steps == 0 or (self.max_steps < 0 and not self.num_train_epochs > 0),
                f"max_steps or num_train_epochs must be above 0; got {self.max_steps} and {self.num_train_epochs}.",
            ),
            *(
                (
                    getattr(self, name) != usual[name],
                    f"{name} is a setting of the method {owner}; the method is {self.method}. Leave it out, or choose "
                    f"--method {owner}.",
                )
                for owner, names in METHODS.items()
                for name in sorted(names & settings_of_others(self.method))
            ),
            (
                self.exits == "shared" and CLASSES[self.method].own_exits,
                f"the method {self.method} trains own exits; got exits shared. Leave it out.",
            ),
            (
                CLASSES[self.method].constrained and not CLASSES[self.method].asks and bool(self.stated),
                f"{self.stated} states bounds, and the method {self.method} is not judged by any; leave one of "
                "them out, or choose --method constrained.",
            ),
            (
                bool(self.label_smoothing_factor),
                "label_smoothing_factor must be 0: the loss is the task's, the same at every layer; got "
                f"{self.label_smoothing_factor}.",
            ),
            (
                self.dual_warmup_epochs is not None and self.dual_warmup_steps is not None,
                "dual_warmup_steps and dual_warmup_epochs are the same in two units; give one of them.",
            ),
            (
                self.patience is not None and not all_measured_are_saved(vars(self)),
                "patience counts evaluations and keeps the best model, so there must be evaluations, each with a "
                f"saved model; got eval_strategy {IntervalStrategy(self.eval_strategy).value} (eval_steps "
                f"{self.eval_steps or self.logging_steps}) and save_strategy {SaveStrategy(self.save_strategy).value} "
                f"(save_steps {self.save_steps}). Give both alike, steps or epoch, or save_strategy best.",
            ),
        )
        # The core checks its own ranges. The model's depth is not known yet: a list of α gives it, else no model is
        # deeper than this. Every method is checked, because all are evaluated by the same constraints.
        depth = max(1, len(self.alpha)) if isinstance(self.alpha, list) else MOST_LAYERS
        self._dual(self.problem(depth))

    def read_alpha(self) -> None:
        """Turn α, if it is a text, a tensor or an array, into a number or a list of numbers."""
        if self.alpha is not None:
            self.alpha = read_alpha(self.alpha) if isinstance(self.alpha, str) else step_numbers(self.alpha)

    def check_best_metric(self, measured: Iterable[str]) -> None:
        """Raise an error if ``metric_for_best_model`` is given and none of these metrics."""
        known, chosen = sorted(measured), (self.metric_for_best_model or "").removeprefix("eval_")
        if chosen and chosen not in known:
            raise InputError(f"metric_for_best_model must be one of {', '.join(known)}; got {chosen!r}.")

    def check_compilable(self) -> None:
        """Raise an error for a method that can't be compiled."""
        if not CLASSES[self.method].compiles:
            raise InputError(
                f"torch_compile (or Accelerate's dynamo_backend) must be off: the method {self.method} changes blocks "
                "by hooks at every step."
            )

    @property
    def folder(self) -> Path:
        """The run's folder, ``output_dir``."""
        return Path(self.output_dir or "trainer_output")

    def problem(self, depth: int, first: int = 0) -> DescentProblem:
        """The constraints of the verdict; they are the same for all methods.

        Args:
            depth: L, the number of the model's layers.
            first: The exit where the chain starts by default, see `LayeredModel.first_layer`; ``first_layer``
                overrides it.

        Raises:
            InputError: If a setting is outside its range or contradicts another one.
        """
        usual = min(first, depth - 1) if self.alpha is None else 0  # the paper's chain starts at the input
        first = usual if self.first_layer is None else self.first_layer
        alpha: Any = self.alpha
        refuse(
            *(
                (
                    alpha is None and getattr(self, name) != value,
                    f"{name} belongs to alpha, which was not given; give --alpha or leave it out.",
                )
                for name, value in OF_ALPHA.items()
            ),
            (
                alpha is not None and self.strength is not None,
                "strength and alpha are two ways to set what a layer must reach; "
                f"{'the preset has an alpha' if self.preset else 'alpha is given'}, and strength is {self.strength}. "
                "Leave out one of them.",
            ),
            (
                isinstance(alpha, list) and self.alpha_decay != 1,
                "alpha_decay makes a schedule of one alpha; got a list of them, which is one already. Leave "
                "alpha_decay out.",
            ),
        )
        if self.within is not None:
            return self._near_last(depth, first)
        if self.after is not None:
            return self._no_worse(depth, first)
        if alpha is None:
            return DescentProblem(depth, target=GeometricTarget(self.resolved("strength"), first))
        if self.alpha_decay != 1:  # a schedule from the chain's start on
            alpha = [alpha * self.alpha_decay ** max(0, layer - first) for layer in range(depth)]
        return DescentProblem(
            depth,
            alpha,
            self.cap,
            first=first,
            form=self.form,
            stop_gradient=self.stop_gradient is not False,
            cap_layer=self.cap_layer,
        )

    def _no_worse(self, depth: int, first: int) -> DescentProblem:
        """The constraints of ``after``, with the loss of layer K as the objective."""
        assert self.after is not None
        alpha: Any = self.alpha
        refuse(
            (
                isinstance(alpha, list) or any(getattr(self, name) != usual for name, usual in OF_ALPHA.items()),
                "with after, alpha is one number, and alpha_decay, cap and form are left out.",
            ),
            (
                self.stop_gradient is False,
                "no gradient flows through the bounds of after: leave stop_gradient out.",
            ),
            (
                self.first_layer is not None and (alpha is None or self.first_layer >= self.after),
                f"first_layer goes with after and alpha, and must then be below after; got {self.first_layer} with "
                f"after {self.after}. Leave it out.",
            ),
            (
                self.after >= depth,
                f"after must be a layer before the last one, at most {depth - 1}; got {self.after}. A network that "
                "runs one block several times may be trained with more iterations.",
            ),
            (self.strength is not None, "after sets the bounds: leave strength out."),
        )
        objective = [float(layer == self.after) for layer in range(depth + 1)]
        return DescentProblem(depth, target=NoWorse(self.after, alpha, first), objective=objective)

    def _near_last(self, depth: int, first: int) -> DescentProblem:
        """The constraints of ``within``."""
        others = [name for name in ("alpha", "after", "strength") if getattr(self, name) is not None]
        refuse(
            (bool(others), f"within sets the bounds: leave {' and '.join(others)} out."),
            (
                self.stop_gradient is False,
                "no gradient flows through the bounds of within: leave stop_gradient out.",
            ),
            (
                not 0 <= first < depth - 1,
                f"within constrains layers between first_layer and the last one; got first_layer {first} and {depth} "
                "layers, so none. Lower first_layer, train more layers, or leave within out.",
            ),
        )
        assert self.within is not None
        return DescentProblem(depth, target=NearLast(self.within, first))

    @property
    def constraints(self) -> dict[str, Any]:
        """The settings of `problem` that are not their defaults, and the strength where there is no α."""
        usual = {each.name: each.default for each in fields(self)}
        every = {name: getattr(self, name) for name in PROBLEM} | {"strength": self.resolved("strength")}
        return {name: value for name, value in every.items() if value != usual[name]}

    def primal_dual(self, depth: int, first: int = 0) -> PrimalDual[DescentProblem]:
        """The dual of the problem that training solves, which has constraints if the method has.

        Args:
            depth: As in `problem`.
            first: As in `problem`.

        Raises:
            InputError: If a setting is outside its range.
        """
        problem = self.problem(depth, first)  # for every method: all are evaluated by the same constraints
        method = CLASSES[self.method]
        if method.constrained:
            return self._dual(problem)
        return PrimalDual(DescentProblem(depth, objective=method.objective_weights(depth, self)))

    def _dual(self, problem: DescentProblem) -> PrimalDual[DescentProblem]:
        """The dual of a constrained problem."""
        return PrimalDual(
            problem,
            lr=self.resolved("dual_lr"),
            optimizer=self.resolved("dual_optimizer"),
            resilience=self.resolved("resilience"),
            slack=self.slack,
            slack_lr=self.slack_lr,
            slack_optimizer=self.slack_optimizer,
            every=cast(int | Literal["epoch"], self.dual_every),  # `PrimalDual` refuses all else
            options=json.loads(self.dual_optim_args or "{}"),
        )

    def resolved(self, name: str) -> Any:
        """The value of a setting; if it is None, its default, which may depend on other settings."""
        value = getattr(self, name)
        if value is not None:
            return value
        usual = WITHOUT_ALPHA if self.alpha is None else WITH_ALPHA
        usual = usual if self.after is None else WITH_AFTER
        if name == "resilience" and self.resolved("dual_optimizer") == "fixed":
            return 0.0
        if name != "dual_lr":
            return usual.get(name)
        rule = self.resolved("dual_optimizer")
        return AFTER_RATE if self.after is not None and rule == "sgd" else LEARNING_RATES.get(rule)

    def warmup(self, steps: int, epoch: int) -> int:
        """The number of warm-up steps, before the constraints take part.

        Args:
            steps: The number of steps in the run.
            epoch: The number of steps in an epoch.

        Raises:
            InputError: If the run would end before its first dual step, so that the multipliers never move.
        """
        name, every = "dual_warmup_steps", cast(int | Literal["epoch"], self.dual_every)
        if self.dual_warmup_epochs is not None:
            name = "dual_warmup_epochs"
            warmup = round(self.dual_warmup_epochs * epoch)
        else:
            share = self.resolved(name)
            warmup = round(share * steps) if share < 1 else round(share)
        # An epoch's dual step is taken where the next epoch begins, so the last epoch has none.
        late = (steps - 1) // epoch * epoch <= warmup if every == "epoch" else warmup + every > steps
        if CLASSES[self.method].constrained and late:
            of_epoch = f" of {epoch} steps, of which the last has no dual step" if every == "epoch" else ""
            raise InputError(
                f"{name} and dual_every must leave the constraints a dual step; got {warmup} of {steps} steps of "
                f"warm-up and dual_every {every}{of_epoch}. Lower one of them, or train longer."
            )
        return warmup

    @property
    def measures_cap(self) -> bool:
        """Whether α is all that is given, so that the cap follows from the first losses."""
        constrained = CLASSES[self.method].constrained
        of_alpha = self.alpha is not None and self.after is None
        return constrained and of_alpha and self.cap is None and self.stop_gradient is None

    def take_cap(self, cap: float) -> None:
        """Set a cap that was measured; it bounds the reward for a higher loss, so bounds pass gradients on."""
        self.cap, self.stop_gradient = cap, False

    @property
    def stated(self) -> str:
        """The name of the setting that states bounds; empty where none does, so that ours take their place."""
        return next((name for name in STATED if getattr(self, name) is not None), "")

    @property
    def own_exits(self) -> bool:
        """Whether inner layers get own exits."""
        return self.exits == "own" or CLASSES[self.method].own_exits

    @property
    def idle(self) -> set[str]:
        """Names of Descend's settings that this method does not use."""
        shared = set(DescentSettings.__annotations__) - settings_of_others()
        unused = set() if CLASSES[self.method].constrained else shared - USED_BY_ALL
        return unused | settings_of_others(self.method)


@dataclass
class DescentConfig(DescentArguments, TrainingArguments):
    """Transformers' `TrainingArguments` with the settings of the constrained problem.

    Every argument of the Trainer keeps its name and meaning.
    """

    library: ClassVar[type] = TrainingArguments


def problem_of(constraints: Mapping[str, Any], depth: int, first: int) -> DescentProblem:
    """The problem of `DescentArguments.constraints`, without training arguments, which would reset Accelerate's state.

    Args:
        constraints: Settings of `PROBLEM` by name; others are not used.
        depth: As in `DescentArguments.problem`.
        first: As there.

    Raises:
        InputError: If a setting is outside its range.
    """
    known = {name: value for name, value in constraints.items() if name in PROBLEM}
    return without_trainer(known).problem(depth, first)


def without_trainer(settings: Mapping[str, Any]) -> DescentConfig:
    """Descend's settings alone, for a training loop that is not Transformers'; their defaults fill the rest.

    Args:
        settings: Settings of `DescentSettings` by name.
    """
    config = DescentConfig.__new__(DescentConfig)
    vars(config).update({each.name: each.default for each in fields(DescentSettings)} | dict(settings))
    return config
