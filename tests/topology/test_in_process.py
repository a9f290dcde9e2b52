"""Shared links: who calls an actor must not keep it from being idle for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from velaray.events.ids import ActorKey, TopicName
from velaray.geo.actor_kinds import make_body
from velaray.journal.errors import StorageFull
from velaray.journal.memory import MemoryStore
from velaray.topology import actor_system as fabric_module
from velaray.topology.actor_system import Unreachable
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.rpc import RemoteError

TOPIC = TopicName.parse("persistent://public/default/t")


def with_fabric(scenario: Callable[[InProcessActorSystem, ActorKey], Awaitable[None]]) -> None:
    """Run ``scenario`` with a catalog that knows one topic, and the key of its partition."""

    async def main() -> None:
        fabric = InProcessActorSystem(
            ClusterConfig("nowhere", 1, b"key", deleters=0), MemoryStore(), make_body
        )
        names = {"cluster": "c", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await fabric.call(ActorKey.catalog(), "bootstrap", names)
        found = await fabric.call(ActorKey.catalog(), "ensure_topic", {"topic": str(TOPIC)})
        await scenario(fabric, ActorKey.of_partition(TOPIC, found["incarnation"]))
        await fabric.stop()

    asyncio.run(main())


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def test_an_actor_that_was_called_is_idle_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_module, "LINK_KEPT_S", 0.02)

    async def scenario(fabric: InProcessActorSystem, key: ActorKey) -> None:
        await fabric.call(key, "stats")
        await until(lambda: fabric.bodies[key].idle())
        await until(lambda: not fabric._links and not fabric._dialling)
        assert (await fabric.call(key, "stats"))["entries"] == 0

    with_fabric(scenario)


def test_a_link_in_use_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_module, "LINK_KEPT_S", 0.05)

    async def scenario(fabric: InProcessActorSystem, key: ActorKey) -> None:
        await fabric.call(key, "stats")
        link = fabric._links[key]
        for _ in range(20):
            await asyncio.sleep(0.01)
            await fabric.call(key, "stats")
        assert fabric._links[key] is link
        hanging: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(fabric.bodies[key], "call", lambda method, args: hanging)
        call = asyncio.create_task(fabric.call(key, "stats"))
        await asyncio.sleep(0.15)
        hanging.set_result(None)
        assert await call is None
        assert fabric._links[key] is link

    with_fabric(scenario)


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (Unreachable("no brain"), "unavailable", "no brain"),
        (TimeoutError(), "unavailable", "no answer in time"),
        (StorageFull("file", "all used"), "storage full", "all used"),
    ],
)
def test_what_hinders_an_actor_reaches_its_caller(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, kind: str, text: str
) -> None:
    async def scenario(fabric: InProcessActorSystem, key: ActorKey) -> None:
        await fabric.address(key)

        async def failing(method: str, args: Any) -> None:
            raise failure

        monkeypatch.setattr(fabric.bodies[key], "call", failing)
        with pytest.raises(RemoteError, match=text) as caught:
            await fabric.call(key, "stats")
        assert caught.value.kind == kind

    with_fabric(scenario)


def test_a_call_to_an_actor_that_is_leaving_reaches_the_next_one() -> None:
    faults: list[dict[str, Any]] = []

    async def scenario(fabric: InProcessActorSystem, key: ActorKey) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, it: faults.append(it))
        catalog = ActorKey.catalog()
        leaving = fabric.bodies[catalog]
        # As a request that came just before the actor's stop, and is looked at just after.
        await leaving.runtime.close()  # type: ignore[attr-defined]
        call = asyncio.create_task(fabric.call(catalog, "ensure_topic", {"topic": str(TOPIC)}))
        await until(lambda: catalog not in fabric._links)
        await fabric.dismiss(catalog)
        assert not (await call)["created"]
        assert fabric.bodies[catalog] is not leaving

    with_fabric(scenario)
    assert not faults
