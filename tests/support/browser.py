"""Pages in a real browser: what they show, what they complain about, what they ask of the network."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
# Milliseconds; generous, because the machine may be busy.
PATIENCE = 120_000
expect.set_options(timeout=30_000)
# Strings that a page must show as text.
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "--><img src=x onerror=alert(1)>",
    "\u2028\u2029'\"`${alert(1)}",
    "<!--<script>",
    "]]><svg/onload=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium; the test is skipped where there is none."""
    if not CHROMIUM.exists():
        pytest.skip("needs Chromium: apt-get install chromium")
    quiet = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
    with sync_playwright() as playwright:
        args = [*quiet, "--no-sandbox", "--disable-component-update", "--disable-sync"]
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=args)
        yield browser
        browser.close()


class Visit:
    """A page opened from its file, with its dialogs, console warnings, errors and requests."""

    def __init__(self, browser: Browser, file: Path, before: str = "", ready: str = "html[data-ready]", **context):
        """Open the page; ``before`` is a script that runs first."""
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.add_init_script(before or ";")
        self.page.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("console", lambda line: line.type in ("error", "warning") and self.complaints.append(line.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector(ready, state="attached")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def panel(self, label: str) -> tuple[str, str, str]:
        frame = self.page.locator(".frame", has_text=label)
        image = frame.locator("img")
        return image.get_attribute("src"), image.get_attribute("alt"), frame.locator(".rmse").inner_text()


class Guarded(Visit):
    """A visit that fails on elements that no page of ours has, and on what the page complains about or asks for."""

    def assert_quiet(self) -> None:
        scripts = "body script:not(body > script:last-child, .frames script)"
        strange = f"{scripts}, [onerror], [onload], a[href^=javascript], svg a, img:not([alt])"
        assert self.complaints == []
        assert self.page.locator(strange).count() == 0
        assert [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))] == []
