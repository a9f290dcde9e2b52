"""Pulsar's Go client, as it is: its scenarios are in go/*.go."""

from __future__ import annotations

from tests.official import go_client
from tests.official.support import LocalServer, create_partitioned, numbered


def test_messages_are_sent_and_received(go: str, local: LocalServer, topic: str) -> None:
    lines = [payload.decode() for payload in numbered(100)]
    with (
        go_client.running(go, "consume", local.service_url, topic, "s") as consumer,
        go_client.running(go, "publish", local.service_url, topic) as producer,
    ):
        assert consumer.line() == producer.line() == "ready"
        producer.tell(*lines)
        assert [producer.line().split()[:2] for _ in lines] == [["sent", line] for line in lines]
        assert [consumer.line() for _ in lines] == lines


def test_a_failover_consumer_is_notified_that_it_is_active(
    go: str, local: LocalServer, topic: str
) -> None:
    create_partitioned(local, topic, 3)
    with go_client.running(go, "failover", local.service_url, topic, "s") as consumer:
        told = {consumer.line() for _ in range(3)}
    assert told == {"active 0", "active 1", "active 2"}


def test_values_of_the_bytes_schema_are_decoded(go: str, local: LocalServer, topic: str) -> None:
    go_client.run(go, "bytes", local.service_url, topic)


def test_a_pattern_in_a_missing_namespace_has_no_topics(go: str, local: LocalServer) -> None:
    pattern = "persistent://public/missing/.*"
    with go_client.running(go, "pattern", local.service_url, pattern, "s") as consumer:
        assert consumer.line() == "ready"
