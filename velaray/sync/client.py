"""The synchronous client."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar
from warnings import warn

from velaray.client.client import Client as AioClient
from velaray.client.closing import Closing
from velaray.client.consumer_base import SubscribedTopics
from velaray.client.exceptions import AlreadyClosed
from velaray.client.options import (
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    ReaderOptions,
    TableViewOptions,
    takes,
)
from velaray.client.producer import Producer as AioProducer
from velaray.client.reader import ReaderBase
from velaray.client.schema.base import T as V
from velaray.client.service_info import AutoClusterFailover
from velaray.client.table_view import TableView as AioTableView
from velaray.sync.commit_sequence import CommitSequence
from velaray.sync.consumer import Consumer
from velaray.sync.face import Face, blocking, direct
from velaray.sync.inbox import ThreadInbox
from velaray.sync.listeners import Workers
from velaray.sync.loop import LoopThread
from velaray.sync.producer import Producer
from velaray.sync.reader import Reader
from velaray.sync.table_view import TableView
from velaray.sync.transaction import Transaction

T = TypeVar("T")


class Client(Face[AioClient], Closing):
    """Connects to a service and creates producers, consumers and readers; thread-safe.

    Parameters: see `velaray.client.options.ClientOptions`. One background thread per client does
    all work. The client connects on first use. Close it, or use it in a ``with`` statement. The
    same with coroutines: `velaray.aio.Client`.
    """

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        inner = AioClient.with_options(options)
        super().__init__(LoopThread(), inner)
        if isinstance(options.service_url, AutoClusterFailover):
            self._thread.call(self._inner.probe)
        self._workers = Workers(options.message_listener_threads)
        self._producers: set[Producer[Any]] = set()
        self._closed = False

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise AlreadyClosed("the client is closed")
        return self._thread.run(work)

    @takes(ProducerOptions)
    def create_producer(self, options: ProducerOptions[V]) -> Producer[V]:
        """Create a producer for ``topic``, registered with the service.

        Parameters: see `velaray.client.options.ProducerOptions`. Raises the service's error
        (`ProducerBusy`, `TopicTerminated`, …), or `Timeout` after the operation timeout.
        """
        inner = self._run(self._producer(options))
        producer: Producer[V] = Producer(self._thread, inner, options, self._producers.discard)
        self._producers.add(producer)
        return producer

    async def _producer(self, options: ProducerOptions[V]) -> AioProducer[V]:
        client = self._inner
        return await client.adopt(AioProducer(client.core, options, client.forget))

    @takes(ConsumerOptions)
    def subscribe(self, options: ConsumerOptions[V]) -> Consumer[V]:
        """Create a consumer of one topic, a list of topics, or all that match a compiled pattern.

        Parameters: see `velaray.client.options.ConsumerOptions`. When this returns, the
        subscription is stored durably. Raises the service's error (`ConsumerBusy`, …), or `Timeout`
        after the operation timeout.
        """
        track = options.unacked_messages_timeout_ms is not None
        special = bool(options.message_listener or options.interceptors)
        inbox = ThreadInbox(self._thread, options.receiver_queue_size == 0, track, special)
        base = self._run(self._subscribe(options, inbox))
        consumer: Consumer[V] = Consumer(self._thread, base, inbox, options, self._inner.forget)
        if options.message_listener is not None:
            consumer.listen(self._workers.next(), options.message_listener)
        return consumer

    async def _subscribe(self, options: ConsumerOptions[V], inbox: ThreadInbox) -> SubscribedTopics:
        base = SubscribedTopics(self._inner.core, options, inbox)
        inbox.parts = lambda: list(base.topics.parts.values())
        return await self._inner.adopt(base)

    @takes(ReaderOptions)
    def create_reader(self, options: ReaderOptions[V]) -> Reader[V]:
        """Create a reader of ``topic`` that begins after ``start_message_id``.

        Parameters: see `velaray.client.options.ReaderOptions`. Raises `TopicNotFound` for a topic
        that doesn't exist (readers create none), the service's error, or `Timeout` after the
        operation timeout.
        """
        inbox = ThreadInbox(self._thread, options.receiver_queue_size == 0, special=True)
        base = self._run(self._reader(options, inbox))
        reader: Reader[V] = Reader(self._thread, base, inbox, self._inner.forget)
        if options.reader_listener is not None:
            reader.listen(self._workers.next(), options.reader_listener)
        return reader

    async def _reader(self, options: ReaderOptions[V], inbox: ThreadInbox) -> ReaderBase:
        base = ReaderBase(self._inner.core, options, inbox)
        inbox.parts = lambda: list(base.topics.parts.values())
        return await self._inner.adopt(base)

    @takes(TableViewOptions)
    def create_table_view(self, options: TableViewOptions[V]) -> TableView[V]:
        """Create a live map of the newest value of each key of ``topic``.

        When this returns, the map holds everything that was published before. Raises as
        `create_reader`.
        """
        return TableView(self._thread, self._run(self._table_view(options)))

    async def _table_view(self, options: TableViewOptions[V]) -> AioTableView[V]:
        client = self._inner
        return await client.adopt(AioTableView(client.core, options, client.forget))

    def transaction(self, timeout: float = 60.0) -> Transaction:
        """Begin a transaction, which is aborted unless it is committed within ``timeout`` seconds.

        Raises as `velaray.aio.Client.new_transaction`.
        """
        return Transaction(self._thread, self._run(self._inner.new_transaction(timeout)))

    new_transaction = transaction

    def commit_sequence(self, name: str) -> CommitSequence:
        """The commit sequence of this name, which is created by its first commit.

        Raises as `velaray.aio.Client.commit_sequence`.
        """
        return CommitSequence(self._thread, self._run(self._inner.commit_sequence(name)))

    def commit_series(self, name: str) -> CommitSequence:
        """Deprecated name of `commit_sequence`."""
        warn("commit_series is now called commit_sequence", DeprecationWarning, stacklevel=2)
        return self.commit_sequence(name)

    get_topic_partitions = blocking(AioClient.get_topic_partitions)
    get_matching_topics = blocking(AioClient.get_matching_topics)
    get_schema = blocking(AioClient.get_schema)
    get_service_info = direct(AioClient.get_service_info)

    def close(self) -> None:
        """Close all producers, consumers and readers gracefully, then the connections.

        Producers flush, open transactions are aborted and acknowledgements are made durable, each
        for at most one operation timeout. Closing twice has no effect.
        """
        if self._closed:
            return
        for producer in list(self._producers):
            producer.close()
        self._closed = True
        self._workers.stop()
        self._thread.run(self._inner.close())
        self._thread.stop()

    def shutdown(self) -> None:
        """Close at once: unsent and unconfirmed messages fail, late acknowledgements are not sent.

        Open transactions end by their timeouts.
        """
        if self._closed:
            return
        self._closed = True
        self._workers.stop()
        self._thread.run(self._shutdown())
        self._thread.stop()

    async def _shutdown(self) -> None:
        await self._inner.shutdown()
        for producer in self._producers:
            producer.abandon()
