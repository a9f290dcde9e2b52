"""Entries of transactions: pending, then visible or hidden."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.machine import Decision, InvariantViolation, Reason, digest
from velaray.actors.partition.compacted import (
    BeginCompaction,
    Generation,
    NothingNew,
    PublishCompaction,
)
from velaray.actors.partition.delayed import ReleasedDelayed, ReleaseDelayed
from velaray.actors.partition.machine import (
    Chunk,
    CreateSubscription,
    Duplicate,
    ForgetProducer,
    PartitionMachine,
    Publish,
    Published,
    StartAt,
    Terminate,
    Terminated,
    last_sequence_id,
)
from velaray.actors.partition.state import PartitionState
from velaray.actors.partition.transactions import Ended, EndTransaction
from velaray.actors.partition.trimming import ClosedLedger, Consumed, Trim, Trimmed
from velaray.actors.sets import acknowledged_ranges
from velaray.actors.testing import History, given
from velaray.events.events_pb2 import EntryAppended, LedgerOpened, TransactionEnded
from velaray.events.ids import Position, TransactionId

A, B, C = TransactionId(0, 7), TransactionId(0, 3), TransactionId(1, 7)


@pytest.fixture(autouse=True)
def small_segments() -> Iterator[None]:
    """Segments of eight offsets, none of which stays in memory once it is stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acknowledged_ranges, "SEGMENT", 8)
        patch.setattr(acknowledged_ranges, "BUDGET", 0)
        yield


def begun() -> History[PartitionState]:
    return given(PartitionMachine(), LedgerOpened(ledger_id=1, epoch=1))


def entry(transaction: TransactionId | None = None, sequence: int = 0, **more) -> Publish:
    return Publish("p", sequence, 0, 1, b"x", False, transaction=transaction, **more)


def log(*transactions: TransactionId | None) -> History[PartitionState]:
    history = begun()
    for transaction in transactions:
        history.when(entry(transaction))
    return history


def commit(transaction: TransactionId) -> EndTransaction:
    return EndTransaction(transaction, commit=True)


def abort(transaction: TransactionId) -> EndTransaction:
    return EndTransaction(transaction, commit=False)


def hidden(state: PartitionState) -> list[tuple[int, int]]:
    return list(state.transactions.hidden)


# ---- entries and ends


def test_an_entry_of_a_transaction_gets_an_offset_like_any_other() -> None:
    in_b = EntryAppended(producer=1, sequence_id=4, at_ms=9, txn_sequence=3)
    in_c = EntryAppended(producer=1, sequence_id=5, at_ms=9, txn_coordinator=1, txn_sequence=7)
    (
        log(None)
        .when(entry(B, 4), now_ms=9)
        .then(events=[in_b], reply=Published(1, Position(1, 1), 1), blob=b"x")
        .when(entry(C, 5), now_ms=9)
        .then(events=[in_c], reply=Published(2, Position(1, 2), 1))
        .then_state(lambda state: state.max_read_offset == 1 and state.end_offset == 3)
        .then_state(lambda state: state.transactions.ongoing == {B: [(1, 2)], C: [(2, 3)]})
    )


def test_committed_entries_can_be_read() -> None:
    (
        log(None, A, A, None, A)
        .then_state(lambda state: state.max_read_offset == 1)
        .when(commit(A))
        .then(
            events=[TransactionEnded(coordinator=0, sequence=7, commit=True)],
            reply=Ended(((1, 3), (4, 5)), 5),
        )
        .then_state(lambda state: state.max_read_offset == 5 and hidden(state) == [])
    )


def test_aborted_entries_are_hidden() -> None:
    (
        log(None, A, A, None, A)
        .when(abort(A))
        .then(
            events=[TransactionEnded(coordinator=0, sequence=7)], reply=Ended(((1, 3), (4, 5)), 5)
        )
        .then_state(lambda state: state.max_read_offset == 5)
        .then_state(lambda state: hidden(state) == [(1, 3), (4, 5)])
        .then_state(lambda state: 2 in state.transactions.hidden)
        .then_state(lambda state: 3 not in state.transactions.hidden)
    )


def test_the_oldest_open_transaction_holds_back_later_entries() -> None:
    (
        log(A, C, B, None)
        .when(commit(B))
        .then(reply=Ended(((2, 3),), 0))
        .when(abort(A))
        .then(reply=Ended(((0, 1),), 1))
        .when(entry(B))  # that its coordinator wouldn't allow
        .then_state(lambda state: list(state.transactions.ongoing) == [C, B])
        .when(commit(C))
        .then(reply=Ended(((1, 2),), 4))
    )


