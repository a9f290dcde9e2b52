"""Schemas of topics on the wire: producers, consumers, look-ups, policies, deletions."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_cluster import LocalCluster
from tests.topology.schema_wire import AUTO, ONE, TEXT, THREE, TWO, Peer, Refused, World, avro
from tests.topology.schema_wire import run as run_world
from velaray.broker.garbage_collection.topic_deletion import delete_topic
from velaray.broker.partition import topic_schemas
from velaray.broker.schema_registry.schema_calls import has_registry
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.journal.files import FileStore
from velaray.journal.replay import load_manifest
from velaray.schemas import SchemaInfo, SchemaType
from velaray.schemas.info import key_value
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message
from velaray.wire.messages import read_metadata
from velaray.wire.schemas import from_proto, read_version

Run = Callable[[Callable[[World], Awaitable[None]]], None]
_numbers = itertools.count(1)


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    topic = f"schemas-{next(_numbers)}"
    return lambda scenario: run_world(cluster, topic, scenario)


async def refused(work: Awaitable[Any], containing: str) -> None:
    with pytest.raises(Refused, match=containing) as error:
        await work
    assert error.value.code == pb.IncompatibleSchema


async def registry_runs(world: World) -> bool:
    return await world.registry() in world.cluster.actor_system.actors


# -- producers ---------------------------------------------------------------------


def test_the_schema_of_a_producer_becomes_the_version_of_its_messages(run: Run) -> None:
    async def scenario(world: World) -> None:
        peer = await world.connect()
        assert await peer.produce(ONE, b"\0") == 0
        assert await peer.produce(TWO, b"\0\0") == 1
        assert await peer.produce(ONE) == 0
        consumer = await peer.consume(AUTO)
        peer.raw.flow(10, consumer)
        await peer.raw.messages(0)
        entries = []
        while len(entries) < 2:
            entries = [e for c, e in peer.raw.received if type(c) is Message]
            await asyncio.sleep(0.01)
        assert [read_version(read_metadata(entry).schema_version) for entry in entries] == [0, 1]
        for version, info in enumerate((ONE, TWO)):
            assert from_proto((await peer.get(version)).schema).data == info.data

    run(scenario)


def test_an_incompatible_producer_is_refused_permanently(run: Run) -> None:
    async def scenario(world: World) -> None:
        peer = await world.connect()
        await peer.produce(ONE)
        await refused(peer.produce(THREE), "can't read version 0, at /f2")
        await refused(peer.produce(TEXT), "type STRING isn't AVRO")
        await refused(peer.produce(SchemaInfo(SchemaType.AVRO, "x", b"{")), "isn't JSON")
        assert await peer.produce(ONE) == 0

    run(scenario)


def test_a_producer_without_a_schema_starts_no_registry(run: Run) -> None:
    async def scenario(world: World) -> None:
        peer = await world.connect()
        assert await peer.produce(None, b"x") is None
        assert await peer.produce(SchemaInfo(SchemaType.BYTES), b"x") is None
        consumer = await peer.consume(None)
        peer.raw.flow(10, consumer)
        await peer.raw.messages(2)
        assert (await peer.get()).error_code == pb.TopicNotFound
        assert not await registry_runs(world)
        assert not await has_registry(world.cluster.actor_system, await world.registry())

    run(scenario)


def test_producers_need_a_schema_where_schemas_are_enforced(run: Run) -> None:
    async def scenario(world: World) -> None:
        peer = await world.connect()
        await world.set_policy("schemaValidationEnforced", True)
        assert await peer.produce(None) is None  # the topic has none either
        await peer.produce(ONE)
        await refused(peer.produce(None), "without a schema")
        await world.set_policy("schemaValidationEnforced", False)
        assert await peer.produce(None) is None

    run(scenario)


def test_without_auto_update_only_known_schemas_are_accepted(run: Run) -> None:
    async def scenario(world: World) -> None:
        peer = await world.connect()
        await peer.produce(ONE)
        await world.set_policy("isAllowAutoUpdateSchema", False)
        assert await peer.produce(ONE) == 0
        await refused(peer.produce(TWO), "auto updating is disabled")
        assert (await peer.get_or_create(TWO)).error_code == pb.IncompatibleSchema
        await peer.consume(ONE)
        await peer.consume(TWO)  # it reads, and registers nothing
        assert (await peer.get(1)).error_code == pb.TopicNotFound

    run(scenario)


@pytest.mark.parametrize("strategy", ["ALWAYS_COMPATIBLE", "FORWARD"])
def test_the_strategy_of_a_topic_overrides_that_of_its_namespace(
    cluster: LocalCluster, strategy: str
) -> None:
    async def scenario(world: World) -> None:
        catalog = ActorKey.catalog()
        await world.call(catalog, "create_namespace", {"namespace": f"public/{strategy}"})
        peer = await world.connect()
        await peer.produce(ONE)
        await refused(peer.produce(THREE), "under FULL")
        await world.set_policy(
            "schemaCompatibilityStrategy", "BACKWARD", namespace=f"public/{strategy}"
        )
        await refused(peer.produce(THREE), "under BACKWARD")
        await world.set_policy("schemaCompatibilityStrategy", strategy)
        assert await peer.produce(THREE) == 1

    run_world(cluster, f"public/{strategy}/topic", scenario)


def test_all_partitions_share_the_versions(cluster: LocalCluster) -> None:
    async def scenario(world: World) -> None:
        made = {"topic": world.topic, "partitions": 3}
        await world.call(ActorKey.catalog(), "create_topic", made)
        peers = [await world.connect(number) for number in range(3)]
        assert [await peer.produce(ONE) for peer in peers] == [0, 0, 0]
        assert await peers[2].produce(TWO) == 1
        assert await peers[0].produce(TWO) == 1
        assert (
            len(
                [
                    key
                    for key in cluster.keys(ActorKind.SCHEMA_REGISTRY)
                    if key == await world.registry()
                ]
            )
            == 1
        )

    run_world(cluster, "partitioned-schemas", scenario)


def test_a_message_with_another_schema_is_stored_after_its_version(run: Run) -> None:
    """And one that isn't taken fails alone: the producer goes on."""

    async def scenario(world: World) -> None:
        peer = await world.connect()
        await peer.produce(ONE)
        found = await peer.get_or_create(TWO)
        assert read_version(found.schema_version) == 1
        found = await peer.get_or_create(avro("other"))
        assert found.error_code == pb.IncompatibleSchema
        assert "version 1" in found.error_message
        found = await peer.get_or_create(ONE)
        assert read_version(found.schema_version) == 0

    run(scenario)


