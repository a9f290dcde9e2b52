"""The measuring itself: processes, clocks, turns, workloads against a peer of no substance."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from benchmarks import latency, recovery_bytes, throughput
from benchmarks.machine import describe_machine
from benchmarks.model import Samples
from benchmarks.peers import Latency
from benchmarks.processes import Usage, private_bytes, usage
from benchmarks.redis_peer import RedisPeer, redis_absence
from benchmarks.workloads import in_turn


class HollowPeer:
    """Says that it kept what it was given, and hands single messages over at once."""

    name = "hollow"
    settings: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.drained = 0

    def servers(self) -> list[int]:
        return [os.getpid()]

    def publish(self, payload: bytes, seconds: float, batched: bool) -> int:
        return 1000

    def drain(self, count: int) -> None:
        self.drained += count

    @contextmanager
    def latency(self, on_message: Callable[[bytes], None]) -> Iterator[Latency]:
        class Connected:
            def send(self, payload: bytes, on_receipt: Callable[[], None]) -> None:
                on_receipt()
                on_message(payload)

        yield Connected()


def test_usage_counts_cpu_time_of_processes() -> None:
    before = usage([os.getpid()])
    while (spent := usage([os.getpid()]) - before).cpu_s == 0:
        sum(range(10_000))
    assert spent.cpu_s > 0 and spent.written >= 0
    assert Usage(3.0, 5) - Usage(1.0, 2) == Usage(2.0, 3)


def test_a_process_that_is_gone_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        usage([2**22 + 1])


def test_private_memory_grows_with_what_a_process_holds() -> None:
    before = private_bytes(os.getpid())
    held = bytearray(os.urandom(1)) * (32 << 20)
    assert private_bytes(os.getpid()) - before > 24 << 20
    assert held


def test_the_machine_has_a_description() -> None:
    assert describe_machine()["velaray"]


def test_peers_begin_in_turn() -> None:
    assert [in_turn(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert sorted(in_turn(["a", "b", "c"], 1)) == ["a", "b", "c"]
    assert in_turn([], 1) == []


def test_throughput_drains_what_it_published() -> None:
    peer, samples = HollowPeer(), Samples()
    throughput._measure(peer, "case", 100, True, 0.1, samples)
    assert peer.drained == 1000
    measures = {row.measure: row.median for row in samples.rows()}
    assert measures["publish"] > 0 and measures["drain"] > 0


def test_latency_times_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "WARM_UP", 5)
    samples = Samples()
    latency._measure(HollowPeer(), 0.1, samples)
    found = {row.measure: row.median for row in samples.rows()}
    assert 0 < found["receipt p50"] <= found["receipt p99"]
    assert 0 < found["end to end p50"] <= found["end to end p99"]


def test_messages_that_don_t_arrive_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "ARRIVED_WITHIN_S", 0.01)
    clock = latency.Clock(2)
    clock.stop(0)
    with pytest.raises(TimeoutError, match="1 of 2"):
        clock.wait()


async def recovered(history: int) -> int:
    read, _ = await recovery_bytes.measure(history, 50)
    return read


def test_recovery_reads_the_tail_whatever_the_history() -> None:
    short, long = asyncio.run(recovered(100)), asyncio.run(recovered(3000))
    assert short > 50 * len(recovery_bytes.ENTRY)
    assert long <= 2 * short


@pytest.mark.skipif(redis_absence() is not None, reason=str(redis_absence()))
def test_redis_keeps_and_hands_out() -> None:
    with RedisPeer() as peer:
        peer.drain(peer.publish(b"x" * 100, 0.1, True))
        samples = Samples()
        latency._measure(peer, 0.1, samples)
        assert samples.rows()
