"""`velaray.connect` and `velaray.handle`: thin over discovery, which has tests on real Ray."""

import velaray
from velaray import discovery


def test_connect_uses_the_discovered_address(cluster, topic, monkeypatch):
    monkeypatch.setattr(discovery, "service_url", lambda name: cluster.service_url)
    assert velaray.service_url() == cluster.service_url
    with velaray.connect(operation_timeout_seconds=15) as client:
        assert client.get_topic_partitions(topic) == [topic]


def test_handle_returns_that_of_discovery(monkeypatch):
    monkeypatch.setattr(discovery, "handle", lambda topic, name: ("the actor of", topic, name))
    assert velaray.handle("t") == ("the actor of", "t", "standalone")
    assert velaray.handle("t", "other") == ("the actor of", "t", "other")
