"""The core against independent oracles: closed forms, Algorithm 1 by hand, Cooper.

The losses are those of "layers" that are points a_l: f_l(x) = ½‖x − a_l‖² + b_l. Every Lagrangian is then a
quadratic in x, and a constraint f_l − (1−α_l) f_{l−1} ≤ 0 is convex, so that the conditions of Karush, Kuhn
and Tucker are sufficient: a problem is built around a solution (x*, λ*) that is chosen first.
"""

from dataclasses import dataclass, replace
from itertools import product

import cooper
import numpy as np
import pytest
import torch
from cooper.optim import SimultaneousOptimizer, nuPI, nuPIInitType

from descend.core import DescentProblem, PrimalDual
from descend.core.rules import NuPI
from tests.support.by_hand import adam, sgd
from tests.support.cases import slow


def loop(dual, layer_losses, x, optimizer, steps):
    """The plain loop of the issue on one "batch", which is the whole problem."""
    for _ in range(steps):
        losses = layer_losses(x)
        dual.lagrangian(losses).backward()
        optimizer.step()
        optimizer.zero_grad()
        dual.observe(losses.detach())
        dual.step()
        yield x.detach().clone(), dual.multipliers


def variable(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.float64, requires_grad=True)


# --- a problem around its solution


@dataclass(frozen=True)
class Case:
    """A solution λ* (index 0 the cap): where λ*_l = 0 the constraint holds with ``margin`` to spare.

    No more constraints bind than leave λ* unique: one fewer than there are points in them.
    """

    lam: tuple[float, ...]
    alpha: tuple[float, ...]
    first: int = 0
    capped: bool = False
    form: str = "difference"
    stop_gradient: bool = False
    resilience: float = 0.0
    margin: float = 0.3
    f_first: float = 4.0

    @property
    def depth(self) -> int:
        return len(self.alpha)

    def problem(self) -> DescentProblem:
        return DescentProblem(
            self.depth,
            self.alpha,
            self.cap if self.capped else None,
            first=self.first,
            form=self.form,
            stop_gradient=self.stop_gradient,
        )

    @property
    def cap(self) -> float:
        return self.f_first - (self.resilience * self.lam[0] if self.lam[0] else -self.margin)

    def losses(self) -> list[float]:
        """f_l at the solution: constraint l is off by ρλ*_l if it binds, and by −margin if not."""
        values = [self.f_first] * (self.first + 1)
        for layer in range(self.first + 1, self.depth + 1):
            off = self.resilience * self.lam[layer] if self.lam[layer] else -self.margin
            rate = 1 - self.alpha[layer - 1]
            before = values[-1]
            values.append(rate * before + off if self.form == "difference" else (rate + off) * before)
        return values

    def solve(self):
        """(x*, layer_losses): the gradient of L̂ summed constraint by constraint, and the b_l that fit."""
        a = np.random.default_rng(7).normal(size=(self.depth + 1, 6)) * 0.5
        f, weights = self.losses(), np.zeros(self.depth + 1)
        weights[-1] = 1
        for layer in range(self.first + 1, self.depth + 1):
            lam, rate, before, after = self.lam[layer], 1 - self.alpha[layer - 1], f[layer - 1], f[layer]
            ratio = self.form == "ratio"
            weights[layer] += lam / before if ratio else lam
            if not self.stop_gradient:
                weights[layer - 1] -= lam * after / before**2 if ratio else lam * rate
        weights[self.first] += self.lam[0]
        x = weights @ a / weights.sum()
        b = torch.tensor([f[i] - 0.5 * ((x - a[i]) ** 2).sum() for i in range(self.depth + 1)])
        points = torch.tensor(a)
        return torch.tensor(x), lambda y: 0.5 * ((y - points) ** 2).sum(1) + b


CASES = {
    "one layer": Case((0, 0.7), (0.3,)),
    "two layers, one binds": Case((0, 0.6, 0), (0.2, 0.2)),
    "three layers, none binds": Case((0, 0, 0, 0), (0.2, 0.2, 0.2), capped=True),
    "three layers, all bind": Case((0, 0.8, 0.5, 0.9), (0.1, 0.1, 0.1)),
    "a step for each layer, and the cap": Case((0.4, 0.5, 0, 0.7), (0.1, 0.3, 0.2), capped=True),
    "the chain starts at layer 1": Case((0.6, 0, 0.5, 0), (0.5, 0.1, 0.2), first=1, capped=True),
    "gradient stopped": Case((0, 0.5, 0.4, 0), (0.1, 0.1, 0.1), stop_gradient=True),
    "ratio": Case((0, 1.5, 0, 1.2), (0.2, 0.2, 0.2), form="ratio", margin=0.1),
    "ratio, gradient stopped, cap": Case(
        (0.3, 1.5, 0), (0.1, 0.2), form="ratio", stop_gradient=True, capped=True, margin=0.1
    ),
}
QUICK = ("two layers, one binds", "ratio, gradient stopped, cap")
MOVES = {
    "sgd": (0.3, {}, 1000, 1e-5, 1e-4),
    "nupi": (0.3, {"kp": 1.0}, 1000, 1e-5, 1e-4),
    "adam": (0.003, {}, 1500, 0.01, 0.01),
}
"""Rate, options, steps, and how near x and λ end; Adam is slower: its step is about ±η whatever the violation."""


