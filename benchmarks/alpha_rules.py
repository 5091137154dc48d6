"""How λ should ascend where α is all that is given: a small network under the paper's constraints, by rule.

    python benchmarks/alpha_rules.py [--alpha 0.4] [--seeds 5] [--steps 1000]

A residual network of five blocks and one readout learns a function of ten numbers, with a warm-up of a tenth of the
steps and resilience 0.05, as Descend has them with α. *Holds*: no mean loss on test data misses its bound by more than
1 %.
"""

import argparse

import torch
from torch import nn

from descend.core import DescentProblem, PrimalDual

DEPTH, WIDTH, INPUTS, BATCH, TEST = 5, 32, 10, 64, 4096
CASES = {
    "adam, one side, no cap": {"optimizer": "adam"},
    "sgd, one side, no cap": {"optimizer": "sgd"},
    "sgd, both sides, no cap": {"optimizer": "sgd", "stop_gradient": False},
    "sgd, both sides, cap": {"optimizer": "sgd", "stop_gradient": False, "cap": True},
}
"""The rule of λ, at the rate 0.03; whether a gradient flows through the bound; and the cap, 1.1 times the first loss.
The last is what α alone chooses, the first what it chose before."""


class Network(nn.Module):
    """A residual network that is read after its embedding and after each block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH))

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """f_0 … f_L: the mean squared error, and 0.1, below which noise in the data keeps it."""
        states = [self.embed(x)]
        for block in self.blocks:
            states.append(states[-1] + block(states[-1]))
        return torch.stack([(self.head(each)[:, 0] - y).square().mean() for each in states]) + 0.1


def data(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and their values, which no linear map fits."""
    x = torch.randn(count, INPUTS, generator=generator)
    return x, 2 * x[:, 0] * x[:, 1] + 2 * x[:, 2].sin() + x[:, 3]


def trained(seed: int, steps: int, alpha: float, optimizer: str, **given: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The test losses f_0 … f_L, and by which share of its bound each constraint is missed, the cap's first."""
    torch.manual_seed(seed)
    generator, network = torch.Generator().manual_seed(seed), Network()
    with torch.no_grad():
        first = network.losses(*data(TEST, generator))[0].item()
    cap = 1.1 * first if given.pop("cap", False) else None
    problem = DescentProblem(DEPTH, alpha, cap, **given)
    dual = PrimalDual(problem, 0.03, optimizer, 0.05, warmup=steps // 10)
    adam = torch.optim.Adam(network.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, steps)
    for _ in range(steps):
        losses = network.losses(*data(BATCH, generator))
        adam.zero_grad()
        dual.lagrangian(losses).backward()
        adam.step()
        schedule.step()
        dual.observe(losses.detach())
        dual.step()
    with torch.no_grad():
        losses = network.losses(*data(TEST, torch.Generator().manual_seed(10**6))).double()
    violations = (problem.violations(losses) / problem.bounds(losses).where(problem.in_force, 1.0)).clamp(min=0)
    return losses, violations


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--alpha", type=float, default=0.4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| form | holds | worst miss | f_0 | f_L |\n|---|---:|---:|---:|---:|")
    for name, settings in CASES.items():
        runs = [trained(seed, options.steps, options.alpha, **settings) for seed in range(options.seeds)]
        losses, violations = (torch.stack(each) for each in zip(*runs, strict=True))
        worst = violations.amax(1)
        print(
            f"| {name} | {int((worst <= 0.01).sum())} of {options.seeds} | {worst.mean():.1%} | "
            f"{losses[:, 0].mean():.2f} | {losses[:, -1].mean():.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
