"""A visitor of the console without a browser: requests with cookies, and forms of pages."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from html import unescape
from http.cookiejar import CookieJar
from urllib.parse import urlencode

_CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')
_TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True)
class Shown:
    """An answer: ``text`` is the page without tags."""

    status: int
    html: str
    headers: dict[str, str]
    url: str

    @property
    def text(self) -> str:
        return " ".join(unescape(_TAG.sub(" ", self.html)).split())


class Visitor:
    """Keeps cookies as a browser does; follows redirects."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cookies = CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def get(self, path: str, **headers: str) -> Shown:
        return self._open(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Shown:
        """Send a form, with the token that the pages of this session have."""
        token = _CSRF.search(self.get("/console/login").html)
        assert token is not None
        return self.send(path, {"csrf": token[1], **fields}, **headers)

    def send(self, path: str, fields: dict[str, str], **headers: str) -> Shown:
        """Send a form as it is."""
        body = urlencode(fields).encode()
        return self._open(urllib.request.Request(self.url + path, body, headers))

    def _open(self, request: urllib.request.Request) -> Shown:
        try:
            with self._opener.open(request, timeout=30) as answer:
                return _shown(answer)
        except urllib.error.HTTPError as error:
            return _shown(error)


def _shown(answer: object) -> Shown:
    headers = {name.lower(): value for name, value in answer.headers.items()}  # type: ignore[attr-defined]
    text = answer.read().decode()  # type: ignore[attr-defined]
    return Shown(answer.status, text, headers, answer.url)  # type: ignore[attr-defined]
