"""The table of placements, and the actors of one host."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from velaray.events.ids import ActorKey, TopicName
from velaray.topology.actor_system import ActorBase, Address, Unreachable
from velaray.topology.hosted_actors import HostedActors
from velaray.topology.placement import (
    BACKGROUND_HOST,
    REST_S,
    NoHostLeftError,
    NoSuchPlaceError,
    PlacementTable,
    group_of,
    host_names,
)
from velaray.topology.rpc_server import RpcListener, RpcServer


def partition(number: int) -> ActorKey:
    return ActorKey.of_partition(TopicName.parse(f"persistent://public/default/t-{number}"), 1)


def subscription(number: int, name: str = "s") -> ActorKey:
    return ActorKey.of_subscription(partition(number), name, 1)


def test_partitions_spread_over_the_hosts() -> None:
    table = PlacementTable(3)
    placed = [table.place(partition(number)) for number in range(9)]
    assert {name: placed.count(name) for name in placed} == {f"host/{n}": 3 for n in range(3)}


def test_a_placement_stays() -> None:
    table = PlacementTable(2)
    first = table.place(partition(1))
    for number in range(2, 20):
        table.place(partition(number))
    assert table.place(partition(1)) == first


def test_a_subscription_runs_where_its_partition_does() -> None:
    table = PlacementTable(4)
    for number in range(8):
        host = table.place(partition(number))
        assert table.place(subscription(number)) == host
        assert table.place(subscription(number, "another")) == host


def test_garbage_collectors_run_in_the_background_host() -> None:
    table = PlacementTable(1)
    assert table.place(ActorKey.of_garbage_collector(0)) == BACKGROUND_HOST
    assert table.place(ActorKey.catalog()) == "host/0"


def test_an_actor_that_its_host_has_released_is_placed_anew() -> None:
    table = PlacementTable(2)
    host = table.place(partition(1))
    table.place(subscription(1))
    table.released(host, partition(1))
    assert table.place(partition(1)) == host  # its subscription still runs there
    table.released(host, partition(1))
    table.released(host, subscription(1))
    table.released(host, subscription(1))
    other = next(name for name in host_names(2) if name not in (host, BACKGROUND_HOST))
    for number in range(2, 4):
        table.place(partition(number))
    table.released(other, partition(2 if table.place(partition(2)) == other else 3))
    assert table.place(partition(1)) == other


def test_a_new_table_learns_from_the_hosts() -> None:
    table = PlacementTable(2)
    table.found("host/1", [partition(1), subscription(1)])
    table.found("host/0", [partition(1), partition(2)])  # the first one stays: it runs twice now
    assert table.place(partition(1)) == "host/1"
    assert table.place(partition(2)) == "host/0"
    assert table.placed_in("host/1") == [partition(1), subscription(1)]


def test_a_move_takes_the_whole_group() -> None:
    table = PlacementTable(3)
    table.found("host/1", [partition(1), subscription(1), partition(2)])
    assert table.move(group_of(partition(1)), "host/2") == ("host/1", "host/2")
    assert table.placed_in("host/2") == [partition(1), subscription(1)]
    assert table.placed_in("host/1") == [partition(2)]
    assert table.place(subscription(1, "another")) == "host/2"
    table.released("host/1", partition(1))  # the former host has stopped it
    assert table.place(partition(1)) == "host/2"


def test_a_move_without_a_destination_takes_the_emptiest_other_host() -> None:
    table = PlacementTable(3)
    table.found("host/0", [partition(1)])
    table.found("host/1", [partition(2), partition(3)])
    table.found("host/2", [partition(4)])
    assert table.move(group_of(partition(1))) == ("host/0", "host/2")


def test_a_move_is_refused_by_name() -> None:
    table = PlacementTable(2)
    host = table.place(partition(1))
    with pytest.raises(NoSuchPlaceError, match=r"no host 'host/7'; the hosts are host/0, host/1"):
        table.move(group_of(partition(1)), "host/7")
    with pytest.raises(NoSuchPlaceError, match="no actor of 'elsewhere' is placed"):
        table.move("elsewhere", host)
    assert table.placed_in(host) == [partition(1)]


def test_a_drained_host_takes_no_actors_until_it_is_resumed() -> None:
    table = PlacementTable(2)
    table.found("host/0", [partition(1), subscription(1)])
    assert table.drain("host/0") == [group_of(partition(1))]
    assert {table.place(partition(number)) for number in range(2, 12)} == {"host/1"}
    assert table.place(subscription(1, "another")) == "host/0"  # until its group is moved
    with pytest.raises(NoHostLeftError, match="no other host takes actors"):
        table.drain("host/1")
    assert table.move(group_of(partition(1))) == ("host/0", "host/1")
    table.resume("host/0")
    assert table.place(partition(20)) == "host/0"


def test_a_drained_background_host_takes_no_garbage_collector() -> None:
    table = PlacementTable(1)
    table.drain(BACKGROUND_HOST)
    assert table.place(ActorKey.of_garbage_collector(0)) == "host/0"


def test_topics_move_to_a_host_that_is_added() -> None:
    table = PlacementTable(1)
    for number in range(6):
        table.place(partition(number))
        table.place(subscription(number))
    assert table.levelling(0.0) is None  # there is one host
    assert table.placed_in("host/1") == []  # the process asks when it starts
    table.add_host("host/1")
    moved = []
    while (found := table.levelling(1.0)) is not None:
        group, to = found
        assert table.move(group, to) == ("host/0", "host/1")
        table.relieved(group, 1.0)
        moved.append(group)
    assert len(moved) == len(set(moved)) == 3
    assert len(table.placed_in("host/0")) == len(table.placed_in("host/1")) == 6


def test_a_drained_host_that_is_added_again_takes_actors() -> None:
    """The move of a host to another node may be interrupted while the host is drained."""
    table = PlacementTable(2)
    table.found("host/0", [partition(number) for number in range(4)])
    table.drain("host/1")
    table.add_host("host/1")
    assert table.drained() == []
    assert table.place(partition(10)) == "host/1"


def test_a_topic_is_not_moved_twice_within_ten_minutes() -> None:
    table = PlacementTable(2)
    table.found("host/0", [partition(1), subscription(1), partition(2), subscription(2)])
    group, to = table.levelling(0.0) or ("", "")
    table.move(group, to)
    table.relieved(group, 0.0)
    table.found(to, [partition(3), partition(4), partition(5), partition(6)])
    for number in (3, 4, 5, 6):
        table.relieved(group_of(partition(number)), 0.0)
    assert table.levelling(REST_S - 1) is None
    assert table.levelling(REST_S) == (group, "host/0")


def test_a_drained_host_and_one_for_a_single_topic_take_no_part_in_levelling() -> None:
    table = PlacementTable(2, own=1)
    table.found("host/0", [partition(number) for number in range(4)])
    table.drain("host/1")
    assert table.levelling(0.0) is None
    table.found("host/own-0", [partition(number) for number in range(10, 20)])
    table.resume("host/1")
    assert table.levelling(0.0) == (group_of(partition(0)), "host/1")


class Actor(ActorBase):
    """Starts when it is told to."""

    def __init__(self, key: ActorKey) -> None:
        self.key = key
        self.rpc_server = RpcServer(self, key.text(), RpcListener(b"key"))  # type: ignore[arg-type]
        self.may_start = asyncio.Event()
        self.fault: Exception | None = None
        self.ended = ""

    async def start(self) -> Address:
        await self.may_start.wait()
        if self.fault is not None:
            raise self.fault
        return Address("127.0.0.1", 1, 2)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        return method

    def idle(self) -> bool:
        return True

    async def stop(self) -> None:
        self.ended = "stopped"
        if self.fault is not None:
            raise self.fault

    def abort(self) -> None:
        self.ended = "aborted"


async def starting(hosted: HostedActors, key: ActorKey) -> tuple[Actor, asyncio.Task[Address]]:
    """A start that is under way."""
    task = asyncio.create_task(hosted.address(key))
    while key not in hosted.actors:
        await asyncio.sleep(0)
    actor = hosted.actors[key]
    assert isinstance(actor, Actor)
    return actor, task


def test_an_actor_starts_once_and_stops() -> None:
    async def scenario() -> None:
        hosted, key = HostedActors(Actor), partition(1)
        actor, first = await starting(hosted, key)
        second = asyncio.create_task(hosted.address(key))
        assert not list(hosted)
        actor.may_start.set()
        assert await first == await second
        assert list(hosted) == [(key, actor)]
        await hosted.dismiss(key)
        assert actor.ended == "stopped"
        assert not hosted.actors

    asyncio.run(scenario())


def test_an_actor_that_is_killed_while_it_starts_leaves_its_neighbours_alone() -> None:
    async def scenario() -> None:
        hosted = HostedActors(Actor)
        killed, start = await starting(hosted, partition(1))
        other, other_start = await starting(hosted, partition(2))
        hosted.kill(partition(1))
        with pytest.raises(Unreachable, match="was ended while it started"):
            await start
        assert killed.ended == "aborted"
        other.may_start.set()
        await other_start
        again, start = await starting(hosted, partition(1))
        assert again is not killed
        again.may_start.set()
        await start
        assert len(list(hosted)) == 2

    asyncio.run(scenario())


def test_a_start_that_fails_is_tried_again() -> None:
    async def scenario() -> None:
        hosted, key = HostedActors(Actor), partition(1)
        actor, start = await starting(hosted, key)
        actor.fault = RuntimeError("no")
        actor.may_start.set()
        with pytest.raises(RuntimeError, match="no"):
            await start
        assert actor.ended == "aborted"
        assert not hosted.actors
        again, start = await starting(hosted, key)
        again.may_start.set()
        await start

    asyncio.run(scenario())


def test_an_actor_that_fails_to_stop_is_aborted() -> None:
    async def scenario() -> None:
        hosted, key = HostedActors(Actor), partition(1)
        actor, start = await starting(hosted, key)
        actor.may_start.set()
        await start
        actor.fault = OSError("the disk is gone")
        with pytest.raises(OSError, match="the disk is gone"):
            await hosted.dismiss(key)
        assert actor.ended == "aborted"
        assert not hosted.actors

    asyncio.run(scenario())


def test_the_failure_of_a_former_activation_leaves_its_successor_alone() -> None:
    async def scenario() -> None:
        hosted, key = HostedActors(Actor), partition(1)
        former, start = await starting(hosted, key)
        former.may_start.set()
        await start
        hosted.kill(key)
        former.ended = ""
        successor, start = await starting(hosted, key)
        successor.may_start.set()
        await start
        hosted.fail(former)
        assert not successor.ended
        assert list(hosted) == [(key, successor)]
        hosted.fail(successor)
        assert successor.ended == "aborted"
        assert not list(hosted)

    asyncio.run(scenario())
