"""How multipliers and slack move: torch's SGD and Adam, νPI, ascent below a price, and a fixed penalty."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from descend.errors import InputError, refuse


class Rule(torch.optim.Optimizer):
    """An optimizer that moves each parameter by itself, by `move`."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient once."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move(parameter, parameter.grad, group)

    def move(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        """Move one parameter in place; ``group`` holds the rule's arguments by name."""
        raise NotImplementedError


class NuPI(Rule):
    r"""νPI: a proportional-integral controller of the multipliers (Sohrabi et al., ICML 2024).

    .. math::
        \xi_t = \nu\,\xi_{t-1} + (1-\nu)\,g_t, \qquad
        \lambda_{t+1} = \lambda_t + \eta\,( k_i\, g_t + k_p\,(\xi_t - \xi_{t-1}) )

    The proportional term damps the oscillation of plain ascent (k_p = 0), because the multiplier falls as soon as the
    violation does. ξ before the first step is g_0, as Cooper documents; its code starts from ξ_0 = 0, which adds
    η k_p (1−ν) g_0 to its second step.

    Args:
        params: Tensors to update; their ``grad`` is g.
        lr: η.
        kp: k_p, the proportional gain.
        ki: k_i, the integral gain.
        nu: ν in [0, 1), the smoothing of the violation.
        maximize: Ascend (True) or descend.

    Raises:
        InputError: If ν is outside its range.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        kp: float = 10.0,
        ki: float = 1.0,
        nu: float = 0.0,
        maximize: bool = False,
    ):
        if not 0 <= nu < 1:
            raise InputError(f"nu, the smoothing of nuPI, must lie in [0, 1); got {nu}.")
        super().__init__(params, {"lr": lr, "kp": kp, "ki": ki, "nu": nu, "maximize": maximize})

    def move(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        """One step along the gradient, or against it."""
        before = self.state[parameter].get("error", gradient)
        smooth = group["nu"] * before + (1 - group["nu"]) * gradient
        step = group["lr"] if group["maximize"] else -group["lr"]
        parameter.add_(group["ki"] * gradient + group["kp"] * (smooth - before), alpha=step)
        self.state[parameter]["error"] = smooth.clone()


class PriceAscent(Rule):
    r"""Projected gradient ascent of a multiplier that starts at a price and never exceeds it.

    .. math::
        \lambda \leftarrow \mathrm{clip}\big(\lambda + \tfrac{\eta}{T}\, g,\ 0,\ p\big), \qquad \lambda_0 = p

    The price p is an L1 penalty on the violation: where λ stays below p its constraint holds exactly, and where a
    constraint can't be met λ stays at p instead of growing without bound. Training starts with all constraints active.
    The step is divided by T, the dual steps that a run without warm-up has, so that short and long runs behave alike:
    ``horizon`` in the parameter group, which `PrimalDual.plan` sets before the first step.

    Args:
        params: Tensors to update; their ``grad`` is g.
        lr: η, how far λ moves in a whole run at a violation of 1.
        price: p > 0.
        start: λ_0, from 0 to p; by default p. With 0, fine-tuning starts as ERM.
        maximize: Must be true.

    Raises:
        InputError: If an argument is outside its range, or in `step` if the horizon is not known.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        price: float = 1.0,
        start: float | None = None,
        maximize: bool = False,
    ):
        start = price if start is None else start
        refuse(
            (not 0 < price < math.inf, f"price must be a positive number; got {price}."),
            (not maximize, "price is an optimizer of multipliers alone; choose sgd or adam for the slack."),
            (not 0 <= start <= price, f"start must lie between 0 and the price {price}; got {start}."),
        )
        super().__init__(params, {"lr": lr, "price": price, "horizon": None})
        self.start = start

    def move(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        """One step up, within [0, p]."""
        if group["horizon"] is None:
            raise InputError(
                "the price rule must know how many steps the run has; give PrimalDual a horizon, or call its plan."
            )
        parameter.add_(gradient, alpha=group["lr"] / group["horizon"]).clamp_(0.0, group["price"])


class FixedPenalty(Rule):
    r"""A multiplier that is one number where the last violation was positive, and 0 elsewhere.

    .. math:: \lambda \leftarrow \beta\, [g > 0]

    The Lagrangian then has the gradient of the penalty :math:`\beta \sum_k [g_k]_+`, with the violations' signs at the
    step before. Nothing adapts to whether the constraints hold: compare multipliers with this rule.

    Args:
        params: Tensors to update; their ``grad`` is g.
        lr: β.
        maximize: Must be true.

    Raises:
        InputError: If it is to move slack.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, maximize: bool = False):
        refuse((not maximize, "fixed is a rule of multipliers alone; choose sgd or adam for the slack."))
        super().__init__(params, {"lr": lr})

    def move(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        """β or 0."""
        parameter.copy_(group["lr"] * (gradient > 0))


RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "nupi": NuPI,
    "price": PriceAscent,
    "fixed": FixedPenalty,
}

LEARNING_RATES = {"sgd": 0.03, "adam": 0.03, "nupi": 0.03, "price": 500.0, "fixed": 1.0}
"""The default learning rate of each rule; that of ``price`` is for a whole run."""


def rule(values: Tensor, name: str, lr: float, options: Mapping[str, Any], *, maximize: bool) -> torch.optim.Optimizer:
    """The optimizer of one vector, which it changes in place; ``options`` are further arguments of the rule.

    Raises:
        InputError: If there is no such rule, or it does not take these arguments.
    """
    refuse(
        (name not in RULES, f"the dual optimizer must be one of {', '.join(RULES)}; got {name!r}."),
        (not 0 < lr < math.inf, f"a learning rate of the dual must be a positive number; got {lr}."),
    )
    for option, value in options.items():
        if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
            raise InputError(f"{option} of the dual optimizer must be a number; got {value!r}.")
    tried = torch.zeros_like(values)
    tried.grad = torch.zeros_like(values)
    try:
        made, trial = (RULES[name]([each], lr=lr, maximize=maximize, **options) for each in (values, tried))
        trial.param_groups[0]["horizon"] = 1  # which a price must know before a step
        trial.step()
    except (TypeError, ValueError, IndexError, RuntimeError, AssertionError) as error:
        raise InputError(f"the dual optimizer {name!r} does not take these options: {error}") from None
    return made
