"""The position where a consumer begins to read a topic partition, also after reconnects. No I/O."""

from __future__ import annotations

from typing import Any

from velaray.client.acks import Where, of_one_cluster
from velaray.client.entries import origin_of
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.subscription import Subscription
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids_pb2 import MessageIdData

CHUNKED_KEPT = 100
"""Number of chunked messages that a reader tracks before it drops those that were taken."""
_END_OF_BATCH = (1 << 31) - 1


class ReadPosition:
    """The start position of the next subscribing.

    The service keeps the position of durable subscriptions. Other subscriptions continue behind the
    last message that the user took.
    """

    def __init__(self, subscription: Subscription) -> None:
        self.taken: Message[Any] | None = None
        """The last message that the user took, unless the subscription is durable."""
        self.sought: MessageId | int | None = None
        """The target of a seek, until the next subscribing."""
        self.delivered = False
        """Whether the service delivered anything since the last seek."""
        self.start = subscription.start
        self.inclusive = subscription.start_inclusive
        self._subscription = subscription
        self._chunked: dict[Where, Where] = {}  # without a cursor: last chunk to first chunk
        self._back_to: Where | None = None

    @property
    def origin(self) -> Where | None:
        """The position of the last taken message in the cluster that it was replicated from."""
        if self._subscription.durable or self.taken is None:
            return None
        return origin_of(self.taken.info.metadata)

    def restart(self, oldest_chunk: Where | None) -> bool:
        """Prepare the next subscribing; True if it invalidates earlier acknowledgements.

        ``oldest_chunk`` is the first chunk of the incomplete messages.
        """
        void = False
        if self.sought is not None:
            void = True
            self._back_to = None
            self._chunked.clear()
            self.taken = None
            self.start = self.sought if isinstance(self.sought, MessageId) else None
            self.inclusive = self._subscription.start_inclusive
            self.sought = None
            self.delivered = False
        elif self._subscription.durable and self.delivered:
            # Another client may have moved the subscription back, to before the start.
            self.start = None
        if not self._subscription.durable and self.taken is not None:
            self.start, self.inclusive = self.taken.message_id(), False
            void = self._go_back(self.start.position, oldest_chunk)
        return void

    def _go_back(self, taken: Where, oldest: Where | None) -> bool:
        """Begin at the first chunk of an unread message, even if later messages were taken."""
        self._chunked = {
            last: first
            for last, first in self._chunked.items()
            if last > taken and of_one_cluster(last, taken)
        }
        firsts = [*self._chunked.values(), *filter(None, (oldest, self._back_to))]
        back = min(firsts, default=taken)
        self._back_to = back if back < taken else None
        # Entries that are acknowledged with the taken message wouldn't be delivered.
        return self._back_to is not None

    def start_for_service(self, partition: int) -> MessageIdData | None:
        """The start position to send to the service; None if the service stores the position."""
        if self._subscription.durable or self.start is None:
            return None
        start = self.start.to_stored()
        if self._back_to is not None:
            start = StoredId(*self._back_to, partition)
        return start.to_proto()

    def was_read(self, where: Where) -> bool:
        """Whether an entry was already taken, and is delivered again only for later chunks."""
        if self._back_to is not None:
            start = where if self.start is None else self.start.position
            if where < start and of_one_cluster(where, start):
                return True
            self._back_to = None
        return False

    def note_chunked(self, last: Where, first: Where) -> None:
        """Store where the chunks of a complete message begin, unless the service does."""
        if self._subscription.durable:
            return
        if self.taken is not None and len(self._chunked) > CHUNKED_KEPT:
            taken = self.taken.message_id().position
            self._chunked = {at: begin for at, begin in self._chunked.items() if at > taken}
        self._chunked[last] = first

    def finished(self, where: Where) -> None:
        """Clear the start at this entry: after its acknowledgement a seek back reads all of it."""
        start = self.start
        if start is not None and self._subscription.durable and start.position == where:
            self.start = None

    def hold(self, marked: MessageId, partition: int) -> None:
        """Begin behind ``marked`` from now on."""
        at = (partition, marked.ledger_id(), marked.entry_id())
        self.start, self.inclusive = MessageId(*at, batch_index=_END_OF_BATCH), False

    def is_before(self, last: MessageId, marked: MessageId) -> bool:
        """Whether the topic's ``last`` message is still unread; ``marked`` is acknowledged."""
        at = self.start if self.taken is None else self.taken.message_id()
        if at is None or at == MessageId.latest or not of_one_cluster(at.position, last.position):
            return last.position > marked.position
        return last >= at if self.inclusive and self.taken is None else last > at
