"""Sends subscription progress to another cluster, beside the entries.

The partition announces subscriptions with new progress. For each one the replicator requests the
progress since the last export that the other cluster confirmed, and sends it. Progress may arrive
late, twice, or before its entries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velaray.actors.machine import Reason
from velaray.events.backoff import Backoff
from velaray.geo.replication.messages import ExportedProgress
from velaray.geo.transient import TRANSIENT_ABROAD
from velaray.topology.rpc import RemoteError, reason_of

logger = logging.getLogger("velaray")

AT_ONCE = 8
"""The most concurrent subscriptions, and the most concurrent parts of one."""

Export = Callable[[str, Any], Awaitable[ExportedProgress]]
"""New progress of a subscription since a token."""
Send = Callable[[bytes], Awaitable[None]]
"""Sends a part; it is durable in the other cluster when this returns."""


@dataclass(slots=True, eq=False)
class _Followed:
    """A subscription: its announced version, and what the other cluster has."""

    revision: Any
    changed_ms: int
    """The time since which the other cluster lacks progress, while `dirty`."""
    changed_again_ms: int = 0
    """The time of the first change since the last export began; 0: there was none."""
    confirmed: Any = None
    token: Any = None
    begun: bool = False

    @property
    def dirty(self) -> bool:
        return not self.begun or self.revision != self.confirmed


class Progress:
    """Progress of all subscriptions of one partition for one cluster. The confirmed state outlasts
    connections."""

    def __init__(self, clock_ms: Callable[[], int], told: Callable[[], None]) -> None:
        """``told`` is called when `pending` may have changed."""
        self._clock_ms = clock_ms
        self._told = told
        self._followed: dict[str, _Followed] = {}
        self._news = asyncio.Event()
        self.reason = ""

    @property
    def pending(self) -> bool:
        """Whether the other cluster lacks progress."""
        return any(each.dirty for each in self._followed.values())

    @property
    def oldest_ms(self) -> int:
        """The time since which it lacks progress; 0 if it doesn't."""
        since = [each.changed_ms for each in self._followed.values() if each.dirty]
        return min(since, default=0)

    def change(self, revisions: Mapping[str, Any], gone: Sequence[str]) -> None:
        """Note subscriptions with new progress, and deleted ones."""
        for name, revision in revisions.items():
            known = self._followed.get(name)
            if known is None:
                self._followed[name] = _Followed(revision, self._clock_ms())
            else:
                now_ms = self._clock_ms()
                if not known.dirty:
                    known.changed_ms = now_ms
                known.changed_again_ms = known.changed_again_ms or now_ms
                known.revision = revision
        for name in gone:
            self._followed.pop(name, None)
        self._news.set()
        self._told()

    def forget(self) -> None:
        """Drop all state: progress isn't replicated any more."""
        self._followed.clear()
        self._told()

    async def run(self, export: Export, send: Send, backoff: Backoff) -> None:
        """Send new progress until cancelled. Failed sends are retried."""
        while True:
            self._news.clear()
            dirty = [name for name, each in self._followed.items() if each.dirty]
            if not dirty:
                await self._news.wait()
                continue
            work = (self._bring(name, export, send) for name in dirty[:AT_ONCE])
            failed = [error for error in await asyncio.gather(*work) if error is not None]
            self.reason = reason_of(failed[0]) if failed else ""
            self._told()
            if failed:
                logger.warning(
                    "sending the progress of subscriptions failed, retrying: %s", self.reason
                )
                await backoff.wait()
            else:
                backoff.reset()

    async def _bring(self, name: str, export: Export, send: Send) -> Exception | None:
        """The error that blocks it, if any."""
        followed = self._followed[name]
        revision = followed.revision
        followed.changed_again_ms = 0
        try:
            while True:
                found = await export(name, followed.token)
                await _send_all(found["parts"], send)
                followed.token = found["token"]
                if not found["more"]:
                    break
        except TRANSIENT_ABROAD as error:
            if isinstance(error, RemoteError) and error.kind == Reason.NOT_FOUND:
                self._followed.pop(name, None)  # it was deleted
                return None
            if self._followed.get(name) is followed:
                self._followed[name] = self._followed.pop(name)  # others are first
            return error
        followed.confirmed, followed.begun = revision, True
        followed.changed_ms = followed.changed_again_ms
        return None


async def _send_all(parts: Sequence[bytes], send: Send) -> None:
    for first in range(0, len(parts), AT_ONCE):
        sending = [send(part) for part in parts[first : first + AT_ONCE]]
        results = await asyncio.gather(*sending, return_exceptions=True)
        for error in results:
            if error is not None:
                raise error
