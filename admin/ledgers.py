"""Routes of the admin interface for ledgers: the audit, dead letters, single ledgers.

All of them are velaray's own. Every user of the admin interface may enqueue the deletion of orphans
and retry dead letters: these never delete a ledger that a manifest lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from velaray.admin.binding import Route, body_of
from velaray.admin.http import (
    AdminError,
    actor_system_of,
    answer,
    number_in_path,
)
from velaray.broker.garbage_collection.audit_run import audit_ledgers, describe_ledger, repair
from velaray.broker.garbage_collection.deletion_backlog import (
    Waiting,
    dead_letters,
    described,
    forget,
    take_up,
)
from velaray.broker.garbage_collection.ledger_audit import LedgerAudit, State
from velaray.client.admin import ledgers as operations

SHOWN = 1000
"""Limit of named ledgers of each state that needs attention."""


def _told(audit: LedgerAudit) -> dict[str, Any]:
    named = {}
    for state in (State.ORPHAN, State.MISSING, State.DEAD, State.PENDING, State.CREATING):
        named[str(state)] = [
            {"journal": each.journal, "ledgerId": each.ledger_id, "bytes": each.bytes}
            for each in audit.of(state)[:SHOWN]
        ]
    unread = [{"journal": each.journal, "why": each.why} for each in audit.unread]
    told = {"totals": audit.totals(), "kinds": audit.kinds(), "ledgers": named}
    return {**told, "unreadable": unread}


async def audit(request: web.Request) -> web.Response:
    """The ledger audit: totals by state and actor kind, and the ledgers that need attention."""
    return answer(_told(await audit_ledgers(actor_system_of(request))))


async def repair_orphans(request: web.Request) -> web.Response:
    """The ledger audit; the deletion of the orphans that it finds is enqueued."""
    actor_system = actor_system_of(request)
    found = await audit_ledgers(actor_system)
    enqueued = await repair(actor_system, found.of(State.ORPHAN))
    return answer({**_told(found), "announced": enqueued})


async def describe(request: web.Request) -> web.Response:
    """The location, owner and planned deletion of a ledger."""
    return answer(
        await describe_ledger(actor_system_of(request), number_in_path(request, "ledger"))
    )


async def list_dead(request: web.Request) -> web.Response:
    """The unresolved dead letters."""
    return answer([described(each) async for each in dead_letters(actor_system_of(request))])


async def _wanted(request: web.Request) -> Sequence[Waiting]:
    """The dead letters ``ids`` of the body; all if it is absent. Raises `AdminError`."""
    body = body_of(request)
    found = [each async for each in dead_letters(actor_system_of(request))]
    if "ids" not in body:
        return found
    known = {described(each)["id"]: each for each in found}
    ids = body["ids"]
    for each in ids:
        if each not in known:
            raise AdminError(404, f"there is no dead letter {each[:80]!r}")
    return [known[each] for each in dict.fromkeys(ids)]


async def retry(request: web.Request) -> web.Response:
    """Retry dead letters, with up to ten attempts each as for any event."""
    dead_letters = await _wanted(request)
    await take_up(actor_system_of(request), dead_letters)
    return answer({"retried": len(dead_letters)})


async def forget_dead(request: web.Request) -> web.Response:
    """Remove dead letters from the list. The audit reports their ledgers, if stored, as orphans."""
    dead_letters = await _wanted(request)
    await forget(actor_system_of(request), dead_letters)
    return answer({"forgotten": len(dead_letters)})


ROUTES: tuple[Route, ...] = (
    Route(operations.AUDIT, audit),
    Route(operations.REPAIR, repair_orphans),
    Route(operations.DEAD, list_dead),
    Route(operations.RETRY_DEAD, retry),
    Route(operations.FORGET_DEAD, forget_dead),
    Route(operations.GET, describe),
)
