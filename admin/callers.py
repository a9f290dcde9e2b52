"""Which requests the admin interface refuses by where they come from.

A web page can send requests to loopback ports of the machine that shows it. What a page can't do
is leave out the headers that its browser adds, send JSON without asking first, or know a token.
Pulsar's tools, curl and scrapers send no such headers and are served without any set-up.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from velaray.admin.http import ACTOR_SYSTEM, AdminError, Handler
from velaray.topology.config import ClusterConfig, is_loopback

_OWN_SITES = ("same-origin", "none")
"""What browsers send for an address that the user typed, and for a page of this server."""


@web.middleware
async def refuse_foreign_callers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 403 to web pages of other sites and 415 to bodies that aren't JSON.

    Raises `AdminError`.
    """
    _check_host(request)
    _check_page(request)
    if request.match_info.http_exception is None:
        _check_body(request)
    return await handler(request)


def _check_host(request: web.Request) -> None:
    """Refuse names that the operator didn't give: a site's own name may lead to this machine (DNS
    rebinding), and its pages are of the same origin then. A token proves as much as a name."""
    config = request.app[ACTOR_SYSTEM].config
    given = request.headers.get("Host")
    if config.auth is not None or given is None:  # every browser names the host
        return
    name = _hostname(f"//{given}")
    if not is_loopback(name) and name not in _known_names(config):
        raise AdminError(
            403,
            f"Host {given[:200]!r} is not a name of this cluster: use {config.host} or localhost; "
            "or start velaray with a --listener of that name, or with tokens",
        )


def _check_page(request: web.Request) -> None:
    """Refuse what a page of another origin sends."""
    origin = request.headers.get("Origin")
    host = request.headers.get("Host", "")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise AdminError(403, f"requests of web pages are refused: Origin {origin[:200]!r}")
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site not in _OWN_SITES:
        raise AdminError(403, f"requests of web pages are refused: Sec-Fetch-Site {site[:40]!r}")


def _check_body(request: web.Request) -> None:
    """Refuse bodies of the types that pages may send without asking, and of none."""
    if not request.body_exists:
        return
    given = request.headers.get("Content-Type", "")
    kind = given.partition(";")[0].strip().lower()
    if not (kind.startswith("application/") and kind.endswith(("/json", "+json"))):
        raise AdminError(
            415, f"send the body as Content-Type: application/json, not {given[:200]!r}"
        )


def _known_names(config: ClusterConfig) -> set[str]:
    """The names by which the operator makes this cluster known, besides loopback."""
    urls = [url for listed in config.listeners.values() for url in listed.split(",")]
    return {config.host.lower(), *map(_hostname, urls)}


def _hostname(url: str) -> str:
    """In lower case; "" if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
