"""The fields of Descend's training settings, with the help text of their flags."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from transformers import TrainingArguments

from descend.core.targets import Form
from descend.training.flags import Alpha, DualEvery

# The settings are a mixin for the arguments of Transformers and of TRL. At run time the mixin has no base: deriving
# from `TrainingArguments` would override TRL's defaults.
if TYPE_CHECKING:
    _TrainerArguments = TrainingArguments
else:
    _TrainerArguments = object


@dataclass
class DescentSettings(_TrainerArguments):
    """The settings of the constrained problem and its solution; `DescentArguments` checks and uses them."""

    method: str = field(
        default="constrained",
        metadata={
            "help": "constrained: descent constraints, eq. (4). erm: the same loop without, eq. (3). uniform, linear: "
            "deep supervision, a mean of all layers' losses without constraints, weighted equally or in proportion to "
            "l. r-drop: ERM on two passes of every text, with a penalty where they differ. neftune: ERM with NEFTune's "
            "noise on word embeddings. layerskip: layer dropout and an early-exit loss."
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
        metadata={"help": "For r-drop: the price κ of the difference between the two passes' predictions."},
    )
    layer_dropout: float = field(
        default=0.2, metadata={"help": "For layerskip: p_max, the last block's dropout rate; earlier ones have less."}
    )
    layer_dropout_schedule: Literal["exponential", "constant"] = field(
        default="exponential",
        metadata={"help": "For layerskip: whether the rates grow from 0 over the run, or are constant, to fine-tune."},
    )
    exit_scale: float = field(
        default=1.0, metadata={"help": "For layerskip: e, the scale of inner exits' losses beside the last one's."}
    )
    exit_curriculum: Literal["rotating", "gradual"] = field(
        default="rotating",
        metadata={
            "help": "For layerskip: inner exits take turns, or join one by one from the last to the first in the first "
            "half of the run."
        },
    )
    exit_rotation: int | None = field(
        default=None,
        metadata={"help": "For layerskip: R, each inner exit is on every R-th step; L - 1 unless given."},
    )
    strength: float | None = field(
        default=None,
        metadata={
            "help": "How much of the descent early layers must do, from 0 to 1: the recipe's own unless given, else "
            "0.2. The bounds follow from the losses themselves; no α is needed."
        },
    )
    alpha: Alpha | None = field(
        default=None,
        metadata={
            "help": "Use the paper's bounds in place of ours: step α in (0, 1), each layer must lower the loss by a "
            "factor 1 - α. One number, or one per layer as 0.3,0.2,0.1."
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
    form: Form = field(default="difference", metadata={"help": "Form of a constraint: difference or ratio."})
    stop_gradient: bool = field(
        default=True,
        metadata={
            "help": "No gradient through a constraint's right-hand side: no layer is rewarded for a higher loss."
        },
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
    dual_every: DualEvery = field(
        default=1, metadata={"help": "A dual step after this many primal steps, or 'epoch' for one per epoch."}
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
    slack: Literal["implicit", "explicit"] = field(
        default="implicit", metadata={"help": "Slack: implicit, eq. (38), or explicit, eq. (36)."}
    )
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
            "help": "For a classifier: at the end of training divide the logits by the temperature that fits the "
            "evaluation data best, for every method. It needs one evaluation data set and evaluations in training. The "
            "most likely class at a layer stays the same."
        },
    )
    patience: int | None = field(
        default=None,
        metadata={
            "help": "End training after this many evaluations without a better model, and keep the best by "
            "metric_for_best_model (merit: the last layer's loss plus the violations). A model that meets its "
            "constraints may be 1 percent worse. Evaluations in the warm-up do not count."
        },
    )
    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available,
        metadata={"help": "Keep batches in page-locked memory, which speeds up transfers; on where there is a GPU."},
    )
