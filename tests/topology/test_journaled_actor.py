"""What every hosted body does besides serving."""

from __future__ import annotations

import asyncio

import pytest

from velaray.broker import journaled_actor
from velaray.events.ids import ActorKey
from velaray.geo.actor_kinds import make_actor
from velaray.journal.errors import Fenced
from velaray.journal.journal import Journal
from velaray.journal.memory import MemoryDisk, MemoryStore
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem


def test_an_actor_that_writes_nothing_notices_that_it_was_superseded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journaled_actor, "CONFIRM_S", 0.001)

    async def main() -> None:
        config = ClusterConfig(data_dir="memory", incarnation=1, rpc_key=b"k", deleters=0)
        disk = MemoryDisk()
        actor_system = InProcessActorSystem(config, MemoryStore(disk), make_actor)
        ended = asyncio.Event()
        kill = actor_system.kill

        def killed(key: ActorKey) -> None:
            kill(key)
            ended.set()

        monkeypatch.setattr(actor_system, "kill", killed)
        key = ActorKey.catalog()
        await actor_system.address(key)
        journal = await Journal.open(MemoryStore(disk), key.text(), clock_ms=lambda: 0)
        async with asyncio.timeout(10):
            await ended.wait()
        ((ended_key, error),) = actor_system.failures
        assert ended_key == key
        assert isinstance(error, Fenced)
        await journal.close()

    asyncio.run(main())
