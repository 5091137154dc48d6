"""The constrained problem that training solves, as settings beside those of transformers' and TRL's trainers."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from descend.core import DescentProblem, GeometricTarget, PrimalDual
from descend.core.multipliers import LEARNING_RATE, LEARNING_RATES
from descend.errors import InputError
from descend.training.preset import PAPER, paper


def _last(depth: int) -> list[float]:
    return [0.0] * depth + [1.0]


def _uniform(depth: int) -> list[float]:
    return [1 / (depth + 1)] * (depth + 1)


def _linear(depth: int) -> list[float]:
    return [layer / (depth * (depth + 1) / 2) for layer in range(depth + 1)]


METHODS: dict[str, Callable[[int], list[float]]] = {
    "erm": _last,
    "constrained": _last,
    "uniform": _uniform,
    "linear": _linear,
    "r-drop": _last,
}
"""By method: what f_0 … f_L weigh in the objective of a model of L layers.

``uniform`` and ``linear`` are deep supervision, every exit trained at a fixed weight. Exit 0, the embedded input as the
readout reads it, belongs to the chain that ``constrained`` holds to descent, so ``uniform`` weighs it like any other:
it trains the readout and the embedding, and where neither touches it (UT's noisy input) it is a constant. ``linear``
gives layer l the weight l, and exit 0 none. ``r-drop`` is ERM with a term of its own, see `Objective`.
"""


DEFAULTS: dict[str, dict[str, Any]] = {
    "geometric": {"strength": 0.2, "dual_optimizer": "price", "dual_warmup_steps": 0.0, "resilience": 0.0},
    "step": {"dual_optimizer": "adam", "dual_warmup_steps": 0.1, "resilience": 0.05},
}
"""Defaults that depend on what bounds the layers: the losses themselves (`GeometricTarget`), or α (`StepTarget`)."""


def all_measured_are_saved(args: Mapping[str, Any]) -> bool:
    """Whether the best model that is evaluated is always among the checkpoints.

    Args:
        args: Training arguments by name.
    """
    evaluated, saved = IntervalStrategy(args["eval_strategy"]), SaveStrategy(args["save_strategy"])
    if evaluated == IntervalStrategy.NO:
        return False
    steps = args["eval_steps"] or args["logging_steps"]  # as the library has it
    alike = evaluated.value == saved.value and (saved != SaveStrategy.STEPS or steps == args["save_steps"])
    return alike or saved == SaveStrategy.BEST


REFUSED = {
    "save_only_model": "it leaves out what a run needs to go on, the multipliers.",
    "auto_find_batch_size": "the library begins anew with smaller batches, and the multipliers would not. Choose "
    "per_device_train_batch_size, and gradient_accumulation_steps to make up for it.",
    "enable_jit_checkpoint": "Ctrl-C and SIGTERM save already, and it would take the signal for itself.",
    "save_on_each_node": "one process writes a run's folder. Let all machines see the same one.",
    "bf16_full_eval": "a verdict is taken in the model's own precision.",
    "fp16_full_eval": "a verdict is taken in the model's own precision.",
}
"""Settings of the library that a run can't keep its word with, and why."""


@dataclass
class DescentArguments:
    """The constrained problem, and how it is solved: what a trainer's own arguments are extended by."""

    method: str = field(
        default="constrained",
        metadata={
            "help": "constrained: descent constraints, eq. (4). erm: the same loop without, eq. (3). uniform, linear: "
            "deep supervision, without constraints on the mean of all layers' losses, alike or in proportion to l. "
            "r-drop: ERM on two passes of every text, which are to agree."
        },
    )
    preset: str | None = field(
        default=None,
        metadata={
            "help": "paper: the paper's settings in place of ours, in training and model, as far as they are known. "
            "Other flags override it, and config.json lists them."
        },
    )
    r_drop: float = field(
        default=1.0,
        metadata={"help": "Of the method r-drop: the price κ of what the two passes' predictions differ by."},
    )
    strength: float | None = field(
        default=None,
        metadata={
            "help": "How much early layers must do of the descent, from 0 to 1. The bounds follow from the losses "
            "themselves; no α is needed."
        },
    )
    alpha: str | None = field(
        default=None,
        metadata={
            "help": "Use the paper's bounds in place of ours: step α in (0, 1), each layer must lower the loss by a "
            "factor 1 - α. One number, or one per layer."
        },
    )
    alpha_decay: float = field(
        default=1.0,
        metadata={"help": "q in (0, 1] of a geometric schedule α, αq, αq², … from the chain's start; α one number."},
    )
    cap: float | None = field(
        default=None, metadata={"help": "With α: bound on the loss of exit cap_layer; none unless given."}
    )
    cap_layer: int | None = field(
        default=None, metadata={"help": "The exit that the cap bounds; where the chain starts unless given."}
    )
    first_layer: int | None = field(
        default=None,
        metadata={
            "help": "Where the chain starts: 0 the embedded input, 1 the first block's output. Unless given it is 0, "
            "and without α 1 for UT, whose exit 0 is the noisy input itself."
        },
    )
    form: str = field(default="difference", metadata={"help": "Form of a constraint: difference or ratio."})
    stop_gradient: bool = field(
        default=True,
        metadata={"help": "No gradient through a constraint's right-hand side: no layer is paid to be worse."},
    )
    dual_lr: float | None = field(
        default=None,
        metadata={"help": "Learning rate of the multipliers, η_λ: 0.03 unless given, or 500 a run for price."},
    )
    dual_optimizer: str | None = field(
        default=None,
        metadata={"help": "How multipliers climb: sgd, adam, nupi or price. Unless given price, or adam with α."},
    )
    dual_optim_args: str | None = field(
        default=None, metadata={"help": "Further arguments of the dual optimizer, as JSON: '{\"kp\": 5.0}'."}
    )
    dual_every: str = field(
        default="1", metadata={"help": "A dual step after this many primal steps, or 'epoch' for one per epoch."}
    )
    dual_warmup_steps: float | None = field(
        default=None,
        metadata={
            "help": "Steps of plain ERM before the multipliers move; below 1, that share of all steps. Unless given "
            "0, or 0.1 with α."
        },
    )
    dual_warmup_epochs: float | None = field(
        default=None, metadata={"help": "The same in epochs, in place of dual_warmup_steps."}
    )
    resilience: float | None = field(
        default=None,
        metadata={"help": "ρ: price of slack; 0 for hard constraints. Unless given 0, or 0.05 with α."},
    )
    slack: str = field(default="implicit", metadata={"help": "Slack: implicit, eq. (38), or explicit, eq. (36)."})
    slack_lr: float | None = field(
        default=None, metadata={"help": "Learning rate of explicit slack; ρ times the multipliers' unless given."}
    )
    slack_optimizer: str | None = field(
        default=None,
        metadata={"help": "How explicit slack moves; as the multipliers unless given (sgd for nupi and price)."},
    )
    calibrate: bool = field(
        default=True,
        metadata={
            "help": "Of a classifier: at the end of training divide the logits by the temperature that fits the "
            "evaluation data best, for every method alike. It needs one evaluation data set and evaluations in "
            "training. The most likely class at a layer stays the same."
        },
    )
    patience: int | None = field(
        default=None,
        metadata={
            "help": "End training after so many evaluations without a better model, and keep the best. "
            "metric_for_best_model decides (merit: the last layer's loss and by how much constraints are broken); a "
            "model that meets its constraints may be 1 percent worse. A warm-up does not count."
        },
    )
    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available,
        metadata={"help": "Keep batches where a GPU can fetch them fast; on where there is a GPU."},
    )

    def __post_init__(self) -> None:
        self._check()
        if self.patience is not None:
            self.load_best_model_at_end = True
        args: Any = self
        if args.load_best_model_at_end and args.metric_for_best_model is None:
            args.metric_for_best_model = "merit"
        if args.metric_for_best_model in ("merit", "violation"):
            args.greater_is_better = False
        super().__post_init__()  # type: ignore[misc]

    @classmethod
    def of(cls, args: TrainingArguments | None) -> Self:
        """A trainer's arguments, those of its own library under the default problem."""
        if args is None:
            return cls(output_dir="trainer_output")  # type: ignore[call-arg]
        if isinstance(args, cls):
            return args
        config = cls.__new__(cls)
        # As they are: what the library has made of them once must not be made of them again.
        vars(config).update({one.name: one.default for one in fields(cls)} | vars(args))
        config._check()
        return config

    @classmethod
    def paper(cls, recipe: str, output_dir: str | None = None, *, dataset: str = "imdb", **settings: Any) -> Self:
        """The paper's training arguments of a recipe; what they leave out is as in Transformers.

        `descend.training.preset` says of each value whether the paper prints it.

        Args:
            recipe: Whose, as ``video-ut``.
            output_dir: The run's folder.
            dataset: Of texts, ``imdb`` or ``mnli``.
            **settings: Further arguments, which override the paper's.

        Raises:
            InputError: If there is no such recipe, or a setting can't be.
        """
        chosen = paper(recipe, settings.get("method", "constrained"), dataset, settings)
        return cls(**{"output_dir": output_dir, **chosen.training, **settings})  # type: ignore[arg-type]

    def _check(self) -> None:
        args: Any = self  # with the arguments of a trainer
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
            if getattr(args, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(args, name)}.")
        if args.dataloader_num_workers < 0:
            raise InputError(f"dataloader_num_workers must be at least 0; got {args.dataloader_num_workers}.")
        for name in ("learning_rate", "weight_decay", "max_grad_norm", "r_drop"):
            if not 0 <= getattr(args, name) < math.inf:
                raise InputError(f"{name} must be a number of at least 0; got {getattr(args, name)}.")
        if self.preset not in (None, PAPER):
            raise InputError(f"preset must be {PAPER}, or left out; got {self.preset!r}.")
        if self.preset is not None and self.alpha is None:
            raise InputError("preset only names what settings are; DescentConfig.paper(RECIPE) makes them.")
        if args.seed < 0:
            raise InputError(f"seed must be at least 0; got {args.seed}.")
        if args.save_total_limit is not None and args.save_total_limit < 1:
            raise InputError(f"save_total_limit must be at least 1, or left out; got {args.save_total_limit}.")
        for name, why in REFUSED.items():
            if getattr(args, name):
                raise InputError(f"{name} must be off: {why}")
        if args.max_steps == 0 or (args.max_steps < 0 and not args.num_train_epochs > 0):
            raise InputError(
                f"max_steps or num_train_epochs must be above 0; got {args.max_steps} and {args.num_train_epochs}."
            )
        if self.patience is not None:
            self._check_patience()
        if args.label_smoothing_factor:
            raise InputError(
                "label_smoothing_factor must be 0: the loss is the task's, the same at every layer; got "
                f"{args.label_smoothing_factor}."
            )

    def _check_patience(self) -> None:
        args: Any = self
        if args.patience < 1:
            raise InputError(f"patience must be at least 1 evaluation; got {args.patience}.")
        evaluated, saved = IntervalStrategy(args.eval_strategy), SaveStrategy(args.save_strategy)
        if evaluated == IntervalStrategy.NO:
            raise InputError("patience counts evaluations, and there are none; set eval_strategy to steps or epoch.")
        steps = args.eval_steps or args.logging_steps  # as the library has it
        if not all_measured_are_saved(vars(args)):
            raise InputError(
                "patience keeps the best model, so each that is evaluated must be saved; got eval_strategy "
                f"{evaluated.value} (eval_steps {steps}) and save_strategy {saved.value} (save_steps "
                f"{args.save_steps}). Give both alike, or save_strategy best."
            )

    @property
    def folder(self) -> Path:
        """Where everything goes, ``output_dir``."""
        return Path(vars(self)["output_dir"] or "trainer_output")

    def alphas(self, depth: int, first: int = 0) -> float | list[float]:
        """α of each layer, from one number, a geometric schedule or a list.

        Args:
            depth: L.
            first: Where the chain and a schedule start.

        Raises:
            InputError: If it can't be read.
        """
        try:
            values = [float(value) for value in str(self.alpha).split(",")]
        except ValueError:
            raise InputError(
                f"alpha must be one number or one per layer, as 0.3,0.2,0.1; got {self.alpha!r}."
            ) from None
        if not 0 < self.alpha_decay <= 1:
            raise InputError(f"alpha_decay must lie in (0, 1]; got {self.alpha_decay}.")
        if len(values) > 1:
            return values
        if self.alpha_decay == 1:
            return values[0]
        return [values[0] * self.alpha_decay ** max(0, layer - first) for layer in range(depth)]

    def problem(self, depth: int, first: int = 0) -> DescentProblem:
        """The constraints that a model is held to, whatever the method it was trained with.

        Args:
            depth: L, the number of the model's layers.
            first: Where the model's chain starts unless ``first_layer`` says it, see `LayeredModel.first_layer`.
        """
        usual = min(first, depth - 1) if self.alpha is None else 0  # the paper's chain starts at the input
        first = usual if self.first_layer is None else self.first_layer
        if self.alpha is None:
            for name, value in (("alpha_decay", 1.0), ("cap", None), ("cap_layer", None), ("form", "difference")):
                if getattr(self, name) != value:
                    raise InputError(f"{name} belongs to alpha, which was not given; give --alpha or leave it out.")
            return DescentProblem(depth, target=GeometricTarget(self.resolved("strength"), first))
        if self.strength is not None:
            whose = "preset has an alpha of its own" if self.preset else "alpha and strength are two ways to say it"
            raise InputError(f"strength can't be given here: {whose}, what a layer must reach. Leave out one of them.")
        return DescentProblem(
            depth,
            self.alphas(depth, first),
            self.cap,
            first=first,
            form=self.form,  # type: ignore[arg-type]
            stop_gradient=self.stop_gradient,
            cap_layer=self.cap_layer,
        )

    def primal_dual(self, depth: int, first: int = 0) -> PrimalDual:
        """The dual of the problem that training solves: one without constraints, but for the method of that name.

        Args:
            depth: As of `problem`.
            first: As of `problem`.
        """
        if self.method not in METHODS:
            raise InputError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}.")
        problem = self.problem(depth, first)  # checked for all: they are evaluated against the same constraints
        if self.method != "constrained":
            return PrimalDual(DescentProblem(depth, objective=METHODS[self.method](depth)))
        if self.dual_every != "epoch" and not self.dual_every.isdecimal():
            raise InputError(f"dual_every must be a number of steps or 'epoch'; got {self.dual_every!r}.")
        if self.dual_warmup_epochs is not None and self.dual_warmup_steps is not None:
            raise InputError("dual_warmup_steps and dual_warmup_epochs are the same in two units; give one of them.")
        for name in ("dual_warmup_steps", "dual_warmup_epochs"):
            if not 0 <= (self.resolved(name) or 0.0) < math.inf:
                raise InputError(f"{name} must be at least 0; got {self.resolved(name)}.")
        return PrimalDual(
            problem,
            lr=self.resolved("dual_lr"),
            optimizer=self.resolved("dual_optimizer"),
            resilience=self.resolved("resilience"),
            slack=self.slack,  # type: ignore[arg-type]
            slack_lr=self.slack_lr,
            slack_optimizer=self.slack_optimizer,
            every="epoch" if self.dual_every == "epoch" else int(self.dual_every),
            options=self._dual_options(),
        )

    def resolved(self, name: str) -> Any:
        """A setting, or where it was not given its default, which may depend on other settings."""
        value = getattr(self, name)
        if value is not None:
            return value
        if name == "dual_lr":
            return LEARNING_RATES.get(self.resolved("dual_optimizer"), LEARNING_RATE)
        return DEFAULTS["step" if self.alpha else "geometric"].get(name)

    def warmup(self, steps: int, epoch: int) -> int:
        """How many of a run's steps pass before the constraints take part.

        Args:
            steps: The run's.
            epoch: Those of an epoch.

        Raises:
            InputError: If that is all of them: the constraints would never take part.
        """
        name = "dual_warmup_steps"
        if self.dual_warmup_epochs is not None:
            name = "dual_warmup_epochs"
            warmup = round(self.dual_warmup_epochs * epoch)
        else:
            share = self.resolved(name)
            warmup = round(share * steps) if share < 1 else round(share)
        if self.method == "constrained" and warmup >= steps:
            raise InputError(
                f"{name} must leave steps for the constraints; got {warmup} of {steps}. Lower it, or train longer."
            )
        return warmup

    @property
    def idle(self) -> set[str]:
        """Settings of the problem that training by this method does not look at."""
        own = set(DescentArguments.__annotations__)
        always = {"preset", "calibrate", "patience"}
        looked_at = {"constrained": own - {"r_drop"}, "r-drop": {"r_drop"}}
        return own - looked_at.get(self.method, set()) - always

    def _dual_options(self) -> dict[str, Any]:
        try:
            options = json.loads(self.dual_optim_args or "{}")
        except ValueError:
            options = None
        if not isinstance(options, dict) or options.keys() & {"lr", "maximize", "name", "in_force"}:
            raise InputError(
                "dual_optim_args must be a JSON object of the dual optimizer's arguments other than lr, as "
                f"'{{\"kp\": 5.0}}'; got {self.dual_optim_args!r}."
            )
        return options


@dataclass
class DescentConfig(DescentArguments, TrainingArguments):
    """transformers' `TrainingArguments` and the constrained problem.

    Every argument of the Trainer keeps its name and its meaning.
    """

    library: ClassVar[type] = TrainingArguments
