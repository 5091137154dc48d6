"""Fixtures shared by all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

# A busy machine is no failure.
hypothesis.settings.register_profile("descend", deadline=None)
hypothesis.settings.load_profile("descend")

# Failures in shared helpers show values, as in test files.
pytest.register_assert_rewrite("tests.support")

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets (see README): tests that need one skip where it is not."""
    folder = os.environ.get("DESCEND_DATA")
    if not folder:
        pytest.skip("set DESCEND_DATA to a folder with the real data sets to run this test")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"DESCEND_DATA={folder} is not a folder")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A headless Chromium, one per test file."""
    from tests.support.browser import chromium  # few test files need playwright

    with chromium() as browser:
        yield browser
