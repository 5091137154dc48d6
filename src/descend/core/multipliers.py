"""The multipliers λ ≥ 0 and their optimizers: projected gradient ascent, the dual step of Algorithm 1."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor

from descend.errors import InputError


class _Rule(torch.optim.Optimizer):
    """The base of optimizers that update each parameter by itself: a subclass defines `_move`."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient once."""
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        raise NotImplementedError


class NuPI(_Rule):
    r"""νPI: a proportional-integral controller of the multipliers (Sohrabi et al., ICML 2024).

    .. math::
        \xi_t = \nu\,\xi_{t-1} + (1-\nu)\,g_t, \qquad
        \lambda_{t+1} = \lambda_t + \eta\,( k_i\, g_t + k_p\,(\xi_t - \xi_{t-1}) )

    The proportional term reacts to the change of the violation and damps the oscillation of plain ascent
    (k_p = 0), because the multiplier falls as soon as the violation does. The first step has no change to
    react to: ξ before it is g_0, as Cooper documents its ``SGD`` initialization. Cooper's code starts from ξ_0 = 0
    instead, which adds η k_p (1−ν) g_0 to its second step.

    Args:
        params: Tensors to update; their ``grad`` is g.
        lr: η.
        kp: k_p, the proportional gain.
        ki: k_i, the integral gain.
        nu: ν in [0, 1), the smoothing of the error that the proportional term sees.
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

    def _move(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        before = state.get("error", gradient)
        smooth = group["nu"] * before + (1 - group["nu"]) * gradient
        step = group["lr"] if group["maximize"] else -group["lr"]
        parameter.add_(group["ki"] * gradient + group["kp"] * (smooth - before), alpha=step)
        state["error"] = smooth.clone()


class PriceAscent(_Rule):
    r"""Projected gradient ascent below a price, which starts at the price.

    .. math::
        \lambda \leftarrow \mathrm{clip}\big(\lambda + \tfrac{\eta}{T}\, g,\ 0,\ p\big), \qquad \lambda_0 = p

    The price p is an L1 penalty on the violation: if λ stays below p its constraint holds exactly, and if a constraint
    is infeasible λ stays at p instead of growing without bound. Training starts with all constraints active and relaxes
    those that are met, so that the layers need not change late in training. The step is divided by the number of dual
    steps T, so that short and long runs behave alike.

    Args:
        params: Tensors to update; their ``grad`` is g.
        lr: η: how far λ moves in a whole run at a violation of 1.
        price: p > 0.
        horizon: T ≥ 1, the number of dual steps of the run; it must be set before the first step.
        start: λ_0, from 0 to p; by default p. With 0, fine-tuning a trained model starts as ERM and changes only where
            a constraint is violated.
        maximize: Must be true: the price is an upper bound, so the rule only ascends.

    Raises:
        InputError: If an argument is outside its range, or in `step` if the horizon is not known.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        price: float = 1.0,
        horizon: int | None = None,
        start: float | None = None,
        maximize: bool = False,
    ):
        if not 0 < price < math.inf:
            raise InputError(f"price must be a positive number; got {price}.")
        if not maximize:
            raise InputError("price is an optimizer of multipliers alone; choose sgd or adam for the slack.")
        super().__init__(params, {"lr": lr, "price": price, "horizon": horizon})
        if start is not None and not 0 <= start <= price:
            raise InputError(f"start must lie between 0 and the price {price:g}; got {start}.")
        self.start = price if start is None else start

    def _move(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        if group["horizon"] is None:
            raise InputError(
                "the price rule must know how many steps the run has; give PrimalDual a horizon, or call its plan."
            )
        parameter.add_(gradient, alpha=group["lr"] / group["horizon"]).clamp_(0.0, group["price"])


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "nupi": NuPI,
    "price": PriceAscent,
}

LEARNING_RATES = {"price": 500.0}
"""The default learning rate of a dual optimizer; `LEARNING_RATE` for the others."""

LEARNING_RATE = 0.03

_SET_HERE = ("params", "lr", "maximize")
"""Arguments that `optimizer_over` sets itself; they are refused as options."""


