"""The core against independent oracles: closed forms, Algorithm 1 by hand, Cooper.

The losses are those of "layers" that are points a_l: f_l(x) = ½‖x − a_l‖² + b_l. Every Lagrangian is then a
quadratic in x, and a constraint f_l − (1−α_l) f_{l−1} ≤ 0 is convex, so that the conditions of Karush, Kuhn
and Tucker are sufficient: a problem is built around a solution (x*, λ*) that is chosen first.
"""

from dataclasses import dataclass, replace

import cooper
import numpy as np
import pytest
import torch
from cooper.optim import SimultaneousOptimizer, nuPI, nuPIInitType

from descend.core import DescentProblem, PrimalDual
from descend.core.rules import NuPI


@pytest.fixture(autouse=True)
def one_thread():
    """Nothing here is large enough for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
BINDING = ["three layers, all bind", "a step for each layer, and the cap", "gradient stopped"]


@pytest.mark.parametrize("resilience", [0.0, 0.2], ids=["hard", "resilient"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("optimizer", ["sgd", "nupi"])
def test_the_loop_finds_the_known_solution(case, resilience, optimizer):
    """(x*, λ*) with g(x*) = ρλ* where a constraint binds, λ* = 0 where it does not."""
    case = replace(case, resilience=resilience / 10 if case.form == "ratio" else resilience)
    solution, layer_losses = case.solve()
    options = {"kp": 1.0} if optimizer == "nupi" else None
    dual = PrimalDual(case.problem(), 0.3, optimizer, case.resilience, options=options)
    x = variable(6)
    *_, (end, lam) = loop(dual, layer_losses, x, torch.optim.SGD([x], lr=0.2), 1000)
    assert (end - solution).abs().max() < 1e-5
    np.testing.assert_allclose(lam, case.lam, atol=1e-4)
    np.testing.assert_allclose(dual.slack, case.resilience * np.array(case.lam), atol=1e-4)


@pytest.mark.parametrize("resilience", [0.0, 0.2], ids=["hard", "resilient"])
@pytest.mark.parametrize("name", ["one layer", "two layers, one binds", *BINDING])
def test_adam_finds_the_known_solution(name, resilience):
    """More slowly: its step is about ±η whatever the violation."""
    case = replace(CASES[name], resilience=resilience)
    solution, layer_losses = case.solve()
    dual = PrimalDual(case.problem(), 0.003, "adam", resilience)
    x = variable(6)
    *_, (end, lam) = loop(dual, layer_losses, x, torch.optim.SGD([x], lr=0.2), 1500)
    assert (end - solution).abs().max() < 0.01
    np.testing.assert_allclose(lam, case.lam, atol=0.01)


@pytest.mark.parametrize("name", BINDING)
@pytest.mark.parametrize("optimizer", ["sgd", "nupi"])
def test_explicit_slack_agrees_with_implicit_at_the_optimum(name, optimizer):
    case = replace(CASES[name], resilience=0.2)
    solution, layer_losses = case.solve()
    options = {"kp": 1.0} if optimizer == "nupi" else None
    dual = PrimalDual(case.problem(), 0.3, optimizer, 0.2, slack="explicit", options=options)
    x = variable(6)
    *_, (end, lam) = loop(dual, layer_losses, x, torch.optim.SGD([x], lr=0.2), 1000)
    assert (end - solution).abs().max() < 1e-5
    np.testing.assert_allclose(lam, case.lam, atol=1e-4)
    np.testing.assert_allclose(dual.slack, 0.2 * lam, atol=1e-4)


# --- closed forms


def test_one_layer_by_the_quadratic_formula():
    """x moves on the line through a_0 and a_1: with x = a_1 + t (a_1 − a_0), g(t) is a quadratic in t."""
    alpha, b0, b1 = 0.3, 1.0, 2.0
    a = torch.tensor([[1.0, -1.0, 0.5], [0.2, 0.3, -0.4]], dtype=torch.float64)
    d2 = float(((a[1] - a[0]) ** 2).sum())
    # g = ½ d² (t² − (1−α)(1+t)²) + b_1 − (1−α) b_0; its larger root is infeasible to the other side of a_1 …
    roots = np.roots([alpha * d2 / 2, -(1 - alpha) * d2, -(1 - alpha) * d2 / 2 + b1 - (1 - alpha) * b0])
    t = min(root for root in roots if root > 0)
    # … and λ follows from x(λ): t = (1−α) λ / (1 + αλ).
    lam = t / ((1 - alpha) - alpha * t)
    dual = PrimalDual(DescentProblem(1, alpha, stop_gradient=False), lr=0.3, optimizer="sgd")
    x, b = variable(3), torch.tensor([b0, b1])
    optimizer = torch.optim.SGD([x], lr=0.2)
    *_, (end, found) = loop(dual, lambda y: 0.5 * ((y - a) ** 2).sum(1) + b, x, optimizer, 1500)
    assert lam > 0.1 and found.tolist() == pytest.approx([0, lam], abs=1e-8)
    torch.testing.assert_close(end, a[1] + t * (a[1] - a[0]), rtol=0, atol=1e-8)


def half_square(x):
    """f_1 = ½x², f_0 = (½x² + x − 1) / (1−α), α = ½: the constraint is 1 − x ≤ 0."""
    return torch.stack([(0.5 * x[0] ** 2 + x[0] - 1) / 0.5, 0.5 * x[0] ** 2])


@pytest.mark.parametrize("resilience", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("stop_gradient", [False, True], ids=["through both sides", "gradient stopped"])
def test_the_stop_gradient_variant_has_a_fixed_point_of_its_own(resilience, stop_gradient):
    """Through both sides x(λ) = λ, so that 1 − λ = ρλ: λ* = x* = 1/(1+ρ).

    Stopped, x(λ) = 0 whatever λ is, as the constraint pulls on f_1 alone, which is at its least already:
    λ* = 1/ρ, and none without resilience, where λ climbs for ever.
    """
    problem = DescentProblem(1, 0.5, stop_gradient=stop_gradient)
    dual = PrimalDual(problem, lr=0.2, optimizer="sgd", resilience=resilience)
    x = variable(1)
    *_, (end, lam) = loop(dual, half_square, x, torch.optim.SGD([x], lr=0.1), 2000)
    if not stop_gradient:
        assert end.item() == pytest.approx(1 / (1 + resilience), abs=1e-8)
        assert lam[1].item() == pytest.approx(1 / (1 + resilience), abs=1e-8)
    else:
        assert end.item() == 0.0
        assert lam[1].item() == pytest.approx(1 / resilience if resilience else 0.2 * 2000, abs=1e-6)


def test_on_several_layers_too_the_two_variants_settle_apart():
    """On the losses of the stopped case, whose own solution the loop finds (above)."""
    case = CASES["gradient stopped"]
    stopped, layer_losses = case.solve()
    dual = PrimalDual(DescentProblem(case.depth, case.alpha, stop_gradient=False), lr=0.3, optimizer="sgd")
    x = variable(6)
    *_, (end, _) = loop(dual, layer_losses, x, torch.optim.SGD([x], lr=0.2), 1000)
    assert (end - stopped).abs().max() > 0.05
    # Both meet the constraints; through both sides the last loss, the objective, ends lower.
    assert dual.problem.violations(layer_losses(end)).max() < 1e-6
    assert layer_losses(end)[-1] < layer_losses(stopped)[-1] - 0.01


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nupi"])
def test_explicit_slack_settles_at_its_own_defaults_and_after_a_restart(optimizer):
    """u* = ρ/(1+ρ) with nothing tuned but the dual step; `end_epoch` puts u back to 0 and leaves λ.

    A slack step as large as the dual's, η > 2ρ, would make u jump from 0 to beyond u* and back.
    """
    lr, steps = (0.003, 2500) if optimizer == "adam" else (0.03, 1000)
    dual = PrimalDual(DescentProblem(1, 0.5, stop_gradient=False), lr, optimizer, 0.01, slack="explicit")
    x = variable(1)
    primal = torch.optim.SGD([x], lr=0.1)
    for _ in range(2):
        *_, (end, lam) = loop(dual, half_square, x, primal, steps)
        np.testing.assert_allclose([end.item(), lam[1].item()], 1 / 1.01, atol=2e-3)
        assert dual.slack[1].item() == pytest.approx(0.01 / 1.01, rel=0.01)
        dual.end_epoch()
        assert not dual.slack.any() and torch.equal(dual.multipliers, lam)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nupi"])
@pytest.mark.parametrize("resilience", [0.01, 0.05, 1.0])
def test_explicit_slack_is_at_its_optimum_some_dozens_of_steps_after_a_restart(optimizer, resilience):
    """However slowly λ moves: u goes a tenth of the way to ρλ in a step, and .9⁶⁰ = .002."""
    dual = PrimalDual(DescentProblem(1, 0.5), 1e-4, optimizer, resilience, slack="explicit")
    dual.load_state_dict(dual.state_dict() | {"multipliers": [0.0, 2.0]})
    dual.end_epoch()
    for _ in range(60):
        dual.observe(torch.ones(2))
        dual.step()
    assert dual.slack[1].item() == pytest.approx(resilience * dual.multipliers[1].item(), rel=0.01)


# --- Algorithm 1, written by hand


def sgd(lr):
    return lambda g: lr * g


def adam(lr, beta1=0.9, beta2=0.999, eps=1e-8):
    m = v = t = 0

    def step(g):
        nonlocal m, v, t
        m, v, t = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2, t + 1
        return lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)

    return step


def nupi(lr, kp, nu):
    xi = None

    def step(g):
        nonlocal xi
        before = g if xi is None else xi
        xi = nu * before + (1 - nu) * g
        return lr * (g + kp * (xi - before))

    return step


def algorithm_1(a, b, alpha, primal, dual, steps, rho=0.0, slack=None, decay=0.0):
    """Yield (x, λ, u): eq. (5) and its two steps, the gradients of ½‖x − a_l‖² + b_l written out."""
    rate, x, lam, u = 1 - alpha, np.zeros(a.shape[1]), np.zeros(len(alpha)), np.zeros(len(alpha))
    for _ in range(steps):
        f, df = 0.5 * ((x - a) ** 2).sum(1) + b, x - a
        gap, dgap = f[1:] - rate * f[:-1], df[1:] - rate[:, None] * df[:-1]
        u = u if slack else rho * lam
        x = x - primal(df[-1] + lam @ dgap)
        climb = dual(gap - u) - decay * lam
        u = np.maximum(u - slack(u / rho - lam), 0) if slack else u
        lam = np.maximum(lam + climb, 0)
        yield x, lam, u


@pytest.fixture(scope="module")
def chain():
    """Four points, their constants and α: some constraints bind on the way and let go again."""
    rng = np.random.default_rng(3)
    return rng.normal(size=(4, 5)), np.array([1.0, 1.2, 0.5, 0.9]), np.array([0.1, 0.3, 0.2])


def torch_losses(chain):
    a, b = torch.tensor(chain[0]), torch.tensor(chain[1])
    return lambda x: 0.5 * ((x - a) ** 2).sum(1) + b


def primal_dual_run(chain, optimizer, steps, primal="sgd", **arguments):
    problem = DescentProblem(3, chain[2].tolist(), stop_gradient=False)
    dual = PrimalDual(problem, 0.05, optimizer, slack_optimizer=optimizer, **arguments)
    x = variable(5)
    primal = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[primal]([x], lr=0.03)
    for end, lam in loop(dual, torch_losses(chain), x, primal, steps):
        yield end.numpy(), lam[1:].numpy(), dual.slack[1:].numpy()


def compare(ours, theirs, slack=False):
    moved = False
    for (x, lam, u), (x_hand, lam_hand, u_hand) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x, x_hand, rtol=0, atol=1e-10)
        np.testing.assert_allclose(lam, lam_hand, rtol=0, atol=1e-10)
        if slack:
            np.testing.assert_allclose(u, u_hand, rtol=0, atol=1e-10)
        moved |= lam.max() > 0.1
    assert moved


@pytest.mark.parametrize("resilience", [0.0, 0.3])
@pytest.mark.parametrize("primal", ["sgd", "adam"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nupi"])
def test_every_step_is_that_of_algorithm_1_by_hand(chain, optimizer, primal, resilience):
    rule = {"sgd": sgd(0.05), "adam": adam(0.05), "nupi": nupi(0.05, 4.0, 0.3)}[optimizer]
    options = {"kp": 4.0, "nu": 0.3} if optimizer == "nupi" else None
    ours = primal_dual_run(chain, optimizer, 300, primal, resilience=resilience, options=options)
    hand = algorithm_1(*chain, {"sgd": sgd, "adam": adam}[primal](0.03), rule, 300, resilience)
    compare(ours, hand)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_step_with_explicit_slack_is_that_by_hand(chain, optimizer):
    """Eq. (36): u and λ take their steps from the same point."""
    rule = {"sgd": sgd, "adam": adam}[optimizer]
    ours = primal_dual_run(chain, optimizer, 300, resilience=0.3, slack="explicit", slack_lr=0.02)
    hand = algorithm_1(*chain, sgd(0.03), rule(0.05), 300, 0.3, slack=rule(0.02))
    compare(ours, hand, slack=True)


def test_resilience_is_an_l2_term_inside_the_gradient_and_not_decoupled_decay(chain):
    """Eq. (38). With SGD λ ← λ + η g − ηρλ is the same thing; with Adam it is not."""
    for optimizer, rule in (("sgd", sgd), ("adam", adam)):
        _, ours, _ = list(primal_dual_run(chain, optimizer, 200, resilience=0.3))[-1]
        inside, decoupled = (
            list(algorithm_1(*chain, sgd(0.03), rule(0.05), 200, **how))[-1][1]
            for how in ({"rho": 0.3}, {"decay": 0.05 * 0.3})
        )
        np.testing.assert_allclose(ours, inside, atol=1e-10)
        if optimizer == "sgd":
            np.testing.assert_allclose(ours, decoupled, atol=1e-10)
        else:
            assert np.abs(ours - decoupled).max() > 0.05


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
@pytest.mark.parametrize("primal", ["sgd", "adam"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nupi"])
def test_every_step_is_that_of_cooper(chain, optimizer, primal, resilience):
    cap = 3.0
    primal = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[primal]
    problem = DescentProblem(3, chain[2].tolist(), cap, stop_gradient=False)
    # With k_p = 0 νPI has no first step to disagree about (see below).
    options = {"kp": 0.0, "ki": 2.0} if optimizer == "nupi" else None
    dual = PrimalDual(problem, 0.05, optimizer, resilience, options=options)
    x = variable(5)
    ours = loop(dual, torch_losses(chain), x, primal([x], lr=0.03), 300)

    cmp, y = Chain(torch_losses(chain), chain[2], cap, resilience), variable(5)
    theirs = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, maximize=True),
        "adam": lambda p: torch.optim.Adam(p, lr=0.05, maximize=True),
        "nupi": lambda p: nuPI(p, lr=0.05, Kp=0.0, Ki=2.0, maximize=True),
    }[optimizer](list(cmp.dual_parameters()))
    roll = SimultaneousOptimizer(cmp=cmp, primal_optimizers=primal([y], lr=0.03), dual_optimizers=theirs)
    highest = torch.zeros(4)
    for end, lam in ours:
        roll.roll(compute_cmp_state_kwargs={"x": y})
        torch.testing.assert_close(end, y.detach(), rtol=0, atol=1e-10)
        torch.testing.assert_close(lam, cmp.chain.multiplier.weight.detach(), rtol=0, atol=1e-10)
        highest = torch.maximum(highest, lam)
    assert highest[0] > 0.05 and highest[1:].max() > 0.05


def both_nupis(violations, start, nu, init, xi=None):
    """Yield λ after every step along the violations, by our νPI and by Cooper's, projected."""
    ours, theirs = (torch.full((3,), start, dtype=torch.float64) for _ in range(2))
    kp, ki = torch.tensor([4.0, 0.5], dtype=torch.float64)
    optimizer = NuPI([ours], lr=0.1, kp=4.0, ki=0.5, nu=nu, maximize=True)
    coopers = nuPI([theirs], lr=0.1, Kp=kp, Ki=ki, ema_nu=nu, init_type=init, maximize=True)
    if xi is not None:
        coopers.state[theirs]["xi"] = xi.clone()
    for violation in violations:
        ours.grad, theirs.grad = violation.clone(), violation.clone()
        optimizer.step()
        coopers.step()
        yield ours.clamp_(min=0).clone(), theirs.clamp_(min=0).clone()


