"""`velaray.connect` and `velaray.handle`: thin over discovery, which has tests on real Ray."""

import velaray
from velaray import discovery


def test_connect_goes_where_discovery_says(cluster, topic, monkeypatch):
    monkeypatch.setattr(discovery, "service_url", lambda name: cluster.service_url)
    assert velaray.service_url() == cluster.service_url
    with velaray.connect(operation_timeout_seconds=15) as client:
        assert client.get_topic_partitions(topic) == [topic]


def test_handle_is_discoverys(monkeypatch):
    monkeypatch.setattr(discovery, "handle", lambda topic: ("the actor of", topic))
    assert velaray.handle("t") == ("the actor of", "t")
