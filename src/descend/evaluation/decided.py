"""Texts to look at: what each layer of a classifier decides on a few of them."""

from collections.abc import Callable, Mapping
from typing import Any

from descend.evaluation.layers import LayerLosses, evenly
from descend.results import DecidedText, Decision, Decisions

MOST_CHARACTERS = 240
"""A text's beginning is enough to know what it is about."""


def decided(
    measured: LayerLosses,
    dataset: Any,
    level: float,
    *,
    decode: Callable[..., Any],
    names: Mapping[Any, str] | None,
    count: int = 2,
) -> Decisions | None:
    """What every layer decides on a few texts; None without decisions or tokens.

    Args:
        measured: The layers of a classifier, measured on ``dataset``.
        dataset: Its samples, with ``input_ids``.
        level: The noise level γ of ``measured``.
        decode: Makes a text of its tokens.
        names: The names of the classes by number.
        count: How many texts; they are taken evenly.
    """
    if measured.decisions is None or measured.confidences is None or measured.scores is None:
        return None
    texts = []
    for place in evenly(len(dataset), count):
        sample = dataset[place]
        if "input_ids" not in sample:
            return None
        text = " ".join(str(decode(sample["input_ids"])).split())
        layers = zip(measured.decisions[place], measured.confidences[place], measured.scores[place], strict=True)
        texts.append(
            DecidedText(
                text=text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …",
                decisions=[
                    Decision(
                        answer=(names or {}).get(int(number), f"class {int(number)}"),
                        confidence=float(sure),
                        right=bool(score == 1),
                    )
                    for number, sure, score in layers
                ],
            )
        )
    return Decisions(noise=level, texts=texts)
