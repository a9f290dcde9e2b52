"""One cluster per module, in two kinds: in this process (fast), and on real Ray. Each with shared
hosts or with a host for each actor."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from benchmarks.contract import Absent
from tests.official import go_client, java_client
from tests.official.support import LocalServer, RayServer, Server, topic_name
from tests.support.local_cluster import LocalCluster
from velaray.broker.client_session import ClientSession

FOLDER = Path(__file__).parent
ON_RAY = {"test_acks.py", "test_kills.py", "test_messages.py", "test_subscriptions.py"}
RAY_TESTS = 3
"""The tests of each file in `ON_RAY` that run on Ray in `make test`.

On Ray the same code serves the same requests in other processes, so a few tests show what differs.
`make test-long` runs the others."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests on Ray as long, except for the first ones of some files."""
    kept: Counter[Path] = Counter()
    for item in items:
        parameters = getattr(item, "callspec", None)
        on_ray = parameters is not None and parameters.params.get("server") == "ray"
        if not on_ray or item.path.parent != FOLDER:
            continue
        kept[item.path] += 1
        if item.path.name not in ON_RAY or kept[item.path] > RAY_TESTS:
            item.add_marker(pytest.mark.long)


def hosts_of(request: pytest.FixtureRequest) -> int:
    """The number of shared hosts of a file's clusters: 1 if the length of its name is odd; 0 if it
    is even, so each actor has a host of its own."""
    return len(request.path.name) % 2


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The cluster that a test that asks for no more runs against."""
    hosts = hosts_of(request)
    with tempfile.TemporaryDirectory(prefix="vo-") as folder:
        if request.param == "local":
            with LocalCluster(Path(folder), hosts=hosts) as cluster:
                yield LocalServer(cluster)
                assert cluster.actor_system.failures == []
        else:
            ray_server = RayServer(Path(folder), "shared" if hosts else "dedicated")
            yield ray_server
            ray_server.cluster.stop()


@pytest.fixture(scope="module")
def local(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    """A cluster in this process, for tests that look into actors or kill them."""
    hosts = hosts_of(request)
    with (
        tempfile.TemporaryDirectory(prefix="vo-") as folder,
        LocalCluster(Path(folder), hosts=hosts) as cluster,
    ):
        yield LocalServer(cluster)
        assert cluster.actor_system.failures == []


@pytest.fixture(scope="session")
def go() -> str:
    """The program with Pulsar's Go client, for `go_client.run` and `go_client.running`."""
    try:
        return go_client.program()
    except Absent as reason:
        pytest.skip(f"no Go client here: {reason}")


@pytest.fixture(scope="session")
def java() -> str:
    """The class path of Pulsar's Java client, for `java_client.run` and `java_client.running`."""
    try:
        return java_client.class_path()
    except Absent as reason:
        pytest.skip(f"no Java client here: {reason}")


@pytest.fixture
def connect() -> Iterator[Callable[..., pulsar.Client]]:
    """Makes clients, and closes them when the test is over."""
    clients = []

    def connect(service_url: str, **kwargs) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        clients.append(pulsar.Client(service_url, logger=logger, **kwargs))
        return clients[-1]

    yield connect
    for client in clients:
        with contextlib.suppress(pulsar.AlreadyClosed):
            client.close()


@pytest.fixture
def client(server: Server, connect: Callable[..., pulsar.Client]) -> pulsar.Client:
    """A client of ``server``."""
    return connect(server.service_url)


@pytest.fixture
def accepted(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[ClientSession]:
    """The connections that the hosts of a ``server`` in this process accept from now on."""
    sessions: list[ClientSession] = []
    on_connected = ClientSession.on_connected

    def note(session: ClientSession, connection: Any) -> None:
        sessions.append(session)
        on_connected(session, connection)

    monkeypatch.setattr(ClientSession, "on_connected", note)
    return sessions


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test's own."""
    return topic_name(request.node.originalname.removeprefix("test_").replace("_", "-")[:60])
