"""Counters of one direction: sending or receiving."""

from __future__ import annotations

from dataclasses import dataclass, field

from velaray.bench.histogram import Histogram


@dataclass(slots=True)
class Figures:
    """Counts over a time."""

    messages: int = 0
    size: int = 0
    """Bytes of payloads."""
    failures: int = 0
    latency: Histogram = field(default_factory=Histogram)

    def add(self, other: Figures) -> None:
        """Add the counts of another time."""
        self.messages += other.messages
        self.size += other.size
        self.failures += other.failures
        self.latency.add(other.latency)


class Meter:
    """Counts since the last interval began, and in all."""

    def __init__(self, after_ns: int) -> None:
        """Messages that were intended before ``after_ns`` belong to the warm-up: only the
        numbers `stored` and `failed` include them."""
        self._after_ns = after_ns
        self._now = Figures()
        self.total = Figures()
        self.ended_ns = after_ns
        """When the last message was counted."""
        self.stored = 0
        self.failed = 0

    def count(self, intended_ns: int, now_ns: int, messages: int, size: int) -> None:
        """Count messages that were done now."""
        self.stored += messages
        if intended_ns < self._after_ns:
            return
        self.ended_ns = now_ns
        self._now.messages += messages
        self._now.size += size
        self._now.latency.record(now_ns - intended_ns, messages)

    def fail(self, intended_ns: int, messages: int) -> None:
        """Count messages that failed."""
        self.failed += messages
        if intended_ns >= self._after_ns:
            self._now.failures += messages

    def cut(self) -> Figures:
        """Return the counts of the interval, which ends now."""
        ended, self._now = self._now, Figures()
        self.total.add(ended)
        return ended

    @property
    def elapsed_s(self) -> float:
        """Seconds from the end of the warm-up to the last counted message."""
        return (self.ended_ns - self._after_ns) / 1e9
