"""A cluster under attack: its memory stays within docs/limits.md, and a client goes on.

``python -m tests.security.soak`` is the long run; `test_soak` has a short one.
The cluster is a process of its own without Ray. The attackers are addresses of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.security.attacked import PATIENCE_S, Canary, Server, attacked, canary, quantile
from tests.support.waiting import wait_until
from velaray.client.admin import Admin
from velaray.topology.ray_process import allow_many_files
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import command

CONNECT = command(pb.CommandConnect(client_version="raw", protocol_version=20))
UNFINISHED = (5 << 20).to_bytes(4, "big") + bytes(3) + b"\x04\x08\x06\x32\x00"
"""The beginning of a frame of 5 MiB."""
FLOODED = "public/flooded"
TOPICS = 200
"""The limit of topics in the namespace in which attackers create them."""
PER_CONNECTION, PER_REQUEST, PER_TOPIC = 6 << 10, 4 << 10, 200 << 10
"""The bytes that docs/limits.md states; those of a topic are the ones of its partition."""
_REQUESTS, _ENTRIES, _LISTENERS = 1000, 32 << 20, 2
SPARE = 8
"""Connections within the limit that attackers leave to the client."""
AT_ONCE = 200
"""Connections of a flood that are opened at the same time."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The extent of the attacks. ``limit`` is the cluster's limit of connections, ``flood`` the
    number of connections that are opened beyond it."""

    limit: int = 300
    flood: int = 2_000
    half_open: int = 50
    unfinished: int = 40
    askers: int = 4
    requests: int = 2_000
    topics: int = 1_000
    buffer_mib: int = 16

    @property
    def bound(self) -> int:
        """The bytes that the attacks may make the process hold, by docs/limits.md."""
        buffers = 2 * (self.buffer_mib << 20) + self.limit * PER_CONNECTION
        asked = self.askers * _REQUESTS * PER_REQUEST
        return _LISTENERS * buffers + asked + _ENTRIES + TOPICS * PER_TOPIC


LONG = Scale(
    *(2_000, 100_000, 500),
    unfinished=200,
    askers=20,
    requests=20_000,
    topics=20_000,
    buffer_mib=64,
)


class Attackers:
    """The connections of the attackers, each from an address of this machine."""

    def __init__(self, server: Server, scale: Scale) -> None:
        self.server = server
        self.scale = scale
        self.counts: Counter[str] = Counter()
        self.held: list[asyncio.StreamWriter] = []
        self._number = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One more connection. Raises `OSError`."""
        self._number += 1
        address = f"127.0.0.{2 + self._number % 8}"
        return await asyncio.open_connection(
            "127.0.0.1", self.server.port, local_addr=(address, 0), limit=1 << 16
        )

    async def half_open(self) -> None:
        """Peers that connect, and then neither read nor answer anything."""
        for _ in range(self.scale.half_open):
            _, writer = await self.connect()
            writer.write(CONNECT)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            self.held.append(writer)
            self.counts["half-open"] += 1

    async def slowloris(self) -> None:
        """Peers that send a frame byte by byte, and never all of it: the rest of the limit."""
        slow = []
        while len(self.held) < self.scale.limit - self.scale.unfinished - self.scale.askers - SPARE:
            _, writer = await self.connect()
            slow.append(writer)
            self.held.append(writer)
            self.counts["slowloris"] += 1
        for byte in CONNECT[:6]:
            for writer in slow:
                with suppress(OSError):
                    writer.write(bytes([byte]))
            await asyncio.sleep(0.05)

    async def unfinished(self) -> None:
        """Peers that fill the buffers with large frames that they don't finish."""
        for _ in range(self.scale.unfinished):
            _, writer = await self.connect()
            with suppress(OSError, TimeoutError):
                writer.write(CONNECT + UNFINISHED + bytes(1 << 20))
                async with asyncio.timeout(PATIENCE_S):
                    await writer.drain()
            self.counts["unfinished frames"] += 1
            self.held.append(writer)

    async def flood(self) -> None:
        """Connections until the limit, which stay, and beyond it: these end without an answer."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with places:
                try:
                    reader, writer = await self.connect()
                except OSError:
                    self.counts["refused"] += 1
                    return
                answer = b""
                with suppress(OSError):
                    writer.write(CONNECT)
                    async with asyncio.timeout(PATIENCE_S):
                        answer = await reader.read(1000)
                self.counts["served" if answer else "refused"] += 1
                if answer:
                    self.held.append(writer)
                else:
                    writer.close()

        for begun in range(0, self.scale.flood, 2_000):
            count = min(2_000, self.scale.flood - begun)
            await asyncio.gather(*(one() for _ in range(count)))

    async def ask(self, what: str, request: Callable[[int], Any], count: int) -> None:
        """Peers that send many requests, and read no answer before all are sent."""

        async def one() -> None:
            with suppress(OSError, TimeoutError):
                _, writer = await self.connect()
                self.held.append(writer)
                writer.write(CONNECT)
                async with asyncio.timeout(PATIENCE_S):
                    for begun in range(0, count, 100):
                        several = range(begun, begun + 100)
                        writer.write(b"".join(command(request(number)) for number in several))
                        self.counts[what] += len(several)
                        await writer.drain()

        await asyncio.gather(*(one() for _ in range(self.scale.askers // 2)))

    async def requests(self) -> None:
        """Lists of topics, each a small frame."""
        await self.ask(
            "lists of topics",
            lambda number: pb.CommandGetTopicsOfNamespace(
                namespace="public/default", request_id=number
            ),
            self.scale.requests,
        )

    async def topics(self) -> None:
        """Requests that create topics."""
        await self.ask(
            "new topics",
            lambda number: pb.CommandPartitionedTopicMetadata(
                topic=f"persistent://{FLOODED}/t{number}",
                request_id=number,
                metadata_auto_creation_enabled=True,
            ),
            self.scale.topics,
        )

    def leave(self) -> None:
        """End all connections."""
        for writer in self.held:
            writer.transport.abort()
        self.held.clear()


@dataclass(slots=True)
class Stage:
    """What one attack did to the process and to the client."""

    name: str
    memory: int
    times_s: list[float]
    connections: float = 0


async def _attack(server: Server, bird: Canary, attackers: Attackers) -> list[Stage]:
    stages: list[Callable[[], Awaitable[None]]] = [
        attackers.half_open,
        attackers.slowloris,
        attackers.unfinished,
        attackers.requests,
        attackers.topics,
        attackers.flood,
    ]
    found = []
    try:
        for stage in stages:
            attack, times_s = asyncio.ensure_future(stage()), []
            while not (attack.done() and times_s):
                times_s += await asyncio.to_thread(bird.goes_on, 20)
            await attack
            connections = await asyncio.to_thread(server.metric, "velaray_connections")
            found.append(Stage(stage.__name__, server.memory(), times_s, connections))
        attackers.counts["held at the end"] = len(attackers.held)
    finally:
        attackers.leave()
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened: counts of attacks, bytes of memory, and the canary's times in seconds."""

    counts: Counter[str]
    before: int
    stages: list[Stage]
    most: int
    after: int
    refused: float
    received_after: float
    alone_s: list[float]
    after_s: list[float]


