"""What a partition does by itself, at intervals: expire, evict, hold back, trim.

One round: ask the durable subscriptions what they have; move those whose messages are too old (time
to live) or whose backlog is too big (quota, eviction); hold producers back or let them in again
(quota); delete subscriptions that are unused for long; drop ledgers that aren't needed
(`velaray.actors.partition.trimming`). Every step is a decision of a machine, journaled; a round
that fails half-way is made good by the next one.

A cursor that moves back may need ledgers that its subscription had passed when it was asked. So
every move is announced (`Maintenance.moving`). Ledgers are dropped only if no cursor moved since
its subscription was asked, and no cursor moves before that is decided.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.partition.machine import (
    DeleteSubscription,
)
from velaray.actors.partition.state import PartitionState, Subscription
from velaray.actors.partition.trimming import (
    ClosedLedger,
    Consumed,
    NoteActivity,
    Trim,
    is_out_of_retention,
)
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.expiry import ExpiryReason
from velaray.broker.partition import backlog
from velaray.broker.partition.backlog import Backlog
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import ExpireEntries, GetHoldings
from velaray.broker.topic_policies import Quota, TopicPolicies
from velaray.journal.errors import StorageFull
from velaray.journal.manifest import LedgerInfo
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import RemoteError
from velaray.topology.transient import TRANSIENT
from velaray.wire.replication import REPLICATOR_PREFIX

EVICT_TO = 0.9
"""An eviction goes on until the backlog is this part of its limit, as in Pulsar."""
_TRANSIENT = (*TRANSIENT, StorageFull, NoSuchEntryError)
_EVICTION = "consumer_backlog_eviction"
_HOLD = "producer_request_hold"


class Holdings:
    """What a durable subscription has, and how often its cursor had been moved till then."""

    def __init__(self, known: Subscription, mark: int, ledgers: frozenset[int], moves: int) -> None:
        self.known = known
        self.mark = mark
        self.ledgers = ledgers
        self.moves = moves


class Session(Protocol):
    """What maintenance needs of a client's connection."""

    def close_producers(self) -> None:
        """Close all its producers."""


class Partition(Protocol):
    """What maintenance needs of its partition besides the log."""

    topic: str
    config: ClusterConfig
    actor_system: ActorSystem
    policies: TopicPolicies
    runtime: Runtime[PartitionState]
    geo: GeoReplication

    @property
    def sessions(self) -> Collection[Session]:
        """The connections of clients."""
        ...


class Log(backlog.Log, Protocol):
    """What maintenance needs of the partition's log."""

    backlog: Backlog

    async def sync(self) -> None:
        """Return when all present entries survive a loss of power."""


class Subscriptions(Protocol):
    """What maintenance needs of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher."""

    def tell_trimmed(self) -> None:
        """Drop trimmed entries from all channels."""


class Deletion(Protocol):
    """Deletes subscriptions."""

    async def delete_subscription(self, command: DeleteSubscription) -> None:
        """Delete a durable subscription."""


