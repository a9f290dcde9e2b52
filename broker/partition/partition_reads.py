"""The calls that read entries of a partition's log, and maintenance on request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition import messages as m
from velaray.broker.partition import remote_ids
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.sealing import SHOWN_BY_CONSUMERS, Sealing, refuse_sealed
from velaray.broker.subscription.messages import GetUnacked
from velaray.events.ids import Position
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RemoteError
from velaray.wire.messages import read_metadata, split_entry

SCAN_MOST = 10_000
"""The number of entries that one analysis of a backlog reads at most, as in Pulsar."""
_AT_ONCE = 500
_ANSWER_BYTES = 4 << 20
"""The payloads of an answer with several entries have at most so many bytes and one entry more."""


class Entries(Protocol):
    """What `described_entry` needs of a partition."""

    partition_index: int
    sealing: Sealing | None

    def position_of(self, offset: int) -> Position:
        """Return the position that clients see."""
        ...

    async def entry(self, offset: int) -> CachedEntry:
        """Return one entry, from memory or disk."""
        ...


class Log(remote_ids.Log, Entries, Protocol):
    """What reading entries needs of the partition's log."""

    async def offset_at_time(self, publish_ms: int) -> int:
        """Return the first offset whose publish time isn't before ``publish_ms``."""
        ...


class Subscriptions(Protocol):
    """What questions to subscriptions need of the table of subscriptions."""

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher."""


class Partition(Protocol):
    """What these calls need of a partition."""

    topic: str
    runtime: Runtime[PartitionState]
    maintenance: Maintenance

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


async def described_entry(partition: Entries, offset: int) -> m.Entry:
    """The entry at ``offset``: its id, its metadata and its payload, as they are stored.

    Raises `RemoteError` (NOT_ALLOWED) if the topic's messages can be erased.
    """
    refuse_sealed(partition.sealing, SHOWN_BY_CONSUMERS)
    entry = await partition.entry(offset)
    metadata, payload = split_entry(entry.data)
    position = partition.position_of(offset)
    return {
        "id": [position.ledger_id, position.entry_id, partition.partition_index],
        "metadata": metadata.SerializeToString(),
        "payload": bytes(payload),
        "messages": entry.messages,
        "publish_time": read_metadata(entry.data).publish_time,
    }


async def entry_at(partition: Partition, request: m.EntryAt) -> m.Entry:
    """The entry at ``position``. Raises `RemoteError` (NOT_FOUND) if there is none."""
    position = Position(*request.position)
    try:
        offset = partition.runtime.state.table.offset_of(position)
        if offset < partition.log.end_offset:
            return await described_entry(partition.log, offset)
    except NoSuchEntryError as error:
        raise RemoteError(Reason.NOT_FOUND, str(error)) from error
    raise RemoteError(Reason.NOT_FOUND, f"{partition.topic} has no entry {position}")


async def nth_entry(partition: Partition, request: m.NthEntry) -> m.Entry | None:
    """The ``number``-th (from 1) entry, counted from the oldest one or (``latest``) back from the
    newest one; the last one in that direction if there are fewer. None for an empty log."""
    table, end = partition.runtime.state.table, partition.log.end_offset
    runs = list(table.runs(table.first_offset, end))
    count = sum(run.entries for run in runs)
    if not count:
        return None
    steps = min(request.number, count) - 1
    steps = count - 1 - steps if request.latest else steps
    for run in runs:
        if steps < run.entries:
            offset = table.offset_of(Position(run.ledger_id, run.first_entry + steps))
            return await described_entry(partition.log, offset)
        steps -= run.entries
    raise AssertionError("the runs hold fewer entries than their counts say")


async def entries_before(partition: Partition, request: m.EntriesBefore) -> list[m.Entry]:
    """The entries before ``position`` (None: all), newest first, ``most`` or fewer: the payloads of
    an answer have a limit. Empty only if there are none."""
    table, end = partition.runtime.state.table, partition.log.end_offset
    if request.position is not None:
        end = remote_ids.at_or_after(partition.log, Position(*request.position))
    found: list[m.Entry] = []
    size = 0
    for run in reversed(list(table.runs(table.first_offset, end))):
        for number in reversed(range(run.first_entry, run.first_entry + run.entries)):
            if len(found) == request.most or size >= _ANSWER_BYTES:
                return found
            offset = table.offset_of(Position(run.ledger_id, number))
            found.append(await described_entry(partition.log, offset))
            size += len(found[-1]["payload"])
    return found


async def id_at_time(partition: Partition, request: m.IdAtTime) -> m.Id | None:
    """The id of the first entry that was published at ``time_ms`` or later; None if there is
    none."""
    offset = await partition.log.offset_at_time(request.time_ms)
    if offset >= partition.log.end_offset:
        return None
    position = partition.log.position_of(offset)
    return [position.ledger_id, position.entry_id, partition.log.partition_index]


async def backlog_size(partition: Partition, request: m.BacklogSize) -> int:
    """The approximate number of bytes from ``position`` on."""
    offset = remote_ids.at_or_after(partition.log, Position(*request.position))
    return partition.maintenance.backlog.bytes_from(offset)


async def analyze_backlog(partition: Partition, request: m.AnalyzeBacklog) -> m.Backlog:
    """Count a subscription's unacknowledged entries and messages by reading them.

    The count starts at ``position``, if it is given. ``complete`` is false if the limit of one
    analysis was reached.
    """
    name, given = request.name, request.position
    if not await partition.runtime.read(lambda state: name in state.subscriptions):
        raise RemoteError(Reason.NOT_FOUND, f"{partition.topic} has no subscription {name!r}")
    first = 0 if given is None else remote_ids.at_or_after(partition.log, Position(*given))
    entries, messages = 0, 0
    while entries < SCAN_MOST:
        wanted = GetUnacked(first, _AT_ONCE, partition.log.end_offset)
        flat = await partition.subscriptions.ask_subscription(name, wanted)
        offsets = [at for span in map(range, flat[::2], flat[1::2]) for at in span]
        for offset in offsets:
            entries, messages = entries + 1, messages + (await partition.log.entry(offset)).messages
        if len(offsets) < _AT_ONCE:
            return {"entries": entries, "messages": messages, "complete": True}
        first = offsets[-1] + 1
    return {"entries": entries, "messages": messages, "complete": False}


async def maintenance(partition: Partition, request: m.Upkeep) -> None:
    """Run one round of maintenance: expiry, quotas, trimming."""
    await partition.maintenance.once()


HANDLERS: dict[type[Message], Callable[[Partition, Any], Awaitable[Any]]] = {
    m.EntryAt: entry_at,
    m.NthEntry: nth_entry,
    m.EntriesBefore: entries_before,
    m.IdAtTime: id_at_time,
    m.BacklogSize: backlog_size,
    m.AnalyzeBacklog: analyze_backlog,
    m.Upkeep: maintenance,
}