# -- consumers ---------------------------------------------------------------------


def test_a_consumer_of_an_idle_topic_registers_its_schema(run: Run) -> None:
    async def scenario(world: World) -> None:
        peer = await world.connect()
        await peer.consume(ONE)
        assert read_version((await peer.get()).schema_version) == 0
        await refused(peer.consume(THREE), "can't read version 0")

    run(scenario)


@pytest.mark.parametrize("activity", ["an entry", "a producer", "a consumer"])
def test_a_consumer_with_a_schema_is_refused_on_a_topic_used_without_one(
    run: Run, activity: str
) -> None:
    async def scenario(world: World) -> None:
        peer = await world.connect()
        if activity == "a consumer":
            await peer.consume(None, "other")
        else:
            await peer.produce(None, *[b"x"] * (activity == "an entry"))
        if activity == "an entry":
            await peer.leave()
            peer = await world.connect()
        await refused(peer.consume(ONE), "active topic with empty")
        assert not await registry_runs(world) or (await peer.get()).HasField("error_code")

    run(scenario)


TYPED = {"string": TEXT, "avro": ONE, "key-value": key_value(TEXT, ONE)}


@pytest.mark.parametrize("order", list(itertools.permutations(["auto", "consumer", "producer"])))
@pytest.mark.parametrize("typed", TYPED)
def test_consumers_of_any_schema_do_not_block_producers(
    run: Run, order: tuple[str, ...], typed: str
) -> None:
    async def scenario(world: World) -> None:
        for number, who in enumerate(order):
            peer = await world.connect()
            if who == "producer":
                assert await peer.produce(TYPED[typed]) == 0
            else:
                await peer.consume(AUTO if who == "auto" else TYPED[typed], f"s{number}")
        assert read_version((await peer.get()).schema_version) == 0

    run(scenario)


def test_consumers_of_any_schema_may_read_a_topic_without_one(run: Run) -> None:
    async def scenario(world: World) -> None:
        peer = await world.connect()
        await peer.produce(None, b"x")
        peer.raw.flow(10, await peer.consume(AUTO))
        await peer.raw.messages(1)

    run(scenario)