def random_violations(steps):
    return torch.randn(steps, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("nu", [0.0, 0.3, 0.9])
def test_nupi_is_coopers_as_its_documentation_defines_it(nu):
    """Its ``SGD`` initialisation is documented as ξ_{−1} = e_0: ξ_0 = e_0 and a first step of η k_i e_0."""
    violations = random_violations(60)
    highest = 0.0
    for ours, theirs in both_nupis(violations, 0.0, nu, nuPIInitType.SGD, xi=violations[0]):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        highest = max(highest, ours.max().item())
    assert highest > 0.1


@pytest.mark.parametrize("nu", [0.0, 0.3])
@pytest.mark.parametrize(("init", "late"), [(nuPIInitType.ZEROS, 0), (nuPIInitType.SGD, 1)])
def test_where_coopers_nupi_differs_from_ours(init, late, nu):
    """Cooper 1.0.1 starts otherwise; without smoothing (ν = 0) every other step is ours.

    ``ZEROS``: ξ_{−1} = 0, so that the first step reacts to all of e_0: it has η k_p (1−ν) e_0 more than ours.
    ``SGD``: the first step is ours, but its code goes on from ξ_0 = 0, not from the documented ξ_0 = e_0, so
    that the same amount comes with the second step.
    """
    violations = random_violations(8)
    before = torch.zeros(3, dtype=torch.float64)
    # From far above 0, where no projection hides a difference.
    for step, (ours, theirs) in enumerate(both_nupis(violations, 100.0, nu, init)):
        more = 0.1 * 4.0 * (1 - nu) * violations[0] * (step == late)
        if step <= late or nu == 0:
            torch.testing.assert_close(theirs - ours - before, more, rtol=0, atol=1e-12)
        before = theirs - ours
