"""Importing a tenant from a real Apache Pulsar (standalone, fetched from Maven Central).

Messages that its consumers acknowledged are not delivered here. All others are, although processes
are killed.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pulsar.schema import AvroSchema, Integer, Record, String

from benchmarks.contract import Absent
from benchmarks.install import install, missing
from benchmarks.systems.pulsar_standalone import PulsarStandalone
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.cli.app import main
from velaray.client.admin import Admin
from velaray.events.ids import ActorKind

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PATIENCE_MS = 60_000
CONFIG = """
maxMessageSize=1048576
topicLevelPoliciesEnabled=true
"""
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest


class One(Record):  # type: ignore[misc]
    f1 = Integer()


class Two(Record):  # type: ignore[misc]
    f1 = Integer()
    f2 = String(required_default=True)


@pytest.fixture(scope="module")
def real() -> Iterator[PulsarStandalone]:
    """Apache Pulsar itself."""
    if "pulsar" in missing() and (failed := install(["pulsar"])):
        pytest.skip(f"no Apache Pulsar here: {failed['pulsar']}")
    try:
        started = PulsarStandalone(CONFIG).__enter__()
    except Absent as error:
        pytest.skip(f"no Apache Pulsar here: {error}")
    yield started
    started.__exit__(None, None, None)


@pytest.fixture
def here(tmp_path: Path, real: PulsarStandalone) -> Iterator[LocalCluster]:
    """A cluster that knows it as it calls itself."""
    with LocalCluster(tmp_path, name="velaray", cluster_number=7) as cluster:
        Admin(cluster.admin_url).create_cluster(
            "standalone",
            service_url=real.service_url,
            admin_url=real.admin_url,
            progress="snapshots",
        )
        yield cluster


@pytest.fixture
def clients(real: PulsarStandalone, here: LocalCluster) -> Iterator[list[pulsar.Client]]:
    """The official client there, and here."""
    found = [pulsar.Client(url, logger=QUIET) for url in (real.service_url, here.service_url)]
    yield found
    for client in found:
        client.close()


def ask(real: PulsarStandalone, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{real.admin_url}/admin/v2/{path}",
        data,
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def make_tenant(real: PulsarStandalone, name: str) -> str:
    """A tenant with one namespace; returns its name with a slash behind it."""
    ask(real, "PUT", f"tenants/{name}", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]})
    ask(real, "PUT", f"namespaces/{name}/orders")
    return f"persistent://{name}/orders/"


def command(here: LocalCluster, *words: str) -> Any:
    url = ["--admin-url", here.admin_url, "-o", "json"]
    result = CliRunner().invoke(main, ["pulsar", *words, *url])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def all_here(here: LocalCluster, tenant: str) -> None:
    """Wait until nothing is missing, after subscriptions were looked at once more."""

    def rows() -> dict[str, Any]:
        return {row["topic"]: row for row in Admin(here.admin_url).pulls(tenant)}

    before = rows()

    def done() -> bool:
        now = rows()
        return all(
            row["backlog"] == 0 and row["quiet"] and row["rounds"] >= before[topic]["rounds"] + 2
            for topic, row in now.items()
        )

    wait_until(done, 60)


def send(producer: pulsar.Producer, payloads: Sequence[Any], **more: Any) -> None:
    for payload in payloads:
        producer.send_async(payload, lambda result, at: None, **more)
    producer.flush()


def take(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(PATIENCE_MS) for _ in range(count)]


def nothing_more(consumer: pulsar.Consumer) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1000)


def test_exactly_the_messages_unacknowledged_at_pulsar_are_delivered(
    real: PulsarStandalone, here: LocalCluster, clients: list[pulsar.Client]
) -> None:
    there, own = clients
    base = make_tenant(real, "gaps")
    ask(real, "PUT", "persistent/gaps/orders/many/partitions", 2)
    names = [f"{base}single", f"{base}batched", f"{base}many"]
    readers = [there.subscribe(name, "s", SHARED, initial_position=EARLIEST) for name in names]
    single = there.create_producer(names[0], batching_enabled=False)
    send(single, [b"%d" % number for number in range(100)], partition_key="k")
    batching = {"batching_enabled": True, "batching_max_publish_delay_ms": 2000}
    batched = there.create_producer(
        names[1],
        batching_max_messages=10,
        compression_type=pulsar.CompressionType.LZ4,
        **batching,
    )
    send(batched, [b"%d" % number for number in range(100)])
    many = there.create_producer(names[2], batching_enabled=False)
    send(many, [b"%d" % number for number in range(100)])

    def acknowledge(reader: pulsar.Consumer, wanted: set[int], count: int = 100) -> None:
        for message in take(reader, count):
            if int(message.data()) in wanted:
                reader.acknowledge(message)

    done = {number for number in range(100) if number < 7 or number % 3}
    acknowledge(readers[0], done)
    batches = {0, 1, 4, 5, 9}
    # Half of the third batch as well: that Pulsar doesn't tell.
    acknowledge(readers[1], {at for at in range(100) if at // 10 in batches or 30 <= at < 35})
    acknowledge(readers[2], done)

    planned = command(here, "import", "gaps", "--from", "standalone", "--dry-run")
    assert command(here, "import", "gaps", "--from", "standalone") == planned
    all_here(here, "gaps")
    found = own.subscribe(names[0], "s", SHARED)
    left = [number for number in range(100) if number not in done]
    messages = take(found, len(left))
    assert [int(message.data()) for message in messages] == left
    assert {message.partition_key() for message in messages} == {"k"}
    nothing_more(found)
    found = own.subscribe(names[1], "s", SHARED)
    left = [number for number in range(100) if number // 10 not in batches]
    assert [int(message.data()) for message in take(found, len(left))] == left
    nothing_more(found)
    found = own.subscribe(names[2], "s", SHARED)
    left = [number for number in range(100) if number not in done]
    assert sorted(int(message.data()) for message in take(found, len(left))) == left
    nothing_more(found)
    assert command(here, "finish", "gaps", "--from", "standalone")["notes"] == []
    stats = ask(real, "GET", "persistent/gaps/orders/single/stats")
    assert list(stats["subscriptions"]) == ["s"]
    assert not here.actor_system.failures


def test_messages_arrive_unchanged_from_pulsar(
    real: PulsarStandalone, here: LocalCluster, clients: list[pulsar.Client], tmp_path: Path
) -> None:
    there, own = clients
    base = make_tenant(real, "kinds")
    topic = f"{base}typed"
    ones = there.create_producer(topic, "ones", schema=AvroSchema(One))
    ones.send(One(f1=1), properties={"a": "b"}, event_timestamp=5, ordering_key="o")
    twos = there.create_producer(topic, "twos", schema=AvroSchema(Two))
    twos.send(Two(f1=2, f2="two"))
    delayed = there.create_producer(f"{base}delayed", batching_enabled=False)
    delayed.send(b"late", deliver_at=int(time.time() * 1000) + 20_000)
    delayed.send(b"now")
    chunked = there.create_producer(f"{base}large", batching_enabled=False, chunking_enabled=True)
    chunked.send(b"x" * (3 << 20))
    keys = _keys(tmp_path)
    secret = there.create_producer(
        f"{base}secret", encryption_key="k", crypto_key_reader=keys, batching_enabled=True
    )
    secret.send(b"secret")
    command(here, "import", "kinds", "--from", "standalone")
    all_here(here, "kinds")

    typed = own.subscribe(topic, "s", schema=AvroSchema(Two), initial_position=EARLIEST)
    first, second = take(typed, 2)
    assert (first.value().f1, second.value().f1, second.value().f2) == (1, 2, "two")
    assert first.properties()["a"] == "b"
    assert (first.event_timestamp(), first.ordering_key()) == (5, "o")
    assert (first.producer_name(), second.producer_name()) == ("ones", "twos")
    late = own.subscribe(f"{base}delayed", "s", SHARED, initial_position=EARLIEST)
    message = late.receive(PATIENCE_MS)
    assert message.data() == b"now"
    message = late.receive(30_000)
    assert message.data() == b"late"
    large = own.subscribe(f"{base}large", "s", initial_position=EARLIEST)
    assert large.receive(PATIENCE_MS).data() == b"x" * (3 << 20)
    opened = own.subscribe(f"{base}secret", "s", crypto_key_reader=keys, initial_position=EARLIEST)
    assert opened.receive(PATIENCE_MS).data() == b"secret"
    versions = Admin(here.admin_url).request("GET", "schemas/kinds/orders/typed/schemas")
    assert [row["version"] for row in versions["getSchemaResponses"]] == [0, 1]
    command(here, "finish", "kinds", "--from", "standalone")
    assert own.create_producer(topic, "twos", schema=AvroSchema(Two)).last_sequence_id() == 0
    assert not here.actor_system.failures


def _keys(path: Path) -> pulsar.CryptoKeyReader:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = path / "private.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public = path / "public.pem"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return pulsar.CryptoKeyReader(str(public), str(private))


def test_producers_continue_at_pulsar_while_actors_are_killed(
    real: PulsarStandalone, here: LocalCluster, clients: list[pulsar.Client]
) -> None:
    there, own = clients
    topic = make_tenant(real, "kills") + "t"
    reader = there.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    producer = there.create_producer(topic, batching_max_messages=7, block_if_queue_full=True)
    send(producer, [b"0"])
    command(here, "import", "kills", "--from", "standalone")
    for turn in range(10):
        first = 1 + turn * 500
        send(producer, [b"%d" % number for number in range(first, first + 500)])
        kinds = (ActorKind.INBOUND_REPLICATOR, ActorKind.PARTITION, ActorKind.SUBSCRIPTION)
        for key in here.keys(kinds[turn % 3]):
            if key.tenant == "kills":
                here.kill(key)
        if turn == 5:
            ask(real, "PUT", "persistent/kills/orders/t/unload")
    got = [int(message.data()) for message in take(reader, 5001)]
    assert got == list(range(5001))
    all_here(here, "kills")
    found = own.subscribe(topic, "s", SHARED)
    assert [int(message.data()) for message in take(found, 5001)] == list(range(5001))
    nothing_more(found)
    assert not here.actor_system.failures


def test_messages_of_transactions_arrive_after_their_commit(
    real: PulsarStandalone, here: LocalCluster, clients: list[pulsar.Client]
) -> None:
    there, own = clients
    base = make_tenant(real, "transactions")
    source, target = f"{base}source", f"{base}target"
    there.subscribe(source, "results", SHARED, initial_position=EARLIEST).close()
    send(there.create_producer(source), [b"%d" % number for number in range(200)])
    with real.transactor(source, target, "", 4) as transactor:
        # The rest is too little for some: they abort.
        wait_until(lambda: transactor.run(20, 4, 20.0).messages, 60)
    command(here, "import", "transactions", "--from", "standalone")
    all_here(here, "transactions")
    before = there.subscribe(target, "look", SHARED, initial_position=EARLIEST)
    wanted = all_of(before)
    assert wanted and len(wanted) % 20 == 0
    stats = ask(real, "GET", "persistent/transactions/orders/target/internalStats")
    assert stats["numberOfEntries"] > len(wanted) // 20  # there are markers besides
    assert all_of(own.subscribe(target, "s", SHARED, initial_position=EARLIEST)) == wanted
    command(here, "finish", "transactions", "--from", "standalone")


def all_of(consumer: pulsar.Consumer) -> list[bytes]:
    """The payloads of all that comes."""
    found = []
    try:
        while True:
            found.append(consumer.receive(2000).data())
    except pulsar.Timeout:
        return found
