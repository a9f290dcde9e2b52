"""Each predicate between clusters holds of a sound history, and fails on one that is made up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.geo_checkers import (
    GEO_CHECKERS,
    GeoEvidence,
    Glimpse,
    Heard,
    Probe,
    Stored,
    Switch,
    confirmed_messages_are_not_redelivered_elsewhere,
    keys_keep_their_order_across_the_switch,
    messages_with_known_acknowledgements_are_not_delivered,
    moves_back_are_not_undone,
    nothing_is_acknowledged_before_an_application_does,
    nothing_unacknowledged_is_skipped,
    own_messages_are_never_filtered,
    repeated_progress_changes_nothing,
    replicas_have_the_entries_of_their_source,
    replicas_have_the_order_of_their_source,
    replication_makes_no_loops,
)
from tests.sim.history import History

TOPIC = "persistent://public/default/t"
SHARED, FAILOVER = 1, 2
A, B = 1 << 52, 2 << 52

LOG_OF_A = [
    Stored((A, 0), ("p:1",), "a", (A, 0)),
    Stored((A, 1), ("p:2", "p:3"), "a", (A, 1)),
    Stored((A, 2), ("q:1",), "b", (B, 1)),
]
LOG_OF_B = [
    Stored((B, 0), ("p:1",), "a", (A, 0)),
    Stored((B, 1), ("q:1",), "b", (B, 1)),
    Stored((B, 2), ("p:2", "p:3"), "a", (A, 1)),
]


class Told:
    """A history of steps, one second each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.history = History(lambda: self.now)

    def add(self, kind: str, /, **details: Any) -> Told:
        """Note an event a second later."""
        self.now += 1.0
        self.history.add(kind, **details)
        return self

    def subscribe(self, connection: int, kind: int = SHARED) -> Told:
        """A consumer of the subscription s."""
        who = {"connection": connection, "consumer": 0}
        return self.add("subscribe", **who, subscription="s", topic=TOPIC, kind=kind)

    def deliver(self, connection: int, ledger: int, entry: int, bits: int = 1) -> Told:
        """An entry, or the messages of a batch whose bits are set."""
        who = {"connection": connection, "consumer": 0}
        return self.add("deliver", **who, ledger=ledger, entry=entry, open=bits)

    def acknowledging(self, ledger: int, entry: int, index: int = -1, **how: Any) -> Told:
        """An application acknowledges a message."""
        where = {"topic": TOPIC, "ledger": ledger, "entry": entry, "index": index}
        return self.add("acknowledging", subscription="s", **where, **{"cumulative": False, **how})

    def durable(self, connection: int, ledger: int, entry: int, left: int | None = None) -> Told:
        """The broker confirms an acknowledgement."""
        who = {"connection": connection, "consumer": 0}
        return self.add("ack durable", **who, cumulative=False, entries=[(ledger, entry, left)])

    def received(self, content: str, ledger: int, entry: int) -> Told:
        """An application gets a message."""
        where = {"topic": TOPIC, "ledger": ledger, "entry": entry, "index": -1}
        return self.add("received", subscription="s", content=content, **where)


def evidence(told: Told | None = None, **other: Any) -> GeoEvidence:
    """Evidence of two clusters with each other's messages, and the given fields."""
    return GeoEvidence(
        **{
            "history": (told or Told()).history,
            "logs": {("a", TOPIC): LOG_OF_A, ("b", TOPIC): LOG_OF_B},
            "acked": {},
            "ways": [("a", "b"), ("b", "a")],
            "followed": frozenset({"s"}),
            **other,
        }
    )


def switched() -> Told:
    """A consumer in A acknowledges p:1 and p:2 with receipts and leaves; one in B gets the rest."""
    told = Told().subscribe(1).deliver(1, A, 0).deliver(1, A, 1, 0b11)
    told.acknowledging(A, 0).durable(1, A, 0)
    told.acknowledging(A, 1, 0).durable(1, A, 1, 0b10)
    told.add("switched")
    told.subscribe(2).deliver(2, B, 1).deliver(2, B, 2, 0b10)
    return told.acknowledging(B, 1).acknowledging(B, 2, 1)


def at(told: Told, kind: str) -> float:
    """When something happened for the first time."""
    return told.history.of(kind)[0][0]


def switch_of(told: Told, known: frozenset[str] | None = None) -> Switch:
    """From A to B."""
    when = at(told, "switched")
    return Switch("s", TOPIC, "a", "b", when, when, known)


def test_a_sound_run_satisfies_everything() -> None:
    told = switched()
    everything = frozenset({"p:1", "p:2", "p:3", "q:1"})
    run = evidence(
        told,
        switches=[switch_of(told)],
        acked={("b", TOPIC, "s"): everything},
        probes=[Probe("b", TOPIC, "s", everything, everything)],
    )
    assert [fault for checker in GEO_CHECKERS for fault in checker(run)] == []


