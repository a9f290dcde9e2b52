"""The result of ``receive_many``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

from velaray.client.arrow import array_of
from velaray.client.exceptions import UndecodableMessage
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.schema.base import T
from velaray.wire.batches import PLAIN

if TYPE_CHECKING:
    from velaray.client.blocks import Segment


class ReceivedBatch(Sequence[T | None]):
    """Messages that were received together, as a sequence of values; None for a tombstone.

    Objects are made when they are needed: values by `values` or the sequence operations, an Arrow
    array by `as_arrow`; keys, ids and `velaray.Message` objects by the methods of these names. All
    of them are in the order of delivery. The consumer's schema decodes the values. If one of them
    can't be decoded, every access to values raises `UndecodableMessage`. Acknowledge the batch with
    ``consumer.acknowledge_many(batch)``.
    """

    __slots__ = ("_segments", "_size", "_values")

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._size = sum(map(len, segments))
        self._values: list[T | None] | None = None

    @property
    def segments(self) -> list[Segment]:
        """The parts of delivered entries that the batch consists of."""
        return self._segments

    def values(self) -> list[T | None]:
        """The values, as a list that is built once. Raises `UndecodableMessage`."""
        if self._values is None:
            if len(self._segments) == 1:
                self._values = _values(self._segments[0])
            else:
                self._values = list(chain.from_iterable(map(_values, self._segments)))
        return self._values

    def as_arrow(self) -> Any:
        """The payloads as a ``pyarrow.BinaryArray``, without a Python object per message.

        Tombstones are null. Raises `OperationNotSupported` if pyarrow isn't installed.
        """
        return array_of(self._segments, nulls_of)

    def keys(self) -> list[str]:
        """The partition keys, "" where there is none."""
        found: list[str] = []
        for segment in self._segments:
            if _all_plain(segment):
                found += [""] * len(segment)
            else:
                found += [message.partition_key() for message in segment.messages()]
        return found

    def message_ids(self) -> list[MessageId]:
        """The ids of the messages."""
        return [
            segment.block.info.message_id(index if segment.block.info.batch_size else -1)
            for segment in self._segments
            for index in segment.indexes
        ]

    def messages(self) -> list[Message[T]]:
        """The messages, with all their metadata."""
        return list(chain.from_iterable(segment.messages() for segment in self._segments))

    @property
    def nbytes(self) -> int:
        """Total bytes of all values."""
        return sum(segment.nbytes for segment in self._segments)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T | None]:
        return iter(self.values())

    @overload
    def __getitem__(self, index: int) -> T | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[T | None]: ...

    def __getitem__(self, index: int | slice) -> T | list[T | None] | None:
        return self.values()[index]

    def __repr__(self) -> str:
        return f"<ReceivedBatch of {self._size} messages>"


def _all_plain(segment: Segment) -> bool:
    return bool(segment.block.info.batch_size) and segment.block.layout.plain


def nulls_of(segment: Segment) -> list[int]:
    """The tombstones of the segment, as numbers of messages from its first."""
    block = segment.block
    if not block.info.batch_size:
        return [0] if block.info.metadata.null_value else []
    if block.layout.plain:
        return []
    single = block.layout.single
    return [
        number
        for number, index in enumerate(segment.indexes)
        if (single(index) or PLAIN).null_value
    ]


def _values(segment: Segment) -> list[Any]:
    info, nulls = segment.block.info, nulls_of(segment)
    decode = info.decode
    if decode is None:
        values: list[bytes | None] = list(segment.values())
        for number in nulls:
            values[number] = None
        return values
    if not (nulls or info.pairs):
        try:
            return [decode(payload, None) for payload in segment.values()]
        except UndecodableMessage:
            pass  # decoding singly raises the error of that message
    return [message.value() for message in segment.messages()]
