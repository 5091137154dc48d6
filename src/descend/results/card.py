"""Model cards: the README.md beside saved weights, with the verdict and the metric of every layer."""

import hashlib
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from descend.results import WITHIN, Summary, Trained
from descend.results.folder import put

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

CARD_FILE = "README.md"

TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForCausalLM": "text-generation",
    "ForImageClassification": "image-classification",
}
"""The end of an architecture's name → the Hub's name of its task."""

_MARK = "<!-- Written by descend, checksum {}. An edited card is left as it is. -->\n"
_MARKED = re.compile(r"<!-- Written by descend, checksum (\w+)\..*-->\n\Z")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Card:
    """What a model card says.

    Attributes:
        name: The model's name, the title.
        about: Paragraphs about the model and its training.
        architecture: The class of the saved model, such as ``LlamaForCausalLM``.
        verdict: The verdict in words, for a model without a summary.
        summary: The model's evaluation; None before it.
        layer: The layer that the model ends with, of those in the summary; None for the last one.
        command: The command that trained the model; None if it was not trained by one.
        base_model: The name on the Hub of the model that training started from; None for a new or a local one.
        metadata: Further metadata of the card, such as ``license``.
        noise_on: What the noise is added to.
    """

    name: str
    about: Sequence[str]
    architecture: str
    verdict: str = ""
    summary: Summary | None = None
    layer: int | None = None
    command: str | None = None
    base_model: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    noise_on: str = "the input embedding"

    @classmethod
    def of(cls, network: Any, name: str, about: Sequence[str], **more: Any) -> Self:
        """The card of a model, with its architecture and the library that loads it.

        Args:
            network: The model that is saved, with or without adapters.
            name: Its name.
            about: Paragraphs about it.
            **more: Further fields of `Card`.
        """
        if type(network).__module__.startswith("descend."):
            library = "descend"
        elif hasattr(network, "peft_config"):
            library = "peft"
        else:
            library = "transformers" if hasattr(network, "config_class") else "pytorch"
        metadata = {"library_name": library} | more.pop("metadata", {})
        return cls(name, about, type(without_adapters(network)).__name__, metadata=metadata, **more)

    @property
    def task(self) -> str | None:
        """The Hub's name of the model's task; None if it has none for it, as for denoisers of video."""
        return next((task for end, task in TASKS.items() if self.architecture.endswith(end)), None)

    def text(self) -> str:
        """The card in Markdown, with its metadata in YAML before it."""
        from huggingface_hub import (
            ModelCard,
            ModelCardData,
        )  # here, because it takes long and most readers need no card

        tags = self.metadata.get("tags") or []
        known: dict[str, Any] = {"model_name": self.name, "library_name": "transformers"}
        known |= {"base_model": self.base_model, "pipeline_tag": self.task}
        if self.summary is not None:
            known |= {"metrics": [self.summary.metric], "eval_results": self._results(self.summary)}
        known |= {name: value for name, value in self.metadata.items() if value}
        known["tags"] = list(dict.fromkeys(["descend", *([tags] if isinstance(tags, str) else tags)]))
        data = ModelCardData(**{name: value for name, value in known.items() if value})
        parts = [f"# {self.name}", *self.about, *self._measured()]
        if self.command is not None:
            parts += ["## How it was trained", f"```\n{self.command}\n```", "Local paths are shortened to their names."]
        return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"))

    def _results(self, summary: Summary) -> list["EvalResult"]:
        """The metric at each noise level, as the Hub reads it."""
        from huggingface_hub import EvalResult

        return [
            EvalResult(
                task_type=self.task or "other",
                dataset_type=re.sub(r"[^\w-]+", "-", summary.dataset.lower()).strip("-") or "data",
                dataset_name=summary.dataset,
                dataset_split=summary.split,
                metric_type=summary.metric,
                metric_name=f"{summary.metric} at noise {level:g}",
                metric_value=float(f"{row[self._last]:.6g}"),
                metric_args={"noise": level, "shift": summary.shift, "samples": summary.samples},
            )
            for level, row in summary.layer_metrics.items()
            if math.isfinite(row[self._last])
        ]

    def _measured(self) -> list[str]:
        summary = self.summary
        if summary is None:
            return ["## Verdict", self.verdict] if self.verdict else []
        whole = "" if self.layer is None else f" This model ends with layer {self.layer} of {summary.depth}."
        parts = ["## How many layers suffice", f"```\n{summary.answer}\n```"] if summary.answer else []
        if summary.asked or not summary.answer:
            parts += ["## Verdict", f"{summary.verdict} {summary.certificate}".strip()]
        if summary.asked and summary.violations and summary.violation_intervals:
            columns = 3 if summary.few_groups else 4  # an open verdict has no intervals
            parts.append(
                _table(
                    ["layer", "loss", "violation", "95 % interval"][:columns],
                    [
                        [layer, _short(loss), _short(violation), f"{_short(low)} … {_short(high)}"][:columns]
                        for layer, (loss, violation, (low, high)) in enumerate(
                            zip(
                                summary.layer_losses[summary.train_noise][1:],
                                summary.violations,
                                summary.violation_intervals,
                                strict=True,
                            ),
                            start=1,
                        )
                        if summary.asks(layer)
                    ],
                )
            )
            parts.append(
                f"At the training noise γ = {summary.train_noise:g}. A constraint holds where its violation is at most "
                f"0{'' if summary.few_groups else '; the intervals hold for all layers together'}."
            )
        if not summary.layer_metrics:
            return parts
        direction = "larger" if summary.higher_is_better else "smaller"
        count = "" if summary.samples is None else f", {summary.samples:,} samples"
        dataset = re.sub(r"[\s|]+", " ", summary.dataset)  # on one line
        place = f"{dataset}, {summary.split} split{count}"
        inputs = [summary.input_metrics.get(level, math.nan) for level in summary.layer_metrics]
        parts += [
            "## Quality of each layer",
            f"{summary.metric} ({direction} is better) on {place}, read after each layer.{whole}",
            _table(
                ["layer", *(f"γ = {level:g}" for level in summary.layer_metrics)],
                [
                    *([["the input itself", *(_short(value) for value in inputs)]] if summary.input_metrics else []),
                    *(
                        [layer, *(_short(row[layer]) for row in summary.layer_metrics.values())]
                        for layer in range(summary.depth + 1)
                    ),
                ],
            ),
            "The first layer from which on every layer is within so many percent of full depth (percentage points of "
            "an accuracy), and the area under the metric over the share of depth:",
            _table(
                ["γ", *(f"within {percent} %" for percent in WITHIN), "area"],
                [
                    [
                        f"{curve.noise:g}",
                        *("–" if layer is None else layer for layer in map(curve.first_within.get, WITHIN)),
                        _short(curve.area),
                    ]
                    for curve in summary.anytime
                ],
            ),
            "## Noise",
            f"{summary.metric} and loss at {'full depth' if self.layer is None else f'layer {self.layer}'} under "
            f"{summary.shift} noise of level γ on {self.noise_on}, on {place}.",
            _table(
                ["γ", summary.metric, "loss"],
                [
                    [f"{level:g}", _short(row[self._last]), _short(summary.layer_losses[level][self._last])]
                    for level, row in summary.layer_metrics.items()
                    if level in summary.layer_losses
                ],
            ),
        ]
        return parts

    @property
    def _last(self) -> int:
        return -1 if self.layer is None else self.layer


