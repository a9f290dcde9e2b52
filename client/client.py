"""The asyncio client."""

from __future__ import annotations

import asyncio
from typing import Protocol, Self, TypeVar
from warnings import warn

from velaray.client.closing import AsyncClosing
from velaray.client.cluster_in_use import ClusterInUse
from velaray.client.commit_sequence import CommitSequence, find_commit_sequence
from velaray.client.consumer import Consumer
from velaray.client.core import Core, topic_name
from velaray.client.enums import RegexSubscriptionMode
from velaray.client.exceptions import AlreadyClosed, InvalidConfiguration, OperationNotSupported
from velaray.client.existing_topics import partitions_of_existing
from velaray.client.options import (
    AioConsumerOptions,
    AioProducerOptions,
    ClientOptions,
    ProducerOptions,
    ReaderOptions,
    TableViewOptions,
    takes,
)
from velaray.client.producer import Producer
from velaray.client.reader import Reader
from velaray.client.schema.base import T as V
from velaray.client.service_info import ServiceInfo
from velaray.client.table_view import TableView
from velaray.client.topics import TopicPattern
from velaray.client.transactions import Coordinators, Transaction
from velaray.schemas import SchemaInfo


class Child(Protocol):
    """An object that a client made and closes with itself."""

    async def start(self) -> None:
        """Start."""

    async def close(self) -> None:
        """Close in good order."""

    def stop(self) -> None:
        """Stop at once."""


C = TypeVar("C", bound=Child)


