"""Encodes and decodes commands; hot commands without protobuf.

A command is passed as its own message (`CommandSubscribe`, `CommandFlow`, ...)
without the `BaseCommand` around it. The two that carry entries are hot, so they are decoded to
plain tuples: `Send` and `Message`. The hand-written code covers the usual form of a command and
leaves other forms to protobuf; tests compare the two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import Any, NamedTuple, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.message_factory import GetMessageClass

from velaray.events.ids import MessageId
from velaray.events.varints import CONTINUED, LAST
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.errors import MalformedCommandError, UnknownCommandError
from velaray.wire.varint import cached_varint, read_varint, varint

PROTOCOL_VERSION = 20
"""The newest protocol version that this side speaks."""

Command = Any
"""One of the ``Command...`` messages of pulsar.proto, or a `Send` or `Message`."""


class Send(NamedTuple):
    """An entry from a producer. ``txn_id`` is (most, least); parts that the client didn't set are
    None."""

    producer_id: int
    sequence_id: int
    num_messages: int = 1
    highest_sequence_id: int | None = None
    is_chunk: bool = False
    txn_id: tuple[int, int] | None = None
    marker: bool = False
    message_id: MessageId | None = None


class Message(NamedTuple):
    """An entry for a consumer. ``ack_set``: 64 bit words; a set bit is an unacknowledged
    message."""

    consumer_id: int
    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    redelivery_count: int = 0
    ack_set: tuple[int, ...] = ()
    consumer_epoch: int | None = None


SEND = 0x0806
MESSAGE = 0x0809
"""The first two bytes of these commands: the tag of ``BaseCommand.type`` and its value."""

_SIZES = Struct(">II")
_FIELDS = {
    number: pb.BaseCommand.DESCRIPTOR.fields_by_number[number]
    for number in pb.BaseCommand.Type.values()
}
_NUMBERS = {
    GetMessageClass(cast(Descriptor, field.message_type)): number
    for number, field in _FIELDS.items()
    if field.message_type is not None
}
_PREFIXES = {
    kind: b"\x08" + varint(number) + varint(number << 3 | 2) for kind, number in _NUMBERS.items()
}
_NAMES = {number: field.name for number, field in _FIELDS.items()}


def _has_text(field: FieldDescriptor, seen: frozenset[str] = frozenset()) -> bool:
    if field.message_type is None or field.message_type.full_name in seen:
        return field.type == FieldDescriptor.TYPE_STRING
    inner = seen | {field.message_type.full_name}
    return any(_has_text(each, inner) for each in field.message_type.fields)


def _fields_with_text(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in kind.fields if _has_text(field))


# An ACK has thousands of ids and rarely a text: only fields that can hold one are checked.
_TEXTS = {number: _fields_with_text(field.message_type) for number, field in _FIELDS.items()}


# --- any command ---------------------------------------------------------------------------


def encode_command(message: ProtobufMessage) -> bytes:
    """``message`` inside its `BaseCommand`, without the sizes that make a frame.

    Raises `google.protobuf.message.EncodeError` if a required field is not set.
    """
    body = message.SerializeToString()
    return _PREFIXES[type(message)] + varint(len(body)) + body


def command(message: ProtobufMessage) -> bytes:
    """The whole frame of a command that carries no entry."""
    encoded = encode_command(message)
    return _SIZES.pack(len(encoded) + 4, len(encoded)) + encoded


def shared_answer(head: ProtobufMessage, rest: bytes) -> list[bytes]:
    """The frame of a command, in two parts: its fields are those of ``head``, and those that are
    encoded in ``rest``, which isn't copied."""
    body = head.SerializePartialToString()
    encoded = _PREFIXES[type(head)] + varint(len(body) + len(rest)) + body
    size = len(encoded) + len(rest)
    return [_SIZES.pack(size + 4, size) + encoded, rest]


def entry_header(message: ProtobufMessage, entry_size: int) -> bytes:
    """The frame of a command that carries an entry, up to where the entry begins."""
    encoded = encode_command(message)
    return _SIZES.pack(len(encoded) + 4 + entry_size, len(encoded)) + encoded


