"""The two ends of an inbound replicator, which copies what another cluster publishes."""

from __future__ import annotations

from collections.abc import Callable

from velaray.broker.catalog.messages import Topic
from velaray.client.exceptions import TopicNotFound, from_server
from velaray.client.lookup import Lookup
from velaray.events.ids import ActorKey
from velaray.geo.replication.replicator_connections import OwnWay, RemoteWay
from velaray.geo.replication.replicator_ends import Ends, Met
from velaray.geo.replication.replicator_schemas import NoSuchSchema
from velaray.geo.replication.replicator_settings import CannotReplicate
from velaray.geo.replication.replicator_source import (
    REQUEST_TIMEOUT_S,
    OnEntries,
    Source,
    SourceLost,
)
from velaray.geo.replication.replicator_target import OnConfirmed, Target
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.replication import pull_subscription
from velaray.wire.stamping import Judged, judge_pulled


class PulledSource(Source):
    """Source: a partition of another cluster, from its first entry on."""

    def command(self) -> pb.CommandSubscribe:
        """Subscribe; creates the subscription if it doesn't exist, but never the topic."""
        command = super().command()
        command.durable = True
        command.initialPosition = pb.CommandSubscribe.Earliest
        command.force_topic_creation = False
        return command

    async def schema(self, version: bytes) -> pb.Schema:
        """The schema of a version there. Raises `NoSuchSchema`, `VelarayError`."""
        if self._connection is None:
            raise SourceLost(f"not connected to {self._topic}")
        command = pb.CommandGetSchema(topic=str(self._topic), schema_version=version)
        answer = await self._connection.request(command, REQUEST_TIMEOUT_S)
        assert isinstance(answer, pb.CommandGetSchemaResponse)
        if answer.HasField("error_code"):
            error = from_server(answer.error_code, answer.error_message)
            if isinstance(error, TopicNotFound):
                what = f"there is no schema version {int.from_bytes(version)}: {error}"
                raise NoSuchSchema(what)
            raise error
        return answer.schema


class Pulling(Ends):
    """From another cluster to this one; ``key`` is that of the inbound replicator."""

    _source: PulledSource | None = None

    @property
    def subscription(self) -> str:
        """The name of the subscription there."""
        return pull_subscription(self.actor_system.config.name)

    @property
    def origin(self) -> str:
        """See `Ends`."""
        return self.remote.name

    def source(self, on_entries: OnEntries, on_lost: Callable[[SourceLost], None]) -> Source:
        """See `Ends`."""
        topic = self.key.topic_name
        way = RemoteWay(self.remote, topic, self._prepare)
        self._source = PulledSource(way, topic, self.subscription, on_entries, on_lost)
        return self._source

    async def _prepare(self, lookup: Lookup) -> None:
        """Check the topic. Raises `CannotReplicate` if its shape there differs from here."""
        topic = self.key.topic_name.topic
        found = await self.actor_system.request(ActorKey.catalog(), Topic(str(topic)))
        here = found["partitions"]
        try:
            there = await lookup.partitions_of(str(topic), create=False)
        except TopicNotFound as error:
            raise CannotReplicate(f"{self.remote.name} has no topic {topic}") from error
        if (here > 0) != (there > 0) or self.key.partition >= max(there, 1):
            raise CannotReplicate(
                f"{topic} has {here} partitions here and {there} in {self.remote.name} (0: it "
                "isn't partitioned): this partition can't be pulled"
            )

    def target(
        self, epoch: int, on_confirmed: OnConfirmed, on_lost: Callable[[Exception], None]
    ) -> Target:
        """See `Ends`."""
        way, topic = OwnWay(self.actor_system, self.partition), self.key.topic_name
        own = self.actor_system.config.name
        return Target(way, topic, self.remote.name, own, epoch, on_confirmed, on_lost)

    async def meet(self, target: Met) -> None:
        """See `Ends`: the target is this cluster."""

    async def schema(self, version: bytes) -> pb.Schema:
        """See `Ends`."""
        if self._source is None:
            raise SourceLost(f"not connected to {self.remote.name}")
        return await self._source.schema(version)

    def judge(self, entry: bytes, too_old_ms: int) -> Judged:
        """See `Ends`."""
        return judge_pulled(entry, {*self.remote.others, self.actor_system.config.name}, too_old_ms)
