"""Links: sockets between two actors, with request ids and batching.

A link carries a stream of msgpack values. Either end may send requests
(answered once, by id) and notices (never answered). Order is kept: what one end sends
first, the other end handles first. A link begins with the cluster's key. Everything that
is sent during one turn of the event loop leaves in one write.

Both ends say regularly that they're alive; a link that stays silent is cut.
A link that breaks fails every outstanding request with `RpcConnectionClosed`; whoever needs the
peer again resolves its address anew.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable
from functools import partial
from typing import Any, Protocol

import msgpack

from velaray.actors.machine import Reason
from velaray.actors.runtime import Stopped
from velaray.events.portable import PortableError
from velaray.journal.errors import JournalError, StorageFull

_REQUEST, _RESPONSE, _NOTICE, _ALIVE = 0, 1, 2, 3
MAX_FRAME = 64 << 20
KEEP_ALIVE_S = 10.0
"""How often each end of a link says that it's alive."""
SILENT_TURNS = 3
"""After so many times in which nothing came, the other end's machine is taken for lost."""


class RpcConnectionClosed(ConnectionError):
    """The link broke before the answer came; the request may or may not have been executed."""


class RemoteError(PortableError):
    """The peer refused or failed; ``kind`` names why, the text says it for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def reason_of(error: BaseException) -> str:
    """The error's text, as clients may read it; a `TimeoutError` brings none."""
    text = error.told if isinstance(error, JournalError) else str(error)
    return text or "no answer in time"


class RpcPeer(Protocol):
    """What an end of a link does with what arrives."""

    def on_request(self, link: RpcConnection, method: str, args: Any) -> Awaitable[Any]:
        """Answer a request; raise `RemoteError` to refuse it.

        A `ConnectionError` or `TimeoutError` reaches the caller as UNAVAILABLE, `StorageFull`
        as STORAGE_FULL, any other error as "internal"; `Stopped` closes the link.
        """
        ...

    def on_notice(self, link: RpcConnection, method: str, args: Any) -> None:
        """Handle a notice."""
        ...

    def on_link_closed(self, link: RpcConnection) -> None:
        """The link is gone."""
        ...


