"""Invariants of every run, judged from its history and from the stored data at the end.

Each checker returns the faults it found, as text. No checker depends on how a run was generated.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.sim.again import (
    confirmed_parts_hold,
    redeliveries_are_counted,
    seeks_redeliver_everything,
)
from tests.sim.counted import losses_are_counted, redelivery_counts_outlive_crashes
from tests.sim.dead_letter_checkers import (
    dead_lettered,
    dead_letters_are_moved_once,
    poison_becomes_a_dead_letter,
)
from tests.sim.history import History
from tests.sim.later import delayed_messages_are_not_early
from tests.sim.moved_back import moves_back_redeliver_acknowledged_messages
from tests.sim.moves import Moves

EXCLUSIVE, FAILOVER = 0, 2
"""The wire's numbers of those types of subscriptions."""

Place = tuple[int, int]
Place3 = tuple[int, int, int]
Log = Mapping[Place, list[str]]
"""A topic partition: the contents of each entry by (ledger, entry), in order of the log."""


@dataclass(frozen=True)
class Evidence:
    """A run that is over: its history, and the logs as a reader of the disk finds them.

    ``excused`` has, by subscription and topic, what it needn't have got; ``trimmed``, by topic,
    the places that were trimmed away; ``letters`` the dead-letter topics; ``hidden``, by topic, the
    places of what was aborted.
    """

    history: History
    logs: Mapping[str, Log]
    excused: Mapping[tuple[str, str], set[str]] = field(default_factory=dict)
    trimmed: Mapping[str, set[Place]] = field(default_factory=dict)
    letters: Mapping[str, Log] = field(default_factory=dict)
    hidden: Mapping[str, set[Place]] = field(default_factory=dict)

    def kept(self, topic: str) -> list[str]:
        """The messages of a topic that weren't trimmed away or aborted, in order."""
        gone = self.trimmed.get(topic, set()) | self.hidden.get(topic, set())
        log = self.logs.get(topic, {})
        return [text for place, found in log.items() if place not in gone for text in found]

    def sent(self) -> dict[str, float]:
        """When each message was sent."""
        return {note["content"]: time for time, _, note in self.history.of("send")}

    def late_s(self) -> float:
        """How long after its answer a request may be carried out once more.

        Requests are repeated over a new connection when theirs breaks; see `Network.sever`.
        """
        return 6.0 if self.history.of("severed") else 0.0

    def losses(self) -> dict[tuple[str, int], int]:
        """The first entry that a loss of power, or a sync that failed, may have taken back, by
        topic and ledger; only of relaxed partitions."""
        first: dict[tuple[str, int], int] = {}
        for _, _, note in self.history.of("may lose"):
            where = (note["topic"], note["ledger"])
            first[where] = max(note["entries"], first.get(where, 0))
        return first

    def horizons(self, *deeds: str) -> dict[tuple[str, str], float]:
        """When the last of an administrator's ``deeds`` was surely over, by topic and
        subscription; infinite if that isn't known."""
        over: dict[tuple[str, str], float] = {}
        for time, kind, note in self.history.of("admin", "admin done"):
            if note["what"] in deeds:
                known = kind == "admin done" and not note["doubtful"]
                where = (f"persistent://{note['topic']}", note["subscription"])
                if kind == "admin" or over[where] == math.inf:
                    over[where] = time + self.late_s() if known else math.inf
        return over


COMPACTED = "k0-s"
"""The subscription that reads compacted: it never gets what is superseded."""


def whole(topic: str) -> str:
    """The topic that a partition belongs to."""
    return topic.partition("-partition-")[0]


def acknowledged_messages_are_stored(run: Evidence) -> Iterator[str]:
    """A receipt means: the message is in the log, where the receipt says.

    A relaxed partition may lack unsynced messages after a power loss: then no other message is in
    their place.
    """
    losses = run.losses()
    struck = {topic for topic, _ in losses}
    everywhere = {
        content for log in run.logs.values() for found in log.values() for content in found
    }
    deleted, sent = run.horizons("delete topic"), run.sent()
    for _, _, receipt in run.history.of("receipt"):
        content = receipt["content"]
        if sent[content] <= deleted.get((whole(receipt["topic"]), ""), -1):
            continue  # what is published while its topic is deleted goes with it
        if receipt["ledger"] < 0 or receipt["ledger"] >= 1 << 63:  # it was there already
            if content not in everywhere and receipt["topic"] not in struck:
                yield f"{content} was acknowledged as a duplicate and isn't stored"
            continue
        where = (receipt["topic"], receipt["ledger"])
        entry = run.logs.get(receipt["topic"], {}).get((receipt["ledger"], receipt["entry"]), [])
        if not entry and receipt["entry"] >= losses.get(where, math.inf):
            continue
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
    """Messages of one producer are stored in the order in which it sent them; of one key, if
    its batches are of one key.
    """
    sent = {note["content"]: note for _, _, note in run.history.of("send")}
    for topic, log in run.logs.items():
        last: dict[tuple[str, str], int] = {}
        for contents in log.values():
            for content in contents:
                producer, _, number = content.rpartition(":")
                line = (producer, sent[content]["key"] if sent[content]["by_key"] else "")
                if int(number) <= last.get(line, 0):
                    yield f"{topic}: {content} is stored after number {last[line]}"
                last[line] = int(number)


