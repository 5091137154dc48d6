"""The settings of a run: ``config.json``."""

from pathlib import Path

from pydantic import JsonValue

from descend.records.folder import read_json
from descend.records.schema.base import CONFIG_FILE, File, parse


class RunConfig(File):
    """The settings of a run.

    ``settings`` are the recipe's fields and ``training`` the training arguments that differ from their defaults; both
    are open sets that their classes check. The entries from ``seconds`` on are there when the run has finished.

    Attributes:
        descend: The version of Descend.
        recipe: The recipe's name.
        method: ``constrained``, ``erm`` or another method of training.
        preset: The preset's name.
        overridden: Settings of the preset that were chosen otherwise.
        seed: The seed of everything random.
        model: The model's label, such as ``UT-7``.
        dataset: The data set's name.
        sigma: σ_x of the training data; None until it is known.
        settings: The recipe's fields.
        training: Training arguments.
        versions: Versions of the libraries.
        seconds: Training time.
        step: The step of the model that was kept.
        temperature: What a classifier's logits were divided by.
        neftune_alpha: NEFTune's α, given or matched to the noise; None without NEFTune.
    """

    descend: str = ""
    recipe: str
    method: str
    preset: str | None = None
    overridden: list[str] = []
    seed: int
    model: str
    dataset: str = ""
    sigma: float | None = None
    settings: dict[str, JsonValue]
    training: dict[str, JsonValue]
    versions: dict[str, str] = {}
    seconds: float | None = None
    step: int | None = None
    temperature: float | None = None
    neftune_alpha: float | None = None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.seconds is not None


def read_config(folder: Path) -> RunConfig:
    """Read the ``config.json`` of a run folder.

    Raises:
        InputError: If it is missing, damaged or not a run's.
    """
    path = folder / CONFIG_FILE
    todo = "Put back the file that training wrote, or train again."
    return parse(RunConfig, read_json(path), str(path), todo)
