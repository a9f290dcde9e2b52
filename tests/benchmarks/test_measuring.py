"""The measuring itself: processes, clocks, turns, workloads against a peer of no substance."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import plan, recovery_bytes, worker
from benchmarks.contract import (
    BEHIND,
    MANY,
    ONE_ELSEWHERE,
    RESULTS,
    Absent,
    Done,
    Transacted,
    transacted,
)
from benchmarks.loads import (
    clock,
    disk,
    fan_out,
    latency,
    open_transactions,
    throughput,
    topics,
    transactions,
)
from benchmarks.machine import describe_machine
from benchmarks.plan import Cell
from benchmarks.processes import Usage, descendants, private_bytes, usage
from benchmarks.systems import registry


class HollowPeer:
    """Keeps messages in queues of this process; says that it acknowledged."""

    def __init__(self) -> None:
        self.settings = {"version": "0"}
        self.queues: dict[str, dict[str, queue.Queue[bytes]]] = defaultdict(dict)
        self.removed: list[str] = []
        self.held: list[str] = []

    def servers(self) -> list[int]:
        return [os.getpid()]

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        for name in subscriptions:
            self.queues[topic][name] = queue.Queue()

    def remove(self, topic: str) -> None:
        self.removed.append(topic)

    @contextmanager
    def sender(self, topic: str, way: str) -> Iterator[HollowSender]:
        yield HollowSender(list(self.queues[topic].values()))

    single_sender = sender

    @contextmanager
    def taker(self, topic: str, subscription: str, way: str) -> Iterator[HollowTaker]:
        yield HollowTaker(self.queues[topic][subscription])

    @contextmanager
    def transactor(
        self, source: str, target: str, way: str, most_at_once: int
    ) -> Iterator[HollowTransactor]:
        self.prepare(source, ["source"])
        self.prepare(target, [RESULTS])
        yield HollowTransactor(self.queues[source]["source"], self.queues[target][RESULTS])

    @contextmanager
    def holding(self, topic: str, subscription: str, held: str) -> Iterator[None]:
        self.held.append(held)
        yield


class HollowTransactor:
    """Loses what ``loses`` says."""

    loses = 0

    def __init__(self, source: queue.Queue[bytes], target: queue.Queue[bytes]) -> None:
        self.source, self.target = source, target

    def run(self, each: int, at_once: int, seconds: float) -> Transacted:
        for _ in range(each * at_once - self.loses):
            self.target.put(self.source.get())
        return transacted(each, 1.0, [(1.5, 2.0)] * at_once)


class HollowSender:
    def __init__(self, queues: list[queue.Queue[bytes]]) -> None:
        self.queues = queues

    def send_many(self, payload: bytes, count: int) -> None:
        for _ in range(count):
            self.send_each([payload], lambda _: None)

    def wait(self) -> None:
        pass

    def send_each(self, payloads: Sequence[bytes], done: Done) -> None:
        for payload in payloads:
            done(payload)
            for each in self.queues:
                each.put(payload)


class HollowTaker:
    def __init__(self, waiting: queue.Queue[bytes]) -> None:
        self.waiting = waiting

    def take(self, most: int) -> int:
        return len(self.take_payloads())

    def take_payloads(self) -> list[bytes]:
        try:
            return [self.waiting.get(timeout=0.05)]
        except queue.Empty:
            return []

    def finish(self) -> None:
        assert self.waiting.empty()


def test_usage_counts_cpu_time_of_processes() -> None:
    before = usage([os.getpid()])
    while (spent := usage([os.getpid()]) - before).cpu_s == 0:
        sum(range(10_000))
    assert spent.cpu_s > 0 and spent.written >= 0
    assert Usage(3.0, 5, 9) - Usage(1.0, 2, 3) == Usage(2.0, 3, 6)


def test_usage_counts_reads_of_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    before = usage([os.getpid()])
    (tmp_path / "file").read_bytes()
    assert (usage([os.getpid()]) - before).read >= 100_000


def test_a_process_that_ended_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        usage([2**22 + 1])


def test_a_process_is_its_own_descendant() -> None:
    assert os.getpid() in descendants(os.getpid())
    assert descendants(os.getpid(), "no such name") == []


def test_private_memory_grows_with_allocations() -> None:
    before = private_bytes(os.getpid())
    held = bytearray(os.urandom(1)) * (32 << 20)
    assert private_bytes(os.getpid()) - before > 24 << 20
    assert held


def test_the_machine_has_a_description() -> None:
    assert describe_machine()["velaray"]


def test_throughput_drains_its_messages() -> None:
    peer = HollowPeer()
    found = throughput.run(peer, "t", "", 100, 0.01)
    assert found["publish"][1] > 0 and found["drain"][1] > 0
    assert peer.removed == ["t"]


def test_latency_times_every_message() -> None:
    found = latency.run(HollowPeer(), "t", "", 100, 0.1, 200)
    assert 0 < found["end to end p50"][1] <= found["end to end p99"][1]
    assert found["receipt p50"][1] < found["end to end p50"][1] * 10


def test_fan_out_counts_the_messages_of_every_subscription() -> None:
    found = fan_out.run(HollowPeer(), "t", "", 100, 0.05, 3)
    assert found["deliveries"][1] > 0
    assert found["deliveries per server CPU second"][1] > 0


def test_topics_are_published_to_concurrently() -> None:
    peer = HollowPeer()
    found = topics.run(peer, "", 100, 0.05, 3)
    assert found["publish"][1] > 0
    assert sorted(peer.queues) == ["many-0", "many-1", "many-2"]


def test_transactions_are_counted_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = HollowPeer()
    found = transactions.run(peer, "t", "", 10, 4, 0.1, 1000)
    assert found["messages, 4 in flight"] == ("msg/s", 40)
    assert found["transactions, 4 in flight"] == ("/s", 4)
    assert found["transactions, one at a time"] == ("/s", 1)
    assert found["commit p99, one at a time"] == ("µs", 500_000)
    assert peer.removed == ["t", "t-results"]
    monkeypatch.setattr(HollowTransactor, "loses", 1)
    monkeypatch.setattr(transactions, "COUNTED_WITHIN_S", 0.1)
    with pytest.raises(RuntimeError, match="90 messages were committed, 87 came out"):
        transactions.run(peer, "t", "", 10, 4, 0.1, 1000)


@pytest.mark.parametrize("held", ["", ONE_ELSEWHERE, MANY, BEHIND])
def test_plain_messages_are_measured_while_transactions_are_open(held: str) -> None:
    peer = HollowPeer()
    found = open_transactions.run(peer, "t", "", 100, 0.05, held)
    assert peer.held == ([held] if held else [])
    assert found["end to end p50"][1] > 0
    assert ("drain" in found) == (held in ("", ONE_ELSEWHERE))


def test_a_run_without_commits_took_no_time() -> None:
    assert transacted(100, 5.0, []) == Transacted(0, 0.0, [])


def test_the_failure_of_a_thread_fails_the_workload() -> None:
    class Broken(HollowPeer):
        @contextmanager
        def taker(self, topic: str, subscription: str, way: str) -> Iterator[HollowTaker]:
            raise ConnectionError("gone")
            yield

    with pytest.raises(ConnectionError, match="gone"):
        fan_out.run(Broken(), "t", "", 100, 0.05, 2)


def test_the_disk_is_measured() -> None:
    assert disk.run(0.01)["append and fdatasync per MiB"][1] > 0


def test_messages_that_don_t_arrive_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "ARRIVED_WITHIN_S", 0.01)
    one = clock.Clock(2)
    one.stop(bytes(8))
    with pytest.raises(TimeoutError, match="1 of 2"):
        one.wait()


def test_percentiles_follow_from_the_measurements() -> None:
    one = clock.Clock(1000)
    one._took = [number * 1000 for number in range(1, 1001)]
    assert one.percentiles(0, (50, 99, 99.9)) == [500, 990, 999]
    assert one.percentiles(500, (100,)) == [1000]


def test_messages_leave_when_they_are_due_and_late_ones_together() -> None:
    sizes: list[int] = []
    stamps: list[int] = []

    def send(payloads: list[bytes]) -> None:
        sizes.append(len(payloads))
        stamps.extend(int.from_bytes(payload[:8]) for payload in payloads)
        if len(sizes) == 2:
            clock.threading.Event().wait(0.05)

    clock.pace(200, 20, 16, send)
    assert sum(sizes) == 20
    assert sizes[0] == 1 and max(sizes[2:]) >= 5
    assert stamps == sorted(stamps)
    # Those that had to wait bear the time that they were due, not the one they left at.
    assert len(set(stamps)) == 20


def test_peers_begin_in_turn() -> None:
    group = [Cell("throughput", "100 B", name, "", {}) for name in "abc"]
    begins = [plan.in_turn(group, number)[0].peer for number in range(4)]
    assert begins == ["a", "b", "c", "a"]
    assert sorted(cell.peer for cell in plan.in_turn(group, 1)) == ["a", "b", "c"]


def test_errors_about_absent_peers_name_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VELARAY_BENCH_CACHE", str(tmp_path))
    for name in ("nats", "kafka", "pulsar"):
        with pytest.raises(Absent, match="install"), registry.start(name):
            pass


@pytest.mark.parametrize("name", registry.NAMES)
def test_every_system_describes_its_settings(name: str) -> None:
    try:
        system = registry.start(name)
    except Absent as error:
        pytest.skip(str(error))
    assert {"server", "client"} <= set(system.settings)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on the PATH")
def test_redis_runs_every_workload_in_its_process(tmp_path: Path) -> None:
    remote = worker.Remote("redis-always", tmp_path / "log")
    try:
        assert remote.settings()["version"]
        small = {"way": "", "size": 100, "seconds": 0.1}
        assert remote.run("throughput", 30, topic="a", **small)["drain"][1] > 0
        assert remote.run("latency", 30, topic="b", rate=100, **small)["receipt p50"][1] > 0
        assert remote.run("fan-out", 30, topic="c", subscriptions=2, **small)["deliveries"][1] > 0
        assert remote.run("topics", 30, topics=2, **small)["publish"][1] > 0
        with pytest.raises(worker.Failed, match="TypeError"):
            remote.run("throughput", 30, topic="d")
        assert remote.alive
        with pytest.raises(worker.Failed, match="no answer"):
            remote.run("throughput", 0.05, topic="e", way="", size=100, seconds=30)
        assert not remote.alive
    finally:
        remote.close()


async def recovered(history: int) -> int:
    read, _ = await recovery_bytes.measure(history, 50)
    return read


def test_recovery_reads_the_tail_whatever_the_history() -> None:
    short, long = asyncio.run(recovered(100)), asyncio.run(recovered(3000))
    assert short > 50 * len(recovery_bytes.ENTRY)
    assert long <= 2 * short
