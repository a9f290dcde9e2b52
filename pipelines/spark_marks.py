"""A streaming query's view of its topics in the driver: their ends, and the retention mark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from velaray import Consumer, ConsumerType, InitialPosition, MessageId
from velaray.client.exceptions import TopicNotFound
from velaray.client.read_bounds import Span, SpanLimits
from velaray.client.retention_marks import RETENTION_MARK, SPARK
from velaray.pipelines.spark_offsets import Progress
from velaray.pipelines.spark_positions import Place, Start, number_of
from velaray.pipelines.spark_reading import Origin

T = TypeVar("T")

AT_ONCE = 16
"""Number of partitions that are asked at the same time."""


class Marks:
    """A durable subscription on every partition of some topics; it receives no messages.

    It prevents the trimming of messages that the query may read again, and looks up positions.
    """

    def __init__(self, origin: Origin, subscription: str) -> None:
        self._origin = origin
        self._client = origin.service.client()
        self._subscription = subscription
        self._consumers: dict[str, Consumer] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, "velaray-marks")

    def begin(self, start: Start, *, create: bool = False) -> dict[str, Progress]:
        """Move the marks to the start of a new query, and return that start.

        ``create``: create named topics that don't exist. Otherwise this raises `TopicNotFound`.
        """
        if create:
            for topic in self._origin.names:
                self._client.get_topic_partitions(topic)
        names = self._origin.partitions(self._client)
        self.hold(names)
        start.check(names)
        self._each(names, lambda name: self._consumers[name].seek(start.target(name)))
        # A mark may be an entry before the message that is its target.
        ids, sought = start.ids or {}, self._each(names, self._position)
        begun = {name: Progress(ids.get(number_of(name), at)) for name, (_, at) in sought.items()}
        found = self.look_to(begun, begun)
        return {name: Progress.at_end_of(span) for name, span in found.items()}

    def update(self) -> tuple[list[str], dict[str, TopicNotFound]]:
        """Subscribe to new partitions; return the result of `Origin.look`.

        A new subscription keeps everything from the partition's beginning on.
        """
        names, missing = self._origin.look(self._client)
        self.hold(names)
        return names, missing

    def hold(self, partitions: Iterable[str]) -> None:
        """Subscribe to these partitions, except those that are already subscribed."""
        missing = [name for name in partitions if name not in self._consumers]
        self._consumers.update(self._each(missing, self._subscribed))

    def _subscribed(self, partition: str) -> Consumer:
        return self._client.subscribe(
            partition,
            self._subscription,
            ConsumerType.Failover,
            receiver_queue_size=0,
            initial_position=InitialPosition.Earliest,
            subscription_properties={RETENTION_MARK: SPARK},
        )

    def look(
        self, progress: Mapping[str, Progress], limits: Mapping[str, SpanLimits]
    ) -> dict[str, Span]:
        """Return the next step in each of these partitions."""

        def span(name: str) -> Span:
            step = (progress[name].spot(name), limits[name])
            return self._consumers[name].get_spans({name: step})[name]

        return self._each(list(progress), span)

    def look_to(
        self, begun: Mapping[str, Progress], ends: Mapping[str, Progress]
    ) -> dict[str, Span]:
        """Return the steps that were planned before."""
        limits = {name: _up_to(ends[name]) for name in begun.keys() & ends.keys()}
        return self.look({name: begun[name] for name in limits}, limits)

    def ends(self) -> dict[str, Place]:
        """Return the end of each partition for readers."""
        return {
            name: last for name, (last, _) in self._each(self._consumers, self._position).items()
        }

    def _position(self, name: str) -> tuple[Place, Place]:
        last, at = self._consumers[name].get_positions()[name]
        return Place.of(last), Place.of(at)

    def move(self, read: Mapping[str, Place]) -> None:
        """Move the marks here: the query will never read anything up to these positions again."""
        for name, place in read.items():
            if place.entry >= 0 and name in self._consumers:
                message_id = MessageId(number_of(name), place.ledger, place.entry, topic=name)
                self._consumers[name].acknowledge_cumulative(message_id)

    def drop(self, partitions: Iterable[str]) -> None:
        """Drop these deleted partitions."""
        for name in partitions:
            consumer = self._consumers.pop(name, None)
            if consumer is not None:
                consumer.close()

    def _each(self, names: Iterable[str], work: Callable[[str], T]) -> dict[str, T]:
        names = list(names)
        if len(names) < 2:
            return {name: work(name) for name in names}
        return dict(zip(names, self._pool.map(work, names), strict=True))

    def close(self) -> None:
        """Leave the subscriptions; they remain, with the messages that they keep."""
        self._pool.shutdown()
        self._client.close()


def _up_to(progress: Progress) -> SpanLimits:
    return SpanLimits(until=MessageId(-1, *progress.after))
