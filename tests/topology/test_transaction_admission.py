"""Transaction admission by itself: verdicts that arrive while it asks the coordinator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from velaray.actors.machine import Reason
from velaray.broker.coordinator.messages import MayJoin
from velaray.broker.partition.transaction_admission import TransactionAdmission
from velaray.events.ids import ActorKey, TopicName, TransactionId
from velaray.topology.actor_system import Unreachable
from velaray.topology.rpc import RemoteError

TXN = TransactionId(0, 7)


class Coordinator:
    """An actor system with one coordinator, which admits everything when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.says = asyncio.Event()
        self.times = 0

    async def request(self, key: ActorKey, request: Any) -> None:
        assert key == ActorKey.of_coordinator(0) and isinstance(request, MayJoin)
        self.times += 1
        self.asked.set()
        await self.says.wait()


def test_an_end_invalidates_an_answer_in_flight() -> None:
    async def scenario() -> None:
        coordinator, tasks = Coordinator(), set()

        def spawn(work: Any) -> None:
            tasks.add(asyncio.ensure_future(work))

        key = ActorKey.of_partition(TopicName.parse("t"), 1)
        gate = TransactionAdmission(key, coordinator, spawn)  # type: ignore[arg-type]
        first = asyncio.ensure_future(gate.pass_through(TXN))
        await coordinator.asked.wait()
        await gate.end(TXN)
        coordinator.says.set()
        with pytest.raises(RemoteError) as refused:
            await first
        assert refused.value.kind == Reason.CONFLICT
        await asyncio.gather(*tasks)
        assert not gate.is_open(TXN)

        await gate.pass_through(TXN)  # a later message asks again
        assert (coordinator.times, gate.is_open(TXN)) == (2, True)

    asyncio.run(scenario())


def test_callers_learn_that_the_partition_has_ended() -> None:
    async def scenario() -> None:
        tasks: list[asyncio.Future[Any]] = []
        key = ActorKey.of_partition(TopicName.parse("t"), 1)
        coordinator = Coordinator()
        gate = TransactionAdmission(
            key,
            coordinator,  # type: ignore[arg-type]
            lambda work: tasks.append(asyncio.ensure_future(work)),
        )
        waiting = asyncio.ensure_future(gate.pass_through(TXN))
        await coordinator.asked.wait()
        gate.close()
        tasks[0].cancel()  # as with all tasks of an actor that ends
        async with asyncio.timeout(5):
            with pytest.raises(Unreachable, match="the partition has ended"):
                await waiting
        with pytest.raises(Unreachable, match="the partition has ended"):
            await gate.pass_through(TXN)
        assert len(tasks) == 1

    asyncio.run(scenario())
