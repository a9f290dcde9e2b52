"""A listener that accepts CONNECT and reads all else without an answer, in a process of its own.

A flood of it takes the same part of the machine as one of a cluster, which is a process too.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import command


class _Dummy(asyncio.Protocol):
    """A connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer CONNECT at once: the client has sent it, or will."""
        connected = pb.CommandConnected(server_version="dummy", protocol_version=20)
        assert isinstance(transport, asyncio.Transport)
        transport.write(command(connected))


@contextmanager
def dummy_listener() -> Iterator[int]:
    """Run the listener on loopback; returns its port."""
    arguments = [sys.executable, "-m", "tests.security.dummy"]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()  # it ends then


async def _serve() -> None:
    listener = await asyncio.get_running_loop().create_server(_Dummy, "127.0.0.1", 0)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    listener.close()


if __name__ == "__main__":
    asyncio.run(_serve())
