"""The dispatcher between a channel and its machine, while the journal rolls or resets."""

from __future__ import annotations

import asyncio
from collections import deque
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
"""A consumer that asks for nothing: with two, the dispatcher decides on every entry."""

AUTO = (0, (), False)
"""Key_Shared's policy, which Shared consumers bring as well."""


class FakePartition:
    """The channel's side: records the dispatcher's messages."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self.dispatcher: SubscriptionDispatcher
        self.runtime: Runtime

    def on_notice(self, notice: Message) -> None:
        self.said.append(notice)

    def tell(self, notice: Message) -> None:
        self.dispatcher.on_notice(notice)

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


def with_partition(
    scenario: Callable[[FakePartition], Awaitable[None]], alone: bool = False
) -> None:
    """Run ``scenario`` with a dispatcher that has five entries of one message each.

    Unless ``alone``, there is an idle consumer, so that there is no lease.
    """

    async def main() -> None:
        partition = Stander()

        def fatal(error: BaseException) -> None:
            raise error

        partition.runtime = await Runtime.volatile(SubscriptionMachine(), "s", lambda: 0, fatal)
        partition.dispatcher = SubscriptionDispatcher(partition.runtime, 0, partition.on_notice)
        await partition.dispatcher.on_request(OpenDispatcher(0, None, 0, []))
        if not alone:
            partition.attach(IDLE, 0)
        partition.tell(FeedEntries(0, [1] * 5, {}, None, []))
        await scenario(partition)
        await partition.runtime.close()

    asyncio.run(main())


def test_an_ack_while_the_journal_rolls_counts_when_it_is_decided():
    async def scenario(partition: FakePartition) -> None:
        partition.attach(1, 10)
        assert await partition.delivered() == [(1, offset) for offset in range(5)]
        partition.runtime._parked = deque()
        partition.tell(AckEntries(1, 7, 5, [0, 3], []))
        partition.tell(AckEntriesBefore(1, 8, 5, 4, None))
        assert AckReceipt(1, 7, None) not in partition.said
        partition.runtime._unpark()
        while AckReceipt(1, 8, None) not in partition.said:
            await asyncio.sleep(0)
        partition.dispatcher._state.dispatcher.check()
        partition.tell(Detach(1, False))
        partition.attach(2, 10)
        assert await partition.delivered() == [(2, 4)]

    with_partition(scenario)


@pytest.mark.parametrize("by", ["a consumer", "another cluster"])
def test_messages_acked_during_a_roll_over_are_masked_out_of_their_batch(by: str):
    """The last messages of a batch are acknowledged, redelivery is asked for, then that is decided:
    the batch is completely acknowledged, not durably yet."""

    async def scenario(partition: FakePartition) -> None:
        partition.attach(1, 5)
        assert await partition.delivered() == [(1, offset) for offset in range(5)]
        gate = slow_commits(partition)
        partition.runtime._parked = deque()
        taken = None
        if by == "a consumer":
            partition.tell(AckEntries(1, 0, 5, [], [[0, [0]]]))
        else:
            told = ["other", 5, 0, [], [[0, [0]]], [], {}, {}]
            taken = asyncio.ensure_future(
                partition.dispatcher.on_request(TakeRemoteProgress(*told))
            )
            await asyncio.sleep(0)
        partition.tell(Redeliver(1, None, None))
        partition.runtime._unpark()
        partition.tell(AddPermits(1, 100))
        gate.set()
        found: list[tuple[int, int]] = []
        while len(found) < 4:
            found += await partition.delivered()
        assert found == [(1, 1), (1, 2), (1, 3), (1, 4)]
        if taken is not None:
            await taken

    with_partition(scenario)


def test_nothing_is_delivered_before_a_reset_is_durable():
    async def scenario(partition: FakePartition) -> None:
        partition.attach(1, 3)
        assert await partition.delivered() == [(1, 0), (1, 1), (1, 2)]
        partition.tell(AckEntries(1, 0, 5, [0, 3], []))
        assert await partition.delivered() == []
        commit = partition.runtime.journal.commit
        gate = asyncio.Event()

        async def slow_commit() -> int:
            await gate.wait()
            return await commit()

        partition.runtime.journal.commit = slow_commit  # type: ignore[method-assign]
        reset = asyncio.create_task(partition.dispatcher.on_request(ResetCursor(1, "seek")))
        await asyncio.sleep(0)
        partition.tell(AddPermits(1, 10))
        assert await partition.delivered() == []
        gate.set()
        await reset
        partition.tell(FeedEntries(3, [1], {}, None, []))  # sent before the reset
        assert await partition.delivered() == []
        partition.tell(FeedEntries(1, [1] * 4, {}, None, []))
        assert await partition.delivered() == [(1, offset) for offset in range(1, 5)]
        partition.dispatcher._state.dispatcher.check()

    with_partition(scenario)


@pytest.mark.parametrize("rolling", [False, True])
def test_entries_about_to_be_pending_are_not_delivered(rolling):
    async def scenario(partition: FakePartition) -> None:
        partition.attach(1, 10)
        assert await partition.delivered() == [(1, offset) for offset in range(5)]
        commit = partition.runtime.journal.commit
        gate = asyncio.Event()

        async def slow_commit() -> int:
            await gate.wait()
            return await commit()

        if rolling:
            partition.runtime._parked = deque()
        else:
            partition.runtime.journal.commit = slow_commit  # type: ignore[method-assign]
        ack = [1, [0, 7], 5, [1, 3], [], False]
        asked = asyncio.create_task(partition.dispatcher.on_request(AckEntriesInTransaction(*ack)))
        await asyncio.sleep(0)
        partition.tell(Detach(1, False))
        partition.attach(2, 10)
        first = await partition.delivered()
        gate.set()
        if rolling:
            partition.runtime._unpark()
        await asked
        assert first + await partition.delivered() == [(2, 0), (2, 3), (2, 4)]
        partition.dispatcher._state.dispatcher.check()

    with_partition(scenario)


def test_the_end_is_announced_only_after_the_last_entry():
    async def scenario(partition: FakePartition) -> None:
        partition.attach(1, 100)
        await partition.delivered()
        partition.tell(TopicTerminated(8))
        await partition.delivered()
        assert EndOfTopic(1) not in partition.said  # three entries are on their way
        partition.tell(FeedEntries(5, [1] * 3, {}, None, []))
        assert await partition.delivered() == [(1, 5), (1, 6), (1, 7)]
        assert partition.said.count(EndOfTopic(1)) == 1

    with_partition(scenario)


def test_a_consumer_that_left_at_once_is_not_attached():
    async def scenario(partition: FakePartition) -> None:
        partition.attach(1, 10)
        partition.tell(Detach(1, False))
        partition.tell(Detach(1, False))
        assert await partition.delivered() == []
        left = (await partition.dispatcher.on_request(GetStats(5)))["consumers"]
        assert [consumer["number"] for consumer in left] == [IDLE]
        partition.attach(2, 10)
        assert [offset for _, offset in await partition.delivered()] == list(range(5))

    with_partition(scenario)


def test_statistics_wait_for_the_commit_of_counted_events():
    async def scenario(partition: FakePartition) -> None:
        gate = asyncio.Event()
        commit = partition.runtime.journal.commit

        async def slow_commit() -> int:
            await gate.wait()
            return await commit()

        partition.runtime.journal.commit = slow_commit  # type: ignore[method-assign]
        partition.attach(1, 10)
        partition.tell(AckEntries(1, 7, 5, [0, 5], []))
        stats = asyncio.create_task(partition.dispatcher.on_request(GetStats(5)))
        unacked = asyncio.create_task(partition.dispatcher.on_request(FindUnacked(1, 5)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not stats.done() and not unacked.done()
        gate.set()
        assert (await stats)["backlog"] == 0
        assert await unacked is None

    with_partition(scenario)


def test_a_full_disk_restarts_the_dispatcher_without_further_commands():
    async def scenario(partition: FakePartition) -> None:
        partition.attach(1, 10)
        await partition.delivered()
        commit = partition.runtime.journal.commit

        async def full() -> int:
            raise StorageFull("file", "full")

        async def reload() -> Recovered:
            return Recovered(None, (), ())

        partition.runtime.journal.commit = full  # type: ignore[method-assign]
        partition.runtime.journal.reload = reload  # type: ignore[method-assign]
        partition.tell(AckEntries(1, 7, 5, [0, 3], []))
        while Restart() not in partition.said:
            await asyncio.sleep(0)
        (refusal,) = (notice for notice in partition.said if isinstance(notice, AckReceipt))
        assert (refusal.number, refusal.request_id) == (1, 7) and "full" in (refusal.error or "")
        partition.runtime.journal.commit = commit  # type: ignore[method-assign]

    with_partition(scenario)


async def _moved_while_the_disk_is_full(partition: FakePartition) -> None:
    """A roll-over met a full disk and wasn't undone. There is room again after the next command
    has failed."""
    commit = partition.runtime.journal.commit

    async def full() -> int:
        raise StorageFull("file", "full")

    partition.runtime._full = StorageFull("file", "full")
    partition.runtime.journal.commit = full  # type: ignore[method-assign]
    partition.tell(DeadLettersMoved([0]))
    async with asyncio.timeout(5):
        while not partition.runtime.stats.refused_full:
            await asyncio.sleep(0)
    partition.runtime.journal.commit = commit  # type: ignore[method-assign]
    assert partition.runtime.state.cursor.acked_before == 0


async def _kill_first(partition: FakePartition) -> None:
    policies = {"maxUnackedMessagesPerConsumer": 0, "maxUnackedMessagesPerSubscription": 0}
    partition.tell(SetPolicies({**policies, "deadLetter": {"maxRedeliverCount": 0}}))
    partition.attach(1, 1)
    await partition.delivered()
    partition.tell(Redeliver(1, [0, 1], None))
    while MoveDeadLetters([(0, 0, [])]) not in partition.said:
        await asyncio.sleep(0)


def test_a_dead_letter_is_acknowledged_although_a_full_disk_refused_it_at_first(
    monkeypatch: pytest.MonkeyPatch,
):
    async def scenario(partition: FakePartition) -> None:
        await _kill_first(partition)
        await _moved_while_the_disk_is_full(partition)
        async with asyncio.timeout(5):
            while partition.runtime.state.cursor.acked_before == 0:
                await asyncio.sleep(0)
        assert not partition.runtime.state.dead.intended
        assert Restart() not in partition.said

    monkeypatch.setattr(dead_letter_decisions, "CONFIRM_AGAIN_S", 0.0)
    with_partition(scenario)


def test_a_dead_letter_that_a_full_disk_refused_is_forgotten_by_a_reset(
    monkeypatch: pytest.MonkeyPatch,
):
    async def scenario(partition: FakePartition) -> None:
        await _kill_first(partition)
        await _moved_while_the_disk_is_full(partition)
        await partition.dispatcher.on_request(ResetCursor(0, "by a test"))
        partition.tell(FeedEntries(0, [1] * 5, {}, None, []))
        partition.tell(AddPermits(1, 1))
        await partition.delivered()
        partition.tell(Redeliver(1, [0, 1], None))
        while MoveDeadLetters([(0, 1, [])]) not in partition.said:
            await asyncio.sleep(0)
        while partition.dispatcher._dead_letters._confirming is not None:
            await asyncio.sleep(0)
        assert partition.runtime.state.dead.intended == {0: 1}
        assert partition.runtime.state.cursor.acked_before == 0

    monkeypatch.setattr(dead_letter_decisions, "CONFIRM_AGAIN_S", 0.01)
    with_partition(scenario)


# ---- dispatch leases


class Stander(FakePartition):
    """A channel that accepts leases, and delivers on request."""

    def __init__(self) -> None:
        super().__init__()
        self.lease_ends = 0

    def tell(self, notice: Message) -> None:
        self.lease_ends += type(notice) in ENDS_LEASE
        super().tell(notice)

    def take(self, kind: type[NoticeT]) -> list[NoticeT]:
        """The notices of a kind that came."""
        found = [notice for notice in self.said if isinstance(notice, kind)]
        self.said = [notice for notice in self.said if not isinstance(notice, kind)]
        return found


def leased(scenario: Callable[[Stander], Awaitable[None]]) -> None:
    with_partition(scenario, alone=True)  # type: ignore[arg-type]


def test_a_lease_includes_the_permits_that_were_used_before() -> None:
    async def scenario(partition: Stander) -> None:
        partition.attach(1, 3)
        assert await partition.delivered() == [(1, 0), (1, 1), (1, 2)]
        assert partition.take(GrantLease) == [GrantLease(1, 3, 3, UNLIMITED, partition.lease_ends)]
        partition.tell(AddPermits(1, 4))
        assert await partition.delivered() == []  # that's the channel's now
        partition.tell(LeaseReport(3, [1, 1, 2], {}))
        stats = await partition.dispatcher.on_request(GetStats(6))
        assert stats["next_offset"] == 6
        assert [(c["permits"], c["unacked"]) for c in stats["consumers"]] == [(0, 7)]
        partition.dispatcher._state.dispatcher.check()

    leased(scenario)


def test_a_lease_ends_before_the_command_that_ends_it_takes_effect() -> None:
    async def scenario(partition: Stander) -> None:
        partition.attach(1, 10)
        await partition.delivered()
        assert len(partition.take(GrantLease)) == 1
        partition.tell(LeaseReport(5, [1], {}))
        partition.attach(2, 10)
        assert await partition.delivered() == [] == partition.take(GrantLease)
        partition.tell(Detach(1, False))
        assert await partition.delivered() == [(2, offset) for offset in range(6)]
        assert partition.take(GrantLease) == [GrantLease(2, 6, 6, UNLIMITED, partition.lease_ends)]
        partition.tell(Redeliver(2, [1, 3], None))
        assert await partition.delivered() == [(2, 1), (2, 2)]
        assert partition.take(GrantLease) == [GrantLease(2, 6, 8, UNLIMITED, partition.lease_ends)]
        partition.dispatcher._state.dispatcher.check()

    leased(scenario)


def test_the_cursor_moves_only_after_the_channel_stopped() -> None:
    async def scenario(partition: Stander) -> None:
        partition.attach(1, 10)
        await partition.delivered()
        request: Request[None]
        for request in (ResetCursor(1, "seek"), SkipTo(9, 8)):
            partition.take(GrantLease)
            moving = asyncio.create_task(partition.dispatcher.on_request(request))
            assert await partition.delivered() == []
            assert partition.take(RevokeLease) == [RevokeLease()] and not moving.done()
            partition.tell(LeaseReport(partition.dispatcher._state.dispatcher.next_offset, [1], {}))
            assert await partition.delivered() == [] and not moving.done()
            partition.tell(ReleaseLease())
            await moving
            await partition.delivered()
            (lease,) = partition.take(GrantLease)
            assert lease.first == partition.runtime.state.cursor.acked_before
            partition.dispatcher._state.dispatcher.check()

    leased(scenario)


def test_a_lease_is_revoked_when_an_entry_ahead_is_acknowledged() -> None:
    async def scenario(partition: Stander) -> None:
        partition.attach(1, 10)
        await partition.delivered()
        partition.tell(AckEntries(1, 0, 9, [7, 8], []))  # it had it from an earlier connection
        await partition.delivered()
        assert partition.take(RevokeLease) == [RevokeLease()]
        partition.tell(LeaseReport(5, [1, 1, 1], {}))  # crossed it: 7 went out once more
        partition.tell(ReleaseLease())
        partition.dispatcher._state.dispatcher.check()
        partition.take(GrantLease)
        await partition.delivered()
        stats = await partition.dispatcher.on_request(GetStats(9))
        assert [(c["permits"], c["unacked"]) for c in stats["consumers"]] == [(2, 7)]

    leased(scenario)


def test_callers_that_wait_for_a_channel_continue_when_it_is_closed() -> None:
    async def scenario(partition: Stander) -> None:
        partition.attach(1, 10)
        await partition.delivered()
        moving = asyncio.create_task(partition.dispatcher.on_request(ResetCursor(1, "seek")))
        await partition.delivered()
        assert not moving.done()
        partition.dispatcher.close()
        await moving
        assert partition.runtime.state.cursor.acked_before == 1

    leased(scenario)


def test_a_refused_consumer_interrupts_a_lease_only_briefly() -> None:
    async def scenario(partition: Stander) -> None:
        partition.attach(1, 10)
        await partition.delivered()
        partition.take(GrantLease)
        partition.tell(Attach(2, "c2", 0, 0, AUTO, ""))  # Exclusive beside Shared
        await partition.delivered()
        partition.tell(Detach(2, False))
        await partition.delivered()
        assert partition.take(GrantLease)[-1] == GrantLease(
            1, 5, 5, UNLIMITED, partition.lease_ends
        )

    leased(scenario)


# ---- counting deliveries


def slow_commits(partition: FakePartition) -> asyncio.Event:
    """Commits wait for the event."""
    gate = asyncio.Event()
    commit = partition.runtime.journal.commit

    async def slow_commit() -> int:
        await gate.wait()
        return await commit()

    partition.runtime.journal.commit = slow_commit  # type: ignore[method-assign]
    return gate


def test_a_redelivery_is_sent_after_its_count_is_durable_and_not_overtaken() -> None:
    async def scenario(partition: Stander) -> None:
        partition.attach(1, 3)
        assert await partition.delivered() == [(1, 0), (1, 1), (1, 2)]
        gate = slow_commits(partition)
        partition.tell(Redeliver(1, [0, 1], 7))
        partition.take(GrantLease)
        partition.tell(AddPermits(1, 100))
        assert await partition.delivered() == []
        assert partition.take(GrantLease) == []
        gate.set()
        found = []
        while len(found) < 3:
            found += await partition.delivered()
        assert found == [(1, 0), (1, 3), (1, 4)]
        assert partition.take(GrantLease) == [GrantLease(1, 5, 6, UNLIMITED, partition.lease_ends)]
        counts = partition.runtime.state.deliveries
        assert [counts.get(at) for at in range(5)] == [2, 1, 1, 1, 1]

    leased(scenario)


def test_first_deliveries_are_counted_a_little_later(monkeypatch: Any) -> None:
    monkeypatch.setattr(delivery_counts, "NOTE_S", 0.0)

    async def scenario(partition: Stander) -> None:
        partition.attach(1, 2)
        await partition.delivered()
        counts = partition.runtime.state.deliveries
        while not counts:
            await asyncio.sleep(0)
        assert [tuple(run) for run in counts] == [(0, 2, 1)]

    leased(scenario)


def test_a_lost_consumer_counts_and_one_that_leaves_does_not() -> None:
    async def scenario(partition: FakePartition) -> None:
        for number, lost in ((1, True), (2, False), (3, True)):
            partition.attach(number, 1)
            await partition.delivered()
            partition.tell(Detach(number, lost))
        partition.attach(4, 1)
        while not (told := partition.take(Deliver)):  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert told == [Deliver([DispatchGrant(4, 0, 1, 2, [])])]

    with_partition(scenario)
