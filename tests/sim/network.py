"""Sockets between simulated processes: streams with latency, cuts, partitions, back-pressure.

A connection keeps its bytes in order, as TCP does, and splits them anywhere. Faults are those that
TCP shows of a bad network: bytes are late (delay, partition), or the connection breaks, in one of
two ways.

* `Network.cut`: bytes under way are lost, and both ends get an error.
* `Network.sever`: one end gets an error at once and reconnects. The bytes that it had written
  arrive later all the same, after those that it sends over its new connection.

Thus messages are lost, duplicated and reordered as over a stream network: the unit is a request,
which its sender repeats over a new connection. Within one connection nothing is duplicated or
reordered.

Bytes that a process wrote before it died may still arrive, as a kernel would send them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.loop import HARNESS, Node, SimLoop, context_of, current_node

CHUNK = 16_384
FIRST_PORT = 20_000


class _Socket:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def fileno(self) -> int:
        return self._address[1]


class SimServer:
    """What ``create_server`` returns."""

    def __init__(self, network: Network, node: Node, factory: Any, host: str, port: int) -> None:
        self.node = node.process
        self.factory = factory
        self.sockets = (_Socket((host, port)),)
        self._network = network
        self._port = port

    def close(self) -> None:
        """Accept nothing more."""
        if self._network.servers.get(self._port) is self:
            del self._network.servers[self._port]


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, node: Node, number: int, peername: Any) -> None:
        super().__init__({"peername": peername})
        self.node = node.process
        self.number = number
        self.peer: SimTransport
        self.lost = False
        self._network = network
        self._loop = network.loop
        self._context = context_of(node)
        self._protocol: Any = None
        self._closing = False
        self._high, self._low = 65_536, 16_384
        self._writing_paused = False
        # What this end has sent and the other hasn't taken: (arrives at, bytes); None is EOF.
        self._under_way: deque[tuple[float, bytes | None]] = deque()
        self._size = 0
        self._reading = True
        self._scheduled = False

    # -- what protocols use ----------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Bytes go to ``protocol`` from now on."""
        self._protocol = protocol

    def get_protocol(self) -> Any:
        """Where bytes go."""
        return self._protocol

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The sizes at which the protocol pauses and resumes writing."""
        self._high = 65_536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that the peer hasn't taken."""
        return self._size

    def write(self, data: Any) -> None:
        """Send bytes."""
        data = bytes(data)
        if self._closing or self.lost or not data:
            return
        arrives = self._network.incoming_migration(self.node, self.peer.node)
        for at in range(0, len(data), CHUNK):
            self._under_way.append((arrives, data[at : at + CHUNK]))
        self._size += len(data)
        self._schedule()
        if self._size > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        """Send several buffers."""
        self.write(b"".join(parts))

    def pause_reading(self) -> None:
        """Take nothing more for now."""
        self._reading = False

    def resume_reading(self) -> None:
        """Take what came meanwhile."""
        if not self._reading:
            self._reading = True
            self.peer._schedule()

    def close(self) -> None:
        """Send what was written, then the end of the stream."""
        if self._closing:
            return
        self._closing = True
        self._under_way.append((self._network.incoming_migration(self.node, self.peer.node), None))
        self._schedule()
        if self.peer.lost:
            self._drop()
        if not self._size:
            self._call(self._lose, None)

    def abort(self) -> None:
        """Drop what waits and break the connection."""
        if self.lost:
            return
        self._closing = True
        self._drop()
        self._call(self._lose, None)
        self.peer._break_later()

    # -- the inside ------------------------------------------------------------------

    def _call(self, callback: Callable[..., Any], *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context.copy())

    def _drop(self) -> None:
        self._under_way.clear()
        self._size = 0

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = self._closing = True
        self._network.ends.pop(self.number, None)
        self._protocol.connection_lost(error)

    def _break_later(self) -> None:
        when = self._network.incoming_migration(self.peer.node, self.node)
        self._loop.call_at(when, self._reset, context=self._context.copy())

    def _reset(self) -> None:
        if not self.lost:
            self._closing = True
            self._drop()
            self._lose(ConnectionResetError("connection reset by peer"))

    def _sever(self, until: float) -> None:
        self._under_way = deque((until, data) for _, data in self._under_way)
        self._under_way.append((until, None))
        self._closing = True
        error = ConnectionResetError("connection reset on the way")
        self._call(self._lose, error)
        self._schedule()

    def _schedule(self) -> None:
        """Schedule the arrival of the next piece in the receiver's process."""
        peer = self.peer
        if self._scheduled or not self._under_way or peer.lost:
            return
        if not peer._reading and self._under_way[0][1] is not None:
            return
        self._scheduled = True
        when = max(self._loop.time(), self._under_way[0][0])
        self._loop.call_at(when, self._arrive, context=peer._context.copy())

    def _arrive(self) -> None:
        """Runs in the receiver's process."""
        self._scheduled = False
        peer = self.peer
        if peer.lost or not self._under_way:
            return
        due, data = self._under_way[0]
        due = max(due, self._network.blocked_until(self.node, peer.node))
        if due > self._loop.time():
            self._under_way[0] = (due, data)
            self._schedule()
            return
        if data is not None and not peer._reading:
            return
        self._under_way.popleft()
        if data is None:
            peer._end_of_stream()
            return
        self._size -= len(data)
        self._tell_writer()
        self._schedule()
        if not peer._closing:  # a transport that was closed reads no more
            self._network.received(peer, data)

    def _tell_writer(self) -> None:
        if self._closing and not self._size:
            self._call(self._lose, None)
        elif self._writing_paused and self._size <= self._low:
            self._writing_paused = False
            self._call(self._resume_writer)

    def _resume_writer(self) -> None:
        if not self.lost:
            self._protocol.resume_writing()

    def take(self, data: bytes) -> None:
        """Hand bytes to the protocol."""
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        view = memoryview(data)
        while view and self._protocol is protocol:
            buffer = protocol.get_buffer(len(view))
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            protocol.buffer_updated(count)
            view = view[count:]
        if view:
            self._protocol.data_received(bytes(view))

    def _end_of_stream(self) -> None:
        if not self._closing and not self._protocol.eof_received():
            self.close()


