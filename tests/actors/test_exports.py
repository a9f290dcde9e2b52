"""Exports: the progress that was sent to other clusters, compared with the subscription's own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from velaray.actors.machine import Refusal
from velaray.actors.subscription import progress_exports
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.expiry import Expire, ExpiryReason
from velaray.actors.subscription.machine import Ack, AckBefore, Create, Reset, SubscriptionMachine
from velaray.actors.subscription.pending_acks import (
    AckBeforeInTransaction,
    AckInTransaction,
    BatchAck,
    EndTransactionAcks,
)
from velaray.actors.subscription.progress_exports import (
    DONE,
    EVERYWHERE,
    Exports,
    Token,
    Touched,
    touched_by,
    window,
)
from velaray.actors.subscription.redelivery import CountRuns, NoteDeliveries
from velaray.events.ids import TransactionId

END = 120
BATCH = 4


@pytest.fixture(autouse=True, scope="module")
def _narrow() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress_exports, "WINDOW", 16)
        patch.setattr(progress_exports, "MOST_RANGES", 6)
        yield


class Other:
    """A receiving cluster: the progress that it has, and a token. Answers may get lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Whether it receives the mark for everything before it; else single messages.
        self.by_mark = name == "west"
        self.token: Token | None = None
        self.forget()

    def forget(self) -> None:
        """The cursor was moved: earlier progress doesn't count."""
        self.mark = 0
        self.whole: set[int] = set()
        self.left: dict[int, int] = {}
        self.counts: dict[int, int] = {}

    def is_acked(self, offset: int) -> bool:
        return offset < self.mark or offset in self.whole

    def ack_set(self, offset: int) -> int:
        return 0 if self.is_acked(offset) else self.left.get(offset, (1 << BATCH) - 1)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = SubscriptionMachine()
        self.state = self.machine.initial()
        self.exports = Exports("1")
        self.others = [Other("west"), Other("north")]
        self.activations = 1
        self.do(Create(0))

    def do(self, command: Any) -> None:
        decision = self.machine.decide(self.state, command, 0)
        for event in decision.events:
            self.machine.evolve(self.state, event)
        touched = touched_by(decision.events, decision.reply)
        self.exports.touch(touched)
        if EVERYWHERE in touched:
            for other in self.others:
                other.forget()
        assert not (isinstance(decision.reply, Refusal) and decision.events)

    def offsets(self) -> tuple[int, int]:
        first = self.random.randrange(END)
        return first, min(first + self.random.choice((1, 1, 1, 2, 30)), END)

    def step(self) -> None:
        roll, transaction = self.random.randrange(13), TransactionId(0, self.random.randrange(3))
        first, end = self.offsets()
        part = self.random.randrange(1 << BATCH)
        if roll < 3:
            self.do(Ack(END, [(first, end)], [(self.random.randrange(END), part)]))
        elif roll == 3:
            self.do(AckBefore(END, first // 4, self.random.choice((None, part))))
        elif roll == 4:
            self.do(Expire(END, [(first, end)], ExpiryReason.TTL))
        elif roll == 5 and self.random.random() < 0.3:
            self.do(Reset(first, "seek"))
        elif roll == 6:
            self.do(AckInTransaction(transaction, END, [], [BatchAck(first, part, BATCH)]))
        elif roll == 7:
            self.do(AckInTransaction(transaction, END, [(first, end)]))
        elif roll == 8:
            self.do(AckBeforeInTransaction(transaction, END, first // 3))
        elif roll == 9:
            self.do(EndTransactionAcks(transaction, self.random.random() < 0.5))
        elif roll == 10:
            self.do(NoteDeliveries([(first, end)]))
            self.exports.touch([(first, end)])  # as the dispatcher does when they change nothing
        elif roll == 11 and self.random.random() < 0.2:
            self.activations += 1
            self.exports = Exports(str(self.activations))
        else:
            self.tell(self.random.choice(self.others))

    def tell(self, other: Other, *, lossy: bool = True) -> bool:
        """One part of an export; returns whether there was anything."""
        part = self.exports.next(other.name, other.token)
        if not part.news:
            return False
        known_from = EVERYWHERE[1] if other.by_mark else 0
        places, at = part.places, part.at
        found = window(self.state.cursor, self.state.deliveries, places, at, known_from)
        if lossy and self.random.random() < 0.2:
            return True
        other.token = self.exports.token(part, found.at)
        if other.by_mark:
            other.mark = max(other.mark, found.mark)
        other.whole.update(at for first, end in found.before for at in range(first, end))
        other.whole.update(at for first, end in found.ranges for at in range(first, end))
        for offset, mask in found.partial:
            other.left[offset] = other.left.get(offset, mask) & mask
        for first, end, times in found.counts:
            for at in range(first, end):
                other.counts[at] = max(other.counts.get(at, 0), times)
        self.check(other)
        return True

    def check(self, other: Other, *, all_of_it: bool = False) -> None:
        """It knows nothing that isn't so; and, in the end, all that is."""
        cursor = self.state.cursor
        for offset in range(END):
            acked = cursor.is_acked(offset)
            if other.is_acked(offset) or all_of_it:
                assert acked == other.is_acked(offset), offset
            left = cursor.ack_set(offset)
            left = (1 << BATCH) - 1 if left is None else left & (1 << BATCH) - 1
            if not acked and not other.is_acked(offset):
                told = other.ack_set(offset)
                assert told == left if all_of_it else told & left == left, offset
                times = self.state.deliveries.get(offset)
                assert other.counts.get(offset, 0) <= times
                assert not all_of_it or other.counts.get(offset, 0) == times, offset


@pytest.mark.parametrize("seed", range(60))
def test_exports_contain_exactly_the_acknowledged_entries(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.step()
    for other in world.others:
        for _ in range(1000):
            if not world.tell(other, lossy=False):
                break
        world.check(other, all_of_it=True)
        assert not world.tell(other, lossy=False)


def told(subject: Exports, token: Token | None, cursor: Cursor) -> tuple[list[Any], Token]:
    """All parts of the next export."""
    found = []
    while True:
        part = subject.next("west", token)
        if not part.news:
            assert token is not None
            return found, token
        seen = window(cursor, CountRuns(), part.places, part.at)
        found += seen.ranges
        token = subject.token(part, seen.at)
        if seen.at == DONE:
            return found, token


def test_only_new_progress_is_exported() -> None:
    cursor, subject = Cursor(0, [(10, 20), (30, 40)]), Exports("a")
    found, token = told(subject, None, cursor)
    assert found == [(10, 16), (16, 20), (30, 32), (32, 40)]  # by windows
    assert told(subject, token, cursor) == ([], token)
    cursor.ack_range(50, 52)
    subject.touch([(50, 52)])
    found, later = told(subject, token, cursor)
    assert found == [(50, 52)]
    again, newer = told(subject, token, cursor)  # the answer was lost
    assert again == [(50, 52)]
    assert told(subject, newer, cursor)[0] == []
    for unknown in (later, told(Exports("b"), None, cursor)[1]):
        assert told(subject, unknown, cursor)[0][0] == (10, 16)


def test_the_token_of_an_ended_export_begins_a_new_one() -> None:
    cursor, subject = Cursor(0, [(10, 12)]), Exports("a")
    _, first = told(subject, None, cursor)
    token = first
    for offset in (20, 30):
        cursor.ack_range(offset, offset + 1)
        subject.touch([(offset, offset + 1)])
        token = told(subject, token, cursor)[1]
    assert told(subject, first, cursor)[0] == [(10, 12), (20, 21), (30, 31)]


def test_many_positions_are_rounded() -> None:
    places = Touched()
    for offset in range(0, 1000, 10):
        places.add([(offset, offset + 1)])
    kept = list(places)
    assert len(kept) <= progress_exports.MOST_RANGES
    assert all(any(first <= at < end for first, end in kept) for at in range(0, 1000, 10))


def test_the_cluster_that_asked_longest_ago_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_exports, "MOST_CLUSTERS", 2)
    cursor, subject = Cursor(0, [(10, 12)]), Exports("a")
    _, token = told(subject, None, cursor)
    for name in ("north", "south"):
        subject.next(name, None)
    assert told(subject, token, cursor)[0] == [(10, 12)]


def test_a_moved_mark_is_new_progress() -> None:
    world = World(0)
    other = world.others[0]
    while world.tell(other, lossy=False):
        pass
    world.do(AckBefore(END, 30))
    assert world.tell(other, lossy=False)
    world.check(other, all_of_it=True)
    world.do(AckBefore(END, 30))
    assert not world.tell(other, lossy=False)
