"""``has_message_available`` at every kind of a topic's end, and where readers begin."""

import asyncio

import pytest

import velaray
from tests.client.scripted import ScriptedServer
from tests.client.test_protocol import WAIT, client_of, deliver, entry_of, run, until
from velaray import InitialPosition, MessageId
from velaray.events.ids import MessageId as StoredId
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.messages import build_entry


def rest(reader):
    """What a reader reads while it says that there is something; it must be right every time."""
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(WAIT).data())
    with pytest.raises(velaray.Timeout):
        reader.read_next(50)
    return found


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("end", [MessageId.earliest, MessageId.latest], ids=["earliest", "latest"])
@pytest.mark.parametrize("queue", [0, 1, 1000])
def test_nothing_is_available_in_an_empty_topic(client, topic, end, inclusive, queue):
    client.get_topic_partitions(topic)  # creates it
    reader = client.create_reader(
        topic, end, start_message_id_inclusive=inclusive, receiver_queue_size=queue
    )
    assert not reader.has_message_available()
    client.create_producer(topic).send(b"x")
    assert rest(reader) == [b"x"]


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("index", range(4))
def test_a_start_within_the_last_batch_has_its_remaining_messages(client, topic, index, inclusive):
    contents = [b"a", b"b", b"c", b"d"]
    producer = client.create_producer(topic)
    producer.send(b"before")
    entry = producer.send_many(contents).entries[0]
    at = MessageId(-1, entry.ledger_id, entry.entry_id, index, batch_size=4)
    reader = client.create_reader(topic, at, start_message_id_inclusive=inclusive)
    assert rest(reader) == contents[index if inclusive else index + 1 :]
    reader.seek(at)
    assert rest(reader) == contents[index if inclusive else index + 1 :]


@pytest.mark.parametrize("inclusive", [False, True])
def test_a_start_at_latest_has_the_last_message_or_later_ones(client, topic, inclusive):
    client.create_producer(topic).send_many([b"a", b"b"])
    reader = client.create_reader(topic, MessageId.latest, start_message_id_inclusive=inclusive)
    assert rest(reader) == ([b"b"] if inclusive else [])


def test_availability_is_right_after_seeks_to_ids_times_and_ends(client, topic):
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(4)]
    reader = client.create_reader(topic, MessageId.earliest)
    stamps = [reader.read_next(WAIT).publish_timestamp() for _ in ids]
    assert not reader.has_message_available()
    reader.seek(ids[1])
    assert rest(reader) == [b"2", b"3"]
    reader.seek(MessageId.earliest)
    assert rest(reader) == [b"0", b"1", b"2", b"3"]
    reader.seek(MessageId.latest)
    assert not reader.has_message_available()
    reader.seek(stamps[-1] + 1000)
    assert not reader.has_message_available()
    reader.seek(stamps[0])
    assert len(rest(reader)) == 4
    producer.send(b"4")
    assert rest(reader) == [b"4"]


def test_a_terminated_topic_has_no_message_after_its_last(client, catalog, topic):
    client.create_producer(topic).send(b"last")
    catalog.terminate(topic)
    reader = client.create_reader(topic, MessageId.earliest)
    assert rest(reader) == [b"last"]
    assert rest(client.create_reader(topic, MessageId.latest)) == []


def test_availability_covers_all_partitions(client, catalog, topic):
    catalog.partitioned(topic, 3)
    producer = client.create_producer(topic)
    for number in range(6):
        producer.send(b"%d" % number, partition_key=str(number))
    reader = client.create_reader(topic, MessageId.earliest)
    assert sorted(rest(reader)) == [b"%d" % number for number in range(6)]


def last(ledger, entry, marked=(-1, -1)):
    """A service that says that this is the topic's last message."""

    def answer(server, connection, command, data):
        return pb.CommandGetLastMessageIdResponse(
            request_id=command.request_id,
            last_message_id=StoredId(ledger, entry).to_proto(),
            consumer_mark_delete_position=StoredId(*marked).to_proto(),
        )

    return answer


