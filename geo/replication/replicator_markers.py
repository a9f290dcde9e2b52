"""Markers that a partition sends to another cluster besides progress: Pulsar's, of snapshots.

One that answers where this cluster is goes behind all that the answer is about. Of those that say
the same, such as how far one subscription is, the newest alone goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from velaray.client.exceptions import VelarayError
from velaray.client.retry import Backoff
from velaray.geo.replication.replicator_settings import CannotReplicate
from velaray.wire.replication import Marker

logger = logging.getLogger("velaray")

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 30.0
LOOK_S = 0.05
"""How often it is looked whether a marker's time has come."""
MOST = 1000
"""So many wait; then the oldest is dropped: it would hardly be waited for any more."""

Send = Callable[[Marker, bytes], Awaitable[None]]
"""Brings a marker there; what it says is durable when this returns."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    kind: Marker
    payload: bytes
    behind: int


class Markers:
    """Those of one partition towards one cluster."""

    def __init__(self, told: Callable[[], None]) -> None:
        """``told`` is called when one has come or gone."""
        self._told = told
        self._waiting: dict[str, _Waiting] = {}
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def pending(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def put(self, key: str, kind: Marker, payload: bytes, behind: int) -> None:
        """Send one behind all entries below offset ``behind``, in place of any earlier one of this
        ``key``."""
        self._waiting.pop(key, None)
        self._waiting[key] = _Waiting(kind, payload, behind)
        if len(self._waiting) > MOST:
            del self._waiting[next(iter(self._waiting))]
        self._news.set()
        self._told()

    async def run(self, mark: Callable[[], int], send: Send) -> None:
        """Send them, for ever; ``mark``: everything before that offset is confirmed there.

        An update that fails is sent again, also over the next connection. Of the others whoever
        waits asks again.
        """
        backoff = Backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S)
        while True:
            self._news.clear()
            if not self._waiting:
                await self._news.wait()
                continue
            due = [key for key, each in self._waiting.items() if each.behind <= mark()]
            if not due:
                await asyncio.sleep(LOOK_S)
                continue
            failed = [error for error in [await self._send(key, send) for key in due] if error]
            if failed:
                logger.info("markers wait: %s", failed[0])
                await backoff.wait()
            else:
                backoff.reset()

    async def _send(self, key: str, send: Send) -> Exception | None:
        marker = self._waiting[key]
        try:
            await send(marker.kind, marker.payload)
        except (VelarayError, CannotReplicate) as error:
            if marker.kind is not Marker.UPDATE:
                self._drop(key, marker)
            return error
        self._drop(key, marker)
        return None

    def _drop(self, key: str, marker: _Waiting) -> None:
        if self._waiting.get(key) is marker:  # else there is a newer one
            del self._waiting[key]
        self._told()
