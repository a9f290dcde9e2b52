"""A partition to which other clusters replicate: its session, and what it stores."""

import asyncio

import pytest

from tests.topology.geo import TOPIC, Replicator, Site, payload_of, run, stamped
from velaray.events.ids import Position
from velaray.journal.files import FileStore
from velaray.journal.manifest import cluster_number_of
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send
from velaray.wire.messages import build_entry, open_entry


def entry(sequence_id: int = 0, payload: bytes = b"x", **fields) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=sequence_id, publish_time=1, **fields
    )
    return build_entry(metadata, payload)


def at(answer) -> Position:
    return Position(answer.message_id.ledgerId, answer.message_id.entryId)


DUPLICATE = Position((1 << 64) - 1, (1 << 64) - 1)
"""(-1, -1) on the wire."""


def test_replicated_messages_arrive_once_in_order_and_are_not_sent_back() -> None:
    async def scenario(east: Site, west: Site) -> None:
        for number in range(3):
            await east.publish(number)
        await west.publish(0)
        replicator = await Replicator(east, west).connect()
        receipts = [at(answer) for answer in await replicator.replicate()]
        assert [position.entry_id for position in receipts] == [1, 2, 3]
        again = await Replicator(east, west).connect()
        assert [at(answer) for answer in await again.replicate()] == [DUPLICATE] * 3
        await east.publish(3)
        await again.replicate(2)
        stored = await west.payloads()
        assert stored == ["west-p-0", *(f"east-p-{number}" for number in range(4))]
        metadata = open_entry((await west.entries())[1])[0]
        assert (metadata.replicated_from, metadata.producer_name) == ("east", "p")
        assert metadata.sequence_id == 0
        back = await Replicator(west, east).connect()
        assert len(await back.replicate()) == 1

    run(scenario)


def test_the_receipt_of_the_last_answers_a_run_of_entries() -> None:
    async def scenario(east: Site, west: Site) -> None:
        for number in range(5):
            await east.publish(number)
        entries, partition = await east.entries(), await east.partition()
        sent = [
            stamped(each, "east", partition.log.position_of(offset))
            for offset, each in enumerate(entries)
        ]
        client = (await Replicator(east, west).connect()).client
        for number in range(3):
            client.say(Send(1, number), sent[number])
        answer = await client.answer(pb.CommandSendReceipt)
        assert (answer.sequence_id, at(answer).entry_id) == (2, 2)
        client = (await Replicator(east, west).connect()).client
        for number in range(5):
            client.say(Send(1, number), sent[number])
        client.say(Send(1, 5), b"nonsense")
        kinds = pb.CommandSendReceipt, pb.CommandSendError
        duplicates, stored, refused = [await client.answer(*kinds) for _ in range(3)]
        assert (duplicates.sequence_id, at(duplicates)) == (2, DUPLICATE)
        assert (stored.sequence_id, at(stored).entry_id) == (4, 4)
        assert (refused.sequence_id, type(refused)) == (5, pb.CommandSendError)
        assert not client.sent

    run(scenario)


def test_duplicates_are_known_after_a_crash_at_any_moment() -> None:
    async def scenario(east: Site, west: Site) -> None:
        for number in range(6):
            await east.publish(number)
        for sent in range(1, 7):
            replicator = await Replicator(east, west).connect()
            await replicator.replicate(0, sent)
            west.actor_system.kill(west.key)
        assert await west.payloads() == [f"east-p-{number}" for number in range(6)]
        newest = await west.call("origins")
        position = await east.publish(6)
        assert newest == {"east": [position.ledger_id, position.entry_id - 1]}

    run(scenario)


def test_no_entry_overtakes_a_refused_one() -> None:
    async def scenario(east: Site, west: Site) -> None:
        positions = [await east.publish(number) for number in range(4)]
        entries = await east.entries()
        replicator = await Replicator(east, west).connect()
        await replicator.replicate(0, 1)
        bad = await replicator.send(stamped(entries[1], "east", "malformed"))
        assert bad.error == pb.NotAllowedError
        for number in (2, 3):
            sent = await replicator.send(stamped(entries[number], "east", positions[number]))
            assert (
                sent.error == pb.ServiceNotReady and "an earlier entry was refused" in sent.message
            )
        again = await Replicator(east, west).connect()
        await again.replicate(1)
        assert await west.payloads() == [f"east-p-{number}" for number in range(4)]

    run(scenario)


def test_no_entry_overtakes_one_that_a_full_disk_refused() -> None:
    async def scenario(east: Site, west: Site) -> None:
        for number in range(3):
            await east.publish(number)
        replicator = await Replicator(east, west).connect()
        await replicator.replicate(0, 1)
        west.disk.capacity = 0
        (refused,) = await replicator.replicate(1, 2)
        assert refused.error == pb.PersistenceError
        west.disk.capacity = None
        (behind,) = await replicator.replicate(2, 3)
        assert behind.error == pb.ServiceNotReady
        again = await Replicator(east, west).connect()
        await again.replicate(1)
        assert await west.payloads() == [f"east-p-{number}" for number in range(3)]

    run(scenario)


def test_a_replaced_replicator_is_notified() -> None:
    async def scenario(east: Site, west: Site) -> None:
        await east.publish(0)
        replicator = await Replicator(east, west).connect()
        other = await Replicator(east, west).connect()
        told = await replicator.client.answer(pb.CommandCloseProducer)
        assert told.producer_id == 1
        assert len(await other.replicate()) == 1

    run(scenario)


