"""The actor of one topic partition: builds its parts, starts and stops them, answers calls.

Clients connect to the listener of its host (`velaray.broker.client_listener`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import cache, partial
from typing import Any

from velaray.actors.machine import Reason
from velaray.actors.partition.machine import PartitionMachine
from velaray.actors.partition.remote_transactions import is_remote
from velaray.actors.partition.state import PartitionState
from velaray.actors.partition.trimming import ForgetTrimmed
from velaray.actors.runtime import Runtime, Stopped
from velaray.broker.actor_messages import ACTOR_REQUESTS, Describe
from velaray.broker.audit.topic import is_audit_topic
from velaray.broker.catalog.messages import Serving, Watch
from velaray.broker.client_listener import ClientListener
from velaray.broker.garbage_collection.deletion import is_deletion_topic
from velaray.broker.journaled_actor import JournaledActor, WasDeleted
from velaray.broker.partition import (
    dead_letters,
    forgetting,
    marks,
    partition_admin,
    partition_reads,
    partition_stats,
    subscription_admin,
    subscription_view,
    transaction_view,
)
from velaray.broker.partition import messages as m
from velaray.broker.partition.channel.throttle import DispatchRates
from velaray.broker.partition.compactor import Compactor
from velaray.broker.partition.cursor_moves import CursorMoves
from velaray.broker.partition.entry_log import EntryLog
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.offloader import Offloader
from velaray.broker.partition.partition_metrics import PartitionMetrics
from velaray.broker.partition.publishing import Publishing
from velaray.broker.partition.read_bounds import span
from velaray.broker.partition.sealing import Sealing
from velaray.broker.partition.session.connected_clients import ConnectedClients
from velaray.broker.partition.session.protocols import HostedPartition
from velaray.broker.partition.subscription_deletion import SubscriptionDeletion
from velaray.broker.partition.subscriptions import Subscriptions
from velaray.broker.partition.topic_schemas import TopicSchemas
from velaray.broker.partition.transaction_ends import TransactionEnds
from velaray.broker.policy_watch import Follower, PolicyWatch
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey
from velaray.journal.errors import JournalError
from velaray.journal.journal import JournalSettings
from velaray.topology.actor_system import ActorSystem, Address
from velaray.topology.config import PartitionSync
from velaray.topology.messages import Codec, Message
from velaray.topology.metrics import Sample
from velaray.topology.rpc import RemoteError
from velaray.topology.transient import TRANSIENT

_EXPIRY_CHECK_S = 600.0

MakeGeoReplication = Callable[["PartitionActor", Callable[[], None]], GeoReplication]
"""Creates it for a partition. The second argument is called when more may be readable."""


HANDLERS: dict[type[Message], Callable[[PartitionActor, Any], Awaitable[Any]]] = {
    **partition_stats.HANDLERS,
    **partition_admin.HANDLERS,
    **partition_reads.HANDLERS,
    **subscription_admin.HANDLERS,
    **forgetting.HANDLERS,
    **marks.HANDLERS,
    **transaction_view.HANDLERS,
    m.DescribeSubscription: subscription_view.describe_subscription,
    m.Append: dead_letters.append,
}
"""The requests that a partition answers by itself."""


def _hosted(partition: PartitionActor) -> HostedPartition:
    """Return the partition as sessions see it."""
    return HostedPartition(
        key=partition.key,
        actor_system=partition.actor_system,
        availability=partition,
        log=partition.log,
        publishing=partition.publishing,
        runs=partition.publishing,
        subscriptions=partition.subscriptions,
        deletion=partition.deletion,
        cursors=partition.cursors,
        compacted=partition.compactor,
        schemas=partition.schemas,
        geo=partition.geo,
        find_span=partial(span, partition.log),
        clients=partition.clients,
    )


@cache
def _accepted_with(requests: tuple[type[Message], ...]) -> Codec:
    """The requests of a partition and these; all partitions of a process share the codec."""
    return Codec(*ACTOR_REQUESTS, *HANDLERS, *requests)


class PartitionActor(JournaledActor):
    """Serves producers and consumers of one topic partition."""

    runtime: Runtime[PartitionState]

    def __init__(
        self, key: ActorKey, actor_system: ActorSystem, make_geo_replication: MakeGeoReplication
    ) -> None:
        super().__init__(key, actor_system, PartitionMachine())
        self.topic = str(key.topic_name)
        self.policies = TopicPolicies.of({})
        self.home: str | None = None
        """The cluster that serves the tenant's clients; None if it is this one."""
        self.sealing: Sealing | None = None
        """Seals the messages of a topic that can be erased."""
        self.schemas = TopicSchemas(key, actor_system, lambda: self.policies.raw)
        self.log = EntryLog(self)
        self.compactor = Compactor(self, self.log)
        self.subscriptions = Subscriptions(self, self.log, self.log)
        more_readable = self.subscriptions.schedule_feed
        self.publishing = Publishing(self, self.log, more_readable)
        self.dispatch_rates = DispatchRates(self.publishing.published, actor_system.clock_ms)
        self.deletion = SubscriptionDeletion(self, self.subscriptions)
        self.cursors = CursorMoves(self, self.log, self.subscriptions)
        self.transactions = TransactionEnds(
            self, self.log, self.subscriptions, self.publishing.admission, more_readable
        )
        self.maintenance = Maintenance(self, self.log, self.subscriptions, self.deletion)
        self.offloader = Offloader(self)
        self.meter = PartitionMetrics(
            self, self.log, self.subscriptions.channels, self.publishing.published
        )
        self.geo = make_geo_replication(self, more_readable)
        self.accepts = _accepted_with(tuple(self.geo.handlers))
        self.clients = ConnectedClients()
        self.listener = self.host.part(ClientListener)
        self._hosted = _hosted(self)
        watch = Watch(self.topic, key.topic_incarnation)
        policy_watch = self.host.part(PolicyWatch)
        self._follower = Follower(actor_system, policy_watch, watch, self._apply)
        self._pulled_from: dict[str, Any] = {}
        self._replicates_to: dict[str, Any] = {}

    # -- lifecycle -----------------------------------------------------------------

    async def start(self) -> Address:
        """Read the policies, recover, and listen.

        Raises `WasDeleted` if the topic was deleted; no journal is left then.
        """
        try:
            await self.ask_whether_it_exists()
        except WasDeleted:
            await self.discard_unadmitted()
            raise
        address = await super().start()
        self.runtime.on_synced = self.subscriptions.log_synced
        self.runtime.on_released = self.publishing.count_stored
        state = self.runtime.state
        self.log.open(self.subscriptions.entries_due)
        self._apply_delays()
        self.geo.fence.up = state.fence.up
        await self.geo.replication.begin(self._replicates_to)
        address = await self.listener.open(address)
        self.spawn(self.publishing.expire_producers(_EXPIRY_CHECK_S))
        self.spawn(self.maintenance.run())
        self.spawn(self.compactor.watch())
        self.offloader.begin()
        self.geo.begin()
        self.geo.inbound.apply(self._pulled_from)
        self.spawn(self._follower.follow())
        self.deletion.resume()
        own = {each.coordinator for each in state.transactions.ongoing if not is_remote(each)}
        for number in sorted(own):
            self.spawn(self._activate(ActorKey.of_coordinator(number)))
        self.listener.add_partition(self._hosted)
        return address

    async def _activate(self, coordinator: ActorKey) -> None:
        """Activate the coordinator of an open transaction, which ends it in time."""
        backoff = self.actor_system.backoff()
        while True:
            with contextlib.suppress(*TRANSIENT):  # its disk may be full, say
                await self.actor_system.ask(coordinator, Describe())
                return
            await backoff.wait()

    def idle(self) -> bool:
        """Whether there are no producers, consumers and callers, and nothing is under way.

        Connections of clients that have neither producers nor consumers don't count.
        """
        movers = [channel.mover for channel in self.subscriptions.channels.values()]
        if self.rpc_server.connections or self.compactor.running or self.offloader.running:
            return False
        if any(mover is not None and mover.busy for mover in movers):
            return False
        if self.geo.inbound.active or not self.geo.replication.quiet:
            return False
        return self.clients.idle

    async def stop(self) -> None:
        """Close all clients, then the actor."""
        self.geo.replication.rest()
        self.geo.inbound.close()
        self.log.close()
        self.schemas.close()
        with contextlib.suppress(Stopped, JournalError):  # the first failure is reported
            await self.log.sync()  # releases the acknowledgements that wait for it
        self._close_clients()
        await super().stop()
        self.log.release()

    def abort(self) -> None:
        """Stop as a crash would."""
        self.listener.remove_partition(self._hosted)
        self.log.close()
        self.schemas.close()
        for channel in list(self.subscriptions.channels.values()):
            channel.close()
        self._end_clients()
        super().abort()
        self.log.release()

    def _close_clients(self) -> None:
        self.listener.remove_partition(self._hosted)
        for channel in list(self.subscriptions.channels.values()):
            channel.retire()
        self._end_clients()

    def _end_clients(self) -> None:
        self._follower.close()
        self.clients.end()
        self.publishing.close()
        self.dispatch_rates.close()
        self.deletion.close()

    # -- the journal ---------------------------------------------------------------

    def journal_settings(self) -> JournalSettings:
        """The cluster's settings; with interval sync, except for the topics of deletions and of the
        audit log."""
        settings = self.actor_system.journal_settings
        relaxed = self.config.partition_sync is PartitionSync.INTERVAL
        topic = self.key.topic_name
        if relaxed and not (is_deletion_topic(topic) or is_audit_topic(topic)):
            return replace(settings, sync_interval_ms=self.config.sync_interval_ms)
        return settings

    async def needless_ledgers(self) -> set[int]:
        """The ledgers that are durably trimmed."""
        return await self.runtime.read(lambda state: set(state.trimmed))

    async def ledgers_dropped(self, ledger_ids: Collection[int]) -> None:
        """Drop trimmed ledgers from the state once no manifest lists them."""
        if ledger_ids:
            await self.runtime.ask(ForgetTrimmed(tuple(ledger_ids)))

    # -- policies ------------------------------------------------------------------

    async def ask_whether_it_exists(self) -> None:
        """Ask the catalog, and apply the policies in its answer."""
        try:
            serving = Serving(self.topic, self.key.topic_incarnation)
            found = await self.actor_system.request(ActorKey.catalog(), serving)
        except RemoteError as error:
            if error.kind == Reason.NOT_FOUND:
                raise WasDeleted(error.kind, error.message) from error
            raise
        self.policies = TopicPolicies.of(found["policies"])
        self._replicates_to = found.get("replication", {})
        self._pulled_from = found.get("pull", {})
        self.home = found.get("home")
        self.publishing.apply(self.policies)
        if self.sealing is None:
            self.sealing = Sealing.of(self.actor_system, self.key, self.policies)
            self.log.sealing = self.publishing.sealing = self.sealing

    def _apply(self, found: dict[str, Any]) -> None:
        """Apply what the catalog answers about this topic."""
        policies = TopicPolicies.of(found["policies"])
        if policies.raw != self.policies.raw:
            self._apply_policies(policies)
        self.geo.replication.apply(found.get("replication", {}))
        self.geo.inbound.apply(found.get("pull", {}))
        self._apply_home(found.get("home"))

    def isolated(self) -> bool:
        """Whether the topic's policy gives it a process of its own."""
        return self.policies.isolated

    def _apply_home(self, home: str | None) -> None:
        left, self.home = home not in (None, self.home), home
        if left:
            self.clients.send_home()

    def _apply_policies(self, policies: TopicPolicies) -> None:
        before, self.policies = self.policies, policies
        self.publishing.apply(policies)
        self._apply_delays()
        if policies.encryption_required and not before.encryption_required:
            self.clients.close_unencrypted()
        if policies.for_dispatchers() != before.for_dispatchers():
            self.subscriptions.notify_policies()
        if not policies.limits_as(before):
            self.subscriptions.limit_rates()

    def _apply_delays(self) -> None:
        delays = self.policies.raw["delayedDelivery"]
        self.log.delayed.apply(delays["active"], delays["tickTime"])

    # -- clients -------------------------------------------------------------------

    @property
    def active_for_schemas(self) -> bool:
        """Whether a consumer's schema can't become the topic's first one.

        That is so if the topic has entries, producers, or consumers with a schema of their own.
        """
        if self.log.table().first_offset < self.log.end_offset or self.publishing.registry.names():
            return True
        return self.clients.expects_some_schema

    def end_topic(self, end_offset: int) -> None:
        """Notify subscriptions and producers that the topic is terminated durably."""
        self.log.terminated_at = end_offset
        self.subscriptions.notify_terminated(end_offset)
        self.clients.close_producers()

    # -- calls ---------------------------------------------------------------------

    async def metrics(self) -> list[Sample]:
        """The metrics of the partition and its subscriptions."""
        return [*await super().metrics(), *await self.meter.samples()]

    async def handle(self, request: Message) -> Any:
        """Answer a request of `HANDLERS`, one of replication and migration, or one that every
        actor answers."""
        kind = type(request)
        own = HANDLERS.get(kind)
        handler = self.geo.handlers.get(kind) if own is None else partial(own, self)
        if handler is None:
            return await super().handle(request)
        with self.geo.fence.passing(kind):
            return await handler(request)
