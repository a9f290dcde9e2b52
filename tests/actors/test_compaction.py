"""What compaction keeps, against "the last value of every key"; and which view is current."""

from __future__ import annotations

import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from velaray.actors.machine import Reason
from velaray.actors.partition.compacted import (
    BeginCompaction,
    ConfirmCompactionSwept,
    Generation,
    NothingNew,
    PublishCompaction,
    SweptCompaction,
)
from velaray.actors.partition.compaction import Contents, Item, NewestByKey, Part, TooManyKeys
from velaray.actors.partition.machine import (
    PartitionMachine,
    Publish,
)
from velaray.actors.partition.state import PartitionState
from velaray.actors.testing import History, given
from velaray.events.events_pb2 import LedgerOpened

KEYS = st.sampled_from([None, "a", "b", "c", "d"])
ITEMS = st.builds(Item, KEYS, st.booleans())
PLAIN = st.lists(ITEMS, min_size=1, max_size=4).map(lambda items: Contents(tuple(items)))
OPAQUE = st.just(Contents(None))
LOGS = st.lists(st.one_of(PLAIN, PLAIN, PLAIN, OPAQUE), max_size=20)

Message = tuple[int, int, Item]


def messages(log: list[Contents]) -> list[Message]:
    """Every message of the log that can be looked into, with offset and index."""
    return [
        (offset, index, item)
        for offset, contents in enumerate(log)
        for index, item in enumerate(contents.items or ())
        if not item.gone
    ]


def last_values(found: list[Message]) -> dict[str, tuple[int, int]]:
    """Where the last value of every key is; a tombstone leaves none."""
    last: dict[str, tuple[int, int]] = {}
    for offset, index, item in found:
        if item.key is not None:
            last.pop(item.key, None)
            if not item.empty:
                last[item.key] = offset, index
    return last


def compact(log: list[Contents], *, retain: bool = False) -> list[Contents]:
    """The log with what compaction took out marked as gone; None of an entry that goes."""
    newest = NewestByKey(retain_without_key=retain)
    for offset, contents in enumerate(log):
        newest.see(offset, contents)
    after = []
    for offset, contents in enumerate(log):
        mask = newest.kept(offset, contents)
        if contents.items is None:
            assert mask == 1
            after.append(contents)
            continue
        gone = [item._replace(gone=not mask >> at & 1) for at, item in enumerate(contents.items)]
        after.append(Contents(tuple(gone), contents.part))
    return after


@forall(LOGS, st.booleans())
def test_the_newest_message_of_every_key_keeps_its_position(
    log: list[Contents], retain: bool
) -> None:
    kept = messages(compact(log, retain=retain))
    wanted = [(*place, key) for key, place in last_values(messages(log)).items()]
    if retain:
        wanted += [(offset, at, None) for offset, at, item in messages(log) if item.key is None]
    assert [(offset, at, item.key) for offset, at, item in kept] == sorted(
        wanted, key=lambda found: found[:2]
    )


@forall(LOGS, LOGS, st.booleans())
def test_compacting_a_compacted_log_further_equals_compacting_the_whole_log(
    first: list[Contents], second: list[Contents], retain: bool
) -> None:
    once = compact([*first, *second], retain=retain)
    twice = compact([*compact(first, retain=retain), *second], retain=retain)
    assert messages(twice) == messages(once)


def chunked(key: str | None, uuid: str, chunk_id: int, chunks: int) -> Contents:
    return Contents((Item(key, empty=False),), Part(uuid, chunk_id, chunks))


def masks(log: list[Contents], *, retain: bool = False) -> list[int]:
    newest = NewestByKey(retain_without_key=retain)
    for offset, contents in enumerate(log):
        newest.see(offset, contents)
    return [newest.kept(offset, contents) for offset, contents in enumerate(log)]


def value(key: str | None) -> Contents:
    return Contents((Item(key, empty=False),))