class RpcConnection(asyncio.Protocol):
    """One end of a link; made by `connect` or by a server made with `listen`."""

    def __init__(
        self, peer: RpcPeer, key: bytes, registry: set[RpcConnection] | None = None
    ) -> None:
        self._peer = peer
        self._key = key
        self._registry = registry
        self._trusted = registry is None
        self._transport: asyncio.Transport | None = None
        self._unpacker = msgpack.Unpacker(
            raw=False, strict_map_key=False, max_buffer_size=MAX_FRAME
        )
        self._packer = msgpack.Packer(use_bin_type=True)
        self._outgoing: list[bytes] = []
        self._flush_scheduled = False
        self._requests: dict[int, asyncio.Future[Any]] = {}
        #: How many requests this end has sent.
        self.requested = 0
        self._answering: set[asyncio.Task[None]] = set()
        self._silent = 0
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._look_again()
        if self._registry is not None:
            self._registry.add(self)
        else:
            self.notify("hello", self._key)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: fail what is outstanding and tell the peer object."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._registry is not None:
            self._registry.discard(self)
        for future in self._requests.values():
            if not future.done():
                future.set_exception(RpcConnectionClosed("the link broke before the answer came"))
        self._requests.clear()
        del self._unpacker  # and what it received: garbage collection may free the link much later
        for task in self._answering:
            task.cancel()
        self._peer.on_link_closed(self)

    def _look_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._look)

    def _look(self) -> None:
        """Say that this end is alive; cut the link if the other one hasn't for long.

        A machine that is lost says nothing, and the connection to it would stay open.
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
            self._unpacker.feed(data)
            for message in self._unpacker:
                self._on_message(message)
        except (
            msgpack.exceptions.UnpackException,
            msgpack.exceptions.BufferFull,
            ValueError,
            TypeError,
        ):
            self.close()

    def _on_message(self, message: list[Any]) -> None:
        kind = message[0]
        if not self._trusted:
            self._trusted = kind == _NOTICE and hmac.compare_digest(message[2], self._key)
            if not self._trusted:
                raise ValueError("the link didn't begin with the cluster's key")
            return
        if kind == _ALIVE:
            return
        if kind == _NOTICE:
            self._peer.on_notice(self, message[1], message[2])
        elif kind == _REQUEST:
            task = asyncio.get_running_loop().create_task(
                self._answer(message[1], message[2], message[3])
            )
            self._answering.add(task)
            task.add_done_callback(partial(self._answered, message[1], message[2]))
        else:
            self._on_response(message[1], message[2], message[3])

    def _on_response(self, request_id: int, error_kind: str | None, value: Any) -> None:
        future = self._requests.pop(request_id, None)
        if future is None or future.done():
            return
        if error_kind is None:
            future.set_result(value)
        else:
            future.set_exception(RemoteError(error_kind, value))

    async def _answer(self, request_id: int, method: str, args: Any) -> None:
        try:
            value = await self._peer.on_request(self, method, args)
        except RemoteError as error:
            self._send([_RESPONSE, request_id, error.kind, error.message])
        except (ConnectionError, TimeoutError) as error:  # somebody else couldn't be reached
            self._send([_RESPONSE, request_id, Reason.UNAVAILABLE, reason_of(error)])
        except StorageFull as error:
            self._send([_RESPONSE, request_id, Reason.STORAGE_FULL, error.told])
        except JournalError as error:  # what is stored is damaged: nobody's fault here
            self._send([_RESPONSE, request_id, "damaged", error.told])
        except Stopped:  # the actor is leaving: whoever asks again finds the next one
            self.close()
        else:
            self._send([_RESPONSE, request_id, None, value])

    def _answered(self, request_id: int, method: str, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A fault of ours: the caller hears of it at once, and so does whoever runs this.
            text = f"{method} failed: {type(error).__name__}: {reason_of(error)}"
            self._send([_RESPONSE, request_id, "internal", text])
            asyncio.get_running_loop().call_exception_handler(
                {"message": text, "exception": error, "task": task}
            )

    def _send(self, message: list[Any]) -> None:
        if self.closed:
            return
        self._outgoing.append(self._packer.pack(message))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is not None and not self.closed and self._outgoing:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def notify(self, method: str, args: Any) -> None:
        """Send a notice. It's lost if the link breaks."""
        self._send([_NOTICE, method, args])

    async def request(self, method: str, args: Any, timeout: float | None = 30.0) -> Any:
        """Send a request and return the answer.

        Raises `RpcConnectionClosed` if the link breaks first, `TimeoutError` after ``timeout``
        seconds (in both cases the peer may have executed it), `RemoteError` if the peer
        refused.
        """
        if self.closed:
            raise RpcConnectionClosed("the link is closed")
        self.requested += 1
        request_id = self.requested
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = future
        try:
            self._send([_REQUEST, request_id, method, args])
            async with asyncio.timeout(timeout):
                return await future
        finally:
            self._requests.pop(request_id, None)

    @property
    def waiting(self) -> bool:
        """Whether answers are outstanding."""
        return bool(self._requests)

    def close(self) -> None:
        """Close this end; the other end sees it."""
        if self._transport is not None and not self.closed:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Cut the link; nothing that waits is sent."""
        self._outgoing.clear()
        if self._transport is not None:
            self._transport.abort()


async def connect(
    host: str, port: int, peer: RpcPeer, key: bytes, timeout: float = 10.0
) -> RpcConnection:
    """Open a link. Raises `OSError` or `TimeoutError` if nobody answers there.

    ``key`` is the cluster's link key; the other end closes a link that begins without it.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        _, link = await loop.create_connection(lambda: RpcConnection(peer, key), host, port)
    return link


class RpcServer:
    """Accepts links on a port of its own choosing."""

    def __init__(self, peer: RpcPeer, key: bytes) -> None:
        self._peer = peer
        self._key = key
        self._server: asyncio.Server | None = None
        self.links: set[RpcConnection] = set()

    async def start(self, host: str) -> int:
        """Listen on ``host``; returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: RpcConnection(self._peer, self._key, self.links), host, 0
        )
        return int(self._server.sockets[0].getsockname()[1])

    def abort(self) -> None:
        """Cut every link off, as a crash would."""
        if self._server is not None:
            self._server.close()
        for link in list(self.links):
            link.abort()

    def stop(self) -> None:
        """Stop listening and close every link."""
        if self._server is not None:
            self._server.close()
        for link in list(self.links):
            link.close()
