"""Consumers of the load generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from velaray.bench.meter import Meter
from velaray.bench.stamps import Stamps
from velaray.client.blocks import Segment
from velaray.client.consumer import Consumer

_NS_PER_MS = 1_000_000


class Receiving:
    """What all consumers of a run share: the counts."""

    def __init__(self, clock: Callable[[], int], stamps: Stamps, after_ns: int) -> None:
        self._clock = clock
        self._stamps = stamps
        self.meter = Meter(after_ns)
        self.own = 0
        """Received messages of this run, those of the warm-up included."""
        self.acknowledged = 0
        """Acknowledged messages since the end of the warm-up."""
        self._after_ns = after_ns

    async def run(self, consumer: Consumer[Any]) -> None:
        """Receive and acknowledge until cancelled."""
        while True:
            batch = await consumer.receive_many()
            now_ns = self._clock()
            for segment in batch.segments:
                self._count(segment, now_ns)
            await consumer.acknowledge_many(batch)
            if now_ns >= self._after_ns:
                self.acknowledged += len(batch)

    def _count(self, segment: Segment, now_ns: int) -> None:
        published_ns = segment.block.info.metadata.publish_time * _NS_PER_MS
        values = segment.values()
        if values[0] == values[-1]:  # of one call of send_many: all are the same
            self._count_same(values[0], len(values), published_ns, now_ns)
            return
        for value in values:
            self._count_same(value, 1, published_ns, now_ns)

    def _count_same(self, value: bytes, count: int, published_ns: int, now_ns: int) -> None:
        intended_ns, own = self._stamps.read(value)
        if intended_ns is None:
            intended_ns = published_ns
        self.own += own * count
        self.meter.count(intended_ns, now_ns, count, len(value) * count)
