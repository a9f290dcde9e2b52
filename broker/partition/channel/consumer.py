"""A consumer on a partition's socket, and the entries granted to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from velaray.broker.subscription.messages import AddPermits
from velaray.topology.flow import Activity, Flow
from velaray.topology.messages import Message
from velaray.topology.rpc import RpcConnectionClosed
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.connection import WireConnection

LISTENS_AFTER_S = 1.0
"""The time after which a subscribed client is assumed to listen, if it requests nothing before."""


@dataclass(slots=True)
class Grant:
    """Consecutive entries that the dispatcher granted to a consumer and that aren't written yet."""

    first: int
    count: int
    redelivery_count: int
    ack_set: Sequence[int]
    epoch: int | None = None

    def continues(self, other: Grant) -> bool:
        """Whether its entries are behind those of ``other``, and are written alike."""
        return (
            self.first >= other.first + other.count
            and self.redelivery_count == other.redelivery_count
            and self.epoch == other.epoch
            and not self.ack_set
            and not other.ack_set
        )

    def overlaps(self, ranges: Sequence[int]) -> bool:
        """Whether one of its entries is in the ranges (first, last + 1, first, ...)."""
        end = self.first + self.count
        return any(
            first < end and self.first < stop
            for first, stop in zip(ranges[::2], ranges[1::2], strict=True)
        )


class ConsumerSession(Protocol):
    """The protocol of a client's connection."""

    connection: WireConnection

    @property
    def client_version(self) -> str:
        """The name and version of the client's program."""
        ...

    @property
    def knows_end_of_topic(self) -> bool:
        """Whether the client understands REACHED_END_OF_TOPIC."""
        ...

    def consumer_closed(self, consumer: ChannelConsumer) -> None:
        """Note that the channel has removed the consumer."""
        ...


class Delivery(Protocol):
    """What a consumer needs of the deliveries of its channel."""

    def more_permits(self, consumer: ChannelConsumer, permits: int) -> None:
        """The client of a consumer can take that many more messages."""
        ...


class Channel(Protocol):
    """What a consumer needs of its channel."""

    traffic: Flow
    activity: Activity
    clock_ms: Callable[[], int]

    @property
    def delivery(self) -> Delivery:
        """The deliveries to consumers."""
        ...

    def next_number(self) -> int:
        """A number for a consumer that was not used on this channel before."""
        ...

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher, after a report of what was delivered under the lease."""
        ...


class ChannelConsumer:
    """A consumer on this partition's socket, and the entries granted to it."""

    def __init__(
        self,
        channel: Channel,
        session: ConsumerSession,
        consumer_id: int,
        name: str,
        kind: int,
    ) -> None:
        self.channel = channel
        self.session = session
        self.connection = session.connection
        self.consumer_id = consumer_id
        self.number = channel.next_number()
        self.name = name
        self.type = kind
        # The newest redelivery request that the dispatcher has; None if the client doesn't number
        # them.
        self.epoch: int | None = None
        self.grants: deque[Grant] = deque()
        #: The place before which it has acknowledged the entries of an origin, by the origin's
        #: number.
        self.acked_up_to: dict[int, int] = {}
        self.flowed = 0  # messages that the client ever requested
        self.connected_ms = channel.clock_ms()
        self.traffic = Flow(self.connected_ms, channel.traffic)
        self.activity = Activity()
        self.metadata: dict[str, str] = {}
        self.loading: asyncio.Task[None] | None = None
        self.attaching: asyncio.Future[None] | None = None
        self.subscribed = False  # the client has the answer
        self.request_id = 0  # the command that subscribed it
        self.auto_consume = False  # it takes messages of any schema
        self.closed = False
        self.ends = False  # it reaches the end of the topic with the last of its grants
        self._active: bool | None = None
        self._listening = False
        self._listens_later: asyncio.TimerHandle | None = None

    def flow(self, permits: int) -> None:
        """The client can take that many more messages."""
        self._listen()
        self.flowed += permits
        self.activity.flowed_ms = self.channel.activity.flowed_ms = self.channel.clock_ms()
        self.channel.tell(AddPermits(self.number, permits))
        self.channel.delivery.more_permits(self, permits)

    def answered(self) -> None:
        """Note that the client has the answer to SUBSCRIBE."""
        self.subscribed = True
        loop = asyncio.get_running_loop()
        self._listens_later = loop.call_later(LISTENS_AFTER_S, self._listen)

    def wrote(self, count: int) -> None:
        """Remove the first ``count`` granted entries, which are written."""
        while count:
            grant = self.grants[0]
            if count < grant.count:
                grant.first += count
                grant.count -= count
                return
            count -= grant.count
            self.grants.popleft()

    def set_active(self, active: bool) -> None:
        """Set whether the consumer is the active one; the client is notified once it listens."""
        self._active = active
        if self._listening:
            self._tell_active(active)

    def _listen(self) -> None:
        """The Go client ignores ACTIVE_CONSUMER_CHANGE until it has handled the answer to
        SUBSCRIBE. Its first permits show that it has; some clients send none before they
        receive."""
        if not self._listening:
            self._listening = True
            if self._active is not None:
                self._tell_active(self._active)

    def _tell_active(self, active: bool) -> None:
        self.connection.send(
            pb.CommandActiveConsumerChange(consumer_id=self.consumer_id, is_active=active)
        )

    def reach_end(self) -> None:
        """Tell the client that the topic ends here, after the entries that are granted to it."""
        self.ends = bool(self.grants)
        if not self.grants and self.session.knows_end_of_topic:
            self.connection.send(pb.CommandReachedEndOfTopic(consumer_id=self.consumer_id))

    def acknowledges(self) -> None:
        """The client acknowledges something."""
        self.activity.acked_ms = self.channel.activity.acked_ms = self.channel.clock_ms()

    def close(self) -> None:
        """Drop granted entries that aren't written yet."""
        self.closed = True
        if self._listens_later is not None:
            self._listens_later.cancel()
        self.grants.clear()
        if self.loading is not None:
            self.loading.cancel()
        if self.attaching is not None and not self.attaching.done():
            self.attaching.set_exception(
                RpcConnectionClosed("the subscription let go of its consumers")
            )


def answer_ack(
    consumer: ChannelConsumer, request_id: int, code: pb.ServerError, error: str | None
) -> None:
    """Answer an acknowledgement that asked for a receipt; ``error`` None: it is durable."""
    answer = pb.CommandAckResponse(consumer_id=consumer.consumer_id, request_id=request_id)
    if error is not None:
        answer.error = code
        answer.message = error
    consumer.connection.send(answer)
