"""The constrained problem that training solves, as settings beside those of transformers' and TRL's trainers."""

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from transformers import TrainingArguments

from descend.core import DescentProblem, PrimalDual
from descend.errors import InputError


@dataclass
class DescentArguments:
    """The constrained problem, and how it is solved: what a trainer's own arguments are extended by."""

    method: str = field(
        default="constrained",
        metadata={"help": "constrained: descent constraints, eq. (4). erm: the same loop without, eq. (3)."},
    )
    alpha: str = field(
        default="0.1",
        metadata={"help": "Step α in (0, 1): each layer must lower the loss by 1 - α. One number, or one per layer."},
    )
    alpha_decay: float = field(
        default=1.0,
        metadata={"help": "q in (0, 1] of a geometric schedule α, αq, αq², … from the chain's start; α one number."},
    )
    cap: float | None = field(
        default=None, metadata={"help": "Bound on the loss where the chain starts; none unless given."}
    )
    first_layer: int = field(
        default=0, metadata={"help": "Where the chain starts: 0 the embedded input, 1 the first block's output."}
    )
    form: str = field(default="difference", metadata={"help": "Form of a constraint: difference or ratio."})
    stop_gradient: bool = field(
        default=True,
        metadata={"help": "No gradient through a constraint's right-hand side: no layer is paid to be worse."},
    )
    dual_lr: float = field(default=0.03, metadata={"help": "Learning rate of the multipliers, η_λ."})
    dual_optimizer: str = field(default="adam", metadata={"help": "How multipliers climb: sgd, adam or nupi."})
    dual_optim_args: str | None = field(
        default=None, metadata={"help": "Further arguments of the dual optimizer, as JSON: '{\"kp\": 5.0}'."}
    )
    dual_every: str = field(
        default="1", metadata={"help": "A dual step after this many primal steps, or 'epoch' for one per epoch."}
    )
    dual_warmup_steps: float = field(
        default=0.1,
        metadata={"help": "Steps of plain ERM before the multipliers move; below 1, that share of all steps."},
    )
    resilience: float = field(default=0.05, metadata={"help": "ρ: price of slack; 0 for hard constraints."})
    slack: str = field(default="implicit", metadata={"help": "Slack: implicit, eq. (38), or explicit, eq. (36)."})
    slack_lr: float | None = field(
        default=None, metadata={"help": "Learning rate of explicit slack; ρ times the multipliers' unless given."}
    )
    slack_optimizer: str | None = field(
        default=None, metadata={"help": "How explicit slack moves; as the multipliers unless given (sgd for nupi)."}
    )
    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available,
        metadata={"help": "Keep batches where a GPU can fetch them fast; on where there is a GPU."},
    )

    def __post_init__(self) -> None:
        self._check()
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

    def _check(self) -> None:
        args: Any = self  # with the arguments of a trainer
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
            if getattr(args, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(args, name)}.")
        if args.dataloader_num_workers < 0:
            raise InputError(f"dataloader_num_workers must be at least 0; got {args.dataloader_num_workers}.")
        if not 0 <= args.learning_rate < math.inf:
            raise InputError(f"learning_rate must be a number of at least 0; got {args.learning_rate}.")
        if args.seed < 0:
            raise InputError(f"seed must be at least 0; got {args.seed}.")
        if args.save_only_model:
            raise InputError("save_only_model leaves out what a run needs to go on: the multipliers. Leave it off.")
        if args.max_steps == 0 or (args.max_steps < 0 and not args.num_train_epochs > 0):
            raise InputError(
                f"max_steps or num_train_epochs must be above 0; got {args.max_steps} and {args.num_train_epochs}."
            )
        for name in ("bf16_full_eval", "fp16_full_eval"):
            if getattr(args, name):
                raise InputError(f"{name} must be off: a verdict is taken in the model's own precision.")
        if args.label_smoothing_factor:
            raise InputError(
                "label_smoothing_factor must be 0: the loss is the task's, the same at every layer; got "
                f"{args.label_smoothing_factor}."
            )

    @property
    def folder(self) -> Path:
        """Where everything goes, ``output_dir``."""
        return Path(vars(self)["output_dir"] or "trainer_output")

    def alphas(self, depth: int) -> float | list[float]:
        """α of each layer, from one number, a geometric schedule or a list.

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
        return [values[0] * self.alpha_decay ** max(0, layer - self.first_layer) for layer in range(depth)]

    def problem(self, depth: int) -> DescentProblem:
        """The problem that a model of this depth is held to, whatever the method it was trained with."""
        return DescentProblem(
            depth,
            self.alphas(depth),
            self.cap,
            first=self.first_layer,
            form=self.form,  # type: ignore[arg-type]
            stop_gradient=self.stop_gradient,
        )

    def primal_dual(self, depth: int) -> PrimalDual:
        """The dual of the problem that training solves: the one without constraints for ERM."""
        if self.method not in ("erm", "constrained"):
            raise InputError(f"method must be erm or constrained; got {self.method!r}.")
        problem = self.problem(depth)  # checked for ERM too: it is evaluated against the same constraints
        if self.method == "erm":
            return PrimalDual(DescentProblem(depth))
        if self.dual_every != "epoch" and not self.dual_every.isdecimal():
            raise InputError(f"dual_every must be a number of steps or 'epoch'; got {self.dual_every!r}.")
        if not 0 <= self.dual_warmup_steps < math.inf:
            raise InputError(f"dual_warmup_steps must be at least 0; got {self.dual_warmup_steps}.")
        return PrimalDual(
            problem,
            lr=self.dual_lr,
            optimizer=self.dual_optimizer,
            resilience=self.resilience,
            slack=self.slack,  # type: ignore[arg-type]
            slack_lr=self.slack_lr,
            slack_optimizer=self.slack_optimizer,
            every="epoch" if self.dual_every == "epoch" else int(self.dual_every),
            options=self._dual_options(),
        )

    def warmup(self, steps: int) -> int:
        """How many of a run's steps are plain ERM.

        Raises:
            InputError: If that is all of them: the constraints would never take part.
        """
        share = self.dual_warmup_steps
        warmup = round(share * steps) if share < 1 else round(share)
        if self.method == "constrained" and warmup >= steps:
            raise InputError(
                f"dual_warmup_steps must leave steps for the constraints; got {warmup} of {steps}. Lower it, or train "
                "longer."
            )
        return warmup

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
