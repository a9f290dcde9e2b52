"""One client's connection to the actors of a host: routes its commands to their handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from velaray.broker.admission import Admission
from velaray.broker.authorisation.grant_watch import GrantWatch
from velaray.broker.coordinator.coordinator_handlers import CoordinatorHandlers, LocalCoordinators
from velaray.broker.partition.channel.consumer import ChannelConsumer
from velaray.broker.partition.session.acknowledgements import AcknowledgementHandlers
from velaray.broker.partition.session.consumers import ConsumerHandlers, ConsumerTable
from velaray.broker.partition.session.producer import ProducerTable
from velaray.broker.partition.session.producers import ProducerHandlers
from velaray.broker.partition.session.protocols import LocalPartitions, Refuse
from velaray.broker.partition.session.publishing import PublishHandlers
from velaray.broker.partition.session.queries import (
    Method,
    SchemaRequests,
    SubscriptionRequests,
)
from velaray.broker.partition.session.requests import CALL_ERRORS
from velaray.broker.session import Session
from velaray.broker.wire_errors import code_of
from velaray.topology.open_connections import OpenConnections
from velaray.topology.rpc import reason_of
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Command, Send
from velaray.wire.connection import WireConnection
from velaray.wire.errors import CorruptEntryError
from velaray.wire.send_runs import SendRun


class LocalActors(LocalPartitions, LocalCoordinators, Protocol):
    """The actors of the host that clients use, and the register of sessions."""

    sessions: OpenConnections[ClientSession]
    grants: GrantWatch | None
    admission: Admission


class ClientSession(Session):
    """Serves one client connection. It carries producers and consumers of any partitions of the
    host, and transactions of any of its coordinators."""

    def __init__(self, actors: LocalActors) -> None:
        super().__init__(actors.config, actors.admission, actors.grants)
        self._registry = actors.sessions
        self._producer_table, self._consumer_table = ProducerTable(), ConsumerTable()
        self._producers = ProducerHandlers(self, actors, self._producer_table)
        self._publishing = PublishHandlers(self, self._producer_table)
        self._consumers = ConsumerHandlers(self, self, actors, self._consumer_table)
        self._subscriptions = SubscriptionRequests(self, self._consumer_table)
        acknowledgements = AcknowledgementHandlers(self, self._consumer_table)
        self._coordinators = CoordinatorHandlers(self, actors)
        schemas = SchemaRequests(self, actors)
        self.handlers = {
            pb.CommandProducer: self._producers.on_producer,
            pb.CommandCloseProducer: self._producers.on_close_producer,
            pb.CommandSubscribe: self._consumers.on_subscribe,
            pb.CommandCloseConsumer: self._consumers.on_close_consumer,
            pb.CommandFlow: self._consumers.on_flow,
            pb.CommandAck: acknowledgements.on_ack,
            pb.CommandRedeliverUnacknowledgedMessages: acknowledgements.on_redeliver,
            pb.CommandUnsubscribe: self._about(self._subscriptions.unsubscribe),
            pb.CommandSeek: self._about(self._subscriptions.seek),
            pb.CommandGetLastMessageId: self._about(self._subscriptions.last_message_id),
            pb.CommandConsumerStats: self._about(self._subscriptions.stats),
            pb.CommandGetSchema: self._request(schemas.get_schema),
            pb.CommandGetOrCreateSchema: self._request(schemas.get_or_create_schema),
            **self._coordinators.handlers,
        }

    # -- the connection ------------------------------------------------------------

    def on_connected(self, connection: WireConnection) -> None:
        """Remember the connection, so that stopping closes it."""
        super().on_connected(connection)
        if self._registry.ended:
            connection.abort()
        else:
            self._registry.add(self)

    def on_frame(self, connection: WireConnection, command: Command, entry: bytes | None) -> None:
        """Route a command to its handler. SEND is the hot path and needs no look-up."""
        if type(command) is Send and self._connected:
            self._publishing.on_send(command, entry)
        else:
            super().on_frame(connection, command, entry)

    def on_sends(self, connection: WireConnection, run: SendRun) -> bool:
        """Publish a run of SENDs, if they can be handled at once."""
        return self._connected and self._publishing.on_sends(run)

    def on_corrupt_entry(self, connection: WireConnection, error: CorruptEntryError) -> None:
        """Refuse a damaged SEND; the connection continues. Any other command with an entry closes
        it."""
        if type(error.command) is Send and self._connected:
            self._publishing.on_corrupt_entry(error)
        else:
            super().on_corrupt_entry(connection, error)

    def on_writable(self, connection: WireConnection) -> None:
        """Continue deliveries that waited for the socket."""
        self._consumers.on_writable()

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        """Remove the client's producers and consumers."""
        super().on_closed(connection, error)
        self._producers.drop_all()
        self._consumers.drop_all()
        self._subscriptions.drop_sought()
        self._coordinators.on_closed()
        self._registry.discard(self)

    async def close_revoked(self) -> None:
        """Close the producers and consumers whose rights were revoked. The answer to their next
        attempt says so. Raises what calls of actors raise."""
        if self.gate is None:
            return
        for producer in list(self._producer_table.connected.values()):
            allowed = await self.gate.may_produce(producer.partition.key.topic_name)
            if not allowed and self._producer_table.has(producer):
                self._producers.send_home(producer)
        for each in self._consumer_table:
            topic, subscription = each.partition.key.topic_name, each.channel.name
            allowed = await self.gate.may_consume(topic, subscription)
            if not allowed and self._consumer_table.get(each.consumer.consumer_id) is each:
                self._consumers.send_home(each)

    # -- requests ------------------------------------------------------------------

    def _request(self, answer: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
        def begin(command: Any) -> None:
            self.spawn_request(answer(command), partial(self.error, command.request_id))

        return begin

    def _about(self, method: Method) -> Callable[[Any], None]:
        """A handler of a request about the subscription of a consumer."""
        return self._request(partial(self._subscriptions.answer, method))

    def spawn_request(self, work: Coroutine[Any, Any, None], refuse: Refuse) -> asyncio.Task[None]:
        """Run work that answers a request; ``refuse`` answers a failed call with its error."""
        task = self.spawn(_answer_errors(work, refuse))
        task.add_done_callback(lambda _: work.close())  # if it was cancelled before it began
        return task

    # -- what channels need of the session -----------------------------------------

    @property
    def client_version(self) -> str:
        """The name and version of the client's program."""
        return self.info.version

    @property
    def knows_end_of_topic(self) -> bool:
        """Whether the client understands that a topic has ended."""
        return self.info.knows_end_of_topic

    def consumer_closed(self, consumer: ChannelConsumer) -> None:
        """Remove a consumer that its channel closed."""
        self._consumers.closed_by_channel(consumer)


async def _answer_errors(work: Coroutine[Any, Any, None], refuse: Refuse) -> None:
    try:
        await work
    except CALL_ERRORS as error:
        refuse(code_of(error), reason_of(error))