def test_the_end_of_an_unknown_transaction_changes_nothing() -> None:
    history = log(None, A)
    history.when(abort(C)).then(events=[], reply=Ended((), 1))
    history.when(commit(A))
    history.when(commit(A)).then(events=[], reply=Ended((), 2))
    history.when(abort(A)).then(events=[], reply=Ended((), 2))
    assert hidden(history.state) == []


def test_transaction_zero_is_refused() -> None:
    begun().when(entry(TransactionId(3, 0))).then_refused(Reason.INVALID, "(3,0)")


def test_a_terminated_topic_accepts_only_ends_of_transactions() -> None:
    (
        log(A, B)
        .when(Terminate())
        .then(reply=Terminated(2, Position(1, 1)))
        .when(entry(A))
        .then_refused(Reason.TERMINATED)
        .when(abort(A))
        .then(reply=Ended(((0, 1),), 1))
        .when(commit(B))
        .then_state(lambda state: state.max_read_offset == 2 and hidden(state) == [(0, 1)])
    )


def numbered(sequence: int, transaction: TransactionId | None = None, **more) -> Publish:
    return Publish("p", sequence, 0, 1, b"x", True, transaction=transaction, **more)


def last(state: PartitionState) -> int:
    return last_sequence_id(state, "p")


def test_the_sequence_ids_of_an_aborted_transaction_are_free_again() -> None:
    """The same messages in another transaction must not be answered as already stored."""
    history = begun().when(numbered(3)).when(numbered(4, A)).when(numbered(5, A))
    history.when(numbered(5, A)).then(events=[], reply=Duplicate(5))
    history.when(abort(A)).then_state(lambda state: last(state) == 3)
    history.when(numbered(3, B)).then(events=[], reply=Duplicate(3))
    history.when(numbered(4, B)).then_state(lambda state: last(state) == 4)
    history.when(numbered(5, B)).when(commit(B)).then_state(lambda state: not state.unsettled)
    history.when(numbered(5)).then(events=[], reply=Duplicate(5))


def test_a_sequence_id_stays_used_if_a_later_one_was_sent() -> None:
    history = begun().when(numbered(1, A)).when(numbered(2)).when(abort(A))
    history.then_state(lambda state: last(state) == 2 and not state.unsettled)
    history.when(numbered(3, A)).when(numbered(4, B)).when(numbered(5, A))
    history.when(abort(A)).then_state(lambda state: last(state) == 4)
    history.when(commit(B)).then_state(lambda state: last(state) == 4 and not state.unsettled)


def test_an_incomplete_chunked_message_of_an_aborted_transaction_is_sent_anew() -> None:
    def part(number: int, transaction: TransactionId) -> Publish:
        return numbered(4, transaction, chunk=Chunk("p-4", number, 2))

    history = begun().when(part(0, A)).when(abort(A))
    history.when(part(0, B)).then_state(lambda state: state.end_offset == 2)
    history.when(part(0, B)).then(events=[], reply=Duplicate(4))
    history.when(part(1, B)).when(abort(B)).then_state(lambda state: last(state) == -1)
    history.when(part(0, C)).then_state(lambda state: state.end_offset == 4)


def test_sequence_ids_of_a_dropped_producer_are_not_tracked() -> None:
    history = begun().when(numbered(1, A)).when(ForgetProducer("p")).when(abort(A))
    history.then_state(lambda state: not state.unsettled and last(state) == -1)


def test_chunks_are_hidden_as_a_whole() -> None:
    history = begun()
    for number in range(2):
        history.when(entry(A, 1, chunk=Chunk("u", number, 3)))
    history.when(abort(A)).then_state(lambda state: hidden(state) == [(0, 2)])


def test_a_due_entry_of_an_aborted_transaction_stays_hidden() -> None:
    (
        begun()
        .when(entry(A, 0, deliver_at_ms=50), now_ms=10)
        .when(entry(None, 1, deliver_at_ms=50), now_ms=10)
        .when(abort(A))
        .when(ReleaseDelayed(50))
        .then(reply=ReleasedDelayed(0))
        .then_state(lambda state: hidden(state) == [(0, 1)])
    )


def test_an_undecided_delayed_entry_that_is_due_waits_for_the_end() -> None:
    (
        begun()
        .when(entry(A, 0, deliver_at_ms=50), now_ms=10)
        .when(ReleaseDelayed(50))
        .then_state(lambda state: state.max_read_offset == 0)
        .when(commit(A))
        .then_state(lambda state: state.max_read_offset == 1 and not len(state.delayed))
    )


