"""Partitions that cache answers of a schema registry, and how long their caches may be used."""

from __future__ import annotations

import asyncio

from velaray.broker.schema_registry.messages import DropVersions
from velaray.broker.schema_registry.schema_calls import LEASE_S
from velaray.topology.rpc import RpcConnection
from velaray.topology.transient import NO_ANSWER


class Followers:
    """The connections of partitions that cache versions, each with the end of its lease.

    A partition uses a cached version for `LEASE_S` from the moment it sent the request. The
    registry counts from the moment the request arrived, which is later, so its lease ends last.
    """

    def __init__(self) -> None:
        self._leases: dict[RpcConnection, float] = {}
        self._lost_until = 0.0

    def recovered(self) -> None:
        """Assume that an earlier activation granted leases until now.

        Call it when no earlier activation can answer any more.
        """
        self._lost_until = asyncio.get_running_loop().time() + LEASE_S

    def add(self, rpc_connection: RpcConnection) -> None:
        """Add a partition, which has cached nothing yet."""
        self._leases[rpc_connection] = 0.0

    def grant(self, rpc_connection: RpcConnection) -> None:
        """Note that a request has arrived whose answer the partition may cache."""
        if rpc_connection in self._leases:
            self._leases[rpc_connection] = asyncio.get_running_loop().time() + LEASE_S

    def lost(self, rpc_connection: RpcConnection) -> None:
        """Remove a connection. The partition may not know that it is lost, and use its cache."""
        self._lost_until = max(self._lost_until, self._leases.pop(rpc_connection, 0.0))

    async def drop_caches(self) -> None:
        """Return when no partition uses an answer that was given before the call."""
        lost_until = self._lost_until
        await asyncio.gather(*(self._drop(*each) for each in list(self._leases.items())))
        await _sleep_until(lost_until)

    async def _drop(self, rpc_connection: RpcConnection, lease_end: float) -> None:
        left_s = lease_end - asyncio.get_running_loop().time()
        if left_s <= 0:
            return
        try:
            await rpc_connection.ask(DropVersions(), left_s)
        except NO_ANSWER:
            await _sleep_until(lease_end)


async def _sleep_until(end: float) -> None:
    await asyncio.sleep(max(0.0, end - asyncio.get_running_loop().time()))
