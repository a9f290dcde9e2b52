"""Taking a tenant over by pulling: what it has is made here, and pulled until that is ended."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner
from pulsar.schema import AvroSchema, Integer, Record

from tests.support.local_cluster import LocalCluster
from tests.topology.replicating import Cluster, clusters, nothing_more, received, soon
from velaray.broker.catalog import catalog_actor
from velaray.cli.app import main
from velaray.client.admin import Admin, Conflict, NotFound, PreconditionFailed, Unavailable
from velaray.events.ids import ActorKey

_numbers = itertools.count(1)


class One(Record):  # type: ignore[misc]
    f1 = Integer()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    """A source, old, and a cluster that takes over from it, new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_actor, "PULL_WAKE_S", 0.1)
        with clusters(tmp_path_factory.mktemp("pair"), "old", "new") as found:
            yield found


@pytest.fixture
def tenant(pair: list[Cluster]) -> str:
    """A tenant of the source with a bit of everything."""
    name = f"acme{next(_numbers)}"
    admin = Admin(pair[0].local.admin_url)
    admin.create_tenant(name, admin_roles=["boss"], allowed_clusters=["old"])
    for namespace in (f"{name}/orders", f"{name}/empty"):
        admin.create_namespace(namespace)
    admin.set_policy(f"{name}/orders", "messageTTL", 3600)
    admin.set_policy(f"{name}/orders", "deadLetter", {"maxRedeliverCount": 3})
    admin.create_topic(f"persistent://{name}/orders/many", partitions=2)
    admin.create_topic(f"persistent://{name}/orders/one")
    admin.request(
        "POST",
        f"persistent/{name}/orders/one/retention",
        {
            "retentionTimeInMinutes": 60,
            "retentionSizeInMB": 1,
        },
    )
    return name


def admin_of(cluster: Cluster) -> Admin:
    return Admin(cluster.local.admin_url)


def all_here(cluster: Cluster, tenant: str) -> bool:
    rows = admin_of(cluster).pulls(tenant)
    return bool(rows) and all(row["backlog"] == 0 and row["quiet"] for row in rows)


def run(cluster: Cluster, *words: str, fails: bool = False) -> Any:
    """What the command prints, as JSON."""
    url = ["--admin-url", cluster.local.admin_url, "-o", "json"]
    result = CliRunner().invoke(main, ["pulsar", *words, *url])
    assert result.exit_code == int(fails), result.output
    return result.output if fails else json.loads(result.stdout)


def test_a_tenant_is_imported_and_its_unacknowledged_messages_are_delivered(
    pair: list[Cluster], tenant: str
) -> None:
    old, new = pair
    one, many = (f"persistent://{tenant}/orders/{name}" for name in ("one", "many"))
    typed = old.client.create_producer(one, schema=AvroSchema(One))
    for number in range(10):
        typed.send(One(f1=number))
    reader = old.subscribe(one, consumer_type=pulsar.ConsumerType.Shared)
    for number in range(10):
        message = reader.receive(20_000)
        if number in (0, 3, 4, 8):
            reader.acknowledge(message)
    old.publish(many, [b"%d" % number for number in range(20)])

    planned = run(new, "import", tenant, "--from", "old", "--dry-run")
    assert tenant not in admin_of(new).tenants()
    done = run(new, "import", tenant, "--from", "old")
    assert done == planned
    assert [note for note in done["notes"] if "dead" not in note] == []
    assert f"create topic {many} with 2 partitions" in done["steps"]

    found = admin_of(new).tenant(tenant)
    assert found["adminRoles"] == ["boss"]
    assert admin_of(new).policy(f"{tenant}/orders", "messageTTL") == 3600
    assert admin_of(new).request("GET", f"persistent/{tenant}/orders/one/retention") == {
        "retentionTimeInMinutes": 60,
        "retentionSizeInMB": 1,
    }
    soon(lambda: all_here(new, tenant))
    here = new.client.subscribe(one, "s", pulsar.ConsumerType.Shared, schema=AvroSchema(One))
    assert [here.receive(20_000).value().f1 for _ in range(6)] == [1, 2, 5, 6, 7, 9]
    nothing_more(here)
    assert len(received(new.subscribe(many), 20)) == 20

    assert run(new, "import", tenant, "--from", "old")["steps"] == []
    run(new, "finish", tenant, "--from", "old")
    assert admin_of(new).pulls(tenant) == []
    assert "velaray-pull.new" not in admin_of(old).stats(one)["subscriptions"]
    typed.send(One(f1=99))
    nothing_more(here)
    assert not new.local.actor_system.failures