# ---- compaction and trimming


def test_only_decided_entries_are_compacted() -> None:
    (
        log(None, None, A, None)
        .when(BeginCompaction(), now_ms=5)
        .then(reply=Generation(1, 2, 5))
        .when(PublishCompaction(1, 2))
        .when(BeginCompaction())
        .then(events=[], reply=NothingNew())
        .when(abort(A))
        .when(BeginCompaction(), now_ms=7)
        .then(reply=Generation(2, 4, 7))
        .then_state(lambda state: state.transactions.hidden.within(2, 4) == [(2, 3)])
    )


def test_nothing_is_compacted_behind_an_undecided_first_entry() -> None:
    log(A, None).when(BeginCompaction()).then(events=[], reply=NothingNew())


def ledgers(*entries: list[TransactionId | None]) -> History[PartitionState]:
    """Ledger 1 with the first entries, and so on; the last one is the current one."""
    history = given(RollingMachine())
    for number, transactions in enumerate(entries, start=1):
        history.when(Roll(number))
        for transaction in transactions:
            history.when(entry(transaction))
    return history


@dataclass(frozen=True, slots=True)
class Roll:
    """What the runtime does by itself: go on in another ledger."""

    ledger_id: int


class RollingMachine(PartitionMachine):
    """Takes `Roll` as a command."""

    def decide(self, state: PartitionState, command: object, now_ms: int) -> Decision:
        if isinstance(command, Roll):
            return Decision((LedgerOpened(ledger_id=command.ledger_id, epoch=1),))
        return super().decide(state, command, now_ms)


def trim(*ledger_ids: int, consumed: dict[int, Consumed] | None = None) -> Trim:
    closed = [ClosedLedger(ledger_id, 10, 0) for ledger_id in ledger_ids]
    return Trim(closed, 10, consumed or {}, 0, 0)


def test_ledgers_from_the_first_undecided_entry_on_are_not_trimmed() -> None:
    (
        ledgers([None, B], [None, A], [None], [None])
        .when(abort(B))
        .when(trim(1, 2, 3))
        .then(reply=Trimmed((1,)))
        .then_state(lambda state: state.first_offset == 2 and hidden(state) == [])
        .when(commit(A))
        .when(trim(2, 3))
        .then(reply=Trimmed((2, 3)))
    )


def test_hidden_entries_are_dropped_with_their_ledger() -> None:
    history = ledgers([A, None], [None, A], [A, B], [A])
    history.when(abort(A)).when(abort(B))
    assert hidden(history.state) == [(0, 1), (3, 7)]
    history.when(trim(1, 2)).then_state(lambda state: hidden(state) == [(4, 7)])
    history.when(trim(3)).then_state(lambda state: hidden(state) == [(6, 7)])


def test_hidden_entries_stay_known_until_all_earlier_ledgers_are_trimmed() -> None:
    history = ledgers([A], [A], [None]).when(CreateSubscription("s", StartAt.EARLIEST))
    history.when(abort(A))
    history.when(trim(1, 2, consumed={1: Consumed(0, frozenset([2]))})).then(reply=Trimmed((2,)))
    history.then_state(lambda state: hidden(state) == [(0, 2)])
    history.when(trim(1, consumed={1: Consumed(3)})).then(reply=Trimmed((1,)))
    history.then_state(lambda state: hidden(state) == [])


# ---- checkpoints


def test_a_snapshot_without_transactions_has_the_old_form() -> None:
    history = log(None, None)
    names = {"ledgers", "producers", "subscriptions", "partition"}
    assert history.machine.snapshot(history.state).keys() == names
    history.when(entry(A)).when(commit(A))
    assert history.machine.snapshot(history.state).keys() == names


def test_a_checkpoint_writes_only_the_segments_that_changed(monkeypatch) -> None:
    monkeypatch.setattr(acknowledged_ranges, "BUDGET", 2000)
    machine = PartitionMachine()
    history = log(*[TransactionId(0, 1 + number) for number in range(80)])
    state, contents = history.state, history.contents
    for number in range(0, 72, 2):
        machine.evolve(state, TransactionEnded(coordinator=0, sequence=1 + number))
    assert machine.needs_checkpoint(state)
    machine.on_checkpoint(state, contents.store(machine.snapshot(state)))
    machine.evict(state)
    assert not machine.needs_checkpoint(state)
    assert state.transactions.hidden.cold_count() > 0
    machine.evolve(state, TransactionEnded(coordinator=0, sequence=80))
    for place in machine.needs(state, EndTransaction(TransactionId(0, 14), False), 0):
        machine.provide(state, place.name, contents.raw_of(place))
    machine.evolve(state, TransactionEnded(coordinator=0, sequence=14))
    fresh = {name for name, body in machine.snapshot(state).items() if isinstance(body, bytes)}
    assert {name for name in fresh if name.startswith("hidden/")} == {"hidden/1", "hidden/9"}
    again = machine.restore(contents.bytes_of(machine.snapshot(state)))
    assert digest(machine.snapshot(again)) == digest(machine.snapshot(state))


