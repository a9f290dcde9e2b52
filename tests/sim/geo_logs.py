"""Contents of the disks of several clusters: logs with their origins, and acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.sim.attic import HistoryStore, SimDisk
from tests.sim.contents import contents_of
from tests.sim.geo_checkers import Stored
from tests.sim.stored import expected_journals, state_of
from velaray.actors.catalog.machine import SYSTEM_TENANT
from velaray.events.ids import ActorKey, ActorKind, Position
from velaray.journal.replay import replay
from velaray.wire.messages import split_entry
from velaray.wire.replication import (
    REPLICATOR_PREFIX,
    SOURCE_POSITION,
    parse_source_position,
)


@dataclass
class Seen:
    """What a cluster's disk holds: logs by topic partition, and by topic partition and durable
    subscription the messages that it has, and those that were trimmed away before it was made."""

    logs: dict[str, list[Stored]] = field(default_factory=dict)
    acked: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    missed: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _OnDisk:
    """The part of a cluster that is needed to find its journals."""

    disk: SimDisk


async def look(name: str, disk: SimDisk) -> Seen:
    """Everything that the users of a cluster have stored, also what was trimmed away."""
    seen, store = Seen(), HistoryStore(disk)
    stored = disk._journals
    names = sorted(
        journal for journal in await expected_journals(_OnDisk(disk)) if journal in stored
    )
    for key in map(ActorKey.parse, names):
        if key.kind is ActorKind.PARTITION and key.tenant != SYSTEM_TENANT:
            topic = str(key.topic_name)
            log = seen.logs[topic] = await _read_log(name, store, key)
            for known in (await state_of(store, key)).subscriptions.values():
                ref, where = known.ref, (topic, known.ref.name)
                mine = key.of_subscription(ref.name, ref.incarnation)
                if mine.text() in stored and not ref.name.startswith(REPLICATOR_PREFIX):
                    state = await state_of(store, mine)
                    acked = _acked(state, log) if state.created else ()
                    before = log[: ref.start_offset]
                    seen.acked[where] = frozenset(acked)
                    seen.missed[where] = frozenset(t for each in before for t in each.contents)
    return seen


async def _read_log(name: str, store: HistoryStore, key: ActorKey) -> list[Stored]:
    log = []
    async for record in replay(store, key.text()):
        if record.blob is not None and record.position is not None:
            place = (record.position.ledger_id, record.position.entry_id)
            origin, source = _origin_of(name, place, record.blob)
            log.append(Stored(place, tuple(contents_of(record.blob)), origin, source))
    return log


def _origin_of(own: str, place: tuple[int, int], blob: Any) -> tuple[str, tuple[int, int]]:
    metadata, _ = split_entry(blob)
    if not metadata.HasField("replicated_from"):
        return own, place
    (text,) = [pair.value for pair in metadata.properties if pair.key == SOURCE_POSITION]
    source = parse_source_position(text)
    return metadata.replicated_from, (source.ledger_id, source.entry_id)


def _acked(state: Any, log: list[Stored]) -> list[str]:
    """Messages that are acknowledged, or will be before delivery: that waits, as it came later."""
    acked = []
    for offset, stored in enumerate(log):
        left = 0 if state.cursor.is_acked(offset) else state.cursor.ack_set(offset)
        waits = state.remote.waiting.get(stored.origin)
        if waits is not None:
            heard = _waiting(waits, Position(*stored.source))
            left = heard if left is None else left if heard is None else left & heard
        if left is not None:
            acked += [text for at, text in enumerate(stored.contents) if not left >> at & 1]
    return acked


def _waiting(waits: Any, source: Position) -> int | None:
    """The rest of an entry once waiting progress is applied; None: all of it."""
    if source <= waits.passed:
        return None
    acked_ranges = waits.ledgers.get(source.ledger_id)
    if source <= waits.up_to or (acked_ranges is not None and source.entry_id in acked_ranges):
        return 0
    left: int | None = None if acked_ranges is None else acked_ranges.mask(source.entry_id)
    return left
