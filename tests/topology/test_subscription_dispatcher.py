"""The brain between a channel and its machine: what must hold while the journal rolls or resets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from velaray.actors.dispatch.unacked import UNLIMITED
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.broker.subscription import dead_letter_decisions, delivery_counts
from velaray.broker.subscription.dispatcher import SubscriptionDispatcher
from velaray.broker.subscription.messages import (
    ENDS_LEASE,
    AckEntries,
    AckEntriesBefore,
    AckEntriesInTransaction,
    AckReceipt,
    AddPermits,
    Attach,
    DeadLettersMoved,
    Deliver,
    Detach,
    DispatchGrant,
    EndOfTopic,
    FeedEntries,
    FindUnacked,
    GetStats,
    GrantLease,
    LeaseReport,
    MoveDeadLetters,
    OpenDispatcher,
    Redeliver,
    ReleaseLease,
    ResetCursor,
    Restart,
    RevokeLease,
    SetPolicies,
    SkipTo,
    TakeRemoteProgress,
    TopicTerminated,
)
from velaray.journal.errors import StorageFull
from velaray.journal.recovery import Recovered
from velaray.topology.messages import Message, Request

SHARED = 1
NoticeT = TypeVar("NoticeT", bound=Message)
IDLE = 99
"""A consumer that asks for nothing: with two, the brain decides on every entry."""

AUTO = (0, (), False)
"""Key_Shared's policy, which Shared consumers bring as well."""


class Hand:
    """The channel's side: keeps what the brain says."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self.brain: SubscriptionDispatcher
        self.runtime: Runtime

    def on_notice(self, notice: Message) -> None:
        self.said.append(notice)

    def tell(self, notice: Message) -> None:
        self.brain.on_notice(notice)

    def attach(self, number: int, permits: int) -> None:
        self.tell(Attach(number, f"c{number}", SHARED, 0, AUTO, ""))
        self.tell(AddPermits(number, permits))

    async def delivered(self) -> list[tuple[int, int]]:
        """(consumer, offset) of what was delivered since the last call."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = [
            (grant.number, offset)
            for notice in self.said
            if isinstance(notice, Deliver)
            for grant in notice.grants
            for offset in range(grant.first, grant.first + grant.count)
        ]
        self.said = [notice for notice in self.said if not isinstance(notice, Deliver)]
        return found


def with_hand(scenario: Callable[[Hand], Awaitable[RevokeLease()]], alone: bool = False) -> None:
    """Run ``scenario`` with a brain that knows five entries of one message each.

    Unless ``alone``, there is an idle consumer, so that nothing stands.
    """

    async def main() -> None:
        hand = Stander()

        def fatal(error: BaseException) -> None:
            raise error

        hand.runtime = await Runtime.volatile(SubscriptionMachine(), "s", lambda: 0, fatal)
        hand.brain = SubscriptionDispatcher(hand.runtime, 0, hand.on_notice)
        await hand.brain.on_request(OpenDispatcher(0, None, 0, []))
        if not alone:
            hand.attach(IDLE, 0)
        hand.tell(FeedEntries(0, [1] * 5, {}, None, []))
        await scenario(hand)
        await hand.runtime.close()

    asyncio.run(main())


def test_an_ack_while_the_journal_rolls_counts_when_it_is_decided():
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 10)
        assert await hand.delivered() == [(1, offset) for offset in range(5)]
        hand.runtime._parked = []
        hand.tell(AckEntries(1, 7, 5, [0, 3], []))
        hand.tell(AckEntriesBefore(1, 8, 5, 4, None))
        assert AckReceipt(1, 7, None) not in hand.said
        hand.runtime._unpark()
        while AckReceipt(1, 8, None) not in hand.said:
            await asyncio.sleep(0)
        hand.brain._state.dispatcher.check()
        hand.tell(Detach(1, False))
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
            hand.tell(AckEntries(1, 0, 5, [], [[0, [0]]]))
        else:
            told = ["other", 5, 0, [], [[0, [0]]], [], {}, {}]
            taken = asyncio.ensure_future(hand.brain.on_request(TakeRemoteProgress(*told)))
            await asyncio.sleep(0)
        hand.tell(Redeliver(1, None, None))
        hand.runtime._unpark()
        hand.tell(AddPermits(1, 100))
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
        hand.tell(AckEntries(1, 0, 5, [0, 3], []))
        assert await hand.delivered() == []
        commit = hand.runtime.journal.commit
        gate = asyncio.Event()

        async def slow_commit() -> int:
            await gate.wait()
            return await commit()

        hand.runtime.journal.commit = slow_commit  # type: ignore[method-assign]
        reset = asyncio.create_task(hand.brain.on_request(ResetCursor(1, "seek")))
        await asyncio.sleep(0)
        hand.tell(AddPermits(1, 10))
        assert await hand.delivered() == []
        gate.set()
        await reset
        hand.tell(FeedEntries(3, [1], {}, None, []))  # sent before the reset
        assert await hand.delivered() == []
        hand.tell(FeedEntries(1, [1] * 4, {}, None, []))
        assert await hand.delivered() == [(1, offset) for offset in range(1, 5)]
        hand.brain._state.dispatcher.check()

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
        asked = asyncio.create_task(hand.brain.on_request(AckEntriesInTransaction(*ack)))
        await asyncio.sleep(0)
        hand.tell(Detach(1, False))
        hand.attach(2, 10)
        first = await hand.delivered()
        gate.set()
        if rolling:
            hand.runtime._unpark()
        await asked
        assert first + await hand.delivered() == [(2, 0), (2, 3), (2, 4)]
        hand.brain._state.dispatcher.check()

    with_hand(scenario)


