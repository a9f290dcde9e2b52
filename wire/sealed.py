"""Entries of erasable topics, as they are stored: each message is sealed by itself.

A stored entry is an entry of Pulsar's that says that it is encrypted, with an algorithm of
velaray's own. So what reads it without opening it takes it for an encrypted one, which it has no
key for. The metadata in the clear is what servers need: producer, sequence ids, times, the number
of messages, the version of the schema, the transaction, and the hash by which Key_Shared chooses a
consumer. Keys, properties and payloads are sealed.

A sealed single message is the whole entry that the producer sent. Of a batch each message is
sealed, with its metadata, uncompressed: a compressed batch couldn't lose one of its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from struct import Struct
from typing import Final, NamedTuple

from velaray.wire.batches import BatchLayout
from velaray.wire.compression import decompress
from velaray.wire.errors import MalformedEntryError, WireError
from velaray.wire.frames import MAX_MESSAGE_SIZE
from velaray.wire.messages import (
    HASH_BYTES,
    SEALED,
    Buffer,
    build_entry,
    is_batch,
    key_hash,
    open_entry,
)
from velaray.wire.pulsar_pb2 import EncryptionKeys, MessageMetadata, SingleMessageMetadata

LARGEST_SEALED: Final = 4 * MAX_MESSAGE_SIZE
"""The most bytes of a sealed entry. Sealing adds to each message, so batches of many small messages
may be larger than what the producer sent."""
_ALGORITHM = SEALED.encode()
_METADATA_BYTES = 4096
"""The metadata of a sealed entry is shorter: the longest text in it is the producer's name."""
_SIZE = Struct(">I")
_IN_THE_CLEAR: Final = (
    "producer_name",
    "sequence_id",
    "publish_time",
    "num_messages_in_batch",
    "schema_version",
    "deliver_at_time",
    "txnid_least_bits",
    "txnid_most_bits",
    "highest_sequence_id",
    "schema_id",
)


class By(StrEnum):
    """What the subject of a message is: its key, or its property ``subject``."""

    KEY = "key"
    SUBJECT = "subject"


class NotErasable(ValueError):
    """A message can't be stored so that it can be erased; the text has the reason."""


class Plain(NamedTuple):
    """An entry to be sealed: the metadata that stays in the clear, and what is sealed, by part."""

    metadata: MessageMetadata
    subjects: list[str]
    contents: list[bytes]


class Opened(NamedTuple):
    """An opened entry. The bits of ``mask`` are set for the messages that aren't erased."""

    entry: bytes
    mask: int


def looks_sealed(entry: Buffer) -> bool:
    """Whether an entry may be a sealed one; false for certain without decoding it."""
    return _ALGORITHM in bytes(entry[:_METADATA_BYTES])


def read_plain(entry: bytes, by: By) -> Plain:
    """The messages of an entry and their subjects. Raises `NotErasable`."""
    try:
        metadata, start = open_entry(entry)
        if metadata.encryption_keys or metadata.encryption_algo:
            raise NotErasable(
                "an entry that is encrypted end to end hides the subjects of messages"
            )
        if metadata.num_chunks_from_msg > 1:
            raise NotErasable("chunked messages aren't supported in erasable namespaces")
        if metadata.HasField("marker_type"):
            raise NotErasable("a marker isn't a message")
        plain = _batch(entry, metadata, start, by) if is_batch(metadata) else None
    except WireError as error:
        raise NotErasable(f"the entry can't be read: {error}") from error
    clear = _clear(metadata, key_hash(entry))
    if plain is None:
        return Plain(clear, [_subject(metadata, by)], [entry])
    return Plain(clear, *plain)


def _clear(metadata: MessageMetadata, hashed: int) -> MessageMetadata:
    clear = MessageMetadata()
    for name in _IN_THE_CLEAR:
        if metadata.HasField(name):
            setattr(clear, name, getattr(metadata, name))
    clear.encryption_algo = SEALED
    clear.encryption_keys.append(EncryptionKeys(key="velaray", value=b""))
    clear.encryption_param = hashed.to_bytes(HASH_BYTES, "big")
    return clear