def test_chunks_are_one_message_at_the_position_of_the_last_chunk() -> None:
    log = [chunked("a", "m", 0, 2), value("a"), chunked("a", "m", 1, 2), value("b")]
    assert masks(log) == [1, 0, 1, 1]
    assert masks([*log, value("a")]) == [0, 0, 0, 1, 1]
    assert masks([*log, Contents((Item("a", empty=True),))]) == [0, 0, 0, 1, 0]


def test_chunks_without_a_key_are_dropped_unless_they_are_retained() -> None:
    log = [chunked(None, "m", 0, 2), chunked(None, "m", 1, 2)]
    assert masks(log) == [0, 0]
    assert masks(log, retain=True) == [1, 1]


def test_chunks_of_an_incomplete_message_are_kept() -> None:
    log = [value("a"), chunked("a", "m", 0, 3), chunked("a", "m", 1, 3)]
    assert masks(log) == [1, 1, 1]
    assert masks([*log, chunked("a", "m", 0, 3), chunked("a", "m", 1, 3)]) == [1, 0, 0, 1, 1]


def test_the_memory_for_keys_is_bounded() -> None:
    newest = NewestByKey(key_budget=1000)
    with pytest.raises(TooManyKeys, match="4 keys"):
        for offset in range(10):
            newest.see(offset, value(f"key {offset}"))


def test_removed_keys_give_their_memory_back() -> None:
    newest = NewestByKey(key_budget=1000)
    for offset in range(0, 100, 2):
        newest.see(offset, value(f"key {offset}"))
        newest.see(offset + 1, Contents((Item(f"key {offset}", empty=True),)))
    assert newest.keys == 0


# -- which generation is current --------------------------------------------------------


def partition(entries: int = 3) -> History[PartitionState]:
    history = given(PartitionMachine(), LedgerOpened(ledger_id=100, epoch=1))
    return publish(history, entries)


def publish(history: History[PartitionState], entries: int) -> History[PartitionState]:
    for _ in range(entries):
        history.when(Publish("p", 0, 0, 1, b"x", False))
    return history


def test_a_compaction_counts_once_it_is_published() -> None:
    (
        partition()
        .when(BeginCompaction(), now_ms=5)
        .then(reply=Generation(1, 3, 5))
        .then_state(lambda state: state.compactions.horizon == 0)
        .when(BeginCompaction())
        .then_refused(Reason.CONFLICT)
        .when(Publish("p", 0, 0, 1, b"x", False))
        .when(PublishCompaction(1, 2), now_ms=8)
        .then(reply=Generation(1, 3, 5, 2, 8))
        .then_state(lambda state: state.compactions.horizon == 3)
        .then_state(lambda state: state.compactions.leftovers() == [])
    )


def test_the_former_generation_is_swept_after_the_new_one_is_published() -> None:
    history = partition().when(BeginCompaction()).when(PublishCompaction(1, 2))
    history.when(BeginCompaction()).then(events=[], reply=NothingNew())
    (
        publish(history, 1)
        .when(BeginCompaction())
        .then_state(lambda state: state.compactions.leftovers() == [2])
        .when(ConfirmCompactionSwept(1))
        .then_refused(Reason.CONFLICT)
        .when(PublishCompaction(2, 2))
        .then_state(lambda state: state.compactions.leftovers() == [1])
        .when(ConfirmCompactionSwept(1))
        .then(reply=SweptCompaction())
        .then_state(lambda state: state.compactions.leftovers() == [])
        .when(ConfirmCompactionSwept(1))
        .then(events=[], reply=SweptCompaction())
    )


def test_a_swept_compaction_can_never_be_published() -> None:
    (
        partition()
        .when(BeginCompaction())
        .when(ConfirmCompactionSwept(1))
        .then(reply=SweptCompaction())
        .when(PublishCompaction(1, 2))
        .then_refused(Reason.CONFLICT)
        .when(BeginCompaction(), now_ms=9)
        .then(reply=Generation(2, 3, 9))
    )


def test_an_empty_log_has_nothing_to_compact() -> None:
    partition(0).when(BeginCompaction()).then(events=[], reply=NothingNew())
