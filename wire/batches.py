"""The payload of a batch: encoding it, and locating its messages.

Each message is ``[u32 size][SingleMessageMetadata][payload]``. The metadata of a message without
other fields depends on the payload's length alone, so neither side needs protobuf for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Any

from google.protobuf.message import DecodeError

from velaray.wire.errors import MalformedEntryError
from velaray.wire.pulsar_pb2 import SingleMessageMetadata
from velaray.wire.varint import varint

_SIZE = Struct(">I")
_PAYLOAD_SIZE = 0x18
_NULL_VALUE = b"\x48\x01"
PLAIN = SingleMessageMetadata(payload_size=0)
"""The metadata of a message without key, properties and times: none."""


@lru_cache(maxsize=1024)
def plain_head(size: int) -> bytes:
    """The head of a payload of ``size`` bytes without key and properties."""
    single = b"\x18" + varint(size)
    return _SIZE.pack(len(single)) + single


@lru_cache(maxsize=4096)
def keyed_head(key: bytes, size: int) -> bytes:
    """The head of a payload of ``size`` bytes with a key."""
    single = b"\x12" + varint(len(key)) + key + b"\x18" + varint(size)
    return _SIZE.pack(len(single)) + single


def null_head(key: bytes | None) -> bytes:
    """The head of a tombstone; no payload follows."""
    named = b"" if key is None else b"\x12" + varint(len(key)) + key
    single = named + b"\x18\x00" + _NULL_VALUE
    return _SIZE.pack(len(single)) + single


def pack_plain(values: Sequence[bytes]) -> bytes:
    """The payload of a batch of ``values``, which is not empty, without keys."""
    sizes = set(map(len, values))
    if len(sizes) == 1:
        head = plain_head(sizes.pop())
        return head + head.join(values)
    heads = {size: plain_head(size) for size in sizes}
    return b"".join(
        chain.from_iterable(zip(map(heads.__getitem__, map(len, values)), values, strict=True))
    )


def pack(values: Sequence[bytes | None], keys: Sequence[str | None] | None) -> bytes:
    """The payload of a batch of ``values``, which is not empty; None is a tombstone.

    ``keys`` are as many as values; an empty or missing key is none.
    """
    if keys is None:
        if None not in values:
            return pack_plain(values)  # type: ignore[arg-type]
        keys = [None] * len(values)
    parts: list[bytes] = []
    for value, key in zip(values, keys, strict=True):
        if value is None:
            parts.append(null_head(key.encode() if key else None))
        elif key:
            parts += (keyed_head(key.encode(), len(value)), value)
        else:
            parts += (plain_head(len(value)), value)
    return b"".join(parts)


class BatchLayout:
    """The places of the messages in an uncompressed payload.

    Messages are numbered from 0 on, also the only one of a payload that is no batch. A batch of
    equal heads is recognised without a step per message.
    """

    __slots__ = ("_data", "_ends", "_head", "_singles", "_start", "_starts", "_stride", "count")

    def __init__(self, data: bytes, start: int, count: int) -> None:
        """Messages of a batch of ``count`` in ``data`` from ``start`` on.

        Raises `MalformedEntryError` where the payload ends early, has bytes left over, or
        holds what can't be decoded.
        """
        if count < 0:
            raise MalformedEntryError(f"a batch of {count} messages")
        self.count = count
        self._data = data
        self._start = start
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._singles: dict[int, SingleMessageMetadata] = {}
        self._head = self._uniform_head() if count else 0
        self._stride = (len(data) - start) // count if self._head else 0
        if not self._head:
            self._walk()

    @classmethod
    def whole(cls, data: bytes, start: int = 0) -> BatchLayout:
        """A payload that is one message, not a batch."""
        layout = cls.__new__(cls)
        layout.count = 1
        layout._data = data
        layout._start = start
        layout._head = layout._stride = 0
        layout._starts, layout._ends = [start], [len(data)]
        layout._singles = {}
        return layout

    def _uniform_head(self) -> int:
        """The size of the head, if all messages have the same plain one; else 0."""
        data, start, count = self._data, self._start, self.count
        stride, rest = divmod(len(data) - start, count)
        if rest:
            return 0
        for size in range(6, 11):
            if size <= stride and plain_head(stride - size)[:size] == data[start : start + size]:
                break
        else:
            return 0
        if len(plain_head(stride - size)) != size:
            return 0
        same = all(
            data[start + at :: stride].count(data[start + at]) == count for at in range(size)
        )
        return size if same else 0

    def _walk(self) -> None:
        data, at, end = self._data, self._start, len(self._data)
        known: dict[bytes, tuple[int, SingleMessageMetadata | None]] = {}
        add_start, add_end = self._starts.append, self._ends.append
        for index in range(self.count):
            if at + 4 > end:
                raise MalformedEntryError(f"a batch ends before its message {index}")
            start = at + 4 + data[at + 3]
            head = data[at:start]
            found = known.get(head)
            if found is None:
                start, size, single = _read_single(data, at, index)
                if start == at + len(head):
                    known[head] = (size, single)
            else:
                size, single = found
            if single is not None:
                self._singles[index] = single
            at = start + size
            if at > end:
                raise MalformedEntryError(
                    f"message {index} of a batch announces {size} bytes, {end - start} are left"
                )
            add_start(start)
            add_end(at)
        if at != end:
            raise MalformedEntryError(f"{end - at} bytes follow a batch of {self.count} messages")

    def size(self, first: int, end: int) -> int:
        """Bytes of the payloads from message ``first`` up to, not including, ``end``."""
        if self._head:
            return (self._stride - self._head) * (end - first)
        return sum(self._ends[first:end]) - sum(self._starts[first:end])

    def single(self, index: int) -> SingleMessageMetadata | None:
        """The metadata of message ``index``; None if it has only a payload."""
        return self._singles.get(index)

    @property
    def plain(self) -> bool:
        """Whether no message has metadata."""
        return not self._singles

    def values(self, first: int, end: int) -> list[bytes]:
        """Copies of the payloads from message ``first`` up to, not including, ``end``."""
        data = self._data
        if self._head:
            slicer = _slicer(self._head, self._stride - self._head, end - first)
            return list(slicer(data, self._start + first * self._stride))
        return [data[a:b] for a, b in zip(self._starts[first:end], self._ends[first:end])]  # noqa: B905

    def uniform(self, first: int, end: int) -> tuple[memoryview, int, int] | None:
        """The bytes of messages that have equal heads, the stride and the size of a head."""
        if not self._head:
            return None
        start = self._start + first * self._stride
        view = memoryview(self._data)[start : start + (end - first) * self._stride]
        return view, self._stride, self._head


@lru_cache(maxsize=8)
def _slicer(head: int, size: int, count: int) -> Callable[[bytes, int], tuple[Any, ...]]:
    return Struct(f"{head}x{size}s" * count).unpack_from


def _read_single(data: bytes, at: int, index: int) -> tuple[int, int, SingleMessageMetadata | None]:
    # Where the payload begins, its size, and the metadata unless it's plain.
    start = at + 4
    end = start + _SIZE.unpack_from(data, at)[0]
    if end > len(data):
        raise MalformedEntryError(f"a batch ends in the metadata of its message {index}")
    try:
        single = SingleMessageMetadata.FromString(data[start:end])
    except DecodeError as error:
        raise MalformedEntryError(
            f"the metadata of message {index} of a batch can't be decoded: {error}"
        ) from error
    if not single.HasField("payload_size"):
        raise MalformedEntryError(f"message {index} of a batch has no payload size")
    size = single.payload_size
    if size < 0:
        raise MalformedEntryError(f"message {index} of a batch announces {size} bytes")
    plain = data[at:end] == plain_head(size)
    return end, size, None if plain else single
