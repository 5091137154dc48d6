"""Split rows at random into parts that share no text, and put classes in order."""

import logging
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from descend.errors import InputError

if TYPE_CHECKING:
    from datasets import DatasetDict

logger = logging.getLogger(__name__)


def class_order(names: Iterable[str]) -> list[str]:
    """Names of classes in the order of their numbers: by the alphabet, but 2 before 10 where all are whole numbers."""
    ordered = sorted(names)
    return sorted(ordered, key=int) if all(re.fullmatch(r"-?\d+", name) for name in ordered) else ordered


def split_groups(keys: Sequence[Hashable], counts: Sequence[int]) -> list[list[int]]:
    """Split rows at random, the same way in every run, with all rows of one key in one part.

    Groups of rows are drawn, each as likely as any other. So a part may have a few rows more or fewer than asked for;
    a warning says where it is off by more than a quarter. Without repeated keys the parts are those of
    `datasets.Dataset.train_test_split` with seed 0.

    Args:
        keys: What rows of one group have in common, for each row.
        counts: Rows of each part but the last.

    Returns:
        The numbers of each part's rows; the last part has all others.

    Raises:
        InputError: If a part is empty.
    """
    groups: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    members = list(groups.values())
    order = np.random.default_rng(0).permutation(len(members))
    ends = np.cumsum([len(members[group]) for group in order])
    cuts = [int(np.abs(ends - target).argmin()) + 1 for target in np.cumsum(counts)]
    parts = [[row for group in part for row in members[group]] for part in np.split(order, cuts)]
    if not all(parts):
        raise InputError(
            f"expected {len(parts)} parts with rows in each, where rows of one text or prompt stay together; got "
            f"{len(keys)} rows with {len(groups)} different ones, and parts of {', '.join(map(str, map(len, parts)))}. "
            "Give rows with more different texts."
        )
    off = [(count, len(part)) for count, part in zip(counts, parts, strict=False) if abs(len(part) - count) > count / 4]
    if off:
        logger.warning(
            "a held-out part has %d rows, where %d were asked for: rows of one text or prompt stay together, and some "
            "have many.",
            *off[0][::-1],
        )
    return parts


def split_off(texts: "DatasetDict", validation_share: float) -> "DatasetDict":
    """Split the training side into ``train`` and ``validation``, with the same random split in every run.

    Rows with the same ``text``, such as MNLI's pairs with one premise, are all in one of the two.

    Raises:
        InputError: If the share is out of range, or leaves a part empty.
    """
    if not 0 < validation_share < 1:
        raise InputError(f"validation_share must lie between 0 and 1; got {validation_share}.")
    rows = texts["train"]
    keys = rows["text"][:]
    size = round(len(rows) * validation_share)
    validation, train = split_groups(keys, [size]) if size > 1 else ([], [])
    if len(validation) < 2:
        raise InputError(
            f"validation needs at least 2 of the {len(rows)} training texts, and training the rest; got {size} of "
            f"{len(set(keys))} different ones. Change --validation-share or give more texts."
        )
    return type(texts)({"train": rows.select(train), "validation": rows.select(validation), "test": texts["test"]})
