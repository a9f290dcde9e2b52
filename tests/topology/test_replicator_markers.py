"""Markers that go beside the entries: when, and which of those that say the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from velaray.client.exceptions import NotConnected
from velaray.events.backoff import Backoff
from velaray.geo.replication import replicator_markers
from velaray.geo.replication.replicator_markers import MOST, Markers
from velaray.wire.replication import Marker

RESPONSE, UPDATE = Marker.SNAPSHOT_RESPONSE, Marker.UPDATE


class World:
    def __init__(self) -> None:
        self.markers = Markers(lambda: None)
        self.mark = 0
        self.sent: list[bytes] = []
        self.failing = 0

    async def send(self, kind: Marker, payload: bytes) -> None:
        await asyncio.sleep(0)
        if self.failing:
            self.failing -= 1
            raise NotConnected("lost")
        self.sent.append(payload)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.001)

    async def turns(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0.001)


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        world = World()
        running = asyncio.ensure_future(
            world.markers.run(lambda: world.mark, world.send, Backoff(0.001, 0.001))
        )
        await scenario(world)
        running.cancel()

    asyncio.run(go())


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicator_markers, "LOOK_S", 0.001)


def test_a_snapshot_response_is_sent_after_the_entries_that_it_covers() -> None:
    async def scenario(world: World) -> None:
        world.markers.put("response", RESPONSE, b"at 5", 5)
        world.markers.put("update", UPDATE, b"update", 0)
        await world.until(lambda: world.sent == [b"update"])
        world.mark = 4
        await world.turns()
        assert world.sent == [b"update"] and world.markers.pending
        world.mark = 5
        await world.until(lambda: world.sent == [b"update", b"at 5"])
        assert not world.markers.pending

    run(scenario)


def test_only_the_newest_of_equal_markers_is_sent() -> None:
    async def scenario(world: World) -> None:
        world.markers.put("s", UPDATE, b"old", 5)
        world.markers.put("s", UPDATE, b"new", 5)
        world.markers.put("t", UPDATE, b"other", 5)
        world.mark = 5
        await world.until(lambda: not world.markers.pending)
        assert world.sent == [b"new", b"other"]

    run(scenario)


def test_a_failed_update_is_sent_again_and_other_markers_are_not() -> None:
    async def scenario(world: World) -> None:
        world.failing = 2
        world.markers.put("r", RESPONSE, b"response", 0)
        world.markers.put("u", UPDATE, b"update", 0)
        await world.until(lambda: not world.markers.pending)
        assert world.sent == [b"update"]

    run(scenario)


def test_the_number_of_waiting_markers_is_limited() -> None:
    async def scenario(world: World) -> None:
        for number in range(MOST + 10):
            world.markers.put(f"r{number}", RESPONSE, b"%d" % number, 1)
        assert len(world.markers) == MOST
        world.mark = 1
        await world.until(lambda: not world.markers.pending)
        assert world.sent[0] == b"10"

    run(scenario)