# ---- invariants


def _empty(state: PartitionState) -> None:
    state.transactions.ongoing[B] = []


def _touching(state: PartitionState) -> None:
    state.transactions.ongoing[A] = [(1, 2), (2, 3)]


def _zero(state: PartitionState) -> None:
    state.transactions.ongoing[TransactionId(1, 0)] = [(2, 3)]


def _disordered(state: PartitionState) -> None:
    state.transactions.ongoing.move_to_end(A)


def _twice(state: PartitionState) -> None:
    state.transactions.ongoing[C] = [(1, 3)]


def _beyond(state: PartitionState) -> None:
    state.transactions.ongoing[C] = [(2, 9)]


def _hidden_ongoing(state: PartitionState) -> None:
    state.transactions.hidden.add(1, 2)


def _hidden_beyond(state: PartitionState) -> None:
    state.transactions.hidden.add(4, 9)


def _hidden_and_trimmed(state: PartitionState) -> None:
    state.table.open(2)
    state.table.trim([1])
    state.transactions.ongoing.clear()


def _trimmed_unsettled(state: PartitionState) -> None:
    state.table.open(2)
    state.table.append()
    state.table.open(3)
    state.table.trim([2])


def _compacted_unsettled(state: PartitionState) -> None:
    state.compactions.last = 1
    state.compactions.current = Generation(1, 2, 0)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_empty, "an ongoing transaction has entries, in order"),
        (_touching, "an ongoing transaction has entries, in order"),
        (_zero, "a transaction has a number"),
        (_disordered, "ongoing transactions are in the order of the log"),
        (_twice, "an entry is of one transaction at most"),
        (_beyond, "entries of ongoing transactions are kept"),
        (_hidden_ongoing, "what is hidden is decided"),
        (_hidden_beyond, "what is hidden is stored"),
        (_hidden_and_trimmed, "holes are beyond the mark"),
        (_trimmed_unsettled, "what is trimmed away is decided"),
        (_compacted_unsettled, "horizons are decided"),
    ],
)
def test_a_broken_invariant_is_named(damage, name) -> None:
    history = log(TransactionId(5, 5), A, C, None).when(abort(TransactionId(5, 5)))
    damage(history.state)
    with pytest.raises(InvariantViolation, match=name):
        history.machine.check(history.state)


# ---- the model


@dataclass(slots=True)
class Naive:
    """What an outsider knows: each entry's transaction, and how transactions ended."""

    entries: list[TransactionId | None] = field(default_factory=list)
    verdicts: dict[TransactionId, bool] = field(default_factory=dict)
    ledgers: list[tuple[int, int]] = field(default_factory=list)  # id, offset of its entry 0
    gone: set[int] = field(default_factory=set)
    terminated: bool = False
    horizon: int = 0

    def is_unsettled(self, offset: int) -> bool:
        transaction = self.entries[offset]
        return transaction is not None and transaction not in self.verdicts

    def max_read(self) -> int:
        open_ones = (at for at in range(len(self.entries)) if self.is_unsettled(at))
        return next(open_ones, len(self.entries))

    def end_of(self, number: int) -> int:
        later = self.ledgers[number + 1 : number + 2]
        return later[0][1] if later else len(self.entries)

    def first(self) -> int:
        kept = (first for ledger, first in self.ledgers if ledger not in self.gone)
        return next(kept, len(self.entries))

    def aborted(self) -> list[int]:
        return [
            offset
            for offset, transaction in enumerate(self.entries)
            if self.verdicts.get(transaction) is False and offset >= self.first()
        ]

    def of(self, transaction: TransactionId) -> list[int]:
        return [at for at, whose in enumerate(self.entries) if whose == transaction]


