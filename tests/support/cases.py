"""Cases of parametrized tests that only the whole suite takes."""

from collections.abc import Iterable

import pytest


def slow(case: object):
    """The case, one value, a tuple of several or a `pytest.param`, marked as slow."""
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)


def slow_but(kept: Iterable, cases: Iterable) -> list:
    """The cases, all but ``kept`` marked as slow."""
    return [case if case in kept else slow(case) for case in cases]
