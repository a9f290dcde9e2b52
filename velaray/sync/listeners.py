"""Threads that call message listeners, for synchronous clients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from velaray.client.exceptions import VelarayError
from velaray.client.interceptors import Harmless
from velaray.client.message import Message

TURN = 100
"""Messages that one listener gets before the thread serves the next one."""


class Waiting(Protocol):
    """A queue of messages."""

    on_arrival: Callable[[], object] | None

    def get(self, deadline: float | None) -> Message[Any] | None:
        """The next message, None if none comes before the deadline."""
        ...


class Worker:
    """A daemon thread that runs submitted work in order."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        thread = threading.Thread(target=self._run, name="velaray-listener", daemon=True)
        thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def submit(self, work: Callable[[], object]) -> None:
        """Run ``work`` after everything that was submitted before."""
        self._work.put(work)

    def stop(self) -> None:
        """End the thread after all submitted work; doesn't wait for its end."""
        self._work.put(None)


class Workers:
    """The listener threads of a client, started on demand."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._workers: list[Worker] = []
        self._turn = 0
        self._lock = threading.Lock()

    def next(self) -> Worker:
        """The thread for a new consumer, chosen round-robin."""
        with self._lock:
            if len(self._workers) < self._count:
                self._workers.append(Worker())
            self._turn += 1
            return self._workers[(self._turn - 1) % len(self._workers)]

    def stop(self) -> None:
        """End all threads."""
        with self._lock:
            for worker in self._workers:
                worker.stop()


class Listening:
    """Passes one consumer's messages to its listener, in order, on one thread.

    Exceptions of the listener are logged, and the message stays un-acknowledged.
    """

    def __init__(
        self, worker: Worker, waiting: Waiting, listener: Callable[[Message[Any]], object]
    ) -> None:
        self._worker = worker
        self._waiting = waiting
        self._listener = listener
        self._lock = threading.Lock()
        self._planned = False
        self._paused = False
        self._stopped = False
        waiting.on_arrival = self._plan
        self._plan()

    def pause(self) -> None:
        """Stop calling the listener, after the current call."""
        self._paused = True

    def resume(self) -> None:
        """Resume calling the listener after `pause`."""
        self._paused = False
        self._plan()

    def stop(self) -> None:
        """Stop calling the listener permanently, after the current call."""
        self._stopped = True

    def _plan(self) -> None:
        with self._lock:
            if not self._planned and not self._paused and not self._stopped:
                self._planned = True
                self._worker.submit(self._turn)

    def _turn(self) -> None:
        self._planned = False
        for _ in range(TURN):
            if self._paused or self._stopped:
                return
            try:
                message = self._waiting.get(0.0)
            except VelarayError:
                return  # the consumer is closed, or has failed permanently and reported it
            if message is None:
                return
            with Harmless("a message listener"):
                self._listener(message)
        self._plan()
