"""The transaction coordinator: sequences, participants, verdicts, deadlines."""

from __future__ import annotations

from functools import partial
from random import Random

import hypothesis
import pytest
from hypothesis import example, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.actors.test_runtime import Host, on_a_loop, recovered
from velaray.actors.coordinator.machine import (
    EXPIRED_AT_ONCE,
    AddPartitions,
    AddSubscriptions,
    Begin,
    Begun,
    CoordinatorMachine,
    Decide,
    Decided,
    Expire,
    Expired,
    Finish,
    Joined,
    MayJoin,
)
from velaray.actors.coordinator.state import LEGAL, TICK_MS, CoordinatorState, Status
from velaray.actors.machine import InvariantViolation, Reason, Refusal
from velaray.actors.testing import Contents, given
from velaray.events.events_pb2 import (
    LedgerOpened,
    PartitionsJoined,
    SubscriptionName,
    SubscriptionsJoined,
    TransactionBegun,
    TransactionDecided,
    TransactionFinished,
)
from velaray.journal.errors import StorageFull, SyncFailed
from velaray.journal.memory import MemoryDisk, Step

MACHINE = CoordinatorMachine()


def begun(*timeouts_ms: int, owner: str = ""):
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1))
    for timeout_ms in timeouts_ms:
        story.when(Begin(timeout_ms, owner))
    return story


def test_a_transaction_begins_with_participants() -> None:
    topics, subscriptions = ["t", "u", "t"], [("v", "s")]
    (
        begun()
        .when(Begin(5000, topics=topics, subscriptions=subscriptions), now_ms=7)
        .then(
            events=[
                TransactionBegun(sequence=1, at_ms=7, timeout_ms=5000),
                PartitionsJoined(sequence=1, topics=["t", "u"]),
                SubscriptionsJoined(
                    sequence=1, subscriptions=[SubscriptionName(topic="v", subscription="s")]
                ),
            ],
            reply=Begun(1),
        )
        .when(MayJoin(1, "u"))
        .then(events=[], reply=Joined())
        .when(MayJoin(1, "v", "s"))
        .then(events=[], reply=Joined())
    )


def test_sequences_are_dense_and_begin_with_1() -> None:
    (
        begun()
        .when(Begin(5000, "me"), now_ms=7)
        .then(
            events=[TransactionBegun(sequence=1, owner="me", at_ms=7, timeout_ms=5000)],
            reply=Begun(1),
        )
        .when(Begin(1))
        .then(reply=Begun(2))
    )


def test_the_number_of_open_transactions_is_limited() -> None:
    (
        begun(1000)
        .when(Begin(1000, most_open=1))
        .then_refused(Reason.BUSY, "1 transactions are active")
        .when(Decide(1, False))
        .when(Finish(1))
        .when(Begin(1000, most_open=1))
        .then(reply=Begun(2))
        .when(Begin(0))
        .then_refused(Reason.INVALID, "0 ms")
    )


def test_participants_join_an_open_transaction_once() -> None:
    story = begun(1000)
    (
        story.when(MayJoin(1, "a"))
        .then_refused(Reason.NOT_ALLOWED, "a was not added")
        .when(AddPartitions(1, ["a", "b"]))
        .then(events=[PartitionsJoined(sequence=1, topics=["a", "b"])], reply=Joined())
        .when(AddPartitions(1, ["b", "c"]))
        .then(events=[PartitionsJoined(sequence=1, topics=["c"])], reply=Joined())
        .when(AddPartitions(1, ["a"]))
        .then(events=[], reply=Joined())
        .when(AddSubscriptions(1, [("a", "s")]))
        .then(
            events=[
                SubscriptionsJoined(
                    sequence=1, subscriptions=[SubscriptionName(topic="a", subscription="s")]
                )
            ],
            reply=Joined(),
        )
    )
    state = story.state
    for participant in (("c",), ("a", "s")):
        story.when(MayJoin(1, *participant)).then(events=[], reply=Joined())
    story.when(MayJoin(1, "c", "s")).then_refused(Reason.NOT_ALLOWED, "subscription s of c")
    story.when(MayJoin(2, "a")).then_refused(Reason.NOT_FOUND, "no transaction 2")
    assert list(state.unfinished[1].partitions) == ["a", "b", "c"]
    assert list(state.unfinished[1].subscriptions) == [("a", "s")]
    story.when(Decide(1, True))
    story.when(MayJoin(1, "c")).then_refused(Reason.CONFLICT, "COMMITTING")
    (
        story.when(AddPartitions(1, ["a"]))
        .then_refused(Reason.CONFLICT, "COMMITTING: nothing can join")
        .when(Finish(1))
        .when(AddSubscriptions(1, [("a", "s")]))
        .then_refused(Reason.CONFLICT, "COMMITTED")
        .when(AddPartitions(2, ["a"]))
        .then_refused(Reason.NOT_FOUND, "no transaction 2")
    )


