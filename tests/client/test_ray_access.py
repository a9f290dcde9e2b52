"""`velaray.connect` and `velaray.handle`: thin over discovery, which has tests on real Ray."""

import velaray
from velaray import InitialPosition, discovery


def test_connect_uses_the_discovered_address(cluster, topic, monkeypatch):
    monkeypatch.setattr(discovery, "service_url", lambda name: cluster.service_url)
    assert velaray.service_url() == cluster.service_url
    with velaray.connect(operation_timeout_seconds=15) as client:
        assert client.get_topic_partitions(topic) == [topic]


def test_handles_are_those_of_discovery(monkeypatch):
    monkeypatch.setattr(discovery, "handles", lambda name: Serving(name))
    assert velaray.handle("t").describe.remote() == (
        ("standalone", "topic", ("t",), "describe"),
        {},
    )
    assert velaray.subscription_handle("t", "s", "other").receive.remote(7, timeout_s=1) == (
        ("other", "subscription", ("t", "s", 60.0, InitialPosition.Latest), "receive", 7),
        {"timeout_s": 1},
    )


class Serving:
    """Stands for the actor that serves the handles: calls return their arguments."""

    def __init__(self, name):
        self._name = name
        self.invoke = self

    def remote(self, *args, **kwargs):
        return (self._name, *args), kwargs
