"""Traffic between a partition and its clients in one direction: amount, rate, and last time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

WINDOW_MS = 10_000
"""Rates are means over at least this long."""


class Speed(NamedTuple):
    """Rates per second: messages, bytes, and redelivered entries."""

    messages: float
    bytes: float
    again: float

    def told(self, way: str) -> dict[str, float]:
        """The form in calls between actors; ``way`` is "in" or "out"."""
        return {f"rate_{way}": self.messages, f"throughput_{way}": self.bytes}


class Flow:
    """Messages and bytes in one direction, counted by the run of entries."""

    __slots__ = ("_began", "_mark", "_speed", "_total", "again", "bytes", "last_ms", "messages")

    def __init__(self, now_ms: int, total: Flow | None = None) -> None:
        """``total`` counts as well what this one counts."""
        self._total = total
        self.messages = self.bytes = 0
        self.again = 0  # redelivered entries
        self.last_ms = 0  # 0: no traffic yet
        self._began = now_ms
        self._mark = (0, 0, 0)
        self._speed: Speed | None = None

    def count(self, messages: int, size: int, now_ms: int, again: int = 0) -> None:
        """Count messages and bytes, now, here and in the total."""
        flow: Flow | None = self
        while flow is not None:
            if not 0 <= now_ms - flow._began < WINDOW_MS:
                flow._roll(now_ms)
            flow.messages += messages
            flow.bytes += size
            flow.again += again
            flow.last_ms = now_ms
            flow = flow._total

    def speed(self, now_ms: int) -> Speed:
        """Over the last full window; before there is one, since the beginning."""
        if not 0 <= now_ms - self._began < WINDOW_MS:
            self._roll(now_ms)
        return self._since(now_ms) if self._speed is None else self._speed

    def _roll(self, now_ms: int) -> None:
        self._speed = self._since(now_ms)
        self._began, self._mark = now_ms, (self.messages, self.bytes, self.again)

    def _since(self, now_ms: int) -> Speed:
        seconds = (now_ms - self._began) / 1000
        if seconds <= 0:
            return Speed(0.0, 0.0, 0.0)
        messages, size, again = self._mark
        return Speed(
            (self.messages - messages) / seconds,
            (self.bytes - size) / seconds,
            (self.again - again) / seconds,
        )


@dataclass(slots=True)
class Activity:
    """The times of consumers' last actions, in milliseconds; 0: never."""

    consumed_ms: int = 0
    acked_ms: int = 0
    flowed_ms: int = 0

    def add(self, other: Activity) -> None:
        """Merge: the later times win."""
        self.consumed_ms = max(self.consumed_ms, other.consumed_ms)
        self.acked_ms = max(self.acked_ms, other.acked_ms)
        self.flowed_ms = max(self.flowed_ms, other.flowed_ms)

    def times(self) -> dict[str, int]:
        """The times by the names that Pulsar's metrics have for them."""
        return {
            "consumed": self.consumed_ms,
            "acked": self.acked_ms,
            "consumed_flow": self.flowed_ms,
        }

    def told(self) -> dict[str, int]:
        """The form in calls between actors."""
        return {
            "consumed_ms": self.consumed_ms,
            "acked_ms": self.acked_ms,
            "flowed_ms": self.flowed_ms,
        }
