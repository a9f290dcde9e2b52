"""Connections of strangers: their number, their buffers, and what comes before CONNECT."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import command
from velaray.wire.guard import Usage, usage_of_process

CONNECT = command(pb.CommandConnect(client_version="raw", protocol_version=20))
PING = command(pb.CommandPing())
UNFINISHED = (5 << 20).to_bytes(4, "big") + bytes(3) + b"\x04\x08\x06\x32\x00"
PATIENCE_S = 30.0


@contextmanager
def cluster(path: Path, **settings: int) -> Iterator[LocalCluster]:
    with LocalCluster(path, hosts=1, **settings) as running:
        yield running


def connected(cluster: LocalCluster, stack: ExitStack) -> socket.socket:
    """A connection to the proxy that has said nothing yet."""
    made = socket.create_connection(("127.0.0.1", cluster.proxy.port), timeout=PATIENCE_S)
    return stack.enter_context(made)


def ended(made: socket.socket) -> bool:
    """Wait until the server closes the connection; what it sends before is dropped."""
    made.settimeout(PATIENCE_S)
    with suppress(ConnectionError):
        while made.recv(65536):
            pass
    return True


def usage(cluster: LocalCluster) -> Usage:
    return cluster.proxy.guard.usage()


def write(made: socket.socket, data: bytes) -> None:
    with suppress(ConnectionError):
        made.sendall(data)


def test_unfinished_frames_take_bounded_memory_and_give_it_back(tmp_path: Path) -> None:
    """The attack: 160 connections, each with an unfinished frame of 5 MiB."""
    with cluster(tmp_path, buffer_memory_mib=32) as running, ExitStack() as stack:
        attackers = [connected(running, stack) for _ in range(160)]
        tracemalloc.start()
        try:
            begun = tracemalloc.get_traced_memory()[0]
            for made in attackers:
                made.sendall(CONNECT)
                write(made, UNFINISHED + bytes(300_000))
            wait_until(lambda: usage(running).closed >= 100, PATIENCE_S)
            held = usage(running).received
            assert held <= (32 << 20) + (6 << 20)
            assert tracemalloc.get_traced_memory()[1] - begun < 160 * (5 << 20) // 4
            stack.close()
            wait_until(lambda: usage(running).connections == 0, PATIENCE_S)
            assert usage(running).received == 0
            assert tracemalloc.get_traced_memory()[0] - begun < 16 << 20
        finally:
            tracemalloc.stop()


def test_large_frames_before_connect_are_refused(tmp_path: Path) -> None:
    with cluster(tmp_path) as running, ExitStack() as stack:
        attackers = [connected(running, stack) for _ in range(20)]
        for made in attackers:
            write(made, UNFINISHED)
        assert all(ended(made) for made in attackers)
        wait_until(lambda: usage(running).connections == 0, PATIENCE_S)
        assert usage(running).received == 0


@pytest.mark.parametrize(
    "first",
    [
        PING,
        command(pb.CommandPong()),
        command(pb.CommandLookupTopic(topic="t", request_id=1)),
        command(pb.CommandProducer(topic="t", producer_id=1, request_id=1)),
        command(pb.CommandLookupTopic(topic="t", request_id=1)).replace(b"\x01t", b"\x01\xff"),
    ],
)
def test_the_first_command_is_connect(tmp_path: Path, first: bytes) -> None:
    with cluster(tmp_path) as running, ExitStack() as stack:
        made = connected(running, stack)
        made.sendall(first)
        made.settimeout(PATIENCE_S)
        assert made.recv(1000) == b""


def test_connections_beyond_the_limits_are_closed(tmp_path: Path) -> None:
    with cluster(tmp_path, max_connections=5) as running, ExitStack() as stack:
        kept = [connected(running, stack) for _ in range(5)]
        for made in kept:
            made.sendall(CONNECT)
            assert made.recv(1000)
        refused = [connected(running, stack) for _ in range(3)]
        assert all(ended(made) for made in refused)
        assert usage(running) == Usage(5, 3, usage(running).received, 0, 0)
        assert len(running.proxy.sessions) == 5
        kept[0].close()
        wait_until(lambda: usage(running).connections == 4, PATIENCE_S)
        again = connected(running, stack)
        again.sendall(CONNECT)
        assert again.recv(1000)


def test_connections_from_one_address_are_limited(tmp_path: Path) -> None:
    with cluster(tmp_path, max_connections_per_address=2) as running, ExitStack() as stack:
        for made in [connected(running, stack) for _ in range(2)]:
            made.sendall(CONNECT)
            assert made.recv(1000)
        assert ended(connected(running, stack))
        other = stack.enter_context(socket.socket())
        other.bind(("127.0.0.2", 0))
        other.settimeout(PATIENCE_S)
        other.connect(("127.0.0.1", running.proxy.port))
        other.sendall(CONNECT)
        assert other.recv(1000)


def test_a_silent_connection_has_no_buffer(tmp_path: Path) -> None:
    with cluster(tmp_path) as running, ExitStack() as stack:
        for _ in range(50):
            connected(running, stack)
        wait_until(lambda: usage(running).connections == 50, PATIENCE_S)
        assert usage(running).received == 0


def test_peers_that_do_not_read_are_closed_at_the_bound(tmp_path: Path) -> None:
    with cluster(tmp_path, buffer_memory_mib=16) as running, ExitStack() as stack:
        for _ in range(20):
            made = connected(running, stack)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.sendall(CONNECT)
        wait_until(lambda: len(running.proxy.sessions) == 20, PATIENCE_S)

        async def answer() -> None:
            for session in list(running.proxy.sessions):
                session.connection.write(bytes(8 << 20))

        running.run(answer())
        wait_until(lambda: usage(running).closed > 0, PATIENCE_S)
        assert usage(running).unsent <= 16 << 20
        stack.close()
        wait_until(lambda: usage(running).connections == 0, PATIENCE_S)
        assert usage(running).unsent == 0
        assert usage_of_process().connections >= 0


def test_metrics_count_connections_and_buffers(tmp_path: Path) -> None:
    with cluster(tmp_path) as running, ExitStack() as stack:
        made = connected(running, stack)
        made.sendall(CONNECT)
        assert made.recv(1000)
        with urlopen(f"{running.admin_url}/metrics", timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if "velaray_connections{" in line)
        assert all(float(value) >= 1 for value in found.values())
        assert 'host="proxy"' in "".join(found)
        assert any(line.startswith("velaray_received_buffer_bytes{") for line in lines)
