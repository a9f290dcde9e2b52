"""Handles on real Ray: composed tasks, several clusters and placements on one Ray, kills."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

import velaray
from tests.ray.support import RayNodes, wait_until
from tests.support.samples import python_of
from velaray import InitialPosition
from velaray.cluster import Cluster

PLACEMENTS = ("dedicated", "shared", "auto")
BATCH = 20
COUNT = 15 * BATCH


@pytest.fixture(scope="module")
def clusters(
    nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Cluster]]:
    """A cluster of each placement, all on one Ray; each has the name of its placement."""
    with ExitStack() as stack:
        yield {
            placement: stack.enter_context(
                Cluster.start(
                    tmp_path_factory.mktemp(placement),
                    service_port=0,
                    admin_port=0,
                    name=placement,
                    placement=placement,
                )
            )
            for placement in PLACEMENTS
        }


def test_handles_reach_the_cluster_of_their_name(clusters: dict[str, Cluster]) -> None:
    for name in clusters:
        ray.get(velaray.handle("t", name).publish.remote(name.encode()))
    for name in clusters:
        board = velaray.subscription_handle(
            "t", "board", name, initial_position=InitialPosition.Earliest
        )
        assert [message.data() for message in ray.get(board.receive.remote())] == [name.encode()]
        assert ray.get(velaray.coordinator_handle(3, name).describe.remote())["open"] == 0
        assert ray.get(velaray.schema_registry_handle("t", name).versions.remote()) == []
        assert ray.get(velaray.replicator_handle("t", "eu", name).describe.remote()) == {}


def test_calls_raise_the_errors_of_the_client(clusters: dict[str, Cluster]) -> None:
    topic = velaray.handle("t", "shared")
    with pytest.raises(velaray.NotAllowedError, match="publish, publish_many, stats"):
        ray.get(topic.invoke("terminate"))
    with pytest.raises(velaray.MessageTooBig):
        ray.get(topic.publish.remote(b"x" * (6 << 20)))
    with pytest.raises(velaray.TopicNotFound):
        ray.get(velaray.handle("none", "shared").stats.remote())


@ray.remote
def publish(topic: velaray.TopicHandle, numbers: list[int]) -> list[int]:
    """Publish until each number has a receipt; one whose outcome is unknown is sent again."""
    for number in numbers:
        while True:
            try:
                ray.get(topic.publish.remote(b"%d" % number, key=str(number % 7)))
                break
            except RayActorError:
                continue
    return numbers


@ray.remote
def acknowledge(
    board: velaray.SubscriptionHandle, batch: list[velaray.Message[bytes]]
) -> list[int]:
    """The numbers of a batch, once it is acknowledged."""
    ray.get(board.acknowledge.remote(batch))
    return [int(message.data()) for message in batch]


def victims(cluster: Cluster) -> set[int]:
    """The processes with partitions and subscriptions, and that of the handles."""
    kinds = ("partition", "subscription", "host", "handles")
    return {each["pid"] for each in cluster.actors() if each["key"].split("/")[0] in kinds}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "placement",
    [pytest.param(each, marks=[pytest.mark.long] * (each == "dedicated")) for each in PLACEMENTS],
)
def test_nothing_acknowledged_is_lost_when_processes_die(
    clusters: dict[str, Cluster], placement: str
) -> None:
    topic = velaray.handle("killed", placement)
    board = velaray.subscription_handle(
        "killed", "board", placement, initial_position=InitialPosition.Earliest
    )
    sent = [publish.remote(topic, list(range(half, COUNT, 2))) for half in range(2)]
    found: set[int] = set()
    unacknowledged: Any = None
    for wanted in (COUNT // 3, COUNT):
        while len(found) < wanted:
            try:
                batch = board.receive.remote(BATCH, timeout_s=5)
                found.update(ray.get(acknowledge.remote(board, batch)))
            except RayActorError:
                continue
        if wanted < COUNT:
            unacknowledged = ray.get(board.receive.remote(BATCH, timeout_s=30))
            for pid in victims(clusters[placement]):
                os.kill(pid, signal.SIGKILL)
    assert sorted(number for numbers in ray.get(sent) for number in numbers) == list(range(COUNT))
    assert unacknowledged and found == set(range(COUNT))
    ray.get(board.close.remote())
    assert ray.get(board.receive.remote(timeout_s=1)) == []
    (stats,) = ray.get(topic.stats.remote()).values()
    assert stats["subscriptions"]["board"]["backlog"] == 0


@ray.remote
def lose(board: velaray.SubscriptionHandle) -> None:
    """Receive messages and die with them."""
    assert ray.get(board.receive.remote(timeout_s=30))
    os.kill(os.getpid(), signal.SIGKILL)


def test_messages_of_a_dead_caller_are_redelivered(clusters: dict[str, Cluster]) -> None:
    ray.get(velaray.handle("lost", "shared").publish_many.remote([b"1", b"2"]))
    board = velaray.subscription_handle(
        *("lost", "board", "shared"), ack_timeout_s=10, initial_position=InitialPosition.Earliest
    )
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(lose.options(max_retries=0).remote(board))
    again = ray.get(board.receive.remote(timeout_s=60))
    assert [message.data() for message in again] == [b"1", b"2"]


def test_a_transaction_spans_the_tasks_of_a_program(clusters: dict[str, Cluster]) -> None:
    @ray.remote
    def work(topic: velaray.TopicHandle, txn: Any) -> None:
        ray.get(topic.publish.remote(b"in", txn=txn))

    coordinator, topic = velaray.coordinator_handle(0, "auto"), velaray.handle("txn", "auto")
    txn = ray.get(coordinator.begin.remote())
    ray.get([work.remote(topic, txn) for _ in range(2)])
    board = velaray.subscription_handle(
        "txn", "board", "auto", initial_position=InitialPosition.Earliest
    )
    assert ray.get(board.receive.remote(timeout_s=0.5)) == []
    ray.get(coordinator.commit.remote(txn))
    received = []
    while len(received) < 2:
        received += ray.get(board.receive.remote(timeout_s=30))
    with pytest.raises(velaray.TransactionNotFound):
        ray.get(work.remote(topic, txn))


@pytest.mark.long
def test_the_handles_end_with_their_cluster(nodes: RayNodes, data_dir: Path) -> None:
    for _ in range(2):
        with Cluster.start(data_dir, service_port=0, admin_port=0, name="again") as cluster:
            ray.get(velaray.handle("t", "again").publish.remote(b"1"))
            (process,) = (each for each in cluster.actors() if each["key"] == "handles")
        wait_until(partial(_has_ended, process["pid"]), "the process of the handles ends")


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    ("page", "blocks"), [("docs/handles.md", 4), ("docs/quickstart/ray.md", 2)]
)
def test_the_examples_of_the_pages_run(
    nodes: RayNodes, data_dir: Path, page: str, blocks: int
) -> None:
    examples = python_of(page)
    assert len(examples) == blocks
    # Ray prints log lines of its processes among the standard output of a driver.
    printed: list[str] = []
    names: dict[str, Any] = {
        "__name__": "__main__",
        "print": lambda *values: printed.append(" ".join(map(str, values))),
    }
    with Cluster.start(data_dir, service_port=0, admin_port=0):
        for example in examples:
            exec(example, names)
    if page == "docs/quickstart/ray.md":
        assert printed == ["4", "21.5"]
        return
    first, received, counted, error = printed
    assert re.fullmatch(r"\(\d+,0,-1,-1\)", first), first
    assert (received, counted) == ("D-AIMA b'LH401 departed'", "420")
    assert error.startswith("a message of 6291456 bytes exceeds"), error
