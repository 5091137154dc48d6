"""What a saved model carries: what it was last trained with by Descend, and the exit that was certified for it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, JsonValue, ValidationError

from descend.errors import InputError
from descend.reading import read_json
from descend.results.base import CONFIG_FILE, File, Part
from descend.results.folder import write_json

TRAINED_KEY = "descend"
"""The entry of a Transformers model's ``config.json``, which ``from_pretrained`` and ``save_pretrained`` keep."""

TRAINED_FILE = "descend.json"
"""The file beside any other model."""

CERTIFIED_FILE = "certified_exit.json"
"""Beside a model's weights: the exit threshold that ``descend evaluate --risk`` certified."""

logger = logging.getLogger(__name__)


class Trained(Part):
    """What a model was last trained with by Descend.

    Another trainer that trains the model further leaves the entry as it is.

    Attributes:
        version: The version of Descend.
        method: As in `RunConfig`.
        seed: The seed.
        noise: The training noise γ.
        shift: The kind of noise.
        noise_is: What γσ_x is of the noise: its ``std`` or its ``variance``.
        problem: The constraints that the model is evaluated by: ``strength``, or ``alpha`` and what belongs to it.
        temperature: What a classifier's logits were divided by; 1 if they were not.
        exported_layers: K, for an export of the first K layers.
    """

    version: str = ""
    method: str
    seed: int = 0
    noise: float = 0.0
    shift: str = "gaussian"
    noise_is: str = "std"
    problem: dict[str, JsonValue] = {}
    temperature: float = 1.0
    exported_layers: int | None = None

    @classmethod
    def of(cls, content: Any) -> Self | None:
        """What an entry says; None if there is none, or it is not Descend's."""
        try:
            return cls.model_validate(content) if isinstance(content, Mapping) else None
        except ValidationError:
            return None

    def content(self) -> dict[str, Any]:
        """The entry in JSON types."""
        return self.model_dump(exclude_none=True)

    def write(self, folder: Path) -> None:
        """Write the file beside a model; a file of this name that is not Descend's is left as it is."""
        path = folder / TRAINED_FILE
        if path.exists() and read_trained(folder) is None:
            logger.warning("%s is not a file of Descend and is left as it is.", path)
        else:
            write_json(path, self.content())


def read_trained(folder: Path) -> Trained | None:
    """What a saved model was last trained with by Descend; None if nothing says so.

    Args:
        folder: The folder that ``save_pretrained`` or a trainer wrote.
    """
    for file, key in ((CONFIG_FILE, TRAINED_KEY), (TRAINED_FILE, None)):
        try:
            content = read_json(folder / file) if (folder / file).is_file() else None
        except InputError:
            content = None  # whoever loads the model names the damage
        entry = content.get(key) if key and isinstance(content, Mapping) else content
        if (trained := Trained.of(entry)) is not None:
            return trained
    return None


Share = Annotated[float, Field(strict=True, gt=0, lt=1)]


class CertifiedExit(File):
    """The exit threshold that belongs to a saved model, and the bound that it was certified by.

    Attributes:
        threshold: A text leaves after the first layer whose confidence is at least this; None for full depth.
        risk: The largest share of texts that may lose an answer that full depth has right.
        confidence: How sure this is, over the draw of the validation data.
        noise: The level γ that it holds for.
    """

    todo: ClassVar[str] = "Run descend evaluate --exit --risk again, or remove the file."

    threshold: float | None = Field(strict=True, gt=0, le=1)
    risk: Share
    confidence: Share
    noise: float = Field(strict=True, ge=0, allow_inf_nan=False)