def test_every_type_is_accepted_under_always_compatible(run: Run) -> None:
    async def scenario(world: World) -> None:
        peer = await world.connect()
        await world.set_policy("schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
        kinds = [ONE, TEXT, avro("x", type_=SchemaType.JSON), SchemaInfo(SchemaType.INT64, "i")]
        for version, info in enumerate(kinds):
            assert await peer.produce(info) == version
        for info in kinds:
            await peer.consume(info)

    run(scenario)


def test_external_schemas_are_accepted_only_without_other_schemas(run: Run) -> None:
    async def scenario(world: World) -> None:
        peer, external = await world.connect(), SchemaInfo(SchemaType.EXTERNAL)
        assert await peer.produce(external) is None
        await peer.produce(ONE)
        await refused(peer.produce(external), "without a schema")

    run(scenario)


# -- look-ups ----------------------------------------------------------------------


def test_the_proxy_answers_schema_requests_as_partitions_do(run: Run) -> None:
    async def scenario(world: World) -> None:
        proxy, peer = await world.at_the_proxy(), await world.connect()
        assert (await proxy.get()).error_code == pb.TopicNotFound
        await peer.produce(ONE)
        await peer.produce(TWO)
        for who in (proxy, peer):
            latest = await who.get()
            assert (read_version(latest.schema_version), from_proto(latest.schema)) == (1, TWO)
            assert from_proto((await who.get(0)).schema) == ONE
            assert (await who.get(2)).error_code == pb.TopicNotFound
            assert (
                await who.ask(pb.CommandGetSchema(topic=who.topic, schema_version=b"abc"))
            ).error_code == pb.MetadataError
        peer.topic += "-other"
        assert (await peer.get()).error_code == pb.ServiceNotReady
        assert (await peer.get_or_create(ONE)).error_code == pb.ServiceNotReady
        proxy.topic += "-gone"
        assert (await proxy.get()).error_code == pb.TopicNotFound

    run(scenario)


def test_a_partition_caches_versions_while_it_has_a_lease(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache ends with the connection to the registry as well."""
    monkeypatch.setattr(topic_schemas, "LEASE_S", 1000.0)

    async def scenario(world: World) -> None:
        peer, key = await world.connect(), await world.registry()
        await peer.produce(ONE)
        runtime = world.cluster.actor_system.actors[key].runtime
        asked = runtime.stats.commands
        for _ in range(5):
            assert await peer.produce(ONE) == 0
        assert runtime.stats.commands == asked
        monkeypatch.setattr(topic_schemas, "LEASE_S", 0.0)
        assert await peer.produce(TWO) == 1
        assert await peer.produce(TWO) == 1
        assert runtime.stats.commands == asked + 2
        world.cluster.kill(key)
        assert await peer.produce(ONE) == 0
        assert world.cluster.actor_system.actors[key].runtime.stats.replayed

    run(scenario)


# -- deletions ---------------------------------------------------------------------


async def delete(world: World, through: int, *, forced: bool = False) -> int:
    args = {"through": through, "forced": forced, "role": ""}
    return int(await world.call(await world.registry(), "delete", args))


@pytest.mark.parametrize("forced", [False, True])
def test_messages_of_a_deleted_schema_can_be_decoded(run: Run, forced: bool) -> None:
    """No number is given twice, not even by force: what was published keeps its meaning."""

    async def scenario(world: World) -> None:
        proxy, peer = await world.at_the_proxy(), await world.connect()
        assert await peer.produce(ONE, b"\0") == 0
        assert await delete(world, 0, forced=forced) == 1
        assert (await proxy.get()).error_code == pb.TopicNotFound
        for who in (proxy, peer):
            assert from_proto((await who.get(0)).schema) == ONE
        assert await peer.produce(TEXT) == 2  # nothing is left to get along with
        await refused(peer.produce(ONE), "type AVRO isn't STRING")

    run(scenario)


def test_no_partition_accepts_a_deleted_schema(cluster: LocalCluster) -> None:
    """Every partition has dropped its cached answers when the deletion is answered."""

    async def scenario(world: World) -> None:
        made = {"topic": world.topic, "partitions": 3}
        await world.call(ActorKey.catalog(), "create_topic", made)
        peers: list[Peer] = [await world.connect(number) for number in range(3)]
        for number in range(0, 10, 2):
            assert [await peer.produce(ONE) for peer in peers] == [number] * 3
            assert await delete(world, number) == number + 1

    run_world(cluster, "forgetting-schemas", scenario)


def test_a_partition_that_lost_its_registry_connection_uses_no_deleted_schema(
    run: Run,
) -> None:
    """The partition doesn't notice that the connection is lost."""

    async def scenario(world: World) -> None:
        peer = await world.connect()
        assert await peer.produce(ONE) == 0
        registry = world.cluster.actor_system.actors[await world.registry()]
        (rpc_connection,) = registry.rpc_server.connections

        async def lose() -> None:
            registry.on_rpc_closed(rpc_connection)

        losing = asyncio.run_coroutine_threadsafe(lose(), world.cluster.loop)
        await asyncio.wrap_future(losing)
        assert await delete(world, 0) == 1
        assert await peer.produce(ONE) == 2

    run(scenario)


def test_deleting_a_topic_deletes_its_registry(run: Run) -> None:
    async def scenario(world: World) -> None:
        peer = await world.connect()
        await peer.produce(ONE)
        await peer.produce(TWO)
        old, actor_system = await world.registry(), world.cluster.actor_system
        topic = TopicName.parse(world.topic)
        await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(
                delete_topic(actor_system, topic, force=True), world.cluster.loop
            )
        )
        assert old not in actor_system.actors
        stored = await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(actor_system.store.list_journals(), world.cluster.loop)
        )
        assert not [name for name in stored if f"/{topic.local}/" in name]
        again = await world.connect()
        assert await again.produce(TEXT) == 0
        assert await world.registry() != old

    run(scenario)