class Network:
    """All sockets of a run; latencies and faults come from ``rng``."""

    def __init__(self, loop: SimLoop, rng: Random, latency_s: float) -> None:
        self.loop = loop
        self.servers: dict[int, SimServer] = {}
        self.ends: dict[int, SimTransport] = {}
        self._rng = rng
        self._latency = latency_s
        self._ports = itertools.count(FIRST_PORT)
        self._numbers = itertools.count(1)
        self._blocked: dict[tuple[str, str], float] = {}
        self._slow: tuple[float, float] = (0.0, 0.0)
        # By way from one site to another: nothing arrives until; slow until, and how slow.
        self._separated: dict[tuple[str, str], float] = {}
        self._slow_ways: dict[tuple[str, str], tuple[float, float]] = {}

    # -- faults ----------------------------------------------------------------------

    def block(self, one: Node, other: Node | None, seconds: float) -> None:
        """Block traffic between two processes (or one and all others) for a while."""
        pair = (one.name, other.name if other is not None else "*")
        self._blocked[pair] = self.loop.time() + seconds

    def slow_down(self, latency_s: float, seconds: float) -> None:
        """Delay all traffic by up to ``latency_s`` for a while."""
        self._slow = (self.loop.time() + seconds, latency_s)

    def separate(self, one: str, other: str, seconds: float) -> None:
        """Block traffic from one site to another for a while, in this direction only."""
        self._separated[one, other] = self.loop.time() + seconds

    def slow_way(self, one: str, other: str, latency_s: float, seconds: float) -> None:
        """Delay traffic from one site to another by up to ``latency_s`` for a while."""
        self._slow_ways[one, other] = (self.loop.time() + seconds, latency_s)

    def heal(self) -> None:
        """End all partitions and delays."""
        self._blocked.clear()
        self._slow = (0.0, 0.0)
        self._separated.clear()
        self._slow_ways.clear()

    def cut(self, end: SimTransport) -> None:
        """Break a connection: bytes under way are lost, and both ends get an error."""
        for side in (end, end.peer):
            side._drop()
            side._break_later()

    def sever(self, end: SimTransport, seconds: float) -> None:
        """Break a connection for one end at once, for the other one later.

        The bytes that this end wrote and the other one hasn't got arrive after ``seconds``, in
        order. Only then the other end gets an error; the bytes that it sends are lost. This is
        a connection that a device resets while segments linger in the network. A request that
        this end repeats over a new connection arrives twice, the old copy after the new one.
        """
        end.peer._drop()
        end._sever(self.loop.time() + seconds)

    def busy_ends(self) -> list[SimTransport]:
        """Ends whose bytes wait for the other end; all ends if there are none."""
        ends = list(self.ends.values())
        return [end for end in ends if end._size] or ends

    def kill(self, node: Node, reset: bool) -> None:
        """The process is gone: its ports are closed, and its sockets close (or are reset)."""
        for port, server in list(self.servers.items()):
            if server.node is node:
                del self.servers[port]
        for end in list(self.ends.values()):
            if end.node is not node:
                continue
            end.lost = True
            del self.ends[end.number]
            if reset:
                end._drop()
                end.peer._break_later()
            elif not end._closing:
                end._closing = True
                end._under_way.append((self.incoming_migration(node, end.peer.node), None))
                end._schedule()

    def vanish(self, node: Node) -> None:
        """The process and its machine are gone: peers get no error."""
        for end in list(self.ends.values()):
            if end.node is node:
                end.lost = True
                end._drop()
                del self.ends[end.number]

    def blocked_until(self, one: Node, other: Node) -> float:
        """The time at which traffic from one process to another resumes; past if it flows."""
        separated = self._separated.get((one.site, other.site), 0.0)
        if not self._blocked:
            return separated
        a, b = one.name, other.name
        pairs = ((a, b), (b, a), (a, "*"), (b, "*"))
        return max(separated, *(self._blocked.get(pair, 0.0) for pair in pairs))

    def incoming_migration(self, sender: Node, receiver: Node) -> float:
        """The arrival time of bytes that are sent now, if no fault delays them."""
        until, slow = self._slow
        longest = slow if self.loop.time() < until else self._latency
        until, slow = self._slow_ways.get((sender.site, receiver.site), (0.0, 0.0))
        if self.loop.time() < until:
            longest = max(longest, slow)
        return self.loop.time() + longest * self._rng.random()

    # -- connections -----------------------------------------------------------------

    def listen(self, factory: Any, host: str, port: int) -> SimServer:
        """A server of the process that runs now. Raises `OSError` if the port is taken."""
        port = port or next(self._ports)
        if port in self.servers:
            raise OSError(98, f"port {port} is taken")
        server = SimServer(self, current_node(), factory, host, port)
        self.servers[port] = server
        return server

    async def connect(self, factory: Any, host: str, port: int) -> tuple[SimTransport, Any]:
        """Connect from the process that runs now. Raises `ConnectionRefusedError`."""
        node = current_node()
        for _ in range(2):  # SYN, SYN-ACK
            await asyncio.sleep(self.incoming_migration(node, HARNESS) - self.loop.time())
            server = self.servers.get(port)
            if server is None or server.node.dead:
                raise ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
            while (until := self._closed_until(node, server.node)) > self.loop.time():
                await asyncio.sleep(until - self.loop.time())
        if self.servers.get(port) is not server:
            raise ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
        ours = SimTransport(self, node, next(self._numbers), (host, port))
        theirs = SimTransport(self, server.node, next(self._numbers), (host, ours.number))
        ours.peer, theirs.peer = theirs, ours
        self.ends[ours.number], self.ends[theirs.number] = ours, theirs
        theirs._reading = False
        theirs._call(self._accept, theirs, server)
        protocol = factory()
        ours.set_protocol(protocol)
        protocol.connection_made(ours)
        return ours, protocol

    def _closed_until(self, one: Node, other: Node) -> float:
        return max(self.blocked_until(one, other), self.blocked_until(other, one))

    def _accept(self, end: SimTransport, server: SimServer) -> None:
        protocol = server.factory()
        end.set_protocol(protocol)
        end._reading = True
        protocol.connection_made(end)
        end.peer._schedule()

    def received(self, end: SimTransport, data: bytes) -> None:
        """Bytes arrive at ``end``, perhaps in two pieces."""
        cut = int(len(data) * self._rng.random()) if self._rng.random() < 0.1 else 0
        if cut:
            end.take(data[:cut])
            if end.lost or not end._reading:
                # The rest waits as if it hadn't arrived yet.
                end.peer._under_way.appendleft((self.loop.time(), data[cut:]))
                end.peer._size += len(data) - cut
                return
        end.take(data[cut:])
