"""Made-up data with targets inside a text, and a model of someone's own for it."""

from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import AutoModelForQuestionAnswering, AutoModelForTokenClassification

HEADS = {"tokens": AutoModelForTokenClassification, "answer": AutoModelForQuestionAnswering}
"""What a sample asks for → the Auto class."""


def texts(head: str, count: int = 24) -> list[dict[str, Any]]:
    """Samples of 4 to 8 tokens: with a class for two of three tokens, or with an answer."""
    rng = np.random.default_rng(0)
    samples = []
    for length in rng.integers(4, 9, count):
        ids = rng.integers(5, 40, length)
        start, end = sorted(rng.integers(0, length, 2))
        places = {"start_positions": int(start), "end_positions": int(end)}
        labels = {"labels": [-100 if place % 3 == 2 else int(each) % 3 for place, each in enumerate(ids)]}
        samples.append({"input_ids": ids.tolist(), **(labels if head == "tokens" else places)})
    return samples


class Tagger(nn.Module):
    """A model of someone's own that knows no places."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)))
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits (B, T, 3)."""
        return self.head(self.blocks(self.words(input_ids)))
