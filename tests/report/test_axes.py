"""Every logarithmic axis has labels, however little or much its values differ."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser

from descend.report import write_page
from tests.support.browser import Visit
from tests.support.pages import NOISE, fake_run

LABELS = """[...document.querySelectorAll('[data-plot="KEY"] .ytick text')].map(label => {
    const { top, bottom } = label.getBoundingClientRect();
    return [Number(label.textContent), top, bottom];
})"""


@pytest.mark.parametrize("times", [1.002, 1.1, 5, 12, 300, 1e9])
def test_log_axes_have_labels_that_do_not_overlap(browser: Browser, tmp_path: Path, times: float) -> None:
    rows = {str(level): (0.0437 * times ** np.linspace(1, 0, 8)).tolist() for level in NOISE}
    run = fake_run(tmp_path / "run", "erm", frames=False, layer_losses=rows, layer_metrics=rows)
    page = write_page([run], tmp_path / "report.html", "axes")
    with Visit(browser, page, viewport={"width": 390, "height": 844}) as visit:
        for key in ("losses", "metrics"):
            visit.page.locator(f"[data-plot={key}]").scroll_into_view_if_needed()
            visit.page.wait_for_selector(f"[data-plot={key}] .main-svg")
            labels = sorted(visit.page.evaluate(LABELS.replace("KEY", key)), key=lambda label: label[1])
            assert len(labels) >= 2, labels
            assert all(above[2] <= below[1] + 1 for above, below in pairwise(labels)), labels
            assert [value for value, _, _ in labels] == sorted({value for value, _, _ in labels}, reverse=True)
