"""A user's own model, task and data, as docs/tutorials/own_model.py has them, but smaller."""

import torch
from torch import nn

import descend


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + nn.functional.gelu(self.linear(self.norm(hidden)))


class ResidualMLP(nn.Module):
    """Blocks in ``self.blocks``, the most common name there is."""

    def __init__(self, depth: int = 3, width: int = 8, looped: bool = False):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(1 if looped else depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)
        self.turns = depth if looped else 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        for _ in range(self.turns):
            for block in self.blocks:
                hidden = block(hidden)
        return self.head(self.norm(hidden))


class Whole(descend.LayeredModel):
    """A subclass without a forward pass, whose depth and readout are plain attributes and whose blocks are `blocks`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.depth, self.embed, self.readout = 3, nn.Linear(4, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Block(8) for _ in range(3))

    def get_input_embeddings(self):
        return self.embed

    def layer_outputs(self, inputs):
        states = [self.embed(inputs["x"])]
        for block in self.blocks:
            states.append(block(states[-1]))
        return tuple(states)


class Classes(descend.Task):
    """The least that a task must say."""

    def losses(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(prediction, target, reduction="none")


def mlp(**settings: object) -> nn.Module:
    torch.manual_seed(0)
    return ResidualMLP(**settings)


def layers(network: nn.Module | None = None, **settings: object) -> descend.LayeredModel:
    network = network or mlp()
    names = {"blocks": "blocks", "readout": lambda hidden: network.head(network.norm(hidden)), "embeddings": "embed"}
    return descend.layered(network, **names | settings)


def samples(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Points of four dimensions; the class is the largest of the first three."""
    points = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return [{"x": point, "labels": int(point[:3].argmax())} for point in points]
