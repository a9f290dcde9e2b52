"""Past states of subscriptions, recomputed from journals.

Nothing is written, and no actor is called. Times are labels: a journal is read in the order in
which it was written, up to the first record with a later time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, NamedTuple

from velaray.actors.machine import Machine, StateT
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.subscription.cursor import mask_to_words
from velaray.actors.subscription.machine import SubscriptionMachine, SubscriptionState
from velaray.events.codec import decode
from velaray.events.events_pb2 import (
    ConsumerAttached,
    ConsumerDetached,
    EntriesAcked,
    EntryAppended,
    MarkDeleted,
)
from velaray.events.ids import EARLIEST, LATEST, ActorKey, ActorKind, Position, TopicName
from velaray.journal.errors import JournalError, NotStored
from velaray.journal.manifest import LedgerInfo
from velaray.journal.replay import checkpoint_of, load_manifest, replay
from velaray.journal.store import LedgerStore

_ENDLESS = 1 << 62
_LOOKED_BACK = 8
"""The number of a journal's ledgers that are searched for the last consumer."""
_EVENTS_AT_ONCE = 1000


class NoHistory(JournalError):
    """The journals don't reach back that far, or don't contain what was asked for."""


@dataclass(frozen=True, slots=True)
class PointInTime:
    """A point in time: after an event (``sequence``), or at a time (milliseconds since 1970); now
    if neither is set."""

    sequence: int | None = None
    at_ms: int | None = None

    def is_before(self, sequence: int, at_ms: int) -> bool:
        """Whether a record of this number and time is later."""
        if self.sequence is not None:
            return sequence > self.sequence
        return self.at_ms is not None and at_ms > self.at_ms


class Past(NamedTuple, Generic[StateT]):
    """The state after event ``sequence`` (written at ``at_ms``; 0: by an earlier ledger)."""

    sequence: int
    at_ms: int
    state: StateT


async def state_at(
    store: LedgerStore, key: ActorKey, point_in_time: PointInTime
) -> Past[SubscriptionState]:
    """`replayed_to` of a subscription."""
    return await replayed_to(store, key, point_in_time, SubscriptionMachine())


async def replayed_to(
    store: LedgerStore, key: ActorKey, point_in_time: PointInTime, machine: Machine[StateT]
) -> Past[StateT]:
    """The state of an actor with this ``machine`` at a point in time.

    Raises `NoHistory` before the first event that is kept, and if there is no event of that number
    yet; `NotStored` if the actor has no journal; `CorruptJournal`.
    """
    text = key.text()
    ledgers = (await load_manifest(store, text)).ledgers
    if not ledgers:
        raise NoHistory(f"the journal of {text} has no events yet")
    first = _ledger_of(ledgers, point_in_time)
    checkpoint = await checkpoint_of(store, text, first.ledger_id)
    state = machine.restore(checkpoint.segments)
    past = Past(checkpoint.sequence - 1, 0, state)
    async for record in replay(store, text, first.ledger_id):
        if point_in_time.is_before(record.sequence, record.at_ms):
            break
        machine.evolve(state, decode(bytes(record.event)))
        past = Past(record.sequence, record.at_ms, state)
    if point_in_time.sequence is not None and past.sequence < point_in_time.sequence:
        raise NoHistory(
            f"{text} has no event {point_in_time.sequence}: the newest is {past.sequence}"
        )
    if past.sequence < ledgers[0].first_sequence and point_in_time != PointInTime():
        raise NoHistory(f"{text}: events that old are no longer kept")
    return past


def _ledger_of(ledgers: tuple[LedgerInfo, ...], point_in_time: PointInTime) -> LedgerInfo:
    """The ledger whose events lead to the point in time."""
    if point_in_time == PointInTime():
        return ledgers[-1]
    for info, after in pairwise(ledgers):
        if point_in_time.sequence is not None and point_in_time.sequence < after.first_sequence:
            return info
        if point_in_time.at_ms is not None and info.sealed_ms > point_in_time.at_ms:
            return info
    return ledgers[-1]


async def subscriptions_of(
    store: LedgerStore, topic: TopicName, subscription: str
) -> list[ActorKey]:
    """The actors of a subscription that have journals, by partition, of the newest incarnation.

    A topic without a partition number stands for all its partitions. Raises `NotStored` if there
    are none.
    """
    newest: dict[int, ActorKey] = {}
    for text in await store.list_journals():
        if text.split("/")[0] != ActorKind.SUBSCRIPTION.value:
            continue
        key = ActorKey.parse(text)
        same = (key.tenant, key.namespace, key.topic) == (
            topic.tenant,
            topic.namespace,
            topic.local,
        )
        if not same or key.subscription != subscription:
            continue
        if topic.partition in (-1, key.partition):
            known = newest.get(key.partition)
            if known is None or _incarnation(known) < _incarnation(key):
                newest[key.partition] = key
    if not newest:
        raise NotStored(f"a journal of subscription {subscription!r} of {topic}")
    return [newest[partition] for partition in sorted(newest)]