@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_of_a_transaction_never_changes(commit: bool) -> None:
    ending, ended = (
        (Status.COMMITTING, Status.COMMITTED) if commit else (Status.ABORTING, Status.ABORTED)
    )
    (
        begun(1000)
        .when(Finish(1))
        .then_refused(Reason.CONFLICT, "isn't decided")
        .when(Decide(1, commit), now_ms=5)
        .then(
            events=[TransactionDecided(sequence=1, commit=commit, at_ms=5)],
            reply=Decided(1, commit, finished=False),
        )
        .then_state(lambda state: state.status(1) == ending and state.low_water == 0)
        .when(Decide(1, commit))
        .then(events=[], reply=Decided(1, commit, finished=False))
        .when(Decide(1, not commit))
        .then_refused(Reason.CONFLICT, ending)
        .when(Finish(1))
        .then(events=[TransactionFinished(sequence=1)], reply=Decided(1, commit, finished=True))
        .then_state(lambda state: state.status(1) == ended and not state.unfinished)
        .when(Finish(1))
        .then(events=[], reply=Decided(1, commit, finished=True))
        .when(Decide(1, commit))
        .then(events=[], reply=Decided(1, commit, finished=True))
        .when(Decide(1, not commit))
        .then_refused(Reason.CONFLICT, ended)
        .when(Decide(2, commit))
        .then_refused(Reason.NOT_FOUND, "no transaction 2")
        .when(Finish(0))
        .then_refused(Reason.NOT_FOUND, "no transaction 0")
    )


def test_a_transaction_is_used_only_by_its_owner() -> None:
    (
        begun(1000, owner="me")
        .when(AddPartitions(1, ["a"], "you"))
        .then_refused(Reason.NOT_ALLOWED, "another role")
        .when(Decide(1, True, ""))
        .then_refused(Reason.NOT_ALLOWED, "another role")
        .when(AddPartitions(1, ["a"], "me"))
        .then(reply=Joined())
        .when(Decide(1, False, "administrator", force=True))
        .then(reply=Decided(1, False, finished=False))
    )


def test_deadlines_are_rounded_up_and_abort_open_transactions() -> None:
    story = begun(150, 100, 1000)
    assert story.state.next_deadline_ms == 100
    (
        story.when(Expire(), now_ms=99)
        .then(events=[], reply=Expired(()))
        .when(Decide(2, True), now_ms=99)
        .when(Expire(), now_ms=199)
        .then(events=[], reply=Expired(()))
        .when(Expire(), now_ms=200)
        .then(
            events=[TransactionDecided(sequence=1, commit=False, timed_out=True, at_ms=200)],
            reply=Expired((1,)),
        )
        .then_state(lambda state: state.timed_out == 1 and state.next_deadline_ms == 1000)
    )
    assert [known.sequence for known in story.state.decided()] == [1, 2]
    story.when(Expire(), now_ms=10**6).then(reply=Expired((3,)))
    assert story.state.next_deadline_ms is None


def test_a_clock_that_was_set_back_keeps_no_transaction_open() -> None:
    hour_ms = 3_600_000
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1))
    story.when(Begin(5_000), now_ms=hour_ms).when(Begin(60_000), now_ms=hour_ms)
    (
        story.when(Expire(), now_ms=hour_ms - 5_000)
        .then(events=[], reply=Expired(()))
        .when(Expire(), now_ms=hour_ms - 5_001)
        .then(reply=Expired((1,)))
        .when(Expire(), now_ms=0)
        .then(reply=Expired((2,)))
        .then_state(lambda state: not state.starts and not state.deadlines)
    )


def test_the_number_of_aborts_per_tick_is_limited() -> None:
    events = [
        TransactionBegun(sequence=number, timeout_ms=1) for number in range(1, EXPIRED_AT_ONCE + 3)
    ]
    state = MACHINE.initial()
    for event in events:
        MACHINE.evolve(state, event)
    assert len(MACHINE.decide(state, Expire(), 1000).reply.sequences) == EXPIRED_AT_ONCE


def test_shuffled_deadlines_each_expire_in_their_tick() -> None:
    random = Random(23)
    timeouts = [random.randint(1, 5000) for _ in range(2000)]
    state = MACHINE.initial()
    for sequence, timeout_ms in enumerate(timeouts, 1):
        MACHINE.evolve(state, TransactionBegun(sequence=sequence, at_ms=7, timeout_ms=timeout_ms))
    expired: dict[int, int] = {}
    while (deadline := state.next_deadline_ms) is not None:
        for now_ms in (deadline - 1, deadline):
            decision = MACHINE.decide(state, Expire(), now_ms)
            for event in decision.events:
                MACHINE.evolve(state, event)
            expired.update(dict.fromkeys(decision.reply.sequences, now_ms))
    assert len(expired) == 2000
    late = {sequence: expired[sequence] - 7 - timeouts[sequence - 1] for sequence in expired}
    assert all(0 <= each < TICK_MS for each in late.values())
    assert not any(now_ms % TICK_MS for now_ms in expired.values())


