"""Rules by which the admin interface refuses requests of web pages.

A web page can send requests to loopback ports of the machine that shows it. It can't omit the
headers that its browser adds, send JSON without a preflight request, or know a token. Pulsar's
tools, curl and scrapers send no such headers and need no configuration.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from velaray.admin.http import ACTOR_SYSTEM, AdminError, Handler
from velaray.topology.config import ClusterConfig, is_loopback

_OWN_SITES = ("same-origin", "none")
"""Values for an address that the user typed, and for a page of this server."""


@web.middleware
async def refuse_foreign_callers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 403 to web pages of other sites and 415 to bodies that aren't JSON.

    Raises `AdminError`.
    """
    check_host(request)
    check_page(request)
    if request.match_info.http_exception is None:
        _check_body(request)
    return await handler(request)


def check_host(request: web.Request) -> None:
    """Refuse host names that the operator didn't configure.

    A site's own name may resolve to this machine (DNS rebinding), which makes its pages
    same-origin. A valid token replaces the check, and so does TLS: browsers check the certificate.
    """
    config = request.app[ACTOR_SYSTEM].config
    given = request.headers.get("Host")
    if config.auth is not None or request.secure or given is None:  # every browser sends the host
        return
    name = _hostname(f"//{given}")
    if not is_loopback(name) and name not in _known_names(config):
        raise AdminError(
            403,
            f"Host {given[:200]!r} is not a name of this cluster: use {config.listen_host} or "
            "localhost; or start velaray with a --listener of that name, or with tokens",
        )


def check_page(request: web.Request) -> None:
    """Refuse requests that a page of another origin sends."""
    origin = request.headers.get("Origin")
    host = request.headers.get("Host", "")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise AdminError(403, f"requests from web pages are refused: Origin {origin[:200]!r}")
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site not in _OWN_SITES:
        raise AdminError(403, f"requests from web pages are refused: Sec-Fetch-Site {site[:40]!r}")


def _check_body(request: web.Request) -> None:
    """Refuse bodies without a type or of a type that pages may send without a preflight request."""
    if not request.body_exists:
        return
    given = request.headers.get("Content-Type", "")
    kind = given.partition(";")[0].strip().lower()
    if not (kind.startswith("application/") and kind.endswith(("/json", "+json"))):
        raise AdminError(
            415, f"send the body as Content-Type: application/json, not {given[:200]!r}"
        )


def _known_names(config: ClusterConfig) -> set[str]:
    """The host names that the operator configured for this cluster."""
    urls = [url for listed in config.listeners.values() for url in listed.split(",")]
    own = (config.listen_host, *config.advertised)
    return {*map(str.lower, own), *map(_hostname, urls)}


def _hostname(url: str) -> str:
    """The host name of a URL in lower case; "" if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
