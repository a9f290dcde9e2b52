"""Apache Pulsar with BookKeeper in one process (standalone), through the official client."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Self

from benchmarks.contract import RESULTS, UNBATCHED, Absent, Transactor
from benchmarks.install import class_path
from benchmarks.servers import free_port, running, scratch, wait_until
from benchmarks.systems import official_client
from benchmarks.systems.official_client import Sender, Taker
from benchmarks.systems.pulsar_transactions import JavaClient

_HEAP = ("-Xmx2g", "-XX:MaxDirectMemorySize=4g", "-XX:+UseZGC", "-XX:+PerfDisableSharedMem")
_PACKAGES = (
    *("java.base/java.io", "java.base/java.util.zip", "java.base/java.nio"),
    *("java.base/jdk.internal.misc", "java.base/jdk.internal.platform", "java.base/sun.net"),
    "java.management/sun.management",
)
_DRIVERS = {
    "bookie": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "client": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
}
_ANSWER_WITHIN_S = 5.0
_CONFIG = """
brokerServicePort={port}
webServicePort={web}
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
clusterName=standalone
metadataStoreUrl=
configurationMetadataStoreUrl=
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
loadBalancerEnabled=false
allowAutoTopicCreationType=non-partitioned
brokerDeleteInactiveTopicsEnabled=false
webSocketServiceEnabled=false
systemTopicEnabled=true
topicLevelPoliciesEnabled=false
transactionCoordinatorEnabled=true
journalSyncData=true
"""
_LOG = """
status = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c{1} %m%n
"""


class PulsarStandalone:
    """Broker, bookie and metadata store in one Java process."""

    def __init__(self, config: str = "") -> None:
        """``config`` are lines of its configuration besides ours."""
        self._config = config
        self.settings = {
            "server": "Apache Pulsar standalone, one bookie, journalSyncData=true (BookKeeper's "
            f"default), transactions enabled, no functions, {' '.join(_HEAP[:2])}",
            "client": official_client.SETTINGS,
            "transactions": "Java client: a Shared consumer, a thread and a producer for each "
            "transaction in flight; receive() and sendAsync() per message, one acknowledgement of "
            "a list of ids",
        }

    def __enter__(self) -> Self:
        jars = class_path("pulsar")
        self.settings["version"] = _version(jars)
        with ExitStack() as stack:
            directory = stack.enter_context(scratch("pulsar"))
            port = free_port()
            web = free_port()
            words = _command(directory, jars, port, web, self._config)
            self._server = stack.enter_context(running(words, directory))
            wait_until(lambda: _has_namespace(web), self._server, directory)
            self.service_url = url = f"pulsar://127.0.0.1:{port}"
            self.admin_url = f"http://127.0.0.1:{web}"
            self._client = stack.enter_context(official_client.connected(url))
            self._java = JavaClient(url, jars, directory / "java-client.log")
            stack.callback(self._java.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def servers(self) -> Iterable[int]:
        """See `benchmarks.contract.Peer`."""
        return [self._server.pid]

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        """See `benchmarks.contract.Peer`."""
        for name in subscriptions:
            self._client.subscribe(topic, name).close()

    def remove(self, topic: str) -> None:
        """See `benchmarks.contract.Peer`. Acknowledged ledgers go by themselves."""

    def sender(self, topic: str, way: str) -> AbstractContextManager[Sender]:
        """See `benchmarks.contract.Peer`."""
        return official_client.sender(self._client, topic, way)

    def single_sender(self, topic: str, way: str) -> AbstractContextManager[Sender]:
        """See `benchmarks.contract.Peer`."""
        return official_client.sender(self._client, topic, UNBATCHED)

    def taker(self, topic: str, subscription: str, way: str) -> AbstractContextManager[Taker]:
        """See `benchmarks.contract.Peer`."""
        return official_client.taker(self._client, topic, subscription)

    @contextmanager
    def transactor(
        self, source: str, target: str, way: str, most_at_once: int
    ) -> Iterator[Transactor]:
        """See `benchmarks.contract.TransactionalPeer`."""
        self.prepare(target, [RESULTS])
        with self._java.transactor(source, target, most_at_once) as transactor:
            yield transactor


def _has_namespace(web: int) -> bool:
    """Whether the server has made ``public/default``: the last thing it does when it starts."""
    url = f"http://127.0.0.1:{web}/admin/v2/namespaces/public/default"
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_WITHIN_S):
            return True
    except OSError:
        return False


def _command(directory: Path, jars: str, port: int, web: int, more: str) -> list[str]:
    config, log = directory / "standalone.conf", directory / "log4j2.properties"
    config.write_text(_CONFIG.format(port=port, web=web) + more)
    log.write_text(_LOG)
    return [
        *("java", *_HEAP, f"-Dlog4j2.configurationFile={log}"),
        *(f"-Dbookkeeper.metadata.{kind}.drivers={name}" for kind, name in _DRIVERS.items()),
        "-Dio.netty.tryReflectionSetAccessible=true",
        *_opens(),
        *("-cp", jars, "org.apache.pulsar.PulsarStandaloneStarter", "-c", str(config)),
        *("-nfw", "-nss", "-a", "127.0.0.1"),
        *("--zookeeper-dir", str(directory / "metadata")),
        *("--bookkeeper-dir", str(directory / "bookie"), "--bookkeeper-port", str(free_port())),
    ]


def _opens() -> Iterator[str]:
    for package in _PACKAGES:
        yield from ("--add-opens", f"{package}=ALL-UNNAMED")


def _version(jars: str) -> str:
    for jar in Path(jars).parent.glob("pulsar-broker-[0-9]*.jar"):
        return jar.stem.rpartition("-")[2]
    raise Absent("there is no pulsar-broker among the fetched jars")