class Maintenance:
    """The rounds of one partition."""

    def __init__(
        self, partition: Partition, log: Log, subscriptions: Subscriptions, deletion: Deletion
    ) -> None:
        self._partition = partition
        self._log = log
        self._subscriptions = subscriptions
        self._deletion = deletion
        #: How much there is to read.
        self.backlog = log.backlog
        self._moving: Counter[str] = Counter()
        self._moves: Counter[str] = Counter()
        self._trimming = asyncio.Lock()
        # Of subscriptions without consumers nothing changes, but by `touched`.
        self._at_rest: dict[str, tuple[tuple[int, ...], Holdings]] = {}
        #: Why producers are held back, if they are.
        self.held_back: Reason | None = None

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(self._partition.config.maintenance_s)
            with suppress(*_TRANSIENT):
                await self.once()

    async def once(self) -> None:
        """One round. Raises what keeps it from being finished; another one will do."""
        policies = self._partition.policies
        if not self._is_due():
            self._hold_back(None)
            return
        held = await self._ask_subscriptions()
        if policies.ttl_ms:
            await self._expire(held, policies.ttl_ms, ExpiryReason.TTL)
        await self._keep_quotas(held)
        if policies.expiry_ms:
            await self._delete_unused(held)
        await self._trim(held)

    def _is_due(self) -> bool:
        """Whether the subscriptions' progress matters at all: asking them wakes them up."""
        policies = self._partition.policies
        counts = (policies.ttl_ms, policies.size_quota, policies.age_quota, policies.expiry_ms)
        return any(counts) or any(self._out_of_retention())

    # -- cursors -------------------------------------------------------------------

    @asynccontextmanager
    async def moving(self, name: str) -> AsyncIterator[None]:
        """To be held by who moves a cursor, perhaps back, before it looks what is trimmed."""
        self._moving[name] += 1
        self.touched(name)
        try:
            async with self._trimming:
                pass  # what was being decided is seen from now on
            yield
        finally:
            self.touched(name)  # who was asked meanwhile may have answered before it moved
            self._moving[name] -= 1

    def touched(self, name: str) -> None:
        """What is known of a subscription is out of date."""
        self._moves[name] += 1

    async def _ask_subscriptions(self) -> dict[str, Holdings]:
        partition = self._partition
        named = await partition.runtime.read(lambda state: list(state.subscriptions.items()))
        return {name: await self._ask(name, known) for name, known in named}

    async def _ask(self, name: str, known: Subscription) -> Holdings:
        partition = self._partition
        table, moves = partition.runtime.state.table, self._moves[name]
        spans = [table.span(ledger.ledger_id) for ledger in self._closed()]
        flat = tuple(at for span in spans if span.end for at in span[1:])
        before = self._at_rest.get(name)
        if before is not None and name not in self._subscriptions.channels:
            key, held = before
            same = held.known.ref == known.ref and held.moves == moves
            if same and (key == flat or held.mark >= max(flat, default=0)):
                return held
        at_rest = name not in self._subscriptions.channels
        if at_rest:
            await partition.geo.progress.settle_at_rest(name, known.ref)
            moves = self._moves[name]
        mark, numbers = await self._subscriptions.ask_subscription(name, GetHoldings(list(flat)))
        ids = [span.ledger_id for span in spans if span.end]
        held = Holdings(known, mark, frozenset(ids[number] for number in numbers), moves)
        if at_rest and moves == self._moves[name]:
            self._at_rest[name] = (flat, held)
        return held

    async def _move_on(self, name: str, held: Holdings, until: int, reason: ExpiryReason) -> None:
        """Have a subscription take everything before ``until`` for acknowledged."""
        if held.mark < until:
            await self._log.sync()
            request = ExpireEntries(self._log.end_offset, [held.mark, until], reason)
            held.mark = await self._subscriptions.ask_subscription(name, request)
            self.touched(name)
            held.moves += 1  # but if it was moved back meanwhile, that still counts

    # -- too old, too much ---------------------------------------------------------

    async def _expire(
        self, held: Mapping[str, Holdings], age_ms: int, reason: ExpiryReason
    ) -> None:
        if held:
            start = min(each.mark for each in held.values())
            until = await self.backlog.older_than(start, age_ms)
            for name, each in held.items():
                await self._move_on(name, each, until, reason)

    async def expire(self, name: str, age_ms: int) -> None:
        """An administrator has messages older than ``age_ms`` expire now.

        Raises `RemoteError` if there is no such subscription, `Unreachable`.
        """
        partition = self._partition
        known = await partition.runtime.read(lambda state: state.subscriptions.get(name))
        if known is None:
            raise RemoteError(Reason.NOT_FOUND, f"{partition.topic} has no subscription {name!r}")
        await self._expire({name: await self._ask(name, known)}, age_ms, ExpiryReason.ADMINISTRATOR)

    async def _keep_quotas(self, held: Mapping[str, Holdings]) -> None:
        policies, reason = self._partition.policies, None
        for quota, exceeds in (
            (policies.size_quota, self._too_big),
            (policies.age_quota, self._too_old),
        ):
            if quota is None or not held or not await exceeds(quota, held):
                continue
            if quota.policy != _EVICTION:
                reason = Reason.QUOTA_HELD if quota.policy == _HOLD else Reason.QUOTA_EXCEEDED
            elif quota is policies.size_quota:
                until = self.backlog.last_bytes(int(quota.limit * EVICT_TO))
                for name, each in held.items():
                    await self._move_on(name, each, until, ExpiryReason.QUOTA)
            else:
                await self._expire(held, quota.limit, ExpiryReason.QUOTA)
        self._hold_back(reason)

    async def _too_big(self, quota: Quota, held: Mapping[str, Holdings]) -> bool:
        slowest = min(each.mark for each in held.values())
        return self.backlog.bytes_from(slowest) > quota.limit

    async def _too_old(self, quota: Quota, held: Mapping[str, Holdings]) -> bool:
        slowest = min(each.mark for each in held.values())
        return await self.backlog.age_ms(slowest) > quota.limit

    def _hold_back(self, reason: Reason | None) -> None:
        """Producers are refused for ``reason`` from now on, if any."""
        before, self.held_back = self.held_back, reason
        if reason is not None and before is None:
            for session in list(self._partition.sessions):
                session.close_producers()

    # -- unused subscriptions ------------------------------------------------------

    async def _delete_unused(self, held: Mapping[str, Holdings]) -> None:
        partition = self._partition
        before_ms = partition.actor_system.clock_ms() - partition.policies.expiry_ms
        for name, each in held.items():
            ref, channel = each.known.ref, self._subscriptions.channels.get(name)
            active = channel is not None and bool(channel.consumers)
            active = active or name.startswith(REPLICATOR_PREFIX)  # the policy decides on those
            since_ms = each.known.idle_since_ms
            if active or not 0 < since_ms <= before_ms:
                await partition.runtime.ask(NoteActivity(name, ref.incarnation, active))
            else:
                with suppress(RemoteError):  # somebody came meanwhile
                    unused = DeleteSubscription(name, ref.incarnation, before_ms)
                    await self._deletion.delete_subscription(unused)

    # -- trimming ------------------------------------------------------------------

    def _closed(self) -> list[LedgerInfo]:
        trimmed = self._partition.runtime.state.trimmed
        ledgers = self._log.ledgers
        return [info for info in ledgers if info.sealed and info.ledger_id not in trimmed]

    def _out_of_retention(self) -> list[LedgerInfo]:
        policies, now_ms = self._partition.policies, self._partition.actor_system.clock_ms()
        newer, found = self._open_bytes(), []
        for info in reversed(self._closed()):
            age_ms = now_ms - info.sealed_ms
            if is_out_of_retention(policies.retention_ms, policies.retention_bytes, newer, age_ms):
                found.append(info)
            newer += info.record_bytes
        return found

    def _open_bytes(self) -> int:
        return sum(info.record_bytes for info in self._log.ledgers if not info.sealed)

    async def _trim(self, held: Mapping[str, Holdings]) -> None:
        partition = self._partition
        if not self._out_of_retention():
            return
        async with self._trimming:
            consumed = {
                each.known.ref.incarnation: Consumed(each.mark, each.ledgers)
                for name, each in held.items()
                if not self._moving[name] and self._moves[name] == each.moves
            }
            ledgers = [
                ClosedLedger(info.ledger_id, info.record_bytes, info.sealed_ms)
                for info in self._closed()
            ]
            policies = partition.policies
            rules = (policies.retention_ms, policies.retention_bytes, policies.compacting)
            await partition.runtime.ask(Trim(ledgers, self._open_bytes(), consumed, *rules))
        self._subscriptions.tell_trimmed()
