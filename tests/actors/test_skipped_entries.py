"""Skipped entries are not delivered, and the skip can be undone."""

from __future__ import annotations

from velaray.actors.machine import Reason
from velaray.actors.partition import skipped_entries
from velaray.actors.partition.machine import PartitionMachine
from velaray.actors.partition.skipped_entries import (
    SkipEntries,
    Skipped,
    UnskipEntries,
    hidden_within,
)
from velaray.actors.testing import given
from velaray.events.events_pb2 import (
    EntriesSkipped,
    EntriesTrimmed,
    EntriesUnskipped,
    EntryAppended,
    LedgerOpened,
    ProducerRegistered,
    SkippedRange,
    TrimmedLedger,
)

NOW = 1000


def a_log(*more):
    events = [ProducerRegistered(producer=1, name="p")]
    for ledger_id in (1, 2):
        events.append(LedgerOpened(ledger_id=ledger_id, epoch=1))
        events += [EntryAppended(producer=1, sequence_id=ledger_id) for _ in range(5)]
    return given(PartitionMachine(), *events, *more)


def skipped(*ranges, kind=EntriesSkipped):
    parts = [SkippedRange(first=first, end=end) for first, end in ranges]
    return kind(ranges=parts, at_ms=NOW)


def test_only_new_ranges_are_skipped():
    log = a_log().when(SkipEntries(((2, 4),)), NOW)
    log.then(events=[skipped((2, 4))], reply=Skipped(((2, 4),)))
    log.when(SkipEntries(((1, 3), (3, 6))), NOW)
    log.then(events=[skipped((1, 2), (4, 6))], reply=Skipped(((1, 2), (4, 6))))
    assert hidden_within(log.state, 0, 10) == [(1, 6)]
    log.when(SkipEntries(((1, 6),)), NOW).then(events=[], reply=Skipped(()))


def test_the_skip_is_undone():
    log = a_log().when(UnskipEntries(), NOW).then(events=[], reply=Skipped(()))
    log.when(SkipEntries(((2, 4), (6, 7))), NOW)
    log.when(UnskipEntries(), NOW)
    parts = (2, 4), (6, 7)
    log.then(events=[skipped(*parts, kind=EntriesUnskipped)], reply=Skipped(parts))
    assert hidden_within(log.state, 0, 10) == []


def test_trimmed_entries_are_not_skipped_any_more():
    trimmed = EntriesTrimmed(ledgers=[TrimmedLedger(ledger_id=1, bytes=5)])
    log = a_log(skipped((3, 7)), trimmed)
    assert list(log.state.skipped) == [(5, 7)]
    log.when(SkipEntries(((0, 6),)), NOW).then(events=[], reply=Skipped(()))


def test_what_is_refused(monkeypatch):
    a_log().when(SkipEntries(((9, 11),)), NOW).then_refused(Reason.INVALID)
    monkeypatch.setattr(skipped_entries, "MAX_RANGES", 50)
    many = tuple((2 * number, 2 * number + 1) for number in range(51))
    log = a_log(*[EntryAppended(producer=1, sequence_id=3) for _ in range(100)])
    log.when(SkipEntries(many), NOW).then_refused(Reason.INVALID)