@pytest.mark.parametrize(
    ("optimizer", "slack", "resilience", "name"),
    [
        *product(["sgd"], ["implicit"], [0.2], QUICK),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in product(["sgd"], ["implicit"], [0.2], [name for name in CASES if name not in QUICK])
        ),
        *product(["nupi"], ["explicit"], [0.2], ["gradient stopped"]),
        slow(("sgd", "explicit", 0.2, "gradient stopped")),
        slow(("adam", "implicit", 0.2, "three layers, all bind")),
    ],
)
def test_the_loop_finds_the_known_solution(optimizer, slack, resilience, name):
    """(x*, λ*) with g(x*) = ρλ* where a constraint binds, λ* = 0 where it does not."""
    lr, options, steps, near, near_lam = MOVES[optimizer]
    case = replace(CASES[name], resilience=resilience / 10 if CASES[name].form == "ratio" else resilience)
    solution, layer_losses = case.solve()
    dual = PrimalDual(case.problem(), lr, optimizer, case.resilience, slack=slack, options=options)
    x = variable(6)
    *_, (end, lam) = loop(dual, layer_losses, x, torch.optim.SGD([x], lr=0.2), steps)
    assert (end - solution).abs().max() < near
    np.testing.assert_allclose(lam, case.lam, atol=near_lam)
    np.testing.assert_allclose(dual.slack, case.resilience * np.array(case.lam), atol=near_lam)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nupi", "price"])
@pytest.mark.parametrize("resilience", [0.01, 0.05, 1.0])
def test_explicit_slack_is_at_its_optimum_some_dozens_of_steps_after_a_restart(optimizer, resilience):
    """However λ moves: u goes a tenth of the way to ρλ in a step, and .9⁶⁰ = .002."""
    dual = PrimalDual(DescentProblem(1, 0.5), 1e-4, optimizer, resilience, slack="explicit", horizon=1000)
    dual.load_state_dict(dual.state_dict() | {"multipliers": [0.0, 2.0]})
    for _ in range(2):
        for _ in range(60):
            dual.observe(torch.ones(2))
            dual.step()
        multipliers = dual.multipliers
        assert dual.slack[1].item() == pytest.approx(resilience * multipliers[1].item(), rel=0.01)
        dual.end_epoch()
        assert not dual.slack.any() and torch.equal(dual.multipliers, multipliers)


# --- Algorithm 1, written by hand


def nupi(lr, kp=4.0, nu=0.3):
    xi = None

    def step(g):
        nonlocal xi
        before = g if xi is None else xi
        xi = nu * before + (1 - nu) * g
        return lr * (g + kp * (xi - before))

    return step


RULES = {"sgd": sgd, "adam": adam, "nupi": nupi}


def algorithm_1(a, b, alpha, primal, dual, steps, rho, slack=None):
    """Yield (x, λ, u): eq. (5) and its steps, the gradients of ½‖x − a_l‖² + b_l written out.

    ρλ is an L2 term inside the dual gradient, eq. (38); explicit slack steps from the same point as λ, eq. (36).
    """
    rate, x, lam, u = 1 - alpha, np.zeros(a.shape[1]), np.zeros(len(alpha)), np.zeros(len(alpha))
    for _ in range(steps):
        f, df = 0.5 * ((x - a) ** 2).sum(1) + b, x - a
        gap, dgap = f[1:] - rate * f[:-1], df[1:] - rate[:, None] * df[:-1]
        x = x - primal(df[-1] + lam @ dgap)
        before, lam = lam, np.maximum(lam + dual(gap - u), 0)
        u = np.maximum(u - slack(u / rho - before), 0) if slack else rho * lam
        yield x, lam, u


@pytest.fixture(scope="module")
def chain():
    """Four points, their constants and α: some constraints bind on the way and let go again."""
    rng = np.random.default_rng(3)
    return rng.normal(size=(4, 5)), np.array([1.0, 1.2, 0.5, 0.9]), np.array([0.1, 0.3, 0.2])


def torch_losses(chain):
    a, b = torch.tensor(chain[0]), torch.tensor(chain[1])
    return lambda x: 0.5 * ((x - a) ** 2).sum(1) + b


