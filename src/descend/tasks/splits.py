"""Random parts of a data set, which share no text, prompt or image; and samples that given sides share."""

import logging
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from descend.errors import InputError

if TYPE_CHECKING:
    from datasets import DatasetDict

logger = logging.getLogger(__name__)

TEST_SHARE = 0.2
"""Share of each class to test on where there is no test side."""


def evenly(size: int, count: int) -> list[int]:
    """The places of ``count`` of ``size`` samples, taken evenly; all of them where there are no more."""
    count = min(count, size)
    return [int((place + 0.5) * size / count) for place in range(count)]


def numbered(keys: Iterable[Hashable]) -> list[int]:
    """A number for each key, the same for equal ones, from 0 on in the order in which they come first."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def tell_shared(keys: Mapping[str, Collection[Hashable]], samples: str) -> None:
    """Warn of equal samples on several sides of a data set, as they are given.

    Args:
        keys: What equal samples have in common, for each sample of ``train``, ``validation`` and ``test``.
        samples: What samples are called, such as ``images``.
    """
    train, validation, test = ({*keys.get(side, ())} for side in ("train", "validation", "test"))
    if shared := train & (validation | test):
        logger.warning("%d %s to train on are also among those to test or validate on.", len(shared), samples)
    if shared := validation & test:
        logger.warning("%d %s to validate on are also among those to test on.", len(shared), samples)


def split_groups(keys: Sequence[Hashable], counts: Sequence[int]) -> list[list[int]]:
    """Split rows at random, the same way in every run, with all rows of one key in one part.

    Groups of rows are drawn, each as likely as any other. So a part may have more or fewer rows than asked for.

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
    return parts


def split_classes(keys: Sequence[Hashable], labels: Iterable[int], share: float) -> tuple[list[int], list[int]]:
    """Split a share of each class off, at least one group of each and never all, by `split_groups`.

    A class with a single group stays whole.

    Args:
        keys: What rows of one group have in common, for each row.
        labels: The class of each row; a group counts to that of its first row.
        share: The share to split off.

    Returns:
        The numbers of the rows that are split off, and of the rest, in order.
    """
    classes: dict[Hashable, int] = {}
    rows: dict[int, list[int]] = {}
    for row, (key, label) in enumerate(zip(keys, labels, strict=True)):
        rows.setdefault(classes.setdefault(key, label), []).append(row)
    drawn: list[int] = []
    for _, members in sorted(rows.items()):
        groups = [keys[row] for row in members]
        if len(set(groups)) > 1:
            count = min(max(round(len(members) * share), 1), len(members) - 1)
            drawn += [members[place] for place in split_groups(groups, [count])[0]]
    return sorted(drawn), sorted({*range(len(keys))}.difference(drawn))


def split_off(texts: "DatasetDict", validation_share: float, *, by_class: bool = False) -> "DatasetDict":
    """Split the training side into ``train`` and ``validation``, with the same random split in every run.

    Rows with the same ``text``, such as MNLI's pairs with one premise, are all in one of the two. Texts that have a
    ``validation`` side keep it.

    Args:
        texts: The sides ``train`` and ``test``, and perhaps ``validation``.
        validation_share: The share of the training side.
        by_class: Whether to take this share of each class.

    Raises:
        InputError: If the share leaves a part empty.
    """
    if "validation" in texts:
        return texts
    rows = texts["train"]
    keys = rows["text"][:]
    size = round(len(rows) * validation_share)
    if by_class:
        validation, train = split_classes(keys, rows["label"][:], validation_share)
    else:
        validation, train = split_groups(keys, [size]) if size > 1 else ([], [])
    if len(validation) < 2:
        raise InputError(
            f"validation needs at least 2 of the {len(rows)} training texts, and training the rest; got {size} of "
            f"{len(set(keys))} different ones. Change --validation-share or give more texts."
        )
    return type(texts)({"train": rows.select(train), "validation": rows.select(validation), "test": texts["test"]})
