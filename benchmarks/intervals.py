"""How often the intervals of a verdict cover the truth, and how often a certified exit breaks its bound.

    python benchmarks/intervals.py [--draws 4000]

Prints the tables of docs/explanation/verdict.md and docs/guides/exits.md. Groups are of one size, of one and ten
samples in turn, or of 10, 1, 1 and 1; half of the variance, or all of it, is the groups'. The estimand is the mean over
samples.
"""

import argparse

import numpy as np
import torch

from descend.evaluation.layers import LayerLosses
from descend.evaluation.risk_control import GroupTest
from descend.evaluation.satisfaction import margin_of_error

LAWS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "t3": lambda rng, shape: rng.standard_t(3, size=shape),
    "lognormal": lambda rng, shape: rng.lognormal(size=shape) - np.exp(0.5),
}
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


if __name__ == "__main__":
    main()
