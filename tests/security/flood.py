"""What a neighbour notices of a flood of requests of one kind.

``python -m tests.security.flood --kind lists`` times the canary while such requests go to a dummy
listener as fast as it reads them, and while they go to a cluster. Each is a process of its own.
The attackers read the answers. The canary publishes, receives and acknowledges one message at a
time, over another address. Its 99th percentile beside the flooded cluster must be at most twice
that beside the dummy.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from tests.security.attacked import Canary, Server, attacked, canary
from tests.security.dummy import dummy_listener
from tests.security.fuzz import TURNS, Notice
from velaray.client.admin import Admin
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import command

CONNECT = command(pb.CommandConnect(client_version="raw", protocol_version=20))
FLOODED = "public/flooded"
LISTED = f"persistent://{FLOODED}/listed"
CONNECTIONS = 20
AT_ONCE = 100
"""Requests that a connection writes at once."""
ADDRESSES = 8

Request = Callable[[int], bytes]


def _rest(number: int) -> bytes:
    return f"GET /admin/v2/persistent/{FLOODED} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


KINDS: dict[str, Request] = {
    "pings": lambda number: command(pb.CommandPing()),
    "lists": lambda number: command(
        pb.CommandGetTopicsOfNamespace(namespace=FLOODED, request_id=number)
    ),
    "creations": lambda number: command(
        pb.CommandPartitionedTopicMetadata(
            topic=f"persistent://{FLOODED}/t{number}",
            request_id=number,
            metadata_auto_creation_enabled=True,
        )
    ),
    "lookups": lambda number: command(
        pb.CommandLookupTopic(topic=f"persistent://{FLOODED}/t{number}", request_id=number)
    ),
    "connections": lambda number: b"",
    "rest": _rest,
}
"""The frame of a request, by its number, which no other request has."""


class Flood:
    """Sends requests of a kind to a port until it ends."""

    def __init__(self, kind: str, port: int, first: int) -> None:
        """``first`` is the number of its first request."""
        self.sent = 0
        self._kind = kind
        self._port = port
        self._first = first
        self._address = 0

    async def run(self, ended: asyncio.Event) -> None:
        """Flood the port until the event is set."""
        attack = self._connect_again if self._kind == "connections" else self._ask
        tasks = [asyncio.ensure_future(attack()) for _ in range(CONNECTIONS)]
        await ended.wait()
        for task in tasks:
            task.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, Exception):
                raise found

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._address += 1
        address = f"127.0.0.{2 + self._address % ADDRESSES}"
        return await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))

    async def _ask(self) -> None:
        make = KINDS[self._kind]
        reader, writer = await self._connect()
        reading = asyncio.ensure_future(_read_all(reader))
        try:
            if self._kind != "rest":
                writer.write(CONNECT)
            while not reading.done():
                first = self._first + self.sent
                writer.write(b"".join(make(first + each) for each in range(AT_ONCE)))
                self.sent += AT_ONCE
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            reading.cancel()
            writer.transport.abort()
        raise AssertionError("a connection was closed")

    async def _connect_again(self) -> None:
        while True:
            with suppress(OSError):  # one that is refused
                reader, writer = await self._connect()
                writer.write(CONNECT)
                await reader.read(1)
                writer.transport.abort()
            self.sent += 1


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def notice(server: Server, bird: Canary, kind: str, rounds: int) -> Notice:
    """Flood a dummy listener and the cluster in turns, and time the canary."""
    loop = asyncio.get_running_loop()
    port = server.port if kind != "rest" else urlsplit(server.admin_url).port
    assert port is not None
    times: tuple[list[float], list[float]] = ([], [])
    sent, took = [0, 0], [0.0, 0.0]
    with dummy_listener() as dummy:
        ports = dummy, port
        for turn in range(2 * TURNS):
            ended, begun = asyncio.Event(), loop.time()
            flood = Flood(kind, ports[turn % 2], turn << 32)
            flooding = asyncio.ensure_future(flood.run(ended))
            times[turn % 2].extend(await asyncio.to_thread(bird.goes_on, rounds // TURNS))
            ended.set()
            await flooding
            sent[turn % 2] += flood.sent
            took[turn % 2] += loop.time() - begun
    return Notice(*times, sent[0] / took[0], sent[1] / took[1])


@contextmanager
def flooded(topics: int) -> Iterator[tuple[Server, Canary]]:
    """A cluster in a process of its own with a namespace of so many topics, and a canary."""
    with ExitStack() as stack:
        server = stack.enter_context(attacked())
        with Admin(server.admin_url) as admin:
            admin.create_namespace(FLOODED)
            if topics:
                admin.create_topic(LISTED, partitions=topics)
        yield server, stack.enter_context(canary(server))
        server.check()


def run(kind: str, rounds: int, topics: int) -> Notice:
    """Flood a cluster with requests of a kind; returns what the canary notices."""
    with flooded(topics) as (server, bird):
        return asyncio.run(notice(server, bird, kind, rounds))


def main() -> None:
    """Time the canary under floods of some kinds, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, action="append", help="by default: all kinds")
    parser.add_argument("--rounds", type=int, default=1000, help="rounds of the canary")
    parser.add_argument("--topics", type=int, default=100, help="topics that lists have")
    given: Any = parser.parse_args()
    kinds = given.kind or list(KINDS)
    found = {}
    for kind in kinds:
        found[kind] = run(kind, given.rounds, given.topics)
        print(f"{kind}, {given.rounds} rounds, lists of {given.topics} topics")
        print(found[kind], flush=True)
    beyond = [kind for kind, noticed in found.items() if noticed.ratio > 2]
    assert not beyond, f"the canary is slower than twice as slow: {', '.join(beyond)}"


if __name__ == "__main__":
    main()
