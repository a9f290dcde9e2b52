"""Shared connections: a caller must not keep an actor from becoming idle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.by_name import call_by_name
from velaray.events.ids import ActorKey, TopicName
from velaray.geo.actor_kinds import make_actor
from velaray.journal.errors import StorageFull
from velaray.journal.memory import MemoryStore
from velaray.topology import actor_system as actor_system_module
from velaray.topology.actor_system import Unreachable
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.messages import Message
from velaray.topology.rpc import RemoteError

TOPIC = TopicName.parse("persistent://public/default/t")


def with_actor_system(
    scenario: Callable[[InProcessActorSystem, ActorKey], Awaitable[None]],
) -> None:
    """Run ``scenario`` with a catalog that knows one topic, and the key of its partition."""

    async def main() -> None:
        actor_system = InProcessActorSystem(
            ClusterConfig("nowhere", 1, b"key", deleters=0), MemoryStore(), make_actor
        )
        names = {"cluster": "c", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await call_by_name(actor_system, ActorKey.catalog(), "bootstrap", names)
        found = await call_by_name(
            actor_system, ActorKey.catalog(), "ensure_topic", {"topic": str(TOPIC)}
        )
        await scenario(actor_system, ActorKey.of_partition(TOPIC, found["incarnation"]))
        await actor_system.stop()

    asyncio.run(main())


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def test_an_actor_becomes_idle_after_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_system_module, "RPC_KEPT_S", 0.02)

    async def scenario(actor_system: InProcessActorSystem, key: ActorKey) -> None:
        await call_by_name(actor_system, key, "stats")
        await until(lambda: actor_system.actors[key].idle())
        await until(lambda: not actor_system._rpc_connections and not actor_system._dialling)
        assert (await call_by_name(actor_system, key, "stats"))["entries"] == 0

    with_actor_system(scenario)


def test_a_connection_in_use_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_system_module, "RPC_KEPT_S", 0.05)

    async def scenario(actor_system: InProcessActorSystem, key: ActorKey) -> None:
        await call_by_name(actor_system, key, "stats")
        rpc_connection = actor_system._rpc_connections[key]
        for _ in range(20):
            await asyncio.sleep(0.01)
            await call_by_name(actor_system, key, "stats")
        assert actor_system._rpc_connections[key] is rpc_connection
        hanging: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(actor_system.actors[key], "handle", lambda request: hanging)
        call = asyncio.create_task(call_by_name(actor_system, key, "stats"))
        await asyncio.sleep(0.15)
        hanging.set_result({})
        assert await call == {}
        assert actor_system._rpc_connections[key] is rpc_connection

    with_actor_system(scenario)


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (Unreachable("no brain"), "unavailable", "no brain"),
        (TimeoutError(), "unavailable", "no answer in time"),
        (StorageFull("file", "all used"), "storage full", "all used"),
    ],
)
def test_the_failure_of_an_actor_reaches_its_caller(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, kind: str, text: str
) -> None:
    async def scenario(actor_system: InProcessActorSystem, key: ActorKey) -> None:
        await actor_system.address(key)

        async def failing(request: Message) -> None:
            raise failure

        monkeypatch.setattr(actor_system.actors[key], "handle", failing)
        with pytest.raises(RemoteError, match=text) as caught:
            await call_by_name(actor_system, key, "stats")
        assert caught.value.kind == kind

    with_actor_system(scenario)


def test_an_actor_that_is_started_again_and_again_does_not_hold_up_the_end() -> None:
    async def scenario(actor_system: InProcessActorSystem, key: ActorKey) -> None:
        registry = ActorKey.of_schema_registry(TOPIC, key.topic_incarnation)
        starts = 0

        async def start_again() -> None:  # as a partition starts its replicators
            nonlocal starts
            while True:
                with contextlib.suppress(Unreachable):
                    await actor_system.address(registry)
                    starts += 1
                await asyncio.sleep(0)

        await actor_system.address(key)
        starting = asyncio.create_task(start_again())
        await until(lambda: starts)
        async with asyncio.timeout(20):
            await actor_system.stop()
        starting.cancel()

    with_actor_system(scenario)


def test_a_call_to_a_stopping_actor_reaches_the_next_one() -> None:
    faults: list[dict[str, Any]] = []

    async def scenario(actor_system: InProcessActorSystem, key: ActorKey) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, it: faults.append(it))
        catalog = ActorKey.catalog()
        leaving = actor_system.actors[catalog]
        # As a request that came just before the actor's stop, and is looked at just after.
        await leaving.runtime.close()  # type: ignore[attr-defined]
        call = asyncio.create_task(
            call_by_name(actor_system, catalog, "ensure_topic", {"topic": str(TOPIC)})
        )
        await until(lambda: catalog not in actor_system._rpc_connections)
        await actor_system.dismiss(catalog)
        assert not (await call)["created"]
        assert actor_system.actors[catalog] is not leaving

    with_actor_system(scenario)
    assert not faults
