"""The second half of ``descend demo``: a residual network that reads scikit-learn's digits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PrinterCallback

import descend
from descend.declared import DIGITS
from descend.results import DECISIONS_FILE, Decisions, Summary
from descend.tasks.images import ImageClassification
from descend.tasks.images.sources import read_images

DEPTH = 8
WIDTH = 64

SETTINGS: dict[str, Any] = {
    "num_train_epochs": 6,
    "per_device_train_batch_size": 64,
    "learning_rate": 2e-3,
    "use_cpu": True,
}


class Block(nn.Module):
    """h + MLP(norm(h))."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        """The next state, (B, width)."""
        return hidden + self.inner(hidden)


class Network(nn.Module):
    """A residual network: any PyTorch module with an embedding, blocks and a head would do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(64, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The logits of the ten digits, (B, 10), of images (B, 1, 8, 8)."""
        return self.head(self.blocks(self.embed(pixel_values.flatten(1))))


def read() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two thirds of the 1,797 digits to train on, and the others to test on."""
    side = read_images(DIGITS).sides["train"]
    samples = [
        {"pixel_values": torch.tensor(np.asarray(picture) / 255).float()[None], "labels": int(label)}
        for picture, label in zip(side.pictures, side.labels, strict=True)
    ]
    return [each for place, each in enumerate(samples) if place % 3], samples[::3]


def run(parts: tuple[list[Any], list[Any]], method: str, folder: Path, seed: int) -> Summary:
    """Train a network by a method, and evaluate it into a folder."""
    train, test = parts
    torch.manual_seed(seed)
    arguments = descend.DescentConfig(str(folder), method=method, seed=seed, disable_tqdm=True, **SETTINGS)
    model = descend.layered(Network(), blocks="blocks", readout="head", embeddings="embed")
    trainer = descend.DescentTrainer(model, arguments, task=ImageClassification(), train_dataset=train)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return descend.evaluate(trainer, test, noise=(0,), name="digits", seed=seed)


def table(folders: Sequence[Path]) -> list[str]:
    """Lines: what each layer of each network takes a few digits for."""
    decided = [Decisions.read(folder / DECISIONS_FILE).texts for folder in folders]
    width = 2 * DEPTH + 5
    lines = [
        f"a digit, and what layers 0 to {DEPTH} take it for",
        f"   {''.join(folder.name.removeprefix('digits-').ljust(width) for folder in folders)}",
    ]
    for networks in zip(*decided, strict=True):
        answers = (" ".join(layer.answer.removeprefix("class ") for layer in each.decisions) for each in networks)
        digit = networks[0].text.removeprefix("class ")[0]
        lines.append(f"{digit}  {''.join(each.ljust(width) for each in answers)}".rstrip())
    return lines
