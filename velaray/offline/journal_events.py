"""The events of journals as values for tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from velaray.events.codec import MalformedEventError, UnknownEventError, decode
from velaray.events.events_pb2 import (
    AckedBeforeInTransaction,
    AckedInTransaction,
    ClusterRegistered,
    EntryAppended,
    ForeignTransactionArrived,
    ForeignTransactionComplete,
    ForeignTransactionEnded,
    ForeignTransactionForgotten,
    ForeignTransactionJudged,
    ParticipantsNamed,
    PartitionsJoined,
    SeriesCommitted,
    SubscriptionsJoined,
    TransactionAcksEnded,
    TransactionBegun,
    TransactionDecided,
    TransactionEnded,
    TransactionFinished,
    TransactionSpread,
)
from velaray.events.ids import ActorKey, ActorKind, TransactionId
from velaray.journal.errors import JournalError
from velaray.journal.replay import HistoryRecord
from velaray.journal.store import LedgerStore

SECRET = "(not shown)"
"""The text in place of a secret."""


class UnreadableEvent(JournalError):
    """A record holds an event that is malformed or unknown to this version."""


def event_of(sequence: int, raw: bytes | memoryview) -> Message:
    """The event of a record. Raises `UnreadableEvent`."""
    try:
        return decode(bytes(raw))
    except (MalformedEventError, UnknownEventError) as error:
        raise UnreadableEvent(f"event {sequence} can't be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Told:
    """An event: the name of its type, its fields, its transactions, and the size of its entry.

    ``blob_bytes`` is 0 for an event without an entry.
    """

    name: str
    fields: dict[str, Any]
    transactions: tuple[TransactionId, ...]
    blob_bytes: int

    def json(self) -> str:
        """The fields as JSON."""
        return json.dumps(self.fields, ensure_ascii=False)


def told_of(key: ActorKey, record: HistoryRecord) -> Told:
    """The event of a record, without secrets. Raises `UnreadableEvent`."""
    event = event_of(record.sequence, record.event)
    if isinstance(event, ClusterRegistered) and event.token:
        event.token = SECRET
    return Told(
        type(event).__name__,
        MessageToDict(event, preserving_proto_field_name=True),
        tuple(TransactionId(*each) for each in _transactions(key, event)),
        0 if record.blob is None else len(record.blob),
    )


def _transactions(key: ActorKey, event: Message) -> Sequence[tuple[int, int]]:
    match event:
        case EntryAppended():
            return [(event.txn_coordinator, event.txn_sequence)] if event.txn_sequence else []
        case (
            TransactionEnded()
            | ParticipantsNamed()
            | ForeignTransactionComplete()
            | ForeignTransactionEnded()
            | ForeignTransactionArrived()
            | ForeignTransactionJudged()
            | ForeignTransactionForgotten()
            | AckedInTransaction()
            | AckedBeforeInTransaction()
            | TransactionAcksEnded()
        ):
            return [(event.coordinator, event.sequence)]
        case (
            TransactionBegun()
            | PartitionsJoined()
            | SubscriptionsJoined()
            | TransactionDecided()
            | TransactionSpread()
            | TransactionFinished()
        ):
            return [(key.partition, event.sequence)]
        case SeriesCommitted():
            return [(key.partition, sequence) for sequence in event.sequences]
    return []


async def actors_in(store: LedgerStore) -> list[str]:
    """The keys of all actors that have a journal; the cluster's own record is left out."""
    kinds = {kind.value for kind in ActorKind}
    return [text for text in await store.list_journals() if text.split("/")[0] in kinds]
