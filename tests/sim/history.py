"""What happened in a run, in order: one JSON line per event."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class History:
    """Events with their virtual time. Checkers read it; `dump` writes it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.events: list[tuple[float, str, dict[str, Any]]] = []

    def now(self) -> float:
        """The virtual time, as events have it."""
        return round(self._clock(), 6)

    def add(self, kind: str, /, **details: Any) -> None:
        """Note an event that happens now."""
        self.events.append((self.now(), kind, details))

    def of(self, *kinds: str) -> list[tuple[float, str, dict[str, Any]]]:
        """The events of some kinds, in order."""
        return [event for event in self.events if event[1] in kinds]

    def lines(self) -> list[str]:
        """The events as JSON."""
        return [
            json.dumps({"t": time, "event": kind, **details}, default=str, sort_keys=True)
            for time, kind, details in self.events
        ]

    def digest(self) -> str:
        """Equal for equal histories."""
        return hashlib.blake2b("\n".join(self.lines()).encode(), digest_size=8).hexdigest()

    def dump(self, path: Path) -> None:
        """Write it as JSON lines."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.lines()) + "\n", encoding="utf-8")
