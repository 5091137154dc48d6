"""The first half of ``descend demo``: a residual network that reads scikit-learn's digits."""

import base64
import io
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PrinterCallback

import descend
from descend.results import DECISIONS_FILE, DecidedText, Decision, Decisions, Summary
from descend.settings import DIGITS
from descend.tasks.images.sources import read_images

DEPTH = 8
WIDTH = 64


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

    def forward(self, pixels: Tensor) -> Tensor:
        """The logits of the ten digits, (B, 10)."""
        return self.head(self.blocks(self.embed(pixels)))


class Digits(descend.Task):
    """Cross-entropy and accuracy."""

    metric, higher_is_better = "accuracy", True

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss of each digit, (B,)."""
        return F.cross_entropy(prediction, target, reduction="none")

    def score(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Whether each digit is right, (B,)."""
        return (prediction.argmax(-1) == target).float()


class Case:
    """Digits, and the networks that are trained on them.

    Attributes:
        train: Two thirds of the 1,797 digits.
        test: The others.
        shown: The test digits whose answers are shown, the first of each class.
        answers: Method → the digit that each layer 0 … L takes each test sample for, (L+1, S).
    """

    settings: ClassVar[dict[str, Any]] = {
        "num_train_epochs": 6,
        "per_device_train_batch_size": 32,
        "learning_rate": 1e-3,
        "use_cpu": True,
    }

    def __init__(self) -> None:
        side = read_images(DIGITS).sides["train"]
        samples: list[dict[str, Any]] = [
            {"pixels": torch.tensor(np.asarray(picture) / 255).float().flatten(), "labels": int(label)}
            for picture, label in zip(side.pictures, side.labels, strict=True)
        ]
        self.train = [each for place, each in enumerate(samples) if place % 3]
        self.test = samples[::3]
        labels = [each["labels"] for each in self.test]
        self.shown = [labels.index(digit) for digit in range(10)]
        self.answers: dict[str, Tensor] = {}

    def run(self, method: str, folder: Path, seed: int) -> Summary:
        """Train a network by a method, and evaluate it into a folder."""
        torch.manual_seed(seed)
        network = Network()
        arguments = descend.DescentConfig(str(folder), method=method, seed=seed, **self.settings)
        model = descend.layered(network, blocks="blocks", readout="head", embeddings="embed")
        trainer = descend.DescentTrainer(model, arguments, task=Digits(), train_dataset=self.train)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        pixels = torch.stack([each["pixels"] for each in self.test])
        with torch.no_grad():
            outputs = model.predictions({"pixels": pixels})
        probabilities = torch.stack([each.detach().softmax(-1) for each in outputs])
        self.answers[method] = probabilities.argmax(-1)
        summary = descend.evaluate(trainer, self.test, noise=(0,), name="digits", seed=seed)
        self._decisions(probabilities).write(folder / DECISIONS_FILE)
        return summary

    def table(self) -> list[str]:
        """Lines: what each layer of each network takes ten digits for."""
        width = 2 * DEPTH + 5
        lines = [
            "a digit, and what layers 0 to 8 take it for",
            f"   {''.join(name.ljust(width) for name in self.answers)}",
        ]
        for place in self.shown:
            said = (" ".join(map(str, answers[:, place].tolist())) for answers in self.answers.values())
            lines.append(f"{self.test[place]['labels']}  {''.join(each.ljust(width) for each in said)}".rstrip())
        return lines

    def _decisions(self, probabilities: Tensor) -> Decisions:
        texts = []
        for place in self.shown:
            label = self.test[place]["labels"]
            tops = probabilities[:, place].max(-1)
            decisions = [
                Decision(answer=str(int(answer)), confidence=float(sure), right=int(answer) == label)
                for sure, answer in zip(tops.values, tops.indices, strict=True)
            ]
            name, picture = f"a {label}, number {place} of the test", _picture(self.test[place]["pixels"])
            texts.append(DecidedText(text=name, picture=picture, decisions=decisions))
        return Decisions(noise=0, texts=texts)


def _picture(pixels: Tensor) -> str:
    """A data URI of an 8×8 image."""
    buffer = io.BytesIO()
    Image.fromarray((pixels.reshape(8, 8) * 255).byte().numpy()).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
