"""Which messages count as failed when a consumer is lost: a model of a client that dies of some."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from tests.actors.test_dispatch import SHARED, consumer, dispatcher, got
from velaray.actors.dispatch.consumers import Attached, SubscriptionType
from velaray.actors.dispatch.dispatcher import Dispatcher
from velaray.actors.dispatch.in_flight import InFlightTracker
from velaray.actors.dispatch.suspects import GROUP, MOST_SINGLE, Suspects
from velaray.actors.subscription.cursor import Cursor

EXCLUSIVE, FAILOVER, KEY_SHARED = (
    SubscriptionType.EXCLUSIVE,
    SubscriptionType.FAILOVER,
    SubscriptionType.KEY_SHARED,
)
MOST = 2
"""How often a message may be delivered again."""
MESSAGES = 700
RELIEVED_AFTER = 1000
"""Ticks; clients acknowledge after 100 at the latest, as the official ones do within 0.1 s."""


class Client:
    """A consumer of the official client: its receiver queue, threads, and acknowledgements that
    wait to be sent together."""

    def __init__(self, number: int, queue: int, threads: int, grouped: int) -> None:
        self.number = number
        self.queue_size = queue
        self.threads = threads
        self.grouped = grouped
        self.queue: deque[int] = deque()
        self.processed: list[int] = []
        self.permits = 0
        self.ticks = 0

    def work(self, made: Dispatcher, cursor: Cursor, poison: set[int]) -> bool:
        """Every thread processes a message; whether the client lives on."""
        handed = [self.queue.popleft() for _ in range(min(self.threads, len(self.queue)))]
        self.permits += len(handed)
        if self.permits and self.permits >= self.queue_size // 2:
            made.flow(self.number, self.permits)
            self.permits = 0
        if poison.intersection(handed):
            return False
        self.processed += handed
        self.ticks += 1
        if self.ticks % self.grouped == 0:
            ranges = [(offset, offset + 1) for offset in self.processed]
            self.processed = []
            for first, end in ranges:
                cursor.ack_range(first, end)
            made.acked(ranges)
        return True


class World:
    """A subscription whose clients are replaced when they die."""

    def __init__(
        self,
        messages: int,
        poison: set[int],
        *,
        kind: SubscriptionType = SHARED,
        clients: int = 1,
        queue: int = 1000,
        threads: int = 1,
        grouped: int = 1,
    ) -> None:
        self.messages = messages
        self.poison = poison
        self.kind = kind
        self.arguments = (queue, threads, grouped)
        self.cursor = Cursor()
        self.suspects = Suspects()
        self.made = Dispatcher(self.cursor, suspects=self.suspects)
        self.deaths = 0
        self.dead: list[int] = []
        self.clients: dict[int, Client] = {}
        self.numbers = 0
        for _ in range(clients):
            self.join()

    def join(self) -> None:
        if not self.clients:  # the channel was closed: there is another dispatcher
            counts = self.made.failed_deliveries.copy()
            self.made = Dispatcher(self.cursor, counts=counts, suspects=self.suspects)
        self.numbers += 1
        self.clients[self.numbers] = Client(self.numbers, *self.arguments)
        self.made.attach(consumer(self.numbers, self.kind))
        self.feed()
        self.made.flow(self.numbers, self.arguments[0])
        self.condemn()

    def feed(self) -> None:
        first = self.made.feed_from
        if first < self.messages:
            hashes = [1 + offset % 50 for offset in range(first, self.messages)]
            sizes = [1] * (self.messages - first)
            self.made.feed(first, sizes, None, hashes if self.made.needs_hashes else None)

    def condemn(self) -> None:
        for first, end in self.made.condemn(MOST):
            self.dead += range(first, end)
            self.cursor.ack_range(first, end)
            self.made.acked([(first, end)])

    def run(self, most_ticks: int = 100_000) -> None:
        for tick in range(most_ticks):
            if self.cursor.acked_before == self.messages:
                return
            for delivery in self.made.dispatch():
                offsets = range(delivery.first, delivery.end)
                self.clients[delivery.consumer_id].queue.extend(offsets)
            for number, client in list(self.clients.items()):
                if not client.work(self.made, self.cursor, self.poison):
                    self.deaths += 1
                    del self.clients[number]
                    self.made.detach(number, lost=True)
                    self.condemn()
                    self.join()
            if tick % RELIEVED_AFTER == 0:
                self.made.relieve()
            if tick % 100 == 0:
                self.made.check()
        raise AssertionError(f"{self.cursor} after {most_ticks} ticks, dead: {self.dead}")


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("grouped", [1, 100])
@pytest.mark.parametrize("queue", [1, 7, 1000])
def test_one_poison_message_is_the_only_dead_letter(kind, clients, grouped, queue) -> None:
    random = Random(queue * grouped * clients)
    for _ in range(2):
        where = random.randrange(MESSAGES)
        given = {"kind": kind, "clients": clients, "queue": queue, "grouped": grouped}
        world = World(MESSAGES, {where}, **given)
        world.run()
        assert world.dead == [where]
        assert world.deaths == MOST + 1


@pytest.mark.parametrize("threads", [2, 8])
@pytest.mark.parametrize("grouped", [1, 100])
def test_a_poison_message_makes_at_most_one_dead_letter_per_thread(threads, grouped) -> None:
    for seed in range(3):
        where = Random(seed).randrange(MESSAGES)
        world = World(MESSAGES, {where}, threads=threads, grouped=grouped)
        world.run()
        assert where in world.dead and len(world.dead) <= threads
        assert world.deaths <= threads * (MOST + 1)


def test_several_poison_messages_all_become_dead_letters() -> None:
    for seed in range(3):
        random = Random(seed)
        poison = set(random.sample(range(MESSAGES), 3))
        world = World(MESSAGES, poison, grouped=100, clients=random.choice([1, 2]))
        world.run()
        assert poison <= set(world.dead) and len(world.dead) <= 4


def test_without_suspects_whole_queues_become_dead_letters(monkeypatch) -> None:
    def all_it_held(self: InFlightTracker, lost: Attached) -> list[tuple[int, int]]:
        return self.held.of(lost.spec.consumer_id)

    monkeypatch.setattr(InFlightTracker, "failed", all_it_held)
    monkeypatch.setattr(InFlightTracker, "suspect", lambda self, ranges: None)
    world = World(MESSAGES, {400}, grouped=100)
    world.run()
    assert len(world.dead) >= 300


def test_entries_certainly_in_the_receiver_queue_are_not_counted() -> None:
    made = dispatcher(3000, 1000)
    assert len(got(made.dispatch())) == 1000
    made.flow(0, 500)
    made.dispatch()
    made.detach(0, lost=True)
    assert list(made.failed_deliveries) == [(0, 1000, 1)]  # 500 were handed out, and up to 500 more


def test_the_first_entry_counts_even_if_nothing_shows_that_it_was_received() -> None:
    for kind in (SHARED, EXCLUSIVE, FAILOVER):
        made = dispatcher(10, 1, kind=kind)
        assert got(made.dispatch()) == [0]
        made.detach(0, lost=True)
        assert list(made.failed_deliveries) == [(0, 1, 1)]


def test_a_consumer_that_closes_makes_no_suspects() -> None:
    made = dispatcher(100, 1000)
    made.dispatch()
    made.detach(0)
    assert not made.failed_deliveries
    made.attach(consumer(1, SHARED))
    made.flow(1, 1000)
    assert len(got(made.dispatch())) == 100


def lost(entries: int, times: int) -> Dispatcher:
    """A dispatcher whose entries were lost so often."""
    made = Dispatcher(Cursor(), suspects=Suspects([(0, entries, times)]))
    made.attach(consumer(0, SHARED))
    made.feed(0, [1] * (entries + 10))
    made.flow(0, 1000)
    return made


def test_suspects_are_delivered_in_groups_then_alone_and_without_other_entries() -> None:
    assert got(lost(100, 1).dispatch()) == list(range(GROUP))
    made = lost(2, 2)
    for expected in ([0], [1], list(range(2, 12))):
        assert got(made.dispatch()) == expected
        made.check()
        made._in_flight.cursor.whole.ack_range(0, expected[-1] + 1)
        made.acked([(0, expected[-1] + 1)])


def test_an_entry_whose_redelivery_its_consumer_requested_is_no_suspect() -> None:
    made = lost(3, 2)
    for _ in range(3):
        (offset,) = got(made.dispatch())
        made.redeliver(0, [(offset, offset + 1)])
    assert len(got(made.dispatch())) == 13


def test_a_consumer_that_acknowledges_in_groups_gets_more_with_time() -> None:
    made = lost(10, 2)
    found = got(made.dispatch())
    assert found == [0]
    while len(found) < 20:
        assert made.on_trial
        made.relieve()
        found += got(made.dispatch())
        made.check()
    assert sorted(found) == list(range(20))


def test_entries_between_suspects_are_delivered_with_time() -> None:
    for kind in (SHARED, KEY_SHARED):
        made = Dispatcher(Cursor(), suspects=Suspects([(0, 1, 2), (2, 3, 2)]))
        made.attach(consumer(0, kind))
        made.feed(0, [1, 1, 1], None, [1, 2, 3])
        made.flow(0, 1000)
        found = got(made.dispatch())
        assert found == [0]
        for _ in range(4):
            assert made.on_trial
            made.relieve()
            found += got(made.dispatch())
        assert sorted(found) == [0, 1, 2]


def test_a_consumer_with_other_entries_gets_no_more_before_it_can_try_a_suspect() -> None:
    made = dispatcher(20, 10, 5)
    mine = got(made.dispatch(), 0)
    made._in_flight.suspects.lost([(mine[0], mine[0] + 1)])
    made._in_flight.suspects.lost([(mine[0], mine[0] + 1)])
    made.detach(0)
    made.flow(1, 100)
    assert got(made.dispatch()) == []  # it drains
    held = made.unacked(1)
    for first, end in held:
        made._in_flight.cursor.whole.ack_range(first, end)
    made.acked(held)
    assert got(made.dispatch()) == mine[:1]
    made.check()


def test_all_chunks_of_a_message_are_delivered_together() -> None:
    made = dispatcher(3, 100, chunks={0: "a", 1: "a", 2: "a"})
    made.dispatch()
    for number in (1, 2, 3):
        made.detach(number - 1, lost=True)
        made.attach(consumer(number, SHARED))
        made.flow(number, 100)
        assert got(made.dispatch()) == [0, 1, 2]


def test_after_a_start_entries_are_suspected_alone_unless_there_are_many() -> None:
    assert Suspects([(0, MOST_SINGLE, 3)]).losses(0) == 2
    assert Suspects([(0, MOST_SINGLE + 1, 3)]).losses(0) == 1
    assert Suspects([(0, MOST_SINGLE + 1, 1)]).losses(0) == 1
