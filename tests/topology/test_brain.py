"""The brain between a channel and its machine: what must hold while the journal rolls or resets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from velaray.actors.dispatch.unacked import UNLIMITED
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.broker.subscription import dispatcher
from velaray.broker.subscription.dispatcher import ENDS_STANDING, SubscriptionDispatcher
from velaray.journal.errors import StorageFull
from velaray.journal.recovery import Recovered

SHARED = 1
IDLE = 99
"""A consumer that asks for nothing: with two, the brain decides on every entry."""

AUTO = [0, [], False]
"""Key_Shared's policy, which Shared consumers bring as well."""


class Hand:
    """The channel's side: keeps what the brain says."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.brain: SubscriptionDispatcher
        self.runtime: Runtime

    def on_notice(self, method: str, args: Any) -> None:
        self.said.append((method, args))

    def tell(self, method: str, args: Any) -> None:
        self.brain.on_notice(method, args)

    def attach(self, number: int, permits: int) -> None:
        self.tell("attach", [number, f"c{number}", SHARED, 0, AUTO, ""])
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


def with_hand(scenario: Callable[[Hand], Awaitable[None]], alone: bool = False) -> None:
    """Run ``scenario`` with a brain that knows five entries of one message each.

    Unless ``alone``, there is an idle consumer, so that nothing stands.
    """

    async def main() -> None:
        hand = Stander()

        def fatal(error: BaseException) -> None:
            raise error

        hand.runtime = await Runtime.volatile(SubscriptionMachine(), "s", lambda: 0, fatal)
        hand.brain = SubscriptionDispatcher(hand.runtime, 0, hand.on_notice)
        await hand.brain.on_request("open", [0, None, 0, []])
        if not alone:
            hand.attach(IDLE, 0)
        hand.tell("feed", [0, [1] * 5, {}, None, []])
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
        hand.tell("detach", [1, False])
        hand.attach(2, 10)
        assert await hand.delivered() == [(2, 4)]

    with_hand(scenario)


@pytest.mark.parametrize("by", ["a consumer", "another cluster"])
def test_what_was_acknowledged_while_the_journal_rolls_is_not_delivered_as_a_whole_batch(by: str):
    """The last messages of a batch are acknowledged, redelivery is asked for, then that is decided:
    the batch is completely acknowledged, not durably yet."""

    async def scenario(hand: Hand) -> None:
        hand.attach(1, 5)
        assert await hand.delivered() == [(1, offset) for offset in range(5)]
        gate = slow_commits(hand)
        hand.runtime._parked = []
        taken = None
        if by == "a consumer":
            hand.tell("ack", [1, 0, 5, [], [[0, [0]]]])
        else:
            told = ["other", 5, 0, [], [[0, [0]]], [], {}, {}]
            taken = asyncio.ensure_future(hand.brain.on_request("progress", told))
            await asyncio.sleep(0)
        hand.tell("redeliver", [1, None, None])
        hand.runtime._unpark()
        hand.tell("flow", [1, 100])
        gate.set()
        found: list[tuple[int, int]] = []
        while len(found) < 4:
            found += await hand.delivered()
        assert found == [(1, 1), (1, 2), (1, 3), (1, 4)]
        if taken is not None:
            await taken

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
        hand.tell("feed", [3, [1], {}, None, []])  # was under way: what comes before it is missing
        assert await hand.delivered() == []
        hand.tell("feed", [1, [1] * 4, {}, None, []])
        assert await hand.delivered() == [(1, offset) for offset in range(1, 5)]
        hand.brain._dispatcher.check()

    with_hand(scenario)


@pytest.mark.parametrize("rolling", [False, True])
def test_nobody_gets_what_is_about_to_be_pending_in_a_transaction(rolling):
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 10)
        assert await hand.delivered() == [(1, offset) for offset in range(5)]
        commit = hand.runtime.journal.commit
        gate = asyncio.Event()

        async def slow_commit() -> int:
            await gate.wait()
            return await commit()

        if rolling:
            hand.runtime._parked = []
        else:
            hand.runtime.journal.commit = slow_commit  # type: ignore[method-assign]
        ack = [1, [0, 7], 5, [1, 3], []]
        asked = asyncio.create_task(hand.brain.on_request("ack_in_transaction", ack))
        await asyncio.sleep(0)
        hand.tell("detach", [1, False])
        hand.attach(2, 10)
        first = await hand.delivered()
        gate.set()
        if rolling:
            hand.runtime._unpark()
        await asked
        assert first + await hand.delivered() == [(2, 0), (2, 3), (2, 4)]
        hand.brain._dispatcher.check()

    with_hand(scenario)


def test_the_end_is_told_after_the_last_entry_only():
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 100)
        await hand.delivered()
        hand.tell("terminated", 8)
        await hand.delivered()
        assert ("end", 1) not in hand.said  # three entries are on their way
        hand.tell("feed", [5, [1] * 3, {}, None, []])
        assert await hand.delivered() == [(1, 5), (1, 6), (1, 7)]
        assert hand.said.count(("end", 1)) == 1

    with_hand(scenario)


def test_a_consumer_that_left_at_once_is_not_attached():
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 10)
        hand.tell("detach", [1, False])
        hand.tell("detach", [1, False])
        assert await hand.delivered() == []
        left = (await hand.brain.on_request("stats", 5))["consumers"]
        assert [consumer["number"] for consumer in left] == [IDLE]
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


async def _moved_while_the_disk_is_full(hand: Hand) -> None:
    """A roll met a full disk, which nothing fell back by; there is room again once the next
    command was tried in vain."""
    commit = hand.runtime.journal.commit

    async def full() -> int:
        raise StorageFull("file", "full")

    hand.runtime._full = StorageFull("file", "full")
    hand.runtime.journal.commit = full  # type: ignore[method-assign]
    hand.tell("moved", [0])
    async with asyncio.timeout(5):
        while not hand.runtime.stats.refused_full:
            await asyncio.sleep(0)
    hand.runtime.journal.commit = commit  # type: ignore[method-assign]
    assert hand.runtime.state.cursor.acked_before == 0


async def _bury_first(hand: Hand) -> None:
    policies = {"maxUnackedMessagesPerConsumer": 0, "maxUnackedMessagesPerSubscription": 0}
    hand.tell("policies", {**policies, "deadLetter": {"maxRedeliverCount": 0}})
    hand.attach(1, 1)
    await hand.delivered()
    hand.tell("redeliver", [1, [0, 1], None])
    while ("dead", [[0, 0, []]]) not in hand.said:
        await asyncio.sleep(0)


def test_a_dead_letter_is_acknowledged_although_a_full_disk_refused_it_at_first(
    monkeypatch: pytest.MonkeyPatch,
):
    async def scenario(hand: Hand) -> None:
        await _bury_first(hand)
        await _moved_while_the_disk_is_full(hand)
        async with asyncio.timeout(5):
            while hand.runtime.state.cursor.acked_before == 0:
                await asyncio.sleep(0)
        assert not hand.runtime.state.dead.intended
        assert ("restart", None) not in hand.said

    monkeypatch.setattr(dispatcher, "CONFIRM_AGAIN_S", 0.0)
    with_hand(scenario)


def test_a_dead_letter_that_a_full_disk_refused_is_forgotten_by_a_reset(
    monkeypatch: pytest.MonkeyPatch,
):
    async def scenario(hand: Hand) -> None:
        await _bury_first(hand)
        await _moved_while_the_disk_is_full(hand)
        await hand.brain.on_request("reset", [0, "by a test"])
        hand.tell("feed", [0, [1] * 5, {}, None, []])
        hand.tell("flow", [1, 1])
        await hand.delivered()
        hand.tell("redeliver", [1, [0, 1], None])
        while ("dead", [[0, 1, []]]) not in hand.said:
            await asyncio.sleep(0)
        while hand.brain._confirming is not None:
            await asyncio.sleep(0)
        assert hand.runtime.state.dead.intended == {0: 1}
        assert hand.runtime.state.cursor.acked_before == 0

    monkeypatch.setattr(dispatcher, "CONFIRM_AGAIN_S", 0.01)
    with_hand(scenario)


# ---- standing grants


class Stander(Hand):
    """A channel that takes part in standing grants, and delivers when it's told to."""

    def __init__(self) -> None:
        super().__init__()
        self.endings = 0

    def tell(self, method: str, args: Any) -> None:
        self.endings += method in ENDS_STANDING
        super().tell(method, args)

    def take(self, method: str) -> list[Any]:
        """What came of a kind of notice."""
        found = [args for name, args in self.said if name == method]
        self.said = [notice for notice in self.said if notice[0] != method]
        return found


