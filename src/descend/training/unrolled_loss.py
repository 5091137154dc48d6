"""`UnrolledLoss`: constraints and deep supervision as a loss of a trainer that is not Transformers', such as deepinv's.

Such a trainer calls the model, and then its losses. So the loss reads the model's own forward pass through hooks.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from descend.core import DescentProblem, PrimalDual
from descend.errors import InputError, refuse
from descend.models import Calls, HookedModel, close, first_tensor, layered
from descend.training.loss_dual import Hook, LossDual


def squared_error(prediction: Tensor, x: Tensor) -> Tensor:
    """The squared error of each element, of the shape of x."""
    return (prediction - x).square()


class UnrolledLoss:
    r"""Train a network's inner layers in another library's trainer, in the place of its supervised loss.

    The model's own forward pass is read through hooks, and there is no second one. The value is one number a sample,

    .. math:: \sum_l w_l f_l, \qquad f_l = \text{loss}(\text{readout}(h_l), x),

    with the method's weights: constants of deep supervision, or `PrimalDual.weights` at the multipliers before the
    forward pass. Losses count for the multipliers once ``backward`` has passed through them, so evaluations do not, and
    all that count until the optimizer's step are averaged. The dual step follows each step of a torch optimizer that
    holds parameters of the model. A step that a gradient scaler skips counts with the next one.

    In deepinv::

        loss = descend.UnrolledLoss(
            "fixed_point.iterator", depth=5, state=lambda out: out["est"][0], steps=epochs * len(train_dataloader)
        )
        deepinv.Trainer(model, physics, optimizer, train_dataloader, epochs=epochs, losses=loss).train()

    In a loop of your own call ``adapt_model(model)`` before the first forward pass.

    Args:
        blocks: The blocks of the network that the trainer is given, as in `layered`.
        steps: The number of optimizer steps in the run, epochs times batches. Only methods with constraints need it.
        depth: L, the number of block calls in a forward pass, if blocks run more than once.
        state: Gives h_l of a block's output, and alike of the argument that the next block is given; by default the
            first tensor.
        readout: Turns h_l into a prediction of the shape of x; by default h_l itself. That of h_L is the network's
            output.
        loss: The loss of a prediction and x, ``loss(prediction, x)``: of each element, whose mean over a sample is
            taken, of each sample (B,), or a mean over the batch; by default the squared error.
        method: ``"constrained"``, ``"erm"``, or deep supervision such as ``"linear"``.
        **settings: Further settings of `DescentConfig` that say what a layer must reach and how multipliers move, such
            as ``strength``, ``alpha``, ``after`` and ``dual_lr``, and settings of the method, such as ``inner_weight``.
            Without a ``cap`` the bounds of ``alpha`` are constants in the primal step: no cap is measured.

    Attributes:
        losses: f_0 … f_L of the last call, (L+1,), means over its samples, on the CPU; None before the first.

    Raises:
        InputError: If a setting is unknown, is not one of the method, or is outside its range.
    """

    def __init__(
        self,
        blocks: str | Sequence[nn.Module],
        *,
        steps: int | None = None,
        depth: int | None = None,
        state: Callable[[Any], Any] = first_tensor,
        readout: str | Callable[[Tensor], Tensor] = lambda hidden: hidden,
        loss: Callable[[Tensor, Tensor], Tensor] = squared_error,
        method: str = "constrained",
        **settings: Any,
    ):
        self._weights = LossDual(method, steps, settings)
        refuse((not callable(loss), f"loss must be a function of a prediction and x; got {loss!r}."))
        self._loss = loss
        self._read: dict[str, Any] = {"blocks": blocks, "depth": depth, "state": state, "readout": readout}
        self.losses: Tensor | None = None
        self._layers: HookedModel | None = None
        self._recording = ExitStack()
        self._calls: Calls | None = None  # of a forward pass that is running
        self._pass: tuple[Calls, Any] | None = None  # the blocks' calls in the last forward pass, and its output

    @property
    def dual(self) -> PrimalDual[DescentProblem]:
        """The multipliers, the problem and the weights.

        Raises:
            InputError: Before `adapt_model`, which counts the layers.
        """
        self._adapted()
        return self._weights.dual

    def adapt_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        """Let the loss read a model's forward passes. Its class, its weights and their names stay as they are.

        Args:
            model: The network, or the same one again, even inside another loss's wrapper.
            **kwargs: Not used.

        Returns:
            The model.

        Raises:
            InputError: If ``blocks``, ``depth`` or a setting does not fit it, or the loss has another model already.
        """
        if self._layers is not None:
            network = self._layers.network
            if all(each is not network for each in model.modules()):
                raise InputError(
                    f"this loss has the multipliers of another {type(network).__name__}. Make an UnrolledLoss for each "
                    "model."
                )
            return model
        layers = layered(model, **self._read)
        self._weights.start(layers.network, layers.depth)
        self._layers = layers
        model.register_forward_pre_hook(Hook(self._begin))
        model.register_forward_hook(Hook(self._end), always_call=True)
        return model

    def forward(
        self,
        x_net: Tensor,
        x: Tensor,
        y: Any = None,
        physics: Any = None,
        model: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """The weighted sum of the layer losses of the last forward pass, for each sample.

        Args:
            x_net: The output of that pass, (B, …).
            x: The ground truth, (B, …).
            y: Not used, as all that follow.
            physics: Not used.
            model: Not used.
            **kwargs: Not used.

        Returns:
            Σ_l w_l f_l, (B,); its mean is the Lagrangian.

        Raises:
            InputError: If no forward pass was read, it did not give ``x_net``, its blocks do not fit, a shape is not
                that of x, or a mean loss is negative under constraints.
            NonFiniteLossError: If a mean loss is NaN or infinite in training.
        """
        values = torch.stack([self._of_samples(prediction, x) for prediction in self._predictions(x_net)])
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        sums = values.detach().sum(1).cpu().double()
        self.losses = sums / len(x)
        return self._weights.weighted(values, sums, len(x))

    __call__ = forward

    def state_dict(self) -> dict[str, Any]:
        """The multipliers and all that moves them. A run that resumes from it and the model's state is bit-identical.

        Raises:
            InputError: Before `adapt_model`.
        """
        return self.dual.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`, or its JSON.

        Raises:
            InputError: Before `adapt_model`, or if the state is that of other constraints or settings.
        """
        self.dual.load_state_dict(dict(state))

    def _begin(self, model: nn.Module, args: Any) -> None:
        """Start to record the blocks' calls; calls of the pass before are dropped."""
        self._calls = self._recording.enter_context(self._adapted().recording())
        self._pass = None

    def _end(self, model: nn.Module, args: Any, output: Any) -> None:
        """Remove the hooks from the blocks. It is called after a failed pass too."""
        self._recording.close()
        if self._calls is not None:
            self._pass, self._calls = (self._calls, output), None

    def _adapted(self) -> HookedModel:
        """The model, as it is read."""
        if self._layers is None:
            raise InputError("the loss has no model yet: call adapt_model(model) before the first forward pass.")
        return self._layers

    def _predictions(self, x_net: Tensor) -> list[Tensor]:
        """The prediction of every layer in the last forward pass, which is used up."""
        layers = self._adapted()
        if self._pass is None:
            raise InputError(
                f"expected a forward pass of the {type(layers.network).__name__} that adapt_model was given; got none "
                "since the last loss. Call that model, and then the loss once."
            )
        (calls, output), self._pass = self._pass, None
        predictions = [layers.readout(state) for state in layers.states(calls, output)]
        if x_net is not output and not (isinstance(x_net, Tensor) and close(predictions[-1], x_net)):
            raise InputError(
                "x_net must be the output of the model's last forward pass; got another tensor. Put UnrolledLoss "
                "before losses that call the model again."
            )
        return predictions

    def _of_samples(self, prediction: Tensor, x: Tensor) -> Tensor:
        """The loss of each sample, (B,)."""
        wanted = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        if tuple(prediction.shape) != wanted:
            raise InputError(
                f"every layer's prediction must have the shape of x; got {tuple(prediction.shape)} and x "
                f"{wanted}. Give a readout that makes x of a block's output."
            )
        values = self._loss(prediction, x)
        if not isinstance(values, Tensor) or (values.dim() and len(values) != len(x)):
            got = tuple(values.shape) if isinstance(values, Tensor) else f"a {type(values).__name__}"
            raise InputError(f"loss must return a loss for each of {len(x)} samples, or their mean; got {got}.")
        return values.flatten(1).mean(1) if values.dim() > 1 else values.expand(len(x))
