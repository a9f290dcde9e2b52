"""RPC connections between two actors, with request ids and batching.

A connection carries a stream of msgpack values (`velaray.topology.frames`). Either end may send
requests, which have one answer each, and notices, which have none. Messages arrive in the order in
which they are sent. A connection begins with a hello: the cluster's key, the actor that the caller
means, and the protocol number of its version (`velaray.topology.compatibility`). Everything that an
end sends during one turn of the event loop leaves in one write.

Requests and notices (`velaray.topology.messages`) are checked when they arrive. A request of the
wrong shape is refused with INVALID; a notice of the wrong shape closes the connection.

Both ends send keep-alives regularly, and cut a connection that stays silent. A connection that
breaks fails every outstanding request with `RpcConnectionClosed`; the caller resolves the peer's
address again.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable
from functools import partial
from typing import Any, Protocol

from velaray.actors.machine import Reason
from velaray.actors.runtime import Stopped
from velaray.client.tls import Security, tls_arguments
from velaray.events.portable import PortableError
from velaray.journal.errors import JournalError, StorageFull
from velaray.topology.compatibility import PROTOCOL, VERSION
from velaray.topology.frames import FrameReader, frame
from velaray.topology.logs import with_facts
from velaray.topology.messages import (
    Codec,
    Message,
    MessageError,
    ReplyT,
    Request,
    decode_reply,
    encode,
)
from velaray.topology.open_connections import OpenConnections

_HELLO, _REQUEST, _RESPONSE, _NOTICE, _ALIVE, _REFUSAL = range(6)
MAX_FRAME = 64 << 20
MAX_HELLO = 64 << 10
"""The largest frame in bytes; before the hello anybody may send."""
KEEP_ALIVE_S = 10.0
"""Seconds between two keep-alives of one end of a connection."""
SILENT_TURNS = 3
"""An end cuts the connection after this many periods of `KEEP_ALIVE_S` without any data."""


class RpcConnectionClosed(ConnectionError):
    """The connection broke before the answer came; the peer may have executed the request."""


class RemoteError(PortableError):
    """The peer refused or failed: ``kind`` is the reason for programs, the text is for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def reason_of(error: BaseException) -> str:
    """The error's text, fit for clients. A `TimeoutError` has no text of its own."""
    text = error.told if isinstance(error, JournalError) else str(error)
    return text or "no answer in time"


class RpcPeer(Protocol):
    """The handler of messages at one end of a connection."""

    @property
    def accepts(self) -> Codec:
        """The messages that the handler knows."""
        ...

    def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Awaitable[Any]:
        """Answer a request; raise `RemoteError` to refuse it.

        A `ConnectionError` or `TimeoutError` reaches the caller as UNAVAILABLE, `StorageFull` as
        STORAGE_FULL, any other error as "internal"; `Stopped` closes the connection.
        """
        ...

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """Handle a notice."""
        ...

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """The connection is closed."""
        ...


class Served(Protocol):
    """An actor that accepts connections."""

    peer: RpcPeer
    connections: OpenConnections[RpcConnection]
    log_facts: dict[str, Any]
    """The facts that log lines about requests carry."""


class Acceptor(Protocol):
    """The accepting side: it knows the actors that connections may name."""

    connections: OpenConnections[RpcConnection]
    """Every accepted connection."""

    def find(self, actor: str) -> Served | None:
        """Return an actor; None if it isn't served here."""
        ...


