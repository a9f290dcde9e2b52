"""A small HTTP client on simulated sockets, for the admin interface: one request a connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

TIMEOUT_S = 40.0


class NoAnswer(ConnectionError):
    """The request may or may not have been executed."""


class _Exchange(asyncio.Protocol):
    def __init__(self, request: bytes, answer: asyncio.Future[bytes]) -> None:
        self._request = request
        self._answer = answer
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_result(bytes(self._received))


async def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request; the status and the body, parsed. Raises `NoAnswer`."""
    payload = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()
    transport = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            transport, _ = await loop.create_connection(
                lambda: _Exchange(head.encode() + payload, answer), "127.0.0.1", port
            )
            raw = await answer
    except OSError as error:
        raise NoAnswer(f"{type(error).__name__}: {error}") from error
    finally:
        if transport is not None:
            transport.abort()
    return _parsed(raw)


def _parsed(raw: bytes) -> tuple[int, Any]:
    head, separator, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    lengths = [line for line in lines if line.lower().startswith(b"content-length:")]
    wanted = int(lengths[0].split(b":")[1]) if lengths else 0
    if not separator or len(body) < wanted:
        raise NoAnswer("the connection broke")
    return int(lines[0].split()[1]), json.loads(body) if body else None
