"""Invariants of consumers that share, by the deliveries of partitions: `tests.sim.deliveries`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.checkers import Checker, Evidence

KEY_SHARED = 3
"""The wire's number of that type of subscription."""


VOID_S = 6.0
"""The time within which a granted entry reaches the partition."""


class Held:
    """What the consumers of one channel hold: offset -> consumer, hash, a bit per message."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, int, int]] = {}
        self._void_until: dict[int, float] = {}
        self._gone_until: list[tuple[float, int, int]] = []

    def of_hash(self, hashed: int) -> set[int]:
        """The consumers that hold entries of the hash."""
        return {who for who, held, _ in self.entries.values() if held == hashed}

    def messages(self, consumer: int | None = None) -> int:
        """How many messages a consumer holds, or all of them."""
        return sum(
            open_.bit_count() for who, _, open_ in self.entries.values() if consumer in (None, who)
        )

    def sent(self, time: float, offset: int, consumer: int, hashed: int, open_: int) -> None:
        """It went out."""
        if time < self._void_until.get(consumer, 0):
            return
        self._gone_until = [each for each in self._gone_until if time < each[0]]
        if not any(first <= offset < end for _, first, end in self._gone_until):
            self.entries[offset] = (consumer, hashed, open_)

    def freed(self, time: float, note: dict[str, Any]) -> None:
        """The consumer no longer has these entries.

        A request to redeliver everything includes entries that were granted and not yet sent.
        Acknowledged or skipped entries may have been granted before.
        """
        by, ranges = note["by"], note["ranges"]
        if ranges is None:
            self._void_until[by] = time + VOID_S
        elif by is None:
            self._gone_until += [(time + VOID_S, first, end) for first, end in ranges]
        for offset, (who, _, _) in list(self.entries.items()):
            named = ranges is None or any(first <= offset < end for first, end in ranges)
            if named and by in (None, who):
                del self.entries[offset]
        for offset, left in note["parts"]:
            if offset in self.entries:
                who, hashed, open_ = self.entries.pop(offset)
                if open_ & left:
                    self.entries[offset] = (who, hashed, open_ & left)


def _sendings(run: Evidence) -> Iterator[tuple[float, dict[str, Any], int, int, int, Held]]:
    """Time, note, offset, hash and open messages of every entry that goes out, and what is held."""
    channels: dict[int, Held] = defaultdict(Held)
    for time, kind, note in run.history.of("sent", "freed", "moved"):
        held = channels[note["channel"]]
        if kind == "moved":
            # The cursor moves: all is void, and consumers are about to be closed.
            held.entries.clear()
        elif kind == "freed":
            held.freed(time, note)
        else:
            for at, (hashed, open_) in enumerate(
                zip(note["hashes"], note["open"], strict=True), note["first"]
            ):
                yield time, note, at, hashed, open_, held
                held.sent(time, at, note["consumer"], hashed, open_)


def keys_are_at_one_consumer(run: Evidence) -> Iterator[str]:
    """K12: what is un-acknowledged of a key is at no more than one Key_Shared consumer.

    Unless they allow delivery out of order.
    """
    for time, note, offset, hashed, _, held in _sendings(run):
        if note["kind"] != KEY_SHARED or note["loose"]:
            continue
        others = held.of_hash(hashed) - {note["consumer"]}
        if others:
            yield (
                f"{time} s: {note['subscription']} sent {offset} of {note['topic']} to consumer"
                f" {note['consumer']} while {sorted(others)} had some of its key {hashed}"
            )


def keys_go_out_in_order(run: Evidence) -> Iterator[str]:
    """Entries of a key are first sent in the order of the log.

    An entry that is pending in a transaction was sent before, perhaps by a former activation.
    """
    highest: dict[tuple[int, int], int] = {}
    seen: dict[int, set[int]] = defaultdict(set)
    moved: set[int] = {note["channel"] for _, _, note in run.history.of("moved")}
    pending = {
        (note["subscription"], note["topic"], at)
        for _, _, note in run.history.of("pending")
        for first, end in note["ranges"]
        for at in range(first, end)
    }
    for time, note, offset, hashed, _, _ in _sendings(run):
        channel = note["channel"]
        if note["kind"] != KEY_SHARED or channel in moved or offset in seen[channel]:
            continue
        seen[channel].add(offset)
        if (note["subscription"], note["topic"], offset) in pending:
            continue
        before = highest.get((channel, hashed), -1)
        if offset < before:
            yield (
                f"{time} s: {note['subscription']} sent {offset} of key {hashed} of"
                f" {note['topic']} for the first time after {before}"
            )
        highest[channel, hashed] = max(offset, before)


def no_consumer_exceeds_its_limit(run: Evidence) -> Iterator[str]:
    """A consumer that holds as many messages as it may gets no more, nor do all together."""
    limits = {
        note["topic"]: (note["consumer"], note["subscription"])
        for _, _, note in run.history.of("limits")
    }
    for time, note, offset, _, _, held in _sendings(run):
        whole = note["topic"].removeprefix("persistent://").partition("-partition-")[0]
        per_consumer, per_subscription = limits.get(whole, (0, 0))
        mine, all_of_them = held.messages(note["consumer"]), held.messages()
        if 0 < per_consumer <= mine or 0 < per_subscription <= all_of_them:
            yield (
                f"{time} s: {note['subscription']} sent {offset} of {note['topic']} to consumer"
                f" {note['consumer']}, which had {mine} messages, all had {all_of_them}"
            )


def sticky_ranges_do_not_overlap(run: Evidence) -> Iterator[str]:
    """No hash belongs to two sticky consumers."""
    live: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for time, kind, note in run.history.of("attached", "left"):
        channel, consumer = note["channel"], note["consumer"]
        if kind == "left":
            live.pop((channel, consumer), None)
            continue
        for first, last in note["ranges"]:
            for (where, other), ranges in live.items():
                if where == channel and any(a <= last and first <= b for a, b in ranges):
                    yield f"{time} s: {first} to {last} are {consumer}'s, some of it {other}'s"
        live[channel, consumer] = note["ranges"]


KEY_SHARED_CHECKERS: tuple[Checker, ...] = (
    keys_are_at_one_consumer,
    keys_go_out_in_order,
    no_consumer_exceeds_its_limit,
    sticky_ranges_do_not_overlap,
)