def test_a_registry_of_a_deleted_topic_leaves_no_journal(run: Run) -> None:
    """A late caller asks for the registry after the deletion of the topic."""

    async def scenario(world: World) -> None:
        key = await world.registry()
        gone = ActorKey.of_schema_registry(key.topic_name, key.topic_incarnation + 100)
        with pytest.raises(Exception, match="was deleted"):
            await world.call(gone, "schemas", {"all": True})
        assert not await has_registry(world.cluster.actor_system, gone)

    run(scenario)


def test_a_registry_becomes_idle_while_partitions_cache_its_answers(run: Run) -> None:
    """It isn't while it is asked; a connection alone keeps no process."""

    async def scenario(world: World) -> None:
        peer = await world.connect()
        await peer.produce(ONE)
        actor = world.cluster.actor_system.actors[await world.registry()]

        async def idle() -> bool:
            return actor.idle()

        def now() -> Awaitable[bool]:
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(idle(), world.cluster.loop))

        assert not await now()
        actor._used_s -= 60.0
        assert actor.rpc_server.connections
        assert await now()

    run(scenario)


def test_an_unreadable_registry_does_not_block_other_clients(run: Run) -> None:
    """Nothing of it is changed; once it is whole again, all goes on."""

    async def scenario(world: World) -> None:
        peer, other = await world.connect(), await world.connect()
        await peer.produce(ONE)
        await peer.produce(TWO)
        key, store = await world.registry(), FileStore(world.cluster.config.data_dir)
        world.cluster.kill(key)
        (ledger,) = (await load_manifest(store, key.text())).ledgers
        file = Path(store.location(key.text(), ledger.ledger_id))
        whole = file.read_bytes()
        at = whole.index(b"f2") - 100
        broken = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        file.write_bytes(broken)
        with pytest.raises(Refused) as refusal:
            await peer.produce(THREE)
        assert refusal.value.code == pb.PersistenceError
        assert await other.produce(None, b"x") is None  # no other process notices
        assert await peer.produce(None, b"y") is None
        # The killed writer may cut off the zeros behind the last frame at any time.
        assert file.read_bytes().rstrip(b"\0") == broken.rstrip(b"\0")
        file.write_bytes(whole)
        assert await peer.produce(THREE) == 2

    run(scenario)


# -- many at once ------------------------------------------------------------------


@pytest.mark.parametrize("turns", [5, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("same", [True, False])
def test_sixteen_register_at_once_while_the_registry_dies(run: Run, same: bool, turns: int) -> None:
    """One schema has one version; of different ones, each knows its predecessor."""

    async def scenario(world: World) -> None:
        await world.connect()
        key = await world.registry()
        for turn in range(turns):
            infos = [avro("a", f"t{turn}n{0 if same else number}?") for number in range(16)]

            async def register(info: SchemaInfo) -> int:
                peer = await world.connect()
                version = await peer.produce(info)
                assert version is not None
                return version

            work = [asyncio.ensure_future(register(info)) for info in infos]
            await asyncio.sleep(0.002 * (turn % 10))
            world.cluster.kill(key)
            versions = await asyncio.gather(*work)
            assert len(set(versions)) == (1 if same else 16)
        found = await world.call(key, "schemas", {"all": True})
        assert [each["version"] for each in found] == list(range(turns if same else 16 * turns))
        assert [each["predecessor"] for each in found] == [None, *range(len(found) - 1)]
        texts = [json.dumps(json.loads(each["data"])) for each in found]
        assert len(set(texts)) == len(texts)

    run(scenario)
