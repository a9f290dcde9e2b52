"""The layout of batches, written and found by hand, compared with protobuf's."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velaray.wire.batches import BatchLayout, keyed_head, null_head, pack, plain_head
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import build_batch
from velaray.wire.pulsar_pb2 import SingleMessageMetadata

SIZES = (0, 1, 127, 128, 16_383, 16_384, 3_000_000)


@pytest.mark.parametrize("size", SIZES)
def test_heads_equal_protobufs(size: int) -> None:
    body = b"x" * size
    assert plain_head(size) + body == build_batch([(SingleMessageMetadata(), body)])
    key = "k" * min(size, 500)
    single = SingleMessageMetadata(partition_key=key)
    assert keyed_head(key.encode(), size) + body == build_batch([(single, body)])
    single.null_value = True
    assert null_head(key.encode()) == build_batch([(single, b"")])
    single.ClearField("partition_key")
    assert null_head(None) == build_batch([(single, b"")])


MESSAGES = st.lists(
    st.tuples(st.none() | st.binary(max_size=200), st.none() | st.text(max_size=5)), min_size=1
)


@given(MESSAGES, st.binary(max_size=3))
def test_packed_messages_are_unpacked(messages, front) -> None:
    values, keys = map(list, zip(*messages, strict=True))
    layout = BatchLayout(front + pack(values, keys), len(front), len(values))
    assert layout.values(0, len(values)) == [value or b"" for value in values]
    for index, (value, key) in enumerate(messages):
        single = layout.single(index) or SingleMessageMetadata()
        assert (single.partition_key, single.null_value) == (key or "", value is None)
    assert layout.plain == all(value is not None and not key for value, key in messages)
    assert layout.size(0, len(values)) == sum(len(value or b"") for value in values)


@given(st.integers(1, 20), st.integers(0, 300), st.data())
def test_equal_heads_are_recognised_and_any_range_is_found(count, size, data) -> None:
    values = [bytes([n]) * size for n in range(count)]
    layout = BatchLayout(pack(values, None), 0, count)
    assert layout.uniform(0, count) is not None
    first = data.draw(st.integers(0, count))
    end = data.draw(st.integers(first, count))
    assert layout.values(first, end) == values[first:end]
    assert layout.size(first, end) == size * (end - first)


@given(st.integers(2, 6), st.integers(0, 40), st.data())
def test_a_changed_byte_is_detected_or_changes_the_messages(count, size, data) -> None:
    values = [bytes([n]) * size for n in range(count)]
    payload = bytearray(pack(values, None))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    with suppress(MalformedEntryError):
        layout = BatchLayout(bytes(payload), 0, count)
        singles = [layout.single(n) or SingleMessageMetadata() for n in range(count)]
        again = build_batch(zip(singles, layout.values(0, count), strict=True))
        assert BatchLayout(again, 0, count).values(0, count) == layout.values(0, count)


def test_batches_of_the_official_client_are_unpacked() -> None:
    singles = [SingleMessageMetadata(sequence_id=n, event_time=5) for n in range(300)]
    payload = build_batch((single, b"%d" % n) for n, single in enumerate(singles))
    layout = BatchLayout(payload, 0, 300)
    assert layout.values(10, 20) == [b"%d" % n for n in range(10, 20)]
    assert layout.single(299).sequence_id == 299  # type: ignore[union-attr]
    assert layout.uniform(0, 300) is None
