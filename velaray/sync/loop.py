"""The background thread with the event loop of a synchronous client."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from velaray.client.exceptions import AlreadyClosed, OperationNotSupported

T = TypeVar("T")
_CANCELLED_WITHIN_S = 5.0


class LoopThread:
    """Runs coroutines for other threads, on a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="velaray-client", daemon=True)
        self._stopped = False
        self._stopping = threading.Lock()
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def stopped(self) -> bool:
        """Whether the loop was stopped, which means that its client is closed."""
        return self._stopped

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop, wait, and return its result or raise its error.

        An interrupt (Ctrl-C) cancels ``work``. Raises `AlreadyClosed` if the loop has stopped or
        stops meanwhile, and `OperationNotSupported` on the loop's own thread, where the wait would
        never end.
        """
        try:
            self.forbid_here()
        except OperationNotSupported:
            work.close()
            raise
        with self._stopping:
            if self._stopped:
                work.close()
                raise AlreadyClosed("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except CancelledError:
            if self._stopped:
                raise AlreadyClosed("the client was closed meanwhile") from None
            raise
        finally:
            future.cancel()

    def forbid_here(self) -> None:
        """Raise `OperationNotSupported` on the loop's thread, where a wait would never end."""
        if threading.current_thread() is self._thread:
            raise OperationNotSupported(
                "a callback can't call a blocking method; do it in another thread"
            )

    def call(self, function: Callable[..., object], *args: object) -> bool:
        """Schedule ``function(*args)`` on the loop's thread; returns at once.

        Returns False if the loop has been stopped: the function isn't called then.
        """
        with self._stopping:
            if not self._stopped:
                self.loop.call_soon_threadsafe(function, *args)
            return not self._stopped

    def stop(self) -> None:
        """Stop the loop and end the thread, after everything that `call` accepted before.

        What other threads wait for in `run` is cancelled.
        """
        with self._stopping:
            if self._stopped:
                return
            self._stopped = True
            asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self.loop.close()

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CANCELLED_WITHIN_S)
        self.loop.stop()


class Funnel:
    """Passes work items from any thread to the loop's, many per wake-up, in order.

    ``handle`` takes items from the left of the given deque until it is empty.
    """

    def __init__(self, thread: LoopThread, handle: Callable[[deque[Any]], None]) -> None:
        self._thread = thread
        self._handle = handle
        self._items: deque[Any] = deque()
        self._woken = False

    def put(self, item: object) -> None:
        """Enqueue ``item``; returns at once. Raises `AlreadyClosed` if the loop stopped."""
        # No lock is needed: if `_woken` is set, a scheduled `drain` handles this item. At worst the
        # loop is woken twice.
        self._items.append(item)
        if not self._woken:
            self._woken = True
            if not self._thread.call(self.drain):
                self._items.clear()
                raise AlreadyClosed("the client is closed")

    def drain(self) -> None:
        """Handle all enqueued items; runs on the loop's thread."""
        self._woken = False
        try:
            self._handle(self._items)
        finally:
            if self._items:
                # The loop reports the failure of one item; the remaining items are still handled.
                self._thread.call(self.drain)
