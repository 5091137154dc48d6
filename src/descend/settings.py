"""Every setting of Descend, once: name, type, range, default, choices and help. Nothing slow is imported.

The command line, `configure`, `DescentConfig`, the recipes and a run's ``config.json`` read these declarations, and
`check` is the one check of a value's type and range. What depends on the model, the data or several settings at once
is checked where it is used; `descend.core` checks its own ranges again, since it stands alone.
"""

import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from descend.declared import (
    Allowed,
    Count,
    Factor,
    NoText,
    NotNegative,
    Options,
    Positive,
    Processes,
    Rate,
    Seed,
    Share,
    Steps,
    flag_of,
    setting,
)
from descend.errors import InputError
from descend.methods import CLASSES

PRETRAINED_DUAL = '{"start": 0}'
"""`dual_optim_args` for a pretrained model: multipliers start at 0, so training differs from ERM only where a
constraint is violated."""

MOST_WHOLE = 2**53
"""Largest whole number of a setting: a larger one is a typing error, and fits no integer of PyTorch's."""

LIBRARIES = ("transformers", "trl")
"""Packages whose arguments a trainer takes beside Descend's settings."""

METHODS = {name: {each.name for each in fields(kind.Settings)} for name, kind in CLASSES.items()}
"""Name → settings that no other method uses."""

# Type checkers know a method's settings in its own file alone.
if TYPE_CHECKING:
    _OfMethods = object
else:
    _declared = dict.fromkeys(kind.Settings for kind in reversed(CLASSES.values()))
    _OfMethods = type("_OfMethods", tuple(kind for kind in _declared if fields(kind)), {})

WITHOUT_ALPHA = {"strength": 0.2, "dual_optimizer": "price", "dual_warmup_steps": 0.0, "resilience": 0.0}
WITH_ALPHA = {"dual_optimizer": "sgd", "dual_warmup_steps": 0.1, "resilience": 0.05}
WITH_AFTER = {"dual_optimizer": "sgd", "dual_warmup_steps": 0.0, "resilience": 0.0}
"""What settings that are None stand for, see `descend.training.config.DescentArguments.resolved`."""


def _usual(name: str) -> str:
    """The values of a setting that is None, for its help."""
    usual = [str(table[name]).removesuffix(".0") for table in (WITHOUT_ALPHA, WITH_ALPHA, WITH_AFTER)]
    plain, with_alpha, with_after = usual
    return f"{plain}; {with_alpha} with α{' or after' * (with_after == with_alpha)}"


