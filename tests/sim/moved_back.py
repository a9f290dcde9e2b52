"""Invariants of moves of a subscription to its beginning, by a client or an administrator.

Checkers as in `tests.sim.checkers`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.sim.moves import Moves

if TYPE_CHECKING:
    from tests.sim.checkers import Evidence

Entry = tuple[str, int, int]
"""Topic, ledger and entry."""


_CLOSED_S = 5.0
"""The time within which a consumer notices that it was closed; connections may be slow."""


@dataclass
class _Move:
    """The last move of a subscription: when it was asked for and when that was answered; whether
    no other one was under way meanwhile; whether it went to the beginning, and nothing else is
    known to have happened."""

    began: float
    alone: bool
    ended: float = math.inf
    back: bool = False


@dataclass(frozen=True)
class _Ack:
    """An acknowledgement: its consumer, when it began and when it was confirmed, and whether its
    message was delivered after the move."""

    by: str
    index: int
    began: float
    confirmed: float
    fresh: bool


def _last_moves(run: Evidence) -> dict[str, _Move]:
    """The last moves by subscription, of subscriptions that skipped no messages."""
    moves: dict[str, _Move] = {}
    # An answer doesn't name its move: overlapping moves can't be distinguished.
    known = Moves(run.late_s())
    events = run.history.events
    for at, (time, kind, note) in enumerate(events):
        if kind == "seek":
            name = note["subscription"]
            alone = time >= known.over(name)
            known.note(kind, name, time)
            moves[name] = _Move(time, alone, back=note["to"] == "earliest")
        elif kind == "sought":
            name = note["subscription"]
            known.note(kind, name, time)
            move = moves[name]
            move.ended = time
            if "by" in note:
                # An error is noted before anything else can happen.
                move.back = move.back and events[at + 1 : at + 2][0][1] != "lost"
            else:
                move.back = note["reset"]
    for _, name in run.horizons("skip", "skip all"):
        moves.pop(name, None)
    return moves


class _Subscription:
    """What happened in one subscription, around its last move."""

    def __init__(self, run: Evidence, name: str, move: _Move) -> None:
        self.acks: dict[Entry, list[_Ack]] = defaultdict(list)
        self.contents: dict[tuple[Entry, int], str] = {}
        self.again: set[str] = set()
        self._move = move
        self._subscribed: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._received: dict[tuple[str, Entry, int], float] = {}
        self._confirmed = {
            (note["by"], note["began"], _entry(note), note["index"]): time
            for time, _, note in run.history.of("acked")
        }
        self._cumulative: list[tuple[Entry, _Ack]] = []
        self._asked: list[_Ack] = []  # with a receipt
        for time, kind, note in run.history.of("subscribe", "received", "acknowledging"):
            if note["subscription"] == name:
                self._take(time, kind, note)
        for (topic, *until), ack in self._cumulative:
            for (where, *place), acks in self.acks.items():
                if where == topic and place < until:
                    acks.append(replace(ack, index=-2))

    def _take(self, time: float, kind: str, note: dict[str, Any]) -> None:
        if kind == "subscribe":
            self._subscribed[note["name"], note["topic"]].append(time)
            return
        entry, index, by = _entry(note), note["index"], note["by"]
        if kind == "received":
            self._received[by, entry, index] = time
            self.contents[entry, index] = note["content"]
            if time >= self._move.began:
                self.again.add(note["content"])
            return
        came = self._received[by, entry, index]
        fresh = self._fresh(self._subscribed[by, entry[0]], came)
        done = self._confirmed.get((by, time, entry, index), math.inf)
        ack = _Ack(by, index, time, done, fresh)
        self.acks[entry].append(ack)
        if note["receipt"]:
            self._asked.append(ack)
        if note["cumulative"]:
            self._cumulative.append((entry, ack))

    def _fresh(self, subscribed: list[float], came: float) -> bool:
        """Whether what came then was delivered after the move, which closes every consumer."""
        move = self._move
        after = [at for at in subscribed if at > move.ended]
        during = [at for at in subscribed if move.began < at <= move.ended]
        if during and not (after and after[0] < move.ended + _CLOSED_S):
            after.append(during[-1])
        return any(at <= came for at in after)

    def acknowledged_before(self, limit: float) -> Iterator[str]:
        """The messages whose acknowledgements were confirmed before, in entries without an
        acknowledgement that may have been under way at the move."""
        # A request for a receipt sends all unconfirmed acknowledgements, and repeats them until
        # they are confirmed.
        late = [ack for ack in self._asked if not ack.fresh and ack.confirmed >= limit]
        for entry, acks in self.acks.items():
            if all(ack.fresh or _settled(ack, limit, late) for ack in acks):
                for index in sorted({ack.index for ack in acks if not ack.fresh} - {-2}):
                    yield self.contents[entry, index]


def _settled(ack: _Ack, limit: float, late: list[_Ack]) -> bool:
    """Whether it was confirmed before, and wasn't sent again with any of the ``late`` ones."""
    return ack.confirmed < limit and not any(
        other.by == ack.by and ack.began <= other.began < ack.confirmed for other in late
    )


def _entry(note: dict[str, Any]) -> Entry:
    return (note["topic"], note["ledger"], note["entry"])


def moves_back_redeliver_acknowledged_messages(run: Evidence) -> Iterator[str]:
    """A last move to the beginning redelivers every message that was acknowledged with
    confirmation before it. This holds for subscriptions of any type, moves by consumers and
    administrators, and batches that were acknowledged as a whole or in part.

    Acknowledgements during the move may count after it.
    """
    for name, move in sorted(_last_moves(run).items()):
        if not (move.back and move.alone) or move.ended > move.began + 1:
            continue  # or it was asked for more than once
        seen = _Subscription(run, name, move)
        kept = {
            content
            for topic in {entry[0] for entry in seen.acks}
            for content in run.kept(topic)
            if content not in run.excused.get((name, topic), set())
        }
        before = seen.acknowledged_before(move.began - run.late_s())
        missing = [content for content in before if content in kept - seen.again]
        if missing:
            yield (
                f"{name} was moved to its beginning at {move.began} s and never got {missing[:5]}"
                " again, which were acknowledged before"
            )