def test_the_end_is_told_after_the_last_entry_only():
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 100)
        await hand.delivered()
        hand.tell(TopicTerminated(8))
        await hand.delivered()
        assert EndOfTopic(1) not in hand.said  # three entries are on their way
        hand.tell(FeedEntries(5, [1] * 3, {}, None, []))
        assert await hand.delivered() == [(1, 5), (1, 6), (1, 7)]
        assert hand.said.count(EndOfTopic(1)) == 1

    with_hand(scenario)


def test_a_consumer_that_left_at_once_is_not_attached():
    async def scenario(hand: Hand) -> None:
        hand.attach(1, 10)
        hand.tell(Detach(1, False))
        hand.tell(Detach(1, False))
        assert await hand.delivered() == []
        left = (await hand.brain.on_request(GetStats(5)))["consumers"]
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
        hand.tell(AckEntries(1, 7, 5, [0, 5], []))
        stats = asyncio.create_task(hand.brain.on_request(GetStats(5)))
        unacked = asyncio.create_task(hand.brain.on_request(FindUnacked(1, 5)))
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
        hand.tell(AckEntries(1, 7, 5, [0, 3], []))
        while Restart() not in hand.said:
            await asyncio.sleep(0)
        (refusal,) = (notice for notice in hand.said if isinstance(notice, AckReceipt))
        assert (refusal.number, refusal.request_id) == (1, 7) and "full" in (refusal.error or "")
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
    hand.tell(DeadLettersMoved([0]))
    async with asyncio.timeout(5):
        while not hand.runtime.stats.refused_full:
            await asyncio.sleep(0)
    hand.runtime.journal.commit = commit  # type: ignore[method-assign]
    assert hand.runtime.state.cursor.acked_before == 0


async def _bury_first(hand: Hand) -> None:
    policies = {"maxUnackedMessagesPerConsumer": 0, "maxUnackedMessagesPerSubscription": 0}
    hand.tell(SetPolicies({**policies, "deadLetter": {"maxRedeliverCount": 0}}))
    hand.attach(1, 1)
    await hand.delivered()
    hand.tell(Redeliver(1, [0, 1], None))
    while MoveDeadLetters([(0, 0, [])]) not in hand.said:
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
        assert Restart() not in hand.said

    monkeypatch.setattr(dead_letter_decisions, "CONFIRM_AGAIN_S", 0.0)
    with_hand(scenario)


def test_a_dead_letter_that_a_full_disk_refused_is_forgotten_by_a_reset(
    monkeypatch: pytest.MonkeyPatch,
):
    async def scenario(hand: Hand) -> None:
        await _bury_first(hand)
        await _moved_while_the_disk_is_full(hand)
        await hand.brain.on_request(ResetCursor(0, "by a test"))
        hand.tell(FeedEntries(0, [1] * 5, {}, None, []))
        hand.tell(AddPermits(1, 1))
        await hand.delivered()
        hand.tell(Redeliver(1, [0, 1], None))
        while MoveDeadLetters([(0, 1, [])]) not in hand.said:
            await asyncio.sleep(0)
        while hand.brain._dead_letters._confirming is not None:
            await asyncio.sleep(0)
        assert hand.runtime.state.dead.intended == {0: 1}
        assert hand.runtime.state.cursor.acked_before == 0

    monkeypatch.setattr(dead_letter_decisions, "CONFIRM_AGAIN_S", 0.01)
    with_hand(scenario)


# ---- standing grants


class Stander(Hand):
    """A channel that takes part in standing grants, and delivers when it's told to."""

    def __init__(self) -> None:
        super().__init__()
        self.endings = 0

    def tell(self, notice: Message) -> None:
        self.endings += type(notice) in ENDS_LEASE
        super().tell(notice)

    def take(self, kind: type[NoticeT]) -> list[NoticeT]:
        """The notices of a kind that came."""
        found = [notice for notice in self.said if isinstance(notice, kind)]
        self.said = [notice for notice in self.said if not isinstance(notice, kind)]
        return found


def standing(scenario: Callable[[Stander], Awaitable[RevokeLease()]]) -> None:
    with_hand(scenario, alone=True)  # type: ignore[arg-type]


