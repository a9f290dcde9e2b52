"""One number for each entry that a dispatcher may have to deliver.

`EntrySizes` has the number of messages of an entry, `EntryHashes` the hash of its key. They take a
few bytes per entry, in pages. A page is dropped when all its entries are acknowledged and released,
so one old un-acknowledged entry keeps only its own page.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

from velaray.actors.sets.entry_holdings import PAGE, Places

_SWEEP_AT = 64


def _of(number: int, needed: Callable[[int, int], bool]) -> bool:
    return needed(number * PAGE, (number + 1) * PAGE)


class EntryNumbers:
    """A number above 0 per entry, by offset."""

    __slots__ = ("_floor", "_none", "_pages", "_sweep_at")

    def __init__(self, typecode: str) -> None:
        """``typecode`` is the array's; it limits the numbers."""
        self._none = array(typecode, [0]) * PAGE
        self._pages: dict[int, array[int]] = {}
        self._floor = 0
        self._sweep_at = _SWEEP_AT

    def put(self, first: int, numbers: Sequence[int]) -> None:
        """The numbers of the entries from ``first`` on, each at least 1."""
        taken = 0
        while taken < len(numbers):
            number, within = divmod(first + taken, PAGE)
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = self._none[:]
            part = array(page.typecode, numbers[taken : taken + PAGE - within])
            page[within : within + len(part)] = part
            taken += len(part)

    def get(self, offset: int) -> int | None:
        """The number of the entry; None if it was never put, or is dropped."""
        page = self._pages.get(offset // PAGE)
        return None if page is None else page[offset % PAGE] or None

    def run(self, first: int, end: int) -> Sequence[int]:
        """The numbers from ``first`` on, to ``end`` or the end of a page. They must be known."""
        number, within = divmod(first, PAGE)
        return self._pages[number][within : within + end - first]

    def all(self, first: int, end: int) -> list[int]:
        """The numbers of the entries from ``first`` to ``end`` - 1; 0 for those that aren't
        known."""
        found: list[int] = []
        while first < end:
            number, within = divmod(first, PAGE)
            found += self._pages.get(number, self._none)[within : within + end - first]
            first = (number + 1) * PAGE
        return found

    def of(self, places: Places) -> list[int]:
        """The numbers of single entries, given by their places; 0 for those that aren't known."""
        found: list[int] = []
        for number, within in places:
            found += map(self._pages.get(number, self._none).__getitem__, within)
        return found

    def drop(self, acked_before: int, needed: Callable[[int, int], bool]) -> None:
        """Drop pages that aren't needed, which ``needed`` tells of a range of entries.

        Cheap when there is nothing to drop: pages before ``acked_before`` are checked when that
        enters another page, all the others only when their number has doubled.
        """
        floor = acked_before // PAGE
        if floor > self._floor:
            self._floor = floor
            self._keep(lambda number: number >= floor or _of(number, needed))
        if len(self._pages) > self._sweep_at:
            self._keep(lambda number: _of(number, needed))
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._pages))

    def _keep(self, kept: Callable[[int], bool]) -> None:
        self._pages = {number: page for number, page in self._pages.items() if kept(number)}

    def page_count(self) -> int:
        """The number of pages."""
        return len(self._pages)

    def clear(self) -> None:
        """Drop everything."""
        self._pages.clear()
        self._floor, self._sweep_at = 0, _SWEEP_AT


class EntrySizes(EntryNumbers):
    """Messages per entry."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("I")

    def fit(self, first: int, end: int, permits: int) -> tuple[int, int]:
        """The entries from ``first`` on that fit a consumer with ``permits`` (> 0).

        Returns the offset to stop before, at most ``end``, and the messages up to there. The last
        entry may exceed the permits. The run ends with its page at the latest; the sizes must be
        known.
        """
        window = self.run(first, min(end, first + permits))
        total = sum(window)
        if total <= permits:
            return first + len(window), total
        sums = list(accumulate(window))
        last = bisect_left(sums, permits)
        return first + last + 1, sums[last]

    def total(self, first: int, end: int) -> int:
        """The messages of all entries of the range, which must be known."""
        messages = 0
        while first < end:
            window = self.run(first, end)
            messages += sum(window)
            first += len(window)
        return messages


class EntryHashes(EntryNumbers):
    """Hashes of entries' keys, 1 to 65535."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("H")
