"""Past versions of a topic's schema, recomputed from the registry's journal."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from velaray.actors.machine import Reason
from velaray.actors.schema_registry.machine import SchemaRegistryMachine
from velaray.broker.history import NoHistory, PointInTime, replayed_to
from velaray.broker.schema_registry.schema_registry_actor import described
from velaray.events.ids import ActorKey
from velaray.journal.store import LedgerStore
from velaray.topology.rpc import RemoteError


async def versions_at(
    store: LedgerStore, key: ActorKey, point_in_time: PointInTime, *, gone: bool
) -> list[dict[str, Any]]:
    """The versions that were live at a point in time; ``gone``: also deleted ones, and the
    deletions.

    Every version is kept with its time, so any point in time is valid. Raises `RemoteError`
    (NOT_FOUND) if an event isn't kept or doesn't exist yet; `NotStored`, `CorruptJournal`.
    """
    event = PointInTime(sequence=point_in_time.sequence)
    try:
        past = await replayed_to(store, key, event, SchemaRegistryMachine())
    except NoHistory as error:
        raise RemoteError(Reason.NOT_FOUND, str(error)) from error
    found = past.state.versions
    if point_in_time.at_ms is not None:
        until = point_in_time.at_ms
        found = list(takewhile(lambda each: each.at_ms <= until, found))
    live_from = max((each.number + 1 for each in found if each.info is None), default=0)
    return [described(each) for each in found[0 if gone else live_from :]]
