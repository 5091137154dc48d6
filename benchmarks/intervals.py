"""How often intervals cover the truth, and how often an exit or a layer is certified that breaks its bound.

    python benchmarks/intervals.py [--draws 4000]

Prints the tables of docs/explanation/verdict.md and the numbers of exits in reproduction/records/guides.md. Of the
first, groups are of one size, of one and ten samples in turn, or of 10, 1, 1 and 1; half of the variance, or all of it,
is the groups'. The estimand is the mean over samples.
"""

import argparse

import numpy as np
import torch

from descend.evaluation.layers import LayerLosses
from descend.evaluation.needed import SHARED, Against
from descend.evaluation.risk_control import GroupTest
from descend.evaluation.satisfaction import margin_of_error

LAWS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "t3": lambda rng, shape: rng.standard_t(3, size=shape),
    "lognormal": lambda rng, shape: rng.lognormal(size=shape) - np.exp(0.5),
}
GROUPS = {
    "1,000 of 1": np.ones(1000, int),
    "1,000 of 4": np.full(1000, 4),
    "1,000, lognormal": np.random.default_rng(0).lognormal(3.5, 1, 1000).astype(int) + 1,
    "990 of 1, 10 of 100": np.repeat([1, 100], [990, 10]),
    "990 of 1, 10 of 1,000": np.repeat([1, 1000], [990, 10]),
}
"""Sizes of the groups of a layer's certificate; answers of instructions have lengths like the third."""

BLOCKS = 30
"""Of the test that this one replaces: it rested on 30 sums, and its floor counted groups, whatever their size."""

SKEWED = {
    "lognormal": lambda rng, shape: rng.lognormal(size=shape) - np.exp(0.5),
    "one sample in fifty": lambda rng, shape: 50.0 * (rng.random(shape) < 0.02) - 1 + rng.normal(0, 0.5, shape),
}
"""Differences between a layer's loss and the tolerance, whose mean is 0."""

SIZES = {"one size": [4], "1 and 10 in turn": [1, 10], "10, 1, 1, 1": [10, 1, 1, 1]}


def covered(law: str, count: int, sizes: list[int], share: float, draws: int) -> float:
    """The share of 95 % intervals of the mean that cover it, where ``share`` of the variance is the groups'."""
    of_group, rng = np.resize(np.array(sizes), count), np.random.default_rng(0)
    groups = np.repeat(np.arange(count), of_group)
    shared, own = LAWS[law](rng, (count, draws))[groups], LAWS[law](rng, (len(groups), draws))
    losses = share**0.5 * shared + (1 - share) ** 0.5 * own
    measured = LayerLosses(torch.from_numpy(losses), torch.from_numpy(groups), [], torch.from_numpy(losses))
    margin = margin_of_error(measured, torch.eye(draws, dtype=torch.float64), tails=2)
    return float((np.abs(losses.mean(0)) <= margin.numpy()).mean())


def wrongly_rejected(count: int, size: int, correlation: float, risk: float, draws: int) -> tuple[float, float]:
    """How often a risk at the bound is certified: by the test of groups, and by one that takes samples for groups."""
    rng = np.random.default_rng(0)
    shared = rng.random((draws, count, 1)) < risk
    own = rng.random((draws, count, size)) < risk
    lost = torch.from_numpy(np.where(rng.random(own.shape) < correlation**0.5, shared, own)).double()
    grouped = GroupTest(torch.full((count,), float(size)), risk, 0.95)
    alone = GroupTest(torch.ones(count * size), risk, 0.95)
    return tuple(
        float(np.mean([test.rejects(each) for each in samples]))
        for test, samples in ((grouped, lost.sum(2)), (alone, lost.flatten(1)))
    )


def lost(sizes: np.ndarray, correlation: float, share: float, draws: int, gained: float = 0.0) -> np.ndarray:
    """The right answers that a layer loses on groups of these sizes, less those that it gains, (draws, G).

    Args:
        sizes: Samples in each group, (G,).
        correlation: Between the answers of a group: so often two of them have one fate.
        share: Of lost answers.
        draws: Data sets.
        gained: The share of gained answers.
    """
    rng = np.random.default_rng(0)
    shape = draws, len(sizes)
    alike = rng.binomial(np.broadcast_to(sizes, shape), correlation**0.5)
    fate = rng.random(shape)
    lost_alone = rng.binomial(sizes - alike, share)
    gained_alone = rng.binomial(sizes - alike - lost_alone, gained / (1 - share))
    together = (fate < share).astype(int) - ((fate >= share) & (fate < share + gained))
    return alike * together + lost_alone - gained_alone


