"""Reads the subscription progress of another cluster and applies it here."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from velaray.actors.machine import Reason
from velaray.events.ids import TopicName
from velaray.geo.inbound.inbound_progress import Cursor, MalformedStats, TopicStats, parts
from velaray.geo.replication.messages import ExportedProgress
from velaray.geo.replication.remote_admin import RemoteAdmin, path_of
from velaray.geo.replication.replicator_progress import Progress
from velaray.geo.replication.replicator_settings import CannotReplicate
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import REPLICATED_SUBSCRIPTION

logger = logging.getLogger("velaray")

POLL_S = 1.0
"""The interval between looks."""
SHARE = 4
"""The least pause between looks, as a multiple of the time that a look takes."""


class PulledSubscriptions:
    """The durable subscriptions of one partition of another cluster."""

    def __init__(self, admin: RemoteAdmin, topic: TopicName, own: str, progress: Progress) -> None:
        """``own`` is the replicator's subscription there. ``progress`` gets the changes of all
        other subscriptions and sends them here."""
        self._admin = admin
        self._path = path_of(topic)
        self._own = own
        self._progress = progress
        # By name; None for a reader, which isn't replicated.
        self._properties: dict[str, dict[str, str] | None] = {}
        self._cursors: dict[str, Cursor] = {}
        #: The backlog of the replicator there, in entries; None if unknown.
        self.backlog: int | None = None
        #: The number of successful looks.
        self.rounds = 0
        #: The error of the last look, if it failed.
        self.reason = ""

    async def run(self) -> None:
        """Look at intervals until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._look()
                self.reason = ""
            except (CannotReplicate, MalformedStats) as error:
                if str(error) != self.reason:
                    logger.warning(
                        "reading the subscriptions of %s failed, retrying: %s",
                        self._admin.cluster,
                        error,
                    )
                self.reason, self.backlog = str(error), None
            await asyncio.sleep(max(POLL_S, SHARE * (loop.time() - began)))

    async def _look(self) -> None:
        stats = TopicStats(await self._admin.get(f"{self._path}/internalStats"))
        cursors = stats.cursors()
        if cursors.keys() - self._properties.keys():
            found = (await self._admin.get(f"{self._path}/stats"))["subscriptions"]
            self._properties = {name: properties_of(found.get(name)) for name in cursors}
        durable = {
            name: cursor for name, cursor in cursors.items() if self._properties[name] is not None
        }
        gone = [name for name in self._cursors if name not in durable]
        new = {
            name: cursor for name, cursor in durable.items() if self._cursors.get(name) != cursor
        }
        self._cursors = durable
        self.backlog = stats.backlog(self._own)
        if new or gone:
            self._progress.change(new, gone)
        self.rounds += 1

    async def export(self, name: str, since: Any) -> ExportedProgress:
        """The progress of a subscription since a token of an earlier call; see `Progress`."""
        now = self._cursors.get(name)
        if now is None:
            raise RemoteError(Reason.NOT_FOUND, f"no subscription {name!r} there")
        properties = self._properties.get(name) or {}
        found = parts(self._admin.cluster, name, properties, since, now)
        return {"token": now, "parts": found, "more": False}

    async def permits(self) -> int | None:
        """The permits of the replicator there; None if unknown."""
        with suppress(CannotReplicate, KeyError, TypeError, ValueError, IndexError):
            stats = await self._admin.get(f"{self._path}/stats")
            return int(stats["subscriptions"][self._own]["consumers"][0]["availablePermits"])
        return None


def properties_of(stats: Any) -> dict[str, str] | None:
    """The acknowledged entries of a subscription; None if it isn't durable or was deleted."""
    if not isinstance(stats, dict) or not stats.get("isDurable", True):
        return None
    properties = {str(key): str(value) for key, value in stats["subscriptionProperties"].items()}
    if stats.get("isReplicated"):
        properties[REPLICATED_SUBSCRIPTION] = "true"
    return properties
