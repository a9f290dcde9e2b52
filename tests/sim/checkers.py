"""What must hold of every run, judged from its history and from what is stored at the end.

Each checker returns the faults it found, as text. None of them knows how a run was made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.sim.again import (
    confirmed_parts_hold,
    redeliveries_are_counted,
    seeks_bring_everything_again,
)
from tests.sim.history import History

SHARED = 1
"""The wire's number of that type of subscription."""

Place = tuple[int, int]
Log = Mapping[Place, list[str]]
"""A topic partition: the contents of each entry by (ledger, entry), in order of the log."""


@dataclass(frozen=True)
class Evidence:
    """A run that is over: its history, and the logs as a reader of the disk finds them."""

    history: History
    logs: Mapping[str, Log]


def acknowledged_messages_are_stored(run: Evidence) -> Iterator[str]:
    """A receipt means: the message is in the log, where the receipt says."""
    everywhere = {
        content for log in run.logs.values() for found in log.values() for content in found
    }
    for _, _, receipt in run.history.of("receipt"):
        content = receipt["content"]
        if receipt["ledger"] < 0 or receipt["ledger"] >= 1 << 63:  # it was there already
            if content not in everywhere:
                yield f"{content} was acknowledged as a duplicate and isn't stored"
            continue
        entry = run.logs.get(receipt["topic"], {}).get((receipt["ledger"], receipt["entry"]), [])
        if content not in entry[max(receipt["index"], 0) :][:1]:
            yield f"{content} was acknowledged and isn't stored at {_where(receipt)}: {entry}"


def nothing_is_stored_twice(run: Evidence) -> Iterator[str]:
    """De-duplication: what a producer sends again over a new connection is stored once."""
    for topic, log in run.logs.items():
        seen: dict[str, Place] = {}
        for place, contents in log.items():
            for content in contents:
                if content in seen:
                    yield f"{content} is stored in {topic} at {seen[content]} and at {place}"
                seen[content] = place


def refused_messages_are_not_stored(run: Evidence) -> Iterator[str]:
    """An error other than a timeout means: it isn't stored."""
    refused = {note["content"] for _, _, note in run.history.of("refused")}
    for topic, log in run.logs.items():
        for place, contents in log.items():
            for content in refused.intersection(contents):
                yield f"{content} was refused and is stored in {topic} at {place}"


def producers_keep_their_order(run: Evidence) -> Iterator[str]:
    """Messages of one producer are stored in the order in which it sent them."""
    for topic, log in run.logs.items():
        last: dict[str, int] = {}
        for contents in log.values():
            for content in contents:
                producer, _, number = content.rpartition(":")
                if int(number) <= last.get(producer, 0):
                    yield f"{topic}: {content} is stored after number {last[producer]}"
                last[producer] = int(number)


def everything_is_received(run: Evidence) -> Iterator[str]:
    """Every stored message reached every subscription of its topic once at least."""
    received = defaultdict(set)
    for _, _, note in run.history.of("received"):
        received[note["subscription"]].add(note["content"])
    for subscription, topic in sorted(_subscriptions(run.history)):
        stored = [content for found in run.logs.get(topic, {}).values() for content in found]
        missing = [content for content in stored if content not in received[subscription]]
        if missing:
            yield f"{subscription} never got {missing[:5]} ({len(missing)}) of {topic}"


def _subscriptions(history: History) -> set[tuple[str, str]]:
    return {(note["subscription"], note["topic"]) for _, _, note in history.of("subscribe")}


def exclusive_consumers_get_order(run: Evidence) -> Iterator[str]:
    """What Exclusive and Failover consumers receive for the first time is in the log's order.

    Not judged once somebody asked for redelivery: what was under way then comes before it.
    """
    ordered: dict[tuple[int, int], tuple[str, str]] = {}
    redelivering: set[tuple[str, str]] = set()
    last: dict[tuple[str, str], tuple[int, ...]] = {}
    seen: set[tuple[str, str]] = set()
    for _, kind, note in run.history.of("subscribe", "redeliver", "received"):
        if kind == "subscribe":
            where = (note["subscription"], note["topic"])
            if note["kind"] != SHARED:
                ordered[note["connection"], note["consumer"]] = where
            continue
        if kind == "redeliver":
            asking = ordered.get((note["connection"], note["consumer"]))
            if asking is not None:
                redelivering.add(asking)
            continue
        where, content = (note["subscription"], note["topic"]), note["content"]
        if where not in ordered.values() or where in redelivering:
            continue
        if (note["subscription"], content) in seen:
            continue
        seen.add((note["subscription"], content))
        place = (note["ledger"], note["entry"], note["index"])
        before = last.get(where, (-1,))
        if place < before:
            yield f"{where[0]} got {content} at {place} for the first time after {before}"
        last[where] = place


