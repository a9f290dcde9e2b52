"""A cluster that comes back without its data isn't taken for the one that it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.local_cluster import LocalCluster
from tests.topology.replicating import Cluster, nothing_more, received, soon
from velaray.events.ids import ActorKey

TOPIC = "persistent://public/default/t"
CHANGED = "has other data than at the first contact"


@contextmanager
def running(path: Path, name: str, number: int, data_id: str) -> Iterator[Cluster]:
    settings = {"name": name, "cluster_number": number, "data_id": data_id}
    with LocalCluster(path / data_id, **settings) as local:
        cluster = Cluster(local)
        yield cluster
        cluster.client.close()


def replicate(source: Cluster, target: Cluster) -> None:
    """Have both know each other, and the topic go from one to the other."""
    source.meet([source, target])
    source.partition(TOPIC)
    source.set_replication({"topic": TOPIC}, [source.name, target.name])
    source.call(source.partition(TOPIC), "describe")
    soon(lambda: source.status(TOPIC, target.name))


def moved(cluster: Cluster, other: Cluster) -> None:
    """The other one answers elsewhere now."""
    told = {"cluster": other.name, **other.local.urls}
    cluster.call(ActorKey.catalog(), "update_cluster", told)


def reason(cluster: Cluster, remote: str) -> str:
    return str(cluster.status(TOPIC, remote).get("reason"))


def test_nothing_is_replicated_to_a_cluster_that_lost_its_data(tmp_path: Path) -> None:
    with running(tmp_path, "a", 1, "a1") as a:
        with running(tmp_path, "b", 2, "b1") as b:
            replicate(a, b)
            a.publish(TOPIC, [b"0"])
            assert received(b.subscribe(TOPIC), 1) == [b"0"]
        with running(tmp_path, "b", 2, "b2") as b:
            moved(a, b)
            a.publish(TOPIC, [b"1"])
            soon(lambda: "cluster b " + CHANGED in reason(a, "b"))
            nothing_more(b.subscribe(TOPIC))
        with running(tmp_path, "b", 2, "b1") as b:  # it's found again
            moved(a, b)
            assert received(b.subscribe(TOPIC), 1) == [b"1"]
        with running(tmp_path, "c", 3, "c1") as c:  # or another one takes its place
            a.remove_policy({"topic": TOPIC}, "replication")
            replicate(a, c)
            a.publish(TOPIC, [b"2"])
            assert received(c.subscribe(TOPIC), 1) == [b"2"]


def test_a_cluster_that_lost_its_data_is_not_accepted_as_the_former_one(tmp_path: Path) -> None:
    """Its ids begin anew: what it stores now would be taken for what came before."""
    with running(tmp_path, "b", 2, "b1") as b:
        with running(tmp_path, "a", 1, "a1") as a:
            b.meet([b, a])
            replicate(a, b)
            a.publish(TOPIC, [b"0"])
            there = b.subscribe(TOPIC)
            assert received(there, 1) == [b"0"]
        with running(tmp_path, "a", 1, "a2") as a:
            moved(b, a)
            replicate(a, b)
            a.publish(TOPIC, [b"1"])
            soon(lambda: "cluster a " + CHANGED in reason(a, "b"))
            nothing_more(there)
        with running(tmp_path, "z", 26, "z1") as z:  # under another name and number all is well
            replicate(z, b)
            z.publish(TOPIC, [b"2"])
            assert received(there, 1) == [b"2"]


def test_a_cluster_connected_by_mistake_can_be_removed(tmp_path: Path) -> None:
    with running(tmp_path, "a", 1, "a1") as a, running(tmp_path, "b", 2, "b1") as b:
        a.meet([a, b])
        catalog, met = ActorKey.catalog(), {"cluster": "b", "data_id": "mistaken"}
        assert a.call(catalog, "meet_cluster", met)
        a.partition(TOPIC)
        a.set_replication({"topic": TOPIC}, ["a", "b"])
        a.publish(TOPIC, [b"0"])
        soon(lambda: CHANGED in reason(a, "b"))
        a.remove_policy({"topic": TOPIC}, "replication")
        a.call(catalog, "update_tenant", {"tenant": "public", "allowed_clusters": ["a"]})
        a.call(catalog, "delete_cluster", {"cluster": "b"})
        replicate(a, b)
        a.publish(TOPIC, [b"1"])
        assert received(b.subscribe(TOPIC), 1) == [b"1"]
