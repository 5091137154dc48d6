"""The results of one evaluation: what a run's folder holds of it, each file read when it is first asked for."""

import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from descend.errors import InputError, refuse
from descend.results.base import CONFIG_FILE, GROUPS_FILE, RECORDS_FILE, run_name
from descend.results.config import MODELS, read_config
from descend.results.evaluated import DECISIONS_FILE, Decisions, Frames, Groups
from descend.results.names import FRAMES_FILE
from descend.results.records import History, multiplier_history, read_records
from descend.results.summary import Summary, read_summary


@dataclass(frozen=True)
class Results:
    """The results of one evaluation. Those of a folder are read by `read`.

    Attributes:
        summary: Its ``summary.json``.
        groups: Its ``groups.json``, on which intervals and baselines rest; None if it has none.
        folder: Where the files are; None for results that were made in memory.
        variance: On a page, the training noise as it was given, where γσ_x is the variance and all levels here are
            converted; else None.
    """

    summary: Summary
    groups: Groups | None = None
    folder: Path | None = None
    variance: float | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read an evaluated run, or the folder in it of an evaluation on other data.

        Raises:
            InputError: If the folder has not been evaluated, or its summary or its groups are damaged.
        """
        path, summary = folder / GROUPS_FILE, read_summary(folder)
        groups = Groups.read(path) if path.exists() else None
        if groups is not None and (depth := len(groups.layers.scores[0]) - 1) != summary.depth:
            raise InputError(
                f"{path} is of a model of depth {depth}, and the summary beside it of depth {summary.depth}. Evaluate "
                "the run again."
            )
        return cls(summary, groups, folder)

    @classmethod
    def with_groups(cls, folder: Path) -> Self:
        """Read a baseline, or a run to be compared with one.

        Raises:
            InputError: As `read`, or if there is no ``groups.json``.
        """
        results = cls.read(folder)
        if results.groups is None:
            raise InputError(f"{folder} has no {GROUPS_FILE}: evaluate it again.")
        return results

    @property
    def name(self) -> str:
        """The name of the run; empty for results that were made in memory."""
        return run_name(self.folder.absolute()) if self.folder else ""

    @cached_property
    def history(self) -> History:
        """Each layer's multiplier over the steps of the training; layer 0 is the cap's. Empty without records.

        Raises:
            InputError: If ``records.jsonl`` is damaged.
        """
        path = self._file(RECORDS_FILE)
        return multiplier_history(read_records(path), self.summary.depth) if path else {}

    @cached_property
    def frames(self) -> Frames | None:
        """The pictures of the evaluation; None without any.

        Raises:
            InputError: If ``frames.npz`` is damaged.
        """
        path = self._file(FRAMES_FILE)
        return Frames.load(path) if path else None

    @cached_property
    def decisions(self) -> Decisions | None:
        """What the layers decide on a few texts or images; None without any.

        Raises:
            InputError: If ``decisions.json`` is damaged.
        """
        path = self._file(DECISIONS_FILE)
        return Decisions.read(path) if path else None

    @cached_property
    def calibrated(self) -> bool | None:
        """Whether the model's logits were divided by a temperature; None if that is not known."""
        path = self._file(CONFIG_FILE)
        # A saved model's folder has a config.json of Transformers; the best feasible model is not calibrated.
        if path is None or self.summary.of_script or self.summary.checkpoint != MODELS[0]:
            return None
        return read_config(path.parent).temperature not in (None, 1)

    def _file(self, name: str) -> Path | None:
        """The path of a file of the folder; None if it is not there."""
        path = None if self.folder is None else self.folder / name
        return path if path is not None and path.is_file() else None

    @property
    def data(self) -> tuple[str, str, str, str]:
        """The data set's name, its split, the kind of noise, and the metric."""
        return self.summary.dataset, self.summary.split, self.summary.shift, self.summary.metric

    def of(self, data: tuple[str, str, str, str]) -> Self:
        """The baseline, for a model that is evaluated on these data.

        Raises:
            InputError: If the baseline was evaluated on others.
        """
        pairs = zip(("data", "split", "noise", "metric"), data, self.data, strict=True)
        refuse(
            *(
                (
                    ours != theirs,
                    f"the baseline {self.folder} was evaluated on the {what} {theirs}; this model on {ours}. Evaluate "
                    "both on the same.",
                )
                for what, ours, theirs in pairs
            )
        )
        return self

    def knows(self, samples: int, fingerprint: str | None) -> bool:
        """Whether it was evaluated on these validation samples: their number and their hash, as in `Validation`."""
        measured = self.summary.validation
        return measured is not None and (measured.samples, measured.fingerprint) == (samples, fingerprint)

    def validated(self, samples: int, fingerprint: str | None, noise: float) -> list[float]:
        """Each layer's metric on validation data, with which layers are compared where K is chosen.

        Args:
            samples: How many validation samples K is chosen on.
            fingerprint: Their hash, as in `Validation`.
            noise: The level γ at which it is chosen.

        Raises:
            InputError: If the baseline was measured on others or not at this level.
        """
        measured = self.summary.validation
        if measured is None or not self.knows(samples, fingerprint) or noise not in measured.layer_metrics:
            levels = ",".join(f"{level:g}" for level in sorted({*self.summary.noise, noise}))
            raise InputError(
                f"the baseline {self.folder} was not evaluated at γ = {noise:g} on the {samples} validation "
                "samples on which K is chosen. If it is a run on the same data, type: "
                f"descend evaluate {shlex.quote(str(self.folder))} --noise {levels} --validation-noise {noise:g}"
            )
        return measured.layer_metrics[noise]

    def groups_at(self, levels: Iterable[float], fingerprint: str | None) -> Groups:
        """A baseline's scores by group, for a model that is evaluated at these levels on these samples.

        Args:
            levels: Noise levels γ.
            fingerprint: The samples' hash, see `Groups`; without one it is not known whether they are the same.

        Raises:
            InputError: If the baseline was evaluated on other samples or at other levels, or it diverged.
        """
        assert self.groups is not None
        layers = self.groups.layers
        missing = [f"{level:g}" for level in levels if level not in layers.noise]
        refuse(
            (
                bool(missing),
                f"the baseline {self.folder} was not evaluated at the noise {', '.join(missing)}; evaluate both at the "
                "same levels: --noise, or noise= in Python.",
            ),
            (
                not all(math.isfinite(score) for scores in layers.scores for score in scores[-1]),
                f"the baseline {self.folder} diverged: its last layer is not finite. Give another.",
            ),
            (
                fingerprint is None or fingerprint != self.groups.fingerprint,
                f"the baseline {self.folder} was evaluated on other samples than this model, or on texts or images cut "
                "or scaled otherwise. Evaluate both on the same data, with the same --limit.",
            ),
        )
        return self.groups
