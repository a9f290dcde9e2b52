"""The schedule of redelivery requests. No I/O and no clock of its own."""

from __future__ import annotations

from velaray.client.acks import Where


class RedeliveryTimer:
    """Entries with their deadlines.

    There are two instances: for negative acknowledgements, and for acknowledgement timeouts. Times
    are in seconds of any steady clock. There are few different delays. Entries with the same delay
    are due in the order in which they were added.
    """

    def __init__(self) -> None:
        self._lanes: dict[float, dict[Where, float]] = {}
        self._delays: dict[Where, float] = {}

    def __len__(self) -> int:
        return len(self._delays)

    def __contains__(self, where: Where) -> bool:
        return where in self._delays

    def add(self, where: Where, now: float, delay: float) -> None:
        """Schedule the entry after the delay, unless it is scheduled already."""
        if where not in self._delays:
            self._delays[where] = delay
            self._lanes.setdefault(delay, {})[where] = now + delay

    def remove(self, where: Where) -> None:
        """Cancel this entry."""
        delay = self._delays.pop(where, None)
        if delay is not None:
            lane = self._lanes[delay]
            del lane[where]
            if not lane:
                del self._lanes[delay]

    def remove_until(self, where: Where) -> None:
        """Cancel this entry and all before it."""
        for known in [known for known in self._delays if known <= where]:
            self.remove(known)

    def clear(self) -> None:
        """Cancel all entries."""
        self._lanes.clear()
        self._delays.clear()

    def next_deadline(self) -> float | None:
        """The time of the first deadline, None if there is none."""
        return min((next(iter(lane.values())) for lane in self._lanes.values()), default=None)

    def due(self, now: float) -> list[Where]:
        """Remove and return the entries whose deadline has passed."""
        found = []
        for lane in self._lanes.values():
            for where, deadline in lane.items():
                if deadline > now:
                    break
                found.append(where)
        for where in found:
            self.remove(where)
        return found
