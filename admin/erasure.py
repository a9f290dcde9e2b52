"""The route of the admin interface that erases the messages of a key or a subject."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from velaray.actors.catalog.policies import ERASABLE, NOT_ERASABLE
from velaray.admin.binding import Route
from velaray.admin.http import (
    AdminError,
    actor_system_of,
    answer,
    ask_catalog,
    json_body,
    users_namespace_of,
)
from velaray.broker.catalog import messages as m
from velaray.client.admin import namespaces as operations


async def _subject(request: web.Request) -> tuple[str, str]:
    """The namespace and the key or subject to erase. Raises `AdminError` if the body isn't one, or
    if messages of the namespace can't be erased by it."""
    body: Any = await json_body(request)
    given = [*body.items()] if isinstance(body, dict) else []
    if len(given) != 1 or given[0][0] not in ("key", "subject") or not isinstance(given[0][1], str):
        raise AdminError(400, 'the body must be {"key": TEXT} or {"subject": TEXT}')
    (what, subject), namespace = given[0], users_namespace_of(request)
    found = await ask_catalog(request, m.Policies(namespace=namespace, effective=[ERASABLE]))
    if found[ERASABLE] == NOT_ERASABLE:
        problem = (
            f"messages of namespace {namespace} can't be erased: its policy {ERASABLE} is none"
        )
        raise AdminError(409, problem)
    if found[ERASABLE] != what:
        by = found[ERASABLE]
        raise AdminError(
            409, f"messages of namespace {namespace} are erased by {by}, not by {what}"
        )
    return namespace, subject


async def digest_of(request: web.Request) -> str:
    """The HMAC of what a request would erase, for the audit log. Raises as `erase`."""
    namespace, subject = await _subject(request)
    return await actor_system_of(request).needed_keyring().digest(namespace, subject)


async def erase(request: web.Request) -> web.Response:
    """Erase all messages of a key, or of a subject, in the namespace: destroy their data key. The
    answer comes when no process can use it any more. ``existed`` is false if the namespace never
    had such a message."""
    namespace, subject = await _subject(request)
    erasure = await actor_system_of(request).needed_keyring().erase(namespace, subject)
    return answer({"digest": erasure.digest, "existed": erasure.existed})


ROUTES: tuple[Route, ...] = (Route(operations.ERASE, erase),)
