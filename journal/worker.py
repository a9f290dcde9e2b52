"""A thread that does blocking calls for an event loop, with the least overhead for the answer.

A commit is two hops between threads and a sync; on a fast disk the hops of an executor cost
half as much as the sync. Here a call goes through one queue, and its outcome comes back
through a counter that the loop watches: no locks of futures, no socket pair.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Any, Final, Generic, TypeVar, cast
from weakref import ReferenceType, ref

from velaray.journal.errors import Misuse

HAS_BELL: Final = sys.platform == "linux"
"""Whether the system has event counters that a loop can watch; otherwise ``call_soon_threadsafe``
is used."""

TIDY_S: Final = 1.0

T = TypeVar("T")


class _Job(Generic[T]):
    """A call and its outcome. As a context manager, it keeps an exception for the caller."""

    __slots__ = ("call", "error", "future", "loop", "result")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> None:
        self.loop = loop
        self.future: asyncio.Future[T] = loop.create_future()
        self.call = call
        self.result: T | None = None
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.error = error
        return True

    def answer(self) -> None:
        """Give the outcome to the caller, on its loop."""
        if self.future.done():
            return  # the caller was cancelled
        if self.error is None:
            self.future.set_result(cast(T, self.result))
        else:
            self.future.set_exception(self.error)


class Worker:
    """One thread that runs calls one after the other, in the order of `run`.

    It starts with the first call. The loop of that call is notified directly, through a file
    descriptor; other loops that use the same worker are notified by ``call_soon_threadsafe``.
    """

    def __init__(self, name: str, tidy: Callable[[], bool] | None = None) -> None:
        """``tidy`` runs on the thread too, at intervals of `TIDY_S` while there are calls or it
        returns True, which means that it has more to do later."""
        self._name = name
        self._tidy = tidy
        self._tidy_at_s = 0.0
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._done: deque[_Job[Any]] = deque()
        self._home: asyncio.AbstractEventLoop | None = None
        self._bell = -1
        self._thread: Thread | None = None
        self._ended = False
        self._newest: ReferenceType[asyncio.Future[Any]] | None = None
        """Weak: a future has its result, which may be large."""

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Start ``call``; the future has its result or what it raised.

        A call whose future is cancelled is executed all the same. Raises `Misuse` after `end`.
        """
        if self._ended:
            raise Misuse(f"{self._name}: the store is closed")
        job = _Job(asyncio.get_running_loop(), call)
        if self._thread is None:
            self._start(job.loop)
        self._jobs.put(job)
        self._newest = ref(job.future)
        return job.future

    def job_in_work(self) -> asyncio.Future[Any] | None:
        """The newest call, if it is one of the running loop and hasn't ended."""
        newest = None if self._newest is None else self._newest()
        if newest is None or newest.done() or newest.get_loop() is not asyncio.get_running_loop():
            return None
        return newest

    async def end(self) -> None:
        """End the thread after the calls that were started, and return when it has answered
        them. Idempotent."""
        if self._ended:
            return
        last = self.run(int) if self._thread is not None else None
        self._ended = True
        self._jobs.put(None)
        if last is None:
            return
        await last
        if self._bell >= 0 and self._home is not None:
            if not self._home.is_closed():
                self._home.remove_reader(self._bell)
            os.close(self._bell)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if HAS_BELL:
            self._home, self._bell = loop, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            loop.add_reader(self._bell, self._answer)
        # A process may end without closing its store: unconfirmed writes may or may not be stored
        # then, as after a crash.
        self._thread = Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            with job:
                job.result = job.call()
            if job.loop is self._home:
                self._done.append(job)
                os.eventfd_write(self._bell, 1)
            else:
                with suppress(RuntimeError):  # the loop is closed, so there is no caller
                    job.loop.call_soon_threadsafe(job.answer)
            del job  # a caller's buffers must not live until the next call

    def _next(self) -> _Job[Any] | None:
        """Wait for a call, and tidy meanwhile; None is the end."""
        if self._tidy is None:
            return self._jobs.get()
        while True:
            if monotonic() >= self._tidy_at_s:
                again = self._tidy()
                self._tidy_at_s = monotonic() + TIDY_S
                if not again:
                    return self._jobs.get()
            with suppress(Empty):
                return self._jobs.get(timeout=TIDY_S)

    def _answer(self) -> None:
        os.eventfd_read(self._bell)
        while self._done:
            self._done.popleft().answer()
