"""What a streaming query's driver knows of its topics: where they end, and its retention mark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from velaray import Consumer, ConsumerType, InitialPosition, MessageId
from velaray.client.exceptions import TopicNotFound
from velaray.client.read_bounds import Span, SpanLimits
from velaray.pipelines.spark_offsets import Progress
from velaray.pipelines.spark_positions import Place, Start, number_of
from velaray.pipelines.spark_reading import Origin

T = TypeVar("T")

AT_ONCE = 16
"""Partitions that are asked at the same time."""


class Marks:
    """A durable subscription on every partition of some topics, which receives nothing.

    It keeps what the query may read again from being trimmed, and tells where things are.
    """

    def __init__(self, origin: Origin, subscription: str) -> None:
        self._origin = origin
        self._client = origin.service.client()
        self._subscription = subscription
        self._consumers: dict[str, Consumer] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, "velaray-marks")

    def begin(self, start: Start) -> dict[str, Progress]:
        """Move the marks to where a new query begins, and return where that is.

        Raises `TopicNotFound`.
        """
        names = self._origin.partitions(self._client)
        self.hold(names)
        start.check(names)
        self._each(names, lambda name: self._consumers[name].seek(start.target(name)))
        # A mark may be an entry before the message that it was moved to.
        ids, sought = start.ids or {}, self._each(names, self._position)
        begun = {name: Progress(ids.get(number_of(name), at)) for name, (_, at) in sought.items()}
        found = self.look_to(begun, begun)
        return {name: Progress.at_end_of(span) for name, span in found.items()}

    def update(self) -> tuple[list[str], dict[str, TopicNotFound]]:
        """Look for partitions that are new and subscribe to them; returns what `Origin.look` does.

        A subscription that is made here keeps everything from the partition's beginning on.
        """
        names, missing = self._origin.look(self._client)
        self.hold(names)
        return names, missing

    def hold(self, partitions: Iterable[str]) -> None:
        """Subscribe to those of these partitions that this doesn't hold yet."""
        missing = [name for name in partitions if name not in self._consumers]
        self._consumers.update(self._each(missing, self._subscribed))

    def _subscribed(self, partition: str) -> Consumer:
        return self._client.subscribe(
            partition,
            self._subscription,
            ConsumerType.Failover,
            receiver_queue_size=0,
            initial_position=InitialPosition.Earliest,
        )

    def look(
        self, progress: Mapping[str, Progress], limits: Mapping[str, SpanLimits]
    ) -> dict[str, Span]:
        """What comes next in each of these partitions."""

        def span(name: str) -> Span:
            step = (progress[name].spot(name), limits[name])
            return self._consumers[name].get_spans({name: step})[name]

        return self._each(list(progress), span)

    def look_to(
        self, begun: Mapping[str, Progress], ends: Mapping[str, Progress]
    ) -> dict[str, Span]:
        """What is known of steps that were planned before."""
        limits = {name: _up_to(ends[name]) for name in begun.keys() & ends.keys()}
        return self.look({name: begun[name] for name in limits}, limits)

    def ends(self) -> dict[str, Place]:
        """Where each partition ends for readers."""
        return {
            name: last for name, (last, _) in self._each(self._consumers, self._position).items()
        }

    def _position(self, name: str) -> tuple[Place, Place]:
        last, at = self._consumers[name].get_positions()[name]
        return Place.of(last), Place.of(at)

    def move(self, read: Mapping[str, Place]) -> None:
        """The query will never read again what is up to these places."""
        for name, place in read.items():
            if place.entry >= 0 and name in self._consumers:
                message_id = MessageId(number_of(name), place.ledger, place.entry, topic=name)
                self._consumers[name].acknowledge_cumulative(message_id)

    def drop(self, partitions: Iterable[str]) -> None:
        """These are gone."""
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
        """Leave the subscriptions; they stay, and so does what they keep."""
        self._pool.shutdown()
        self._client.close()


def _up_to(progress: Progress) -> SpanLimits:
    return SpanLimits(until=MessageId(-1, *progress.after))
