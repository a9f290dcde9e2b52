"""What must hold of redelivery counts over crashes; checkers as in `tests.sim.checkers`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.sim.moves import Moves

if TYPE_CHECKING:
    from tests.sim.checkers import Evidence


@dataclass
class _Session:
    """A consumer since its last subscribe."""

    where: tuple[str, str]
    began: float
    doubtful: bool = False  # its counts may be in memory only


@dataclass
class _Entries:
    """The deliveries and counts of a subscription of one partition."""

    # All that can have ended a delivery: sessions but the first, requests for redelivery, and
    # acknowledgements in transactions, which may abort.
    ends: int = -1
    doubtful: bool = False  # the dispatcher's counts are ahead of the durable ones
    seen: dict[tuple[int, int], list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def redelivery_counts_outlive_crashes(run: Evidence) -> Iterator[str]:
    """Crashes never lower a redelivery count at a client. No count is higher than the number of
    deliveries that can have ended.

    How counts grow is judged by `losses_are_counted`.

    It compares with deliveries before the consumer subscribed. It judges nothing while the
    subscription is moved, which makes counts begin anew. Counts that a full disk kept from being
    stored hold until the dispatcher ends.
    """
    moves = Moves(run.late_s())
    known: dict[tuple[str, str], _Entries] = defaultdict(_Entries)
    sessions: dict[tuple[int, int], _Session] = {}
    for time, kind, note in run.history.of(
        *("subscribe", "deliver", "redeliver", "seek", "sought"),
        *("uncounted", "opened", "ack in txn"),
    ):
        if kind in ("uncounted", "opened"):
            _doubt(note["subscription"], kind == "uncounted", known, sessions.values())
            continue
        if kind in ("seek", "sought"):
            moves.note(kind, note["subscription"], time)
            for where in [where for where in known if where[0] == note["subscription"]]:
                known[where].seen.clear()
            continue
        number = (note["connection"], note["consumer"])
        if kind == "subscribe":
            where = (note["subscription"], note["topic"])
            sessions[number] = _Session(where, time, doubtful=known[where].doubtful)
            known[where].ends += 1
        elif number not in sessions:
            continue
        elif kind in ("redeliver", "ack in txn"):
            known[sessions[number].where].ends += 1
        else:
            session = sessions[number]
            over = moves.over(session.where[0])
            yield from _delivered(time, note, session, known[session.where], over)


def _delivered(
    time: float, note: Mapping[str, Any], session: _Session, entries: _Entries, moved: float
) -> Iterator[str]:
    place, count = (note["ledger"], note["entry"]), note["redelivery"]
    what = f"{time} s: {session.where} got {place} counted {count} times"
    if count > max(entries.ends, 0):
        yield f"{what}, and only {entries.ends} deliveries may have ended"
    if session.began < moved:
        return
    for at, before in entries.seen[place]:
        if at < session.began and count < before:
            yield f"{what}, after {before} at {at} s"
    if not session.doubtful:
        entries.seen[place].append((time, count))


def _doubt(
    name: str,
    doubtful: bool,
    known: Mapping[tuple[str, str], _Entries],
    sessions: Iterable[_Session],
) -> None:
    """A dispatcher of the subscription left deliveries uncounted, or a new one began.

    A delivery that wasn't counted and ends in order lowers a count that a client got before.
    """
    for where, entries in known.items():
        if where[0] == name:
            entries.doubtful = doubtful
            if doubtful:
                entries.seen.clear()
    for session in sessions:
        if doubtful and session.where[0] == name:
            session.doubtful = True


def losses_are_counted(run: Evidence) -> Iterator[str]:
    """What a lost consumer can have been processing has a higher count in its next delivery.

    What that is follows from the consumer's permits and from losses of earlier consumers
    (decision 0027).
    """
    least: dict[tuple[int, int], int] = {}
    for time, kind, note in run.history.of("lost with", "again"):
        if kind == "lost with":
            for offset, count in _can_have_been_processed(note):
                least[note["counts"], offset] = count + 1
            continue
        needed = least.get((note["counts"], note["offset"]), 0)
        if note["count"] < needed:
            what = f"offset {note['offset']} (counts {note['counts']})"
            yield f"{time} s: {what} is counted {note['count']} times, not {needed}"


def _can_have_been_processed(note: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Offsets and counts of what a lost consumer can have been processing."""
    held = [(offset, count) for offset, count, _, _ in note["held"]]
    suspects = [(offset, count) for offset, count, _, losses in note["held"] if losses]
    worst = [(offset, count) for offset, count, _, losses in note["held"] if losses > 1]
    if suspects:
        return worst[:1] or suspects
    # So many messages at least are in the receiver queue, and were delivered last.
    queued = note["queue"] - note["queue"] // 2 - note["permits"]
    for _, _, messages, _ in reversed(note["held"][1:]):
        queued -= messages
        if queued < 0:
            break
        held.pop()
    return held
