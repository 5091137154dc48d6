"""Unrolled solvers of inverse problems: LISTA and proximal gradient descent, from a measurement to a signal."""

from abc import abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from descend.errors import InputError
from descend.models.tied import TiedLayers


class UnfoldedConfig(PreTrainedConfig):
    """The settings that all unrolled solvers share.

    Args:
        depth: L, the number of iterations.
        tied: Whether one set of weights serves all iterations; such a network can run on past L.
    """

    def __init__(self, depth: int = 10, tied: bool = False, **kwargs: Any):
        if depth < 1:
            raise InputError(f"depth must be at least 1, the number of iterations; got {depth}.")
        self.depth = depth
        self.tied = tied
        super().__init__(**kwargs)


class UnfoldedModel(TiedLayers, PreTrainedModel):
    """The base class of unrolled solvers. A layer is an iteration, and h_l is the estimate x_l of the signal.

    There are L blocks, or one if they are tied, each called with x_{l−1} and y.

    Raises:
        InputError: If a measurement has another shape.
    """

    main_input_name = "y"
    config: UnfoldedConfig

    def __init__(self, config: UnfoldedConfig):
        super().__init__(config)
        self.measurement = nn.Identity()
        self.layers = nn.ModuleList(self.block() for _ in range(1 if config.tied else config.depth))
        self.post_init()

    @property
    def layer_modules(self) -> nn.ModuleList:
        """The blocks, each once."""
        return self.layers

    @property
    @abstractmethod
    def measured(self) -> tuple[int, ...]:
        """The shape of one measurement."""

    @abstractmethod
    def block(self) -> nn.Module:
        """A new block."""

    @abstractmethod
    def start(self, y: Tensor) -> Tensor:
        """x_0, of measurements (B, …)."""

    def get_input_embeddings(self) -> nn.Module:
        """An identity on the measurement."""
        return self.measurement

    def layer_states(self, y: Tensor) -> Iterator[Tensor]:
        """Yield x_0 … x_L of measurements y (B, …)."""
        if tuple(y.shape[1:]) != self.measured:
            raise InputError(f"a measurement must have the shape {self.measured}; got {tuple(y.shape[1:])}.")
        noisy = self.measurement(y)
        x = self.start(noisy)
        yield x
        for layer in [*self.layers] * (self.depth if self.config.tied else 1):
            x = layer(x, noisy)
            yield x

    def forward(self, y: Tensor) -> Tensor:
        """The last estimate x_L of measurements y (B, …)."""
        *_, last = self.layer_states(y)
        return last

    def layer_outputs(self, inputs: Any) -> tuple[Tensor, ...]:
        """x_0 … x_L for a batch with the field ``y``."""
        return tuple(self.layer_states(inputs["y"]))

    def readout(self, hidden: Tensor) -> Tensor:
        """The estimate itself."""
        return hidden

    def probe_inputs(self) -> dict[str, Tensor]:
        """Two small made-up measurements."""
        weight = next(self.parameters())
        generator = torch.Generator().manual_seed(0)
        drawn = torch.rand((2, *self.measured), generator=generator, dtype=torch.float32, device="cpu")
        return {"y": drawn.to(weight.device, weight.dtype)}

    def _init_weights(self, module: nn.Module) -> None:
        """Does nothing: constructors set the weights. Transformers calls this for weights that a checkpoint lacks."""


class LISTAConfig(UnfoldedConfig):
    """Configuration of `LISTA`.

    Args:
        depth: L, the number of iterations.
        tied: Whether one set of weights serves all iterations.
        rows: m, the numbers of a measurement.
        columns: n, the numbers of a code.
    """

    model_type = "descend-lista"

    def __init__(self, depth: int = 10, tied: bool = False, rows: int = 50, columns: int = 100, **kwargs: Any):
        self.rows = rows
        self.columns = columns
        super().__init__(depth=depth, tied=tied, **kwargs)