def without_adapters(network: Any) -> Any:
    """The model that PEFT's adapters are on; a model without adapters as it is."""
    return network.get_base_model() if hasattr(network, "peft_config") else network


def trained_note(trained: Trained) -> str:
    """Sentences on the constraints of a model's training, Descend's version and a classifier's temperature."""
    asked = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in trained.problem.items())
    bounds = f" Its constraints: {asked}." if trained.method == "constrained" and asked else ""
    return f"{bounds} Trained with Descend {trained.version}.{temperature_note(trained.temperature)}"


def noise_note(level: float, noise_is: str) -> str:
    """The training noise, in words: γ, and that γσ_x is a variance where it is one."""
    return f"noise γ = {level:g}{', where γσ_x is the variance,' if noise_is == 'variance' and level else ''}"


def temperature_note(temperature: float | None) -> str:
    """A sentence on what a classifier's logits were divided by; empty if they were not."""
    if temperature is None or temperature == 1:
        return ""
    return f" The head's last weights are divided by the temperature {temperature:.4g}, fitted to the evaluation data."


def edited_card(folder: Path) -> bytes | None:
    """A folder's README.md if a user wrote or edited it; None for none, or one of descend's.

    The last line of descend's cards is a comment with a checksum of the rest. A README.md without that line, or with
    another checksum, is the user's.
    """
    path = folder / CARD_FILE
    if not path.is_file():
        return None
    content = path.read_bytes()
    text = content.decode("utf-8", errors="replace")
    mark = _MARKED.search(text)
    return content if mark is None or mark[1] != _checksum(text[: mark.start()]) else None


def has_mark(folder: Path) -> bool:
    """Whether a folder's README.md is one of descend's, edited or not."""
    path = folder / CARD_FILE
    return path.is_file() and _MARKED.search(path.read_text("utf-8", errors="replace")) is not None


def write_card(folder: Path, text: str) -> None:
    """Write a model's card in one piece; a card that a user has edited is left as it is, with a warning.

    Args:
        folder: The model's folder.
        text: The card.
    """
    put_card(folder, text, edited_card(folder))


def put_card(folder: Path, text: str, edited: bytes | None) -> None:
    """Write a model's card into a folder that was just written again.

    Args:
        folder: The model's folder.
        text: The card.
        edited: The user's card, read by `edited_card` before; it is put back where it is gone.
    """
    path = folder / CARD_FILE
    content = (text + _MARK.format(_checksum(text))).encode() if edited is None else edited
    if edited is not None:
        logger.warning("%s was edited and is left as it is. Remove it to get a new card.", path)
        if path.is_file() and path.read_bytes() == edited:
            return
    put(path, lambda part: part.write_bytes(content))


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines)


def _short(value: float) -> str:
    return f"{value:.4g}"
