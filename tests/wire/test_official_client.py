"""The official client agrees: partitions of keys, and entries in every compression, both ways."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pulsar
import pytest

from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import PROTOCOL_VERSION, MessageHeaders, Send, send_receipt
from velaray.wire.compression import Compression, compress, decompress
from velaray.wire.connection import WireConnection
from velaray.wire.frames import MAX_MESSAGE_SIZE
from velaray.wire.hashing import partition_of
from velaray.wire.messages import (
    build_batch,
    build_entry,
    is_batch,
    iterate_batch,
    split_entry,
)

PARTITIONS = 1000
KEYS = ["a" * length for length in range(1, 40)] + ["ключ", "naïve", "user-17", "\x00\x7f"]
OFFICIAL_NAMES = {
    Compression.NONE: pulsar.CompressionType.NONE,
    Compression.LZ4: pulsar.CompressionType.LZ4,
    Compression.ZLIB: pulsar.CompressionType.ZLib,
    Compression.ZSTD: pulsar.CompressionType.ZSTD,
    Compression.SNAPPY: pulsar.CompressionType.SNAPPY,
}


class Broker:
    """Just enough of a server: keeps what is sent in memory and sends each consumer `outbox`."""

    def __init__(self, stored: list, outbox: list[bytes], partitions: int) -> None:
        self.stored = stored
        self.outbox = outbox
        self.partitions = partitions
        self.url = ""
        self.topics: dict[int, str] = {}

    def on_connected(self, connection) -> None: ...

    def on_writable(self, connection) -> None: ...

    def on_closed(self, connection, error) -> None: ...

    def on_corrupt_entry(self, connection, error) -> None:
        connection.close(error)

    def on_frame(self, connection, command, entry) -> None:
        if type(command) is Send:
            self.stored.append((self.topics[command.producer_id], command, entry))
            connection.write(
                send_receipt(command.producer_id, command.sequence_id, 1, len(self.stored))
            )
            return
        answer = self.answer(command)
        if answer is not None:
            connection.send(answer)
        if isinstance(command, pb.CommandFlow):
            for index, stored in enumerate(self.outbox):
                header = MessageHeaders(command.consumer_id, 1).header(index, len(stored))
                connection.writelines([header, stored])
            self.outbox.clear()

    def answer(self, command):
        match command:
            case pb.CommandConnect():
                return pb.CommandConnected(
                    server_version="velaray",
                    protocol_version=PROTOCOL_VERSION,
                    max_message_size=MAX_MESSAGE_SIZE,
                )
            case pb.CommandPartitionedTopicMetadata():
                return pb.CommandPartitionedTopicMetadataResponse(
                    request_id=command.request_id, partitions=self.partitions, response=0
                )
            case pb.CommandLookupTopic():
                return pb.CommandLookupTopicResponse(
                    request_id=command.request_id,
                    brokerServiceUrl=self.url,
                    response=1,
                    authoritative=True,
                )
            case pb.CommandProducer():
                self.topics[command.producer_id] = command.topic
                return pb.CommandProducerSuccess(
                    request_id=command.request_id, producer_name=f"p-{command.producer_id}"
                )
            case pb.CommandAck() | pb.CommandFlow():
                return None
            case _:
                return pb.CommandSuccess(request_id=command.request_id)


@pytest.fixture
def serve() -> Iterator[Callable[[Broker], pulsar.Client]]:
    """Runs a broker on a loop of its own and gives an official client of it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers: list[asyncio.Server] = []

    async def listen(broker: Broker) -> asyncio.Server:
        return await loop.create_server(lambda: WireConnection(broker), "127.0.0.1", 0)

    def start(broker: Broker) -> pulsar.Client:
        server = asyncio.run_coroutine_threadsafe(listen(broker), loop).result(10)
        servers.append(server)
        broker.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(broker.url, logger=logger)

    yield start
    for server in servers:
        loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_keys_go_to_the_computed_partitions(serve) -> None:
    stored: list = []
    client = serve(Broker(stored, [], PARTITIONS))
    producer = client.create_producer("t", lazy_start_partitioned_producers=True)
    for key in KEYS:
        producer.send(b"", partition_key=key)
    client.close()
    chosen = {split_entry(entry)[0].partition_key: topic for topic, _, entry in stored}
    assert chosen == {
        key: f"persistent://public/default/t-partition-{partition_of(key, PARTITIONS)}"
        for key in KEYS
    }


@pytest.mark.parametrize("kind", Compression)
def test_entries_of_the_official_client_are_read(serve, kind: Compression) -> None:
    stored: list = []
    client = serve(Broker(stored, [], 0))
    producer = client.create_producer(
        "t",
        batching_enabled=True,
        batching_max_publish_delay_ms=10_000,
        compression_type=OFFICIAL_NAMES[kind],
    )
    bodies = [b"body-%d" % index * 20 for index in range(7)]
    for body in bodies:
        producer.send_async(body, lambda result, message_id: None, properties={"a": "b"})
    producer.flush()
    client.close()
    [(_, command, entry)] = stored
    metadata, payload = split_entry(entry)
    assert is_batch(metadata)
    assert (command.num_messages, metadata.num_messages_in_batch) == (7, 7)
    assert metadata.compression == kind
    original = decompress(metadata.compression, payload, metadata.uncompressed_size)
    messages = list(iterate_batch(original, 7))
    assert [bytes(body) for _, body in messages] == bodies
    assert all(one.properties[0].key == "a" for one, _ in messages)


@pytest.mark.parametrize("kind", Compression)
def test_the_official_client_reads_our_entries(serve, kind: Compression) -> None:
    bodies = [b"body-%d" % index * 20 for index in range(5)]
    batch = build_batch((pb.SingleMessageMetadata(partition_key="k"), body) for body in bodies)
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1700,
        num_messages_in_batch=len(bodies),
        compression=int(kind),
        uncompressed_size=len(batch),
    )
    single = pb.MessageMetadata(producer_name="p", sequence_id=9, publish_time=1800)
    entries = [build_entry(metadata, compress(kind, batch)), build_entry(single, b"alone")]
    client = serve(Broker([], entries, 0))
    consumer = client.subscribe("t", "s")
    received = [consumer.receive(10_000) for _ in range(6)]
    assert [message.data() for message in received] == [*bodies, b"alone"]
    assert {message.partition_key() for message in received[:5]} == {"k"}
    assert received[5].publish_timestamp() == 1800
    client.close()
