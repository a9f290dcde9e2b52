"""Apply the subscription progress of other clusters to this partition's subscriptions.

Replicators send progress beside the entries. The dispatcher acknowledges entries that are already
here at once. Progress for entries that haven't arrived waits in the subscription's state
(`velaray.actors.subscription.remote_progress`). A channel delivers an entry from another cluster
only after it is *settled*: the waiting progress for it was looked up and applied. A subscription
without a channel is settled soon after the entries arrive. If this activation doesn't know what
waits, it settles before the partition decides what may be trimmed.

A receipt means that all of the progress is durable. Progress that was in transit during a crash is
sent again. Applying it twice changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.machine import (
    StartAt,
)
from velaray.actors.partition.origins import NOWHERE
from velaray.actors.partition.state import PartitionState, SubscriptionRef
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.progress_translation import Here, here
from velaray.actors.subscription.remote_progress import Ahead
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import GetWaiting, TakeRemoteProgress
from velaray.broker.subscription.progress_form import (
    Part,
    ahead_from,
    all_ahead_to,
    read_part,
    to_args,
)
from velaray.events.ids import Position
from velaray.geo.replication.messages import ImportProgress
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import RemoteError
from velaray.topology.transient import TRANSIENT_OR_STORE

AT_ONCE = 4096
"""The most ranges, or parts of batches, in one call to a dispatcher."""

SETTLE_S = 0.1
"""The least interval between rounds that settle subscriptions without consumers."""


class Subscriptions(Protocol):
    """What remote progress needs of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher, connected or not."""

    async def create_subscription(
        self, name: str, start: StartAt | int, properties: dict[str, str]
    ) -> SubscriptionRef:
        """Create a durable subscription unless it exists."""


class Log(Protocol):
    """What remote progress needs of the partition's log."""

    @property
    def synced_offset(self) -> int:
        """The offset after the newest entry that survives a loss of power."""
        ...

    async def sync(self) -> None:
        """Return when all present entries survive a loss of power."""


