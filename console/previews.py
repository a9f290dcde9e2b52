"""Moves of a subscription's cursor: what each would change before it is confirmed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from velaray.admin.topic_reads import ID_AT_TIME
from velaray.client.admin.connection import parsed
from velaray.client.admin.errors import NotFound
from velaray.client.admin.paths import of_topic
from velaray.client.message_id import MessageId
from velaray.console.messages import Ledger, ledgers_of
from velaray.console.times import time_of
from velaray.console.visit import FormError, Visit
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids import Position

MOVES = ("seek", "skip", "expire", "undo")
_ENDS = {"earliest": MessageId.earliest, "latest": MessageId.latest}
_EVENT = "event:"


class Move(NamedTuple):
    """A move of a cursor. ``to`` is as the visitor wrote it: where, how many, how old, since when;
    "" for all or the last one."""

    topic: str
    name: str
    kind: str
    to: str


class Change(NamedTuple):
    """What a move would change in one partition. ``about`` is False where the numbers are exact."""

    partition: str
    again: int
    acknowledged: int
    about: bool
    text: str
    event: int | None = None


class Cursor(NamedTuple):
    """The cursor of a partition: the first unacknowledged offset, the end, and the acknowledged
    ranges after it; all of them if ``whole``."""

    acked_before: int
    end: int
    ranges: list[tuple[int, int]]
    whole: bool


def cursor_of(found: Mapping[str, Any]) -> Cursor:
    """The cursor of a described subscription."""
    ranges = [(each["first_offset"], each["end_offset"]) for each in found["first_holes"]]
    whole = found["holes"] == len(ranges)
    return Cursor(found["acked_before"], found["end_offset"], ranges, whole)


def moved(cursor: Cursor, target: int) -> tuple[int, int]:
    """How many entries a move to ``target`` would deliver again, and how many acknowledge."""
    again = max(cursor.acked_before - target, 0) + sum(
        max(end - max(first, target), 0) for first, end in cursor.ranges
    )
    before = max(target - cursor.acked_before, 0)
    acked = sum(max(min(end, target) - first, 0) for first, end in cursor.ranges)
    return again, before - acked


def offset_of(ledgers: list[Ledger], end: int, position: Position) -> int:
    """The offset of a position, or of the next kept entry, if the log ends before ``end``."""
    at = end - sum(ledger.entries for ledger in ledgers)
    for ledger in ledgers:
        if position.ledger_id < ledger.id:
            break
        if position.ledger_id == ledger.id:
            return at + min(max(position.entry_id, 0), ledger.entries)
        at += ledger.entries
    return at


async def _target(visit: Visit, partition: str, to: str, cursor: Cursor) -> int:
    """The offset that ``to`` names: an end of the log, a message id or a time."""
    ledgers = await ledgers_of(visit, partition)
    if to == "latest":
        return cursor.end
    if to == "earliest":
        return cursor.end - sum(ledger.entries for ledger in ledgers)
    if _is_id(to):
        return offset_of(ledgers, cursor.end, StoredId.parse(to).position)
    variables = {**of_topic(partition), "timestamp": time_of(to)}
    found = parsed(await visit.connection.send("GET", ID_AT_TIME.target(variables)))
    return offset_of(ledgers, cursor.end, Position(found["ledgerId"], found["entryId"]))


def _is_id(to: str) -> bool:
    """Whether a text is a message id, not a time: times have dashes or no colon."""
    return ":" in to and "-" not in to


def _age_s(move: Move) -> int:
    if not (move.to.isascii() and move.to.isdigit() and len(move.to) < 16):
        raise FormError(f"write an age in seconds, not {move.to[:40]!r}")
    return int(move.to)


def _count(move: Move) -> int | None:
    """The number of entries to skip; None for all. Raises `FormError`."""
    if not move.to:
        return None
    if not (move.to.isascii() and move.to.isdigit() and len(move.to) < 16):
        raise FormError(f"write a number of entries, not {move.to[:40]!r}")
    return int(move.to)


async def preview(visit: Visit, move: Move) -> list[Change]:
    """What a move would change, by partition. Raises `AdminError`, `FormError`,
    `InvalidMessageIdError`."""
    if move.kind == "undo":
        return await _preview_undo(visit, move)
    found = await visit.admin.subscriptions.describe(move.topic, move.name)
    if move.kind == "seek" and _is_id(move.to) and len(found) > 1:
        raise FormError("a message id belongs to one partition: open the partition's subscription")

    async def ask(partition: str, described: Mapping[str, Any]) -> Change:
        cursor = cursor_of(described)
        again, acknowledged = 0, described["backlog"]
        if move.kind == "skip":
            count = _count(move)
            acknowledged = acknowledged if count is None else min(count, acknowledged)
        elif move.kind == "expire":
            at = int((time.time() - _age_s(move)) * 1000)
            target = await _target(visit, partition, str(max(at, 0)), cursor)
            acknowledged = moved(cursor, target)[1]
        else:
            again, acknowledged = moved(cursor, await _target(visit, partition, move.to, cursor))
        return Change(partition, again, acknowledged, not cursor.whole, _told(described))

    return list(await asyncio.gather(*(ask(*each) for each in found.items())))


def _told(described: Mapping[str, Any]) -> str:
    return f"acknowledged up to {described['mark_delete']} now"


async def _preview_undo(visit: Visit, move: Move) -> list[Change]:
    since = time_of(move.to) if move.to else None
    plans = await visit.admin.subscriptions.undo(move.topic, move.name, time_ms=since, preview=True)
    return [
        Change(
            partition,
            plan["to_deliver_again"],
            plan["to_acknowledge"],
            False,
            "; ".join(f"undone: {each}" for each in plan["undone"]),
            plan["after_event"],
        )
        for partition, plan in plans.items()
    ]


async def apply(visit: Visit, move: Move) -> str:
    """Make a move; return what happened. Raises as `preview` does."""
    subscriptions = visit.admin.subscriptions
    if move.kind == "undo":
        return await _undo(visit, move)
    if move.kind == "skip":
        count = _count(move)
        await subscriptions.skip(move.topic, move.name, count)
        return "the whole backlog is skipped" if count is None else f"{count} entries are skipped"
    if move.kind == "expire":
        await subscriptions.expire(move.topic, move.name, _age_s(move))
        return f"messages older than {move.to} s are expired"
    to: MessageId | int
    if move.to in _ENDS:
        to = _ENDS[move.to]
    elif _is_id(move.to):
        to = MessageId.from_stored(StoredId.parse(move.to))
    else:
        to = time_of(move.to)
    await subscriptions.seek(move.topic, move.name, to)
    return f"the cursor is moved to {move.to}"


async def _undo(visit: Visit, move: Move) -> str:
    """Undo what was previewed: each partition to the event of its plan, so repetitions and later
    changes don't alter the outcome."""
    events = {
        name.removeprefix(_EVENT): visit.number(name)
        for name in visit.form
        if name.startswith(_EVENT)
    }
    if not events:
        raise FormError("there is nothing to undo")
    for partition, event in events.items():
        try:
            await visit.admin.subscriptions.undo(partition, move.name, event=event)
        except NotFound:
            continue  # it is undone already
    return f"{len(events)} partitions are as before"