def test_rates_of_single_subscriptions_are_imported(pair: list[Cluster], tenant: str) -> None:
    old, new = pair
    one = f"persistent://{tenant}/orders/one"
    for name in ("limited", "a/b", "free"):
        admin_of(old).create_subscription(one, name)
    rate = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1}
    paths = [f"persistent/{tenant}/orders/one/{name}/dispatchRate" for name in ("limited", "a%2Fb")]
    for path in paths:
        admin_of(old).request("POST", path, rate)
    done = run(new, "import", tenant, "--from", "old")
    assert any("dispatchRateOfSubscriptions" in step for step in done["steps"])
    assert [admin_of(new).request("GET", path) for path in paths] == [rate, rate]
    own = admin_of(new).request("GET", f"persistent/{tenant}/orders/one/policies")
    assert own["dispatchRateOfSubscriptions"].keys() == {"limited", "a/b"}


def test_another_import_brings_new_metadata(pair: list[Cluster], tenant: str) -> None:
    old, new = pair
    run(new, "import", tenant, "--from", "old")
    assert run(new, "import", tenant, "--from", "old")["steps"] == []
    later = f"persistent://{tenant}/empty/later"
    admin_of(old).create_topic(later)
    admin_of(old).grow_partitions(f"persistent://{tenant}/orders/many", 3)
    admin_of(old).set_policy(f"{tenant}/orders", "messageTTL", 7200)
    old.publish(later, [b"x"])
    soon(lambda: all_here(new, tenant))
    assert "run the import again" in run(new, "finish", tenant, "--from", "old", fails=True)
    steps = run(new, "import", tenant, "--from", "old")["steps"]
    assert f"create topic {later} with no partitions" in steps
    assert received(new.subscribe(later), 1) == [b"x"]
    assert admin_of(new).policy(f"{tenant}/orders", "messageTTL") == 7200
    rows = run(new, "status", tenant)
    assert len(rows) == 5
    assert {row["cluster"] for row in rows} == {"old"}
    soon(lambda: all_here(new, tenant))
    assert all(row["caughtUp"] for row in run(new, "status", tenant))
    run(new, "finish", tenant, "--from", "old")


def test_an_import_finishes_only_after_all_messages_arrived(
    pair: list[Cluster], tenant: str
) -> None:
    old, new = pair
    one = f"persistent://{tenant}/orders/one"
    run(new, "import", tenant, "--from", "old")
    soon(lambda: all_here(new, tenant))
    key = new.call(ActorKey.catalog(), "topic", {"topic": one})
    admin_of(new).terminate(one)
    old.publish(one, [b"x"])
    soon(lambda: any(row["backlog"] for row in admin_of(new).pulls(tenant)))
    with pytest.raises(Conflict, match=f"{one}: 1 entries are missing"):
        admin_of(new).finish_pull(tenant, "old")
    assert key["topic"] in {row["topic"] for row in admin_of(new).pulls(tenant)}
    admin_of(new).finish_pull(tenant, "old", force=True)
    assert admin_of(new).pulls(tenant) == []
    with pytest.raises(NotFound, match="no topic of tenant"):
        admin_of(new).finish_pull(tenant, "old")


def test_producers_continue_with_their_sequence_ids(pair: list[Cluster], tenant: str) -> None:
    old, new = pair
    one = f"persistent://{tenant}/orders/one"
    producer = old.client.create_producer(one, "p")
    for number in range(5):
        producer.send(b"%d" % number)
    run(new, "import", tenant, "--from", "old")
    soon(lambda: all_here(new, tenant))
    run(new, "finish", tenant, "--from", "old")
    assert new.client.create_producer(one, "p").last_sequence_id() == 4


def test_metadata_that_differs_is_refused_and_nothing_changes(
    pair: list[Cluster], tenant: str
) -> None:
    new = pair[1]
    admin = admin_of(new)
    admin.create_tenant(tenant, admin_roles=[], allowed_clusters=["new"])
    admin.create_namespace(f"{tenant}/orders")
    admin.create_topic(f"persistent://{tenant}/orders/many", partitions=3)
    with pytest.raises(Conflict, match="3 partitions"):
        admin.pull_tenant(tenant, "old")
    assert admin.namespaces(tenant) == [f"{tenant}/orders"]
    assert admin.pulls(tenant) == []


def test_invalid_imports_are_refused(pair: list[Cluster], tenant: str) -> None:
    _, new = pair
    admin = admin_of(new)
    with pytest.raises(NotFound, match="nowhere"):
        admin.pull_tenant(tenant, "nowhere")
    with pytest.raises(NotFound, match="nobody"):
        admin.pull_tenant("nobody", "old")
    with pytest.raises(PreconditionFailed, match="this cluster"):
        admin.pull_tenant(tenant, "new")
    away = {"service_url": "pulsar://127.0.0.1:1", "admin_url": "http://127.0.0.1:1"}
    admin.create_cluster("away", **away)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        admin.pull_tenant(tenant, "away")
    assert tenant not in admin.tenants()


def test_an_import_needs_a_cluster_number(tmp_path: Path, pair: list[Cluster]) -> None:
    old, _ = pair
    with LocalCluster(tmp_path, name="bare") as bare:
        admin = Admin(bare.admin_url)
        admin.create_cluster("old", **old.local.urls)
        with pytest.raises(PreconditionFailed, match="--cluster-number 1"):
            admin.pull_tenant("acme", "old")
