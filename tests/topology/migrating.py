"""A tenant in one of two clusters that know each other, and what it takes to have it move."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pulsar

from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.neighbours import ask, create, neighbours
from tests.support.waiting import wait_until
from tests.topology.replicating import QUIET, Official
from velaray.admin.api import serve_admin
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey, TopicName

PATIENCE_S = 60
MIGRATIONS = "velaray/migrations/acme"


class Move(Official):
    """Tenant acme, with namespace acme/n, is in cluster ``a``; ``b`` is the other one."""

    def __init__(self, a: LocalCluster, b: LocalCluster) -> None:
        self.a = a
        self.b = b
        self.client = pulsar.Client(a.service_url, logger=QUIET, operation_timeout_seconds=60)

    def begin(self, **more: Any) -> dict[str, Any]:
        """Have it move to ``b``."""
        body = {"target": self.b.config.name, **more}
        return dict(Admin(self.a.admin_url).request("POST", MIGRATIONS, body))

    def roll_back(self) -> None:
        Admin(self.a.admin_url).roll_back_migration("acme")

    def status(self) -> dict[str, Any]:
        """What the source tells of the migration."""
        return Admin(self.a.admin_url).migration("acme")

    def phase(self) -> str:
        return str(ask(self.a, "migration", tenant="acme")["phase"])

    def reaches(self, *phases: str) -> str:
        """Wait until it is in one of these phases."""

        def there() -> str | None:
            phase = self.phase()
            return phase if phase in phases else None

        try:
            return str(wait_until(there, PATIENCE_S))
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.status()}") from error

    def home(self, cluster: LocalCluster) -> str:
        """The tenant's home, according to a cluster."""
        return Admin(cluster.admin_url).tenant_home("acme")

    def message_status(self, cluster: LocalCluster) -> dict[str, Any]:
        """The tenant's data in a cluster, for any caller."""
        return dict(ask(cluster, "tenant_objects", tenant="acme"))

    def partition(self, cluster: LocalCluster, topic: str) -> ActorKey:
        name = TopicName.parse(topic)
        found = ask(cluster, "topic", topic=str(name))
        return ActorKey.of_partition(name, found["incarnation"])

    def stats(self, cluster: LocalCluster, topic: str) -> dict[str, Any]:
        key = self.partition(cluster, topic)
        return dict(cluster.run(call_by_name(cluster.actor_system, key, "stats")))


class Publishing:
    """The official client publishes 0, 1, ... from a thread, and counts its receipts."""

    def __init__(self, client: pulsar.Client, topic: str, name: str = "p") -> None:
        self._producer = client.create_producer(topic, producer_name=name, send_timeout_millis=0)
        self._stop = threading.Event()
        self.confirmed = 0
        self.failed: list[Exception] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._producer.send(str(self.confirmed).encode())
            except pulsar.PulsarException as error:
                self.failed.append(error)
                return
            self.confirmed += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._producer.close()
        assert not self.failed

    def stop(self) -> None:
        """Publish nothing more."""
        self._stop.set()
        self._thread.join()

    def goes_on(self, by: int = 20) -> None:
        """Wait for so many more receipts."""
        before = self.confirmed
        wait_until(lambda: self.failed or self.confirmed >= before + by, PATIENCE_S)


def numbers(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


@contextmanager
def migrating(path: Path, **of_b: Any) -> Iterator[Move]:
    """Two clusters, and tenant acme in the first one."""
    with neighbours(path, **of_b) as (a, b):
        create("acme/n", a)
        move = Move(a, b)
        yield move
        move.client.close()


@contextmanager
def away(cluster: LocalCluster) -> Iterator[None]:
    """Make the cluster unreachable within the context: no open port, no connection."""
    admin_port, service_port = cluster._admin_port, cluster.proxy.port

    async def close() -> None:
        await cluster._admin.cleanup()
        await cluster.proxy.stop()
        for key in list(cluster.actor_system.actors):
            cluster.actor_system.kill(key)

    async def open_again() -> None:
        await cluster.proxy.start(service_port)
        cluster._admin, _ = await serve_admin(cluster.actor_system, cluster.config.host, admin_port)

    cluster.run(close())
    try:
        yield
    finally:
        cluster.run(open_again())
