"""The rules of every page: tokens, forms, other sites, errors and headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import web

from velaray.admin.authorisation import viewers_refusal
from velaray.admin.callers import check_host, check_page
from velaray.admin.http import AdminError as Refused
from velaray.admin.http import Handler, identify
from velaray.client.admin.errors import AdminError
from velaray.console.streams import PROBLEM, follow, is_stream
from velaray.console.visit import FormError, Visit, cookie_name, link
from velaray.events.ids import InvalidMessageIdError, InvalidNameError
from velaray.topology.auth import AuthenticationFailed

SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every page: nothing from elsewhere, no inline scripts or styles, no frames."""

Page = Callable[[Visit], Awaitable[web.Response]]


class Outcome(NamedTuple):
    """The outcome of a change: where the browser goes, and what it shows there."""

    path: str
    text: str


class Choice(NamedTuple):
    """A field of a question with the values that it may have, each with its text."""

    name: str
    label: str
    options: tuple[tuple[str, str], ...]


def ask(
    visit: Visit,
    question: str,
    effect: str,
    fields: dict[str, str],
    button: str,
    back: str,
    choice: Choice | None = None,
) -> web.Response:
    """The question before something is destroyed. ``effect`` says what would be lost. The form is
    sent to the path of the question, with ``fields``."""
    return visit.render(
        "question.html",
        question=question,
        effect=effect,
        fields=fields,
        button=button,
        back=back,
        choice=choice,
    )


Change = Callable[[Visit], Awaitable[Outcome]]


def page(show: Page, *, public: bool = False) -> Handler:
    """The handler of a page; ``public``: it is shown without a token."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if is_stream(request):
            return await follow(request, lambda: _answered(request, show, public), SECURITY)
        return await _answered(request, show, public)

    return handle


def change(apply: Change) -> Handler:
    """The handler of a form that changes something. A refusal is shown on the page of the form."""

    async def show(visit: Visit) -> web.Response:
        if not visit.may_change:
            raise Refused(403, viewers_refusal(visit.role))
        try:
            outcome = await apply(visit)
        except (AdminError, FormError, InvalidNameError, InvalidMessageIdError) as error:
            return visit.redirect(_back(visit), str(error), failed=True)
        finally:
            visit.surveys.forget()
        return visit.redirect(*outcome)

    return page(show)


def _back(visit: Visit) -> str:
    """The page of the form, by its field ``back``: always a path of this server."""
    back = visit.text("back", "/")
    return back if back.startswith("/") and not back.startswith(("//", "/\\")) else "/"


async def _answered(request: web.Request, show: Page, public: bool) -> web.Response:
    visit = Visit.of(request)
    response: web.Response
    try:
        check_host(request)
    except Refused as error:  # a name that another site chose: it gets no page
        return web.Response(status=error.status, text=str(error), headers=SECURITY)
    try:
        if request.method == "POST":
            check_page(request)
            await visit.read_form()
        else:
            _check_reading(request)
        if not public:
            visit.role = (await identify(request, visit.token)).role
        response = await show(visit)
    except AuthenticationFailed as error:
        response = _to_login(visit, str(error))
    except Refused as error:
        response = _problem(visit, error.status, str(error))
    except AdminError as error:
        response = _problem(visit, error.status or 503, str(error))
    except FormError as error:
        response = _problem(visit, 400, str(error))
    except (InvalidNameError, InvalidMessageIdError) as error:
        response = _problem(visit, 422, str(error))
    response.headers.update(SECURITY)
    return response


def _check_reading(request: web.Request) -> None:
    """Allow links from other sites to a page, and refuse every other use of it by other sites.

    Reading changes nothing, and other sites can neither read nor frame the page.
    """
    is_link = request.headers.get("Sec-Fetch-Mode") == "navigate"
    if not (is_link and request.headers.get("Sec-Fetch-Dest") == "document"):
        check_page(request)


def _to_login(visit: Visit, reason: str) -> web.Response:
    """Send the browser to the login page, and from there back to the page."""
    wanted = str(visit.request.rel_url) if visit.request.method == "GET" else "/"
    login = link("login", next="" if wanted == "/" else wanted)
    response = visit.redirect(login, reason if visit.token else "", failed=True)
    response.del_cookie(cookie_name(visit.request, "token"), path="/")
    return response


def _problem(visit: Visit, status: int, text: str) -> web.Response:
    response = visit.render("problem.html", status=status, problem=text)
    response[PROBLEM] = text
    return response
