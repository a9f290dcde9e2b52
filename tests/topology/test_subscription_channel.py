"""The partition's side of a subscription: what it delivers without asking, and says about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from velaray.actors.dispatch.unacked import UNLIMITED
from velaray.actors.partition.delayed import DelayedEntry
from velaray.actors.partition.ledger_table import LedgerSpan
from velaray.broker.partition.channel import delivery
from velaray.broker.partition.channel.consumer import ChannelConsumer
from velaray.broker.partition.delayed_delivery import DelayedDeliveryTracker
from velaray.broker.partition.entries import CachedEntry, EntryCache
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import (
    AckEntries,
    AddPermits,
    Attach,
    Deliver,
    DispatchGrant,
    EndOfTopic,
    EntriesDue,
    FeedEntries,
    FeedFrom,
    GrantLease,
    LeaseReport,
    PassOver,
    Redeliver,
    Redelivering,
    ReleaseLease,
    RevokeLease,
    TopicTerminated,
    WantEntries,
)
from velaray.topology.messages import Message
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.frames import FrameParser, seal_entry

EXCLUSIVE = 0


def entry(offset: int) -> bytes:
    return seal_entry(b"\0\0\0\0" + str(offset).encode())


class Socket:
    """The entries written to the client, as offsets."""

    writable = True
    bytes_written = 0

    def __init__(self) -> None:
        self.parser = FrameParser()
        self.sent: list[Any] = []

    def send(self, command: Any) -> None:
        self.sent.append(command)

    def write(self, frame: bytes) -> None:
        self.parser.feed(frame)

    def write_two(self, head: bytes, rest: bytes) -> None:
        self.write(head + rest)

    async def delivered(self) -> list[int]:
        await asyncio.sleep(0)
        found = []
        while (frame := self.parser.next_frame()) is not None:
            assert frame.entry == entry(frame.command.entry_id)
            found.append(frame.command.entry_id)
        return found

    async def epochs(self) -> list[tuple[int, int | None]]:
        await asyncio.sleep(0)
        found = []
        while (frame := self.parser.next_frame()) is not None:
            found.append((frame.command.entry_id, frame.command.consumer_epoch))
        return found


class Setting:
    """A channel with one consumer, its log, its socket, and its messages to the dispatcher."""

    knows_end_of_topic = True
    partition_index = -1
    terminated_at: int | None = None

    def __init__(self) -> None:
        self.connection = Socket()
        self.cache = EntryCache(self._read, 0)
        self.now_ms = 0
        self.delayed = DelayedDeliveryTracker(lambda: self.now_ms, self._due)
        self.told: list[Message] = []
        self.closed = False
        self.readable: int | None = None
        self.hidden: set[int] = set()
        self.unknown = 1 << 30  # from here on it must be loaded which entries are hidden
        self.loading: list[tuple[int, asyncio.Future[int]]] = []
        self.remote: dict[int, str] = {}
        self.settling: list[asyncio.Future[None]] = []
        self.passed: list[Sequence[int]] = []
        self.passing: list[asyncio.Future[None]] = []
        self.synced: int | None = None
        self.syncs_asked = 0
        self.visibility = self
        self.channel = SubscriptionChannel("s", self, self, lambda *_: None, durable=True)  # type: ignore[arg-type]
        self.channel.link.port = self  # type: ignore[assignment]
        self.consumer: ChannelConsumer = self.channel.add(self, 1, "c", EXCLUSIVE)  # type: ignore[arg-type]

    # the log

    def clock_ms(self) -> int:
        return self.now_ms

    @property
    def end_offset(self) -> int:
        return self.cache.end

    @property
    def readable_end(self) -> int:
        return self.cache.end if self.readable is None else self.readable

    def visible_until(self, first: int, end: int) -> tuple[int, int]:
        known = min(max(first, self.unknown), end)
        return known, min([at for at in self.hidden if first <= at < known], default=known)

    def hidden_within(self, first: int, end: int) -> list[tuple[int, int]]:
        return [(at, at + 1) for at in sorted(self.hidden) if first <= at < end]

    async def load(self, offset: int) -> None:
        self.loading.append((offset, asyncio.get_running_loop().create_future()))
        self.unknown = await self.loading[-1][1]

    async def loaded(self, until: int) -> int:
        """Finish the load that is under way; returns its offset."""
        while not self.loading:
            await asyncio.sleep(0)
        offset, loaded = self.loading.pop()
        loaded.set_result(until)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return offset

    def next_remote(self, origins: Any, first: int, end: int) -> int:
        came = (at for at, name in self.remote.items() if origins is None or name in origins)
        return min((at for at in came if first <= at < end), default=end)

    async def settle(self, channel: SubscriptionChannel) -> None:
        end = self.end_offset
        self.settling.append(asyncio.get_running_loop().create_future())
        await self.settling[-1]
        channel.origins.settled((), end)

    @property
    def synced_offset(self) -> int:
        return self.cache.end if self.synced is None else self.synced

    def ask_for_sync(self) -> None:
        self.syncs_asked += 1

    def span_of(self, offset: int) -> LedgerSpan:
        return LedgerSpan(7, 0, self.cache.end)

    def kept_from(self, offset: int) -> int:
        return offset

    def reading_failed(self, offset: int, error: Exception) -> str:
        raise error

    def consumer_closed(self, consumer: ChannelConsumer) -> None:
        """The channel releases it."""

    async def _read(self, offset: int, entries: int, size: int) -> Sequence[CachedEntry]:
        return [CachedEntry(entry(at), 1, "") for at in range(offset, min(offset + 3, 20))]

    def _due(self, entries: list[DelayedEntry], until_ms: int) -> None:
        self.channel.feed.due([entry.offset for entry in entries])

    def publish(self, count: int, messages: int = 1) -> None:
        for _ in range(count):
            self.cache.append(CachedEntry(entry(self.cache.end), messages, ""))
        self.channel.feed.run()

    # the connection to the dispatcher

    def tell(self, notice: Message) -> None:
        self.told.append(notice)

    async def ask(self, request: PassOver) -> None:
        self.passed.append(request.ranges)
        self.passing.append(asyncio.get_running_loop().create_future())
        await self.passing[-1]

    def close(self) -> None:
        self.closed = True

    def take(self) -> list[Message]:
        told, self.told = self.told, []
        return told

    def lease(self, first: int, debited: int, lease_ends: int = 0, room: int = UNLIMITED) -> None:
        self.channel.on_notice(GrantLease(self.consumer.number, first, debited, room, lease_ends))


def fed(setting: Setting) -> list[tuple[int, Sequence[int]]]:
    """What the dispatcher was fed since the last call, and nothing else."""
    told = setting.take()
    found = [notice for notice in told if isinstance(notice, FeedEntries)]
    assert found == told
    return [(notice.first, notice.sizes) for notice in found]


def run(scenario: Callable[[Setting], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Setting())

    asyncio.run(main())


def test_new_entries_are_sent_at_once_and_reported_before_other_messages() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(5)
        setting.lease(0, 2)  # two of the five were used before
        setting.publish(2)
        assert await setting.connection.delivered() == [0, 1]
        setting.publish(3)
        assert await setting.connection.delivered() == [2]
        assert setting.take() == [AddPermits(1, 5)]
        setting.consumer.flow(1)
        assert await setting.connection.delivered() == [3]
        setting.channel.tell(AckEntries(1, 0, 5, [0, 4], []))
        assert setting.take() == [
            LeaseReport(0, [1, 1, 1], {}, []),
            AddPermits(1, 1),
            LeaseReport(3, [1], {}, []),
            AckEntries(1, 0, 5, [0, 4], []),
        ]

    run(scenario)


def test_a_redelivery_requested_with_new_permits_precedes_new_entries() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(1)
        setting.lease(0, 0)
        setting.publish(2)
        assert await setting.connection.delivered() == [0]
        setting.consumer.flow(1)
        setting.channel.tell(Redeliver(1, None, None))
        assert await setting.connection.delivered() == []

    run(scenario)


def test_the_last_batch_may_exceed_the_permits_and_is_the_last() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(4)
        setting.lease(0, 0)
        setting.publish(3, messages=3)
        assert await setting.connection.delivered() == [0, 1]
        setting.consumer.flow(2)
        assert await setting.connection.delivered() == []
        setting.consumer.flow(1)
        assert await setting.connection.delivered() == [2]

    run(scenario)


def test_a_lease_that_crossed_its_end_is_ignored() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(5)
        setting.channel.tell(Redeliver(1, None, None))
        setting.lease(0, 0, lease_ends=0)
        setting.publish(2)
        assert await setting.connection.delivered() == []
        setting.lease(0, 0, lease_ends=1)
        assert await setting.connection.delivered() == [0, 1]
        setting.take()
        setting.channel.on_notice(RevokeLease())
        assert setting.take() == [LeaseReport(0, [1, 1], {}, []), ReleaseLease()]
        setting.channel.on_notice(RevokeLease())
        assert setting.take() == []  # what ended it is on its way
        setting.publish(1)
        setting.consumer.flow(1)
        assert await setting.connection.delivered() == []

    run(scenario)


def test_nothing_is_delivered_under_a_lease_while_the_cursor_moves() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(5)
        setting.publish(2)
        setting.channel.resetting = True
        setting.take()
        setting.lease(0, 0)
        assert await setting.connection.delivered() == []
        assert setting.take() == [ReleaseLease()]

    run(scenario)


def test_a_lease_ends_before_an_entry_ahead_is_acknowledged() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(5)
        setting.lease(0, 0)
        setting.publish(2)
        setting.channel.delivery.acknowledging(2)
        assert setting.take() == [AddPermits(1, 5)]
        setting.channel.delivery.acknowledging(3)
        assert [type(notice) for notice in setting.take()] == [LeaseReport, ReleaseLease]

    run(scenario)


def test_delivery_waits_for_a_full_socket_and_reads_entries_from_disk() -> None:
    async def scenario(setting: Setting) -> None:
        setting.cache = EntryCache(setting._read, 10)
        setting.consumer.flow(100)
        setting.connection.writable = False
        setting.lease(0, 0)
        setting.connection.writable = True
        setting.publish(10)
        async with asyncio.timeout(5):
            delivered: list[int] = []
            while len(delivered) < 20:
                delivered += await setting.connection.delivered()
        assert delivered == list(range(20))

    run(scenario)


def test_deliveries_of_a_terminated_topic_are_reported_at_once() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(100)
        setting.lease(0, 0)
        setting.publish(1)
        setting.terminated_at = 1
        setting.channel.tell(TopicTerminated(1))
        told = [type(notice) for notice in setting.take()]
        assert told == [AddPermits, LeaseReport, TopicTerminated]

    run(scenario)


def test_entries_delivered_under_a_lease_are_not_fed_again() -> None:
    async def scenario(setting: Setting) -> None:
        setting.channel.feed.start(0, 1, False)
        setting.consumer.flow(2)
        setting.publish(1)
        assert FeedEntries(0, [1], {}, None, []) in setting.take()
        setting.lease(0, 0)
        setting.publish(3)
        setting.channel.tell(ReleaseLease())
        setting.take()
        setting.channel.on_notice(WantEntries(10))
        assert setting.take() == [FeedEntries(2, [1, 1], {}, None, [])]

    run(scenario)


def test_entries_stored_without_permits_are_fed_when_the_lease_ends() -> None:
    """Found by simulation, seed 25315: the dispatcher had asked for it before, and never again."""

    async def scenario(setting: Setting) -> None:
        setting.channel.feed.start(0, 10, False)
        setting.consumer.flow(1)
        setting.lease(0, 0)
        setting.publish(2)
        setting.take()
        setting.channel.tell(Attach(2, "d", EXCLUSIVE, 0, (0, (), False), ""))
        assert setting.take() == [
            LeaseReport(0, [1], {}, []),
            Attach(2, "d", EXCLUSIVE, 0, (0, (), False), ""),
            FeedEntries(1, [1], {}, None, []),
        ]

    run(scenario)


def test_deliveries_granted_before_a_redelivery_keep_their_epoch() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.epoch = 0
        setting.consumer.flow(9)
        setting.publish(6)
        setting.connection.writable = False
        setting.channel.on_notice(Deliver([DispatchGrant(1, 0, 3, 0, [])]))
        setting.channel.tell(Redeliver(1, None, 4))
        setting.channel.on_notice(Redelivering(1, 4))
        setting.channel.on_notice(Deliver([DispatchGrant(1, 0, 2, 1, [])]))
        setting.lease(3, 5, lease_ends=1)
        setting.connection.writable = True
        setting.channel.delivery.deliver(setting.consumer)
        assert await setting.connection.epochs() == [
            *[(0, 0), (1, 0), (2, 0)],
            *[(0, 4), (1, 4), (3, 4), (4, 4), (5, 4)],
        ]

    run(scenario)


def test_grants_of_single_entries_are_written_together() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(99)
        setting.publish(12)
        written: list[bytes] = []
        setting.connection.write = written.append  # type: ignore[method-assign]
        setting.connection.write_two = lambda head, rest: written.append(head + rest)  # type: ignore[method-assign]
        grants = [
            *[(at, 1, 0) for at in (0, 2, 3, 7)],
            (5, 1, 0),
            (8, 2, 0),
            (10, 1, 1),
            (11, 1, 1),
        ]
        setting.channel.on_notice(
            Deliver([DispatchGrant(1, first, count, again, []) for first, count, again in grants])
        )
        assert not setting.consumer.grants
        assert len(written) == 3
        setting.connection.parser.feed(b"".join(written))
        assert await setting.connection.delivered() == [0, 2, 3, 7, 5, 8, 9, 10, 11]

    run(scenario)


def test_a_consumer_keeps_the_grants_that_its_socket_does_not_take(monkeypatch) -> None:
    monkeypatch.setattr(delivery, "PIECE_BYTES", 1)

    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(99)
        setting.publish(12)
        connection = setting.connection
        write = connection.write

        def take_one(frame: bytes) -> None:
            write(frame)
            connection.writable = False

        connection.write = take_one  # type: ignore[method-assign]
        grants = [DispatchGrant(1, first, 1, 0, []) for first in (0, 2, 4, 6)]
        setting.channel.on_notice(Deliver(grants))
        left = [(grant.first, grant.count) for grant in setting.consumer.grants]
        assert left == [(2, 1), (4, 1), (6, 1)]
        connection.write = write  # type: ignore[method-assign]
        connection.writable = True
        setting.channel.delivery.deliver(setting.consumer)
        assert await connection.delivered() == [0, 2, 4, 6]

    run(scenario)


def test_the_end_of_a_topic_comes_after_the_granted_entries() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(9)
        setting.publish(3)
        setting.connection.writable = False
        setting.channel.on_notice(Deliver([DispatchGrant(1, 0, 3, 0, [])]))
        setting.channel.on_notice(EndOfTopic(1))
        assert setting.connection.sent == []
        setting.connection.writable = True
        setting.channel.delivery.deliver(setting.consumer)
        assert await setting.connection.delivered() == [0, 1, 2]
        setting.channel.delivery.deliver(setting.consumer)
        assert [type(each) for each in setting.connection.sent] == [pb.CommandReachedEndOfTopic]

    run(scenario)


def test_entries_due_while_a_consumer_attaches_are_reported() -> None:
    """Found by simulation, seed 44000024: the dispatcher kept it as delayed for ever."""

    async def scenario(setting: Setting) -> None:
        setting.cache.append(CachedEntry(entry(0), 1, ""))
        setting.delayed.add(DelayedEntry(1, 0, 1, 0))
        setting.channel.consumers.clear()
        setting.channel.feed.start(0, 10, False)
        assert setting.take() == [FeedEntries(0, [1], {}, None, [0, 1])]
        setting.channel.feed.due([0])
        assert setting.take() == [EntriesDue([0, 1])]

    run(scenario)


def test_feeding_stops_at_hidden_entries_that_are_not_in_memory_and_continues() -> None:
    async def scenario(setting: Setting) -> None:
        setting.hidden, setting.unknown = {1, 5}, 0
        setting.publish(8)
        setting.channel.feed.start(0, 100, False)
        assert fed(setting) == []
        assert await setting.loaded(4) == 0
        assert fed(setting) == [(0, [1])]
        assert setting.passed == [[1, 2]]
        setting.passing.pop().set_result(None)
        assert await setting.loaded(8) == 4
        assert fed(setting) == [(2, [1, 1]), (4, [1])]
        assert setting.passed == [[1, 2], [5, 6]]
        setting.passing.pop().set_result(None)
        while not setting.told:
            await asyncio.sleep(0)
        assert fed(setting) == [(6, [1, 1])] and not setting.loading

    run(scenario)


def test_a_lease_continues_behind_hidden_entries_that_were_not_in_memory() -> None:
    async def scenario(setting: Setting) -> None:
        setting.hidden, setting.unknown = {6}, 2
        setting.publish(4)
        setting.consumer.flow(50)
        setting.lease(0, 0)
        assert await setting.connection.delivered() == [0, 1]
        setting.publish(4)
        assert await setting.connection.delivered() == []
        assert await setting.loaded(5) == 2
        assert await setting.connection.delivered() == [2, 3, 4]
        assert ReleaseLease() not in setting.take()  # it isn't known yet that any is hidden
        assert await setting.loaded(8) == 5
        assert await setting.connection.delivered() == [5]
        assert ReleaseLease() in setting.take()

    run(scenario)


def test_a_lease_is_kept_while_the_dispatcher_cannot_be_told_of_the_next_entry() -> None:
    """Otherwise the two exchange leases without a pause until it can."""

    async def scenario(setting: Setting) -> None:
        setting.hidden = {1}
        setting.consumer.flow(9)
        setting.channel.on_notice(FeedFrom(0, 0, False))
        setting.lease(0, 0)
        setting.publish(3)
        assert await setting.connection.delivered() == [0]
        assert ReleaseLease() in setting.take()
        await asyncio.sleep(0)
        assert len(setting.passing) == 1
        setting.lease(1, 1, lease_ends=1)
        assert setting.take() == []
        setting.passing[0].set_result(None)
        await asyncio.sleep(0.01)
        assert ReleaseLease() in setting.take()

    run(scenario)


def test_a_lease_is_kept_while_entries_before_a_hidden_one_are_read() -> None:
    """Otherwise the two exchange leases without a pause until they are read."""

    async def scenario(setting: Setting) -> None:
        reads: list[asyncio.Future[None]] = []

        async def read_slowly(offset: int, entries: int, size: int) -> Sequence[CachedEntry]:
            reads.append(asyncio.get_running_loop().create_future())
            await reads[-1]
            return await setting._read(offset, entries, size)

        setting.cache = EntryCache(read_slowly, 5)
        setting.hidden = {1}
        setting.consumer.flow(9)
        setting.channel.on_notice(FeedFrom(0, 10, False))
        while not reads:
            await asyncio.sleep(0)
        setting.lease(1, 0)
        assert ReleaseLease() not in setting.take()
        reads[0].set_result(None)
        await asyncio.sleep(0.01)
        assert ReleaseLease() in setting.take()

    run(scenario)


def test_a_channel_that_closes_cancels_its_late_report() -> None:
    async def scenario(setting: Setting) -> None:
        setting.consumer.flow(9)
        setting.lease(0, 0)
        setting.publish(1)
        timer = setting.channel.delivery._reporting
        assert timer is not None
        setting.channel.close()
        assert timer.cancelled()

    run(scenario)


def test_a_channel_that_closes_during_a_load_delivers_nothing_more() -> None:
    async def scenario(setting: Setting) -> None:
        setting.unknown = 0
        setting.publish(4)
        setting.channel.feed.start(0, 100, False)
        await asyncio.sleep(0)
        setting.channel.close()
        await asyncio.sleep(0)
        ((_, load),) = setting.loading
        assert load.cancelled() and fed(setting) == []

    run(scenario)


def test_replicated_entries_are_fed_after_their_progress_is_settled() -> None:
    async def scenario(setting: Setting) -> None:
        setting.remote = {1: "east", 4: "west"}
        setting.channel.on_notice(FeedFrom(0, 9, False))
        setting.publish(3)
        assert fed(setting) == [(0, [1])]
        await asyncio.sleep(0)
        setting.publish(1)
        assert (setting.take(), len(setting.settling)) == ([], 1)
        setting.settling[0].set_result(None)
        await asyncio.sleep(0.01)
        assert fed(setting) == [(1, [1, 1, 1])]
        setting.publish(2)
        assert fed(setting) == [(4, [1, 1])]  # nothing waits any more
        setting.channel.origins.may_wait(["east"])
        setting.remote = {6: "west", 7: "east"}
        setting.publish(3)
        assert fed(setting) == [(6, [1])]
        await asyncio.sleep(0)
        assert len(setting.settling) == 2

    run(scenario)


def test_a_lease_ends_at_entries_whose_progress_is_unsettled() -> None:
    async def scenario(setting: Setting) -> None:
        setting.channel.origins.settled((), 0)
        setting.consumer.flow(9)
        setting.channel.on_notice(FeedFrom(0, 0, False))
        setting.lease(0, 0)
        setting.remote = {1: "east", 2: "east"}
        setting.publish(2)
        assert await setting.connection.delivered() == [0, 1]
        setting.channel.origins.may_wait(["east"])
        setting.take()
        setting.publish(2)
        assert await setting.connection.delivered() == []
        told = [type(notice) for notice in setting.take()]
        assert told == [LeaseReport, ReleaseLease]
        await asyncio.sleep(0)
        assert len(setting.settling) == 1

    run(scenario)


def test_a_channel_whose_progress_cannot_be_settled_disconnects_its_consumers() -> None:
    async def scenario(setting: Setting) -> None:
        setting.remote = {0: "east"}
        setting.channel.on_notice(FeedFrom(0, 9, False))
        setting.publish(1)
        await asyncio.sleep(0)
        setting.settling[0].set_exception(TimeoutError())
        await asyncio.sleep(0.01)
        assert setting.channel.closed

    run(scenario)
