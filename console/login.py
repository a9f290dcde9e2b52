"""The pages for a token, for its removal, and for the theme."""

from __future__ import annotations

from aiohttp import web

from velaray.admin.http import identify
from velaray.console.pages import page
from velaray.console.visit import THEMES, FormError, Visit, cookie_name, link
from velaray.topology.auth import AuthenticationFailed


def _next(visit: Visit) -> str:
    """The page that was asked for: always a path of this server."""
    found = visit.text("next", "/")
    return found if found.startswith("/") and not found.startswith(("//", "/\\")) else "/"


async def show(visit: Visit) -> web.Response:
    """The form for the token."""
    return visit.render("login.html", next=_next(visit))


async def log_in(visit: Visit) -> web.Response:
    """Keep the token in a cookie of this browser session, if it is valid."""
    token = visit.text("token")
    try:
        await identify(visit.request, token)
    except AuthenticationFailed as error:
        return visit.redirect(link("login", next=_next(visit)), str(error), failed=True)
    response = visit.redirect(_next(visit))
    visit.set_cookie(response, "token", token)
    return response


async def log_out(visit: Visit) -> web.Response:
    """Remove the token from the browser."""
    response = visit.redirect(link("login"), "You are logged out")
    response.del_cookie(cookie_name(visit.request, "token"), path="/")
    return response


async def choose_theme(visit: Visit) -> web.Response:
    """Keep the theme. It is no change of the cluster: everybody may."""
    theme = visit.text("theme")
    if theme not in THEMES:
        raise FormError(f"there is no theme {theme[:40]!r}")
    response = visit.redirect(_next(visit))
    visit.set_theme(response, theme)
    return response


ROUTES = (
    ("GET", "/console/login", page(show, public=True)),
    ("POST", "/console/login", page(log_in, public=True)),
    ("POST", "/console/logout", page(log_out, public=True)),
    ("POST", "/console/theme", page(choose_theme, public=True)),
)
