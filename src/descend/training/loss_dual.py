"""The multipliers behind a loss that another library's trainer calls.

Such a trainer calls its loss, ``backward`` and the optimizer. It tells a loss neither when the optimizer steps nor
whether it will call ``backward`` at all: deepinv's evaluations run the loss in training mode. So losses count once
``backward`` passes through them, and the dual step follows the step of torch's optimizer.
"""

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from descend.core import DescentProblem, PrimalDual, refuse_negative
from descend.errors import InputError, NonFiniteLossError, refuse
from descend.methods import CLASSES, Method
from descend.settings import METHODS, STATED, DescentSettings, check_method, settings_of
from descend.training.config import PROBLEM, DescentConfig, without_trainer

OF_DUAL = ("dual_lr", "dual_optimizer", "dual_optim_args", "dual_every", "dual_warmup_steps", "resilience")
"""The settings of the multipliers that a loss takes."""

MOST_WAITING = 100
"""Batches without a step of an optimizer after which a warning says so."""

logger = logging.getLogger(__name__)

BY_WEIGHTS = sorted(
    name
    for name, method in CLASSES.items()
    if not method.own_exits
    and all(
        getattr(method, hook) is getattr(Method, hook) for hook in ("attach", "installed", "before_pass", "weights")
    )
)
"""The methods that are nothing but weights of layer losses, and so need no trainer of ours."""


class LossDual:
    r"""The weights of layer losses in another library's trainer, and the multipliers that move with its optimizer.

    Losses that `weighted` reads count for the multipliers once ``backward`` has passed through its value. All that
    count until the next step of a torch optimizer that holds parameters of the network are averaged, and the dual step
    follows that step. A step that a gradient scaler skips counts with the next one.

    Args:
        method: One of `BY_WEIGHTS`.
        steps: The number of optimizer steps in the run; None for a method without constraints.
        settings: Further settings of the constraints, of the multipliers and of the method, by name.

    Raises:
        InputError: If a setting is unknown, is not one of the method, or is outside its range.
    """

    def __init__(self, method: str, steps: int | None, settings: Mapping[str, Any]):
        self._config = _config(method, settings)
        constrained = CLASSES[method].constrained
        refuse(
            (
                steps is None and constrained,
                f"the method {method} needs steps, the number of optimizer steps in the run: epochs times batches.",
            ),
            (
                steps is not None and not (type(steps) is int and steps >= 1),
                f"steps must be the number of optimizer steps in the run, at least 1; got {steps!r}.",
            ),
        )
        self._warmup = self._config.warmup(steps, steps) if steps is not None else 0
        self._steps = steps
        self._waiting = 0  # how many batches' losses count that no dual step has seen

    def start(self, network: nn.Module, depth: int) -> None:
        """Make the multipliers of a network, and follow its optimizer.

        Args:
            network: The network, whose parameters tell its optimizer from others.
            depth: L, its number of layers.

        Raises:
            InputError: If a setting does not fit the depth.
        """
        self.network = network
        self.dual: PrimalDual[DescentProblem] = self._config.primal_dual(depth)
        if self._steps is not None:
            self.dual.warmup = self._warmup
            self.dual.plan(self._steps)
        register_optimizer_step_post_hook(Hook(self._step))

    def weighted(self, values: Tensor, sums: Tensor, samples: int) -> Tensor:
        """Σ_l w_l f_l with the current weights, whose ``backward`` lets the losses count.

        Args:
            values: f_0 … f_L, (L+1, …).
            sums: Their sums over the samples, (L+1,), detached, on the CPU.
            samples: The number of samples.

        Returns:
            The weighted sum, of the shape of one layer's values.

        Raises:
            InputError: If a mean loss is negative under constraints.
            NonFiniteLossError: If a mean loss is NaN or infinite in training.
        """
        weights = self.dual.weights
        nonzero = weights.nonzero().flatten().tolist()  # 0 times an infinite loss would be NaN
        factors = weights[nonzero].to(values).reshape(-1, *[1] * (values.dim() - 1))
        weighted = (factors * values[nonzero]).sum(0)  # a matrix product would be autocast
        if weighted.requires_grad:
            losses = sums / samples
            if not losses.isfinite().all():
                raise NonFiniteLossError(
                    f"expected finite layer losses; got {losses.tolist()}. Look at the samples of this batch, or "
                    "lower the learning rate."
                )
            if self.dual.problem.constrained:
                refuse_negative(losses)
            weighted.register_hook(lambda gradient: self._observe(sums, samples))
        return weighted

    def _observe(self, sums: Tensor, samples: int) -> None:
        """Count a batch's losses for the next dual step: ``backward`` has come to them."""
        self.dual.observe(sums, samples)
        self._waiting += 1
        if self._waiting == MOST_WAITING and self.dual.problem.constrained:
            logger.warning(
                f"{MOST_WAITING} batches went backward, and no optimizer of torch has stepped on parameters of the "
                "model, so the multipliers do not move. Give the optimizer the model's own parameters."
            )

    def _step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Take the dual step after an optimizer's, if that one moves the network and losses count."""
        if not self._waiting:
            return
        own = {id(parameter) for parameter in self.network.parameters()}
        if any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
            self._waiting = 0  # first: the multipliers' own optimizer calls this too
            self.dual.step()


class Hook:
    """A method as a hook that does not keep its object alive; a copy or a pickle of it does nothing.

    So a copy of the model, such as one for an average of weights, is not read.

    Args:
        method: The bound method; None for a hook that does nothing.
    """

    def __init__(self, method: Callable[..., None] | None = None):
        self._method = None if method is None else weakref.WeakMethod(method)

    def __call__(self, *args: Any) -> None:
        """Call the method, if its object is alive."""
        method = None if self._method is None else self._method()
        if method is not None:
            method(*args)

    def __reduce__(self) -> tuple[type["Hook"], tuple[()]]:
        return Hook, ()


def _config(method: str, given: Mapping[str, Any]) -> DescentConfig:
    """The settings of a loss.

    Args:
        method: Its method.
        given: Further settings by name.

    Raises:
        InputError: If the method needs a trainer of ours, or a setting is not one of it or outside its range.
    """
    refuse(
        (
            method not in BY_WEIGHTS,
            f"method must be one of {', '.join(BY_WEIGHTS)}; got {method!r}. Other methods need DescentTrainer.",
        )
    )
    check_method({**given, "method": method})
    config = without_trainer({**given, "method": method})
    known = [*PROBLEM, "stop_gradient", *OF_DUAL] if CLASSES[method].constrained else []
    known += sorted(METHODS[method])
    if unknown := sorted(given.keys() - set(known)):
        raise InputError(
            f"the settings of the method {method} are {', '.join(known) or 'none'}; got {', '.join(unknown)}."
            f"{' Add method=' + repr('constrained') + '.' if {*STATED}.intersection(unknown) else ''}"
        )
    every = settings_of(DescentSettings)
    for name, value in given.items():
        every[name].check(value)
    config.read_alpha()
    if config.dual_every == "epoch":
        raise InputError("dual_every must be a number of steps, as a loss does not see epochs; got 'epoch'.")
    return config
