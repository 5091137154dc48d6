"""``certified_exit.json``: the exit threshold that ``descend evaluate --risk`` certified, beside a model's weights."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field

from descend.results.base import Part, parse
from descend.results.folder import read_json

CERTIFIED_FILE = "certified_exit.json"

Share = Annotated[float, Field(strict=True, gt=0, lt=1)]


class CertifiedExit(Part):
    """The exit threshold that belongs to a saved model, and the bound that it was certified by.

    Attributes:
        threshold: A text leaves after the first layer whose confidence is at least this; None for full depth.
        risk: The largest share of texts that may lose an answer that full depth has right.
        confidence: How sure this is, over the draw of the validation data.
        noise: The level γ that it holds for.
    """

    threshold: Annotated[float, Field(strict=True, gt=0, le=1)] | None
    risk: Share
    confidence: Share
    noise: float = Field(strict=True, ge=0, allow_inf_nan=False)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The threshold saved in a model's folder; None if there is none.

        Raises:
            InputError: If the file is damaged.
        """
        path = folder / CERTIFIED_FILE
        if not path.exists():
            return None
        return parse(cls, read_json(path), str(path), "Remove it, then run descend evaluate --exit --risk again.")
