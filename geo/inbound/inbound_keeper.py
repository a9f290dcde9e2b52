"""Runs an inbound replicator for each cluster that the policy ``pullFrom`` of a topic names.

The partition stays active while it has one, so that remote messages arrive soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from velaray.broker.partition import fencing
from velaray.broker.partition.fencing import superseded_if_fenced
from velaray.broker.topic_policies import TopicPolicies
from velaray.geo.inbound.messages import Pull
from velaray.geo.replication.replication_keeper import EXACT, STATUS_TIMEOUT_S, Kept
from velaray.geo.replication.replicator_messages import Status
from velaray.geo.replication.replicator_settings import Remote
from velaray.topology.messages import Request
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.tls import outgoing_tls
from velaray.topology.transient import TRANSIENT_OR_STORE


class Partition(fencing.Partition, Protocol):
    """What inbound replication needs of the partition."""

    policies: TopicPolicies

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the partition."""
        ...


class InboundKeeper:
    """The inbound replicators of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._kept: dict[str, Kept] = {}
        self._lives = 0
        self._closed = False

    def apply(self, pull: Mapping[str, Any]) -> None:
        """Set the source clusters: by name, with their addresses."""
        if self._closed:
            return
        for name, told in pull.items():
            remote = Remote(
                name,
                told["service_url"],
                told["admin_url"],
                told["token"],
                EXACT,
                ttl_ms=self._partition.policies.ttl_ms,
                others=tuple(sorted(pull.keys() - {name})),
                tls=outgoing_tls(self._partition.actor_system.config),
            )
            known = self._kept.get(name)
            if known is not None:
                known.change(remote)
                continue
            kept = self._kept[name] = Kept(self, remote, self._partition.actor_system.backoff())
            kept.task = self._partition.spawn(kept.run())
        for name in self._kept.keys() - pull.keys():
            self._drop(name)

    def _drop(self, name: str) -> None:
        kept = self._kept.pop(name)
        if kept.rpc_connection is not None:
            kept.rpc_connection.close()
        if kept.task is not None:
            kept.task.cancel()

    async def connect(self, kept: Kept) -> RpcConnection:
        """Start the inbound replicator. Raises as `ActorSystem.open_rpc`, and `RemoteError`."""
        partition = self._partition
        self._lives += 1
        rpc_connection = await partition.actor_system.open_rpc(
            partition.key.of_inbound_replicator(kept.remote.name), kept
        )
        kept.rpc_connection = rpc_connection
        await self.tell(rpc_connection, kept.remote)
        return rpc_connection

    async def tell(self, rpc_connection: RpcConnection, remote: Remote) -> None:
        """Send an inbound replicator its settings. Raises what `RpcConnection.ask` raises."""
        epoch = self._partition.runtime.journal.epoch
        with superseded_if_fenced(self._partition):
            await rpc_connection.ask(Pull(epoch, self._lives, remote))

    async def answer(self, cluster: str, request: Request[Any]) -> Any:
        """Refuse requests: inbound replicators send none."""
        raise RemoteError("not allowed", "a partition answers no requests here")

    @property
    def active(self) -> bool:
        """Whether there is an inbound replicator."""
        return bool(self._kept)

    async def statuses(self) -> dict[str, dict[str, Any] | None]:
        """The status of each inbound replicator, by cluster; None if it doesn't answer."""
        asked = dict(sorted(self._kept.items()))
        found = await asyncio.gather(*map(self._status, asked.values()))
        return dict(zip(asked, found, strict=True))

    async def _status(self, kept: Kept) -> dict[str, Any] | None:
        rpc_connection = kept.rpc_connection
        if rpc_connection is not None:
            with suppress(*TRANSIENT_OR_STORE):
                return await rpc_connection.ask(Status(), STATUS_TIMEOUT_S)
        return None

    def close(self) -> None:
        """Stop all inbound replication, before the partition stops."""
        self._closed = True
        for name in list(self._kept):
            self._drop(name)