def lacking(log: list[Stored], number: int) -> list[Stored]:
    """The log without one entry."""
    return log[:number] + log[number + 1 :]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (lacking(LOG_OF_B, 2), "lacks [['p:2', 'p:3']]"),
        ([*LOG_OF_B, Stored((B, 3), ("p:1",), "a", (A, 0))], "has [['p:1']] of a more than once"),
        (
            [*lacking(LOG_OF_B, 2), Stored((B, 2), ("p:2",), "a", (A, 1))],
            "has [['p:2']] (1), a hasn't",
        ),
    ],
)
def test_an_entry_missing_or_doubled_in_a_replica_is_found(log: list[Stored], words: str) -> None:
    run = evidence(logs={("a", TOPIC): LOG_OF_A, ("b", TOPIC): log})
    assert any(words in fault for fault in replicas_have_the_entries_of_their_source(run))


def test_replicas_of_a_lost_cluster_may_end_early_but_have_no_gap() -> None:
    logs = {("a", TOPIC): LOG_OF_A, ("b", TOPIC): lacking(LOG_OF_B, 2)}
    cut_off = {"ways": [("b", "a")], "cut_off": [("a", "b")]}
    assert not list(replicas_have_the_entries_of_their_source(evidence(logs=logs, **cut_off)))
    logs["b", TOPIC] = lacking(LOG_OF_B, 0)
    assert list(replicas_have_the_entries_of_their_source(evidence(logs=logs, **cut_off)))


def test_an_order_that_differs_from_the_source_is_found() -> None:
    log = [LOG_OF_B[2], *LOG_OF_B[:2]]
    run = evidence(logs={("a", TOPIC): LOG_OF_A, ("b", TOPIC): log})
    (fault,) = replicas_have_the_order_of_their_source(run)
    assert "has ('p:1',) of a too late" in fault


def test_a_wrong_position_at_the_source_is_found() -> None:
    log = [*LOG_OF_B[:2], Stored((B, 2), ("p:2", "p:3"), "a", (A, 0))]
    run = evidence(logs={("a", TOPIC): LOG_OF_A, ("b", TOPIC): log})
    assert any("has ('p:2', 'p:3')" in f for f in replicas_have_the_order_of_their_source(run))


def test_an_entry_replicated_back_to_its_source_is_found() -> None:
    log = [*LOG_OF_A, Stored((A, 3), ("p:1",), "a", (A, 0))]
    run = evidence(logs={("a", TOPIC): log, ("b", TOPIC): LOG_OF_B})
    assert len(list(replication_makes_no_loops(run))) == 2


@pytest.mark.parametrize(
    ("entry", "bits", "content"), [(0, 0b1, "p:1"), (2, 0b11, "p:2")], ids=["entry", "part"]
)
def test_the_redelivery_of_a_confirmed_message_is_found(
    entry: int, bits: int, content: str
) -> None:
    told = switched().deliver(2, B, entry, bits)
    run = evidence(told, switches=[switch_of(told)])
    (fault,) = confirmed_messages_are_not_redelivered_elsewhere(run)
    assert f"s acknowledged {content} in a with a receipt" in fault


def test_before_catching_up_only_known_acks_forbid_redelivery() -> None:
    told = switched().deliver(2, B, 0)
    run = evidence(told, switches=[switch_of(told, known=frozenset({"p:2"}))])
    assert not list(confirmed_messages_are_not_redelivered_elsewhere(run))
    run = evidence(told, switches=[switch_of(told, known=frozenset({"p:1"}))])
    assert list(confirmed_messages_are_not_redelivered_elsewhere(run))


@pytest.mark.parametrize(
    ("up_to", "ranges", "found"),
    [
        ((-1, -1), ((A, 0, 1),), "p:1"),
        ((A, 0), (), "p:1"),
        ((-1, -1), ((A, 2, 9),), None),
        ((-1, -1), ((A + 1, 0, 1),), None),
    ],
)
def test_the_delivery_of_an_entry_known_to_be_acked_is_found(
    up_to: tuple[int, int], ranges: tuple[tuple[int, int, int], ...], found: str | None
) -> None:
    told = switched().subscribe(3).deliver(3, B, 0)
    before, after = (
        list(
            messages_with_known_acknowledgements_are_not_delivered(
                evidence(told, heard=[Heard(time, "b", TOPIC, "s", "a", up_to, ranges)])
            )
        )
        for time in (at(told, "switched"), told.now)
    )
    assert not after
    assert len(before) == (found is not None)
    assert found is None or found in before[0]


