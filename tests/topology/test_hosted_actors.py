"""The starts of the actors of one process take turns."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from velaray.events.ids import ActorKey, TopicName
from velaray.topology.actor_system import ActorBase, Address, Unreachable
from velaray.topology.hosted_actors import STARTS_AT_ONCE, HostedActors
from velaray.topology.rpc_server import RpcListener, RpcServer

HERE = Address("127.0.0.1", 1, 2)
KEYS = [ActorKey.of_partition(TopicName.parse(f"t{n}"), 1) for n in range(3 * STARTS_AT_ONCE)]
LATER = KEYS[STARTS_AT_ONCE:]


class Actor(ActorBase):
    """Its start ends when the test says so."""

    def __init__(self, key: ActorKey, host: Host) -> None:
        self.key = key
        self.rpc_server = RpcServer(self, key.text(), RpcListener(b"key"))  # type: ignore[arg-type]
        self._host = host
        self.aborted = False

    async def start(self) -> Address:
        self._host.begun.append(self.key)
        await self._host.ready(self.key)
        return HERE

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        return method

    def idle(self) -> bool:
        return True

    async def stop(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        self.aborted = True


class Host:
    """Actors with a record of the starts that have begun."""

    def __init__(self) -> None:
        self.begun: list[ActorKey] = []
        self.made: list[Actor] = []
        self.broken: set[ActorKey] = set()
        self._ready: dict[ActorKey, asyncio.Event] = {}
        self.hosted = HostedActors(self._make)

    def _make(self, key: ActorKey) -> Actor:
        self.made.append(Actor(key, self))
        return self.made[-1]

    async def ready(self, key: ActorKey) -> None:
        await self._ready.setdefault(key, asyncio.Event()).wait()
        if key in self.broken:
            raise Unreachable(f"{key} is broken")

    def finish(self, key: ActorKey) -> None:
        self._ready.setdefault(key, asyncio.Event()).set()

    def ask(self, key: ActorKey) -> asyncio.Task[Address]:
        return asyncio.ensure_future(self.hosted.address(key))


def run(scenario: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        host = Host()
        async with asyncio.timeout(20):
            await scenario(host)
        for key in list(host.hosted.actors):
            host.hosted.kill(key)

    asyncio.run(main())


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_starts_take_turns_in_the_order_of_their_requests() -> None:
    async def scenario(host: Host) -> None:
        calls = [host.ask(key) for key in KEYS]
        await turns()
        assert host.begun == KEYS[:STARTS_AT_ONCE]
        for number, key in enumerate(KEYS):
            host.finish(key)
            assert await calls[number] == HERE
            await turns()
            assert host.begun == KEYS[: STARTS_AT_ONCE + number + 1]

    run(scenario)


def test_other_tasks_run_between_the_answers_to_a_survey() -> None:
    async def scenario(host: Host) -> None:
        for key in KEYS:
            host.finish(key)
            await host.ask(key)
        seen = 0

        async def count() -> None:
            nonlocal seen
            while True:
                seen += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        answers = await host.hosted.answers("metrics", 5.0)
        counting.cancel()
        assert answers == dict.fromkeys(KEYS, "metrics")
        assert seen >= len(KEYS)

    run(scenario)


def test_an_actor_that_waits_for_its_turn_is_started_once_for_all_callers() -> None:
    async def scenario(host: Host) -> None:
        calls = [host.ask(key) for key in KEYS]
        await turns()
        repeated = [host.ask(key) for key in KEYS]
        await turns()
        for call in calls:
            call.cancel()
        await turns()
        for key in KEYS:
            host.finish(key)
        assert await asyncio.gather(*repeated) == [HERE] * len(KEYS)
        assert sorted(host.begun) == sorted(KEYS)

    run(scenario)


def test_a_start_whose_callers_have_gone_is_dropped_before_its_turn() -> None:
    async def scenario(host: Host) -> None:
        calls = [host.ask(key) for key in KEYS]
        await turns()
        for call in calls[:-1]:
            call.cancel()
        await turns()
        host.finish(KEYS[-1])
        host.finish(KEYS[0])
        assert await calls[-1] == HERE
        assert host.begun == [*KEYS[:STARTS_AT_ONCE], KEYS[-1]]
        dropped = [actor.key for actor in host.made if actor.aborted]
        assert dropped == LATER[:-1]
        assert not any(map(host.hosted.has_begun, dropped))
        host.finish(KEYS[1])
        again = host.ask(LATER[0])
        host.finish(LATER[0])
        assert await again == HERE

    run(scenario)


def test_a_start_that_has_begun_continues_without_its_caller() -> None:
    async def scenario(host: Host) -> None:
        call = host.ask(KEYS[0])
        await turns()
        call.cancel()
        await turns()
        host.finish(KEYS[0])
        assert await host.hosted.address(KEYS[0]) == HERE
        assert host.begun == KEYS[:1]

    run(scenario)


@pytest.mark.parametrize("killed", [False, True])
def test_a_start_that_fails_after_its_callers_have_gone_reports_no_lost_error(
    killed: bool,
) -> None:
    lost: list[dict[str, Any]] = []

    async def scenario(host: Host) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
        host.broken.add(KEYS[0])
        call = host.ask(KEYS[0])
        await turns()
        call.cancel()
        host.finish(KEYS[0])
        await turns()
        if killed:
            host.hosted.kill(KEYS[0])
        host.hosted = HostedActors(host._make)
        del call  # its error leads to the start
        gc.collect()
        await turns()
        assert lost == []

    run(scenario)


def test_a_start_that_waits_for_an_actor_of_another_kind_leaves_it_a_place() -> None:
    """A subscription asks its partition whether it exists."""

    async def scenario(host: Host) -> None:
        for key in KEYS:
            host.ask(key.of_subscription("s", 1))
        await turns()
        assert len(host.begun) == STARTS_AT_ONCE
        host.finish(KEYS[0])
        assert await host.hosted.address(KEYS[0]) == HERE

    run(scenario)


def test_an_actor_that_is_killed_before_its_turn_is_unreachable_and_starts_anew() -> None:
    async def scenario(host: Host) -> None:
        calls = {key: host.ask(key) for key in KEYS}
        await turns()
        host.hosted.kill(LATER[0])
        with pytest.raises(Unreachable, match="ended while it started"):
            await calls[LATER[0]]
        for key in KEYS:
            host.finish(key)
        assert await host.hosted.address(LATER[0]) == HERE

    run(scenario)
