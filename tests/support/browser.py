"""Pages in a real browser: what they show, what they complain about, what they ask of the network."""

from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

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


class Visit:
    """A page opened from its file, with its dialogs, console warnings, errors and requests."""

    def __init__(self, browser: Browser, file: Path, ready: str = "html[data-ready]", **context):
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)  # milliseconds; generous, because the machine may be busy
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

    def assert_sound(self) -> None:
        """Fail on elements that no page of ours has, on what the page complains about or asks for, and on barriers."""
        scripts = "body script:not(body > script:last-child, .frames script)"
        strange = f"{scripts}, [onerror], [onload], a[href^=javascript], svg a, img:not([alt])"
        assert self.complaints == []
        assert self.page.locator(strange).count() == 0
        assert [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert [each["id"] for each in Axe().run(self.page).response["violations"]] == []

    def assert_fits(self) -> None:
        """Fail on a page that is sound and wider than the screen; names without end may be."""
        self.assert_sound()
        assert self.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