def decode_command(data: bytes) -> Command:
    """The command in the bytes of a `BaseCommand`.

    Raises `MalformedCommandError` and `UnknownCommandError`.
    """
    try:
        base = pb.BaseCommand.FromString(data)
    except DecodeError as error:
        raise MalformedCommandError(f"not a command: {data[:32]!r}") from error
    if not base.HasField("type"):
        raise _unknown_type(data)
    number = base.type
    name = _NAMES[number]
    message = getattr(base, name)
    if not base.HasField(name) or not message.IsInitialized():
        missing = message.FindInitializationErrors() or [name]
        raise MalformedCommandError(
            f"{name} lacks {', '.join(missing)} or has a value that is not known here",
            _request_id(message),
        )
    for text_field in _TEXTS[number]:
        if value := getattr(message, text_field):
            _check_text(name, message, text_field, value)
    if number == pb.BaseCommand.SEND:
        return _to_send(message)
    if number == pb.BaseCommand.MESSAGE:
        return _to_message(message)
    return message


def _unknown_type(data: bytes) -> MalformedCommandError | UnknownCommandError:
    if data[:1] != b"\x08":
        return MalformedCommandError(f"a command without a type: {data[:32]!r}")
    return UnknownCommandError(read_varint(data, 1)[0])


def _request_id(message: ProtobufMessage) -> int | None:
    if "request_id" in message.DESCRIPTOR.fields_by_name and message.HasField("request_id"):
        request_id: int = message.request_id  # type: ignore[attr-defined]
        return request_id
    return None


def _check_text(name: str, command: ProtobufMessage, field: str, found: Any) -> None:
    # The runtime hands out text that isn't UTF-8 as bytes, which would surface much later.
    pending: list[tuple[str, Any]] = [(field, found)]
    while pending:
        field, value = pending.pop()
        if isinstance(value, ProtobufMessage):
            kind = value.DESCRIPTOR
            pending += [(each, getattr(value, each)) for each in _fields_with_text(kind)]
        elif isinstance(value, bytes):
            raise MalformedCommandError(f"{name}: {field} is not UTF-8", _request_id(command))
        elif not isinstance(value, str):
            pending += [(field, each) for each in value]


def _to_send(message: pb.CommandSend) -> Send:
    in_txn = message.HasField("txnid_most_bits") or message.HasField("txnid_least_bits")
    return Send(
        message.producer_id,
        message.sequence_id,
        message.num_messages,
        message.highest_sequence_id if message.HasField("highest_sequence_id") else None,
        message.is_chunk,
        (message.txnid_most_bits, message.txnid_least_bits) if in_txn else None,
        message.marker,
        MessageId.from_proto(message.message_id) if message.HasField("message_id") else None,
    )


def _to_message(message: pb.CommandMessage) -> Message:
    at = MessageId.from_proto(message.message_id)
    return Message(
        message.consumer_id,
        at.ledger_id,
        at.entry_id,
        at.partition,
        at.batch_index,
        message.redelivery_count,
        tuple(message.ack_set),
        message.consumer_epoch if message.HasField("consumer_epoch") else None,
    )


# --- the hot commands, decoded by hand -----------------------------------------------------

_new_tuple = tuple.__new__


def decode_send(data: bytearray, start: int, end: int) -> Send:
    """`decode_command` for a SEND in ``data[start:end]``."""
    # The usual form: producer id below 128, sequence id, number of messages; nothing else.
    if end - start > 7 and data[start + 2] == 0x32 and data[start + 3] == end - start - 4:
        producer_id = data[start + 5]
        at = start + 8
        if data[start + 4] == 8 and producer_id < 128 and data[start + 6] == 16:
            sequence_id = data[start + 7]
            if sequence_id > 127:
                sequence_id &= 127
                shift = 7
                while at < end and shift < 63:
                    byte = data[at]
                    at += 1
                    sequence_id |= (byte & 127) << shift
                    shift += 7
                    if byte < 128:
                        break
                else:
                    return decode_command(bytes(data[start:end]))  # type: ignore[no-any-return]
            if at == end:
                return _new_tuple(
                    Send, (producer_id, sequence_id, 1, None, False, None, False, None)
                )
            if data[at] == 24:
                count, at = _small_varint(data, at + 1, end)
                if at == end and count > 0:
                    return _new_tuple(
                        Send, (producer_id, sequence_id, count, None, False, None, False, None)
                    )
    return decode_command(bytes(data[start:end]))  # type: ignore[no-any-return]


