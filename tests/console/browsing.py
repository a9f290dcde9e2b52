"""Chromium for the tests of the console, driven by Playwright."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
IN_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="there is no Chromium, or no Playwright: apt-get install chromium",
)
"""Marks tests that are skipped without Chromium or Playwright."""
AXE = (Path(__file__).parent / "axe.min.js").read_text("utf-8")
WIDTHS = {"wide": {"width": 1280, "height": 800}, "narrow": {"width": 390, "height": 844}}
LIMIT_MS = 60_000


@contextmanager
def started() -> Iterator[Any]:
    """Start Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page of the browser, which notes what goes wrong."""

    EXPECTED: tuple[str, ...] = ("404 (Not Found)",)
    """Texts of console messages that aren't faults."""

    def __init__(self, browser: Any, url: str, width: str = "wide", theme: str = "light") -> None:
        self._context = browser.new_context(viewport=WIDTHS[width], color_scheme=theme)
        self.page = self._context.new_page()
        self.page.set_default_timeout(LIMIT_MS)
        self.url = url
        self.faults: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def _note(self, message: Any) -> None:
        expected = any(text in message.text for text in self.EXPECTED)
        if message.type in ("error", "warning") and not expected:
            self.faults.append(f"{self.page.url}: {message.text}")

    def open(self, path: str) -> None:
        self.page.goto(self.url + path, wait_until="load")

    def serious(self) -> list[str]:
        """What axe finds that is serious or worse."""
        self.page.evaluate(AXE)
        found = self.page.evaluate("axe.run({resultTypes: ['violations']})")
        return [
            f"{self.page.url}: {each['id']}: {node['html'][:200]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"][:3]
        ]

    def close(self) -> None:
        self._context.close()
