"""One request for a page: its session, token and role, its fields, and the answer."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urlencode

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from velaray.admin.http import ACTOR_SYSTEM
from velaray.broker.session import SERVER_VERSION
from velaray.client.admin.admin import AdminCalls
from velaray.client.admin.calls import Asyncio
from velaray.client.admin.connection import AdminConnection
from velaray.console import formats
from velaray.console.in_process import BASE, InProcessTransport
from velaray.console.survey import SURVEYS, Surveys

SERVER = web.AppKey("server", web.Server)
"""The server of the REST interface, which answers calls in process."""
TEMPLATES = web.AppKey("templates", Environment)

FLASH_S = 60
"""How long the outcome of a change waits for the page that shows it."""
_YEAR_S = 365 * 24 * 3600
THEMES = ("auto", "light", "dark")


class FormError(ValueError):
    """A field of a form or of a query isn't valid; the text is for the visitor."""


def templates() -> Environment:
    """The templates; all values are escaped."""
    made = Environment(
        loader=PackageLoader("velaray.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= formats.FILTERS
    made.globals["link"] = link
    return made


def link(page: str, /, **query: Any) -> str:
    """The path of a page with its query; parameters that are None or "" are left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    path = f"/console/{page}" if page else "/"
    return f"{path}?{urlencode(given)}" if given else path


@dataclass
class Visit:
    """A request for a page. ``role`` is that of the token; "" where tokens are off."""

    request: web.Request
    session: str
    token: str
    role: str = ""
    form: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: web.Request) -> Visit:
        """The visit of this request, with a new session if its cookie is missing."""
        session = request.cookies.get(cookie_name(request, "session"), "")
        token = request.cookies.get(cookie_name(request, "token"), "")
        return cls(request, session or secrets.token_hex(16), token)

    # -- the cluster -------------------------------------------------------------------

    @cached_property
    def connection(self) -> AdminConnection:
        """Sends requests to the REST interface with the visitor's token."""
        transport = InProcessTransport(self.request.app[SERVER], self.request)
        return AdminConnection(BASE, transport, self.token or None, None)

    @cached_property
    def admin(self) -> AdminCalls[Asyncio]:
        """The operations of the REST interface, called with the visitor's token."""
        return AdminCalls(self.connection, Asyncio)

    @property
    def surveys(self) -> Surveys:
        """The surveys of running actors that visits share."""
        return self.request.app[SURVEYS]

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.request.app[ACTOR_SYSTEM].config.name

    @property
    def may_change(self) -> bool:
        """Whether the visitor may change anything: everybody but viewers. What others may change
        is decided for each change."""
        roles = self.request.app[ACTOR_SYSTEM].config.roles
        return roles is None or self.role not in roles.viewers

    # -- what the visitor sends --------------------------------------------------------

    def text(self, name: str, default: str = "") -> str:
        """A parameter of the query or a field of the form, without white space around it."""
        return (self.form.get(name) or self.request.query.get(name, default)).strip()

    def needed(self, name: str) -> str:
        """As `text`. Raises `FormError` if it is missing or empty."""
        found = self.text(name)
        if not found:
            raise FormError(f"fill in {name}")
        return found

    def number(self, name: str, default: int = 0, most: int = 1 << 62) -> int:
        """A whole number, at least 0. Raises `FormError`."""
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
            raise FormError(f"{name} must be a whole number, not {text[:40]!r}")
        return int(text)

    @property
    def form_token(self) -> str:
        """The token that every form sends: it proves that this console made the form."""
        return hashlib.sha256(f"velaray console form:{self.session}".encode()).hexdigest()

    async def read_form(self) -> None:
        """Read the fields. Raises `FormError` without this session's token."""
        sent = await self.request.post()
        self.form = {name: value for name, value in sent.items() if isinstance(value, str)}
        if not hmac.compare_digest(self.form.get("csrf", "").encode(), self.form_token.encode()):
            raise FormError("the form is from another session: reload the page and send it again")

    # -- what the visitor gets ---------------------------------------------------------

    @property
    def theme(self) -> str:
        """The chosen theme; "auto" follows the browser."""
        found = self.request.cookies.get("velaray-theme", "auto")
        return found if found in THEMES else "auto"

    def render(self, template: str, /, *, status: int = 200, **values: Any) -> web.Response:
        """The page that a template makes of these values."""
        shown = {
            "visit": self,
            "cluster": self.cluster,
            "version": SERVER_VERSION,
            "may_change": self.may_change,
            "flash": self._flash(),
            "path": str(self.request.rel_url),
            "themes": THEMES,
            "needs_token": self.request.app[ACTOR_SYSTEM].config.auth is not None,
        }
        text = self.request.app[TEMPLATES].get_template(template).render(shown | values)
        response = web.Response(text=text, content_type="text/html", status=status)
        response.del_cookie(cookie_name(self.request, "flash"))
        self.set_cookie(response, "session", self.session)
        return response

    def redirect(self, path: str, text: str = "", *, failed: bool = False) -> web.Response:
        """Send the browser to a page, which shows the outcome ``text`` of a change."""
        response = web.Response(status=303, headers={"Location": path})
        if text:
            told = json.dumps({"text": text[:1000], "failed": failed})
            self.set_cookie(response, "flash", quote(told, safe=""), FLASH_S)
        return response

    def set_cookie(
        self, response: web.Response, name: str, value: str, age_s: int | None = None
    ) -> None:
        """Set a cookie that scripts and other sites can't use."""
        response.set_cookie(
            cookie_name(self.request, name),
            value,
            httponly=True,
            samesite="Strict",
            secure=self.request.secure,
            max_age=age_s,
            path="/",
        )

    def set_theme(self, response: web.Response, theme: str) -> None:
        """Keep the chosen theme for a year."""
        response.set_cookie(
            "velaray-theme", theme, httponly=True, samesite="Strict", max_age=_YEAR_S, path="/"
        )

    def _flash(self) -> dict[str, Any] | None:
        text = self.request.cookies.get(cookie_name(self.request, "flash"), "")
        try:
            found = json.loads(unquote(text)) if text else None
        except ValueError:
            return None
        return found if isinstance(found, dict) and "text" in found else None


def cookie_name(request: web.Request, what: str) -> str:
    """The name of a cookie. Browsers don't separate cookies by port, so it has the port."""
    return f"velaray-{what}-{request.url.port or 0}"