def test_every_prefix_of_a_history_recovers_its_unfinished_work() -> None:
    """Open ones wait for their deadline, decided ones are ended, ended ones are verdicts."""
    history = [
        *(TransactionBegun(sequence=number, at_ms=0, timeout_ms=100) for number in (1, 2, 3)),
        TransactionDecided(sequence=1, commit=True),
        TransactionDecided(sequence=2, commit=False, timed_out=True),
        TransactionFinished(sequence=2),
        TransactionFinished(sequence=1),
    ]
    found = []
    for length in range(3, len(history) + 1):
        replayed = MACHINE.initial()
        for event in history[:length]:
            MACHINE.evolve(replayed, event)
        segments = Contents().bytes_of(MACHINE.snapshot(replayed))
        restored = MACHINE.restore(segments)
        assert restored == replayed
        for state in (replayed, restored):
            MACHINE.check(state)
            found.append(
                (
                    [each.sequence for each in state.decided()],
                    [sequence for _, sequence in state.deadlines],
                    [str(state.status(sequence)) for sequence in (1, 2, 3)],
                    state.low_water,
                )
            )
    assert (
        found[::2]
        == found[1::2]
        == [
            ([], [1, 2, 3], ["OPEN", "OPEN", "OPEN"], 0),
            ([1], [2, 3], ["COMMITTING", "OPEN", "OPEN"], 0),
            ([1, 2], [3], ["COMMITTING", "ABORTING", "OPEN"], 0),
            ([1], [3], ["COMMITTING", "ABORTED", "OPEN"], 0),
            ([], [3], ["COMMITTED", "ABORTED", "OPEN"], 2),
        ]
    )


# ---- the log


SIZES = st.sampled_from([0, 1, 100, 900, 1100, 5000, 70_000])
FRAME = 1000