def _small_varint(data: bytearray, at: int, end: int) -> tuple[int, int]:
    # One or two bytes; (0, at) if it is longer or ends early.
    if at < end:
        first = data[at]
        if first < 128:
            return first, at + 1
        if at + 1 < end and data[at + 1] < 128:
            return first & 127 | data[at + 1] << 7, at + 2
    return 0, at


def decode_message(data: bytearray, start: int, end: int) -> Message:
    """`decode_command` for a MESSAGE in ``data[start:end]``."""
    # The usual form: consumer id below 128, ledger id, entry id, perhaps a partition, perhaps
    # an epoch below 128.
    if end - start > 12 and data[start + 2] == 0x4A and data[start + 3] == end - start - 4:
        consumer_id, last, epoch = data[start + 5], end, None
        if data[end - 2] == 0x28 and data[start + 7] == end - start - 10 and data[end - 1] < 128:
            last, epoch = end - 2, data[end - 1]
        if (
            data[start + 4] == 8
            and consumer_id < 128
            and data[start + 6] == 0x12
            and data[start + 7] == last - start - 8
            and data[start + 8] == 8
        ):
            decoded = _decode_position(data, start + 9, last)
            if decoded is not None:
                return _new_tuple(Message, (consumer_id, *decoded, -1, 0, (), epoch))
    return decode_command(bytes(data[start:end]))  # type: ignore[no-any-return]


def _decode_position(data: bytearray, at: int, end: int) -> tuple[int, int, int] | None:
    # Ledger id, entry id and partition of a position that ends at `end`; None if unusual.
    ledger_id, at = varint_within(data, at, end)
    if ledger_id < 0 or at == end or data[at] != 16:
        return None
    entry_id, at = varint_within(data, at + 1, end)
    if at == end and entry_id >= 0:
        return ledger_id, entry_id, -1
    if entry_id < 0 or data[at] != 24:
        return None
    partition, at = varint_within(data, at + 1, end)
    if at != end or not 0 <= partition < 1 << 31:
        return None
    return ledger_id, entry_id, partition


def varint_within(data: bytearray, at: int, end: int) -> tuple[int, int]:
    """The varint at ``data[at]`` and the index after it; (-1, ...) if it has more than 63 bits or
    doesn't end before ``end``."""
    number = shift = 0
    while at < end and shift < 63:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    return -1, at


# --- the hot commands, encoded by hand -----------------------------------------------------


@lru_cache(maxsize=4096)
def _field_one(number: int) -> bytes:
    # Producer, consumer and ledger ids: few distinct ones, each used many times.
    return b"\x08" + varint(number)


_POSITION = [b"\x1a" + bytes((size,)) for size in range(32)]
_RECEIPT_HEADERS = [
    _SIZES.pack(size + 8, size + 4) + b"\x08\x07\x3a" + bytes((size,)) for size in range(64)
]
"""Everything up to the body of a receipt, by the size of the body."""


def send_receipt(
    producer_id: int,
    sequence_id: int,
    ledger_id: int,
    entry_id: int,
    highest_sequence_id: int | None = None,
) -> bytes:
    """The frame of a SEND_RECEIPT; ledger and entry are -1 for a duplicate."""
    sequence = varint(sequence_id)
    entry = varint(entry_id)
    if highest_sequence_id is None:
        before, between = around_ids(producer_id, ledger_id, len(sequence), len(entry), 0)
        return before + sequence + between + entry
    highest = b"\x20" + varint(highest_sequence_id)
    before, between = around_ids(producer_id, ledger_id, len(sequence), len(entry), len(highest))
    return before + sequence + between + entry + highest


@lru_cache(maxsize=4096)
def around_ids(
    producer_id: int, ledger_id: int, sequence_size: int, entry_size: int, highest_size: int
) -> tuple[bytes, bytes]:
    """The bytes of a SEND_RECEIPT before and between its sequence id and its entry id, given the
    sizes of both and of what follows them."""
    producer = _field_one(producer_id)
    ledger = _field_one(ledger_id)
    position_size = len(ledger) + 1 + entry_size
    size = len(producer) + 1 + sequence_size + 2 + position_size + highest_size
    before = _RECEIPT_HEADERS[size] + producer + b"\x10"
    return before, _POSITION[position_size] + ledger + b"\x10"