class Client(AsyncClosing):
    """Connects to a service and creates producers, consumers and readers.

    Belongs to the event loop in which its first method is awaited. Parameters: see
    `velaray.client.options.ClientOptions`; connections are opened when they are needed.
    """

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        if options.message_listener_threads != 1:
            raise OperationNotSupported(
                "message_listener_threads: the asyncio client calls listeners on the event loop"
            )
        self._set_up(options)

    def _set_up(self, options: ClientOptions) -> None:
        self._cluster = ClusterInUse(options)
        self._core: Core | None = None
        self._coordinators: Coordinators | None = None
        self._children: set[Child] = set()
        self._closed = False

    @classmethod
    def with_options(cls, options: ClientOptions) -> Self:
        """Make a client with these options; not for users."""
        client = cls.__new__(cls)
        client._set_up(options)
        return client

    def _live(self) -> Core:
        if self._closed:
            raise AlreadyClosed("the client is closed")
        if self._core is None:
            self._core = self._cluster.core()
        return self._core

    async def adopt(self, child: C) -> C:
        """Start ``child`` and close it with the client; not for users."""
        self._children.add(child)
        started = False
        try:
            await child.start()
            started = True
        finally:
            if not started:
                self._children.discard(child)
                child.stop()
        return child

    @property
    def core(self) -> Core:
        """The state that all children share; not for users. Raises `AlreadyClosed`."""
        return self._live()

    def probe(self) -> None:
        """Start probing the clusters on this event loop; not for users."""
        if not self._closed:
            self._live()

    def forget(self, child: Child) -> None:
        """Remove the closed ``child``; not for users."""
        self._children.discard(child)

    @takes(AioProducerOptions)
    async def create_producer(self, options: ProducerOptions[V]) -> Producer[V]:
        """Create a producer for ``topic`` and register it with the service.

        Parameters: see `velaray.client.options.ProducerOptions`. Raises the service's refusal
        (`ProducerBusy`, `TopicTerminated`, …), or `Timeout` after the operation timeout.
        """
        return await self.adopt(Producer(self._live(), options, self.forget))

    @takes(AioConsumerOptions)
    async def subscribe(self, options: AioConsumerOptions[V]) -> Consumer[V]:
        """Create a consumer of one topic, a list of topics, or all topics that match a pattern.

        Parameters: see `velaray.client.options.ConsumerOptions`. The subscription exists, durably,
        when this returns. Raises the service's refusal (`ConsumerBusy`, …), or `Timeout`
        after the operation timeout.
        """
        return await self.adopt(Consumer(self._live(), options, self.forget))

    @takes(ReaderOptions)
    async def create_reader(self, options: ReaderOptions[V]) -> Reader[V]:
        """Create a reader of ``topic`` that begins after ``start_message_id``.

        Parameters: see `velaray.client.options.ReaderOptions`. Raises `TopicNotFound` for a topic
        that doesn't exist (readers create none), the service's refusal, or `Timeout` after the
        operation timeout.
        """
        return await self.adopt(Reader(self._live(), options, self.forget))

    @takes(TableViewOptions)
    async def create_table_view(self, options: TableViewOptions[V]) -> TableView[V]:
        """Create a view of the newest value of each key of ``topic``.

        The view is complete up to now when this returns, and follows the topic then. Raises as
        `create_reader`.
        """
        return await self.adopt(TableView(self._live(), options, self.forget))

    async def new_transaction(self, timeout_seconds: float = 60.0) -> Transaction:
        """Begin a transaction; it is aborted if it isn't committed within its timeout.

        Raises `InvalidConfiguration` for a timeout that isn't positive, or a service without
        coordinators; the service's refusal, or `Timeout` after the operation timeout.
        """
        if not timeout_seconds > 0:
            raise InvalidConfiguration(f"timeout_seconds={timeout_seconds!r} must be above 0")
        return await self._at_coordinators().begin(timeout_seconds)

    async def commit_sequence(self, name: str) -> CommitSequence:
        """Open the commit sequence of this name, which is created by its first commit.

        Raises as `new_transaction`, and `InvalidConfiguration` for an empty name.
        """
        return await find_commit_sequence(self._at_coordinators(), name)

    async def commit_series(self, name: str) -> CommitSequence:
        """Deprecated name of `commit_sequence`."""
        warn("commit_series is now called commit_sequence", DeprecationWarning, stacklevel=2)
        return await self.commit_sequence(name)

    def _at_coordinators(self) -> Coordinators:
        core = self._live()
        if self._coordinators is None or self._coordinators.left:
            self._coordinators = Coordinators(core)
        return self._coordinators

    async def get_topic_partitions(self, topic: str, create: bool = True) -> list[str]:
        """Return the full names of the topic's partitions; its own name if it has none.

        A topic that doesn't exist is created, as the service's policy allows. With ``create=False``
        this raises `TopicNotFound`, which names topics with a similar name.
        """
        name, core = topic_name(topic), self._live()
        if create:
            count = await core.partitions_of(str(name))
        else:
            count = await partitions_of_existing(core, name)
        return [str(name.of_partition(index)) for index in range(count)] or [str(name)]

    async def get_matching_topics(self, pattern: str) -> list[str]:
        """Return the full names of the persistent topics that match a pattern of `subscribe`.

        Raises `InvalidConfiguration` if it isn't a pattern for topics of one namespace.
        """
        wanted = TopicPattern(pattern, RegexSubscriptionMode.PersistentOnly)
        return [str(name) for name in await wanted.matches(self._live())]

    async def get_schema(self, topic: str) -> SchemaInfo | None:
        """Return the newest schema of a topic, or of a partition's topic; None if it has none."""
        return await self._live().schemas.latest(str(topic_name(topic)))

    def get_service_info(self) -> ServiceInfo:
        """Return how the client connects now: the cluster that it uses."""
        return self._cluster.info

    async def close(self) -> None:
        """Close all children in good order, then the connections.

        Open transactions are aborted, producers flush and acknowledgements are made durable,
        each for at most one operation timeout. Closing twice does nothing.
        """
        self._closed = True
        if self._coordinators is not None:
            await self._coordinators.close()
        await asyncio.gather(*(child.close() for child in list(self._children)))
        await self._cluster.close()
        if self._core is not None:
            await self._core.close()

    async def shutdown(self) -> None:
        """Close at once: pending messages fail, and pending acknowledgements are not sent.

        Open transactions end by their timeouts.
        """
        self._closed = True
        for child in list(self._children):
            child.stop()
        self._children.clear()
        await self._cluster.close()
        if self._core is not None:
            await self._core.close()

    def abort(self) -> None:
        """End as a crash would: nothing more is sent after this returns; not for users."""
        self._closed = True
        if self._core is not None:
            self._core.abort(list(self._children))
        self._children.clear()

    def __repr__(self) -> str:
        return f"<Client of {self._cluster.info.service_url}>"
