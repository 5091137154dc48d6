"""The metric by group of samples: ``groups.json``."""

from pathlib import Path
from typing import Self

from pydantic import model_validator

from descend.results.base import GROUPS_FILE, File, Number, Part, parse
from descend.results.folder import read_json


class LayerGroups(Part):
    """Every layer's losses and scores by blocks of groups: sums over B blocks at each of K levels.

    Attributes:
        noise: Levels γ, K numbers.
        counts: Samples in each block, B numbers.
        losses: Sums of the losses, (K, L+1, B).
        scores: Sums of the metric's scores, (K, L+1, B); empty in files that are older than this entry, and for a task
            without a score per sample.
    """

    noise: list[float]
    counts: list[int]
    losses: list[list[list[Number]]]
    scores: list[list[list[Number]]] = []

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        for name, sums in (("losses", self.losses), ("scores", self.scores or self.losses)):
            if len(sums) != len(self.noise) or any(len(row) != len(self.counts) for rows in sums for row in rows):
                raise ValueError(
                    f"layers.{name} must have one row per layer at each of {len(self.noise)} noise levels, with "
                    f"{len(self.counts)} sums each"
                )
        return self


class Groups(File):
    """The metric by group of samples: sums of the last layer's scores over N groups at each of G levels.

    Runs judged on the same data have the same groups in the same order, and the same draws of noise.

    Attributes:
        noise: Levels γ, G numbers.
        root: Whether the metric is the root of the mean score.
        single: Whether the groups are the samples of a single one.
        counts: Samples in each group, N numbers.
        scores: Sums of the scores, (G, N); empty for a task without a score per sample.
        layers: The losses and scores of all layers.
    """

    noise: list[float]
    root: bool
    single: bool = False
    counts: list[int]
    scores: list[list[Number]]
    layers: LayerGroups | None = None

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if not self.noise:
            raise ValueError("noise must hold at least one level; got none")
        if len(self.scores) not in (0, len(self.noise)) or any(len(row) != len(self.counts) for row in self.scores):
            raise ValueError(
                f"scores must have {len(self.counts)} sums at each of {len(self.noise)} noise levels; got "
                f"{len(self.scores)} rows of {sorted({len(row) for row in self.scores})}"
            )
        if not all(count > 0 for count in self.counts):
            raise ValueError("counts must be above 0: a group has samples")
        return self


def read_groups(folder: Path) -> Groups | None:
    """Read the ``groups.json`` of an evaluated run's folder; None if it has none.

    Raises:
        InputError: If it is damaged.
    """
    path = folder / GROUPS_FILE
    return parse(Groups, read_json(path), str(path), "Remove it, and evaluate again.") if path.exists() else None
