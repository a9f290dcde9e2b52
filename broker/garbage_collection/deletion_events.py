"""The event that requests the deletion of a ledger: PIP-186's `PendingDeleteLedgerInfo`, in Avro.

``journal`` is velaray's own field: the text of the actor's key, which distinguishes a topic from an
earlier one of the same name. All other fields follow from it. An event whose fields don't agree was
written by another program and is rejected.
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
"""The only type of ledger: there is no offloading."""


class Component(StrEnum):
    """The component that a ledger belongs to: the first three are Pulsar's."""

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
    """A message that isn't such an event, so its ledger is unknown."""


class MisaddressedEvent(ValueError):
    """An event whose fields name different ledgers."""


@dataclass(frozen=True)
class PendingDeleteLedgerInfo:
    """One ledger to delete, with Pulsar's field names. Made by `event_of`."""

    ledgerComponent: str
    ledgerType: str
    ledgerId: int
    journal: str
    topicName: str | None = None
    cursorName: str | None = None
    schemaId: str | None = None
    offloadContext: str | None = None


SCHEMA: AvroSchema[PendingDeleteLedgerInfo] = AvroSchema(PendingDeleteLedgerInfo)
"""The schema of the messages of the deletion topics."""


def component_of(key: ActorKey) -> Component:
    """The component that the ledgers of this journal belong to.

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
    """The inverse of `encode_event`. Raises `MalformedEvent`."""
    try:
        return SCHEMA.decode(data)
    except UndecodableMessage as error:
        raise MalformedEvent(str(error)) from error


def read_event(message: Message[Any]) -> PendingDeleteLedgerInfo:
    """The event in a message, whatever version of the schema it was written with.

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
    """The actor that owns the ledger.

    Raises `MisaddressedEvent` if that isn't an actor with ledgers, or if topic, cursor, component
    or type don't match the journal.
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
