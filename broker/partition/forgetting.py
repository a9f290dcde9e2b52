"""Forgetting single messages of a partition: they count as acknowledged in every subscription.

Replicators aren't asked: a forgotten message is still replicated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.cursor import mask_to_words
from velaray.actors.subscription.expiry import ExpiryReason
from velaray.broker.partition import messages as m
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.partition_reads import Subscriptions
from velaray.broker.subscription.messages import (
    ExpireEntries,
    ForgetMessages,
    GetAckStatus,
    GetHoldings,
)
from velaray.events.ids import Position
from velaray.topology.messages import Message, Request
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import REPLICATOR_PREFIX

_ACKNOWLEDGED = "MarkDelete"
"""Pulsar's name for the state of an acknowledged message."""


class Log(Protocol):
    """What forgetting needs of the partition's log."""

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...

    async def entry(self, offset: int) -> CachedEntry:
        """Return one entry, from memory or disk."""
        ...

    async def sync(self) -> None:
        """Return when all present entries survive a loss of power."""


class Partition(Protocol):
    """What forgetting needs of a partition."""

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


async def _names(partition: Partition) -> list[str]:
    return await partition.runtime.read(
        lambda state: [
            name for name in sorted(state.subscriptions) if not name.startswith(REPLICATOR_PREFIX)
        ]
    )


def _offset(partition: Partition, position: Position) -> int | None:
    """The offset of a stored entry; None if it isn't stored."""
    try:
        offset = partition.runtime.state.table.offset_of(position)
    except NoSuchEntryError:
        return None
    return offset if offset < partition.log.end_offset else None


async def who_waits(partition: Partition, request: m.WhoWaits) -> dict[str, list[int]]:
    """By durable subscription, the numbers of those ``messages`` that it hasn't acknowledged."""
    places = [
        (number, offset, index)
        for number, (ledger, entry, index) in enumerate(request.messages)
        if (offset := _offset(partition, Position(ledger, entry))) is not None
    ]
    return {name: await _waiting(partition, name, places) for name in await _names(partition)}


async def _waiting(
    partition: Partition, name: str, places: list[tuple[int, int, int]]
) -> list[int]:
    """The numbers of those (number, offset, index) that a subscription hasn't acknowledged."""
    ask = partition.subscriptions.ask_subscription
    flat = [border for _, offset, _ in places for border in (offset, offset + 1)]
    _, whole = await ask(name, GetHoldings(flat))
    acknowledged, found = set(whole), []
    for at, (number, offset, index) in enumerate(places):
        if at in acknowledged:
            continue
        if index >= 0 and await ask(name, GetAckStatus(offset, index)) == _ACKNOWLEDGED:
            continue
        found.append(number)
    return found


async def forget(partition: Partition, request: m.Forget) -> list[str]:
    """Acknowledge one message in every durable subscription; return those that hadn't. A repetition
    completes what an interrupted one began.

    Raises `RemoteError` (NOT_FOUND) if there is no such message.
    """
    position, index = Position(*request.position), request.index
    offset = _offset(partition, position)
    if offset is None:
        text = f"{partition.topic} has no entry {position.ledger_id}:{position.entry_id}"
        raise RemoteError(Reason.NOT_FOUND, text)
    end = partition.log.end_offset
    change: Request[Any] = ExpireEntries(end, [offset, offset + 1], ExpiryReason.ADMINISTRATOR)
    if index >= 0:
        count = (await partition.log.entry(offset)).messages
        if index >= count:
            place = f"{position.ledger_id}:{position.entry_id} of {partition.topic}"
            text = f"entry {place} has {count} messages, and none with the index {index}"
            raise RemoteError(Reason.NOT_FOUND, text)
        if count > 1:
            left = (1 << count) - 1 & ~(1 << index)
            change = ForgetMessages(end, [(offset, mask_to_words(left))])
    await partition.log.sync()
    changed = []
    for name in await _names(partition):
        if await _waiting(partition, name, [(0, offset, index)]):
            await partition.subscriptions.ask_subscription(name, change)
            partition.maintenance.touched(name)
            changed.append(name)
    return changed


HANDLERS: dict[type[Message], Callable[[Partition, Any], Awaitable[Any]]] = {
    m.WhoWaits: who_waits,
    m.Forget: forget,
}
