"""The brain between a channel and its machine: what must hold while the journal rolls or resets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from velaray.actors.runtime import Runtime
from velaray.actors.subscription import SubscriptionMachine
from velaray.journal.errors import StorageFull
from velaray.journal.recovery import Recovered
from velaray.topology.brain import Brain

SHARED = 1


class Hand:
    """The channel's side: keeps what the brain says."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.brain: Brain
        self.runtime: Runtime

    def on_notice(self, method: str, args: Any) -> None:
        self.said.append((method, args))

    def tell(self, method: str, args: Any) -> None:
        self.brain.on_notice(method, args)

    def attach(self, number: int, permits: int) -> None:
        self.tell("attach", [number, f"c{number}", SHARED, 0])
        self.tell("flow", [number, permits])

    async def delivered(self) -> list[tuple[int, int]]:
        """(consumer, offset) of what was delivered since the last call."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = [
            (number, offset)
            for method, args in self.said
            if method == "deliver"
            for number, first, count, _, _ in args
            for offset in range(first, first + count)
        ]
        self.said = [notice for notice in self.said if notice[0] != "deliver"]
        return found


def with_hand(scenario: Callable[[Hand], Awaitable[None]]) -> None:
    """Run ``scenario`` with a brain that knows five entries of one message each."""

    async def main() -> None:
        hand = Hand()

        def fatal(error: BaseException) -> None:
            raise error

        hand.runtime = await Runtime.volatile(SubscriptionMachine(), "s", lambda: 0, fatal)
        hand.brain = Brain(hand.runtime, 0, hand.on_notice)
        await hand.brain.on_request("open", [0, None])
        hand.tell("feed", [0, [1] * 5, {}])
        await scenario(hand)
        await hand.runtime.close()

    asyncio.run(main())


def test_an_ack_while_the_journal_rolls_counts_when_it_is_decided():
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 10)
        assert await hand.delivered() == [(1, offset) for offset in range(5)]
        hand.runtime._parked = []
        hand.tell("ack", [1, 7, 5, [0, 3], []])
        hand.tell("ack_before", [1, 8, 5, 4, None])
        assert ("acked", [1, 7, None]) not in hand.said
        hand.runtime._unpark()
        while ("acked", [1, 8, None]) not in hand.said:
            await asyncio.sleep(0)
        hand.brain._dispatcher.check()
        hand.tell("detach", 1)
        hand.attach(2, 10)
        assert await hand.delivered() == [(2, 4)]

    with_hand(scenario)


def test_nothing_is_delivered_from_where_a_reset_is_not_durable_yet():
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 3)
        assert await hand.delivered() == [(1, 0), (1, 1), (1, 2)]
        hand.tell("ack", [1, 0, 5, [0, 3], []])
        assert await hand.delivered() == []
        commit = hand.runtime.journal.commit
        gate = asyncio.Event()

        async def slow_commit() -> int:
            await gate.wait()
            return await commit()

        hand.runtime.journal.commit = slow_commit  # type: ignore[method-assign]
        reset = asyncio.create_task(hand.brain.on_request("reset", [1, "seek"]))
        await asyncio.sleep(0)
        hand.tell("flow", [1, 10])
        assert await hand.delivered() == []
        gate.set()
        await reset
        hand.tell("feed", [3, [1], {}])  # was under way: what comes before it is missing
        assert await hand.delivered() == []
        hand.tell("feed", [1, [1] * 4, {}])
        assert await hand.delivered() == [(1, offset) for offset in range(1, 5)]
        hand.brain._dispatcher.check()

    with_hand(scenario)


def test_the_end_is_told_after_the_last_entry_only():
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 100)
        await hand.delivered()
        hand.tell("terminated", 8)
        await hand.delivered()
        assert ("end", 1) not in hand.said  # three entries are on their way
        hand.tell("feed", [5, [1] * 3, {}])
        assert await hand.delivered() == [(1, 5), (1, 6), (1, 7)]
        assert hand.said.count(("end", 1)) == 1

    with_hand(scenario)


def test_a_consumer_that_left_at_once_is_not_attached():
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 10)
        hand.tell("detach", 1)
        hand.tell("detach", 1)
        assert await hand.delivered() == []
        assert (await hand.brain.on_request("stats", 5))["consumers"] == []
        hand.attach(2, 10)
        assert [offset for _, offset in await hand.delivered()] == list(range(5))

    with_hand(scenario)


def test_numbers_wait_until_what_they_count_is_durable():
    async def scenario(hand: Hand) -> None:
        gate = asyncio.Event()
        commit = hand.runtime.journal.commit

        async def slow_commit() -> int:
            await gate.wait()
            return await commit()

        hand.runtime.journal.commit = slow_commit  # type: ignore[method-assign]
        hand.attach(1, 10)
        hand.tell("ack", [1, 7, 5, [0, 5], []])
        stats = asyncio.create_task(hand.brain.on_request("stats", 5))
        unacked = asyncio.create_task(hand.brain.on_request("find_unacked", [1, 5]))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not stats.done() and not unacked.done()
        gate.set()
        assert (await stats)["backlog"] == 0
        assert await unacked is None

    with_hand(scenario)


def test_a_full_disk_lets_everything_begin_anew_even_if_nothing_else_happens():
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 10)
        await hand.delivered()
        commit = hand.runtime.journal.commit

        async def full() -> int:
            raise StorageFull("file", "full")

        async def reload() -> Recovered:
            return Recovered(None, (), ())

        hand.runtime.journal.commit = full  # type: ignore[method-assign]
        hand.runtime.journal.reload = reload  # type: ignore[method-assign]
        hand.tell("ack", [1, 7, 5, [0, 3], []])
        while ("restart", None) not in hand.said:
            await asyncio.sleep(0)
        refusals = [args for method, args in hand.said if method == "acked"]
        assert [args[:2] for args in refusals] == [[1, 7]] and "full" in refusals[0][2]
        hand.runtime.journal.commit = commit  # type: ignore[method-assign]

    with_hand(scenario)