def send_header(producer_id: int, sequence_id: int, messages: int, entry_size: int) -> bytes:
    """The frame of a SEND without other fields, up to its entry."""
    body = _field_one(producer_id) + b"\x10" + varint(sequence_id)
    if messages != 1:
        body += b"\x18" + varint(messages)
    size = len(body) + 4
    head = _SIZES.pack(size + 4 + entry_size, size)
    return b"%b\x08\x06\x32%c%b" % (head, len(body), body)


class _Heads(dict[int, bytes]):
    """The beginnings of headers by the size of their entries, for the same upper bits."""

    __slots__ = ("_before", "_size")

    def __init__(self, size: int, before: bytes) -> None:
        super().__init__()
        self._size, self._before = size, before

    def __missing__(self, entry_size: int) -> bytes:
        size = self._size
        found = self[entry_size] = _SIZES.pack(size + 4 + entry_size, size) + self._before
        return found


class MessageHeaders:
    """Makes the headers of MESSAGEs that differ only in entry id and size.

    The headers of 128 consecutive entry ids differ in the first byte of the id: everything else is
    encoded once for them.
    """

    __slots__ = (
        "_before",
        "_behind",
        "_bytes",
        "_consumer",
        "_heads",
        "_high",
        "_ledger",
        "_partition",
        "_size",
        "_tail",
    )

    def __init__(
        self,
        consumer_id: int,
        ledger_id: int,
        partition: int = -1,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
        consumer_epoch: int | None = None,
    ) -> None:
        self._consumer = _field_one(consumer_id)
        self._ledger = _field_one(ledger_id) + b"\x10"
        self._partition = b"" if partition == -1 else b"\x18" + cached_varint(partition)
        tail = b"\x18" + varint(redelivery_count) if redelivery_count else b""
        for word in ack_set:
            tail += b"\x20" + varint(word)
        if consumer_epoch is not None:
            tail += b"\x28" + varint(consumer_epoch)
        self._tail = tail
        self._high: int | None = None
        self._size = 0
        self._before = self._behind = b""
        self._heads = _Heads(0, b"")
        self._bytes = LAST

    def header(self, entry_id: int, entry_size: int) -> bytes:
        """The frame of a MESSAGE up to where its entry, ``entry_size`` bytes, begins."""
        high = entry_id >> 7
        if high != self._high:
            self._begin(high)
        size = self._size
        sizes = _SIZES.pack(size + 4 + entry_size, size)
        return sizes + self._before + self._bytes[entry_id & 127] + self._behind

    def frames(self, entry_ids: Sequence[int], entries: Sequence[bytes | memoryview]) -> bytes:
        """The MESSAGEs of entries, one after the other; their ids are ascending."""
        blocks, taken = [], 0
        while taken < len(entry_ids):
            first = entry_ids[taken]
            if (high := first >> 7) != self._high:
                self._begin(high)
            end = bisect_left(entry_ids, high + 1 << 7, taken)
            some, low = entries[taken:end], first & 127
            if entry_ids[end - 1] - first == end - 1 - taken:
                ids = self._bytes[low : low + end - taken]
            else:
                ids = [self._bytes[at & 127] for at in entry_ids[taken:end]]
            heads = map(self._heads.__getitem__, map(len, some))
            parts = zip(heads, ids, repeat(self._behind), some, strict=False)
            blocks.append(b"".join(chain.from_iterable(parts)))
            taken = end
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _begin(self, high: int) -> None:
        """Encode what the entry ids with these upper bits have in common."""
        rest = varint(high) if high else b""
        position_size = len(self._ledger) + 1 + len(rest) + len(self._partition)
        body_size = len(self._consumer) + 2 + position_size + len(self._tail)
        self._before = b"".join(
            (
                b"\x08\x09\x4a",
                varint(body_size),
                self._consumer,
                b"\x12",
                varint(position_size),
                self._ledger,
            )
        )
        self._behind = rest + self._partition + self._tail
        self._bytes = CONTINUED if high else LAST
        self._size = len(self._before) + 1 + len(self._behind)
        self._heads = _Heads(self._size, self._before)
        self._high = high
