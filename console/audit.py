"""The audit log: the changes that were made through the admin interface, filtered and paged."""

from __future__ import annotations

from datetime import UTC, datetime

from aiohttp import web

from velaray.console.pages import page
from velaray.console.parts import part
from velaray.console.visit import FormError, Visit

ROWS = 50


def _since_ms(text: str) -> int:
    """A date and time (UTC unless it says otherwise) in milliseconds; "" is 0. Raises
    `FormError`."""
    if not text:
        return 0
    try:
        found = datetime.fromisoformat(text)
        return max(int(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1000), 0)
    except (ValueError, OverflowError) as error:
        raise FormError(f"since must be a date and time, not {text[:40]!r}") from error


async def show(visit: Visit) -> web.Response:
    """One page of the changes, newest first."""
    filters = {name: visit.text(name) for name in ("role", "operation", "target")}
    since = visit.text("since")
    found = await part(
        visit.admin.audit(
            since_ms=_since_ms(since),
            most=ROWS,
            page=visit.text("page"),
            **{name: text or None for name, text in filters.items()},
        )
    )
    return visit.render("audit.html", found=found, filters=filters, since=since)


ROUTES = (("GET", "/console/audit", page(show)),)
