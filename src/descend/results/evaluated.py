"""The files of an evaluation beside its summary: ``groups.json``, ``decisions.json``, ``frames.npz``."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from descend.errors import InputError, refuse
from descend.results.base import File, Number, Part

if TYPE_CHECKING:
    import numpy as np

DECISIONS_FILE = "decisions.json"

MOST_TEXTS, MOST_DECISIONS, MOST_CHARACTERS, MOST_PICTURE = 100, 1025, 1000, 20_000
"""What ``decisions.json`` may hold, so that a page can show it."""

MOST_BYTES, MOST_SIDE = 2**28, 4096
"""What ``frames.npz`` may unpack to, and pixels of a side: a few frames of 160×160 are some MB."""


class LayerScores(Part):
    """Every layer's scores by group: sums over U groups, or blocks of groups, at each of K levels.

    Attributes:
        noise: Levels γ, K numbers.
        counts: Samples in each, U numbers.
        scores: Sums of the metric's scores, (K, L+1, U).
    """

    noise: list[float] = Field(min_length=1)
    counts: list[PositiveInt] = Field(min_length=1)
    scores: list[list[list[Number]]]

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        sums = {len(row) for rows in self.scores for row in rows}
        layers = {len(rows) for rows in self.scores}
        refuse(
            (
                len(self.scores) != len(self.noise) or sums != {len(self.counts)} or len(layers) != 1,
                f"layers.by_group.scores must have one row per layer at each of {len(self.noise)} noise levels, with "
                f"{len(self.counts)} sums each",
            )
        )
        return self


class LayerGroups(Part):
    """Every layer's losses and scores by blocks of groups: sums over B blocks at each of K levels.

    Attributes:
        noise: Levels γ, K numbers.
        counts: Samples in each block, B numbers.
        losses: Sums of the losses, (K, L+1, B).
        scores: Sums of the metric's scores, (K, L+1, B).
        by_group: The scores by group, which certify layers; None where the metric is not bounded, and in files of older
            versions.
    """

    noise: list[float] = Field(min_length=1)
    counts: list[PositiveInt] = Field(min_length=1)
    losses: list[list[list[Number]]]
    scores: list[list[list[Number]]]
    by_group: LayerScores | None = None

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        layers = {len(rows) for sums in (self.losses, self.scores) for rows in sums}
        blocks = {len(row) for sums in (self.losses, self.scores) for rows in sums for row in rows}
        whole = {len(self.losses), len(self.scores)} == {len(self.noise)} and blocks == {len(self.counts)}
        refuse(
            (
                not whole or len(layers) != 1 or layers == {1},
                f"layers.losses and layers.scores must have one row per layer, of at least 2, at each of "
                f"{len(self.noise)} noise levels, with {len(self.counts)} sums each",
            ),
            (
                self.by_group is not None
                and (self.by_group.noise, {len(self.by_group.scores[0])}) != (self.noise, layers),
                "layers.by_group must have the noise levels and the layers of layers",
            ),
        )
        return self


class Groups(File):
    """The metric by group of samples: sums of the last layer's scores over N groups at each of G levels.

    Runs evaluated on the same data have the same groups in the same order, and the same draws of noise.

    Attributes:
        noise: Levels γ, G numbers.
        root: Whether the metric is the root of the mean score.
        single: Whether the groups are the samples of a single one.
        counts: Samples in each group, N numbers.
        scores: Sums of the scores, (G, N).
        layers: The losses and scores of all layers.
        fingerprint: A hash of the samples in their order, inputs and targets.
    """

    indent: ClassVar[int | None] = None

    noise: list[float] = Field(min_length=1)
    root: bool
    single: bool = False
    counts: list[PositiveInt]
    scores: list[list[Number]]
    layers: LayerGroups
    fingerprint: str | None = None

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        lengths = [len(row) for row in self.scores]
        refuse(
            (
                lengths != [len(self.counts)] * len(self.noise),
                f"scores must have {len(self.counts)} sums at each of {len(self.noise)} noise levels; got "
                f"{len(self.scores)} rows of {sorted(set(lengths))}",
            )
        )
        return self


class Decision(Part):
    """A layer's answer.

    Attributes:
        answer: The name of the class.
        confidence: The probability that the layer gives it.
        right: Whether it is the right one.
    """

    answer: str = Field(max_length=MOST_CHARACTERS)
    confidence: Number
    right: bool


class DecidedText(Part):
    """The beginning of a text, or the name of a picture, and what the layers decide on it.

    Attributes:
        text: The beginning.
        picture: The picture, a data URI of a PNG; None for a text.
        decisions: Of every layer 0 … L.
    """

    text: str = Field(max_length=MOST_CHARACTERS)
    picture: str | None = Field(default=None, max_length=MOST_PICTURE, pattern=r"^data:image/png;base64,[\w+/=]*$")
    decisions: list[Decision] = Field(min_length=2, max_length=MOST_DECISIONS)


class Decisions(File):
    """Texts with the decisions of every layer.

    Attributes:
        noise: The noise level γ at which they were taken.
        texts: The texts.
    """

    noise: float
    texts: list[DecidedText] = Field(max_length=MOST_TEXTS)


@dataclass(frozen=True)
class Frames:
    """Pictures of one evaluation of K clips at G noise levels, uint8.

    ``clean`` is (K, H, W), ``noisy`` (G, K, H, W) and ``reconstruction`` (G, L+1, K, H, W).
    """

    noise: list[float]
    clean: np.ndarray
    noisy: np.ndarray
    reconstruction: np.ndarray

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read ``frames.npz``, without pickles; the unpacked size is bounded.

        Raises:
            InputError: If the file is damaged or its arrays do not fit together.
        """
        import numpy as np

        try:
            with zipfile.ZipFile(path) as archive:
                size = sum(member.file_size for member in archive.infolist())
            refuse(
                (
                    size > MOST_BYTES,
                    f"{path} unpacks to {size} bytes; expected at most {MOST_BYTES}. Keep fewer --frames.",
                )
            )
            with np.load(path, allow_pickle=False) as arrays:
                clean, noisy, reconstruction, levels = (
                    arrays[name] for name in ("clean", "noisy", "reconstruction", "noise")
                )
            noise = [float(level) for level in levels]
        except InputError:
            raise
        # All exceptions: numpy's and zipfile's readers meet damage with a dozen kinds, depending on where it is.
        except Exception as error:
            raise InputError(f"{path} is damaged; remove it, and run `descend evaluate` again.") from error
        count = len(noise)
        refuse(
            (
                clean.ndim != 3
                or noisy.shape != (count, *clean.shape)
                or reconstruction.ndim != 5
                or reconstruction.shape[:1] + reconstruction.shape[2:] != noisy.shape
                or any(array.dtype != np.uint8 for array in (clean, noisy, reconstruction))
                or not reconstruction.size
                or max(clean.shape) > MOST_SIDE
                or not all(map(isfinite, noise)),
                f"{path} must hold uint8 clean (K,H,W), noisy (G,K,H,W) and reconstruction (G,L+1,K,H,W), "
                f"G = {count} noise levels, none empty and no side above {MOST_SIDE}; got {clean.shape}, "
                f"{noisy.shape} and {reconstruction.shape}. Remove it, and run `descend evaluate` again.",
            )
        )
        return cls(noise, clean, noisy, reconstruction)
