"""What a replicator does with one stored entry: pass it over, or stamp it and send it on."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from functools import lru_cache

from velaray.events.ids import Position, TransactionId
from velaray.wire.errors import MalformedEntryError
from velaray.wire.frames import ENTRY_HEADER_SIZE
from velaray.wire.messages import build_entry, join_entry, open_entry
from velaray.wire.pulsar_pb2 import MessageMetadata
from velaray.wire.replication import SOURCE_POSITION


class PassedOver(StrEnum):
    """Why an entry isn't replicated."""

    UNDECODABLE = "undecodable"
    """Nobody can read its metadata, hence nobody can stamp it."""
    MARKER = "marker"
    """It isn't a message of anybody's."""
    FOREIGN = "foreign"
    """It came from another cluster: who has it sends it on itself."""
    ELSEWHERE = "elsewhere"
    """Its producer named the clusters that it is for, and this isn't one."""
    EXPIRED = "expired"
    """It is older than the topic keeps messages for."""


Judged = PassedOver | tuple[MessageMetadata, int]
"""Why an entry isn't replicated; else its metadata, and where its payload begins."""


def judge(entry: bytes, target: str, too_old_ms: int, *, everything: bool = False) -> Judged:
    """The metadata of an entry that ``target`` is to have, and where its payload begins; else why
    not. What was published before ``too_old_ms`` is expired (0: nothing is). ``everything``: it
    is to have all messages, wherever they came from and whomever they were meant for."""
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
    """As `judge`, of an entry that is pulled from another cluster: whoever reads it there is to
    read it here, whichever clusters its producer named. What came there from one of the
    clusters ``known`` comes here from that one."""
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
    """The transaction that the entry says it is of."""
    if not (metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")):
        return None
    return TransactionId(metadata.txnid_most_bits, metadata.txnid_least_bits)


def label(metadata: MessageMetadata, transaction: TransactionId) -> None:
    """Say of which transaction the entry is."""
    metadata.txnid_most_bits, metadata.txnid_least_bits = transaction


def labelled(entry: bytes, transaction: TransactionId) -> bytes:
    """The entry, which says of which transaction it is; one that nobody can read stays as it is."""
    try:
        metadata, start = open_entry(entry)
    except MalformedEntryError:
        return entry
    if transaction_of(metadata) == transaction:
        return entry
    label(metadata, transaction)
    return bytes(build_entry(metadata, memoryview(entry)[start:]))


def stamp(metadata: MessageMetadata, source: str, position: Position) -> None:
    """Say where the entry comes from, and that it's in no transaction, until it is labelled.

    Whatever its producer claimed to be its source position counts for nothing.
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
    """The entry with a `stamp`, given its metadata as it came, and where its payload begins. It is
    labelled with ``transaction``, and of this version of its schema, if it has one.

    What is to be said is put behind the encoded metadata where that is all, as protobuf allows:
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
    """Whether a stamp only says more."""
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
    """An encoded stamp, up to an entry id of so many digits, which ends it."""
    by = MessageMetadata(replicated_from=source).SerializePartialToString()
    at = MessageMetadata()
    at.properties.add(key=SOURCE_POSITION, value=f"{ledger_id}:" + "0" * digits)
    return by + at.SerializePartialToString()[:-digits]
