"""The backlog of the deletion topics: unacknowledged events, and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.garbage_collection.collectors import partitions_in_use
from velaray.broker.garbage_collection.deletion import (
    DEAD,
    EVENTS,
    OPERATOR,
    RETRY,
    WORKER,
    enqueue_deletion,
)
from velaray.broker.garbage_collection.deletion_events import (
    MalformedEvent,
    MisaddressedEvent,
    PendingDeleteLedgerInfo,
    addressee,
    decode_event,
)
from velaray.broker.garbage_collection.messages import AcknowledgeDeadLetters
from velaray.broker.partition.messages import Subscriptions, UnackedEntries
from velaray.events.ids import ActorKey, MessageId, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError
from velaray.wire.pulsar_pb2 import MessageMetadata

AT_ONCE = 500
"""Events that one request to a partition returns at most."""

_TRIED = "RECONSUMETIMES"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message of a deletion topic; ``event`` is None if it isn't an event."""

    topic: str
    message_id: MessageId
    event: PendingDeleteLedgerInfo | None
    tries: int
    published_ms: int


async def pending(actor_system: ActorSystem) -> AsyncIterator[Waiting]:
    """The events that the garbage collectors haven't acknowledged.

    An event that is retried meanwhile may be reported twice. Raises what `ActorSystem.request`
    raises, and the store's errors.
    """
    for topic in (EVENTS, RETRY):  # in the order in which events move
        async for each in _waiting(actor_system, topic, WORKER):
            yield each


def dead_letters(actor_system: ActorSystem) -> AsyncIterator[Waiting]:
    """The dead letters that no operator has handled. Raises as `pending`."""
    return _waiting(actor_system, DEAD, OPERATOR)


async def _waiting(
    actor_system: ActorSystem, topic: TopicName, subscription: str
) -> AsyncIterator[Waiting]:
    async for key in partitions_in_use(actor_system, topic):
        if subscription not in await actor_system.request(key, Subscriptions()):
            continue  # the first publisher makes the journal
        first: int | None = 0
        while first is not None:
            wanted = UnackedEntries(subscription, first, AT_ONCE)
            found = await actor_system.request(key, wanted)
            for entry in found["entries"]:
                yield _read(str(key.topic_name), *entry)
            first = found["next"]


def _read(topic: str, found: list[int], metadata: bytes, payload: bytes) -> Waiting:
    about = MessageMetadata.FromString(metadata)
    properties = {pair.key: pair.value for pair in about.properties}
    try:
        event = None if about.null_value else decode_event(payload)
    except MalformedEvent:
        event = None
    tried: Any = properties.get(_TRIED, "0")
    tries = int(tried) if tried.isdecimal() else 0
    ledger_id, entry_id, partition = found
    message_id = MessageId(ledger_id, entry_id, partition)
    return Waiting(topic, message_id, event, tries, about.publish_time)


async def take_up(actor_system: ActorSystem, dead_letters: Sequence[Waiting]) -> None:
    """Retry dead letters from the start: publish their events again, then acknowledge them.

    Repeating it does no harm. Raises `RemoteError` (INVALID) if one of them isn't an event,
    and the errors of `enqueue_deletion` and `forget`: then some may be published again.
    """
    for each in dead_letters:
        if each.event is None:
            text = f"{each.message_id} of {each.topic} isn't an event: it can only be forgotten"
            raise RemoteError(Reason.INVALID, text)
        try:
            key = addressee(each.event)
        except MisaddressedEvent as error:
            raise RemoteError(Reason.INVALID, f"{error}: it can only be forgotten") from error
        await enqueue_deletion(actor_system, key, [each.event.ledgerId])
    await forget(actor_system, dead_letters)


async def forget(actor_system: ActorSystem, dead_letters: Sequence[Waiting]) -> None:
    """Acknowledge dead letters without any change of their ledgers.

    Repeating it does no harm. Raises what `ActorSystem.request` raises: then some may be
    acknowledged.
    """
    ids = [
        (each.message_id.ledger_id, each.message_id.entry_id, each.message_id.partition)
        for each in dead_letters
    ]
    if ids:
        acknowledge = AcknowledgeDeadLetters(ids)
        await actor_system.request(ActorKey.of_garbage_collector(0), acknowledge)


def described(each: Waiting) -> dict[str, Any]:
    """A message of a deletion topic in the form of the admin interface."""
    event = each.event
    return {
        "id": f"{each.message_id.ledger_id}:{each.message_id.entry_id}:{each.message_id.partition}",
        "topic": each.topic,
        "tries": each.tries,
        "publishTime": each.published_ms,
        "ledgerId": None if event is None else event.ledgerId,
        "journal": None if event is None else event.journal,
        "component": None if event is None else event.ledgerComponent,
        "topicName": None if event is None else event.topicName,
        "cursorName": None if event is None else event.cursorName,
    }
