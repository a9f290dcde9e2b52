"""Sealed entries: what stays in the clear, and that they open to what was sent."""

from __future__ import annotations

import pytest

from velaray.wire.compression import Compression, compress
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import (
    SEALED,
    build_batch,
    build_entry,
    iterate_batch,
    key_hash,
    message_count,
    publish_time,
    split_entry,
)
from velaray.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from velaray.wire.sealed import By, NotErasable, opened, parts_of, read_plain, seal


def encrypt(subject: str, content: bytes) -> bytes:
    return subject.encode() + b"|" + bytes(each ^ 0xFF for each in content)


def decrypt(part: memoryview, erased: frozenset[bytes] = frozenset()) -> bytes | None:
    subject, _, content = bytes(part).partition(b"|")
    return None if subject in erased else bytes(each ^ 0xFF for each in content)


def metadata(**fields: object) -> MessageMetadata:
    found = MessageMetadata(producer_name="p", sequence_id=7, publish_time=99, **fields)
    found.properties.add(key="note", value="a-note")
    return found


def batch(kind: Compression = Compression.NONE) -> bytes:
    singles = []
    for name in ("ann", "bob", "ann"):
        single = SingleMessageMetadata(partition_key=name)
        single.properties.add(key="subject", value=f"about {name}")
        singles.append((single, b"value of " + name.encode()))
    payload = build_batch(singles)
    found = metadata(num_messages_in_batch=3, partition_key="ann", uncompressed_size=len(payload))
    found.compression = int(kind)
    return build_entry(found, compress(kind, payload))


@pytest.mark.parametrize("by", By)
def test_a_single_message_opens_to_the_bytes_that_were_sent(by: By) -> None:
    sent = metadata(partition_key="ann", schema_version=b"3", deliver_at_time=12, event_time=4)
    sent.properties.add(key="subject", value="bob")
    entry = build_entry(sent, b"value")
    plain = read_plain(entry, by)
    assert plain.subjects == ["ann" if by is By.KEY else "bob"]
    sealed = seal(plain, encrypt)
    clear = split_entry(sealed)[0]
    assert (clear.producer_name, clear.sequence_id, clear.publish_time) == ("p", 7, 99)
    assert (clear.schema_version, clear.deliver_at_time) == (b"3", 12)
    assert not clear.properties
    assert not clear.HasField("partition_key")
    assert not clear.HasField("event_time")
    assert key_hash(sealed) == key_hash(entry)
    assert publish_time(sealed) == 99
    assert opened(sealed, decrypt) == (entry, 1)
    assert opened(sealed, lambda part: None) == (b"", 0)


@pytest.mark.parametrize("param", [b"", b"\0", b"\0\0", b"\xff\xff\xff", b"x" * 100])
def test_a_hash_that_a_client_made_up_is_in_range(param: bytes) -> None:
    made_up = metadata(encryption_algo=SEALED, encryption_param=param)
    assert 1 <= key_hash(build_entry(made_up, b"value")) <= 65535


@pytest.mark.parametrize("kind", [Compression.NONE, Compression.LZ4, Compression.ZSTD])
def test_a_batch_loses_its_erased_messages(kind: Compression) -> None:
    sealed = seal(read_plain(batch(kind), By.KEY), encrypt)
    assert message_count(sealed) == 3
    assert key_hash(sealed) == key_hash(batch(kind))
    for erased, mask in ((set(), 0b111), ({b"ann"}, 0b010), ({b"bob"}, 0b101)):
        found = opened(sealed, lambda part, gone=frozenset(erased): decrypt(part, gone))
        assert found.mask == mask
        described, payload = split_entry(found.entry)
        assert not described.encryption_algo
        messages = list(iterate_batch(payload, 3))
        assert [not each.compacted_out for each, _ in messages] == [
            mask >> at & 1 for at in range(3)
        ]
        kept = [(each.partition_key, value) for each, value in messages if not each.compacted_out]
        names = [name for name in ("ann", "bob", "ann") if name.encode() not in erased]
        assert kept == [(name, b"value of " + name.encode()) for name in names]
    assert opened(sealed, lambda part: None) == (b"", 0)
    assert read_plain(batch(kind), By.SUBJECT).subjects == ["about ann", "about bob", "about ann"]


@pytest.mark.parametrize(
    ("entry", "by", "reason"),
    [
        (build_entry(metadata(), b""), By.KEY, "need a key"),
        (build_entry(metadata(partition_key="a"), b""), By.SUBJECT, "property 'subject'"),
        (build_entry(metadata(encryption_algo="AES"), b""), By.KEY, "end to end"),
        (build_entry(metadata(num_chunks_from_msg=2), b""), By.KEY, "chunked"),
        (build_entry(metadata(marker_type=1), b""), By.KEY, "marker"),
        (build_entry(metadata(num_messages_in_batch=2), b"1"), By.KEY, "can't be read"),
        (b"short", By.KEY, "can't be read"),
    ],
)
def test_entries_that_cannot_be_erased_are_refused(entry: bytes, by: By, reason: str) -> None:
    with pytest.raises(NotErasable, match=reason):
        read_plain(entry, by)


def test_damaged_entries_are_malformed() -> None:
    sealed = seal(read_plain(batch(), By.KEY), encrypt)
    with pytest.raises(MalformedEntryError):
        parts_of(batch())
    for cut in (1, 30, len(sealed) - 5):
        with pytest.raises(MalformedEntryError):
            parts_of(sealed[:-cut])
