"""What must hold of redelivery counts over crashes; checkers as in `tests.sim.checkers`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.checkers import Evidence

EXCLUSIVE, FAILOVER = 0, 2
"""The wire's numbers of those types of subscriptions."""

_ORDERLY = ("passivate", "unload")


@dataclass
class _Session:
    """A consumer from its subscribing on."""

    where: tuple[str, str]
    began: float
    closed: bool = False
    doubtful: bool = False  # what it is told may be counted in memory alone


@dataclass
class _Entries:
    """What is known of one subscription of one topic partition."""

    # Sessions but one, requests for redelivery, acknowledgements in transactions, which may be
    # aborted: all that may have ended any delivery.
    ends: int = -1
    since: float = 0.0
    doubtful: bool = False  # the brain's counts are ahead of the durable ones
    aborts: bool = False  # which bring, in order, more again than was acknowledged
    seen: dict[tuple[int, int], list[tuple[float, int, _Session]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def _ends_in_order(run: Evidence) -> bool:
    """Whether anybody but clients may have ended deliveries in order."""
    faults = [note["fault"] for _, _, note in run.history.of("fault")]
    deeds = [note["what"] for _, _, note in run.history.of("admin")]
    return any(word in text for word in _ORDERLY for text in faults + deeds)


def redelivery_counts_outlive_crashes(run: Evidence) -> Iterator[str]:
    """A redelivery count that a client was told is never taken back, whatever crashes; and no more
    is counted than may have ended.

    It need not grow when a consumer is lost: only the entries that the consumer can have been
    processing count (decision 0027), and a history does not show which ones those were.

    Judged of who subscribed after the earlier delivery had come. A first delivery may be
    forgotten by a crash within moments of it. Not judged while the subscription is moved. What a
    brain tells after a full disk left deliveries uncounted holds until that brain ends.
    """
    late_s = run.late_s()
    known: dict[tuple[str, str], _Entries] = defaultdict(_Entries)
    sessions: dict[tuple[int, int], _Session] = {}
    kinds: dict[str, int] = {}
    for time, kind, note in run.history.of(
        *("subscribe", "deliver", "redeliver", "close consumer", "seek", "sought"),
        *("uncounted", "opened", "ack in txn"),
    ):
        if kind in ("uncounted", "opened"):
            _doubt(note["subscription"], kind == "uncounted", known, sessions.values())
            continue
        if kind in ("seek", "sought"):
            since = math.inf if kind == "seek" else time + late_s
            for where in [where for where in known if where[0] == note["subscription"]]:
                known[where].since = since
                known[where].seen.clear()
            continue
        number = (note["connection"], note["consumer"])
        if kind == "subscribe":
            where = (note["subscription"], note["topic"])
            kinds[where[0]] = note["kind"]
            sessions[number] = _Session(where, time, doubtful=known[where].doubtful)
            known[where].ends += 1
        elif number not in sessions:
            continue
        elif kind == "close consumer":
            sessions[number].closed = True
        elif kind in ("redeliver", "ack in txn"):
            entries = known[sessions[number].where]
            entries.ends += 1
            entries.aborts = entries.aborts or kind == "ack in txn"
        else:
            session = sessions[number]
            yield from _delivered(time, note, session, known[session.where])


def _delivered(
    time: float, note: Mapping[str, Any], session: _Session, entries: _Entries
) -> Iterator[str]:
    place, count = (note["ledger"], note["entry"]), note["redelivery"]
    what = f"{time} s: {session.where} got {place} counted {count} times"
    if count > max(entries.ends, 0):
        yield f"{what}, and only {entries.ends} deliveries may have ended"
    if session.began < entries.since:
        return
    for at, before, _ in entries.seen[place]:
        if at < session.began and count < before:
            yield f"{what}, after {before} at {at} s"
    if not session.doubtful:
        entries.seen[place].append((time, count, session))


def _doubt(
    name: str,
    doubtful: bool,
    known: Mapping[tuple[str, str], _Entries],
    sessions: Iterable[_Session],
) -> None:
    """A brain of the subscription left deliveries uncounted, or a new one began.

    What wasn't counted and comes back in order takes a count back that was told before.
    """
    for where, entries in known.items():
        if where[0] == name:
            entries.doubtful = doubtful
            if doubtful:
                entries.seen.clear()
    for session in sessions:
        if doubtful and session.where[0] == name:
            session.doubtful = True
