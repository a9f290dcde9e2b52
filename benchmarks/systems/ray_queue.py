"""ray.util.queue: what Ray's users have today. In the memory of one actor; nothing is kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import ray
from ray.util.queue import Empty, Queue

from benchmarks.contract import Done

BATCH = 500
_WAIT_S = 0.2
OBJECT_STORE_BYTES = 200 << 20


class RayQueue:
    """A topic is a queue, and has one subscription."""

    def __init__(self) -> None:
        self.settings = {
            "server": "ray.util.queue.Queue, an actor in memory, neither durable nor acknowledged",
            "client": f"put_nowait_batch and get_nowait_batch of {BATCH}; latency: put and get",
            "version": ray.__version__,
        }

    def __enter__(self) -> Self:
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
        )
        self._queues: dict[str, Queue] = {}
        self._pids: list[int] = []
        return self

    def __exit__(self, *exc: object) -> None:
        ray.shutdown()

    def servers(self) -> Iterable[int]:
        """See `benchmarks.contract.Peer`."""
        return self._pids

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        """See `benchmarks.contract.Peer`."""
        queue = Queue()
        self._queues[topic] = queue
        self._pids.append(ray.get(queue.actor.__ray_call__.remote(lambda actor: os.getpid())))

    def remove(self, topic: str) -> None:
        """See `benchmarks.contract.Peer`."""
        self._queues.pop(topic).shutdown(force=True)
        self._pids.clear()

    @contextmanager
    def sender(self, topic: str, way: str) -> Iterator[_Sender]:
        """See `benchmarks.contract.Peer`."""
        yield _Sender(self._queues[topic])

    single_sender = sender

    @contextmanager
    def taker(self, topic: str, subscription: str, way: str) -> Iterator[_Taker]:
        """See `benchmarks.contract.Peer`."""
        yield _Taker(self._queues[topic])


class _Sender:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def send_many(self, payload: bytes, count: int) -> None:
        for first in range(0, count, BATCH):
            self._queue.put_nowait_batch([payload] * min(BATCH, count - first))

    def wait(self) -> None:
        """Every call returned when the actor had the items."""

    def send_each(self, payloads: Sequence[bytes], done: Done) -> None:
        for payload in payloads:
            self._queue.put(payload)
            done(payload)


class _Taker:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def take(self, most: int) -> int:
        wanted = min(most, BATCH, self._queue.size())
        return len(self._queue.get_nowait_batch(wanted)) if wanted else 0

    def take_payloads(self) -> list[bytes]:
        try:
            return [self._queue.get(timeout=_WAIT_S)]
        except Empty:
            return []

    def finish(self) -> None:
        """There are no acknowledgements."""
