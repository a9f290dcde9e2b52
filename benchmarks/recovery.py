"""How long an actor takes to answer: when it's created, and again after SIGKILL."""

from __future__ import annotations

import time
from collections.abc import Callable

import pulsar
import ray

from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from benchmarks.ray_actors import (
    Subject,
    bare_actor,
    kill,
    retire,
    seconds_to_answer_after_kill,
    velaray_actor,
)
from benchmarks.rig import running_cluster, touch_topic
from benchmarks.systems.official_client import connected
from velaray.cluster import NODE_HEALTH, PROXY, Cluster
from velaray.events.ids import ActorKey, TopicName

BARE = "bare Ray actor"
CREATE = "create to first answer"
KILL = "SIGKILL to first answer"
CLIENT = "SIGKILL to next receipt"
LIMIT = 1.5
TOPIC = "recovery"


def run(options: Options) -> Result:
    """Every round creates and kills each subject once, in turn."""
    samples = Samples()
    with (
        running_cluster(placement="dedicated") as cluster,
        connected(cluster.service_url) as client,
    ):
        touch_topic(client, TOPIC, "s")
        subjects = _subjects(cluster)
        for number in range(options.rounds):
            _create(samples, cluster, number)
            for name, subject in subjects.items():
                samples.add("", name, KILL, "s", seconds_to_answer_after_kill(subject))
        for value in _as_the_client_sees_it(client, subjects["partition"], options.rounds):
            samples.add("", "official client, partition killed", CLIENT, "s", value)
    result = Result(
        name="recovery",
        settings={
            "Ray": ", ".join(f"{name}={value}" for name, value in NODE_HEALTH.items()),
            BARE: "one async method, max_restarts=-1, the same Ray options as velaray's actors",
            "first answer": "a call every 10 ms until one is answered; velaray's call is "
            "answered when the actor has recovered, synced and listens",
            "byte code": "cached, as that of any installed package",
        },
        baseline=BARE,
        rows=samples.rows(),
    )
    found = {row.subject: result.ratio(row) for row in result.rows if row.measure == KILL}
    result.verdicts = [
        Verdict(f"{name}: time to answer after SIGKILL over a bare actor's", ratio, LIMIT)
        for name, ratio in found.items()
        if ratio is not None
    ]
    return result


def _subjects(cluster: Cluster) -> dict[str, Subject]:
    subjects = {BARE: bare_actor("recovery")}
    for actor in cluster.actors():
        kind, *rest = actor["key"].split("/")
        if kind == "catalog" or TOPIC in rest:
            subjects[kind] = velaray_actor(cluster, actor["key"])
    return subjects


def _create(samples: Samples, cluster: Cluster, number: int) -> None:
    """Create a bare actor, and the partition actor of a topic that was just made."""
    topic = TopicName.parse(f"created-{number}")
    proxy = ray.get_actor(PROXY, cluster.config.ray_namespace)
    incarnation = ray.get(proxy.resolve.remote(str(topic)))
    key = ActorKey.of_partition(topic, incarnation).text()
    ways: dict[str, Callable[[], Subject]] = {
        BARE: lambda: bare_actor(f"created-{number}"),
        "partition": lambda: velaray_actor(cluster, key),
    }
    for name, create in ways.items():
        began = time.perf_counter()
        subject = create()
        samples.add("", name, CREATE, "s", time.perf_counter() - began)
        if name == BARE:
            retire(subject)


def _as_the_client_sees_it(client: pulsar.Client, partition: Subject, rounds: int) -> list[float]:
    """Seconds from a kill until a `send()` that began right after it has its receipt."""
    producer = client.create_producer(TOPIC)
    waits = []
    for _ in range(rounds):
        producer.send(b"before")
        began = kill(partition)
        producer.send(b"after")
        waits.append(time.perf_counter() - began)
    producer.close()
    return waits
