"""Multipliers, slack and weights on recorded losses, held to what `golden.json` keeps of an earlier version.

    python -m tests.core.test_golden        # writes golden.json anew; say in the changelog why the numbers changed

No model and no noise take part: a change here is a change of the method.
"""

import itertools
import json
from pathlib import Path

import pytest
import torch

from descend.core import DescentProblem, GeometricTarget, PrimalDual

FILE = Path(__file__).with_name("golden.json")
DEPTH, STEPS, SKIPPED, SAVED = 4, 30, 13, 16

RULES = ("sgd", "adam", "nupi", "price")
PROBLEMS = {
    "step": lambda: DescentProblem(DEPTH, 0.2, 3.0, stop_gradient=False),
    "ratio": lambda: DescentProblem(DEPTH, [0.1, 0.2, 0.3, 0.1], first=1, form="ratio"),
    "geometric": lambda: DescentProblem(DEPTH, target=GeometricTarget(0.5)),
}
SCHEDULES = {"every step": (1, 0), "every third, after warm-up": (3, 4), "every epoch": ("epoch", 0)}
CASES = [" · ".join(names) for names in itertools.product(RULES, ("implicit", "explicit"), PROBLEMS, SCHEDULES)]


def recorded() -> list[list[list[float]]]:
    """Of each step two micro-batches: the sums of L+1 losses, then the count. Losses fall, and rise in between."""
    return json.loads(FILE.read_text())["losses"]


def trace(case: str, *, resume: bool = False) -> dict[str, list[list[float]]]:
    """λ, u and w after the tenth step and at the end; with ``resume`` through the JSON of a state amid a step.

    The weights are the gradient of the Lagrangian; those of ratios are taken at the last losses.
    """
    rule, slack, problem, schedule = case.split(" · ")
    every, warmup = SCHEDULES[schedule]

    def fresh() -> PrimalDual:
        moves = {"slack": slack, "slack_lr": 0.05 * 0.03, "slack_optimizer": "adam" if rule == "adam" else "sgd"}
        return PrimalDual(PROBLEMS[problem](), None, rule, 0.05, **moves, warmup=warmup, every=every, horizon=STEPS)

    dual = fresh()
    kept: dict[str, list[list[float]]] = {"multipliers": [], "slack": [], "weights": []}
    for step, batches in enumerate(recorded()):
        for *sums, count in batches:
            if resume and step == SAVED:
                state, dual = json.dumps(dual.state_dict(), default=torch.Tensor.tolist), fresh()
                assert len(state) < 1600
                dual.load_state_dict(json.loads(state))
            dual.observe(torch.tensor(sums, dtype=torch.float64, device="cpu"), count)
        if step == SKIPPED:
            dual.skip()
            continue
        dual.step()
        if step % 5 == 4 and step < STEPS - 1:
            dual.end_epoch()
        if step in (10, STEPS - 1):
            at = dual.state_dict()["reference"].requires_grad_()
            dual.lagrangian(at).backward()
            torch.testing.assert_close(at.grad, dual.weights)
            for name, values in kept.items():
                values.append(getattr(dual, name).tolist())
    return kept


@pytest.mark.parametrize("case", CASES)
def test_the_dual_moves_as_it_did(case):
    """Also through a saved state, and whatever the default dtype and device are: it is on the CPU, in doubles."""
    golden = json.loads(FILE.read_text())["cases"][case]
    moved, default = trace(case), torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        with torch.device("meta"):
            resumed = trace(case, resume=True)
    finally:
        torch.set_default_dtype(default)
    assert moved == resumed
    for name, values in golden.items():
        now, then = (torch.tensor(each, dtype=torch.float64) for each in (moved[name], values))
        torch.testing.assert_close(now, then, rtol=1e-12, atol=1e-15)
    assert any(any(row[1:]) for row in moved["multipliers"])


if __name__ == "__main__":
    content = {"losses": recorded(), "cases": {case: trace(case) for case in CASES}}
    lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in content["cases"].items()]
    FILE.write_text('{"losses": ' + json.dumps(content["losses"]) + ',\n"cases": {\n' + ",\n".join(lines) + "\n}}\n")