def optimizer_over(
    tensor: Tensor, name: str, lr: float, options: Mapping[str, Any] | None = None, *, maximize: bool = False
) -> torch.optim.Optimizer:
    """Create an optimizer for one tensor.

    Args:
        tensor: The tensor to optimize.
        name: One of `OPTIMIZERS`.
        lr: The learning rate.
        options: Further arguments of the optimizer.
        maximize: Whether to ascend instead of descend.

    Raises:
        InputError: If there is no such optimizer, or it does not take these arguments.
    """
    options = options or {}
    if name not in OPTIMIZERS:
        raise InputError(f"the dual optimizer must be one of {', '.join(OPTIMIZERS)}; got {name!r}.")
    if not 0 < lr < math.inf:
        raise InputError(f"a learning rate of the dual must be a positive number; got {lr}.")
    for option, value in options.items():
        if option in _SET_HERE:
            raise InputError(
                f"options of the dual optimizer must not hold {option}: the learning rate has an argument of its own, "
                f"and multipliers always ascend; got {option}={value!r}. Leave it out."
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{option} of the dual optimizer must be a number; got {value}.")
    try:
        optimizer = OPTIMIZERS[name]([tensor], lr=lr, maximize=maximize, **options)
    except (TypeError, ValueError, IndexError) as error:
        raise InputError(f"the dual optimizer {name!r} does not take these options: {error}") from None
    if texts := [option for option, value in options.items() if isinstance(value, str)]:
        raise InputError(f"{texts[0]} of the dual optimizer must be a number; got {options[texts[0]]!r}.")
    return optimizer


class Multipliers:
    """λ ≥ 0 over all constraints (entry 0 the cap, entry l layer l), and its projected ascent.

    λ ← [λ + step(g)]₊, with the step of SGD (η g: Algorithm 1 as written), Adam (the paper's runs; its step
    is about ±η whatever the violation's size), νPI, or `PriceAscent`, which starts at its price p and keeps λ ≤ p.

    λ and the optimizer's state are on the CPU in double precision, whatever torch's default device and dtype are:
    L+1 numbers that must not drift and must be identical on every rank.

    Args:
        in_force: Shape (L+1,), bool; multipliers of other constraints stay at 0.
        name: ``"sgd"``, ``"adam"``, ``"nupi"`` or ``"price"``.
        lr: η_λ.
        options: Further arguments of the optimizer.
    """

    def __init__(self, in_force: Tensor, name: str, lr: float, options: Mapping[str, Any] | None = None):
        self.in_force = in_force
        self.values = torch.zeros(len(in_force), dtype=torch.float64, device="cpu")
        self._optimizer = optimizer_over(self.values, name, lr, options, maximize=True)
        self.values[in_force] = getattr(self._optimizer, "start", 0.0)

    def set_horizon(self, steps: int) -> None:
        """Set how many dual steps the run has, which the price rule's step depends on."""
        for group in self._optimizer.param_groups:
            if "horizon" in group:
                group["horizon"] = max(1, steps)

    def ascend(self, gradient: Tensor) -> None:
        """One projected ascent step along ``gradient``, shape (L+1,)."""
        self.values.grad = torch.where(self.in_force, gradient, 0.0)
        with torch.device("cpu"):  # Adam creates its step counter on the default device
            self._optimizer.step()
        self.values.grad = None
        self.values.clamp_(min=0.0)

    def state_dict(self) -> dict[str, Any]:
        """λ, the constraints in force, and the state of the optimizer."""
        return {"values": self.values, "in_force": self.in_force, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`.

        Raises:
            InputError: If the state has another depth or other constraints.
        """
        if state["values"].shape != self.values.shape:
            raise InputError(
                f"the saved multipliers are those of {len(state['values']) - 1} layers; this problem has "
                f"{len(self.values) - 1}. Use the depth of the run that saved them."
            )
        if "in_force" not in state:
            raise InputError(
                "expected the state of this version of Descend; an older one saved it, without the constraints that "
                "it belongs to. Resume with that version, or start the run anew."
            )
        if not torch.equal(state["in_force"], self.in_force):
            raise InputError(
                f"the saved multipliers are those of {_names(state['in_force'])}; this problem constrains "
                f"{_names(self.in_force)}. Use the first layer and the cap of the run that saved them."
            )
        self.values.copy_(state["values"])
        self._optimizer.load_state_dict(state["optimizer"])


def _names(in_force: Tensor) -> str:
    """The constraints in force, in words for a message."""
    layers = [str(layer) for layer in in_force.nonzero().flatten().tolist() if layer]
    names = ["the cap"] * bool(in_force[0]) + [f"layers {', '.join(layers)}"] * bool(layers)
    return " and ".join(names) or "nothing"
