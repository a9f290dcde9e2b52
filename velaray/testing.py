"""A pytest plugin: a cluster for a test session, a namespace for each test, and faults.

Enable it in ``conftest.py``::

    pytest_plugins = ["velaray.testing"]

Fixtures: ``velaray_cluster`` (a `FaultyCluster`, one per session), ``velaray_namespace`` (the name
of a new namespace, which is deleted after the test), ``velaray_topic`` (the name of a topic in it),
and ``velaray_client`` (a client, which is closed after the test). The journals are in memory;
``pytest --velaray-disk`` puts them into a temporary directory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from velaray.broker.client_listener import ClientListener
from velaray.broker.client_session import ClientSession
from velaray.broker.proxy.proxy import ProxySession
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.geo.actor_kinds import make_actor
from velaray.journal.store import LedgerStore
from velaray.local import START_TIMEOUT_S, LocalActorSystem, LocalCluster

if TYPE_CHECKING:
    from velaray import Client

_numbers = itertools.count(1)


class _StoppableClock(LocalActorSystem):
    """The actors of a `FaultyCluster`, whose clock can be stopped."""

    stopped_at_ms: int | None = None

    def clock_ms(self) -> int:
        """Wall-clock milliseconds, or the moment at which the clock was stopped."""
        return super().clock_ms() if self.stopped_at_ms is None else self.stopped_at_ms


class FaultyCluster(LocalCluster):
    """A `LocalCluster` with faults to inject.

    After each of them an application must go on without a loss of what was acknowledged to it.
    """

    actor_system: _StoppableClock

    def _make_actor_system(self, store: LedgerStore) -> _StoppableClock:
        return _StoppableClock(self.config, store, make_actor, hosts=1)

    def kill_topic(self, topic: str) -> int:
        """End the partitions of a topic as SIGKILL would; their next use recovers them.

        ``topic`` may be one partition's name. Returns how many ran.
        """
        return self._kill(ActorKind.PARTITION, TopicName.parse(topic), lambda key: True)

    def kill_subscription(self, topic: str, subscription: str) -> int:
        """As `kill_topic`, for the actors of a subscription."""
        named = TopicName.parse(topic)
        return self._kill(
            ActorKind.SUBSCRIPTION, named, lambda key: key.subscription == subscription
        )

    def kill_all(self) -> int:
        """End every actor as the end of its process would. Returns how many ran."""
        return self._kill(None, None, lambda key: True)

    def _kill(
        self, kind: ActorKind | None, topic: TopicName | None, wanted: Callable[[ActorKey], bool]
    ) -> int:
        async def kill() -> int:
            found = [
                key
                for key in self.actor_system.actors
                if (kind is None or key.kind is kind)
                and (topic is None or topic in (key.topic_name, key.topic_name.topic))
                and wanted(key)
            ]
            for key in found:
                self.actor_system.kill(key)
            return len(found)

        return self._run(kill(), START_TIMEOUT_S)

    def cut_connections(self) -> int:
        """Cut the connections of all clients, as a failing network would. Returns their number."""

        async def cut() -> int:
            sessions: list[ClientSession | ProxySession] = [*self._proxy.sessions]
            for host in self.actor_system.shared_hosts:
                sessions += host.part(ClientListener).sessions
            for session in sessions:
                session.connection.abort()
            return len(sessions)

        return self._run(cut(), START_TIMEOUT_S)

    @contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """Stop the clock of the cluster: messages get one publish time, delays don't end, nothing
        expires. Clients have clocks of their own."""
        self.actor_system.stopped_at_ms = self.actor_system.clock_ms()
        try:
            yield
        finally:
            self.actor_system.stopped_at_ms = None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--velaray-disk``."""
    parser.getgroup("velaray").addoption(
        "--velaray-disk",
        action="store_true",
        help="Keep the journals of the test cluster in a temporary directory, not in memory.",
    )


@pytest.fixture(scope="session")
def velaray_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyCluster]:
    """A cluster for the session."""
    on_disk = request.config.getoption("--velaray-disk")
    data_dir = tmp_path_factory.mktemp("velaray") if on_disk else None
    with FaultyCluster.start(data_dir) as cluster:
        yield cluster


@pytest.fixture
def velaray_namespace(velaray_cluster: FaultyCluster) -> Iterator[str]:
    """The name of a new namespace, ``public/test-<number>``; it is deleted after the test."""
    admin = Admin(velaray_cluster.admin_url)
    name = f"public/test-{next(_numbers)}"
    admin.namespaces.create(name)
    yield name
    admin.namespaces.delete(name, force=True)


@pytest.fixture
def velaray_topic(velaray_namespace: str) -> str:
    """The name of a topic that doesn't exist yet."""
    return f"persistent://{velaray_namespace}/topic"


@pytest.fixture
def velaray_client(velaray_cluster: FaultyCluster) -> Iterator[Client]:
    """A client of the cluster; it is closed after the test."""
    import velaray

    client = velaray.Client(velaray_cluster.service_url)
    yield client
    client.close()
