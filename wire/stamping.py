"""A replicator's decision on a stored entry: skip it, or stamp it and send it."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from functools import lru_cache

from velaray.events.ids import Position, TransactionId
from velaray.wire.entries import ENTRY_HEADER_SIZE
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import build_entry, join_entry, open_entry
from velaray.wire.pulsar_pb2 import MessageMetadata
from velaray.wire.replication import SOURCE_POSITION


class PassedOver(StrEnum):
    """The reason why an entry isn't replicated."""

    UNDECODABLE = "undecodable"
    """Its metadata is unreadable, so it can't be stamped."""
    MARKER = "marker"
    """It is a marker and not a message."""
    FOREIGN = "foreign"
    """It came from another cluster, which replicates it itself."""
    ELSEWHERE = "elsewhere"
    """Its producer named the destination clusters, and this isn't one."""
    EXPIRED = "expired"
    """It is older than the topic's time to keep messages."""


Judged = PassedOver | tuple[MessageMetadata, int]
"""The reason why an entry isn't replicated; otherwise its metadata, and the start of its
payload."""


def judge(entry: bytes, target: str, too_old_ms: int, *, everything: bool = False) -> Judged:
    """The metadata of an entry that goes to ``target``, and the start of its payload; else the
    reason why it doesn't. An entry from before ``too_old_ms`` is expired (0: none is).
    ``everything``: all entries go, whatever their origin and destination."""
    opened = _open(entry)
    if isinstance(opened, PassedOver):
        return opened
    metadata, _ = opened
    if metadata.HasField("replicated_from") and not everything:
        return PassedOver.FOREIGN
    if metadata.replicate_to and not everything and target not in metadata.replicate_to:
        return PassedOver.ELSEWHERE
    return PassedOver.EXPIRED if metadata.publish_time < too_old_ms else opened


def judge_pulled(entry: bytes, known: Collection[str], too_old_ms: int) -> Judged:
    """`judge` for an entry that is pulled from another cluster: it is pulled even if its producer
    named other clusters. Entries that came there from one of the clusters ``known`` are pulled from
    that cluster instead."""
    opened = _open(entry)
    if isinstance(opened, PassedOver):
        return opened
    metadata, _ = opened
    if metadata.replicated_from in known:
        return PassedOver.FOREIGN
    return PassedOver.EXPIRED if metadata.publish_time < too_old_ms else opened


def _open(entry: bytes) -> Judged:
    try:
        metadata, start = open_entry(entry)
    except MalformedEntryError:
        return PassedOver.UNDECODABLE
    return PassedOver.MARKER if metadata.HasField("marker_type") else (metadata, start)


def transaction_of(metadata: MessageMetadata) -> TransactionId | None:
    """The transaction that the entry names."""
    if not (metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")):
        return None
    return TransactionId(metadata.txnid_most_bits, metadata.txnid_least_bits)


def label(metadata: MessageMetadata, transaction: TransactionId) -> None:
    """Set the transaction in an entry's metadata."""
    metadata.txnid_most_bits, metadata.txnid_least_bits = transaction


def labelled(entry: bytes, transaction: TransactionId) -> bytes:
    """The entry with the transaction in its metadata; an unreadable one stays as it is."""
    try:
        metadata, start = open_entry(entry)
    except MalformedEntryError:
        return entry
    if transaction_of(metadata) == transaction:
        return entry
    label(metadata, transaction)
    return bytes(build_entry(metadata, memoryview(entry)[start:]))


def stamp(metadata: MessageMetadata, source: str, position: Position) -> None:
    """Set the entry's source and remove its transaction, which `label` may set again.

    A source position that its producer claimed is removed.
    """
    for index in reversed(range(len(metadata.properties))):
        if metadata.properties[index].key == SOURCE_POSITION:
            del metadata.properties[index]
    metadata.replicated_from = source
    metadata.properties.add(key=SOURCE_POSITION, value=f"{position.ledger_id}:{position.entry_id}")
    metadata.ClearField("txnid_most_bits")
    metadata.ClearField("txnid_least_bits")


def stamped(
    entry: bytes,
    metadata: MessageMetadata,
    start: int,
    source: str,
    position: Position,
    transaction: TransactionId | None = None,
    schema_version: bytes = b"",
) -> bytes:
    """The entry with a `stamp`; ``metadata`` is its own, and its payload begins at ``start``. It is
    labelled with ``transaction`` and ``schema_version``, if given.

    Additions are appended to the encoded metadata where that suffices, as protobuf allows; then
    nothing is encoded again.
    """
    payload = memoryview(entry)[start:]
    same = transaction is None and schema_version == metadata.schema_version
    if same and _takes_nothing_away(metadata):
        digits = b"%d" % position.entry_id
        encoded = entry[ENTRY_HEADER_SIZE:start]
        encoded += _stamp_before(source, position.ledger_id, len(digits)) + digits
        return join_entry(encoded, payload)
    stamp(metadata, source, position)
    if transaction is not None:
        label(metadata, transaction)
    if schema_version:
        metadata.schema_version = schema_version
    return build_entry(metadata, payload)


def _takes_nothing_away(metadata: MessageMetadata) -> bool:
    """Whether a stamp only adds fields."""
    return not (
        metadata.HasField("replicated_from")
        or metadata.HasField("txnid_most_bits")
        or metadata.HasField("txnid_least_bits")
        or (metadata.properties and _claims_a_position(metadata))
    )


def _claims_a_position(metadata: MessageMetadata) -> bool:
    return any(each.key == SOURCE_POSITION for each in metadata.properties)


@lru_cache(maxsize=1024)
def _stamp_before(source: str, ledger_id: int, digits: int) -> bytes:
    """An encoded stamp up to the entry id, which ends it and has this many digits."""
    by = MessageMetadata(replicated_from=source).SerializePartialToString()
    at = MessageMetadata()
    at.properties.add(key=SOURCE_POSITION, value=f"{ledger_id}:" + "0" * digits)
    return by + at.SerializePartialToString()[:-digits]
