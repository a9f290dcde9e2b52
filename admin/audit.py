"""Route of the admin interface for the audit log, which the operations themselves write.

It is velaray's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from velaray.admin.binding import Route, given
from velaray.admin.http import AdminError, actor_system_of, answer
from velaray.broker.audit.reader import InvalidPageError, Page, read_page
from velaray.client.admin import audit as operations

MOST_RECORDS = 1000
"""The most records of an answer."""


async def list_changes(request: web.Request) -> web.Response:
    """The changes that were made through the admin interface, newest first, page by page.

    An answer has fewer records than ``most`` if many others had to be read; ``next`` is null at the
    end.
    """
    try:
        page = Page.of(given(request, operations.PAGE))
    except InvalidPageError as error:
        raise AdminError(400, str(error)) from error
    most = min(max(given(request, operations.MOST), 1), MOST_RECORDS)
    since_ms = given(request, operations.SINCE)
    found, following = await read_page(
        actor_system_of(request), page, _wanted(request), since_ms, most
    )
    return answer({"records": found, "next": None if following is None else following.text()})


def _wanted(request: web.Request) -> Callable[[dict[str, Any]], bool]:
    role = given(request, operations.ROLE)
    operation, target = given(request, operations.OPERATION), given(request, operations.TARGET)

    def wanted(record: dict[str, Any]) -> bool:
        return (
            (role is None or role in (record["role"], record["originalRole"]))
            and (operation is None or operation.lower() in record["operation"].lower())
            and (target is None or target in record["target"])
        )

    return wanted


ROUTES: tuple[Route, ...] = (Route(operations.LIST, list_changes),)