def beginning_of_a_chunked_message():
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, uuid="u", chunk_id=0,
        num_chunks_from_msg=2, total_chunk_msg_size=10,
    )  # fmt: skip
    return build_entry(metadata, b"12345")


def test_an_incomplete_chunked_message_is_not_available():
    """Its producer died between two chunks: reading would wait for ever."""

    async def work():
        tail = last(1, 1)
        async with ScriptedServer(GetLastMessageId=tail) as server, client_of(server) as client:
            reader = await client.create_reader("t", MessageId.earliest)
            deliver(server.connections[0], 0, entry_of(b"x"))
            assert await reader.has_message_available()
            assert (await reader.read_next(WAIT)).data() == b"x"
            asking = asyncio.create_task(reader.has_message_available())
            await until(lambda: server.count("GetLastMessageId") == 2)
            deliver(server.connections[0], 1, beginning_of_a_chunked_message())
            assert not await asking
            assert not await reader.has_message_available()
            view = asyncio.create_task(client.create_table_view("t"))
            await until(lambda: server.count("Subscribe") == 2)
            consumer = [c for c in server.seen if isinstance(c, pb.CommandSubscribe)][1].consumer_id
            deliver(server.connections[0], 0, entry_of(b"x"), consumer_id=consumer)
            chunk = beginning_of_a_chunked_message()
            deliver(server.connections[0], 1, chunk, consumer_id=consumer)
            assert len(await asyncio.wait_for(view, 5)) == 0

    run(work())


def test_a_message_that_exists_but_is_not_delivered_is_an_error():
    async def work():
        async with (
            ScriptedServer(GetLastMessageId=last(1, 1)) as server,
            client_of(server, operation_timeout_seconds=0.5) as client,
        ):
            reader = await client.create_reader("t", MessageId.earliest)
            with pytest.raises(velaray.Timeout, match="exists but wasn't delivered"):
                await reader.has_message_available()

    run(work())


def test_nothing_is_available_if_everything_was_trimmed():
    async def work():
        gone = last(-1, -1, marked=(7, 3))
        async with ScriptedServer(GetLastMessageId=gone) as server, client_of(server) as client:
            for start in (MessageId.earliest, MessageId(-1, 5, 5), MessageId.latest):
                reader = await client.create_reader("t", start)
                assert not await reader.has_message_available()

    run(work())


def test_a_reader_from_the_latest_on_misses_nothing_over_a_reconnect():
    """It read nothing yet: where it began must be known all the same."""

    async def work():
        tail = last(1, 8, marked=(1, 8))
        async with ScriptedServer(GetLastMessageId=tail) as server, client_of(server) as client:
            await client.create_reader("t", MessageId.latest)
            server.connections[0].abort()
            await until(lambda: server.count("Subscribe") == 2)
            first, second = (c for c in server.seen if isinstance(c, pb.CommandSubscribe))
            assert first.start_message_id.entryId == (1 << 63) - 1
            start = second.start_message_id
            assert (start.ledgerId, start.entryId) == (1, 8) and start.batch_index > 1 << 30

    run(work())


@pytest.fixture
def fast_discovery(monkeypatch):
    monkeypatch.setattr("velaray.client.core.PARTITIONS_UPDATE_SECONDS", 0.3)


def test_messages_stored_before_their_partition_was_found_are_read(
    client, catalog, topic, fast_discovery
):
    """From the latest message on, whether it's a consumer or a reader, and for table views."""
    catalog.partitioned(topic, 1)
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Latest)
    reader = client.create_reader(topic, MessageId.latest)
    view = client.create_table_view(topic)
    catalog.grow(topic, 2)
    client.create_producer(f"{topic}-partition-1").send(b"early", partition_key="k")
    assert consumer.receive(WAIT).data() == b"early"
    assert reader.read_next(WAIT).data() == b"early"
    for _ in range(500):
        if view.get("k") == b"early":
            break
        with pytest.raises(velaray.Timeout):
            consumer.receive(10)
    assert view.get("k") == b"early"
