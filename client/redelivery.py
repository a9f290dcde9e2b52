"""Which entries to ask for again, and when. No I/O and no clock of its own."""

from __future__ import annotations

from velaray.client.acks import Where


class RedeliveryTimer:
    """Entries with their deadlines.

    Used twice: for negative acknowledgements, and for messages whose acknowledgement is
    overdue. Times are in seconds of any steady clock. There are few different delays: those
    with the same one are due in the order in which they were added.
    """

    def __init__(self) -> None:
        self._lanes: dict[float, dict[Where, float]] = {}
        self._delays: dict[Where, float] = {}

    def __len__(self) -> int:
        return len(self._delays)

    def __contains__(self, where: Where) -> bool:
        return where in self._delays

    def add(self, where: Where, now: float, delay: float) -> None:
        """Ask for the entry after the delay, unless that is planned already."""
        if where not in self._delays:
            self._delays[where] = delay
            self._lanes.setdefault(delay, {})[where] = now + delay

    def remove(self, where: Where) -> None:
        """Don't ask for this entry any more."""
        delay = self._delays.pop(where, None)
        if delay is not None:
            lane = self._lanes[delay]
            del lane[where]
            if not lane:
                del self._lanes[delay]

    def remove_until(self, where: Where) -> None:
        """Don't ask for this entry or any before it."""
        for known in [known for known in self._delays if known <= where]:
            self.remove(known)

    def clear(self) -> None:
        """Don't ask for anything."""
        self._lanes.clear()
        self._delays.clear()

    def next_deadline(self) -> float | None:
        """When `due` will have something, None if it never will."""
        return min((next(iter(lane.values())) for lane in self._lanes.values()), default=None)

    def due(self, now: float) -> list[Where]:
        """The entries whose delay is over; they're forgotten here."""
        found = []
        for lane in self._lanes.values():
            for where, deadline in lane.items():
                if deadline > now:
                    break
                found.append(where)
        for where in found:
            self.remove(where)
        return found