class Partition(Protocol):
    """What remote progress needs of the partition."""

    config: ClusterConfig
    actor_system: ActorSystem
    runtime: Runtime[PartitionState]
    maintenance: Maintenance
    geo: GeoReplication

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the partition."""
        ...


class Ask(Protocol):
    """Sends a request to a subscription."""

    async def __call__(self, request: Request[ReplyT]) -> ReplyT:
        """Return the answer."""


class Settled(NamedTuple):
    """The origins whose progress still waits. Entries before the offset are settled."""

    waits: frozenset[str]
    before: int


class RemoteProgress:
    """Applies progress to the subscriptions of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._locks: weakref.WeakValueDictionary[int, asyncio.Lock] = weakref.WeakValueDictionary()
        # By subscription and origin: the end of the prefix that is applied or waits.
        self._up_to: dict[tuple[int, str], Position] = {}
        # By subscription: the origins that wait, and the last entries at the last settling.
        self._settled: dict[int, dict[str, Position]] = {}
        # By subscription name and cluster: the time of the last report.
        self._heard: dict[tuple[str, str], int] = {}
        # Subscriptions without consumers whose progress waits.
        self._resting: dict[str, SubscriptionRef] = {}
        self._settling: asyncio.Task[None] | None = None

    def _lock(self, ref: SubscriptionRef) -> asyncio.Lock:
        """Lock that keeps waiting progress from being dropped while more is added."""
        return self._locks.setdefault(ref.incarnation, asyncio.Lock())

    # -- progress from replicators -----------------------------------------------------

    async def take(self, source: str, raw: bytes) -> None:
        """Apply a part of the progress of a subscription of ``source``, durably.

        Creates the subscription at the earliest position if it doesn't exist. Raises `RemoteError`
        (INVALID for a malformed part), `Unreachable` and `TimeoutError`. After an error the part
        may have been applied; sending it again is safe.
        """
        part = read_part(source, raw)
        with self._partition.geo.fence.passing(ImportProgress):
            await self._take(source, part)
        self._heard[part.subscription, source] = self._partition.actor_system.clock_ms()

    def heard_ms(self, subscription: str, source: str) -> int | None:
        """Time of the last report from ``source``; None if there was none in this activation."""
        return self._heard.get((subscription, source))

    async def _take(self, source: str, part: Part) -> None:
        partition, name = self._partition, part.subscription
        channel = partition.subscriptions.channels.get(name)
        if channel is not None and not channel.durable:
            raise RemoteError(Reason.BUSY, f"a reader is connected as {name!r}")
        ref = await partition.subscriptions.create_subscription(
            name, StartAt.EARLIEST, part.properties
        )
        async with self._lock(ref):
            since = {origin: self._up_to_of(ref, origin) for origin in part.origins}
            channel = partition.subscriptions.channels.get(name)
            if channel is not None:
                channel.origins.may_wait(
                    part.origins
                )  # entries that arrive from now on weren't looked up
            own = partition.config.name
            look = functools.partial(_look, own=own, told=part.origins, since=since)
            found = await partition.runtime.read(look)
            waits = await self._tell(name, source, found, {}, self._asking(name))
            channel = partition.subscriptions.channels.get(name)
            if channel is not None:
                channel.origins.waits_for(waits)
            elif waits:
                self._resting[name] = ref
                self.came()  # perhaps after the look-up
            for origin, told in part.origins.items():
                self._up_to[ref.incarnation, origin] = max(since[origin], told.up_to)
            known = self._settled.get(ref.incarnation)
            if known is not None:
                known.update((origin, NOWHERE) for origin in waits - known.keys())

    def _up_to_of(self, ref: SubscriptionRef, origin: str) -> Position:
        return self._up_to.get((ref.incarnation, origin), NOWHERE)

    def _asking(self, name: str) -> Ask:
        async def ask(request: Request[ReplyT]) -> ReplyT:
            return await self._partition.subscriptions.ask_subscription(name, request)

        return ask

    async def _tell(
        self,
        name: str,
        cluster: str,
        found: tuple[Here, int],
        came: Mapping[str, Position],
        ask: Ask,
    ) -> frozenset[str]:
        """Have the subscription apply what was found; returns the origins with anything waiting."""
        partition, (progress, oldest) = self._partition, found
        if progress.last > partition.log.synced_offset:
            await partition.log.sync()  # a cursor is never ahead of the log
        waits: list[str] = []
        for page, last in _pages(progress):
            channel = partition.subscriptions.channels.get(name)
            if channel is not None:
                channel.delivery.acknowledging(page.last)
            passed = {origin: (at[0], at[1]) for origin, at in came.items()} if last else {}
            ranges, partial, counts = to_args(page.ranges, page.partial, page.counts)
            ahead = all_ahead_to(page.ahead)
            request = TakeRemoteProgress(
                cluster, page.end_offset, oldest, ranges, partial, counts, ahead, passed
            )
            waits = await ask(request)
        partition.maintenance.touched(name)
        return frozenset(waits)

    # -- entries that arrived -------------------------------------------------------

    async def settle_channel(self, channel: SubscriptionChannel) -> None:
        """Apply waiting progress to entries that arrived, and report it to the channel."""
        state = self._partition.runtime.state
        known = state.subscriptions.get(channel.name)
        if known is None:
            raise RemoteError(Reason.NOT_FOUND, f"no subscription {channel.name!r}")
        channel.origins.settled(*await self._settle(known.ref, channel.ask))

    def unread(self, name: str, waits: Collection[str] | None) -> None:
        """Note that a channel is closed while progress of these origins waits in its dispatcher
        (None: the origins are unknown)."""
        known = self._partition.runtime.state.subscriptions.get(name)
        if known is not None and (waits is None or waits):
            self._resting[name] = known.ref
            self.came()  # perhaps more than its consumers had asked for

    def came(self) -> None:
        """Note that replicated entries may have become durable."""
        if self._resting and (self._settling is None or self._settling.done()):
            self._settling = self._partition.spawn(self._settle_resting())

    async def _settle_resting(self) -> None:
        """Settle subscriptions without consumers until nothing waits."""
        while any(self._due(ref) for ref in self._resting.values()):
            for name, ref in list(self._resting.items()):
                if name in self._partition.subscriptions.channels:
                    del self._resting[name]  # the channel settles it
                    continue
                with contextlib.suppress(*TRANSIENT_OR_STORE):  # the next round does it
                    await self.settle_at_rest(name, ref)
                    if self._settled.get(ref.incarnation):
                        continue
                self._resting.pop(name, None)
            await asyncio.sleep(SETTLE_S)

    def _due(self, ref: SubscriptionRef) -> bool:
        """Whether entries arrived since the last settling, for which progress may wait."""
        came = self._partition.runtime.state.origins
        known = self._settled.get(ref.incarnation)
        if known is None:
            known = dict.fromkeys(came.by_cluster, NOWHERE)
        return any(came.last(origin) > before for origin, before in known.items())

    async def settle_at_rest(self, name: str, ref: SubscriptionRef) -> None:
        """Settle a subscription without consumers if entries arrived since the last time."""
        if self._due(ref):
            await self._settle(ref, self._asking(name))

    async def _settle(self, ref: SubscriptionRef, ask: Ask) -> Settled:
        runtime, own = self._partition.runtime, self._partition.config.name
        async with self._lock(ref):
            came, end = await runtime.read(_newest)
            newest = {name: (at[0], at[1]) for name, at in came.items()}
            due, waits = await ask(GetWaiting(newest))
            while due:
                for origin, (border, raw) in due.items():
                    look = functools.partial(_look, own=own, told={origin: ahead_from(raw)})
                    found = await runtime.read(look)
                    passed = {origin: Position(*border)}
                    await self._tell(ref.name, origin, found, passed, ask)
                due, waits = await ask(GetWaiting(newest))
            self._settled[ref.incarnation] = {name: came.get(name, NOWHERE) for name in waits}
            return Settled(frozenset(waits), end)


def _newest(state: PartitionState) -> tuple[dict[str, Position], int]:
    origins = state.origins.by_cluster.items()
    return {name: origin.last for name, origin in origins}, state.end_offset


def _look(
    state: PartitionState,
    own: str,
    told: Mapping[str, Ahead],
    since: Mapping[str, Position] | None = None,
) -> tuple[Here, int]:
    """The part of progress whose entries are here, and the first offset that it concerns."""
    return here(state, own, told, since), _oldest(state)


def _oldest(state: PartitionState) -> int:
    """The first offset that a subscription may deliver; compacted reads begin at 0."""
    return 0 if state.compactions.current is not None else state.first_offset


def _pages(found: Here) -> Iterator[tuple[Here, bool]]:
    """Split progress into bounded parts; the flag marks the last part, which has the entries
    that aren't here yet."""
    most = max(len(found.ranges), len(found.partial), len(found.counts), 1)
    for start in range(0, most, AT_ONCE):
        end = start + AT_ONCE
        page = Here(
            found.end_offset,
            found.ranges[start:end],
            found.partial[start:end],
            found.counts[start:end],
            found.ahead if end >= most else {},
        )
        yield page, end >= most
