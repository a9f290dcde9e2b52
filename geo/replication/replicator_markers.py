"""Pulsar's snapshot markers, which a partition sends to another cluster.

A marker that answers with a position is sent behind all entries before that position. A newer
marker of the same key, such as the progress of one subscription, replaces a waiting one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from velaray.client.exceptions import VelarayError
from velaray.events.backoff import Backoff
from velaray.geo.replication.replicator_settings import CannotReplicate
from velaray.wire.replication import Marker

logger = logging.getLogger("velaray")

LOOK_S = 0.05
"""The interval between looks for markers that are due."""
MOST = 1000
"""The most waiting markers. Beyond it the oldest is dropped, which is likely outdated."""

Send = Callable[[Marker, bytes], Awaitable[None]]
"""Sends a marker; its effect is durable there when this returns."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    kind: Marker
    payload: bytes
    behind: int


class Markers:
    """The markers of one partition for one cluster."""

    def __init__(self, told: Callable[[], None]) -> None:
        """``told`` is called when a marker is added or removed."""
        self._told = told
        self._waiting: dict[str, _Waiting] = {}
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def pending(self) -> bool:
        """Whether a marker waits."""
        return bool(self._waiting)

    def put(self, key: str, kind: Marker, payload: bytes, behind: int) -> None:
        """Send a marker after all entries below offset ``behind``. It replaces an earlier one of
        this ``key``."""
        self._waiting.pop(key, None)
        self._waiting[key] = _Waiting(kind, payload, behind)
        if len(self._waiting) > MOST:
            del self._waiting[next(iter(self._waiting))]
        self._news.set()
        self._told()

    async def run(self, mark: Callable[[], int], send: Send, backoff: Backoff) -> None:
        """Send the markers until cancelled; everything before offset ``mark`` is confirmed there.

        A failed update is sent again, also over the next connection. A failed request isn't: its
        sender repeats it.
        """
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
                logger.info("sending markers failed, retrying: %s", failed[0])
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
        if self._waiting.get(key) is marker:  # otherwise there is a newer one
            del self._waiting[key]
        self._told()