@settings(max_examples=60)
@hypothesis.given(
    sizes=st.lists(SIZES, min_size=1, max_size=40),
    failing=st.none() | st.tuples(st.sampled_from(["full", "broken"]), st.integers(0, 6)),
)
@example(sizes=[100, 70_000, 0, 900, 900, 1100], failing=("full", 1))
def test_records_of_any_size_are_answered_once_each_in_order(sizes, failing) -> None:
    """The disk gets full, or fails, at some write; or nothing happens."""

    @on_a_loop
    async def story() -> None:
        disk = MemoryDisk()
        host = await Host(disk).start(MACHINE, frame_bytes=FRAME)
        writes = 0

        async def hook(step: Step, journal: str) -> None:
            nonlocal writes
            if step is not Step.WRITE:
                return
            writes += 1
            if failing is not None and writes == failing[1] + 1:
                error = StorageFull if failing[0] == "full" else SyncFailed
                raise error("file", failing[0])

        host.store.hook = hook
        answers: list[tuple[int, object]] = []
        for number, size in enumerate(sizes):
            command = Begin(1000, owner="o" * size)
            host.runtime.submit(command, partial(_answered, answers, number))
        await host.runtime.close()
        began = [reply for _, reply in answers if isinstance(reply, Begun)]
        assert [reply.sequence for reply in began] == list(range(1, len(began) + 1))
        numbers = [number for number, _ in answers]
        assert numbers == list(range(len(numbers)))
        if host.fatal:
            assert failing is not None and failing[0] == "broken"
            assert len(began) == len(answers)  # who wasn't told may have been stored, or not
        else:
            assert len(answers) == len(sizes)
            assert [number for number, reply in answers if isinstance(reply, Begun)] == list(
                range(len(began))
            )
        if failing is None:
            assert len(began) == len(sizes) and writes <= -(-sum(sizes) // FRAME) + 1 + len(sizes)
        stored = (await recovered(disk, MACHINE)).unfinished
        owners = [len(each.owner) for each in stored.values()]
        assert owners == sizes[: len(owners)]
        assert len(owners) >= len(began)
        if not host.fatal:
            assert len(owners) == len(began)

    story()


def _answered(answers: list, number: int, reply: object, effects: tuple) -> None:
    answers.append((number, reply))


def test_unknown_commands_and_events_are_errors() -> None:
    state = MACHINE.initial()
    with pytest.raises(TypeError, match="int"):
        MACHINE.decide(state, 1, 0)
    with pytest.raises(TypeError, match="SubscriptionName"):
        MACHINE.evolve(state, SubscriptionName())


def _finished_twice(state: CoordinatorState) -> None:
    state.aborted.add(1, 2)


def _timed_out(state: CoordinatorState) -> None:
    state.unfinished[1].timed_out = True


def _no_deadline(state: CoordinatorState) -> None:
    state.deadlines.clear()


def _not_watched(state: CoordinatorState) -> None:
    state.starts.clear()


def _given_again(state: CoordinatorState) -> None:
    state.next_sequence = 1


@pytest.mark.parametrize(
    ("breaks", "invariant"),
    [
        (_finished_twice, "a verdict never changes"),
        (_timed_out, "what timed out is aborted"),
        (_no_deadline, "open transactions, no others, have deadlines"),
        (_not_watched, "open transactions, no others, are watched"),
        (_given_again, "never given again"),
    ],
)
def test_broken_states_are_noticed(breaks, invariant) -> None:
    state = begun(1000).state
    breaks(state)
    with pytest.raises(InvariantViolation, match=invariant):
        MACHINE.check(state)


def test_a_million_outcomes_are_small_and_one_more_abort_rewrites_one_segment() -> None:
    state = MACHINE.initial()
    state.next_sequence = 1_000_001
    for sequence in range(1, 1_000_001, 2):
        state.aborted.add(sequence, sequence + 1)
    stored = Contents().store(MACHINE.snapshot(state))
    assert sum(place.size for place in stored.values()) < 160_000
    MACHINE.on_checkpoint(state, stored)
    for event in (
        TransactionBegun(sequence=1_000_001, timeout_ms=1),
        TransactionDecided(sequence=1_000_001),
        TransactionFinished(sequence=1_000_001),
    ):
        MACHINE.evolve(state, event)
    after = MACHINE.snapshot(state)
    dirty = [name for name, found in after.items() if isinstance(found, bytes)]
    assert sorted(dirty) == ["aborted/15", "coordinator", "unfinished"]
    assert state.status(999_999) == Status.ABORTED and state.status(1_000_000) == Status.COMMITTED


class Model(RuleBasedStateMachine):
    """Transactions beside a plain table of verdicts; replay of every prefix is the kit's."""

    def __init__(self) -> None:
        super().__init__()
        self.story = begun()
        self.verdicts: dict[int, bool] = {}
        self.count = 0
        self.now = 0

    @rule(timeout_ms=st.integers(1, 500))
    def begin(self, timeout_ms: int) -> None:
        self.story.when(Begin(timeout_ms), now_ms=self.now)
        self.count += 1
        assert self.story.reply == Begun(self.count)

    @rule(data=st.data(), commit=st.booleans())
    @precondition(lambda self: self.count)
    def decide(self, data: st.DataObject, commit: bool) -> None:
        sequence = data.draw(st.integers(1, self.count))
        self.story.when(Decide(sequence, commit), now_ms=self.now)
        if self.verdicts.setdefault(sequence, commit) != commit:
            assert isinstance(self.story.reply, Refusal)
        else:
            assert self.story.reply.commit == commit

    @rule(data=st.data())
    @precondition(lambda self: self.verdicts)
    def finish(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.verdicts)))
        self.story.when(Finish(sequence), now_ms=self.now)
        assert self.story.reply == Decided(sequence, self.verdicts[sequence], finished=True)

    @rule(data=st.data(), topic=st.sampled_from("abc"))
    @precondition(lambda self: self.count)
    def join(self, data: st.DataObject, topic: str) -> None:
        sequence = data.draw(st.integers(1, self.count))
        self.story.when(AddPartitions(sequence, [topic]), now_ms=self.now)
        joined = sequence not in self.verdicts
        assert isinstance(self.story.reply, Joined) == joined
        self.story.when(MayJoin(sequence, topic))
        assert isinstance(self.story.reply, Joined) == joined

    @rule(wait_ms=st.integers(0, 300))
    def expire(self, wait_ms: int) -> None:
        self.now += wait_ms
        self.story.when(Expire(), now_ms=self.now)
        for sequence in self.story.reply.sequences:
            assert sequence not in self.verdicts
            self.verdicts[sequence] = False

    @invariant()
    def every_verdict_is_kept(self) -> None:
        state = self.story.state
        assert state.next_sequence == self.count + 1
        for sequence in range(1, self.count + 1):
            status = state.status(sequence)
            if sequence not in self.verdicts:
                assert status == Status.OPEN and LEGAL[status]
            else:
                ways = (
                    (Status.COMMITTING, Status.COMMITTED)
                    if self.verdicts[sequence]
                    else (Status.ABORTING, Status.ABORTED)
                )
                assert status in ways
        unfinished = list(state.unfinished)
        assert state.low_water == (unfinished[0] if unfinished else self.count + 1) - 1


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