def standing(scenario: Callable[[Stander], Awaitable[None]]) -> None:
    with_hand(scenario, alone=True)  # type: ignore[arg-type]


def test_one_consumer_gets_a_grant_that_says_what_was_used_before() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 3)
        assert await hand.delivered() == [(1, 0), (1, 1), (1, 2)]
        assert hand.take("stand") == [[1, 3, 3, UNLIMITED, hand.endings]]
        hand.tell("flow", [1, 4])
        assert await hand.delivered() == []  # that's the channel's now
        hand.tell("stood", [3, [1, 1, 2], {}])
        stats = await hand.brain.on_request("stats", 6)
        assert stats["next_offset"] == 6
        assert [(c["permits"], c["unacked"]) for c in stats["consumers"]] == [(0, 7)]
        hand.brain._dispatcher.check()

    standing(scenario)


def test_what_ends_a_grant_ends_it_before_it_takes_effect() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 10)
        await hand.delivered()
        assert len(hand.take("stand")) == 1
        hand.tell("stood", [5, [1], {}])
        hand.attach(2, 10)
        assert await hand.delivered() == [] == hand.take("stand")
        hand.tell("detach", [1, False])
        assert await hand.delivered() == [(2, offset) for offset in range(6)]
        assert hand.take("stand") == [[2, 6, 6, UNLIMITED, hand.endings]]
        hand.tell("redeliver", [2, [1, 3], None])
        assert await hand.delivered() == [(2, 1), (2, 2)]
        assert hand.take("stand") == [[2, 6, 8, UNLIMITED, hand.endings]]
        hand.brain._dispatcher.check()

    standing(scenario)


