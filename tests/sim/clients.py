"""Client processes: they run a script, may vanish at any time, and come back."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Protocol

from tests.sim.cluster import SimCluster
from tests.sim.loop import Node, context_of
from velaray.aio import Client


class Script(Protocol):
    """What an application does. Its own attributes outlive the process, as in a database."""

    async def run(self, client: Client) -> None:
        """Begin, or continue after a crash."""


class ClientProcess:
    """One application: a script in a process of its own, started again after a crash."""

    def __init__(self, cluster: SimCluster, name: str, script: Script, rng: Random) -> None:
        self.name = name
        self.script = script
        self._cluster = cluster
        self._rng = rng
        self._lives = 0
        self._node: Node | None = None
        self._crashed = asyncio.Event()
        self._over = False
        cluster.clients.append(self)

    async def run(self) -> None:
        """Returns when the script is through, or its machine lost; raises what it raised."""
        loop = self._cluster.loop
        while not self._over:
            self._lives += 1
            self._crashed.clear()
            node = self._node = Node(f"client {self.name}#{self._lives}", self._cluster.site)
            client = Client(f"pulsar://127.0.0.1:{self._cluster.config.service_port}")
            work = loop.create_task(self._live(client), context=context_of(node))
            crash = loop.create_task(self._crashed.wait())
            await asyncio.wait([work, crash], return_when=asyncio.FIRST_COMPLETED)
            if not node.dead:
                crash.cancel()
                self._node = None
                return work.result()
            await asyncio.sleep(0 if self._over else self._rng.random() * 4)
        return None

    async def _live(self, client: Client) -> Any:
        await self.script.run(client)
        await client.close()

    def lose(self) -> None:
        """End the process for good, with its machine."""
        self._over = True
        self.crash(0.0)
        self._crashed.set()

    def crash(self, pick: float) -> None:
        """End the process without goodbye; its machine may vanish with it, with no FIN."""
        if self._node is not None and not self._node.dead:
            node = self._node
            node.dead = True
            how = "silent" if pick < 0.2 else "reset" if pick < 0.6 else "closed"
            self._cluster.history.add("crash", client=node.name, how=how)
            if how == "silent":
                self._cluster.network.vanish(node)
            else:
                self._cluster.network.kill(node, reset=how == "reset")
            self._crashed.set()
