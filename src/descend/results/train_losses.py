"""The layers' losses on training samples in test mode: ``train_losses.json``."""

from pathlib import Path

from descend.results.base import File, Number, parse
from descend.results.folder import read_json

TRAIN_LOSSES_FILE = "train_losses.json"


class TrainLosses(File):
    """The layers' losses on training samples, measured as those of the test samples: without dropout.

    Attributes:
        noise: The level γ, that of the training.
        samples: How many samples were measured.
        layer_losses: f_0 … f_L, the means over them.
    """

    noise: float
    samples: int
    layer_losses: list[Number]


def read_train_losses(folder: Path) -> TrainLosses | None:
    """Read the ``train_losses.json`` of an evaluated run's folder; None if it has none.

    Raises:
        InputError: If it is damaged.
    """
    path = folder / TRAIN_LOSSES_FILE
    return parse(TrainLosses, read_json(path), str(path), "Remove it, and evaluate again.") if path.exists() else None
