"""Which entries to ask for again, and when. No I/O and no clock of its own."""

from __future__ import annotations

from velaray.aio.acks import Where


class RedeliveryTimer:
    """Entries with one common delay, in the order of their deadlines.

    Used twice: for negative acknowledgements, and for messages whose acknowledgement is
    overdue. Times are in seconds of any steady clock.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._deadlines: dict[Where, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, where: Where, now: float) -> None:
        """Ask for the entry after the delay, unless that is planned already."""
        self._deadlines.setdefault(where, now + self._delay)

    def remove(self, where: Where) -> None:
        """Don't ask for this entry any more."""
        self._deadlines.pop(where, None)

    def remove_until(self, where: Where) -> None:
        """Don't ask for this entry or any before it."""
        for known in [known for known in self._deadlines if known <= where]:
            del self._deadlines[known]

    def clear(self) -> None:
        """Don't ask for anything."""
        self._deadlines.clear()

    def next_deadline(self) -> float | None:
        """When `due` will have something, None if it never will."""
        return next(iter(self._deadlines.values()), None)

    def due(self, now: float) -> list[Where]:
        """The entries whose delay is over; they're forgotten here."""
        found = []
        for where, deadline in self._deadlines.items():
            if deadline > now:
                break
            found.append(where)
        for where in found:
            del self._deadlines[where]
        return found
