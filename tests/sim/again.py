"""What must hold of everything that is delivered again; checkers as in `tests.sim.checkers`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.sim.moves import Moves

if TYPE_CHECKING:
    from tests.sim.checkers import Evidence

EXCLUSIVE, FAILOVER = 0, 2
"""The wire's numbers of those types of subscriptions."""


def redeliveries_are_counted(run: Evidence) -> Iterator[str]:
    """A redelivered message has a higher redelivery count than before.

    There are three exceptions. In Failover subscriptions, a consumer that becomes active again
    gets its former messages without a new count. Consumers that were subscribed during a move may
    get messages behind it before they are closed. In Exclusive subscriptions with
    acknowledgements in transactions, an abort redelivers everything to keep the order, and
    unacknowledged messages keep their count.
    """
    moves = Moves(run.late_s())
    where: dict[tuple[int, int], str] = {}
    counts: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
    exclusive: dict[tuple[int, int], str] = {}
    aborting: set[str] = set()
    kinds = ("subscribe", "deliver", "seek", "sought", "ack in txn")
    for time, kind, note in run.history.of(*kinds):
        name = note.get("subscription", "")
        if kind in ("seek", "sought"):
            moves.note(kind, name, time)
            counts = {key: known for key, known in counts.items() if where[key] != name}
            continue
        consumer = (note["connection"], note["consumer"])
        if kind == "subscribe":
            where[consumer] = name
            counts.pop(consumer, None)
            if note["kind"] == EXCLUSIVE:
                exclusive[consumer] = name
            judged = note["kind"] != FAILOVER and name not in aborting
            if judged and time >= moves.over(name):
                counts[consumer] = {}
        elif kind == "ack in txn":
            aborting.add(exclusive.get(consumer, ""))
            counts = {key: known for key, known in counts.items() if where[key] not in aborting}
        elif consumer in counts:
            place, count = (note["ledger"], note["entry"]), note["redelivery"]
            before = counts[consumer].get(place, -1)
            if count <= before:
                yield f"{time} s: consumer {consumer} got {place} again, counted {count} times"
            counts[consumer][place] = count


def confirmed_parts_hold(run: Evidence) -> Iterator[str]:
    """Messages of a batch that were acknowledged with a receipt aren't redelivered to later
    consumers, unless a seek moved back.
    """
    sessions: dict[tuple[int, int], tuple[float, tuple[str, str]]] = {}
    parts: dict[tuple[str, str], dict[tuple[int, int], list[tuple[float, int]]]] = {}
    moves = Moves(run.late_s())
    for time, kind, note in run.history.events:
        match kind:
            case "subscribe":
                where = (note["subscription"], note["topic"])
                sessions[note["connection"], note["consumer"]] = (time, where)
            case "seek" | "sought":
                moves.note(kind, note["subscription"], time)
                for where in [key for key in parts if key[0] == note["subscription"]]:
                    del parts[where]
            case "part durable":
                _, where = sessions[note["connection"], note["consumer"]]
                if note["began"] >= moves.over(where[0]):
                    places = parts.setdefault(where, {})
                    known = places.setdefault((note["ledger"], note["entry"]), [])
                    known.append((time, note["left"]))
            case "deliver":
                yield from _acknowledged_parts(time, note, sessions, parts)


def _acknowledged_parts(time: float, note: Any, sessions: Any, parts: Any) -> Iterator[str]:
    began, where = sessions[note["connection"], note["consumer"]]
    place = (note["ledger"], note["entry"])
    for at, left in parts.get(where, {}).get(place, ()):
        if at < began and note["open"] & ~left:
            yield (
                f"{where[0]} acknowledged {place} of {where[1]} but for {left:b} with a receipt "
                f"at {at} s; {note['open']:b} came at {time} s to who subscribed at {began} s"
            )
            return


def seeks_redeliver_everything(run: Evidence) -> Iterator[str]:
    """After the last seek of an Exclusive subscription, if it was to the beginning and
    succeeded, everything that is stored is received.

    Unless an administrator skipped some of it, or an earlier seek may have come late.
    """
    skipped = {name for _, name in run.horizons("skip", "skip all")}
    moves = Moves(run.late_s())
    kinds: dict[str, set[int]] = defaultdict(set)
    topics: dict[str, set[str]] = defaultdict(set)
    began: dict[str, tuple[str, float]] = {}
    ended: dict[str, bool] = {}
    received: dict[str, set[str]] = defaultdict(set)
    events = run.history.events
    for at, (time, kind, note) in enumerate(events):
        name = note.get("subscription", "")
        match kind:
            case "subscribe":
                kinds[name].add(note["kind"])
                topics[name].add(note["topic"])
            case "seek":
                late = time < moves.over(name)
                began[name] = (note["to"] if not late else "two places", time)
                moves.note(kind, name, time)
                ended[name] = False
                received[name].clear()
            case "sought":
                moves.note(kind, name, time)
                # An error is noted before anything else can happen.
                ended[name] = events[at + 1][1] != "lost" if at + 1 < len(events) else False
            case "received":
                received[name].add(note["content"])
    for name, (to, time) in sorted(began.items()):
        if name in skipped or kinds[name] != {EXCLUSIVE} or to != "earliest" or not ended[name]:
            continue
        for topic in sorted(topics[name]):
            excused = run.excused.get((name, topic), set())
            stored = [content for content in run.kept(topic) if content not in excused]
            missing = [content for content in stored if content not in received[name]]
            if missing:
                yield f"{name} went back to the beginning at {time} s and never got {missing[:5]}"
