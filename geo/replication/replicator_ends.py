"""The source and the target of a replicator; `Pushing` sends to another cluster."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Protocol

from velaray.actors.machine import Reason
from velaray.broker.catalog.messages import MeetCluster, Topic
from velaray.broker.schema_registry.schema_calls import find_schema, info_of
from velaray.client.lookup import Lookup
from velaray.events.ids import ActorKey
from velaray.geo.replication.remote_topics import ensure_topic
from velaray.geo.replication.replicator_connections import OwnWay, RemoteWay
from velaray.geo.replication.replicator_schemas import NoSuchSchema
from velaray.geo.replication.replicator_settings import Remote
from velaray.geo.replication.replicator_source import OnEntries, Source, SourceLost
from velaray.geo.replication.replicator_target import OnConfirmed, Target
from velaray.topology.actor_system import ActorSystem
from velaray.topology.replication_keys import replicator_proofs
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.replication import data_id_in
from velaray.wire.schemas import read_version, to_proto
from velaray.wire.stamping import Judged, judge


class Met(Protocol):
    """What the first contact needs of a connected target."""

    @property
    def server_version(self) -> str:
        """The server version that the cluster announced."""
        ...


class Ends(abc.ABC):
    """The source and the target of one partition's entries. Each connection creates new ones from
    the current ``remote``."""

    def __init__(self, actor_system: ActorSystem, key: ActorKey, remote: Remote) -> None:
        """``key`` is of an actor of the partition; ``remote`` is the other cluster."""
        self.actor_system = actor_system
        self.key = key
        self.remote = remote
        self.partition = ActorKey.of_partition(key.topic_name, key.topic_incarnation)

    @property
    @abc.abstractmethod
    def origin(self) -> str:
        """The cluster that entries come from."""

    @abc.abstractmethod
    def source(self, on_entries: OnEntries, on_lost: Callable[[SourceLost], None]) -> Source:
        """A new source, not yet open."""

    @abc.abstractmethod
    def target(
        self, epoch: int, on_confirmed: OnConfirmed, on_lost: Callable[[Exception], None]
    ) -> Target:
        """A new target, not yet open."""

    @abc.abstractmethod
    async def meet(self, target: Met) -> None:
        """Raise `RemoteError` if the connected target cluster has lost its data since the first
        contact."""

    @abc.abstractmethod
    async def schema(self, version: bytes) -> pb.Schema:
        """The schema of a version at the source. Raises `NoSuchSchema`, and what requests raise."""

    @abc.abstractmethod
    def judge(self, entry: bytes, too_old_ms: int) -> Judged:
        """Decide what to do with an entry."""


class Pushing(Ends):
    """From this cluster to another one; ``key`` is the subscription's."""

    @property
    def origin(self) -> str:
        """See `Ends`."""
        return self.actor_system.config.name

    def source(self, on_entries: OnEntries, on_lost: Callable[[SourceLost], None]) -> Source:
        """See `Ends`."""
        topic, name = self.key.topic_name, self.key.subscription
        return Source(OwnWay(self.actor_system, self.partition), topic, name, on_entries, on_lost)

    def target(
        self, epoch: int, on_confirmed: OnConfirmed, on_lost: Callable[[Exception], None]
    ) -> Target:
        """See `Ends`."""
        way, topic = RemoteWay(self.remote, self.key.topic_name, self._prepare), self.key.topic_name
        names, config = (self.origin, self.remote.name), self.actor_system.config
        proved = config.data_id, replicator_proofs(config, self.remote.name)
        return Target(way, topic, *names, epoch, on_confirmed, on_lost, *proved)

    async def meet(self, target: Met) -> None:
        """See `Ends`. Raises what requests raise."""
        if data_id := data_id_in(target.server_version):
            met = MeetCluster(self.remote.name, data_id)
            await self.actor_system.request(ActorKey.catalog(), met)

    async def _prepare(self, lookup: Lookup) -> None:
        topic = self.key.topic_name.topic
        found = await self.actor_system.request(ActorKey.catalog(), Topic(str(topic)))
        await ensure_topic(lookup, self.remote, topic, found["partitions"])

    async def schema(self, version: bytes) -> pb.Schema:
        """See `Ends`."""
        registry = ActorKey.of_schema_registry(self.key.topic_name, self.key.topic_incarnation)
        try:
            number = read_version(version)
            found: dict[str, Any] = await find_schema(self.actor_system, registry, number)
        except ValueError as error:
            raise NoSuchSchema(f"it names a schema version that can't exist: {error}") from error
        except RemoteError as error:
            if error.kind != Reason.NOT_FOUND:
                raise
            raise NoSuchSchema(error.message) from error
        return to_proto(info_of(found))

    def judge(self, entry: bytes, too_old_ms: int) -> Judged:
        """See `Ends`."""
        remote = self.remote
        return judge(entry, remote.name, too_old_ms, everything=remote.everything)
