"""Work in several threads, the failure of one of which is the failure of all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

READY_WITHIN_S = 60.0
Ready = Callable[[], None]


class Crew:
    """Threads that get ready together, and whose failures are raised where they are awaited.

    Each is given a function to call when it's ready; that returns when all of them are.
    """

    def __init__(self, work: Sequence[Callable[[Ready], None]]) -> None:
        self._failed: list[Exception] = []
        self._barrier = threading.Barrier(len(work) + 1, timeout=READY_WITHIN_S)
        self._threads = [
            threading.Thread(target=self._guarded, args=(one,), daemon=True) for one in work
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[[Ready], None]) -> None:
        try:
            work(self._ready)
        except Exception as error:  # noqa: BLE001 - whatever it is, it's raised by the caller
            self._failed.append(error)
            self._barrier.abort()

    def _ready(self) -> None:
        self._barrier.wait()

    def wait_ready(self) -> None:
        """Wait until every thread is ready. Raises what one failed with."""
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            self.check()
            raise

    def check(self) -> None:
        """Raise what a thread failed with first, if one did."""
        if self._failed:
            raise self._failed[0]

    def join(self, within_s: float) -> None:
        """Wait for all of them. Raises what one failed with, or `TimeoutError`."""
        for thread in self._threads:
            thread.join(within_s)
            self.check()
            if thread.is_alive():
                raise TimeoutError(f"not done within {within_s:g} s")
