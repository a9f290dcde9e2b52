"""Clocks of latency: when messages are due, and how long each took."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Sequence

ARRIVED_WITHIN_S = 60.0
LATE_NS = 2_000_000
_PR_SET_TIMERSLACK = 29
_STAMP = 8


def pace(rate: int, count: int, size: int, send: Callable[[list[bytes]], None]) -> None:
    """Call ``send`` with each of ``count`` messages when it is due; with several if it's late.

    A message bears the time that it was sent; if it left more than 2 ms late, because sending
    an earlier one took that long, it bears the time it was due.
    """
    # Timers of Linux fire up to 50 µs late by default, to save wake-ups.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    pause = threading.Event()
    first = time.perf_counter_ns()
    number = 0
    while number < count:
        due = first + number * 1_000_000_000 // rate
        now = time.perf_counter_ns()
        if now < due:
            pause.wait((due - now) / 1e9)
            continue
        ready = min(count, (now - first) * rate // 1_000_000_000 + 1)
        send([_stamped(first + n * 1_000_000_000 // rate, now, size) for n in range(number, ready)])
        number = ready


def _stamped(due: int, now: int, size: int) -> bytes:
    begun = due if now - due > LATE_NS else now
    return begun.to_bytes(_STAMP).ljust(size, b"x")


def started_ns(payload: bytes) -> int:
    """When the message with this payload began, on the clock of `time.perf_counter_ns`."""
    return int.from_bytes(payload[:_STAMP])


class Clock:
    """Collects how long each of ``count`` messages took."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._took: list[int] = []
        self._all = threading.Event()

    def stop(self, payload: bytes) -> None:
        """The message with this payload has arrived."""
        self._took.append(time.perf_counter_ns() - started_ns(payload))
        if len(self._took) == self._count:
            self._all.set()

    def wait(self) -> None:
        """Until all have arrived. Raises `TimeoutError` after a minute."""
        if not self._all.wait(ARRIVED_WITHIN_S):
            raise TimeoutError(f"{len(self._took)} of {self._count} messages arrived")

    def percentiles(self, skipped: int, shares: Sequence[float]) -> list[float]:
        """These percentiles in microseconds, without the first ``skipped`` messages."""
        values = sorted(self._took[skipped:])
        return [percentile(values, share) / 1e3 for share in shares]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of these, sorted, that at least the share (in percent) of all don't exceed."""
    return values[math.ceil(len(values) * share / 100) - 1]
