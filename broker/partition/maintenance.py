"""Periodic maintenance of a partition: expiry, backlog quotas, unused subscriptions, trimming.

One round asks the durable subscriptions what they have acknowledged; expires messages that are too
old (time to live) or exceed the backlog quota (eviction); blocks or admits producers (quota);
deletes subscriptions that are unused for long; and trims ledgers that aren't needed
(`velaray.actors.partition.trimming`). Every step is a journaled decision of a machine; after a
failure the next round completes the work. Each round first drops older entries without recent
reads from memory.

A cursor that moves back may need ledgers that its subscription had passed when it was asked. So
every move is announced (`Maintenance.moving`). Ledgers are trimmed only if no cursor has moved
since its subscription was asked, and no cursor moves before that is decided.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
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
"""An eviction continues until the backlog is this fraction of its limit, as in Pulsar."""
_TRANSIENT = (*TRANSIENT, StorageFull, NoSuchEntryError)
_EVICTION = "consumer_backlog_eviction"
_HOLD = "producer_request_hold"


class Holdings:
    """What a durable subscription has acknowledged, and how many moves of its cursor that
    includes."""

    def __init__(self, known: Subscription, mark: int, ledgers: frozenset[int], moves: int) -> None:
        self.known = known
        self.mark = mark
        self.ledgers = ledgers
        self.moves = moves


class Clients(Protocol):
    """What maintenance needs of the partition's clients."""

    def close_producers(self) -> None:
        """Close all producers."""


class Partition(Protocol):
    """What maintenance needs of its partition besides the log."""

    topic: str
    config: ClusterConfig
    actor_system: ActorSystem
    policies: TopicPolicies
    runtime: Runtime[PartitionState]
    geo: GeoReplication

    @property
    def clients(self) -> Clients:
        """The clients."""
        ...


class Log(backlog.Log, Protocol):
    """What maintenance needs of the partition's log."""

    backlog: Backlog

    async def sync(self) -> None:
        """Return when all present entries survive a loss of power."""

    def drop_idle_chunks(self) -> None:
        """Release the memory of older entries that weren't read since the last call."""


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
    """The maintenance rounds of one partition."""

    def __init__(
        self, partition: Partition, log: Log, subscriptions: Subscriptions, deletion: Deletion
    ) -> None:
        self._partition = partition
        self._log = log
        self._subscriptions = subscriptions
        self._deletion = deletion
        #: The size of the backlog.
        self.backlog = log.backlog
        self._moving: Counter[str] = Counter()
        self._moves: Counter[str] = Counter()
        self._closings: Counter[str] = Counter()
        self._trimming = asyncio.Lock()
        # A subscription without consumers changes only through `touched`.
        self._at_rest: dict[str, tuple[tuple[int, ...], Holdings]] = {}
        #: The reason why producers are refused, if they are.
        self.held_back: Reason | None = None

    async def run(self) -> None:
        """Repeat the rounds; never returns."""
        while True:
            await asyncio.sleep(self._partition.config.maintenance_s)
            self._log.drop_idle_chunks()
            with suppress(*_TRANSIENT):
                await self.once()

    async def once(self) -> None:
        """Run one round. Raises the error that prevents its completion; the next round repeats
        it."""
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
        """Whether the subscriptions' progress matters; asking activates them."""
        policies = self._partition.policies
        counts = (policies.ttl_ms, policies.size_quota, policies.age_quota, policies.expiry_ms)
        return any(counts) or any(self._out_of_retention())

    # -- cursors -------------------------------------------------------------------

    @asynccontextmanager
    async def moving(self, name: str) -> AsyncIterator[None]:
        """Hold this while a cursor may move back, from before the trimmed offsets are read."""
        self._moving[name] += 1
        self.touched(name)
        try:
            async with self._trimming:
                pass  # a trimming that was being decided is visible from now on
            yield
        finally:
            self.touched(name)  # an answer in the meantime may be from before the move
            self._moving[name] -= 1

    def touched(self, name: str) -> None:
        """Discard the known progress of a subscription."""
        self._moves[name] += 1

    def channel_closed(self, name: str) -> None:
        """Don't keep an answer that a subscription gave while its channel was open or opened."""
        self._closings[name] += 1

    async def _ask_subscriptions(self) -> dict[str, Holdings]:
        partition = self._partition
        named = await partition.runtime.read(lambda state: list(state.subscriptions.items()))
        return {name: await self._ask(name, known) for name, known in named}

    async def _ask(self, name: str, known: Subscription) -> Holdings:
        partition = self._partition
        table, moves = partition.runtime.state.table, self._moves[name]
        channels, closings = self._subscriptions.channels, self._closings[name]
        spans = [table.span(ledger.ledger_id) for ledger in self._closed()]
        flat = tuple(at for span in spans if span.end for at in span[1:])
        before = self._at_rest.get(name)
        if before is not None and name not in channels:
            key, held = before
            same = held.known.ref == known.ref and held.moves == moves
            if same and (key == flat or held.mark >= max(flat, default=0)):
                return held
        at_rest = name not in channels
        if at_rest:
            await partition.geo.progress.settle_at_rest(name, known.ref)
            moves = self._moves[name]
        mark, numbers = await self._subscriptions.ask_subscription(name, GetHoldings(list(flat)))
        ids = [span.ledger_id for span in spans if span.end]
        held = Holdings(known, mark, frozenset(ids[number] for number in numbers), moves)
        # The request may have waited until a channel was open; its notices follow the answer then.
        at_rest = at_rest and name not in channels and closings == self._closings[name]
        if at_rest and moves == self._moves[name]:
            self._at_rest[name] = (flat, held)
        return held

    async def _move_on(self, name: str, held: Holdings, until: int, reason: ExpiryReason) -> None:
        """Expire everything before ``until`` in a subscription."""
        if held.mark < until:
            await self._log.sync()
            request = ExpireEntries(self._log.end_offset, [held.mark, until], reason)
            held.mark = await self._subscriptions.ask_subscription(name, request)
            self.touched(name)
            held.moves += 1  # if the cursor was moved back meanwhile, that stays

    # -- expiry and quotas ---------------------------------------------------------

    async def _expire(
        self, held: Mapping[str, Holdings], age_ms: int, reason: ExpiryReason
    ) -> None:
        if held:
            start = min(each.mark for each in held.values())
            until = await self.backlog.older_than(start, age_ms)
            for name, each in held.items():
                await self._move_on(name, each, until, reason)

    async def expire(self, name: str, age_ms: int) -> None:
        """Expire messages older than ``age_ms`` now, as an administrator requested.

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
        """Refuse producers for ``reason``; admit them again if there is none."""
        before, self.held_back = self.held_back, reason
        if reason is not None and before is None:
            self._partition.clients.close_producers()

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
                with suppress(RemoteError):  # a consumer connected meanwhile
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
