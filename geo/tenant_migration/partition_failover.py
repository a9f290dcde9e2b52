"""Requests to a partition when the cluster that replicated to it is lost."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from velaray.actors.partition.origins import Origin
from velaray.actors.partition.state import PartitionState, SubscriptionRef
from velaray.actors.runtime import Runtime
from velaray.actors.sets.offset_sets import gaps
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.geo_replication import Handler
from velaray.broker.partition.visibility import Visibility
from velaray.broker.subscription.messages import GetUnacked
from velaray.events.ids import Position
from velaray.geo.tenant_migration import messages as m
from velaray.topology.fan_out import each
from velaray.topology.messages import Message, ReplyT, Request
from velaray.wire.messages import publish_time
from velaray.wire.replication import REPLICATOR_PREFIX

_AT_ONCE = 4
_LOOKED_AT = 10_000
"""The most unacknowledged entries in one request."""


class Subscriptions(Protocol):
    """What a failover needs of the table of subscriptions."""

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher, connected or not."""


class Log(Protocol):
    """What a failover needs of the partition's log."""

    visibility: Visibility

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...

    def kept_from(self, offset: int) -> int:
        """Return the first offset at or after ``offset`` that isn't trimmed away."""
        ...

    async def entry(self, offset: int) -> CachedEntry:
        """Read an entry."""
        ...


class Partition(Protocol):
    """What a failover needs of the partition."""

    topic: str
    runtime: Runtime[PartitionState]

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


class Progress(Protocol):
    """What a failover needs of the progress of other clusters' subscriptions."""

    def heard_ms(self, subscription: str, source: str) -> int | None:
        """Time of the last report from ``source``; None if there was none in this activation."""

    async def settle_at_rest(self, name: str, ref: SubscriptionRef) -> None:
        """Settle a subscription without consumers if entries arrived since the last time."""


async def failover_report(
    partition: Partition, progress: Progress, request: m.FailoverReport
) -> dict[str, Any]:
    """Answer `FailoverReport`."""
    cluster = request.cluster
    await settle_progress(partition, progress, m.SettleProgress())
    origin = await partition.runtime.read(lambda state: state.origins.by_cluster.get(cluster))
    names = await partition.runtime.read(
        lambda state: [
            name for name in sorted(state.subscriptions) if not name.startswith(REPLICATOR_PREFIX)
        ]
    )

    async def of(name: str) -> dict[str, Any]:
        entries, messages = await _deliverable(partition, name, origin)
        return {
            "subscription": name,
            "progress_ms": progress.heard_ms(name, cluster),
            "entries": entries,
            "messages": messages,
        }

    return {
        "topic": partition.topic,
        "newest": None if origin is None else _shown(origin.last),
        "newest_published_ms": None if origin is None else await _published(partition, origin),
        "subscriptions": await each(names, of, _AT_ONCE),
    }


async def settle_progress(
    partition: Partition, progress: Progress, request: m.SettleProgress
) -> None:
    """Answer `SettleProgress`."""
    found = await partition.runtime.read(lambda state: dict(state.subscriptions))
    for name, known in found.items():
        if not name.startswith(REPLICATOR_PREFIX):
            await progress.settle_at_rest(name, known.ref)


def _shown(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"


async def _published(partition: Partition, origin: Origin) -> int | None:
    """The publish time of the newest entry; None if it is trimmed."""
    if partition.log.kept_from(origin.last_offset) != origin.last_offset:
        return None
    return publish_time((await partition.log.entry(origin.last_offset)).data)


async def _deliverable(partition: Partition, name: str, origin: Origin | None) -> tuple[int, int]:
    """The number of unacknowledged entries of an origin, and of the messages in them. All messages
    of a partly acknowledged batch count."""
    entries = messages = first = 0
    end = partition.log.end_offset
    while origin is not None and first < end:
        flat = await partition.subscriptions.ask_subscription(
            name, GetUnacked(first, _LOOKED_AT, end)
        )
        for start, stop in zip(flat[::2], flat[1::2], strict=True):
            for run in origin.runs(start, stop):
                hidden = await partition.log.visibility.find_hidden(run.offset, run.end)
                for shown, behind in gaps(run.offset, run.end, hidden):
                    entries += behind - shown
                    for offset in range(shown, behind):
                        messages += (await partition.log.entry(offset)).messages
        looked_at = sum(flat[1::2]) - sum(flat[::2])
        first = flat[-1] if looked_at >= _LOOKED_AT else end
    return entries, messages


def handlers(partition: Partition, progress: Progress) -> dict[type[Message], Handler]:
    """The requests of a failover."""
    return {
        m.FailoverReport: partial(failover_report, partition, progress),
        m.SettleProgress: partial(settle_progress, partition, progress),
    }