def test_entries_after_a_move_back_may_be_redelivered() -> None:
    told = switched().add("seek", subscription="s", to="earliest").subscribe(3).deliver(3, B, 0)
    assert not list(
        confirmed_messages_are_not_redelivered_elsewhere(evidence(told, switches=[switch_of(told)]))
    )


def test_a_skipped_message_is_found() -> None:
    told = switched()
    acked = {("b", TOPIC, "s"): frozenset({"p:1", "p:2", "p:3", "q:1"})}
    assert not list(nothing_unacknowledged_is_skipped(evidence(told, acked=acked)))
    told.history.events = [event for event in told.history.events if event[2].get("index") != 1]
    (fault,) = nothing_unacknowledged_is_skipped(evidence(told, acked=acked))
    assert "['p:3'] (1)" in fault
    assert not list(own_messages_are_never_filtered(evidence(told, acked=acked)))


def test_a_remote_ack_counts_only_if_progress_is_replicated() -> None:
    told = Told().acknowledging(A, 0)
    acked = {("b", TOPIC, "s"): frozenset({"p:1"})}
    assert not list(nothing_unacknowledged_is_skipped(evidence(told, acked=acked)))
    own = evidence(told, acked=acked, followed=frozenset())
    assert list(nothing_unacknowledged_is_skipped(own))


def test_progress_without_any_ack_is_found() -> None:
    told = switched()
    had = {(TOPIC, "s"): frozenset({"p:1", "q:1"})}
    early, late = (
        list(
            nothing_is_acknowledged_before_an_application_does(
                evidence(told, glimpses=[Glimpse(time, "b", had)])
            )
        )
        for time in (at(told, "switched"), told.now)
    )
    assert len(early) == 1 and "['q:1'] (1)" in early[0]
    assert not late


def test_a_filtered_message_of_the_own_cluster_is_found() -> None:
    told = Told().acknowledging(A, 1, 1, cumulative=True)
    acked = {("b", TOPIC, "s"): frozenset({"p:1", "p:2", "p:3", "q:1"})}
    (fault,) = own_messages_are_never_filtered(evidence(told, acked=acked))
    assert "['q:1'] (1)" in fault


def ordered(*deliveries: tuple[int, int, int], key: str | None = "k") -> Told:
    """Messages with a key, delivered in an order."""
    told = Told()
    for content in ("p:1", "p:2", "p:3", "q:1"):
        told.add("send", content=content, key=key)
    told.subscribe(1, FAILOVER)
    for ledger, entry, bits in deliveries:
        told.deliver(1, ledger, entry, bits)
    return told


def test_a_key_reordered_by_the_switch_is_found() -> None:
    wrong = ((A, 1, 0b01), (B, 0, 1))
    switch = {"switches": [Switch("s", TOPIC, "a", "b", 0.0, 0.0)]}
    run = evidence(ordered(*wrong), **switch)
    (fault,) = keys_keep_their_order_across_the_switch(run)
    assert "s got p:1 of key k in b at 7.0 s, after number 2" in fault
    for sound in (ordered(*wrong[::-1]), ordered(*wrong, key=None)):
        assert not list(keys_keep_their_order_across_the_switch(evidence(sound, **switch)))
    assert not list(keys_keep_their_order_across_the_switch(evidence(ordered(*wrong))))


def test_after_a_loss_only_messages_of_one_origin_are_compared() -> None:
    logs = {("b", TOPIC): [Stored((B, 0), ("p:2",), "b", (B, 0)), *LOG_OF_A[:1]]}
    told = ordered((B, 0, 1), (A, 0, 1))
    for known, sound in ((None, False), (frozenset(), True)):
        switch = Switch("s", TOPIC, "a", "b", 0.0, 0.0, known)
        run = evidence(told, logs=logs, switches=[switch])
        assert (not list(keys_keep_their_order_across_the_switch(run))) is sound


def test_a_rewind_undone_by_old_progress_is_found() -> None:
    told = Told().acknowledging(B, 0)
    told.now += 20.0
    rewind = {"cluster": "b", "topic": TOPIC, "subscription": "s"}
    told.add("rewind", **rewind, contents=["p:1", "q:1"])
    told.received("q:1", B, 1)
    (fault,) = moves_back_are_not_undone(evidence(told))
    assert "['p:1'] (1) never came again" in fault
    assert not list(moves_back_are_not_undone(evidence(told.received("p:1", B, 0))))


def test_repeated_progress_that_changes_something_is_found() -> None:
    probe = Probe("b", TOPIC, "s", frozenset({"p:1"}), frozenset({"p:1", "p:2"}))
    (fault,) = repeated_progress_changes_nothing(evidence(probes=[probe]))
    assert "['p:2'] (1)" in fault
