"""A page of the browser whose every answer is checked, for tests that press what it shows."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.console.browsing import Tab
from tests.support.waiting import wait_until

Request = tuple[str, str]
"""The method and the path of a request."""
_UNREADABLE = re.compile(r"Traceback|object at 0x|[A-Za-z]Error\b|[0-9a-f]{24}|^\s*$")
"""Texts for programmers: tracebacks, names of errors, ids of actors of Ray; and none."""


class Refused(Exception):
    """The console said why something didn't work."""


class Window(Tab):
    """A page of the browser whose every answer is checked."""

    # Chromium reports each answer of these kinds; the page must say what it means.
    EXPECTED = ("404 (Not Found)", "503 (Service Unavailable)")

    def __init__(self, browser: Any, url: str, width: str = "wide", theme: str = "light") -> None:
        super().__init__(browser, url, width, theme)
        self.refusals: list[str] = []
        self.asked: set[Request] = set()
        self.page.on("request", lambda each: self.asked.add((each.method, urlsplit(each.url).path)))

    def open(self, path: str, **query: str) -> None:
        """Open a page. Raises `Refused` if it says that it can't be shown."""
        super().open(f"{path}?{urlencode(query)}" if query else path)
        self.check()

    def press(self, form: str, which: str = "", **fields: str) -> None:
        """Fill in a form and press its button. ``which`` selects one of several forms with the same
        address. Raises `Refused`."""
        found = self.page.locator(f'main form[action="{form}"]{which}').first
        self._need(found)
        for name, value in fields.items():
            self._fill(found.locator(f'[name="{name}"]').first, value)
        with self.page.expect_navigation():
            found.locator("button").first.click()
        self.check()

    def follow(self, link: str) -> None:
        """Press a link whose address contains a text. Raises `Refused`."""
        found = self.page.locator(f'main a[href*="{link}"]').first
        self._need(found)
        with self.page.expect_navigation():
            found.click()
        self.check()

    def done(self, text: str) -> None:
        """Check that the last change succeeded, and says so."""
        assert text in self.page.locator(".flash.good").first.inner_text()

    def shows(self, text: str) -> None:
        """Check that the page has a text, after an update if it waits for one. Raises `Refused` if
        a part of it is away."""
        wait_until(lambda: self._has(text) or not self._waits())
        if not self._has(text):
            self._refuse(self._away())

    def _has(self, text: str) -> bool:
        return text in self.page.locator("main").inner_text()

    def _waits(self) -> bool:
        return any("the next update" in reason for reason in self._away())

    def _away(self) -> list[str]:
        found: list[str] = self.page.locator(".away").all_inner_texts()
        return found

    def check(self) -> None:
        """Raise `Refused` if the page says that something didn't work."""
        assert self.page.locator("h1").count() == 1, self.page.content()[:2000]
        refusals = self.page.locator(".flash.bad").all_inner_texts()
        if refusals:
            self._refuse(refusals)

    def _need(self, found: Any) -> None:
        if found.count() == 0:  # what it belongs to is away, or isn't there any more
            told = self.page.locator(".away, main p:text-matches('^(No|There is no) ')")
            self._refuse(told.all_inner_texts())

    def _refuse(self, reasons: list[str]) -> None:
        assert reasons, f"{self.page.url} says nothing: {self.page.content()[:3000]}"
        for reason in reasons:
            assert not _UNREADABLE.search(reason), reason
        self.refusals += reasons
        raise Refused("; ".join(reasons))

    def _fill(self, field: Any, value: str) -> None:
        if field.evaluate("each => each.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
