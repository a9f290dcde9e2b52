"""Counters of a replicator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from velaray.geo.replication.replication_window import Held
from velaray.topology.metrics import Rates
from velaray.wire.stamping import PassedOver


class Counts:
    """Confirmed entries and entries that aren't replicated, since the replicator started."""

    def __init__(self, now_s: float) -> None:
        self._rates = Rates(now_s)
        self._entries = 0
        self._messages = 0
        self._bytes = 0
        self._duplicates = 0
        self._passed_over: Counter[str] = Counter()

    def pass_over(self, reason: PassedOver) -> None:
        """Count an entry that isn't replicated."""
        self._passed_over[str(reason)] += 1

    def confirm(self, entries: Sequence[Held], *, duplicates: bool) -> None:
        """Count entries that the other cluster has confirmed."""
        self._entries += len(entries)
        self._messages += sum(held.messages for held in entries)
        self._bytes += sum(held.size for held in entries)
        if duplicates:
            self._duplicates += len(entries)

    def status(self, now_s: float) -> dict[str, Any]:
        """The counters, and the rates of messages and bytes a second."""
        return {
            "entries": self._entries,
            "messages": self._messages,
            "bytes": self._bytes,
            "duplicates": self._duplicates,
            "passed_over": dict(self._passed_over),
            "rate_out": self._rates.at(now_s, "messages", self._messages),
            "throughput_out": self._rates.at(now_s, "bytes", self._bytes),
        }