def certified(sizes: np.ndarray, lost: np.ndarray, percent: float) -> tuple[float, float]:
    """How often a layer with so many lost answers, (draws, G), is certified, by the replaced test and by this one."""
    block = np.arange(len(sizes)) % BLOCKS
    in_blocks = np.eye(BLOCKS, dtype=int)[block]
    before, now = (
        [
            Against(counts, (counts - each)[:, None], counts, False, True, units, bounded).excess(percent, SHARED)[2][0]
            <= 0
            for each in sums
        ]
        for counts, sums, units, bounded in (
            (sizes @ in_blocks, lost @ in_blocks, np.ones(len(sizes)), False),
            (sizes, lost, sizes, True),
        )
    )
    return float(np.mean(before)), float(np.mean(now))


def estimated(law: str, count: int, draws: int) -> float:
    """How often a layer whose loss is exactly at the tolerance is said to be within it."""
    blocks = np.arange(count) % min(count, BLOCKS)
    counts = np.bincount(blocks)
    beyond = SKEWED[law](np.random.default_rng(0), (draws, count)) @ np.eye(len(counts))[blocks]
    full = 100.0 * counts
    samples = np.ones(count)
    return float(
        np.mean(
            [
                Against(counts, (1.02 * full + each)[:, None], full, False, False, samples).excess(2, SHARED)[2][0] <= 0
                for each in beyond
            ]
        )
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--draws", type=int, default=4000)
    draws = parser.parse_args().draws
    print("| losses | groups | " + " | ".join(f"{name}, {part}" for name in SIZES for part in ("half", "all")) + " |")
    print("|---" * (2 + 2 * len(SIZES)) + "|")
    for law in LAWS:
        for count in (12, 20, 40, 200):
            cells = [covered(law, count, sizes, share, draws) for sizes in SIZES.values() for share in (0.5, 1.0)]
            print(f"| {law} | {count} | " + " | ".join(f"{each:.3f}".lstrip("0") for each in cells) + " |")
    print("\n| samples a group | correlation | groups as units | samples as units |\n|---|---|---|---|")
    for size in (1, 10, 30):
        for correlation in (0.3, 0.9) if size > 1 else (0.0,):
            grouped, alone = wrongly_rejected(400, size, correlation, 0.05, draws)
            print(f"| {size} | {correlation:g} | {grouped:.1%} | {alone:.1%} |")
    for title, kinds, truth in (
        ("exactly at the tolerance", list(GROUPS), lambda x: (x, 0.0)),
        ("at the tolerance: loses three times as many, gains two times", list(GROUPS), lambda x: (3 * x, 2 * x)),
        ("within: loses a third of it", list(GROUPS)[:2], lambda x: (x / 3, 0.0)),
        ("within: loses 4/3 of it, gains the tolerance", list(GROUPS)[:2], lambda x: (4 * x / 3, x)),
    ):
        print(f"\n| a layer {title} | correlation | 1 point | 2 points | 5 points |\n|---|---|---|---|---|")
        for kind in kinds:
            for correlation in (0.0, 0.3, 0.9) if GROUPS[kind].max() > 1 else (0.0,):
                rates = []
                for percent in (1, 2, 5):
                    share, gained = truth(percent / 100)
                    answers = lost(GROUPS[kind], correlation, share, draws, gained)
                    rates.append("{:.1%}, {:.1%}".format(*certified(GROUPS[kind], answers, percent)))
                print(f"| {kind} | {correlation:g} | " + " | ".join(rates) + " |")
    print("\n| equal groups | 1 point | 2 points | 5 points |\n|---|---|---|---|")
    for count in (100, 300, 1000):
        sizes, rates = np.full(count, 100), []
        for x in (0.01, 0.02, 0.05):
            better = x / (1 - 2 * x)
            answers = (1 + better) * lost(sizes, 1.0, 2 * x, draws) - better * sizes
            rates.append("{:.1%}, {:.1%}".format(*certified(sizes, answers, 100 * x)))
        print(f"| {count:,} of 100 | " + " | ".join(rates) + " |")
    counts = (12, 30, 100, 400, 2000)
    print("\n| losses | " + " | ".join(f"{count:,}" for count in counts) + " |" + "\n|---" * 1 + "|---" * 5 + "|")
    for law in SKEWED:
        print(f"| {law} | " + " | ".join(f"{estimated(law, count, draws):.1%}" for count in counts) + " |")


if __name__ == "__main__":
    main()