def _batch(
    entry: bytes, metadata: MessageMetadata, start: int, by: By
) -> tuple[list[str], list[bytes]]:
    payload = decompress(
        metadata.compression, memoryview(entry)[start:], metadata.uncompressed_size
    )
    if len(payload) > MAX_MESSAGE_SIZE:
        raise NotErasable(f"a batch of {len(payload)} bytes uncompressed is too large to be sealed")
    layout = BatchLayout(payload, 0, metadata.num_messages_in_batch)
    subjects, contents = [], []
    for index, value in enumerate(layout.values(0, layout.count)):
        single = layout.single(index) or SingleMessageMetadata(payload_size=len(value))
        subjects.append(_subject(single, by))
        contents.append(_framed(single) + value)
    return subjects, contents


def _framed(single: SingleMessageMetadata) -> bytes:
    encoded = single.SerializeToString()
    return _SIZE.pack(len(encoded)) + encoded


def _subject(metadata: MessageMetadata | SingleMessageMetadata, by: By) -> str:
    if by is By.KEY:
        if metadata.HasField("partition_key"):
            return metadata.partition_key
        raise NotErasable("messages of this namespace need a key, by which they can be erased")
    for each in metadata.properties:
        if each.key == "subject":
            return each.value
    raise NotErasable(
        "messages of this namespace need the property 'subject', by which they can be erased"
    )


def seal(plain: Plain, encrypt: Callable[[str, bytes], bytes]) -> bytes:
    """The sealed entry; ``encrypt`` seals one message under its subject. Raises `NotErasable` if it
    becomes too large."""
    parts: list[bytes] = []
    for subject, content in zip(plain.subjects, plain.contents, strict=True):
        sealed = encrypt(subject, content)
        parts += (_SIZE.pack(len(sealed)), sealed)
    payload = b"".join(parts)
    if len(payload) > LARGEST_SEALED:
        raise NotErasable(
            f"the encrypted entry has {len(payload)} bytes, more than {LARGEST_SEALED}: publish "
            "smaller messages or batches"
        )
    return build_entry(plain.metadata, payload)


def parts_of(entry: Buffer) -> tuple[MessageMetadata, list[memoryview]]:
    """The metadata and the sealed messages of a sealed entry. Raises `MalformedEntryError`."""
    metadata, at = open_entry(entry)
    if metadata.encryption_algo != SEALED:
        raise MalformedEntryError("the entry isn't sealed")
    view = memoryview(entry)
    parts: list[memoryview] = []
    while at < len(view):
        if at + _SIZE.size > len(view):
            raise MalformedEntryError("a sealed entry ends in the size of a message")
        end = at + _SIZE.size + _SIZE.unpack_from(view, at)[0]
        if end > len(view):
            raise MalformedEntryError("a sealed entry ends in a message")
        parts.append(view[at + _SIZE.size : end])
        at = end
    if len(parts) != (metadata.num_messages_in_batch if is_batch(metadata) else 1):
        raise MalformedEntryError(f"a sealed entry has {len(parts)} messages")
    return metadata, parts


def opened(entry: Buffer, decrypt: Callable[[memoryview], bytes | None]) -> Opened:
    """The entry as consumers get it; ``decrypt`` opens one message (None: it is erased).

    The erased messages of a batch are marked as compacted out. If all messages are erased, the
    entry is empty. Raises `MalformedEntryError`, and what ``decrypt`` raises.
    """
    metadata, parts = parts_of(entry)
    contents = [decrypt(part) for part in parts]
    mask = sum(1 << at for at, content in enumerate(contents) if content is not None)
    if not mask:
        return Opened(b"", 0)
    if not is_batch(metadata):
        return Opened(contents[0] or b"", mask)
    erased = _framed(SingleMessageMetadata(payload_size=0, compacted_out=True))
    for name in ("encryption_algo", "encryption_keys", "encryption_param"):
        metadata.ClearField(name)
    batch = b"".join(erased if content is None else content for content in contents)
    metadata.uncompressed_size = len(batch)
    return Opened(build_entry(metadata, batch), mask)