def test_one_consumer_gets_a_grant_that_says_what_was_used_before() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 3)
        assert await hand.delivered() == [(1, 0), (1, 1), (1, 2)]
        assert hand.take(GrantLease) == [GrantLease(1, 3, 3, UNLIMITED, hand.endings)]
        hand.tell(AddPermits(1, 4))
        assert await hand.delivered() == []  # that's the channel's now
        hand.tell(LeaseReport(3, [1, 1, 2], {}))
        stats = await hand.brain.on_request(GetStats(6))
        assert stats["next_offset"] == 6
        assert [(c["permits"], c["unacked"]) for c in stats["consumers"]] == [(0, 7)]
        hand.brain._state.dispatcher.check()

    standing(scenario)


def test_what_ends_a_grant_ends_it_before_it_takes_effect() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 10)
        await hand.delivered()
        assert len(hand.take(GrantLease)) == 1
        hand.tell(LeaseReport(5, [1], {}))
        hand.attach(2, 10)
        assert await hand.delivered() == [] == hand.take(GrantLease)
        hand.tell(Detach(1, False))
        assert await hand.delivered() == [(2, offset) for offset in range(6)]
        assert hand.take(GrantLease) == [GrantLease(2, 6, 6, UNLIMITED, hand.endings)]
        hand.tell(Redeliver(2, [1, 3], None))
        assert await hand.delivered() == [(2, 1), (2, 2)]
        assert hand.take(GrantLease) == [GrantLease(2, 6, 8, UNLIMITED, hand.endings)]
        hand.brain._state.dispatcher.check()

    standing(scenario)


def test_the_cursor_is_moved_only_once_the_channel_has_stopped() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 10)
        await hand.delivered()
        request: Request[None]
        for request in (ResetCursor(1, "seek"), SkipTo(9, 8)):
            hand.take(GrantLease)
            moving = asyncio.create_task(hand.brain.on_request(request))
            assert await hand.delivered() == []
            assert hand.take(RevokeLease) == [RevokeLease()] and not moving.done()
            hand.tell(LeaseReport(hand.brain._state.dispatcher.next_offset, [1], {}))
            assert await hand.delivered() == [] and not moving.done()
            hand.tell(ReleaseLease())
            await moving
            await hand.delivered()
            (lease,) = hand.take(GrantLease)
            assert lease.first == hand.runtime.state.cursor.acked_before
            hand.brain._state.dispatcher.check()

    standing(scenario)


def test_a_grant_is_taken_back_when_something_ahead_is_acknowledged() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 10)
        await hand.delivered()
        hand.tell(AckEntries(1, 0, 9, [7, 8], []))  # it had it from an earlier connection
        await hand.delivered()
        assert hand.take(RevokeLease) == [RevokeLease()]
        hand.tell(LeaseReport(5, [1, 1, 1], {}))  # crossed it: 7 went out once more
        hand.tell(ReleaseLease())
        hand.brain._state.dispatcher.check()
        hand.take(GrantLease)
        await hand.delivered()
        stats = await hand.brain.on_request(GetStats(9))
        assert [(c["permits"], c["unacked"]) for c in stats["consumers"]] == [(2, 7)]

    standing(scenario)


def test_who_waits_for_the_channel_goes_on_when_it_is_gone() -> None:
    async def scenario(hand: Stander) -> None:
        hand.attach(1, 10)
        await hand.delivered()
        moving = asyncio.create_task(hand.brain.on_request(ResetCursor(1, "seek")))
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
        hand.take(GrantLease)
        hand.tell(Attach(2, "c2", 0, 0, AUTO, ""))  # Exclusive beside Shared
        await hand.delivered()
        hand.tell(Detach(2, False))
        await hand.delivered()
        assert hand.take(GrantLease)[-1] == GrantLease(1, 5, 5, UNLIMITED, hand.endings)

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
        hand.tell(Redeliver(1, [0, 1], 7))
        hand.take(GrantLease)
        hand.tell(AddPermits(1, 100))
        assert await hand.delivered() == []
        assert hand.take(GrantLease) == []
        gate.set()
        found = []
        while len(found) < 3:
            found += await hand.delivered()
        assert found == [(1, 0), (1, 3), (1, 4)]
        assert hand.take(GrantLease) == [GrantLease(1, 5, 6, UNLIMITED, hand.endings)]
        counts = hand.runtime.state.deliveries
        assert [counts.get(at) for at in range(5)] == [2, 1, 1, 1, 1]

    standing(scenario)


def test_first_deliveries_are_counted_a_little_later(monkeypatch: Any) -> None:
    monkeypatch.setattr(delivery_counts, "NOTE_S", 0.0)

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
            hand.tell(Detach(number, lost))
        hand.attach(4, 1)
        while not (told := hand.take(Deliver)):  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert told == [Deliver([DispatchGrant(4, 0, 1, 2, [])])]

    with_hand(scenario)