def everything_is_received(run: Evidence) -> Iterator[str]:
    """Every stored message reached every subscription of its topic once at least.

    But for those that an administrator skipped: any that were sent before that was over.
    """
    skipped, sent = run.horizons("skip", "skip all"), run.sent()
    received = defaultdict(set)
    for _, _, note in run.history.of("received"):
        received[note["subscription"]].add(note["content"])
    deleted = _unsubscribed(run.history)
    for subscription, topic in sorted(_subscriptions(run.history)):
        if (subscription, topic) in deleted or subscription == COMPACTED:
            continue
        hidden, log = run.hidden.get(topic, set()), run.logs.get(topic, {})
        stored = [text for place, found in log.items() if place not in hidden for text in found]
        until = skipped.get((whole(topic), subscription), -1)
        missing = [
            content
            for content in stored
            if content not in received[subscription] and sent[content] > until
        ]
        excused = run.excused.get((subscription, topic), set())
        excused = excused | dead_lettered(run.letters, subscription, topic)
        missing = [content for content in missing if content not in excused]
        if missing:
            yield f"{subscription} never got {missing[:5]} ({len(missing)}) of {topic}"


def _unsubscribed(history: History) -> set[tuple[str, str]]:
    """Subscriptions, each with its topic, that a consumer deleted, or tried to, and that weren't
    created again. Of a partitioned topic, a consumer may create that of one partition again while
    it still deletes that of another."""
    known: set[tuple[str, str]] = set()
    deleted: set[tuple[str, str]] = set()
    for _, kind, note in history.of("seek", "subscribe"):
        if kind == "subscribe":
            known.add((note["subscription"], note["topic"]))
            deleted.discard((note["subscription"], note["topic"]))
        elif note["to"] == "nothing":
            deleted.update(pair for pair in known if pair[0] == note["subscription"])
    return deleted


def _subscriptions(history: History) -> set[tuple[str, str]]:
    notes = [note for _, _, note in history.of("subscribe") if note["durable"]]
    return {(note["subscription"], note["topic"]) for note in notes}


def _first_receptions(run: Evidence) -> Iterator[tuple[str, str, str, Place3]]:
    """Subscription, topic, message and place of messages that Exclusive and Failover consumers
    receive for the first time.

    Messages that an administrator may have skipped, and expired ones, are left out: they are
    delivered only if the subscription is moved back.
    """
    skipped, sent = run.horizons("skip", "skip all"), run.sent()
    expired = {
        (note["subscription"], note["topic"], content)
        for _, _, note in run.history.of("expired")
        for content in note["contents"]
    }
    ordered: dict[tuple[int, int], tuple[str, str]] = {}
    seen: set[tuple[str, str]] = set()
    for _, kind, note in run.history.of("subscribe", "received"):
        if kind == "subscribe":
            where = (note["subscription"], note["topic"])
            if note["kind"] in (EXCLUSIVE, FAILOVER):
                ordered[note["connection"], note["consumer"]] = where
            continue
        where, content = (note["subscription"], note["topic"]), note["content"]
        if where not in ordered.values() or (*where, content) in expired:
            continue
        until = skipped.get((whole(note["topic"]), note["subscription"]), -1)
        if (note["subscription"], content) not in seen and sent[content] > until:
            seen.add((note["subscription"], content))
            yield (*where, content, (note["ledger"], note["entry"], note["index"]))


def exclusive_consumers_get_order(run: Evidence) -> Iterator[str]:
    """What Exclusive and Failover consumers receive for the first time is in the log's order."""
    last: dict[tuple[str, str], Place3] = {}
    for subscription, topic, content, place in _first_receptions(run):
        before = last.get((subscription, topic), (-1, -1, -1))
        if place < before:
            yield f"{subscription} got {content} at {place} for the first time after {before}"
        last[subscription, topic] = place


def keys_keep_their_order(run: Evidence) -> Iterator[str]:
    """Messages of one key are in one partition, and reach consumers in the order of sending.

    One partition unless the topic grew; one producer's order; not consumers that share.
    """
    keys = {note["content"]: note["key"] for _, _, note in run.history.of("send")}
    grown = {note["topic"] for _, _, note in run.history.of("admin") if note["what"] == "grow"}
    homes: dict[tuple[str, str], str] = {}
    for topic, log in run.logs.items():
        if whole(topic).removeprefix("persistent://") in grown:
            continue
        for content in (content for found in log.values() for content in found if keys[content]):
            home = homes.setdefault((whole(topic), keys[content]), topic)
            if home != topic:
                yield f"{content} with key {keys[content]} is in {topic}, others in {home}"
    last: dict[tuple[str, str, str, str], int] = {}
    for subscription, topic, content, _ in _first_receptions(run):
        if not keys[content]:
            continue
        producer, _, number = content.rpartition(":")
        line = (subscription, topic, producer, keys[content])
        if int(number) <= last.get(line, 0):
            yield f"{subscription} got {content} of key {keys[content]} after {last[line]}"
        last[line] = int(number)


