"""The history of several clusters, which can be seen as one of them saw it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.history import History
from tests.sim.loop import current_node

_EVERYBODYS = ("send", "severed", "fault")


class GeoHistory(History):
    """Knows of every event at which site it happened."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._sites: list[str] = []

    def add(self, kind: str, /, **details: Any) -> None:
        """Note an event that happens now, where the current process is."""
        super().add(kind, **details)
        self._sites.append(current_node().site)

    def view(self, site: str) -> History:
        """Events of one site, of the harness, and those that concern all sites."""
        seen = History(lambda: 0.0)
        seen.events = [
            event
            for event, where in zip(self.events, self._sites, strict=True)
            if where in ("", site) or event[1] in _EVERYBODYS
        ]
        return seen