def run(scale: Scale) -> Outcome:
    """Attack a cluster in every way. Raises `AssertionError` if the canary doesn't go on, or if the
    process or an actor fails."""
    allow_many_files()
    limits = (
        *("--max-connections", str(scale.limit), "--buffer-memory", str(scale.buffer_mib)),
        *("--max-connections-per-address", str(scale.limit // 2)),
    )
    with attacked(*limits) as server, Admin(server.admin_url) as admin, canary(server) as bird:
        admin.create_namespace(FLOODED)
        admin.set_policy_of(FLOODED, "maxTopicsPerNamespace", TOPICS)
        alone_s, before = bird.goes_on(100), server.memory()
        attackers = Attackers(server, scale)
        stages = asyncio.run(_attack(server, bird, attackers))
        wait_until(lambda: server.metric("velaray_connections") <= SPARE, PATIENCE_S)
        after_s = bird.goes_on(100)
        attackers.counts["topics created"] = len(admin.topics(FLOODED))
        server.check()
        return Outcome(
            attackers.counts,
            before,
            stages,
            server.memory("VmHWM"),
            server.memory(),
            server.metric("velaray_connections_refused_total"),
            server.metric("velaray_received_buffer_bytes"),
            alone_s,
            after_s,
        )


def main() -> None:
    """The long run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    scale = Scale() if parser.parse_args().short else LONG
    found = run(scale)
    for name, count in found.counts.items():
        print(f"{count:>9}  {name}")
    mib = 1 << 20
    print(f"memory: {found.before / mib:.0f} MiB before, {found.most / mib:.0f} at most,")
    print(f"  {found.after / mib:.0f} afterwards; {scale.bound / mib:.0f} more are allowed")
    timed = [
        Stage("alone", found.before, found.alone_s),
        *found.stages,
        Stage("afterwards", found.after, found.after_s),
    ]
    for stage in timed:
        p50, p99 = quantile(stage.times_s, 0.5), quantile(stage.times_s, 0.99)
        rounds = len(stage.times_s)
        print(f"{stage.name:>12}: {stage.memory / mib:5.0f} MiB, canary {rounds} rounds, ", end="")
        print(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    check(found, scale)


def check(found: Outcome, scale: Scale) -> None:
    """Raise `AssertionError` for memory beyond the bound and connections beyond the limit."""
    assert found.most - found.before <= scale.bound, (found.most - found.before, scale.bound)
    assert found.received_after < 4 << 20
    most = max(stage.connections for stage in found.stages)
    assert most <= scale.limit + SPARE, most  # the other listener has some of the client
    assert found.counts["refused"] == scale.flood - found.counts["served"]
    assert found.refused >= found.counts["refused"] * 0.9  # the system refuses some
    assert found.counts["topics created"] <= TOPICS


if __name__ == "__main__":
    main()
