"""Fixtures shared by all tests."""

import functools
import gc
import os
from collections.abc import Iterator
from pathlib import Path

# No test waits for the network. It is read when huggingface_hub is imported, and goes on to what tests start.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis
import pytest
import torch

from descend.tasks.video import datasets

SLOW_FIXTURES = {"swept", "two", "counted", "table", "drawn"}
"""They train or draw for half a minute: a test that uses one is slow."""

CHROMIUM = Path("/usr/bin/chromium")

# A busy machine is no failure.
hypothesis.settings.register_profile("descend", deadline=None)
hypothesis.settings.load_profile("descend")

# Failures in shared helpers show values, as in test files.
pytest.register_assert_rewrite("tests.support")

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Marks as slow what uses a slow fixture."""
    for item in items:
        if SLOW_FIXTURES & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", autouse=True)
def _imported_for_good():
    """What is imported stays: the collector, whom every training calls, need not look through it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _scenes_drawn_once():
    """The generated scenes, which most runs read, are drawn once in a process; nobody can write into them."""

    @functools.cache
    def drawn(*args, **more):
        scenes = tuple(draw(*args, **more))
        for scene in scenes:
            scene.setflags(write=False)
        return scenes

    draw, datasets.generate_scenes = datasets.generate_scenes, lambda *args, **more: list(drawn(*args, **more))
    yield
    datasets.generate_scenes = draw


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets (see README): tests that need one skip where it is not."""
    folder = os.environ.get("DESCEND_DATA")
    if not folder:
        pytest.skip("set DESCEND_DATA to a folder with the real data sets to run this test")
    return Path(folder)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A headless Chromium, one per test file; a test that uses it is skipped where there is none."""
    from playwright.sync_api import sync_playwright  # few test files need it

    if not CHROMIUM.exists():
        pytest.skip("needs Chromium: apt-get install chromium")
    quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    quiet += ["--no-sandbox", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=CHROMIUM, args=quiet) as browser:
        yield browser
