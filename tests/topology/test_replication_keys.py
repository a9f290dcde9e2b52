"""Replication keys of each other cluster's own: forgery with other credentials, and rotation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import jwt
import pulsar
import pytest

from tests.support.by_name import call_by_name
from tests.support.local_cluster import REPLICATION_SECRET, LocalCluster
from tests.topology.geo import TOPIC, Site, stamped
from tests.topology.replicating import clusters, soon
from tests.topology.test_replicator_proof import FAR, hello, intruder, told
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey
from velaray.local import LocalCluster as Standalone
from velaray.topology.auth import MOST_PROOFS, replicator_proof
from velaray.topology.config import AuthSettings
from velaray.topology.key_files import KeyFileError
from velaray.topology.replication_keys import check_replication_keys
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send
from velaray.wire.messages import build_entry
from velaray.wire.replication import DATA_ID, PROOF, replicator_name

OF_EAST, OF_NORTH, OF_NOBODY = b"e" * 32, b"n" * 32, b"x" * 32
TOKENS = b"a secret that is long enough for HS256"


def keys_in(folder: Path, **keys: bytes) -> str:
    """A directory with these keys by the names of clusters."""
    folder.mkdir()
    for cluster, key in keys.items():
        (folder / cluster).write_bytes(key)
    return str(folder)


def run(folder: str, scenario: Callable[[Site], Awaitable[None]]) -> None:
    """With the cluster west, which knows east and north, and has keys for all three."""

    async def main() -> None:
        west = Site("west", 2, replication_keys=folder)
        await west.start()
        for name in ("east", "north"):
            urls = {"service_url": "pulsar://h:1", "admin_url": "http://h:2"}
            met = {"cluster": name, **urls}
            await call_by_name(west.actor_system, ActorKey.catalog(), "register_cluster", met)
        try:
            await scenario(west)
        finally:
            await west.actor_system.stop()

    asyncio.run(main())


def shown(key: bytes, source: str, data_id: str = "") -> list[pb.KeyValue]:
    """What a replicator with this key says of itself."""
    proof = replicator_proof(key, source, "west", data_id)
    return [pb.KeyValue(key=DATA_ID, value=data_id), pb.KeyValue(key=PROOF, value=proof)]


FORGERIES = {
    "a client": ("east", []),
    "another cluster with its own key": ("east", shown(OF_NORTH, "east")),
    "another cluster with its own proof": ("east", shown(OF_NORTH, "north")),
    "a proof of east for another name": ("north", shown(OF_EAST, "east")),
    "the secret that all clusters shared": ("east", shown(REPLICATION_SECRET, "east")),
    "no cluster": ("nobody", shown(OF_NOBODY, "nobody")),
    "a path": ("../keys/east", shown(OF_EAST, "../keys/east")),
    "too many proofs": (
        "east",
        [
            pb.KeyValue(
                key=PROOF,
                value="," * MOST_PROOFS + replicator_proof(OF_EAST, "east", "west", ""),
            )
        ],
    ),
}


@pytest.mark.parametrize(("source", "metadata"), FORGERIES.values(), ids=FORGERIES.keys())
def test_only_a_cluster_with_its_own_key_makes_entries_of_it_duplicates(
    tmp_path: Path, source: str, metadata: list[pb.KeyValue]
) -> None:
    async def scenario(west: Site) -> None:
        forger = await intruder(west)
        why = await told(forger, hello(metadata, replicator_name(source, "west")))
        if not why:
            fields = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
            forger.say(Send(1, 0), stamped(build_entry(fields, b"forged"), source, FAR))
            await forger.answer(pb.CommandSendReceipt)
        real = await intruder(west)
        assert not await told(real, hello(shown(OF_EAST, "east"), replicator_name("east", "west")))
        fields = pb.MessageMetadata(producer_name="p", sequence_id=2, publish_time=1)
        near = f"{FAR.ledger_id}:0"
        real.say(Send(1, 0), stamped(build_entry(fields, b"real"), "east", near))
        receipt = await real.answer(pb.CommandSendReceipt)
        assert receipt.message_id.entryId == 0
        assert await west.payloads() == ["real"]
        assert "refused" in why or "isn't registered" in why

    keys = {"east": OF_EAST, "north": OF_NORTH, "nobody": OF_NOBODY}
    run(keys_in(tmp_path / "keys", **keys), scenario)


def test_a_replicator_writes_only_entries_of_its_own_cluster(tmp_path: Path) -> None:
    async def scenario(west: Site) -> None:
        north = await intruder(west)
        assert not await told(
            north, hello(shown(OF_NORTH, "north"), replicator_name("north", "west"))
        )
        fields = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        north.say(Send(1, 0), stamped(build_entry(fields, b"forged"), "east", FAR))
        refusal = await north.answer(pb.CommandSendReceipt, pb.CommandSendError)
        assert "replicated_from must be 'north', not 'east'" in refusal.message
        assert await west.payloads() == []

    run(keys_in(tmp_path / "keys", east=OF_EAST, north=OF_NORTH), scenario)


def test_a_key_is_bound_to_the_data_that_it_first_came_with(tmp_path: Path) -> None:
    async def scenario(west: Site) -> None:
        assert not await told(await intruder(west), hello(shown(OF_EAST, "east", "first")))
        for other in ("second", ""):
            again = await intruder(west)
            again.say(hello(shown(OF_EAST, "east", other)))
            answer = await again.answer(pb.CommandError, pb.CommandProducerSuccess)
            assert "has other data than at the first contact" in answer.message

    run(keys_in(tmp_path / "keys", east=OF_EAST), scenario)


def test_no_token_makes_a_client_a_replicator(tmp_path: Path) -> None:
    settings = {"auth": AuthSettings(secret=TOKENS), "name": "west"}
    keys = keys_in(tmp_path / "keys", east=OF_EAST)
    token = jwt.encode({"sub": "admin"}, TOKENS, algorithm="HS256")
    with LocalCluster(tmp_path / "data", **settings, replication_keys=keys) as west:
        proof = pulsar.AuthenticationToken(token)
        client = pulsar.Client(
            west.service_url, proof, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        for properties in ({}, {PROOF: token}):
            with pytest.raises(pulsar.PulsarException, match="NotAllowed"):
                client.create_producer(
                    str(TOPIC), replicator_name("east", "west"), properties=properties
                )
        client.close()


def test_keys_are_replaced_one_side_after_the_other_while_replication_goes_on(
    tmp_path: Path,
) -> None:
    folders = {"a": tmp_path / "of a" / "b", "b": tmp_path / "of b" / "a"}
    for folder in folders.values():
        folder.mkdir(parents=True)
        (folder / "2026-11").write_bytes(OF_EAST)

    def change(name: str, add: str = "", remove: str = "") -> None:
        if add:
            (folders[name] / add).write_bytes(OF_NORTH)
        if remove:
            (folders[name] / remove).unlink()

    with clusters(tmp_path, "a", "b") as (a, b):
        for each in (a, b):
            parent = str(folders[each.name].parent)
            object.__setattr__(each.local.config, "replication_keys", parent)
        topic = "persistent://public/default/rotated"
        key = b.partition(topic)
        a.partition(topic)
        a.set_replication({"topic": topic}, ["a", "b"])
        consumer = b.subscribe(topic)
        steps = ["", "a+", "b+", "a-", "b-"]
        for number, step in enumerate(steps):
            if step:
                new, old = ("2026-12", "") if step[1] == "+" else ("", "2026-11")
                change(step[0], new, old)
            b.local.kill(key)  # the replicator must prove itself again
            a.publish(topic, [b"%d" % number])
            comes(consumer, b"%d" % number)
        with Admin(a.local.admin_url) as admin:
            assert admin.cluster("b")["replicationKeys"] == ["2026-12"]
        change("a", remove="2026-12")
        b.local.kill(key)
        a.publish(topic, [b"without a key"])
        soon(lambda: "gives no proof" in str(a.status(topic, "b").get("reason")))
        change("a", add="2026-12")
        comes(consumer, b"without a key")


def comes(consumer: pulsar.Consumer, payload: bytes) -> None:
    """Receive until this payload comes; a kill may have others redelivered."""
    while (message := consumer.receive(60_000)).data() != payload:
        consumer.acknowledge(message)


def test_unusable_keys_are_refused_at_the_start(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    (keys / "east").mkdir(parents=True)
    check_replication_keys(keys)
    (keys / "east" / "short").write_bytes(b"short")
    with pytest.raises(KeyFileError, match="short holds 5 bytes"):
        check_replication_keys(keys)
    for number in range(MOST_PROOFS + 1):
        (keys / "east" / f"{number}").write_bytes(OF_EAST)
    with pytest.raises(KeyFileError, match="east has 10 keys"):
        check_replication_keys(keys)


def test_a_cluster_starts_with_a_directory_of_keys(tmp_path: Path) -> None:
    keys = Path(keys_in(tmp_path / "keys", east=OF_EAST))
    with (
        Standalone.start(tmp_path / "data", replication_secret=keys) as cluster,
        Admin(cluster.admin_url) as admin,
    ):
        admin.create_cluster("east", service_url="pulsar://h:1", admin_url="http://h:2")
        assert admin.cluster("east")["replicationKeys"] == ["east"]
