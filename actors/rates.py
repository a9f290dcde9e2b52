"""Token buckets: the pauses that keep a rate. Volatile; the time is an argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from velaray.actors.machine import require


class Bucket:
    """A bucket for ``rate`` units a second; its capacity is the units of ``period_s``.

    Units are taken even if the bucket lacks them; the next taker waits longer.
    """

    def __init__(self, rate: float, period_s: float = 1.0) -> None:
        require(rate > 0, "a rate is above 0", str(rate))
        self._rate = rate
        self._period_s = period_s
        self._level = rate * period_s
        self._at: float | None = None

    def level(self, now_s: float, extra: float = 0.0) -> float:
        """The units in the bucket. Since the last call it earned its rate and ``extra`` units a
        second."""
        if self._at is not None:
            rate = self._rate + extra
            earned = max(now_s - self._at, 0.0) * rate
            self._level = min(self._level + earned, rate * self._period_s)
        self._at = now_s
        return self._level

    def take(self, units: float, now_s: float) -> float:
        """Take ``units``; returns the seconds to wait before taking more."""
        self._level = self.level(now_s) - units
        return max(-self._level / self._rate, 0.0)

    def debit(self, units: float) -> None:
        """Take ``units`` at the time of the last call of `level`."""
        self._level -= units

    def holds(self, used: float) -> bool:
        """Whether there is a whole unit besides ``used`` ones, at the time of the last call of
        `level`."""
        return self._level - used >= 1.0

    def wait(self) -> float:
        """The seconds until the bucket has a whole unit, at the time of the last call of
        `level`."""
        return max(1.0 - self._level, 0.0) / self._rate


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


class DispatchLimit(NamedTuple):
    """Messages and bytes per period; 0 or less means no limit.

    ``relative``: the topic's publish rate is added to both.
    """

    messages: int
    size: int
    period_s: int
    relative: bool


class DispatchRate:
    """Counts deliveries against a `DispatchLimit`.

    The entry that uses up the units is delivered whole, and later ones wait longer for it.
    """

    def __init__(self, limit: DispatchLimit) -> None:
        period_s = limit.period_s
        self._messages = _bucket(limit.messages, period_s)
        self._bytes = _bucket(limit.size, period_s)
        self._buckets = [each for each in (self._messages, self._bytes) if each is not None]

    def earn(self, now_s: float, published: tuple[float, float] = (0.0, 0.0)) -> float:
        """Note the time; returns the seconds to wait before the next delivery. ``published`` is
        the rate in messages and bytes a second by which the limit is higher."""
        for bucket, extra in zip((self._messages, self._bytes), published, strict=True):
            if bucket is not None:
                bucket.level(now_s, extra)
        return max(each.wait() for each in self._buckets)

    def fit(self, entries: Iterable[tuple[int, int]]) -> int:
        """How many of the entries, each of so many messages and bytes, may be delivered at the
        time of the last call of `earn`."""
        count = messages = size = 0
        for each, length in entries:
            if not (_holds(self._messages, messages) and _holds(self._bytes, size)):
                break
            count, messages, size = count + 1, messages + each, size + length
        return count

    def take(self, messages: int, size: int) -> None:
        """Count a delivery."""
        if self._messages is not None:
            self._messages.debit(messages)
        if self._bytes is not None:
            self._bytes.debit(size)


def _bucket(units: int, period_s: int) -> Bucket | None:
    return Bucket(units / period_s, period_s) if units > 0 else None


def _holds(bucket: Bucket | None, used: int) -> bool:
    return bucket is None or bucket.holds(used)