def read_alpha(text: str) -> float | list[float]:
    """α from a text such as ``0.3,0.2,0.1``, of a flag or of the config.json of an older version.

    Raises:
        InputError: If the text is not numbers.
    """
    try:
        values = [float(number) for number in text.split(",")]
    except ValueError:
        raise InputError(f"alpha must be one number or one per layer, as 0.3,0.2,0.1; got {text!r}.") from None
    return values if len(values) > 1 else values[0]


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@dataclass
class DescentSettings(_OfMethods):
    """The settings of the constrained problem and its solution; `DescentConfig` checks and uses them.

    The help texts are one line each, for ``descend train RECIPE --help``; the attributes below say more. The settings
    of a method, such as ``inner_weight``, are in its ``Settings``.

    Attributes:
        method: What is minimized, and how; `descend.methods` has a file for each.
        preset: ``paper`` for our reading of the paper's settings, in training and model, with guesses where they are
            lost. Other settings override it, and ``config.json`` lists them.
        strength: How much of the descent early layers must do, from 0 to 1; None for the recipe's own, or 0.2. The
            bounds follow from the losses themselves, so no α is needed. Alone it asks for the method ``useful``, unless
            the recipe's method has constraints already.
        alpha: The paper's bounds in place of ours: step α in (0, 1), each layer must lower the loss by a factor 1 − α.
            One number, or one per layer.
        after: K of a network that may run on past layer K: its loss is the objective, and no later layer may have a
            higher one, see `descend.NoWorse`. With ``alpha`` the layers up to K must descend too.
        within: τ ≥ 0: no inner layer may have a loss more than this share above the last one's, see
            `descend.NearLast`. No gradient asks for a worse last layer.
        alpha_decay: q in (0, 1] of a geometric schedule α, αq, αq², … from the chain's start; α is one number then.
        cap: With α, the bound on the loss of exit ``cap_layer``. None for no bound if ``stop_gradient`` is given;
            otherwise it is measured where training begins, a tenth above that exit's first loss.
        cap_layer: The exit that the cap bounds; None for the one where the chain starts.
        first_layer: Where the chain starts: 0 for the embedded input, 1 for the first block's output. None for 0, and
            without α for 1 with UT, whose exit 0 is the noisy input itself.
        form: Whether a constraint is a difference or a ratio of losses.
        stop_gradient: With α, whether no gradient flows through a constraint's right-hand side. Then no layer is
            rewarded for a higher loss, and layers may be left without room to lower it. None for off where the cap is
            measured, which bounds the reward, and for on with a given cap.
        dual_lr: Learning rate of the multipliers, η_λ; None for 0.03, with ``price`` for 500 over a run, with
            ``fixed`` for 1; of the projected ascent of ``after`` 0.05.
        dual_optimizer: How multipliers ascend: ``sgd``, ``adam``, ``nupi``, ``price``, or ``fixed`` for a penalty
            of ``dual_lr`` on each violation; None for ``price``, or with α or ``after`` for ``sgd``, the projected
            ascent of Algorithm 1. A step of ``adam`` is about its rate whatever the violation is, so that λ cycles at
            0.03.
        dual_optim_args: Further arguments of the dual optimizer, a JSON object.
        dual_every: The number of primal steps to a dual step, or ``"epoch"`` for one per epoch.
        dual_warmup_steps: Steps of plain ERM before the multipliers move; below 1, that share of all steps. None for 0,
            or 0.1 with α.
        dual_warmup_epochs: The same in epochs, in place of ``dual_warmup_steps``.
        resilience: ρ, the price of slack; 0 for hard constraints. None for 0, or 0.05 with α.
        slack: ``implicit``, eq. (38), or ``explicit``, eq. (36).
        slack_lr: Learning rate of explicit slack; None for 0.1 ρ, with which u goes a tenth of the way to ρλ in a step.
        slack_optimizer: How explicit slack moves: ``sgd``, ``adam`` or ``nupi``; None for ``sgd``.
        exits: How inner layers of a model of Transformers are read: by the one readout of the last layer (``shared``),
            or each by an ``own`` copy of it, for a causal language model its final norm and a square matrix before the
            one wide head. Own exits always learn; a method's weights say what the model hears of them, but for the
            wide head, which learns from the last exit alone. None for own where the model has them already or the
            method is ``probe``, otherwise shared.
        head_lr_ratio: The learning rate of a classifier's head and of own exits, in units of ``learning_rate``.
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

    method: str = setting("constrained", "how", tuple(METHODS))
    preset: str | None = setting(None, "our reading of the paper's settings [our own]", ("paper",))
    strength: Share | None = setting(None, f"share of the descent that early layers do [{WITHOUT_ALPHA['strength']}]")
    alpha: list[float] | str | float | None = setting(None, "the paper's bounds: step α, or as 0.3,0.2 [none]")
    after: Count | None = setting(None, "no layer after this one may be worse than it [none]")
    within: NotNegative | None = setting(None, "τ: no loss this share above the last one's [none]")
    alpha_decay: Factor = setting(1.0, "with α: its factor from layer to layer")
    cap: float | None = setting(None, "with α: bound on the chain's first loss [1.1 × it]")
    cap_layer: int | None = setting(None, "with a cap: the exit it bounds [the first]")
    first_layer: int | None = setting(None, "exit where the chain starts [0; UT: 1]")
    form: Literal["difference", "ratio"] = setting("difference", "with α: kind of constraint")
    stop_gradient: bool | None = setting(None, "no gradient through α's bounds [with --cap: on]")
    dual_lr: float | None = setting(None, "learning rate of λ [0.03; after: 0.05; price: 500; fixed: 1]")
    dual_optimizer: str | None = setting(
        None, f"of λ [{_usual('dual_optimizer')}]", ("sgd", "adam", "nupi", "price", "fixed")
    )
    dual_optim_args: Options | None = setting(None, "its further arguments, in JSON [none]")
    dual_every: int | str | None = setting(1, "primal steps to a dual step, or: epoch")
    dual_warmup_steps: NotNegative | None = setting(
        None, f"steps or share before λ moves [{_usual('dual_warmup_steps')}]"
    )
    dual_warmup_epochs: NotNegative | None = setting(None, "the same in epochs [as in steps]")
    resilience: float | None = setting(None, f"ρ, price of slack; 0: none [{_usual('resilience')}]")
    slack: Literal["implicit", "explicit"] = setting("implicit", "kind of slack")
    slack_lr: Positive | None = setting(None, "rate of explicit slack [0.1 ρ]")
    slack_optimizer: str | None = setting(None, "of explicit slack [sgd]", ("sgd", "adam", "nupi"))
    exits: Literal["shared", "own"] | None = setting(None, "readouts of inner layers [shared; probe: own]")
    head_lr_ratio: Positive = setting(1.0, "rate of the head, in learning rates")
    calibrate: bool = setting(False, "fit a classifier's temperature at the end")
    patience: Count | None = setting(None, "end after N evaluations not better [none]")
    dataloader_pin_memory: bool = field(
        default_factory=_has_gpu, metadata={"help": "page-locked batches [where there is a GPU]"}
    )


@dataclass
class SFTSettings(DescentSettings):
    """The settings of constrained instruction tuning, over TRL's.

    Attributes:
        exit_share: p in (0, 1], the share of target tokens that inner exits see in training. With 1 their losses are
            exact. Below 1 the tokens are drawn anew in every batch, the same at every inner exit, for nearly the price
            of plain fine-tuning.
    """

    exit_share: Factor = setting(1.0, "share of target tokens that inner exits see")


class Named(NamedTuple):
    """An argument of Transformers that we name.

    Attributes:
        help: Our one line for it; empty for Transformers' own.
        type: Its type with the range that we check.
    """

    help: str = ""
    type: Any = object


NAMED = {
    "max_steps": Named("length of the run in steps; -1: by epochs", Steps),
    "num_train_epochs": Named("length of the run in epochs", Positive),
    "learning_rate": Named("the highest of the schedule", NotNegative),
    "lr_scheduler_type": Named("linear, cosine, constant …"),
    "warmup_steps": Named("until the highest rate: steps, or a share", NotNegative),
    "per_device_train_batch_size": Named("samples of a micro-batch", Count),
    "per_device_eval_batch_size": Named(type=Count),
    "gradient_accumulation_steps": Named(type=Count),
    "weight_decay": Named(type=NotNegative),
    "adam_beta1": Named(type=Rate),
    "adam_beta2": Named(type=Rate),
    "adam_epsilon": Named(type=NotNegative),
    "max_grad_norm": Named(type=NotNegative),
    "neftune_noise_alpha": Named(type=Positive),
    "seed": Named("of weights, data order and noise", Seed),
    "data_seed": Named(type=Seed),
    "bf16": Named("train in bfloat16"),
    "use_cpu": Named("train on the CPU"),
    "dataloader_num_workers": Named(type=Processes),
    "parallelism_config": Named(type=NoText),
    "eval_steps": Named("steps between evaluations", Positive),
    "save_steps": Named("steps between checkpoints", Positive),
    "logging_steps": Named(type=Positive),
    "save_total_limit": Named(type=Count),
}
"""The arguments of Transformers of which help has our own line, or whose range is checked."""


class Setting(NamedTuple):
    """A field of a dataclass of settings, or an argument of Transformers or TRL.

    Attributes:
        name: Its name.
        package: The package of the class that declares it, such as ``transformers``.
        kind: bool, int, float or str; object for all other types.
        default: The default; `dataclasses.MISSING` if it is computed.
        metadata: ``help``, and perhaps ``choices``, ``nargs`` and ``const`` of `argparse`.
        allowed: The range; None without one.
    """

    name: str
    package: str
    kind: type
    default: Any
    metadata: Mapping[str, Any]
    allowed: Allowed | None = None

    def fault(self, value: Any) -> str:
        """What a value must be, in words; empty if it is that."""
        number, choices = self.kind in (int, float), self.metadata.get("choices", ())
        if value is None and (self.default is None or self.package in LIBRARIES):
            return ""
        if number and isinstance(value, str):
            return "be a number"
        if self.package not in LIBRARIES:  # Transformers and TRL check types and choices of their own arguments
            if choices and value not in choices and self.allowed is None:
                return f"be one of {', '.join(choices)}"
            if self.kind is bool and not isinstance(value, bool):
                return "be True or False"
            if number and (isinstance(value, bool) or not hasattr(value, _AS[self.kind])):
                return "be a whole number" if self.kind is int else "be a number"
            if self.kind is str and not isinstance(value, str | os.PathLike) and self.allowed is None:
                return "be a text"
        if self.allowed is None or self.allowed.holds(value):
            return f"be at most {MOST_WHOLE:,}" if self.kind is int and abs(value) > MOST_WHOLE else ""
        infinite = number and not math.isfinite(value) and self.allowed.words.startswith("be at least")
        return self.allowed.words + ", and finite" * infinite

    def check(self, value: Any) -> None:
        """Refuse a value that the declaration does not allow.

        Raises:
            InputError: If it has another type, is outside the range or is none of the choices.
        """
        if fault := self.fault(value):
            close = difflib.get_close_matches(str(value), self.metadata.get("choices", ()), n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            text = "the text " if isinstance(value, str) and fault == "be a number" else ""
            raise InputError(f"{self.name} must {fault}; got {text}{value!r}{meant}.")


_AS = {int: "__index__", float: "__float__"}
"""Kind of number → the method of values that are one."""


def _settings_of(kind: type) -> dict[str, Setting]:
    """The settings of a dataclass and its bases, by name, those of the bases first.

    Args:
        kind: A class of settings, such as `UTSettings`, or one that derives from them.
    """
    hints = _hints(kind)
    packages: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        packages |= dict.fromkeys(vars(base).get("__annotations__", ()), base.__module__.partition(".")[0])
    every = {}
    for each in fields(kind):
        if each.init and each.name in hints:
            plain, allowed = _type_of(hints[each.name])
            if packages[each.name] in LIBRARIES and each.name in NAMED:
                _, allowed = _type_of(NAMED[each.name].type)
            choices = {"choices": get_args(plain)} if get_origin(plain) is Literal else {}
            plain = str if choices else plain if plain in (bool, int, float, str) else object
            metadata = {**each.metadata, **choices}
            every[each.name] = Setting(each.name, packages[each.name], plain, each.default, metadata, allowed)
    return every


def _hints(kind: type) -> dict[str, Any]:
    """The annotations of our own and the libraries' classes: a user's may name types that are not there at run time."""
    if kind.__module__.partition(".")[0] in ("descend", *LIBRARIES):
        return hints_of(kind, include_extras=True)
    return {name: hint for base in reversed(kind.__bases__) for name, hint in _hints(base).items()}


# mypy takes classes with fields that may change for no keys of a cache.
settings_of: Callable[[type], dict[str, Setting]] = cache(_settings_of)


def _type_of(hint: Any) -> tuple[Any, Allowed | None]:
    """The type in an annotation, without None, and its range."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    plain, *others = [each for each in options if each is not NoneType]
    if others:
        return object, None
    return get_args(plain) if get_origin(plain) is Annotated else (plain, None)


