"""A tenant in two clusters, the first of which is lost and comes back."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.neighbours import ask, create, introduce, settle, stored
from tests.support.waiting import wait_until
from velaray.client.admin import Admin, NotFound
from velaray.events.ids import ActorKey, TopicName

TOPIC = "persistent://acme/n/t"
PATIENCE_MS = 30_000


class Disaster:
    """The home of tenant acme is ``a``, which replicates it to ``b``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()
        self._of_a = ExitStack()

    def __enter__(self) -> Self:
        self.b = self._stack.enter_context(
            LocalCluster(self._path / "b", name="b", cluster_number=2)
        )
        self._stack.callback(lambda: self._of_a.close())
        self.a = self._start()
        self.port = self.a.proxy.port
        introduce(self.a, self.b)
        introduce(self.b, self.a)
        create("acme/n", self.a, self.b)
        for cluster in (self.a, self.b):
            ask(cluster, "update_tenant", tenant="acme", allowed_clusters=["a", "b"])
        ask(self.a, "set_policy", namespace="acme/n", name="replication", value=b'["a","b"]')
        settle("acme", "a", self.b)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _start(self, port: int = 0) -> LocalCluster:
        a = LocalCluster(self._path / "a", name="a", cluster_number=1, service_port=port)
        return self._of_a.enter_context(a)

    def wait_for_the_rest(self, messages: int, unacknowledged: int) -> None:
        """Wait until ``b`` has so many messages and the progress of their acknowledgements."""
        wait_until(lambda: stored(self.b, TOPIC) == messages, 30)
        name = TopicName.parse(TOPIC)
        found = ask(self.b, "topic", topic=TOPIC)
        key = ActorKey.of_partition(name, found["incarnation"])

        def told() -> bool:
            self.b.run(call_by_name(self.b.actor_system, key, "settle_progress", {}))
            return self.backlog() == unacknowledged

        wait_until(told, 30)

    def backlog(self) -> int:
        """The number of unacknowledged messages in ``b``; -1 without a subscription."""
        with suppress(NotFound):
            found = Admin(self.b.admin_url).stats(TOPIC)["subscriptions"]
            return int(found["s"]["msgBacklog"]) if "s" in found else -1
        return -1

    def lose(self) -> None:
        """Lose ``a``, and continue its tenant in ``b``."""
        self._of_a.close()
        Admin(self.b.admin_url).fail_over_tenant("acme")

    def bring_back(self) -> None:
        """Start ``a`` again at its old address, with the new home of its tenant."""
        settle("acme", "b", self._start())  # no client uses this port
        self._of_a.close()
        self.a = self._start(self.port)


def goes_on_and_comes_back(path: Path, library: Any, receipt: dict[str, bool]) -> None:
    """A client of ``library`` (velaray, or the official one) uses whichever cluster answers."""
    with Disaster(path) as clusters:
        urls = [cluster.service_url for cluster in (clusters.a, clusters.b)]
        primary, secondary = map(library.ServiceInfo, urls)
        client = library.Client(library.AutoClusterFailover(primary, [secondary], 100))
        try:
            consumer = client.subscribe(
                TOPIC,
                "s",
                consumer_type=library.ConsumerType.Shared,
                replicate_subscription_state_enabled=True,
            )
            producer = client.create_producer(TOPIC, producer_name="p")
            _exchange(producer, consumer, range(10), range(10), range(5), receipt)
            clusters.wait_for_the_rest(10, 5)
            for happens, url, sent, got in (
                (clusters.lose, urls[1], range(10, 15), range(5, 15)),
                (clusters.bring_back, urls[0], range(15, 20), range(15, 20)),
            ):
                happens()
                wait_until(lambda to=url: client.get_service_info().service_url == to, 30)
                _exchange(producer, consumer, sent, got, got, receipt)
                wait_until(lambda: clusters.backlog() == 0, 30)
                assert stored(clusters.b, TOPIC) == sent.stop
        finally:
            client.close()


def _exchange(
    producer: Any,
    consumer: Any,
    sent: range,
    expected: range,
    acknowledged: range,
    receipt: dict[str, bool],
) -> None:
    """Publish numbers, and receive exactly what is expected; acknowledge some."""
    for number in sent:
        producer.send(b"%d" % number)
    got = []
    while len(got) < len(expected):
        message = consumer.receive(PATIENCE_MS)
        got.append(int(message.data()))
        if got[-1] in acknowledged:
            consumer.acknowledge(message, **receipt)
    assert sorted(got) == list(expected)
