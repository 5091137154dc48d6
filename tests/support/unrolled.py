"""Unrolled networks: proximal gradient descent of deepinv's shape, an untied LISTA, a looped transformer."""

import torch
from torch import nn

import descend


class Recovery(descend.Task):
    """The squared error of each sample's reconstruction."""

    metric = "mse"

    def losses(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (prediction - target).square().flatten(1).mean(1)


class Physics(nn.Module):
    """y = A x; no part of the network, so that it is given with the measurement."""

    def __init__(self, rows: int = 6, columns: int = 8):
        super().__init__()
        drawn = torch.randn(rows, columns, generator=torch.Generator().manual_seed(5))
        self.register_buffer("A", torch.linalg.qr(drawn.T).Q.T[:rows].contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.A.T

    def adjoint(self, y: torch.Tensor) -> torch.Tensor:
        return y @ self.A


class Step(nn.Module):
    """An iteration: a gradient step z on the data, then a learned proximal step x."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.size = nn.Parameter(torch.tensor(0.5))
        self.prior = nn.Linear(width, width)

    def forward(self, state: dict, y: torch.Tensor, physics: Physics) -> dict:
        z = state["x"] - self.size * physics.adjoint(physics(state["x"]) - y)
        return {"cost": None, "z": z, "x": z + 0.1 * torch.tanh(self.prior(z))}


class PGD(nn.Module):
    """The state is a dictionary; one step runs ``max_iter`` times."""

    def __init__(self, max_iter: int = 4):
        super().__init__()
        self.iteration = nn.Module()
        self.iteration.step = Step()
        self.max_iter = max_iter

    def forward(self, y: torch.Tensor, physics: Physics, compute_metrics: bool = False) -> torch.Tensor:
        x = physics.adjoint(y)
        state = {"x": x, "z": x}
        for _ in range(self.max_iter):
            state = self.iteration.step(state, y, physics)
        return state["x"]


class Shrinkage(nn.Module):
    """A layer of LISTA: the measurement comes before the code."""

    def __init__(self, matrix: torch.Tensor):
        super().__init__()
        rate = 1 / torch.linalg.matrix_norm(matrix, 2) ** 2
        self.encode = nn.Parameter(rate * matrix.T)
        self.again = nn.Parameter(torch.eye(matrix.shape[1]) - rate * matrix.T @ matrix)
        self.threshold = nn.Parameter(0.1 * rate)

    def forward(self, y: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
        code = code @ self.again.T + y @ self.encode.T
        return code.sign() * (code.abs() - self.threshold).clamp_min(0)


class LISTA(nn.Module):
    """Untied layers, from a code of zeros."""

    def __init__(self, depth: int = 10):
        super().__init__()
        self.layers = nn.ModuleList(Shrinkage(dictionary()) for _ in range(depth))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        code = y.new_zeros(len(y), self.layers[0].encode.shape[0])
        for layer in self.layers:
            code = layer(y, code)
        return code


class Looped(nn.Module):
    """A transformer whose one block runs several times, with a norm and pooling behind it."""

    def __init__(self, loops: int = 3, width: int = 8):
        super().__init__()
        self.embed = nn.Linear(2, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)
        self.loops = loops

    def forward(self, x: torch.Tensor, loops: int | None = None) -> torch.Tensor:
        hidden = self.embed(x)
        for _ in range(loops or self.loops):
            hidden = self.block(hidden)
        return self.read(hidden)

    def read(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(hidden).mean(1))


def dictionary() -> torch.Tensor:
    """A (6, 12) with columns of length 1."""
    return nn.functional.normalize(torch.randn(6, 12, generator=torch.Generator().manual_seed(5)), dim=0)


def measured(count: int, seed: int = 0, width: int = 8) -> list[dict[str, torch.Tensor]]:
    """Signals of a few directions, and what `Physics` measures of them."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(3, width, generator=torch.Generator().manual_seed(6))
    signals = torch.randn(count, 3, generator=generator) @ basis
    with torch.no_grad():
        return [{"y": y, "labels": x} for y, x in zip(Physics()(signals), signals, strict=True)]


def sparse(count: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Codes with a fifth of their 12 numbers not zero, and the vectors that `dictionary` makes of them."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(count, 12, generator=generator) * (torch.rand(count, 12, generator=generator) < 0.2)
    return [{"y": y, "labels": code} for y, code in zip(codes @ dictionary().T, codes, strict=True)]


def sequences(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Five points of two dimensions; the class is the third that their mean is in."""
    points = torch.randn(count, 5, 2, generator=torch.Generator().manual_seed(seed))
    return [{"x": each, "labels": int((each.mean() > -0.1).int() + (each.mean() > 0.1).int())} for each in points]


def pgd(network: PGD | None = None, **settings: object) -> descend.LayeredModel:
    """Proximal gradient descent as a layered model."""
    torch.manual_seed(0)
    network = network or PGD()
    names = {"depth": 4, "state": lambda out: out["x"], "fixed": {"physics": Physics()}, "embeddings": "y"}
    return descend.layered(network, **{"blocks": "iteration.step", "readout": lambda x: x} | names | settings)


def lista(network: LISTA | None = None, **settings: object) -> descend.LayeredModel:
    """LISTA as a layered model."""
    network = network or LISTA()
    return descend.layered(network, **{"blocks": "layers", "readout": lambda x: x, "embeddings": "y"} | settings)


def looped(network: Looped | None = None, **settings: object) -> descend.LayeredModel:
    """The looped transformer as a layered model."""
    torch.manual_seed(0)
    network = network or Looped()
    names = {"blocks": "block", "depth": 3, "readout": network.read, "embeddings": "embed"}
    return descend.layered(network, **names | settings)