def test_a_batch_is_stored_as_one_entry_with_its_size() -> None:
    async def scenario(east: Site, west: Site) -> None:
        await east.publish(0, messages=7)
        await (await Replicator(east, west).connect()).replicate()
        found = await (await west.partition()).log.entry(0)
        assert (found.messages, payload_of(bytes(found.data))) == (7, "east-p-0")

    run(scenario)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (entry(), "replicated_from must be 'east', not ''"),
        (stamped(entry(), "north", Position(9, 9)), "must be 'east', not 'north'"),
        (stamped(entry(), "east", None), "no property __MSG_PROP_REPL_SOURCE_POSITION"),
        (stamped(entry(), "east", "1:2:3"), "must be ledger:entry, not '1:2:3'"),
        (stamped(entry(txnid_most_bits=1 << 16, txnid_least_bits=2), "east", "1:2"), "(65536,2)"),
        (b"\x0e\x01\x00\x00\x00\x00\x00\x00\x00\x09", "the replicator sent an invalid entry"),
        (stamped(entry(marker_type=77), "east", None), "unknown type of marker: 77"),
    ],
)
def test_a_replicated_message_without_a_source_is_refused(sent: bytes, why: str) -> None:
    async def scenario(east: Site, west: Site) -> None:
        replicator = await Replicator(east, west).connect()
        refused = await replicator.send(sent)
        assert why in refused.message
        assert refused.error == pb.NotAllowedError
        again = await Replicator(east, west).connect()
        good = await again.send(stamped(entry(), "east", Position(1 << 52 | 5 << 24, 0)))
        assert at(good).entry_id == 0  # nothing was stored before
        assert await west.payloads() == ["x"]

    run(scenario)


def test_clusters_with_the_same_number_get_an_error() -> None:
    async def scenario(east: Site, west: Site) -> None:
        replicator = await Replicator(east, west).connect()
        refused = await replicator.send(stamped(entry(), "east", Position(2 << 52 | 5 << 24, 0)))
        assert refused.error == pb.NotAllowedError
        assert "--cluster-number" in refused.message
        assert "'west'" in refused.message
        own = (await west.publish(0)).ledger_id
        refused = await replicator.send(stamped(entry(), "east", Position(own + 3, 0)))
        assert "--cluster-number" in refused.message

    run(scenario)


def test_a_journal_from_before_the_cluster_number_is_recognized() -> None:
    async def scenario(east: Site, west: Site) -> None:
        object.__setattr__(west.actor_system.config, "cluster_number", 3)
        own = (await west.publish(0)).ledger_id
        replicator = await Replicator(east, west).connect()
        refused = await replicator.send(stamped(entry(), "east", Position(own, 0)))
        assert "--cluster-number" in refused.message

    run(scenario)


def test_a_replicator_of_this_very_cluster_is_refused() -> None:
    async def scenario(east: Site, west: Site) -> None:
        client = await west.client()
        name = "pulsar.repl.west-->east"
        client.say(
            pb.CommandProducer(topic=str(TOPIC), producer_id=1, request_id=1, producer_name=name)
        )
        refused = await client.answer(pb.CommandError)
        assert refused.error == pb.NotAllowedError
        assert "which is this cluster" in refused.message

    run(scenario)


def test_a_replicated_chunk_is_recognized() -> None:
    async def scenario(east: Site, west: Site) -> None:
        replicator = await Replicator(east, west).connect()
        for number in range(3):
            parts = {"uuid": "u", "num_chunks_from_msg": 3, "chunk_id": number}
            position = Position(1 << 52 | 5 << 24, number)
            await replicator.send(stamped(entry(4, **parts), "east", position))
        partition = await west.partition()
        assert [(await partition.log.entry(n)).chunk_uuid for n in range(3)] == ["u"] * 3
        assert partition.runtime.state.remote_producers["east", "p"].last_sequence_id == 4

    run(scenario)


def test_producers_move_with_their_sequence_ids() -> None:
    async def scenario(east: Site, west: Site) -> None:
        for number in range(3):
            await east.publish(number)
        rows = await east.call("export_producers")
        assert await west.call("adopt_producers", rows=rows) == 1
        assert await west.call("adopt_producers", rows=rows) == 0
        client = await west.client()
        client.say(
            pb.CommandProducer(topic=str(TOPIC), producer_id=1, request_id=1, producer_name="p")
        )
        found = await client.answer(pb.CommandProducerSuccess)
        assert found.last_sequence_id in (2, -1)  # told where the policy de-duplicates
        partition = await west.partition()
        assert partition.runtime.state.producers["p"].last_sequence_id == 2

    run(scenario)


def test_invalid_producer_rows_are_refused() -> None:
    async def scenario(east: Site, west: Site) -> None:
        with pytest.raises(Exception, match="rows of producers"):
            await west.call("adopt_producers", rows=[["p", "x"]])

    run(scenario)


@pytest.mark.parametrize("base", [0, 5 << 28])
def test_ledger_ids_contain_the_cluster_number(tmp_path, base: int) -> None:
    async def claims() -> list[int]:
        first, second = FileStore(tmp_path, base), FileStore(tmp_path, base)
        numbers = [await store.claim_number("me") for store in (first, second, first)]
        await first.close()
        await second.close()
        return numbers

    assert asyncio.run(claims()) == [base + 1, base + 2, base + 3]
    assert cluster_number_of(base + 3 << 24) == base >> 28
