"""One connection to a server: handshake, requests and responses, keep-alive, dispatch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from google.protobuf.message import Message as ProtobufMessage

from velaray.client.auth import Authentication
from velaray.client.exceptions import NotConnected, ReadError, Timeout, VelarayError, from_server
from velaray.client.tls import Security, tls_arguments
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import PROTOCOL_VERSION, Message
from velaray.wire.connection import WireConnection
from velaray.wire.errors import CorruptEntryError
from velaray.wire.frames import MAX_MESSAGE_SIZE

logger = logging.getLogger("velaray")

LARGEST_FRAME = 64 * 1024 * 1024
"""Largest accepted frame, whatever limit the server announces; larger ones are invalid."""

NEVER_STOP_READING = 1 << 62
"""Reading never stops while sends are blocked: both sides could wait for each other then.

The amount to send is bounded by the client's pending messages instead.
"""


@cache
def _client_version() -> str:
    try:
        return f"velaray-{version('velaray')}"
    except PackageNotFoundError:
        return "velaray"


class ProducerHandler(Protocol):
    """The callbacks of a producer that is registered on a connection."""

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        """Handle the receipt of a stored entry."""

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """Handle the refusal of an entry."""

    def on_closed(self, connection: Connection) -> None:
        """Handle the close of the producer by the server, or the loss of the connection."""


class ConsumerHandler(Protocol):
    """The callbacks of a consumer that is registered on a connection."""

    def on_message(self, message: Message, entry: bytes) -> None:
        """Handle a delivered entry."""

    def on_closed(self, connection: Connection) -> None:
        """Handle the close of the consumer by the server, or the loss of the connection."""

    def on_end_of_topic(self) -> None:
        """Handle the end of a terminated topic: everything in it was delivered."""


class Connection:
    """A connection to one server. Everything runs on the event loop's thread.

    When the connection is lost, requests fail with `NotConnected` and every handler's ``on_closed``
    is called once. Nothing is retried here.
    """

    def __init__(
        self,
        address: str,
        authentication: Authentication | None,
        keep_alive: float,
        proxy_to: str | None = None,
        client_version: str | None = None,
    ) -> None:
        """``client_version`` is the version that the client announces; None: this library's."""
        self.address = address
        self.server_version = ""
        self.max_message_size = MAX_MESSAGE_SIZE
        self.producers: dict[int, ProducerHandler] = {}
        self.consumers: dict[int, ConsumerHandler] = {}
        self._authentication = authentication
        self._auth_data = b""
        self._answering: asyncio.Task[None] | None = None
        self._proxy_to = proxy_to
        self._client_version = client_version or _client_version()
        self._loop = asyncio.get_running_loop()
        self._wire = WireConnection(
            self,
            server=False,
            max_message_size=LARGEST_FRAME,
            keep_alive=keep_alive,
            high_water=NEVER_STOP_READING,
        )
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._last_request = 0
        self._by_tls = False
        self._error: VelarayError | None = None
        self._on: dict[type, Callable[[Any], None]] = {
            pb.CommandConnected: self._on_connected,
            pb.CommandError: self._on_error,
            pb.CommandSendReceipt: self._on_receipt,
            pb.CommandSendError: self._on_send_error,
            pb.CommandProducerSuccess: self._on_producer_success,
            pb.CommandCloseProducer: self._on_close_producer,
            pb.CommandCloseConsumer: self._on_close_consumer,
            pb.CommandReachedEndOfTopic: self._on_end_of_topic,
            pb.CommandActiveConsumerChange: lambda _: None,
            pb.CommandAuthChallenge: self._on_auth_challenge,
        }

    @property
    def closed(self) -> bool:
        """Whether the connection is lost."""
        return self._error is not None

    # --- for the users of the connection ---

    async def open(
        self, host: str, port: int, tls: Security | None = None, timeout_s: float | None = None
    ) -> None:
        """Fetch the credentials, then connect and perform the handshake; returns when the server
        has accepted the client.

        Without ``tls`` the connection isn't one of TLS. Raises `OSError`, `TimeoutError` if
        ``timeout_s`` doesn't suffice for connection and handshake, or the server's error, such as
        `AuthenticationError`.
        """
        self._by_tls = tls is not None
        if self._authentication is not None:
            self._auth_data = await self._authentication.fetch()
        async with asyncio.timeout(timeout_s):
            await self._loop.create_connection(
                lambda: self._wire, host, port, **tls_arguments(tls, host)
            )
            await self._connected

    def send(self, message: ProtobufMessage) -> None:
        """Send a command; it is dropped if the connection is lost.

        ``on_closed`` reports the loss to the sender, which sends again on a new connection. Memory
        is bounded by the senders: permits, pending messages and requests are limited.
        """
        if self._error is None:
            self._wire.send(message)

    def send_entry(self, header: bytes, entry: bytes) -> None:
        """Send a frame that is given in two parts; it is dropped if the connection is lost."""
        if self._error is None:
            self._wire.write_two(header, entry)

    async def request(self, message: Any, timeout: float | None) -> Any:
        """Send ``message``, which has a ``request_id`` field, and return the response.

        Raises the error in the server's response, `NotConnected` if the connection is lost,
        `Timeout` after ``timeout`` seconds.
        """
        if self._error is not None:
            raise NotConnected(str(self._error))
        self._last_request += 1
        message.request_id = request_id = self._last_request
        answer = self._requests[request_id] = self._loop.create_future()
        try:
            self.send(message)
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError as error:
            if isinstance(error, VelarayError):
                raise
            name = type(message).__name__.removeprefix("Command")
            raise Timeout(f"{self.address} gave no answer to {name} in {timeout} s") from error
        finally:
            del self._requests[request_id]

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`.

        Only for a short time, since PING isn't answered either.
        """
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        """Continue after `pause_reading`."""
        self._wire.resume_reading()

    def abort(self, error: VelarayError) -> None:
        """Drop the connection because of ``error``."""
        self._lose(error)
        if self._wire.peer:
            self._wire.abort()

    async def close(self) -> None:
        """Send the written data, then close; returns when the socket is closed."""
        self._lose(NotConnected("closed by this client"))
        if self._wire.peer:
            self._wire.close()
            await self._closed

    # --- called by the wire protocol ---

    def on_connected(self, connection: WireConnection) -> None:
        """Send the connect command."""
        connect = pb.CommandConnect(
            client_version=self._client_version,
            protocol_version=PROTOCOL_VERSION,
            feature_flags=pb.FeatureFlags(supports_auth_refresh=True),
        )
        if self._proxy_to is not None:
            connect.proxy_to_broker_url = self._proxy_to
        if self._authentication is not None:
            connect.auth_method_name = self._authentication.method
            connect.auth_data = self._auth_data
        connection.send(connect)

    def on_frame(self, connection: WireConnection, command: Any, entry: bytes | None) -> None:
        """Dispatch a command to its handler."""
        if type(command) is Message:
            consumer = self.consumers.get(command.consumer_id)
            if consumer is not None and entry is not None:
                consumer.on_message(command, entry)
        else:
            self._on.get(type(command), self._on_answer)(command)

    def on_corrupt_entry(self, connection: WireConnection, error: CorruptEntryError) -> None:
        """Reconnect: the entry is redelivered then, so nothing is lost."""
        self.abort(ReadError(f"{self.address} sent a damaged entry: {error}"))

    def on_writable(self, connection: WireConnection) -> None:
        """Do nothing: no sender waits for this."""

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        """Handle the loss of the socket."""
        if self._error is None:
            logger.info("connection to %s lost: %s", self.address, error or "closed by it")
        if error is None or isinstance(error, OSError) or self._connected.done():
            problem = f"connection to {self.address} lost: {error or 'closed by it'}"
            if self._by_tls and not self._connected.done():
                problem += "; it may want a certificate of this client, or another one"
            elif not self._connected.done():
                problem += "; is it a port for TLS? Its URL begins with pulsar+ssl://"
        else:
            problem = (
                f"{self.address} doesn't speak Pulsar's protocol: use the service port "
                "(`velaray start --service-port`, by default 6650); a port for TLS wants pulsar+ssl://"
            )
        self._lose(NotConnected(problem))
        if not self._closed.done():
            self._closed.set_result(None)

    # --- frames ---

    def _on_connected(self, connected: pb.CommandConnected) -> None:
        if connected.max_message_size > 0:
            self.max_message_size = connected.max_message_size
        self.server_version = connected.server_version
        if not self._connected.done():
            self._connected.set_result(None)

    def _on_error(self, error: pb.CommandError) -> None:
        exception = from_server(error.error, error.message)
        if not self._connected.done():
            self.abort(exception)
            return
        answer = self._requests.get(error.request_id)
        if answer is None:
            # The service reports an error outside of any request, for example of a delivery.
            logger.warning("%s says: %s", self.address, exception)
        elif not answer.done():
            answer.set_exception(exception)

    def _on_answer(self, answer: Any) -> None:
        if "request_id" not in answer.DESCRIPTOR.fields_by_name:
            logger.warning("%s sent a %s, ignored", self.address, type(answer).__name__)
            return
        waiting = self._requests.get(answer.request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _on_producer_success(self, success: pb.CommandProducerSuccess) -> None:
        # Not ready: another producer holds the topic; a second response follows.
        if success.producer_ready:
            self._on_answer(success)

    def _on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        producer = self.producers.get(receipt.producer_id)
        if producer is not None:
            producer.on_receipt(receipt)

    def _on_send_error(self, error: pb.CommandSendError) -> None:
        producer = self.producers.get(error.producer_id)
        if producer is not None:
            producer.on_send_error(error)

    def _on_close_producer(self, close: pb.CommandCloseProducer) -> None:
        producer = self.producers.pop(close.producer_id, None)
        if producer is not None:
            producer.on_closed(self)

    def _on_close_consumer(self, close: pb.CommandCloseConsumer) -> None:
        consumer = self.consumers.pop(close.consumer_id, None)
        if consumer is not None:
            consumer.on_closed(self)

    def _on_end_of_topic(self, end: pb.CommandReachedEndOfTopic) -> None:
        consumer = self.consumers.get(end.consumer_id)
        if consumer is not None:
            consumer.on_end_of_topic()

    def _on_auth_challenge(self, _: pb.CommandAuthChallenge) -> None:
        if self._authentication is not None and self._answering is None:
            self._answering = self._loop.create_task(self._answer(self._authentication))

    async def _answer(self, authentication: Authentication) -> None:
        """Answer a challenge with fresh credentials."""
        try:
            self._auth_data = await authentication.fetch(self._auth_data)
        except VelarayError as error:
            self.abort(error)
            return
        finally:
            self._answering = None
        data = pb.AuthData(auth_method_name=authentication.method, auth_data=self._auth_data)
        self.send(
            pb.CommandAuthResponse(
                client_version=self._client_version,
                protocol_version=PROTOCOL_VERSION,
                response=data,
            )
        )

    # --- lifetime ---

    def _lose(self, error: VelarayError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._answering is not None:
            self._answering.cancel()
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # there may be no waiter
        for answer in list(self._requests.values()):
            if not answer.done():
                answer.set_exception(NotConnected(str(error)))
        handlers: list[ProducerHandler | ConsumerHandler] = [
            *self.producers.values(),
            *self.consumers.values(),
        ]
        self.producers.clear()
        self.consumers.clear()
        for handler in handlers:
            handler.on_closed(self)