def _incarnation(key: ActorKey) -> tuple[int, int]:
    return key.topic_incarnation, key.subscription_incarnation


def partition_of(key: ActorKey) -> ActorKey:
    """The partition of the subscription ``key``."""
    return ActorKey.of_partition(key.topic_name, key.topic_incarnation)


async def positions_of(store: LedgerStore, key: ActorKey) -> LedgerTable:
    """The ledgers and their offsets, for the partition of a subscription; the result has no end.

    Raises `NotStored`, `CorruptJournal`.
    """
    manifest = await load_manifest(store, partition_of(key).text())
    pairs = [(info.ledger_id, info.first_offset) for info in manifest.ledgers]
    return LedgerTable(pairs, _ENDLESS)


async def published_at(store: LedgerStore, key: ActorKey, position: Position) -> int:
    """The time at which the partition of a subscription accepted the entry at ``position``.

    Raises `NoHistory` if there is no such entry; `NotStored`, `CorruptJournal`.
    """
    partition = partition_of(key).text()
    listed = {info.ledger_id for info in (await load_manifest(store, partition)).ledgers}
    if position.ledger_id in listed:
        async for record in replay(store, partition, position.ledger_id):
            if record.position == position:
                event = decode(bytes(record.event))
                assert isinstance(event, EntryAppended)
                return event.at_ms
            if record.position is not None and record.position > position:
                break
    raise NoHistory(f"{key.topic_name} holds no entry {position.ledger_id}:{position.entry_id}")


async def last_active_ms(store: LedgerStore, key: ActorKey) -> int | None:
    """When a consumer of a subscription was last connected or acknowledged something, as far as the
    newest ledgers of its journal tell; None if they don't.

    Raises `CorruptJournal`.
    """
    text = key.text()
    try:
        ledgers = (await load_manifest(store, text)).ledgers
    except NotStored:
        return None
    end = _ENDLESS
    for info in reversed(ledgers[-_LOOKED_BACK:]):
        found = None
        async for record in replay(store, text, info.ledger_id):
            if record.sequence >= end:
                break
            event = decode(bytes(record.event))
            if isinstance(event, ConsumerAttached | ConsumerDetached):
                found = event.at_ms
            elif isinstance(event, EntriesAcked | MarkDeleted) and event.consumer:
                found = record.at_ms
            if record.sequence % _EVENTS_AT_ONCE == 0:
                await asyncio.sleep(0)  # let other tasks of the loop run
        if found is not None:
            return found
        end = info.first_sequence
    return None


async def entry_at(store: LedgerStore, key: ActorKey, position: Position) -> Position:
    """``position``, or that of the first or last entry of a subscription's partition for
    ``EARLIEST`` and ``LATEST``.

    Raises `NoHistory` for these if the partition holds no entries; `NotStored`, `CorruptJournal`.
    """
    if position not in (EARLIEST, LATEST):
        return position
    partition = partition_of(key).text()
    listed = [info.ledger_id for info in (await load_manifest(store, partition)).ledgers]
    for ledger_id in listed[:1] if position == EARLIEST else reversed(listed):
        found: Position | None = None
        async for record in replay(store, partition, ledger_id):
            if record.position is None:
                continue
            found = record.position
            if position == EARLIEST:
                break
        if found is not None:
            return found
    raise NoHistory(f"{key.topic_name} holds no messages")


def as_text(position: Position) -> str:
    """``ledger:entry``."""
    return f"{position.ledger_id}:{position.entry_id}"


def described(
    past: Past[SubscriptionState], key: ActorKey, table: LedgerTable
) -> dict[str, object]:
    """A past state for people and JSON, by offset and by position."""
    cursor = past.state.cursor
    return {
        "topic": str(key.topic_name),
        "subscription": key.subscription,
        "event": past.sequence,
        "atMs": past.at_ms or None,
        "created": past.state.created,
        "markDelete": as_text(table.position_before(cursor.acked_before)),
        "ackedBefore": cursor.acked_before,
        "ackedRanges": [
            {
                "firstOffset": first,
                "endOffset": end,
                "first": as_text(table.position_of(first)),
                "last": as_text(table.position_of(end - 1)),
            }
            for first, end in cursor.acked_ranges()
        ],
        "partial": [
            {
                "offset": offset,
                "position": as_text(table.position_of(offset)),
                "remaining": mask_to_words(mask),
            }
            for offset, mask in cursor.all_partials()
        ],
    }
