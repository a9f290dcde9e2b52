"""Token buckets: the pauses that keep a rate. Volatile; the time is an argument."""

from __future__ import annotations

from velaray.actors.machine import require


class Bucket:
    """A bucket for ``rate`` units a second; its capacity is the units of one second.

    Units are taken even if the bucket lacks them; the next taker waits longer.
    """

    def __init__(self, rate: float) -> None:
        require(rate > 0, "a rate is above 0", str(rate))
        self._rate = rate
        self._level = float(rate)
        self._at: float | None = None

    def take(self, units: float, now_s: float) -> float:
        """Take ``units``; returns the seconds to wait before taking more."""
        if self._at is not None:
            earned = max(now_s - self._at, 0.0) * self._rate
            self._level = min(self._level + earned, self._rate)
        self._at = now_s
        self._level -= units
        return max(-self._level / self._rate, 0.0)


class PublishRate:
    """Limits in messages and bytes a second; 0 or less means no limit."""

    def __init__(self, messages: float, size: float) -> None:
        self._messages = Bucket(messages) if messages > 0 else None
        self._bytes = Bucket(size) if size > 0 else None

    def take(self, messages: int, size: int, now_s: float) -> float:
        """Count a publish; returns the seconds to wait before the next one."""
        waits = [0.0]
        if self._messages is not None:
            waits.append(self._messages.take(messages, now_s))
        if self._bytes is not None:
            waits.append(self._bytes.take(size, now_s))
        return max(waits)
