"""Actors in shared hosts, as one process sees them: `PlacedActors` with a directory in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from velaray.actors.runtime import Stopped
from velaray.events.ids import ActorKey, TopicName
from velaray.journal.errors import StorageFull, SyncFailed
from velaray.topology.actor_system import ActorBase, Address, Unreachable
from velaray.topology.placed_actors import Misplaced, PlacedActors
from velaray.topology.placement import PlacementTable
from velaray.topology.rpc import RemoteError
from velaray.topology.rpc_server import RpcListener, RpcServer

HERE = Address("127.0.0.1", 1, 2)
THERE = Address("127.0.0.2", 3, 4)
KEY = ActorKey.of_partition(TopicName.parse("placed"), 1)


class Actor(ActorBase):
    """Its start or its stop fails if the test sets so."""

    fault: Exception | None = None

    def __init__(self, key: ActorKey) -> None:
        self.key = key
        self.rpc_server = RpcServer(self, key.text(), RpcListener(b"key"))  # type: ignore[arg-type]
        self.aborted = False

    async def start(self) -> Address:
        if self.fault is not None:
            raise self.fault
        return HERE

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        return method

    def idle(self) -> bool:
        return True

    async def stop(self) -> None:
        if self.fault is not None:
            raise self.fault

    def abort(self) -> None:
        self.aborted = True


class Directory:
    """A table, and the notes about passivated actors."""

    def __init__(self) -> None:
        self.table = PlacementTable(2)
        self.notes: list[tuple[str, ActorKey]] = []
        self.asked = 0

    async def place(self, key: ActorKey) -> str:
        self.asked += 1
        await asyncio.sleep(0)
        return self.table.place(key)

    def released(self, host: str, key: ActorKey) -> None:
        self.notes.append((host, key))

    async def placed_in(self, host: str) -> list[ActorKey]:
        return self.table.placed_in(host)


class Others:
    """Other hosts, which refuse a number of times."""

    def __init__(self) -> None:
        self.refusals = 0
        self.asked: list[str] = []

    async def address(self, host: str, key: ActorKey) -> Address:
        self.asked.append(host)
        if self.refusals:
            self.refusals -= 1
            raise Misplaced(f"{key} is placed elsewhere")
        return THERE


class Process:
    """A process of the cluster."""

    def __init__(self, host: str = "host/0") -> None:
        self.directory, self.others = Directory(), Others()
        self.failed: list[Any] = []
        self.placed = PlacedActors(
            host, Actor, self.directory, self.others, lambda actor, error: self.failed.append(actor)
        )


def test_a_host_starts_its_own_actors_and_asks_for_the_others() -> None:
    async def scenario() -> None:
        process = Process()
        assert await process.placed.address(KEY) == HERE
        assert list(process.placed.hosted.actors) == [KEY]
        client = Process(host="")
        assert await client.placed.address(KEY) == THERE
        assert client.others.asked == ["host/0"]

    asyncio.run(scenario())


def test_a_placement_is_kept_until_its_host_refuses() -> None:
    async def scenario() -> None:
        process = Process(host="")
        await process.placed.address(KEY)
        process.directory.table.move(str(KEY.topic_name), "host/1")
        await process.placed.address(KEY)
        assert process.others.asked == ["host/0", "host/0"]
        process.others.refusals = 1
        await process.placed.address(KEY)
        assert process.others.asked[2:] == ["host/0", "host/1"]
        process.others.refusals = 3
        with pytest.raises(Unreachable, match="is being moved"):
            await process.placed.address(KEY)

    asyncio.run(scenario())


def test_a_host_starts_no_actor_of_another_host_or_of_a_group_that_leaves() -> None:
    async def scenario() -> None:
        process = Process()
        await process.placed.address(KEY)
        group = str(KEY.topic_name)
        process.directory.table.move(group, "host/1")
        await process.placed.hand_over(group)
        assert not process.placed.hosted.actors
        assert process.directory.notes == [("host/0", KEY)]
        with pytest.raises(Misplaced):
            await process.placed.start(KEY)
        process.directory.table.move(group, "host/0")
        process.placed.leaving.add(group)
        with pytest.raises(Misplaced):
            await process.placed.start(KEY)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (StorageFull("file", "all used"), RemoteError),
        (SyncFailed("file", "I/O error"), Unreachable),
        (Stopped("actor", None), Unreachable),
    ],
)
def test_a_start_that_fails_gives_a_neighbour_an_error_that_it_expects(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, error: type[Exception]
) -> None:
    """A neighbour would end with any other error."""
    monkeypatch.setattr(Actor, "fault", fault)
    with pytest.raises(error):
        asyncio.run(Process().placed.address(KEY))


def test_an_actor_that_fails_to_stop_is_reported() -> None:
    async def scenario() -> None:
        process = Process()
        await process.placed.address(KEY)
        actor = process.placed.hosted.actors[KEY]
        assert isinstance(actor, Actor)
        actor.fault = SyncFailed("file", "I/O error")
        await process.placed.passivate(KEY)
        assert process.failed == [actor]
        assert actor.aborted
        assert process.directory.notes == [("host/0", KEY)]

    asyncio.run(scenario())


def test_a_restarted_host_starts_what_was_placed_in_it() -> None:
    async def scenario() -> None:
        process = Process()
        keys = [ActorKey.of_partition(TopicName.parse(f"t-{each}"), 1) for each in range(20)]
        for key in keys:
            process.directory.table.place(key)
        await process.placed.recover()
        assert list(process.placed.hosted.actors) == process.directory.table.placed_in("host/0")

    asyncio.run(scenario())