STEPS = st.one_of(
    st.just(("publish", None)),
    st.tuples(st.just("publish"), st.integers(0, 3)),
    st.tuples(st.just("publish"), st.integers(0, 3)),
    st.tuples(st.just("end"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("end again"), st.integers(0, 3), st.booleans()),
    st.just(("roll",)),
    st.tuples(st.just("trim"), st.just({1, 2, 3}) | st.sets(st.integers(1, 6), min_size=2)),
    st.just(("compact",)),
)


class Play:
    """Does the same to a history and to the model. There are up to four transactions at a time;
    those that begin later have lower numbers."""

    def __init__(self) -> None:
        self.history = given(RollingMachine())
        self.model = Naive()
        self.begun = 0
        self.slots = [self.fresh(slot) for slot in range(4)]
        self.roll()
        self.history.when(CreateSubscription("s", 0))

    def fresh(self, slot: int) -> TransactionId:
        self.begun += 1
        return TransactionId(slot % 2, 1000 - self.begun)

    def publish(self, slot: int | None) -> None:
        transaction = None if slot is None else self.slots[slot]
        self.history.when(entry(transaction))
        if self.model.terminated:
            self.history.then_refused(Reason.TERMINATED)
        else:
            assert self.history.reply.offset == len(self.model.entries)
            self.model.entries.append(transaction)

    def end(self, slot: int, verdict: bool) -> None:
        transaction = self.slots[slot]
        self.slots[slot] = self.fresh(slot)
        was = self.model.of(transaction)
        self.model.verdicts[transaction] = verdict
        self.history.when(EndTransaction(transaction, verdict))
        reply = self.history.reply
        assert [at for first, end in reply.ranges for at in range(first, end)] == was
        assert reply.max_read_offset == self.model.max_read()
        assert len(self.history.last.events) == bool(was)

    def end_again(self, number: int, verdict: bool) -> None:
        for transaction in list(self.model.verdicts)[number : number + 1]:
            self.history.when(EndTransaction(transaction, verdict))
            self.history.then(events=[], reply=Ended((), self.model.max_read()))

    def roll(self) -> None:
        model = self.model
        ledger_id = model.ledgers[-1][0] + 1 if model.ledgers else 1
        self.history.when(Roll(ledger_id))
        if model.ledgers and model.ledgers[-1][1] == len(model.entries):
            model.ledgers.pop()
        model.ledgers.append((ledger_id, len(model.entries)))

    def trim(self, had: set[int]) -> None:
        """The one subscription has the ledgers ``had``."""
        model = self.model
        closed = [ledger for ledger, _ in model.ledgers[:-1]]
        needless = [
            ledger
            for number, (ledger, _) in enumerate(model.ledgers[:-1])
            if ledger in had - model.gone
            and model.end_of(number) <= model.max_read()
            and (not model.horizon or model.end_of(number) <= model.horizon)
        ]
        consumed = {1: Consumed(0, frozenset(had))}
        self.history.when(trim(*closed, consumed=consumed))
        assert self.history.reply == Trimmed(tuple(needless))
        model.gone.update(needless)

    def compact(self) -> None:
        begun = self.history.when(BeginCompaction()).reply
        if self.model.max_read() == self.model.horizon:
            assert begun == NothingNew()
            return
        assert begun.horizon == self.model.max_read()
        self.history.when(PublishCompaction(begun.number, 0))
        self.model.horizon = begun.horizon

    def terminate(self) -> None:
        self.history.when(Terminate())
        self.model.terminated = True

    def compare(self) -> None:
        """Readable and hidden entries are those of the model."""
        state, model = self.history.restored(), self.model
        assert state.end_offset == len(model.entries)
        assert state.max_read_offset == model.max_read()
        assert state.first_offset == model.first()
        unseen = [at for first, end in state.transactions.hidden for at in range(first, end)]
        assert unseen == model.aborted()
        for offset in range(state.first_offset, state.max_read_offset):
            verdict = model.verdicts.get(model.entries[offset], True)
            assert verdict == (offset not in state.transactions.hidden)

    def do(self, step: tuple) -> None:
        before = self.history.state.max_read_offset
        name, *arguments = step
        getattr(self, name.replace(" ", "_"))(*arguments)
        assert self.history.state.max_read_offset >= before, "it never goes back"
        self.compare()


@settings(max_examples=100, deadline=None)
@examples(st.lists(STEPS, min_size=8, max_size=40), st.lists(STEPS, max_size=6))
def test_random_histories_show_exactly_the_committed_entries(steps, last) -> None:
    """With replays of every prefix, and a checkpoint after every event."""
    play = Play()
    for step in [*steps, ("terminate",), *last]:
        play.do(step)
    play.history.verify_replay()
    for slot in range(4):
        play.do(("end", slot, slot % 2 == 0))
    assert play.history.state.max_read_offset == len(play.model.entries)
    play.history.verify_replay()
