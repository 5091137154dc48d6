"""The fields of Descend's training settings, with the help text of their options."""

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
    """The settings of the constrained problem and its solution; `DescentArguments` checks and uses them.

    The help texts are one line each, for ``descend train RECIPE --help``; the attributes below say more.

    Attributes:
        method: ``constrained``: descent constraints, eq. (4). ``erm``: the same loop without, eq. (3). ``uniform`` and
            ``linear``: deep supervision, a mean of all layers' losses without constraints, weighted equally or in
            proportion to l. ``r-drop``: ERM on two passes of every text, with a penalty where they differ. ``neftune``:
            ERM with NEFTune's noise on word embeddings. ``layerskip``: layer dropout and an early-exit loss.
        preset: ``paper`` for our reading of the paper's settings, in training and model, with guesses where they are
            lost. Other settings override it, and ``config.json`` lists them.
        strength: How much of the descent early layers must do, from 0 to 1; None for the recipe's own, or 0.2. The
            bounds follow from the losses themselves, so no α is needed.
        alpha: The paper's bounds in place of ours: step α in (0, 1), each layer must lower the loss by a factor 1 − α.
            One number, or one per layer.
        alpha_decay: q in (0, 1] of a geometric schedule α, αq, αq², … from the chain's start; α is one number then.
        cap: With α, the bound on the loss of exit ``cap_layer``; None for no bound.
        cap_layer: The exit that the cap bounds; None for the one where the chain starts.
        first_layer: Where the chain starts: 0 for the embedded input, 1 for the first block's output. None for 0, and
            without α for 1 with UT, whose exit 0 is the noisy input itself.
        form: Whether a constraint is a difference or a ratio of losses.
        stop_gradient: Whether no gradient flows through a constraint's right-hand side. Then no layer is rewarded for
            a higher loss.
        dual_lr: Learning rate of the multipliers, η_λ; None for 0.03, or with ``price`` for 500 over a run.
        dual_optimizer: How multipliers ascend: ``sgd``, ``adam``, ``nupi`` or ``price``; None for ``price``, or
            ``adam`` with α.
        dual_optim_args: Further arguments of the dual optimizer, a JSON object.
        dual_every: The number of primal steps to a dual step, or ``"epoch"`` for one per epoch.
        dual_warmup_steps: Steps of plain ERM before the multipliers move; below 1, that share of all steps. None for 0,
            or 0.1 with α.
        dual_warmup_epochs: The same in epochs, in place of ``dual_warmup_steps``.
        resilience: ρ, the price of slack; 0 for hard constraints. None for 0, or 0.05 with α.
        slack: ``implicit``, eq. (38), or ``explicit``, eq. (36).
        slack_lr: Learning rate of explicit slack; None for ρ times that of the multipliers.
        slack_optimizer: How explicit slack moves; None for the multipliers' optimizer, or ``sgd`` for nupi and price.
        r_drop: Of ``r-drop``: the price κ of the difference between the two passes' predictions.
        layer_dropout: Of ``layerskip``: p_max, the last block's dropout rate; earlier blocks have less.
        layer_dropout_schedule: Of ``layerskip``: whether the rates grow from 0 over the run, or are constant, which
            suits fine-tuning.
        exit_scale: Of ``layerskip``: e, the scale of inner exits' losses beside the last one's.
        exit_curriculum: Of ``layerskip``: whether inner exits take turns, or join one by one from the last to the
            first in the first half of the run.
        exit_rotation: Of ``layerskip``: R, each inner exit is on at every R-th step; None for L − 1.
        calibrate: For a classifier: whether to divide the logits, at the end of training, by the temperature that fits
            the evaluation data best, for every method. It needs one evaluation data set and evaluations in training.
            The most likely class at a layer stays the same. Recipes switch it on. It is left out, which a line says,
            where no temperature fits. Compare models that are all calibrated, or none.
        patience: End training after this many evaluations without a better model, and keep the best by
            ``metric_for_best_model`` (``merit``: the last layer's loss plus penalties for violations). A model that
            meets its constraints may be 1 percent worse. Evaluations in the warm-up do not count. None to train to the
            end.
        dataloader_pin_memory: Whether batches are kept in page-locked memory, which speeds up transfers; on by default
            where there is a GPU.
    """

    method: str = field(
        default="constrained",
        metadata={
            "help": "how to train",
            "choices": ["constrained", "erm", "uniform", "linear", "r-drop", "neftune", "layerskip"],
        },
    )
    preset: str | None = field(
        default=None, metadata={"help": "our reading of the paper's settings [our own]", "choices": ["paper"]}
    )
    strength: float | None = field(default=None, metadata={"help": "share of the descent that early layers do [0.2]"})
    alpha: Alpha | None = field(default=None, metadata={"help": "the paper's bounds: step α, or as 0.3,0.2 [none]"})
    alpha_decay: float = field(default=1.0, metadata={"help": "with α: its factor from layer to layer"})
    cap: float | None = field(default=None, metadata={"help": "with α: bound on the chain's first loss [none]"})
    cap_layer: int | None = field(default=None, metadata={"help": "with a cap: the exit it bounds [the first]"})
    first_layer: int | None = field(default=None, metadata={"help": "exit where the chain starts [0; UT: 1]"})
    form: Form = field(
        default="difference", metadata={"help": "with α: kind of constraint", "choices": ["difference", "ratio"]}
    )
    stop_gradient: bool = field(default=True, metadata={"help": "no gradient through a constraint's bound"})
    dual_lr: float | None = field(default=None, metadata={"help": "learning rate of λ [0.03; price: 500 a run]"})
    dual_optimizer: str | None = field(
        default=None,
        metadata={"help": "of λ [price; adam with α]", "choices": ["sgd", "adam", "nupi", "price"]},
    )
    dual_optim_args: str | None = field(default=None, metadata={"help": "its further arguments, in JSON [none]"})
    dual_every: DualEvery = field(default=1, metadata={"help": "primal steps to a dual step, or: epoch"})
    dual_warmup_steps: float | None = field(
        default=None, metadata={"help": "steps or share before λ moves [0; 0.1 with α]"}
    )
    dual_warmup_epochs: float | None = field(default=None, metadata={"help": "the same in epochs [as in steps]"})
    resilience: float | None = field(default=None, metadata={"help": "ρ, price of slack; 0: none [0; 0.05 with α]"})
    slack: Literal["implicit", "explicit"] = field(default="implicit", metadata={"help": "kind of slack"})
    slack_lr: float | None = field(default=None, metadata={"help": "rate of explicit slack [ρ times that of λ]"})
    slack_optimizer: str | None = field(
        default=None, metadata={"help": "of slack [that of λ, or sgd]", "choices": ["sgd", "adam", "nupi"]}
    )
    r_drop: float = field(default=1.0, metadata={"help": "r-drop: price of differing predictions"})
    layer_dropout: float = field(default=0.2, metadata={"help": "layerskip: dropout rate of the last block"})
    layer_dropout_schedule: Literal["exponential", "constant"] = field(
        default="exponential", metadata={"help": "layerskip"}
    )
    exit_scale: float = field(default=1.0, metadata={"help": "layerskip: scale of inner exits' losses"})
    exit_curriculum: Literal["rotating", "gradual"] = field(default="rotating", metadata={"help": "layerskip"})
    exit_rotation: int | None = field(default=None, metadata={"help": "layerskip: steps to an exit's turn [L - 1]"})
    calibrate: bool = field(default=False, metadata={"help": "fit a classifier's temperature at the end"})
    patience: int | None = field(default=None, metadata={"help": "end after N evaluations not better [none]"})
    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available, metadata={"help": "page-locked batches [where there is a GPU]"}
    )
