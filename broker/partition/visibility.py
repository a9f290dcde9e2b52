"""Decides which entries of a partition consumers may get.

Entries at or beyond the first one of an open transaction wait for the transaction's end. Entries of
aborted transactions, and those that are skipped, are hidden: they are never delivered.
"""

from __future__ import annotations

from collections.abc import Collection

from velaray.actors.partition.skipped_entries import hidden_within
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition.entries import EntryCache

_BACK = 4096
"""The number of offsets that one step of the search for the newest visible entry covers."""


class Visibility:
    """The visible entries of one activation of a partition."""

    def __init__(self, runtime: Runtime[PartitionState], cache: EntryCache) -> None:
        self._runtime = runtime
        self._cache = cache

    @property
    def readable_end(self) -> int:
        """The offset that consumers can't read beyond: the first entry of an open transaction."""
        return min(self._cache.end, self._runtime.state.max_read_offset)

    def visible_until(self, first: int, end: int) -> tuple[int, int]:
        """How far from ``first`` on, up to ``end``, it is in memory which entries are hidden, and
        the first one that is. If there is none, both are equal."""
        hidden, skipped = self._runtime.state.transactions.hidden, self._runtime.state.skipped
        if not hidden and not skipped:
            return end, end
        known = hidden.known_until(first, end) if hidden else end
        found = hidden.next_acked(first, known) if hidden else known
        if skipped:
            found = min(found, first if first in skipped else skipped.next_start(first, known))
        return known, found

    def hidden_within(self, first: int, end: int) -> list[tuple[int, int]]:
        """All hidden offsets, as ascending (first, last + 1). The range must be in memory: see
        `visible_until`."""
        return hidden_within(self._runtime.state, first, end)

    async def load(self, offset: int) -> None:
        """Load what `visible_until` stops at. It may leave memory again after the turn in which
        this returns.

        Raises what `Runtime.look` raises.
        """
        await self._runtime.look(lambda state: state.transactions.hidden.within(offset, offset + 1))

    async def find_hidden(self, first: int, end: int) -> list[tuple[int, int]]:
        """As `hidden_within`; loads what isn't in memory. Raises what `Runtime.look` raises."""
        return await self._runtime.look(lambda state: hidden_within(state, first, end))

    async def is_hidden(self, offset: int) -> bool:
        """Whether consumers don't get the entry. Raises what `Runtime.look` raises."""
        return await self._runtime.look(
            lambda state: bool(hidden_within(state, offset, offset + 1))
        )

    async def count_hidden(self, first: int, end: int) -> int:
        """The number of hidden offsets in the range. Raises what `Runtime.look` raises."""
        return await self._runtime.look(lambda state: _count_hidden(state, first, end))

    def next_remote(self, origins: Collection[str] | None, first: int, end: int) -> int:
        """The first offset from ``first`` on that came from one of these clusters (None: from any);
        ``end`` if there is none before it."""
        known = self._runtime.state.origins.by_cluster
        for name in known if origins is None else origins:
            if name in known and first < end:
                end = known[name].next_offset(first, end)
        return end

    async def last_readable(self) -> int:
        """The offset of the newest entry that consumers get; -1 if there is none. Raises what
        `Runtime.look` raises."""
        return await self._runtime.look(self._last_readable)

    def _last_readable(self, state: PartitionState) -> int:
        at = self.readable_end
        while (at := state.table.kept_before(at)) >= 0 and hidden_within(state, at, at + 1):
            at = hidden_within(state, max(0, at - _BACK), at + 1)[-1][0]
        return at


def _count_hidden(state: PartitionState, first: int, end: int) -> int:
    if not state.skipped:
        return state.transactions.hidden.count(first, end)
    return sum(after - start for start, after in hidden_within(state, first, end))
