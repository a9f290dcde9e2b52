"""A velaray cluster for one benchmark: its own Ray, its own directory, gone afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar

from velaray.cluster import Cluster


@contextmanager
def running_cluster(**settings: Any) -> Iterator[Cluster]:
    """A cluster on Ray of its own, with the settings that `Cluster.start` gives Ray.

    ``settings`` are those of `Cluster.start`.

    Actor processes may cache byte code, as every installed package's is: without that each
    start of an actor would compile velaray's modules anew.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    directory = Path(tempfile.mkdtemp(prefix="velaray-bench-"))
    try:
        with Cluster.start(directory, service_port=0, admin_port=0, **settings) as cluster:
            yield cluster
    finally:
        shutil.rmtree(directory)


def touch_topic(client: pulsar.Client, topic: str, subscription: str) -> None:
    """Bring a topic's partition and subscription actors to life, and leave them idle."""
    consumer = client.subscribe(topic, subscription)
    producer = client.create_producer(topic)
    producer.send(b"touch")
    consumer.acknowledge(consumer.receive(timeout_millis=30_000))
    producer.close()
    consumer.close()
