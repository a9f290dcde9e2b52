"""Progress of subscriptions, read from another cluster's statistics."""

from __future__ import annotations

from typing import Any

import pytest

from velaray.actors.subscription.remote_progress import LAST_ENTRY
from velaray.geo.inbound import inbound_progress
from velaray.geo.inbound.inbound_progress import (
    Cursor,
    MalformedStats,
    Range,
    TopicStats,
    parts,
)
from velaray.wire.replication_pb2 import SubscriptionProgress


def stats(mark: str, besides: str = "[]", **more: Any) -> TopicStats:
    """As Pulsar 3.0 tells them of two full ledgers and one that is written to."""
    cursor = {"markDeletePosition": mark, "individuallyDeletedMessages": besides}
    ledgers = [{"ledgerId": 3, "entries": 10}, {"ledgerId": 7, "entries": 5}]
    current = [*ledgers, {"ledgerId": 9, "entries": 0}]
    return TopicStats(
        {"ledgers": current, "currentLedgerEntries": 4, "cursors": {"s": cursor}, **more}
    )


@pytest.mark.parametrize(
    "mark,up_to",
    [
        ("3:1", (3, 1)),
        ("3:-1", (2, LAST_ENTRY)),
        ("9:3", (9, 3)),
        ("0:-1", None),
        ("-1:-1", None),
    ],
)
def test_everything_up_to_the_mark_is_acknowledged(
    mark: str, up_to: tuple[int, int] | None
) -> None:
    assert stats(mark).cursors() == {"s": Cursor(up_to)}


@pytest.mark.parametrize(
    "text,ranges",
    [
        ("[]", []),
        ("[(3:3..3:5],(3:7..3:8]]", [(3, 4, 5), (3, 8, 8)]),
        ("[(3:-1..3:0], (9:0..9:2]]", [(3, 0, 0), (9, 1, 2)]),
        # So the older kind of sets has it: a range may begin in one ledger and end in another.
        ("[(3:7..9:1]]", [(3, 8, 9), (7, 0, 4), (9, 0, 1)]),
        ("[(3:9..7:-1]]", []),
    ],
)
def test_acked_ranges_beyond_the_mark_are_read(
    text: str, ranges: list[tuple[int, int, int]]
) -> None:
    found = stats("3:1", text).cursors()["s"].besides
    assert found == tuple(Range(*each) for each in ranges)


@pytest.mark.parametrize(
    "broken",
    [
        {"cursors": {"s": {"markDeletePosition": "x"}}},
        {"cursors": {"s": {}}},
        {"cursors": []},
        {"cursors": {"s": 3}},
        {"ledgers": None},
        {"ledgers": [{}]},
        {"currentLedgerEntries": "many"},
        {"cursors": {"s": {"markDeletePosition": "3:1", "individuallyDeletedMessages": "[3]"}}},
    ],
)
def test_unexpected_statistics_are_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(MalformedStats):
        stats("3:1", **broken).cursors()


@pytest.mark.parametrize(
    "mark,left", [("3:-1", 19), ("3:1", 17), ("3:9", 9), ("7:4", 4), ("9:3", 0), ("2:77", 19)]
)
def test_the_backlog_is_counted_behind_the_mark(mark: str, left: int) -> None:
    assert stats(mark).backlog("s") == left


def test_the_systems_cursors_are_not_exported() -> None:
    cursor = {"markDeletePosition": "3:1"}
    names = ("pulsar.repl.east", "pulsar.dedup", "__compaction", "velaray-pull.x", "mine")
    found = stats("3:1", cursors=dict.fromkeys(names, cursor))
    assert list(found.cursors()) == ["mine"]
    assert found.backlog("velaray-pull.x") == 17
    assert found.backlog("nobody") is None


def read(told: list[bytes]) -> list[SubscriptionProgress]:
    return [SubscriptionProgress.FromString(each) for each in told]


def test_only_new_progress_is_exported() -> None:
    first = Cursor((3, 1), (Range(3, 4, 5),))
    (told,) = read(parts("old", "s", {"x": "y"}, None, first))
    assert (told.subscription, dict(told.properties)) == ("s", {"x": "y"})
    (origin,) = told.origins
    assert (origin.cluster, origin.up_to.ledger_id, origin.up_to.entry_id) == ("old", 3, 1)
    assert [(each.ledger, each.first_entry, each.last_entry) for each in origin.acked] == [
        (3, 4, 5)
    ]
    assert parts("old", "s", {}, first, first) == []
    (told,) = read(parts("old", "s", {}, first, Cursor((3, 1), (Range(3, 4, 6),))))
    assert not told.origins[0].HasField("up_to")
    assert told.origins[0].acked[0].last_entry == 6


def test_a_subscription_without_progress_is_exported() -> None:
    (told,) = read(parts("old", "s", {}, None, Cursor(None)))
    assert (told.subscription, len(told.origins[0].acked)) == ("s", 0)


def test_many_acked_ranges_are_exported_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound_progress, "RANGES_PER_PART", 3)
    ranges = tuple(Range(3, 2 * number, 2 * number) for number in range(1, 8))
    told = read(parts("old", "s", {}, None, Cursor((3, 0), ranges)))
    assert [len(each.origins[0].acked) for each in told] == [3, 3, 1]
    assert [each.origins[0].HasField("up_to") for each in told] == [True, False, False]