def test_the_cursor_is_moved_only_once_the_channel_has_stopped() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 10)
        await hand.delivered()
        for request, args in (("reset", [1, "seek"]), ("skip_to", [9, 8])):
            hand.take("stand")
            moving = asyncio.create_task(hand.brain.on_request(request, args))
            assert await hand.delivered() == []
            assert hand.take("revoke") == [None] and not moving.done()
            hand.tell("stood", [hand.brain._dispatcher.next_offset, [1], {}])
            assert await hand.delivered() == [] and not moving.done()
            hand.tell("stood_down", None)
            await moving
            await hand.delivered()
            ((_, first, _, _, _),) = hand.take("stand")
            assert first == hand.runtime.state.cursor.acked_before
            hand.brain._dispatcher.check()

    standing(scenario)


def test_a_grant_is_taken_back_when_something_ahead_is_acknowledged() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 10)
        await hand.delivered()
        hand.tell("ack", [1, 0, 9, [7, 8], []])  # it had it from an earlier connection
        await hand.delivered()
        assert hand.take("revoke") == [None]
        hand.tell("stood", [5, [1, 1, 1], {}])  # crossed it: 7 went out once more
        hand.tell("stood_down", None)
        hand.brain._dispatcher.check()
        hand.take("stand")
        await hand.delivered()
        stats = await hand.brain.on_request("stats", 9)
        assert [(c["permits"], c["unacked"]) for c in stats["consumers"]] == [(2, 7)]

    standing(scenario)


def test_who_waits_for_the_channel_goes_on_when_it_is_gone() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 10)
        await hand.delivered()
        moving = asyncio.create_task(hand.brain.on_request("reset", [1, "seek"]))
        await hand.delivered()
        assert not moving.done()
        hand.brain.close()
        await moving
        assert hand.runtime.state.cursor.acked_before == 1

    standing(scenario)


def test_who_is_refused_ends_a_grant_for_a_moment_only() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 10)
        await hand.delivered()
        hand.take("stand")
        hand.tell("attach", [2, "c2", 0, 0, AUTO, ""])  # Exclusive beside Shared
        await hand.delivered()
        hand.tell("detach", [2, False])
        await hand.delivered()
        assert hand.take("stand")[-1] == [1, 5, 5, UNLIMITED, hand.endings]

    standing(scenario)


# ---- counting deliveries


def slow_commits(hand: Hand) -> asyncio.Event:
    """Commits wait for the event."""
    gate = asyncio.Event()
    commit = hand.runtime.journal.commit

    async def slow_commit() -> int:
        await gate.wait()
        return await commit()

    hand.runtime.journal.commit = slow_commit  # type: ignore[method-assign]
    return gate


def test_a_redelivery_goes_out_when_it_is_counted_durably_and_nothing_overtakes_it() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 3)
        assert await hand.delivered() == [(1, 0), (1, 1), (1, 2)]
        gate = slow_commits(hand)
        hand.tell("redeliver", [1, [0, 1], 7])
        hand.take("stand")
        hand.tell("flow", [1, 100])
        assert await hand.delivered() == []
        assert hand.take("stand") == []
        gate.set()
        found = []
        while len(found) < 3:
            found += await hand.delivered()
        assert found == [(1, 0), (1, 3), (1, 4)]
        assert hand.take("stand") == [[1, 5, 6, UNLIMITED, hand.endings]]
        counts = hand.runtime.state.deliveries
        assert [counts.get(at) for at in range(5)] == [2, 1, 1, 1, 1]

    standing(scenario)


def test_first_deliveries_are_counted_a_little_later(monkeypatch: Any) -> None:
    monkeypatch.setattr(dispatcher, "NOTE_S", 0.0)

    async def scenario(hand: Stander) -> None:
        hand.attach(1, 2)
        await hand.delivered()
        counts = hand.runtime.state.deliveries
        while not counts:
            await asyncio.sleep(0)
        assert [tuple(run) for run in counts] == [(0, 2, 1)]

    standing(scenario)


def test_a_lost_consumer_counts_and_one_that_leaves_does_not() -> None:
    async def scenario(hand: Hand) -> None:
        for number, lost in ((1, True), (2, False), (3, True)):
            hand.attach(number, 1)
            await hand.delivered()
            hand.tell("detach", [number, lost])
        hand.attach(4, 1)
        while not (told := hand.take("deliver")):  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert told == [[[4, 0, 1, 2, []]]]

    with_hand(scenario)
