"""A message that kills every consumer goes to the dead-letter topic, and its neighbours don't."""

from __future__ import annotations

import subprocess
import sys

import pulsar
import pytest

from tests.official import dying_consumer
from tests.official.support import (
    LocalServer,
    backlog,
    data,
    eventually,
    nothing_comes,
    numbered,
    partition_key,
    publish,
    receive,
)
from velaray.client.admin import Admin

SHARED, KEY_SHARED = "Shared", "KeyShared"
MOST_DEATHS = 12


@pytest.fixture
def client(local: LocalServer):
    made = pulsar.Client(local.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("kind", "threads", "by_client", "good"),
    [
        (SHARED, 1, False, 10_000),
        pytest.param(SHARED, 1, True, 1_000, marks=pytest.mark.slow),
        pytest.param(SHARED, 4, False, 1_000, marks=pytest.mark.slow),
        pytest.param(KEY_SHARED, 1, False, 1_000, marks=pytest.mark.slow),
    ],
)
def test_only_the_message_that_kills_becomes_a_dead_letter(
    local: LocalServer, client, topic: str, kind: str, threads: int, by_client: bool, good: int
) -> None:
    client.subscribe(topic, "s", getattr(pulsar.ConsumerType, kind)).close()
    if not by_client:
        key = partition_key(local, topic)
        Admin(local.cluster.admin_url).set_policy_of(topic, "deadLetter", {"maxRedeliverCount": 2})
        eventually(lambda: local.cluster.actor_system.actors[key].policies.raw["deadLetter"])
    producer = client.create_producer(topic, block_if_queue_full=True)
    before = good * 3 // 5
    publish(producer, numbered(before))
    publish(producer, [b"poison"])
    publish(producer, numbered(good - before))
    deaths = 0
    words = [local.service_url, topic, kind, str(threads), "2" if by_client else "none"]
    program = [sys.executable, dying_consumer.__file__, *words]
    while (ended := subprocess.run(program, check=False).returncode) == dying_consumer.KILLED:
        deaths += 1
        assert deaths <= MOST_DEATHS
    assert ended == 0
    assert deaths >= 3  # delivered once, and twice again
    dead = f"{topic}-dead" if by_client else f"{topic}-s-DLQ"
    look = client.subscribe(dead, "look", initial_position=pulsar.InitialPosition.Earliest)
    letters = [*data(receive(look, 1))]
    while len(letters) < threads:
        try:
            letters.append(look.receive(500).data())
        except pulsar.Timeout:
            break
    assert letters.count(b"poison") == 1
    assert nothing_comes(look)
    eventually(lambda: backlog(local, topic, "s") == 0)
