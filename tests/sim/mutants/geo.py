"""Bugs between clusters: of replication, and of replicated progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.sim.mutants.mutant import Mutant
from velaray.actors.machine import Decision
from velaray.actors.partition import machine as partition
from velaray.actors.partition.machine import Duplicate, PartitionMachine
from velaray.actors.partition.origins import NOWHERE, Origin, Origins
from velaray.actors.subscription import machine as subscription
from velaray.actors.subscription import progress_translation
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.remote_progress import Ahead, TakenProgress
from velaray.broker.partition.channel.origins import UnsettledOrigins
from velaray.broker.subscription import progress_exporter
from velaray.events.ids import LEDGER_INDEX_BITS, NUMBER_BITS, Position
from velaray.geo.replication import remote_progress, replicator_ends, replicator_sender
from velaray.geo.replication.progress_export import Places
from velaray.geo.replication.remote_progress import RemoteProgress
from velaray.geo.replication.replication_window import Window
from velaray.geo.replication.replicator_progress import Progress
from velaray.wire.messages import open_entry
from velaray.wire.stamping import PassedOver

CLUSTER_BITS = LEDGER_INDEX_BITS + NUMBER_BITS
"""The number of low bits of a ledger's id; the cluster's number is above them."""

# -- entries ---------------------------------------------------------------------------


def _by_the_first_producer(original: Any) -> Any:
    def publish(state: Any, command: Any, now_ms: int) -> Any:
        if command.replicated is not None:
            known = state.producers.get(command.producer)
            if known is not None and command.sequence_id <= known.last_sequence_id:
                return Decision(reply=Duplicate(command.sequence_id))
        return original(state, command, now_ms)

    return publish


def _one_too_late(original: Any) -> Any:
    def last(self: Origins, cluster: str) -> Position:
        ledger_id, entry_id = original(self, cluster)
        return Position(ledger_id, entry_id - 1) if entry_id > 0 else NOWHERE

    return last


def _without_origins(original: Any) -> Any:
    def restore(self: PartitionMachine, segments: Any) -> Any:
        state = original(self, segments)
        state.origins.by_cluster.clear()
        return state

    return restore


def _forward(original: Any) -> Any:
    def judge(entry: bytes, *how: Any, **more: Any) -> Any:
        judged = original(entry, *how, **more)
        return open_entry(entry) if judged is PassedOver.FOREIGN else judged

    return judge


def _done_when_sent(original: Any) -> Any:
    def sent(self: Window) -> None:
        self._unsent[0].done = True
        original(self)

    return sent


def _stamp_the_next(original: Any) -> Any:
    def stamped(*entry: Any) -> Any:
        *judged, position, transaction, version = entry
        later = Position(position.ledger_id, position.entry_id + 1)
        return original(*judged, later, transaction, version)

    return stamped


def _to_everybody(original: Any) -> Any:
    def judge(entry: bytes, *how: Any, **more: Any) -> Any:
        judged = original(entry, *how, **more)
        return open_entry(entry) if judged is PassedOver.ELSEWHERE else judged

    return judge


# -- progress --------------------------------------------------------------------------


def _never_settled(original: Any) -> Any:
    def first_unsettled(self: UnsettledOrigins, first: int, end: int) -> int:
        return end

    return first_unsettled


def _nothing_waits(original: Any) -> Any:
    def restore(segments: Any) -> TakenProgress:
        found: TakenProgress = original(segments)
        found.waiting.clear()
        return found

    return restore


def _one_too_many(original: Any) -> Any:
    def own_within(state: Any, ledger_id: int, first: int, end: int) -> Any:
        return original(state, ledger_id, first, end + 1)

    return own_within


def _range_too_long(original: Any) -> Any:
    def offsets(self: Origin, first: Position, last: Position) -> Any:
        return original(self, first, Position(last.ledger_id, last.entry_id + 1))

    return offsets


def _as_own_positions(original: Any) -> Any:
    """Every position counts as one of the own cluster, in the ledger of the same low bits."""

    def here(state: Any, own: str, told: Any, since: Any = None) -> Any:
        own_bits = state.table.ledgers()[0][0] >> CLUSTER_BITS << CLUSTER_BITS

        def moved(entry: Any) -> Any:
            ledger_id = entry.ledger_id & (1 << CLUSTER_BITS) - 1 | own_bits
            return entry._replace(ledger_id=ledger_id)

        for origin, ahead in list(told.items()):
            if origin != own:
                ranges = tuple(moved(each) for each in ahead.ranges)
                mine = told.get(own, Ahead())
                told = {**told, own: replace(mine, ranges=(*mine.ranges, *ranges))}
        return original(state, own, told, since)

    return here


def _without_acked_ranges(original: Any) -> Any:
    def window(*arguments: Any) -> Any:
        found = original(*arguments)
        ranges = found.ranges
        return found._replace(ranges=[(ranges[0][0], ranges[-1][1])] if ranges else [])

    return window


def _parts_for_wholes(original: Any) -> Any:
    def window(*arguments: Any) -> Any:
        found = original(*arguments)
        whole = [(offset, offset + 1) for offset, _ in found.partial]
        return found._replace(ranges=sorted([*found.ranges, *whole]), partial=[])

    return window


def _without_parts(original: Any) -> Any:
    def window(*arguments: Any) -> Any:
        return original(*arguments)._replace(partial=[])

    return window


def _new_every_time(original: Any) -> Any:
    def news(remote: TakenProgress, command: Any) -> Any:
        return original(replace(remote, taken=Cursor()), command)

    return news


def _up_to_the_mark_of_all(original: Any) -> Any:
    def up_to(self: Places, mark: int) -> Any:
        return original(self, mark) | {
            cluster: origin.last_before(mark)
            for cluster, origin in self._origins.items()
            if origin.last_before(mark) >= (0, 0)
        }

    return up_to


def _told_when_asked(original: Any) -> Any:
    async def bring(self: Progress, name: str, export: Any, send: Any) -> Any:
        followed = self._followed[name]
        revision = followed.revision

        async def exported(name: str, token: Any) -> Any:
            found = await export(name, token)
            followed.token = found["token"]
            return found

        error = await original(self, name, exported, send)
        if error is not None:
            followed.confirmed, followed.begun = revision, True
        return error

    return bring


def _taken_when_it_comes(original: Any) -> Any:
    async def take(self: RemoteProgress, source: str, raw: bytes) -> None:
        taking = self._partition.spawn(original(self, source, raw))
        taking.add_done_callback(lambda done: done.cancelled() or done.exception())

    return take


def _mutant(what: str, owner: Any, name: str, change: Callable[[Any], Any], within: int) -> Mutant:
    return Mutant(what, ((owner, name, change),), within, geo=True)


MUTANTS: dict[str, Mutant] = {
    "deduplicate-by-the-first-producer": _mutant(
        "a replicated entry is a duplicate if its producer's name had its sequence id here",
        *(partition, "_publish", _by_the_first_producer, 50),
    ),
    "store-the-newest-entry-twice": _mutant(
        "the newest entry of another cluster isn't recognized as a duplicate",
        *(Origins, "last", _one_too_late, 50),
    ),
    "lose-origins-on-recovery": _mutant(
        "a recovered partition has no origins of its entries",
        *(PartitionMachine, "restore", _without_origins, 20),
    ),
    "forward-replicated-entries": _mutant(
        "a replicator forwards entries of other clusters",
        *(replicator_ends, "judge", _forward, 20),
    ),
    "acknowledge-entries-under-way": _mutant(
        "a replicator acknowledges entries before the other cluster has them",
        *(Window, "sent", _done_when_sent, 50),
    ),
    "stamp-the-next-position": _mutant(
        "an entry has the source position of the next one",
        *(replicator_sender, "stamped", _stamp_the_next, 20),
    ),
    "replicate-local-messages": _mutant(
        "a replicator sends messages that are for its own cluster only",
        *(replicator_ends, "judge", _to_everybody, 50),
    ),
    "drop-waiting-progress": _mutant(
        "messages that arrive after their acknowledgement are delivered",
        *(UnsettledOrigins, "first_unsettled", _never_settled, 300),
    ),
    "lose-waiting-progress": _mutant(
        "a recovered subscription has no progress for messages that haven't arrived",
        *(subscription.remote_progress, "restore", _nothing_waits, 100),
    ),
    "apply-one-too-many": _mutant(
        "of another cluster's messages, the entry behind a range is acknowledged as well",
        *(Origin, "offsets", _range_too_long, 50),
    ),
    "apply-one-too-many-of-the-own": _mutant(
        "of the cluster's own messages, the entry behind the range is acknowledged as well",
        *(progress_translation, "_own_within", _one_too_many, 100),
    ),
    "confuse-remote-and-own-positions": _mutant(
        "another cluster's positions count as positions in the own ledgers",
        *(remote_progress, "here", _as_own_positions, 100),
    ),
    "report-gaps-as-acknowledged": _mutant(
        "progress reports the first and the last acknowledged entry beyond the mark as one range",
        *(progress_exporter, "window", _without_acked_ranges, 50),
    ),
    "report-parts-of-batches-as-whole": _mutant(
        "a partly acknowledged batch is reported as a whole",
        *(progress_exporter, "window", _parts_for_wholes, 100),
    ),
    "report-no-parts-of-batches": _mutant(
        "ack sets of batches aren't reported",
        *(progress_exporter, "window", _without_parts, 100),
    ),
    "apply-again": _mutant(
        "repeated progress acknowledges messages again that a client moved back",
        *(subscription.remote_progress, "news", _new_every_time, 300),
    ),
    "report-marks-of-others": _mutant(
        "progress reports all messages of another cluster as acknowledged, also local ones",
        *(Places, "up_to", _up_to_the_mark_of_all, 100),
    ),
    "report-nothing-twice": _mutant(
        "progress that didn't arrive isn't sent again",
        *(Progress, "_bring", _told_when_asked, 100),
    ),
    "confirm-progress-early": _mutant(
        "progress is confirmed before it is durable",
        *(RemoteProgress, "take", _taken_when_it_comes, 300),
    ),
}
