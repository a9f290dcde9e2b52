"""What a streaming query's driver knows of its topics: where they end, and its retention mark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from velaray import Client, Consumer, ConsumerType, InitialPosition, MessageId
from velaray.pipelines.spark_positions import Place, Positions, Start, number_of


class Marks:
    """A durable subscription on every partition of some topics, which receives nothing.

    It keeps what the query may read again from being trimmed, and tells where things are.
    """

    def __init__(self, service_url: str, topics: Sequence[str], subscription: str) -> None:
        self._client = Client(service_url)
        self._topics = topics
        self._subscription = subscription
        self._consumers: dict[str, Consumer] = {}

    def begin(self, start: Start) -> Positions:
        """Move the marks to where a new query begins, and return where that is."""
        self.update()
        start.check(self._consumers)
        for name, consumer in self._consumers.items():
            consumer.seek(start.target(name))
        # A mark may be an entry before the message that it was moved to.
        ids = start.ids or {}
        return {name: ids.get(number_of(name), at) for name, (_, at) in self._places().items()}

    def update(self) -> None:
        """Subscribe to partitions that are new, from their beginning."""
        for topic in self._topics:
            self._hold(self._client.get_topic_partitions(topic), InitialPosition.Earliest)

    def resume(self, begun: Positions) -> dict[str, Place]:
        """Subscribe again to the partitions that a query has ``begun``; returns lost marks.

        A mark that is gone comes back at the end, though there is more to read before it. One
        that is there is never behind what the query hasn't read, but for entries that nobody gets.
        """
        lost = {}
        for name in begun.keys() - self._consumers.keys():
            with self._client.create_reader(
                name, MessageId.latest, receiver_queue_size=0
            ) as reader:
                last = Place.of(reader.get_positions()[name][0])
            self._hold([name], InitialPosition.Latest)
            at = Place.of(self._consumers[name].get_positions()[name][1])
            if at >= last > begun[name]:
                lost[name] = at
        return lost

    def _hold(self, partitions: Iterable[str], position: InitialPosition) -> None:
        for name in partitions:
            if name not in self._consumers:
                self._consumers[name] = self._client.subscribe(
                    name,
                    self._subscription,
                    ConsumerType.Failover,
                    receiver_queue_size=0,
                    initial_position=position,
                )

    def _places(self) -> dict[str, tuple[Place, Place]]:
        found = {}
        for name, consumer in self._consumers.items():
            last, at = consumer.get_positions()[name]
            found[name] = (Place.of(last), Place.of(at))
        return found

    def ends(self, start: Positions) -> Positions:
        """Where each partition ends for who has read up to ``start``."""
        return {
            name: max(last, start.get(name, last)) for name, (last, _) in self._places().items()
        }

    def move(self, read: Positions) -> None:
        """The query will never read again what is up to ``read``."""
        for name, place in read.items():
            if place.entry >= 0 and name in self._consumers:
                message_id = MessageId(number_of(name), place.ledger, place.entry, topic=name)
                self._consumers[name].acknowledge_cumulative(message_id)

    def close(self) -> None:
        """Leave the subscriptions; they stay, and so does what they keep."""
        self._client.close()
