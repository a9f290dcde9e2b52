"""Transforms on real Ray: their counts are exact, whichever process gets SIGKILL."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import velaray
from tests.ray.support import actors, wait_until
from tests.support.samples import python_of
from velaray.client.policies import ConsumerDeadLetterPolicy
from velaray.cluster import Cluster
from velaray.pipelines import Output, Transform, TransformProgress, TransformRun

COUNT = 3000
PARTITIONS = 2
VICTIMS = ("worker", "subscription", "coordinator", "partition") * 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A velaray cluster on a Ray of its own."""
    with Cluster.start(tmp_path_factory.mktemp("data"), service_port=0, admin_port=0) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[velaray.Client]:
    """A client of it."""
    with velaray.Client(cluster.service_url) as client:
        yield client


def fill(client: velaray.Client, topic: str, count: int) -> None:
    """Publish numbers."""
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(b"%d" % number, None)
    producer.close()


def numbers(client: velaray.Client, topic: str) -> list[int]:
    """Every number in a topic, in ascending order, as often as it is there."""
    return sorted(int(message.data()) for message in messages(client, topic))


def messages(client: velaray.Client, topic: str) -> list[velaray.Message]:
    """Every message in a topic."""
    found = []
    for part in client.get_topic_partitions(topic):
        reader = client.create_reader(part, velaray.MessageId.earliest)
        while reader.has_message_available():
            found.append(reader.read_next(20_000))
        reader.close()
    return found


def slowly_sorted(even: str, odd: str) -> Any:
    def split(messages: list[velaray.Message]) -> Iterator[Output]:
        threading.Event().wait(0.05)
        for message in messages:
            number = int(message.data())
            yield Output(odd if number % 2 else even, message.data(), str(number % 10))

    return split


def consumed(run: TransformRun, count: int) -> TransformProgress:
    """The progress once so many are consumed."""
    wait_until(lambda: run.progress().counts.consumed >= count, f"{count} are consumed")
    return run.progress()


def shoot(cluster: Cluster, run: TransformRun, kind: str, number: int) -> None:
    """SIGKILL one process of a kind."""
    if kind == "worker":
        pids = wait_until(lambda: run.progress().workers, "a worker")
    else:
        pids = [each["pid"] for each in wait_until(lambda: actors(cluster, kind), f"a {kind}")]
    os.kill(pids[number % len(pids)], signal.SIGKILL)


@pytest.mark.slow
def test_every_message_counts_once_after_any_kill(cluster: Cluster, client: velaray.Client) -> None:
    topics = ("in", "even", "odd")
    for topic in topics:
        velaray.Admin(cluster.admin_url).create_topic(topic, partitions=PARTITIONS)
    fill(client, "in", COUNT)
    transform = Transform(
        slowly_sorted("even", "odd"), "in", "s", batch_size=50, transaction_timeout=5
    )
    with TransformRun(transform, 2) as run:
        for number, kind in enumerate(VICTIMS):
            consumed(run, number * COUNT // 2 // len(VICTIMS))
            shoot(cluster, run, kind, number)
        done = run.drain(120)
    assert done.deaths == 2
    assert numbers(client, "even") == list(range(0, COUNT, 2))
    assert numbers(client, "odd") == list(range(1, COUNT, 2))


def test_workers_are_added_and_removed(cluster: Cluster, client: velaray.Client) -> None:
    fill(client, "numbers", 1000)
    run = TransformRun(Transform(slowly_sorted("a", "b"), "numbers", "s", batch_size=20), 1)
    wait_until(lambda: len(run.progress().workers) == 1, "one worker")
    wait_until(lambda: run.progress().backlog is not None, "a known backlog")
    run.scale(3)
    wait_until(lambda: len(run.progress().workers) == 3, "three workers")
    run.scale(1)
    wait_until(lambda: len(run.progress().workers) == 1, "one worker again")
    with pytest.raises(TimeoutError):
        run.wait(0.1)
    done = consumed(run, 1000)
    assert done.running
    done = run.stop()
    assert (done.running, done.workers) == (False, ())
    assert numbers(client, "a") == list(range(0, 1000, 2))
    with pytest.raises(velaray.InvalidConfiguration):
        run.scale(2)


def test_the_error_of_the_function_reaches_the_driver(
    cluster: Cluster, client: velaray.Client
) -> None:
    fill(client, "bad", 10)

    def fail(messages: list[velaray.Message]) -> None:
        raise ZeroDivisionError(f"{len(messages)} messages")

    with pytest.raises(ZeroDivisionError, match="messages"):
        TransformRun(Transform(fail, "bad", "s"), 2).wait(60)
    policy = ConsumerDeadLetterPolicy(1)
    transform = Transform(fail, "bad", "s", dead_letters=policy, retry_delay=0)
    done = TransformRun(transform, 2).drain(60)
    assert (done.counts.retried, done.counts.dead) == (10, 10)
    assert numbers(client, "bad-s-DLQ") == list(range(10))


def test_a_worker_that_dies_at_once_is_replaced_with_back_off(
    cluster: Cluster, client: velaray.Client
) -> None:
    fill(client, "deadly", 1)

    def die(messages: list[velaray.Message]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    run = TransformRun(Transform(die, "deadly", "s"), 1)
    wait_until(lambda: run.progress().deaths >= 2, "two deaths")
    assert run.progress().running
    done = run.stop()
    assert done.counts.consumed == 0
    assert done.workers == ()


def test_no_process_is_left_behind(cluster: Cluster, client: velaray.Client) -> None:
    fill(client, "left", 1)
    run = TransformRun(Transform(slowly_sorted("c", "d"), "left", "s"), 2)
    wait_until(lambda: len(run.progress().workers) == 2, "two workers")
    pids = run.progress().workers
    run.stop()
    wait_until(lambda: not any(map(alive, pids)), "their processes end")
    assert ray.is_initialized()


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_example_of_the_readme_runs(cluster: Cluster, client: velaray.Client) -> None:
    producer = client.create_producer("arrivals")
    for text in (b"AA 16", b"B6 15", b"AA 99"):
        producer.send(text)
    (example,) = (block for block in python_of("README.md") if "Transform(" in block)
    exec(example, {"__name__": "__main__"})
    assert [message.data() for message in messages(client, "late")] == [b"AA 16", b"AA 99"]