@pytest.mark.parametrize(
    ("optimizer", "slack", "resilience"),
    [*product(RULES, ["implicit"], [0.0, 0.3]), *product(["sgd", "adam"], ["explicit"], [0.3])],
)
def test_every_step_is_that_of_algorithm_1_by_hand(chain, optimizer, slack, resilience):
    options = {"kp": 4.0, "nu": 0.3} if optimizer == "nupi" else None
    moves = {"slack": slack, "slack_lr": 0.02, "slack_optimizer": optimizer, "options": options}
    problem = DescentProblem(3, chain[2].tolist(), stop_gradient=False)
    dual = PrimalDual(problem, 0.05, optimizer, resilience, **moves)
    x, moved = variable(5), False
    ours = loop(dual, torch_losses(chain), x, torch.optim.SGD([x], lr=0.03), 150)
    of_slack = RULES[optimizer](0.02) if slack == "explicit" else None
    by_hand = algorithm_1(*chain, sgd(0.03), RULES[optimizer](0.05), 150, resilience, of_slack)
    for (end, lam), expected in zip(ours, by_hand, strict=True):
        for found, value in zip((end, lam[1:], dual.slack[1:]), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-10)
        moved |= lam.max() > 0.1
    assert moved


# --- Cooper


class Chain(cooper.ConstrainedMinimizationProblem):
    """The same problem for Cooper, which knows no resilience: its dual step is given g − ρλ."""

    def __init__(self, layer_losses, alpha, cap, resilience):
        super().__init__()
        multiplier = cooper.multipliers.DenseMultiplier(num_constraints=len(alpha) + 1, dtype=torch.float64)
        self.chain = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=cooper.formulations.Lagrangian,
            multiplier=multiplier,
        )
        self.layer_losses, self.rate, self.cap, self.resilience = layer_losses, 1 - alpha, cap, resilience

    def compute_cmp_state(self, x):
        f = self.layer_losses(x)
        gap = torch.cat([f[:1] - self.cap, f[1:] - torch.tensor(self.rate) * f[:-1]])
        strict = gap.detach() - self.resilience * self.chain.multiplier.weight.detach()
        state = cooper.ConstraintState(violation=gap, strict_violation=strict)
        return cooper.CMPState(loss=f[-1], observed_constraints={self.chain: state})


@pytest.mark.parametrize("resilience", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nupi"])
def test_every_step_is_that_of_cooper(chain, optimizer, resilience):
    cap = 3.0
    problem = DescentProblem(3, chain[2].tolist(), cap, stop_gradient=False)
    # With k_p = 0 νPI has no first step to disagree about (see below).
    options = {"kp": 0.0, "ki": 2.0} if optimizer == "nupi" else None
    dual = PrimalDual(problem, 0.05, optimizer, resilience, options=options)
    x = variable(5)
    ours = loop(dual, torch_losses(chain), x, torch.optim.SGD([x], lr=0.03), 150)

    cmp, y = Chain(torch_losses(chain), chain[2], cap, resilience), variable(5)
    theirs = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, maximize=True),
        "adam": lambda p: torch.optim.Adam(p, lr=0.05, maximize=True),
        "nupi": lambda p: nuPI(p, lr=0.05, Kp=0.0, Ki=2.0, maximize=True),
    }[optimizer](list(cmp.dual_parameters()))
    roll = SimultaneousOptimizer(cmp=cmp, primal_optimizers=torch.optim.SGD([y], lr=0.03), dual_optimizers=theirs)
    highest = torch.zeros(4)
    for end, lam in ours:
        roll.roll(compute_cmp_state_kwargs={"x": y})
        torch.testing.assert_close(end, y.detach(), rtol=0, atol=1e-10)
        torch.testing.assert_close(lam, cmp.chain.multiplier.weight.detach(), rtol=0, atol=1e-10)
        highest = torch.maximum(highest, lam)
    assert highest[0] > 0.05 and highest[1:].max() > 0.05


@pytest.mark.parametrize("nu", [0.0, 0.3, 0.9])
def test_nupi_is_coopers_as_its_documentation_defines_it(nu):
    """Cooper documents ξ_{−1} = e_0: ξ_0 = e_0 and a first step of η k_i e_0. Its code starts otherwise."""
    violations = torch.randn(60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours, theirs = (torch.zeros(3, dtype=torch.float64) for _ in range(2))
    kp, ki = torch.tensor([4.0, 0.5], dtype=torch.float64)
    optimizer = NuPI([ours], lr=0.1, kp=4.0, ki=0.5, nu=nu, maximize=True)
    coopers = nuPI([theirs], lr=0.1, Kp=kp, Ki=ki, ema_nu=nu, init_type=nuPIInitType.SGD, maximize=True)
    coopers.state[theirs]["xi"] = violations[0].clone()
    highest = 0.0
    for violation in violations:
        ours.grad, theirs.grad = violation.clone(), violation.clone()
        optimizer.step()
        coopers.step()
        torch.testing.assert_close(ours.clamp_(min=0), theirs.clamp_(min=0), rtol=0, atol=1e-12)
        highest = max(highest, ours.max().item())
    assert highest > 0.1