def check(settings: Any) -> None:
    """Refuse what `Setting.check` refuses.

    Args:
        settings: An instance of a class of settings, whose arguments of Transformers are checked too.

    Raises:
        InputError: If a value is not allowed.
    """
    for each in settings_of(type(settings)).values():
        each.check(getattr(settings, each.name))


def settings_of_others(*methods: str) -> set[str]:
    """The settings that belong to one method alone, and to none of these."""
    used = set().union(*(METHODS.get(name, set()) for name in methods))
    return set().union(*METHODS.values()) - used


STATED = ("alpha", "after", "within")
"""The settings that state bounds, so that ours do not take their place."""


def method_of(given: Mapping[str, Any], usual: str) -> str:
    """The method that given settings ask for.

    A preset or stated bounds ask for ``constrained``. A strength asks for ``useful``, unless the recipe's method has
    constraints already.

    Args:
        given: Settings by name; those of a preset, and those that a sweep searches, may be among them.
        usual: The recipe's method.
    """
    if "method" in given:
        return str(given["method"])
    if any(given.get(name) is not None for name in ("preset", *STATED)):
        return "constrained"
    unconstrained = usual in CLASSES and not CLASSES[usual].constrained
    return "useful" if unconstrained and given.get("strength") is not None else usual


def check_method(settings: Mapping[str, Any], usual: str = "constrained") -> None:
    """Refuse settings that the method does not use.

    Args:
        settings: The given settings by name.
        usual: The recipe's method.

    Raises:
        InputError: If one belongs to another method.
    """
    chosen = method_of(settings, usual)
    given = f"; the method is {chosen}" if "method" in settings else ""
    for method, names in METHODS.items():
        if strange := sorted(names & settings.keys() & settings_of_others(chosen)):
            flags = ", ".join(map(flag_of, strange))
            raise InputError(
                f"{flags}: a setting of the method {method}{given}. Leave it out, or choose --method {method}."
            )