class LISTA(UnfoldedModel):
    r"""Learned ISTA (Gregor and LeCun, 2010): sparse codes x of measurements y ≈ A x.

    .. math:: x_l = \eta_{\theta_l}(W_l\, y + S_l\, x_{l-1}), \quad x_0 = 0, \qquad
        \eta_\theta(z) = \mathrm{sign}(z)\,[|z| - \theta]_+

    W (n, m), S (n, n) and θ ≥ 0 of every layer are free. `start_from` sets them to the values of ISTA.
    """

    config_class = LISTAConfig
    config: LISTAConfig

    @property
    def measured(self) -> tuple[int, ...]:
        """(m,)."""
        return (self.config.rows,)

    def block(self) -> nn.Module:
        """A new layer, with W = 0, S = I and θ = 0."""
        return Shrinkage(self.config.rows, self.config.columns)

    def start(self, y: Tensor) -> Tensor:
        """x_0 = 0."""
        return y.new_zeros(len(y), self.config.columns)

    @torch.no_grad()
    def start_from(self, matrix: Tensor, penalty: float = 0.1) -> None:
        """Set all layers to an iteration of ISTA: W = Aᵀ/‖A‖², S = I − Aᵀ A/‖A‖², θ = penalty/‖A‖².

        Args:
            matrix: A, (m, n).
            penalty: Of the ℓ1 norm, in ½‖A x − y‖² + penalty ‖x‖₁.
        """
        rate = 1 / torch.linalg.matrix_norm(matrix, 2) ** 2
        for layer in self.layers:
            assert isinstance(layer, Shrinkage)
            layer.encode.copy_(rate * matrix.T)
            layer.again.copy_(torch.eye(matrix.shape[1]) - rate * matrix.T @ matrix)
            layer.threshold.fill_(penalty * rate)


class Shrinkage(nn.Module):
    """A layer of `LISTA`.

    Args:
        rows: m.
        columns: n.
    """

    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.encode = nn.Parameter(torch.zeros(columns, rows))
        self.again = nn.Parameter(torch.eye(columns))
        self.threshold = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x_l (B, n) of x_{l−1} (B, n) and y (B, m)."""
        z = y @ self.encode.T + x @ self.again.T
        threshold = self.threshold.abs()
        return z - z.clamp(-threshold, threshold)


class PGDConfig(UnfoldedConfig):
    """Configuration of `PGD`.

    Args:
        depth: L, the number of iterations.
        tied: Whether one set of weights serves all iterations.
        side: Height and width of an image in pixels.
        channels: Of the network in the place of a proximal step.
        blur: The standard deviation of the Gaussian blur in pixels.
    """

    model_type = "descend-pgd"

    def __init__(
        self, depth: int = 5, tied: bool = False, side: int = 16, channels: int = 8, blur: float = 1.2, **kwargs: Any
    ):
        self.side = side
        self.channels = channels
        self.blur = blur
        super().__init__(depth=depth, tied=tied, **kwargs)


class PGD(UnfoldedModel):
    r"""Unfolded proximal gradient descent: images x of their blurred ones y ≈ A x.

    .. math:: x_l = P_l\big(x_{l-1} - \tau_l A^\top (A x_{l-1} - y)\big), \quad x_0 = y

    A small convolutional network with a skip connection stands in the place of the proximal step P. The blur A is known
    to the network.
    """

    config_class = PGDConfig
    config: PGDConfig

    @property
    def measured(self) -> tuple[int, ...]:
        """(1, side, side)."""
        return (1, self.config.side, self.config.side)

    def block(self) -> nn.Module:
        """A new layer, with random convolutions and τ = 1."""
        return ProximalStep(self.config.channels, self.config.blur)

    def start(self, y: Tensor) -> Tensor:
        """x_0 = y."""
        return y


class ProximalStep(nn.Module):
    """A layer of `PGD`.

    Args:
        channels: Of the network.
        blur: The standard deviation of the blur in pixels.
    """

    def __init__(self, channels: int, blur: float):
        super().__init__()
        self.size = nn.Parameter(torch.ones(()))
        self.encode = nn.Conv2d(1, channels, 3, padding=1)
        self.decode = nn.Conv2d(channels, 1, 3, padding=1)
        self.blur = blur

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x_l of x_{l−1} and y, all (B, 1, side, side)."""
        # The kernel is symmetric, so that A is its own adjoint.
        z = x - self.size * blurred(blurred(x, self.blur) - y, self.blur)
        return z + self.decode(F.relu(self.encode(z)))


def blurred(images: Tensor, std: float) -> Tensor:
    """Images (B, 1, H, W) under a Gaussian blur that wraps around the edges.

    Args:
        images: The images.
        std: The standard deviation of the blur in pixels.
    """
    rows, columns = (_blur(length, std).to(images) for length in images.shape[-2:])
    return rows @ images @ columns


@lru_cache
def _blur(length: int, std: float) -> Tensor:
    """The Gaussian blur of a line that wraps around, a symmetric matrix (length, length)."""
    places = torch.arange(length, dtype=torch.float64, device="cpu")
    distance = (places[:, None] - places).abs()
    weights = torch.exp(-torch.minimum(distance, length - distance).square() / (2 * std**2))
    return weights / weights.sum(1, keepdim=True)


AutoConfig.register(LISTAConfig.model_type, LISTAConfig)
AutoModel.register(LISTAConfig, LISTA)
AutoConfig.register(PGDConfig.model_type, PGDConfig)
AutoModel.register(PGDConfig, PGD)
