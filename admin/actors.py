"""Routes of the admin interface for journals: past states and events of actors.

Journals are read from the store. No actor is called, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from aiohttp import web

from velaray.actors.machine import Reason
from velaray.actors.subscription.undoing import move_of
from velaray.admin.binding import Route, given
from velaray.admin.http import AdminError, actor_system_of, answer
from velaray.broker.actor_states import describe, machine_of
from velaray.broker.history import NoHistory, PointInTime, replayed_to
from velaray.client.admin import actors as operations
from velaray.events.codec import decode
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import NotStored, UnsafeKey
from velaray.journal.replay import load_manifest, replay
from velaray.journal.store import LedgerStore
from velaray.topology.rpc import RemoteError

MOST_EVENTS = 1000
"""The most events of an answer."""

ValueT = TypeVar("ValueT")


async def list_actors(request: web.Request) -> web.Response:
    """The keys of the actors that have a journal."""
    kinds = {kind.value for kind in ActorKind}
    under = given(request, operations.UNDER).strip("/")
    try:
        journals = await actor_system_of(request).store.list_journals(under)
    except UnsafeKey as error:
        raise AdminError(400, f"under: {error}") from error
    return answer(sorted(text for text in journals if text.split("/")[0] in kinds))


async def _found(reading: Awaitable[ValueT]) -> ValueT:
    """What is read. Raises `RemoteError` (NOT_FOUND) if the journal doesn't have it."""
    try:
        return await reading
    except (NoHistory, NotStored) as error:
        raise RemoteError(Reason.NOT_FOUND, str(error)) from error


async def _first_event(store: LedgerStore, key: ActorKey) -> int:
    ledgers = (await load_manifest(store, key.text())).ledgers
    return ledgers[0].first_sequence if ledgers else 0


async def state(request: web.Request) -> web.Response:
    """The state of an actor after an event or at a time; by default the newest stored one."""
    event, at_ms = given(request, operations.AFTER_EVENT), given(request, operations.AT_TIME)
    if event is not None and at_ms is not None:
        raise AdminError(400, "give event or time, not both")
    store, key = actor_system_of(request).store, ActorKey.parse(request.match_info["actor"])
    machine = machine_of(key)
    newest = await _found(replayed_to(store, key, PointInTime(), machine))
    past = newest
    if event is not None or at_ms is not None:
        past = await _found(replayed_to(store, key, PointInTime(event, at_ms), machine))
    return answer(
        {
            "actor": key.text(),
            "event": past.sequence,
            "atMs": past.at_ms or None,
            "firstEvent": await _first_event(store, key),
            "lastEvent": newest.sequence,
            "state": describe(past.state),
        }
    )


async def events(request: web.Request) -> web.Response:
    """The events of an actor's journal from a number on: numbers, times and names, and for a move
    of a subscription's cursor by command, which one."""
    first = given(request, operations.FIRST)
    most = min(given(request, operations.MOST_EVENTS), MOST_EVENTS)
    store, key = actor_system_of(request).store, ActorKey.parse(request.match_info["actor"])
    return answer(await _found(_events(store, key.text(), first, most)))


async def _events(store: LedgerStore, key: str, first: int, most: int) -> list[dict[str, object]]:
    start = None
    for info in (await load_manifest(store, key)).ledgers:
        if info.first_sequence <= first or start is None:
            start = info.ledger_id
    found: list[dict[str, object]] = []
    async for record in replay(store, key, start):
        if len(found) >= most:
            break
        if record.sequence >= first:
            event = decode(bytes(record.event))
            told = {"name": type(event).__name__, "move": move_of(event)}
            found.append({"event": record.sequence, "atMs": record.at_ms, **told})
    return found


ROUTES: tuple[Route, ...] = (
    Route(operations.LIST, list_actors),
    Route(operations.STATE, state),
    Route(operations.EVENTS, events),
)