def permits_are_kept(run: Evidence) -> Iterator[str]:
    """Nothing is delivered to a consumer that has no permits left."""
    permits: dict[tuple[int, int], int] = {}
    for time, kind, note in run.history.of("subscribe", "flow", "deliver"):
        consumer = (note["connection"], note["consumer"])
        if kind == "subscribe":
            permits[consumer] = 0
        elif kind == "flow":
            permits[consumer] = permits.get(consumer, 0) + note["permits"]
        else:
            if permits.get(consumer, 0) <= 0:
                yield f"{time} s: consumer {consumer} got an entry with {permits.get(consumer)}"
            permits[consumer] = permits.get(consumer, 0) - note["messages"]


def confirmed_acks_hold(run: Evidence) -> Iterator[str]:
    """What was acknowledged with a receipt isn't delivered to who subscribes afterwards.

    A seek makes void what was acknowledged before it ended.
    """
    sessions: dict[tuple[int, int], tuple[float, str, str]] = {}
    confirmed: dict[tuple[str, str, Place], float] = {}
    marks: dict[tuple[str, str], tuple[Place, float]] = {}
    seeking: dict[str, int] = defaultdict(int)
    sought: dict[str, float] = defaultdict(float)
    # A batch counts as acknowledged when one consumer has acknowledged all of it.
    parts: dict[tuple[str, str, Place, str, int], set[int]] = defaultdict(set)
    sizes = {
        (topic, place): len(contents)
        for topic, log in run.logs.items()
        for place, contents in log.items()
    }
    for time, kind, note in run.history.events:
        subscription = note.get("subscription", "")
        match kind:
            case "subscribe":
                session = (time, subscription, note["topic"])
                sessions[note["connection"], note["consumer"]] = session
            case "seek":
                seeking[subscription] += 1
                for known in (confirmed, marks, parts):
                    for key in [key for key in known if key[0] == subscription]:
                        del known[key]  # type: ignore[arg-type]
            case "sought":
                seeking[subscription] -= 1
                sought[subscription] = time
            case "acked" if not seeking[subscription] and note["began"] >= sought[subscription]:
                place = (note["ledger"], note["entry"])
                topic = note["topic"]
                if note["cumulative"]:
                    before = place if note["index"] < 0 else (place[0], place[1] - 1)
                    known_mark = marks.get((subscription, topic))
                    if known_mark is None or known_mark[0] < before:
                        marks[subscription, topic] = (before, time)
                    continue
                key = (subscription, topic, place)
                part = parts[*key, note["by"], note["life"]]
                part.add(note["index"])
                if note["index"] < 0 or len(part) == sizes.get((topic, place)):
                    confirmed.setdefault(key, time)
            case "deliver":
                began, subscription, topic = sessions[note["connection"], note["consumer"]]
                place = (note["ledger"], note["entry"])
                at = confirmed.get((subscription, topic, place))
                mark = marks.get((subscription, topic))
                if mark is not None and place <= mark[0]:
                    at = mark[1] if at is None else min(at, mark[1])
                if at is not None and at < began:
                    yield (
                        f"{subscription} acknowledged {place} of {topic} with a receipt at {at} s;"
                        f" it came again at {time} s to who subscribed at {began} s"
                    )


def nobody_is_sent_away(run: Evidence) -> Iterator[str]:
    """A client that does nothing wrong is never told that another one took its place."""
    for time, _, note in run.history.of("retry", "lost", "ack failed"):
        if note["error"].startswith("ProducerFenced"):
            yield f"{time} s: {note.get('what') or note.get('by')} was told: {note['error']}"


def _where(note: Mapping[str, Any]) -> str:
    return f"{note['topic']} {note['ledger']}:{note['entry']}:{note['index']}"


CHECKERS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    acknowledged_messages_are_stored,
    nothing_is_stored_twice,
    refused_messages_are_not_stored,
    producers_keep_their_order,
    everything_is_received,
    exclusive_consumers_get_order,
    permits_are_kept,
    confirmed_acks_hold,
    confirmed_parts_hold,
    redeliveries_are_counted,
    seeks_bring_everything_again,
    nobody_is_sent_away,
)


def judge(run: Evidence) -> list[str]:
    """Everything that the checkers have to say, a few lines of each."""
    faults = []
    for checker in CHECKERS:
        found = [f"{checker.__name__}: {fault}" for fault in checker(run)]
        faults += found[:3]
    return faults
