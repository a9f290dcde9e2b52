"""The dispatcher's side of dispatch leases: grants and revokes them, and records their ends."""

from __future__ import annotations

import asyncio

from velaray.broker.subscription.delivery_counts import DeliveryCounts
from velaray.broker.subscription.dispatch_state import DispatchState
from velaray.broker.subscription.messages import GrantLease, RevokeLease


class LeaseControl:
    """Grants at most one lease at a time (`velaray.actors.dispatch.lease`)."""

    def __init__(self, state: DispatchState, counts: DeliveryCounts) -> None:
        self._state = state
        self._counts = counts
        self._lease_ends = 0
        self._released = asyncio.Event()
        self._released.set()
        self._revoking = False
        self.holder = 0
        """The consumer that had the last lease."""

    def update(self) -> None:
        """Give the partition a lease if one is possible; revoke it if it isn't any more."""
        dispatcher = self._state.dispatcher
        if not dispatcher.leased:
            grant = dispatcher.lease()
            if grant is not None:
                self._released.clear()
                self.holder = grant.consumer_id
                at = grant.first, grant.debited, grant.room
                self._counts.send(GrantLease(grant.consumer_id, *at, self._lease_ends))
        elif not dispatcher.may_lease():
            self._revoke()

    def _revoke(self) -> None:
        if not self._revoking:
            self._revoking = True
            self._counts.send(RevokeLease())

    async def take_back(self) -> None:
        """Revoke the lease; return when the partition has none."""
        if self._state.dispatcher.leased:
            self._revoke()
            await self._released.wait()

    def count_ending(self) -> None:
        """Count one of `ENDS_LEASE` from the partition."""
        self._lease_ends += 1
        self.end()

    def end(self) -> None:
        """Note that the lease has ended."""
        self._revoking = False
        self._state.dispatcher.release_lease()
        self._released.set()
