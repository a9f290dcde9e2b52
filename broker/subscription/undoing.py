"""Plans an undo: recomputes the former cursor from the subscription's journal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.actors.subscription.undoing import Restore, keep, move_of
from velaray.broker.history import PointInTime, state_at
from velaray.events.codec import decode
from velaray.events.ids import ActorKey
from velaray.journal.replay import load_manifest, replay
from velaray.journal.store import LedgerStore

SHOWN = 20
_EVENTS_AT_ONCE = 1000


class NothingMoved(Exception):
    """No command has moved the cursor since then, so there is nothing to undo."""


class Plan(NamedTuple):
    """The cursor as it is (``expected``) and as it would be; ``undone`` are the moves since."""

    after_event: int
    expected: Cursor
    restored: Cursor
    undone: list[str]

    def command(self, gone: Sequence[int], *, shared: bool = False) -> Restore:
        """The command that carries it out; ``gone`` are the trimmed entries (first, last + 1,
        first, ...)."""
        pairs = list(zip(gone[::2], gone[1::2], strict=True))
        reason = f"back to after event {self.after_event}"
        return Restore(self.expected, self.restored, pairs, reason, shared)

    def described(self) -> dict[str, Any]:
        """The plan by offset, for callers; ranges are (first, last + 1)."""
        now, then = self.expected, self.restored
        end = max(now.untouched_from(), then.untouched_from())
        again = _difference(then.unacked_ranges(0, end), now)
        acked = _difference(now.unacked_ranges(0, end), then)
        return {
            "after_event": self.after_event,
            "undone": self.undone,
            "acked_before": now.acked_before,
            "acked_before_then": then.acked_before,
            "to_deliver_again": sum(last - first for first, last in again),
            "to_acknowledge": sum(last - first for first, last in acked),
            "first_to_deliver_again": [list(part) for part in again[:SHOWN]],
            "first_to_acknowledge": [list(part) for part in acked[:SHOWN]],
        }


def _difference(unacked: list[Range], other: Cursor) -> list[Range]:
    """The part of ``unacked`` that is acknowledged in ``other``."""
    found = []
    for first, end in unacked:
        at = first
        for start, stop in other.unacked_ranges(first, end):
            if at < start:
                found.append((at, start))
            at = stop
        if at < end:
            found.append((at, end))
    return found


async def plan_undo(store: LedgerStore, key: ActorKey, point_in_time: PointInTime) -> Plan:
    """Plan an undo back to ``moment``, by default to before the last move by command.

    Reads what is durable. Raises `NothingMoved` if there is nothing to undo, `NoHistory` if
    the journal doesn't reach back that far, and what `state_at` raises.
    """
    if point_in_time == PointInTime():
        point_in_time = PointInTime(sequence=await _last_move(store, key) - 1)
    former = await state_at(store, key, point_in_time)
    live = (await state_at(store, key, PointInTime(sequence=former.sequence))).state
    restored, machine = former.state.cursor, SubscriptionMachine()
    undone, seen = [], 0
    async for record in replay(store, key.text(), await _ledger_from(store, key, former.sequence)):
        if record.sequence <= former.sequence:
            continue
        event = decode(bytes(record.event))
        if move := move_of(event):
            undone.append(move)
        keep(restored, live.cursor, event)
        machine.evolve(live, event)
        seen += 1
        if seen % _EVENTS_AT_ONCE == 0:
            await asyncio.sleep(0)  # let the subscription work meanwhile
    if not undone:
        raise NothingMoved("there was no seek, skip or requested expiry since then")
    return Plan(former.sequence, live.cursor, restored, undone)


async def _ledger_from(store: LedgerStore, key: ActorKey, sequence: int) -> int:
    """The ledger that holds the event after ``sequence``."""
    ledgers = (await load_manifest(store, key.text())).ledgers
    found = ledgers[0]
    for info in ledgers:
        if info.first_sequence <= sequence + 1:
            found = info
    return found.ledger_id


async def _last_move(store: LedgerStore, key: ActorKey) -> int:
    """The number of the newest event that is a move by command."""
    border: int | None = None
    for info in reversed((await load_manifest(store, key.text())).ledgers):
        last = None
        async for record in replay(store, key.text(), info.ledger_id):
            if border is not None and record.sequence >= border:
                break
            if move_of(decode(bytes(record.event))):
                last = record.sequence
        if last is not None:
            return last
        border = info.first_sequence
    raise NothingMoved("there is no seek, skip or requested expiry to undo")
