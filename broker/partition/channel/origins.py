"""Which entries of other clusters a subscription may not be given yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from velaray.broker.partition.channel.log import VisibleEntries


class UnsettledOrigins:
    """The clusters whose progress may wait at a subscription.

    Entries from these clusters aren't delivered before the subscription has taken in what waits:
    they may be acknowledged already.
    """

    def __init__(self, visible: VisibleEntries, *, durable: bool) -> None:
        self._visible = visible
        self._may_wait: set[str] | None = None if durable else set()
        self._settled = 0  # no progress waits for entries before this offset

    @property
    def waiting(self) -> Collection[str] | None:
        """The clusters whose progress may wait at the subscription; None: not known yet."""
        return self._may_wait

    def may_wait(self, origins: Iterable[str]) -> None:
        """Note that progress of these clusters' entries is about to be sent to the subscription.
        Their later entries aren't delivered before they are settled."""
        if self._may_wait is not None:
            self._may_wait.update(origins)

    def waits_for(self, origins: Iterable[str]) -> None:
        """Note that progress of these clusters alone waits at the subscription."""
        self._may_wait = set(origins)

    def settled(self, origins: Iterable[str], before: int) -> None:
        """As `waits_for`; and no progress waits for entries before this offset."""
        self.waits_for(origins)
        self._settled = max(self._settled, before)

    def first_unsettled(self, first: int, end: int) -> int:
        """The first offset from ``first`` on that must be settled before it is delivered; ``end``
        if there is none before it."""
        if self._may_wait is not None and not self._may_wait:
            return end
        return self._visible.next_remote(self._may_wait, max(first, self._settled), end)
