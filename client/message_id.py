"""Message ids in the users' form, with Pulsar's method names, byte form and order."""

from __future__ import annotations

from functools import total_ordering
from typing import ClassVar

from velaray.client.exceptions import InvalidMessage
from velaray.events.ids import INT64_MAX, InvalidMessageIdError, Position
from velaray.events.ids import MessageId as StoredId


@total_ordering
class MessageId:
    """The position of a message: ledger, entry, partition and index within its batch.

    ``partition`` is -1 for a topic without partitions, ``batch_index`` -1 for a message that was
    not sent in a batch. Ids of one partition have the order of the messages. ``MessageId.earliest``
    and ``MessageId.latest`` stand for the two ends of a topic.
    """

    __slots__ = ("_batch_index", "_batch_size", "_entry", "_first_chunk", "_ledger", "_partition",
                 "_topic")  # fmt: skip

    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    def __init__(
        self,
        partition: int = -1,
        ledger_id: int = -1,
        entry_id: int = -1,
        batch_index: int = -1,
        *,
        batch_size: int = 0,
        topic: str | None = None,
        first_chunk: StoredId | None = None,
    ) -> None:
        self._ledger = ledger_id
        self._entry = entry_id
        self._partition = partition
        self._batch_index = batch_index
        self._batch_size = batch_size
        self._topic = topic
        self._first_chunk = first_chunk

    def ledger_id(self) -> int:
        """The ledger that holds the message."""
        return self._ledger

    def entry_id(self) -> int:
        """The entry within the ledger."""
        return self._entry

    def partition(self) -> int:
        """The partition of the topic, -1 if it has none."""
        return self._partition

    def batch_index(self) -> int:
        """The index within the batch, -1 if the message was sent alone."""
        return self._batch_index

    def batch_size(self) -> int:
        """The number of messages in the batch, 0 if the message was sent alone."""
        return self._batch_size

    def topic_name(self) -> str | None:
        """The topic partition that the message came from, if known."""
        return self._topic

    @property
    def position(self) -> Position:
        """The position of the entry that holds the message."""
        return Position(self._ledger, self._entry)

    @property
    def first_chunk(self) -> StoredId | None:
        """The id of a chunked message's first chunk; None for any other message."""
        return self._first_chunk

    def to_stored(self) -> StoredId:
        """Return the id in the form of journals and wire commands."""
        return StoredId(
            self._ledger,
            self._entry,
            self._partition,
            self._batch_index,
            self._batch_size,
            self._first_chunk,
        )

    @classmethod
    def from_stored(cls, stored: StoredId, topic: str | None = None) -> MessageId:
        """Return the user's form of ``stored``."""
        return cls(
            stored.partition,
            stored.ledger_id,
            stored.entry_id,
            stored.batch_index,
            batch_size=stored.batch_size,
            topic=topic,
            first_chunk=stored.first_chunk,
        )

    def serialize(self) -> bytes:
        """Return the byte form, which any Pulsar client can read."""
        return self.to_stored().to_bytes()

    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> MessageId:
        """Read the byte form of `serialize` or another Pulsar client.

        ``topic`` is the message's ``topic_name()``; with it, a consumer of several topics can
        acknowledge by id. Raises `InvalidMessage` if the bytes are not a message id.
        """
        try:
            return MessageId.from_stored(StoredId.from_bytes(message_id_bytes), topic)
        except InvalidMessageIdError as error:
            raise InvalidMessage(str(error)) from error

    def _order(self) -> tuple[int, int, int, int]:
        return (self._ledger, self._entry, self._batch_index, self._partition)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageId) and self._order() == other._order()

    def __lt__(self, other: MessageId) -> bool:
        return self._order() < other._order()

    def __hash__(self) -> int:
        return hash(self._order())

    def __str__(self) -> str:
        return f"({self._ledger},{self._entry},{self._partition},{self._batch_index})"

    def __repr__(self) -> str:
        return f"MessageId{self}"

    def __reduce__(self) -> tuple[object, tuple[bytes, str | None]]:
        return (MessageId.deserialize, (self.serialize(), self._topic))


MessageId.earliest = MessageId()
MessageId.latest = MessageId(-1, INT64_MAX, INT64_MAX)