class RpcConnection(asyncio.Protocol):
    """One end of a connection, made by `connect` or by an `RpcListener`."""

    def __init__(
        self,
        key: bytes,
        actor: str = "",
        peer: RpcPeer | None = None,
        acceptor: Acceptor | None = None,
        *,
        keeps_alive: bool = True,
    ) -> None:
        """A caller's end has the ``actor`` that it calls and the ``peer`` that handles messages.
        An accepted end gets both from the hello. ``keeps_alive`` is needless within a process,
        whose ends can't be lost silently."""
        self._key = key
        self._actor = actor
        self._peer = peer
        self._acceptor = acceptor
        self._served: Served | None = None
        self._trusted = acceptor is None
        self._transport: asyncio.Transport | None = None
        self._incoming = FrameReader(MAX_FRAME if acceptor is None else MAX_HELLO)
        self._keeps_alive = keeps_alive
        self._outgoing: list[bytes] = []
        self._flush_scheduled = False
        self._requests: dict[int, asyncio.Future[Any]] = {}
        #: The number of requests that this end has sent.
        self.requested = 0
        self._answering: set[asyncio.Task[None]] = set()
        self._silent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._problem = "the RPC connection broke before the answer came"
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._keeps_alive:
            self._look_again()
        if self._acceptor is None:
            self._send([_HELLO, self._key, self._actor, PROTOCOL])
        elif self._acceptor.connections.ended:
            transport.abort()
        else:
            self._acceptor.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: fail outstanding requests and notify the handler."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._acceptor is not None:
            self._acceptor.connections.discard(self)
        if self._served is not None:
            self._served.connections.discard(self)
        for future in self._requests.values():
            if not future.done():
                future.set_exception(RpcConnectionClosed(self._problem))
        self._requests.clear()
        del self._incoming  # its buffer may be large, and this object may be collected much later
        for task in self._answering:
            task.cancel()
        if self._peer is not None:
            self._peer.on_rpc_closed(self)

    def _look_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._look)

    def _look(self) -> None:
        """Send a keep-alive, or cut the connection if none arrived for long.

        Otherwise a connection to a machine that is lost would stay open.
        """
        self._silent += 1
        if self._silent > SILENT_TURNS:
            self.abort()
            return
        if self._trusted:
            self._send([_ALIVE])
        self._look_again()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._silent = 0
        try:
            for message in self._incoming.feed(data):
                self._on_message(message)
        except (ValueError, TypeError):
            self.close()

    def _on_message(self, message: list[Any]) -> None:
        kind = message[0]
        if not self._trusted:
            self._on_hello(message)
            return
        if kind == _ALIVE:
            return
        if kind == _NOTICE:
            self._on_notice(message[1])
        elif kind == _REQUEST:
            self._on_request(message[1], message[2])
        elif kind == _REFUSAL:
            self._problem = message[1]
        else:
            self._on_response(message[1], message[2], message[3])

    def _on_hello(self, message: list[Any]) -> None:
        """Find the actor that the caller means. Raises `ValueError`, which closes the connection:
        the caller resolves the actor's address again."""
        kind, key, actor, *protocol = message
        if kind != _HELLO or not hmac.compare_digest(key, self._key):
            raise ValueError("the first frame of an RPC connection must be the cluster's key")
        if protocol != [PROTOCOL]:
            text = (
                f"the actor runs velaray {VERSION} with protocol {PROTOCOL}, the caller's version "
                f"has protocol {protocol[0] if protocol else 0}: restart the cluster as a whole"
            )
            self._send([_REFUSAL, text])
            self.close()
            return
        assert self._acceptor is not None
        served = self._acceptor.find(actor)
        if served is None or served.connections.ended:
            raise ValueError(f"{actor} isn't served here")
        self._actor, self._served, self._peer = actor, served, served.peer
        served.connections.add(self)
        self._trusted = True
        self._incoming.limit = MAX_FRAME

    def _on_notice(self, data: bytes) -> None:
        assert self._peer is not None
        try:
            notice = self._peer.accepts.decode(data)
        except MessageError as error:
            text = f"closing an RPC connection because of a notice: {error}"
            asyncio.get_running_loop().call_exception_handler({"message": text, "exception": error})
            raise
        self._peer.receive(self, notice)

    def _on_request(self, request_id: int, data: bytes) -> None:
        assert self._peer is not None
        try:
            request = self._peer.accepts.decode(data)
            if not isinstance(request, Request):
                raise MessageError(f"message {type(request).__name__} is a notice, not a request")
        except MessageError as error:
            self._send([_RESPONSE, request_id, Reason.INVALID, str(error)])
            return
        answering = self._answer(self._peer, request_id, request)
        with with_facts({} if self._served is None else self._served.log_facts):
            task = asyncio.get_running_loop().create_task(answering)
        self._answering.add(task)
        task.add_done_callback(partial(self._answered, request_id, type(request).__name__))

    def _on_response(self, request_id: int, error_kind: str | None, value: Any) -> None:
        future = self._requests.pop(request_id, None)
        if future is None or future.done():
            return
        if error_kind is None:
            future.set_result(value)
        else:
            future.set_exception(RemoteError(error_kind, value))

    async def _answer(self, peer: RpcPeer, request_id: int, request: Request[Any]) -> None:
        try:
            value = encode(await peer.answer(self, request))
        except RemoteError as error:
            self._send([_RESPONSE, request_id, error.kind, error.message])
        except (ConnectionError, TimeoutError) as error:  # of another actor
            self._send([_RESPONSE, request_id, Reason.UNAVAILABLE, reason_of(error)])
        except StorageFull as error:
            self._send([_RESPONSE, request_id, Reason.STORAGE_FULL, error.told])
        except JournalError as error:  # stored data is damaged
            self._send([_RESPONSE, request_id, "damaged", error.told])
        except Stopped:  # the caller finds the next activation of the actor
            self.close()
        else:
            self._send([_RESPONSE, request_id, None, value])

    def _answered(self, request_id: int, name: str, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug: report it to the caller and to the event loop
            text = f"{name} failed: {type(error).__name__}: {reason_of(error)}"
            self._send([_RESPONSE, request_id, "internal", text])
            asyncio.get_running_loop().call_exception_handler(
                {"message": text, "exception": error, "task": task}
            )

    def _send(self, message: list[Any]) -> None:
        if not self.closed:
            self._send_frame(frame(message))

    def _send_frame(self, message: bytes) -> None:
        if self.closed:
            return
        self._outgoing.append(message)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is not None and not self.closed and self._outgoing:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def tell(self, notice: Message) -> None:
        """Send a notice. It is lost if the connection breaks."""
        self._send_frame(frame((_NOTICE, encode(notice))))

    async def ask(self, request: Request[ReplyT], timeout: float | None = 30.0) -> ReplyT:
        """Send a request and return the answer.

        Raises `RpcConnectionClosed` if the connection breaks first, `TimeoutError` after
        ``timeout`` seconds (in both cases the peer may have executed it); `RemoteError` if the
        peer refused, with INVALID if it doesn't know the request or it has the wrong shape;
        `MessageError` if the answer has the wrong shape.
        """
        return decode_reply(request, await self._ask(timeout, encode(request)))

    async def _ask(self, timeout: float | None, request: bytes) -> Any:
        if self.closed:
            raise RpcConnectionClosed("the RPC connection is closed")
        self.requested += 1
        request_id = self.requested
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = future
        try:
            self._send([_REQUEST, request_id, request])
            async with asyncio.timeout(timeout):
                return await future
        finally:
            self._requests.pop(request_id, None)

    @property
    def waiting(self) -> bool:
        """Whether answers are outstanding."""
        return bool(self._requests)

    def close(self) -> None:
        """Send what is outstanding and close the connection."""
        if self._transport is not None and not self.closed:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection without sending what is outstanding."""
        self._outgoing.clear()
        if self._transport is not None:
            self._transport.abort()


async def connect(
    host: str,
    port: int,
    actor: str,
    peer: RpcPeer,
    key: bytes,
    tls: Security | None = None,
    timeout: float = 10.0,
) -> RpcConnection:
    """Open a connection to an actor. Raises `OSError` or `TimeoutError` if there is no listener.

    ``key`` is the cluster's RPC key; ``tls`` is how it is connected to by TLS. The listener closes
    a connection that begins without the key, or that names an actor that it doesn't serve.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        _, rpc_connection = await loop.create_connection(
            lambda: RpcConnection(key, actor, peer), host, port, **tls_arguments(tls, host)
        )
    return rpc_connection