def readers_get_the_log(run: Evidence) -> Iterator[str]:
    """A reader reads the log from its beginning, in order, nothing left out, nothing twice.

    Its last life reads to the end.
    """
    struck = {topic for topic, _ in run.losses()}
    lives: dict[tuple[str, int], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for _, _, note in run.history.of("read"):
        lives[note["by"], note["life"]][note["topic"]].append(note["content"])
    newest = {name: max(life for by, life in lives if by == name) for name, _ in lives}
    for (name, life), topics in lives.items():
        for topic, contents in topics.items():
            log = run.kept(topic)
            if topic in run.trimmed:
                contents = [content for content in contents if content in log]
            if topic in struck:  # lost after reading, messages may be delivered elsewhere
                again = dict.fromkeys(content for content in reversed(contents) if content in log)
                contents = list(again)[::-1]
            wanted = log if life == newest[name] else log[: len(contents)]
            if contents != wanted:
                at = [a == b for a, b in zip(contents, wanted, strict=False)].count(True)
                yield (
                    f"life {life} of {name} read {len(contents)} of {len(wanted)} messages of "
                    f"{topic}; other than the log from about number {at} on"
                )


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
    """Messages acknowledged with a receipt aren't delivered to later subscribers.

    A seek or a deletion makes void what was acknowledged before it ended.
    """
    moves = Moves(run.late_s())
    sessions: dict[tuple[int, int], tuple[float, str, str]] = {}
    confirmed: dict[tuple[str, str, Place], float] = {}
    marks: dict[tuple[str, str], tuple[Place, float]] = {}
    # A batch counts as acknowledged when one consumer has acknowledged all of it since it came,
    # without subscribing in between: that discards its partial acknowledgements of batches.
    parts: dict[tuple[str, str, Place], dict[tuple[str, int], set[int]]] = {}
    subscribed: dict[tuple[str, str, str], list[float]] = defaultdict(list)
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
                subscribed[subscription, note["topic"], note["name"]].append(time)
            case "seek" | "sought":
                moves.note(kind, subscription, time)
                for known in (confirmed, marks, parts):
                    for key in [key for key in known if key[0] == subscription]:
                        del known[key]  # type: ignore[arg-type]
            case "acked" if note["began"] >= moves.over(subscription):
                place = (note["ledger"], note["entry"])
                topic = note["topic"]
                if note["cumulative"]:
                    before = place if note["index"] < 0 else (place[0], place[1] - 1)
                    known_mark = marks.get((subscription, topic))
                    if known_mark is None or known_mark[0] < before:
                        marks[subscription, topic] = (before, time)
                    continue
                key = (subscription, topic, place)
                times = subscribed[subscription, topic, note["by"]]
                line = (note["by"], bisect_left(times, note["began"]))
                part = parts.setdefault(key, {}).setdefault(line, set())
                part.add(note["index"])
                if note["index"] < 0 or len(part) == sizes.get((topic, place)):
                    confirmed.setdefault(key, time)
            case "deliver":
                began, subscription, topic = sessions[note["connection"], note["consumer"]]
                place = (note["ledger"], note["entry"])
                parts.pop((subscription, topic, place), None)
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
    """No client is disconnected in favour of another one, unless it did something wrong."""
    for time, _, note in run.history.of("retry", "lost", "ack failed"):
        if note["error"].startswith("ProducerFenced"):
            yield f"{time} s: {note.get('what') or note.get('by')} was told: {note['error']}"


def _where(note: Mapping[str, Any]) -> str:
    return f"{note['topic']} {note['ledger']}:{note['entry']}:{note['index']}"


Checker = Callable[[Evidence], Iterator[str]]

CHECKERS: tuple[Checker, ...] = (
    acknowledged_messages_are_stored,
    nothing_is_stored_twice,
    refused_messages_are_not_stored,
    producers_keep_their_order,
    everything_is_received,
    exclusive_consumers_get_order,
    keys_keep_their_order,
    readers_get_the_log,
    permits_are_kept,
    confirmed_acks_hold,
    confirmed_parts_hold,
    redeliveries_are_counted,
    seeks_redeliver_everything,
    moves_back_redeliver_acknowledged_messages,
    nobody_is_sent_away,
    delayed_messages_are_not_early,
    losses_are_counted,
    redelivery_counts_outlive_crashes,
    dead_letters_are_moved_once,
    poison_becomes_a_dead_letter,
)


def judge(run: Evidence, checkers: Iterable[Checker] = CHECKERS) -> list[str]:
    """Everything that the checkers have to say, a few lines of each."""
    faults = []
    for checker in checkers:
        found = [f"{checker.__name__}: {fault}" for fault in checker(run)]
        faults += found[:3]
    return faults
