"""Progress of subscriptions, sent to another cluster: what it lacks, until it has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from velaray.actors.machine import Reason
from velaray.client.exceptions import NotConnected
from velaray.events.backoff import Backoff
from velaray.geo.replication.replicator_progress import Progress
from velaray.topology.rpc import RemoteError


class World:
    """A partition that counts changes of each subscription, and the other cluster."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.progress = Progress(lambda: self.now_ms, lambda: None)
        self.done: dict[str, int] = {}
        self.exported: list[tuple[str, Any]] = []
        self.sent: list[bytes] = []
        self.failing = 0
        self.when_sent: Callable[[], None] = lambda: None
        self.admission = asyncio.Event()
        self.admission.set()

    def work(self, name: str) -> None:
        """A subscription gets on."""
        self.done[name] = self.done.get(name, 0) + 1
        self.progress.change({name: self.done[name]}, [])

    async def export(self, name: str, since: Any) -> dict[str, Any]:
        self.exported.append((name, since))
        if name not in self.done:
            raise RemoteError(Reason.NOT_FOUND, name)
        now = self.done[name]
        await self.admission.wait()
        parts = [f"{name}{each}".encode() for each in range(since or 0, now)]
        return {"token": now, "parts": parts, "more": False}

    async def send(self, part: bytes) -> None:
        await asyncio.sleep(0)
        if self.failing:
            self.failing -= 1
            raise NotConnected("lost")
        self.sent.append(part)
        self.when_sent()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.001)


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        world = World()
        running = asyncio.ensure_future(
            world.progress.run(world.export, world.send, Backoff(0.001, 0.01))
        )
        await scenario(world)
        running.cancel()

    asyncio.run(go())


def test_a_complete_export_is_sent_first_and_changes_afterwards() -> None:
    async def scenario(world: World) -> None:
        for _ in range(20):
            world.work("s")
        await world.until(lambda: not world.progress.pending)
        assert world.sent == [b"s%d" % number for number in range(20)]
        world.work("s")
        world.work("t")
        await world.until(lambda: not world.progress.pending)
        assert world.exported == [("s", None), ("s", 20), ("t", None)]
        assert world.sent[20:] == [b"s20", b"t0"]

    run(scenario)


def test_unconfirmed_progress_is_sent_again() -> None:
    async def scenario(world: World) -> None:
        world.work("s")
        await world.until(lambda: not world.progress.pending)
        world.failing = 2
        for _ in range(3):
            world.work("s")
        await world.until(lambda: not world.failing)
        assert world.progress.pending
        await world.until(lambda: not world.progress.pending)
        assert set(world.sent) == {b"s0", b"s1", b"s2", b"s3"}
        assert [since for _, since in world.exported] == [None, 1, 1]
        assert world.progress.reason == ""

    run(scenario)


def test_progress_made_during_an_export_is_sent_afterwards() -> None:
    async def scenario(world: World) -> None:
        world.admission.clear()
        world.work("s")
        await world.until(lambda: bool(world.exported))
        world.now_ms += 500
        world.work("s")
        world.admission.set()
        await world.until(lambda: not world.progress.pending)
        assert world.sent == [b"s0", b"s1"]

    run(scenario)


def test_progress_that_never_pauses_is_no_older_than_its_last_export() -> None:
    async def scenario(world: World) -> None:
        world.admission.clear()
        world.when_sent = world.admission.clear  # so that the next export waits
        world.work("s")
        for number in range(1, 20):
            await world.until(lambda number=number: len(world.exported) == number)
            world.now_ms += 500
            world.work("s")
            world.now_ms += 500
            world.work("s")
            world.admission.set()
            await world.until(lambda number=number: len(world.exported) == number + 1)
            assert world.progress.pending
            assert world.progress.oldest_ms == world.now_ms - 500

    run(scenario)


def test_the_age_of_pending_progress_is_known() -> None:
    async def scenario(world: World) -> None:
        assert (world.progress.pending, world.progress.oldest_ms) == (False, 0)
        world.admission.clear()
        world.work("s")
        world.now_ms += 500
        world.work("s")
        world.work("t")
        assert (world.progress.pending, world.progress.oldest_ms) == (True, 1000)
        world.admission.set()
        await world.until(lambda: not world.progress.pending)
        assert world.progress.oldest_ms == 0

    run(scenario)


def test_a_deleted_subscription_does_not_hold_up_others() -> None:
    async def scenario(world: World) -> None:
        world.progress.change({"gone": 1, "dropped": 1}, [])
        world.progress.change({}, ["dropped"])
        world.work("s")
        await world.until(lambda: not world.progress.pending)
        assert world.sent == [b"s0"]

    run(scenario)
