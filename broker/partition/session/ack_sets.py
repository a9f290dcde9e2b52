"""Reading the message ids of acknowledgements."""

from __future__ import annotations

from velaray.broker.partition.session.protocols import PartitionLog
from velaray.events.ids import MessageId, Position
from velaray.events.ids_pb2 import MessageIdData
from velaray.wire import pulsar_pb2 as pb

MOST_MESSAGES = 1 << 20
"""The greatest number of bits in the ack set of an entry that isn't in memory."""

_WORD = (1 << 64) - 1


def position_of(command: pb.CommandAck) -> Position:
    """Return the position of a cumulative acknowledgement."""
    return MessageId.from_proto(command.message_id[0]).position


def words_of(data: MessageIdData) -> list[int]:
    """Return the ack set as unsigned words."""
    return [word & _WORD for word in data.ack_set]


def remaining_words(data: MessageIdData) -> list[int] | None:
    """Return what remains of a batch; None if the whole entry is acknowledged."""
    return words_of(data) if any(data.ack_set) else None


def fault_of_ack_set(log: PartitionLog, offset: int, words: int) -> str:
    """Return why an ack set of ``words`` words can't belong to the entry; "" if it can."""
    entry = log.cache.get(offset)
    messages = MOST_MESSAGES if entry is None else entry.messages
    if words <= (messages + 63) // 64:
        return ""
    return f"an ack_set of {words} words is too long: the batch has at most {messages} messages"
