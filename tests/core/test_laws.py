"""Laws of the dual that hold whatever the losses are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from descend import DescentProblem, PrimalDual

DEPTH = 3
quick = settings(max_examples=25, deadline=None)
numbers = st.floats(1e-3, 1e3)
losses = st.lists(numbers, min_size=DEPTH + 1, max_size=DEPTH + 1)
duals = st.fixed_dictionaries(
    {
        "optimizer": st.sampled_from(["sgd", "adam", "nupi"]),
        "resilience": st.sampled_from([0.0, 0.05, 1.0]),
        "lr": st.floats(1e-3, 1.0),
    }
)
problems = st.builds(
    lambda first, cap, form: DescentProblem(DEPTH, 0.2, cap, first=first, form=form),
    st.integers(0, DEPTH - 1),
    st.none() | numbers,
    st.sampled_from(["difference", "ratio"]),
)


@quick
@given(problems, duals, st.lists(losses, min_size=1, max_size=8))
def test_multipliers_stay_above_zero_where_something_is_asked_and_fall_where_it_holds(problem, settings, steps):
    dual = PrimalDual(problem, **settings)
    for each in steps:
        before, at = dual.multipliers, torch.tensor(each, dtype=torch.float64)
        dual.observe(at)
        dual.step()
        values = dual.multipliers
        assert (values >= 0).all() and values.isfinite().all()
        assert not values[~problem.in_force].any()
        assert (dual.slack >= 0).all()
        holds = problem.violations(at) <= 0
        assert settings["optimizer"] != "sgd" or (values[holds] <= before[holds]).all()


@quick
@given(duals, st.lists(st.tuples(losses, st.integers(1, 9)), min_size=1, max_size=6))
def test_a_step_sees_the_mean_over_all_samples_however_they_are_cut(settings, parts):
    whole, cut = (PrimalDual(DescentProblem(DEPTH, 0.2, 5.0), **settings) for _ in range(2))
    for each, count in parts:
        cut.observe(torch.tensor(each, dtype=torch.float64) * count, count)
    total = sum(count for _, count in parts)
    mean = sum(torch.tensor(each, dtype=torch.float64) * count for each, count in parts) / total
    whole.observe(mean * total, total)
    whole.step()
    cut.step()
    assert cut.multipliers.tolist() == pytest.approx(whole.multipliers.tolist(), rel=1e-3, abs=1e-4)
