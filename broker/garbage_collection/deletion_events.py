"""The event that a ledger is to be deleted: PIP-186's `PendingDeleteLedgerInfo`, in Avro.

``journal`` is velaray's own: the text of the actor's key, which tells a topic from an earlier one
of the same name. Everything else follows from it; an event in which it doesn't was written by
somebody else, and isn't believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from velaray.broker.coordinator.coordinators import ASSIGN
from velaray.client.exceptions import UndecodableMessage
from velaray.client.message import Message
from velaray.client.schema import AvroSchema
from velaray.events.ids import INT64_MAX, ActorKey, ActorKind, InvalidNameError

LEDGER = "Ledger"
"""The only type of ledger there is: nothing is offloaded."""


class Component(StrEnum):
    """What a ledger is part of: the first three are Pulsar's."""

    TOPIC = "managed-ledger"
    SUBSCRIPTION = "managed-cursor"
    SCHEMAS = "schema-storage"
    COMPACTED = "compacted-ledger"
    COORDINATOR = "transaction-log"
    CATALOG = "catalog"


_COMPONENTS = {
    ActorKind.PARTITION: Component.TOPIC,
    ActorKind.SUBSCRIPTION: Component.SUBSCRIPTION,
    ActorKind.SCHEMA_REGISTRY: Component.SCHEMAS,
    ActorKind.COMPACTED: Component.COMPACTED,
    ActorKind.COORDINATOR: Component.COORDINATOR,
    ActorKind.CATALOG: Component.CATALOG,
}


class MalformedEvent(ValueError):
    """A message that is no event of this kind: nobody can know what it wants deleted."""


class MisaddressedEvent(ValueError):
    """An event whose parts say different things of which ledger is meant."""


@dataclass(frozen=True)
class PendingDeleteLedgerInfo:
    """One ledger that is to be deleted, with Pulsar's names. Made by `event_of`."""

    ledgerComponent: str
    ledgerType: str
    ledgerId: int
    journal: str
    topicName: str | None = None
    cursorName: str | None = None
    schemaId: str | None = None
    offloadContext: str | None = None


SCHEMA: AvroSchema[PendingDeleteLedgerInfo] = AvroSchema(PendingDeleteLedgerInfo)
"""What the messages of the deletion topics are."""


def component_of(key: ActorKey) -> Component:
    """What the ledgers of this journal are part of.

    Raises `MisaddressedEvent` for an actor that has no journal.
    """
    component = _COMPONENTS.get(key.kind)
    if component is None:
        raise MisaddressedEvent(f"{key.text()} has no ledgers")
    return component


def event_of(key: ActorKey, ledger_id: int) -> PendingDeleteLedgerInfo:
    """The event for a ledger of ``key``'s journal. Raises as `component_of`."""
    component, topic = component_of(key), None
    if key.topic:
        topic = str(key.topic_name)
    elif component is Component.COORDINATOR:
        topic = str(ASSIGN.of_partition(key.partition))
    of_schemas = component is Component.SCHEMAS
    return PendingDeleteLedgerInfo(
        ledgerComponent=component.value,
        ledgerType=LEDGER,
        ledgerId=ledger_id,
        journal=key.text(),
        topicName=topic,
        cursorName=key.subscription or None,
        schemaId=f"{key.tenant}/{key.namespace}/{key.topic}" if of_schemas else None,
    )


def encode_event(event: PendingDeleteLedgerInfo) -> bytes:
    """The event as a message's payload."""
    return SCHEMA.encode(event)


def decode_event(data: bytes) -> PendingDeleteLedgerInfo:
    """What `encode_event` wrote. Raises `MalformedEvent`."""
    try:
        return SCHEMA.decode(data)
    except UndecodableMessage as error:
        raise MalformedEvent(str(error)) from error


def read_event(message: Message[Any]) -> PendingDeleteLedgerInfo:
    """The event that a message holds, whatever version of the schema it was written with.

    Raises `MalformedEvent`.
    """
    try:
        found = message.value()
    except UndecodableMessage as error:
        raise MalformedEvent(str(error)) from error
    if not isinstance(found, PendingDeleteLedgerInfo):
        raise MalformedEvent(f"message {message.message_id()} is empty")
    return found


def addressee(event: PendingDeleteLedgerInfo) -> ActorKey:
    """The actor whose ledger is meant.

    Raises `MisaddressedEvent` if that isn't an actor that may have ledgers, or if topic, cursor,
    component or type say otherwise than the journal.
    """
    try:
        key = ActorKey.parse(event.journal)
    except InvalidNameError as error:
        raise MisaddressedEvent(str(error)) from error
    if not 0 <= event.ledgerId <= INT64_MAX or event != event_of(key, event.ledgerId):
        raise MisaddressedEvent(
            f"ledger {event.ledgerId} of {event.journal} isn't {event.ledgerComponent} "
            f"of {event.topicName} ({event.cursorName})"
        )
    return key
