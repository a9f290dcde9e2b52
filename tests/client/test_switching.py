"""A client switches to another cluster: its producers and consumers continue there."""

import asyncio
import logging
import threading
from functools import partial

import pytest

import velaray
import velaray.aio
from tests.client.scripted import ScriptedServer, run, until
from tests.support.waiting import wait_until
from tests.topology.replicating import clusters
from velaray.client.cluster_in_use import answers
from velaray.client.exceptions import InvalidTxnStatusError, TransactionNotFound
from velaray.client.options import ClientOptions
from velaray.schema import AvroSchema
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send
from velaray.wire.messages import open_entry

PATIENCE_MS = 20_000


class Told(velaray.ServiceInfoProvider):
    """Has a client use whichever cluster a test says."""

    def __init__(self, first):
        self.first = velaray.ServiceInfo(first)
        self.closed = 0

    def initial_service_info(self):
        return self.first

    def initialize(self, on_service_info_update):
        self.update = on_service_info_update

    def close(self):
        self.closed += 1

    def go(self, url):
        self.update(velaray.ServiceInfo(url))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with clusters(tmp_path_factory.mktemp("pair"), "a", "b") as found:
        for each in found:
            each.set_replication({"namespace": "public/default"}, ["a", "b"])
        yield found


@pytest.fixture
def told(pair):
    return Told(pair[0].local.service_url)


@pytest.fixture
def client(told):
    with velaray.Client(told, operation_timeout_seconds=15) as made:
        yield made


def stored(cluster, topic):
    return cluster.call(cluster.partition(topic), "stats")["entries"]


def numbers(*of):
    return [b"%d" % number for number in range(*of)]


def send(producer, *of):
    for payload in numbers(*of):
        producer.send(payload)


def test_producers_consumers_and_readers_continue_after_switching_forth_and_back(
    pair, told, client, topic
):
    a, b = pair
    assert client.get_service_info().service_url == a.local.service_url
    producer = client.create_producer(topic, producer_name="p")
    consumer = client.subscribe(topic, "s", replicate_subscription_state_enabled=True)
    reader = client.create_reader(topic, velaray.MessageId.earliest)
    read, done = [], 0
    for cluster in (a, b, a, b):
        told.go(cluster.local.service_url)
        assert client.get_service_info().service_url == cluster.local.service_url
        wait_until(lambda at=cluster: attached(at, topic) == 3, 20)
        assert not reader.has_message_available()
        send(producer, done, done + 5)
        done += 5
        for payload in numbers(done - 5, done):
            message = consumer.receive(PATIENCE_MS)
            assert message.data() == payload
            consumer.acknowledge_cumulative(message)
        assert reader.has_message_available()
        read += [reader.read_next(PATIENCE_MS).data() for _ in range(5)]
        assert not reader.has_message_available()
        for each in pair:
            wait_until(partial(settled, each, topic, done), 30)
    assert read == numbers(done)


def stats(cluster, topic):
    cluster.partition(topic)  # which may not be there yet
    return velaray.Admin(cluster.local.admin_url).stats(topic)


def attached(cluster, topic):
    """How many producers, consumers and readers of clients are there."""
    found = stats(cluster, topic)
    kept = [each for name, each in found["subscriptions"].items() if "pulsar.repl" not in name]
    publishers = [each for each in found["publishers"] if "repl" not in each["producerName"]]
    return len(publishers) + sum(len(each["consumers"]) for each in kept)


def settled(cluster, topic, messages):
    """Whether so many messages are stored there, and acknowledged."""
    return holds(cluster, topic, messages) and backlog(cluster, topic) == 0


def backlog(cluster, topic):
    """The number of unacknowledged messages there; -1 while the subscription is unknown."""
    found = stats(cluster, topic)["subscriptions"]
    return found["s"]["msgBacklog"] if "s" in found else -1


def test_has_message_available_is_right_after_a_switch(pair, told, client, topic):
    pair[0].partition(topic)  # creates it
    reader = client.create_reader(topic, velaray.MessageId.earliest, receiver_queue_size=0)
    for number, cluster in enumerate((*pair, pair[0])):
        told.go(cluster.local.service_url)
        wait_until(lambda at=cluster: attached(at, topic) == 1, 20)
        assert not reader.has_message_available()
        cluster.publish(topic, numbers(number, number + 1))
        assert reader.has_message_available()
        for each in pair:
            wait_until(partial(holds, each, topic, number + 1), 20)
        assert reader.read_next(PATIENCE_MS).data() == b"%d" % number


def holds(cluster, topic, messages):
    """Whether so many messages are stored there."""
    return stored(cluster, topic) == messages


def test_messages_of_the_former_cluster_are_acknowledged_in_the_new_one(pair, told, client, topic):
    b = pair[1]
    producer = client.create_producer(topic)
    consumer = client.subscribe(
        topic,
        "s",
        velaray.ConsumerType.Shared,
        replicate_subscription_state_enabled=True,
    )
    send(producer, 5)
    got = [consumer.receive(PATIENCE_MS) for _ in range(5)]
    wait_until(lambda: stored(b, topic) == 5 and backlog(b, topic) == 5, 20)
    told.go(b.local.service_url)
    for message in got[1:4]:
        consumer.acknowledge(message, receipt=True)
    wait_until(lambda: backlog(b, topic) == 2, 20)
    consumer.close()
    again = client.subscribe(topic, "s", velaray.ConsumerType.Shared)
    left = [again.receive(PATIENCE_MS) for _ in range(2)]
    assert sorted(message.data() for message in left) == [b"0", b"4"]


def test_a_transaction_ends_with_its_cluster(pair, told, client, topic):
    b = pair[1]
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", velaray.ConsumerType.Shared)
    commit_sequence = client.commit_sequence("of-a")
    lost = client.transaction()
    producer.send(b"lost", txn=lost)
    of_sequence = commit_sequence.begin()
    told.go(b.local.service_url)
    wait_until(lambda: attached(b, topic) == 2, 20)
    with pytest.raises(InvalidTxnStatusError):
        producer.send(b"late", txn=lost)
    with pytest.raises(InvalidTxnStatusError):
        lost.commit()
    assert lost.state == velaray.TransactionState.ERROR
    with pytest.raises(InvalidTxnStatusError):
        of_sequence.commit()
    with pytest.raises(TransactionNotFound):
        commit_sequence.commit(0, [])
    with client.transaction() as txn:
        producer.send(b"counts", txn=txn)
    assert consumer.receive(PATIENCE_MS).data() == b"counts"


def test_schema_versions_are_those_of_the_current_cluster(pair, told, client, topic):
    topic = f"{topic}-apart"
    for each, field in zip(pair, "xy", strict=True):
        each.partition(topic)
        each.set_replication({"topic": topic}, [each.name])
        with velaray.Client(each.local.service_url) as local:
            local.create_producer(topic, schema=numbers_in(field)).send({field: 7})
    earliest = velaray.InitialPosition.Earliest
    consumer = client.subscribe(topic, "s", schema=numbers_in("x", "y"), initial_position=earliest)
    assert consumer.receive(PATIENCE_MS).value() == {"x": 7, "y": 0}
    told.go(pair[1].local.service_url)
    assert consumer.receive(PATIENCE_MS).value() == {"x": 0, "y": 7}


def numbers_in(*fields):
    """Records of numbers; their first version in their topic."""
    found = [{"name": name, "type": "int", "default": 0} for name in fields]
    return AvroSchema(None, {"type": "record", "name": "Numbers", "fields": found})


# -- with servers that say what they're told to ------------------------------------


class Keeping(ScriptedServer):
    """Keeps the entries that it gets; with ``receipts`` it says so."""

    def __init__(self, receipts, **answers):
        self.kept = []

        def keep(server, connection, send, entry):
            metadata, start = open_entry(entry)
            self.kept.append((send, metadata, bytes(entry[start:])))
            if not receipts:
                return None
            done = pb.CommandSendReceipt(producer_id=send.producer_id)
            done.sequence_id = send.sequence_id
            done.message_id.ledgerId, done.message_id.entryId = 1, len(self.kept)
            return done

        super().__init__(Send=keep, **answers)
        self.answers[Send] = keep


def versions(*schemas):
    """Numbers schemas in this order, as a registry does."""

    def version_of(schema):
        number = [known.info.data for known in schemas].index(schema.schema_data)
        return number.to_bytes(8, "big")

    return {
        "Producer": lambda s, c, m, e: pb.CommandProducerSuccess(
            request_id=m.request_id, producer_name="p", schema_version=version_of(m.schema)
        ),
        "GetOrCreateSchema": lambda s, c, m, e: pb.CommandGetOrCreateSchemaResponse(
            request_id=m.request_id, schema_version=version_of(m.schema)
        ),
    }


def test_messages_without_a_receipt_are_sent_again_with_schema_versions_of_the_new_cluster():
    async def work():
        own, other = numbers_in("x"), numbers_in("y")
        async with (
            Keeping(False, **versions(own, other)) as here,
            Keeping(True, **versions(other, own)) as there,
        ):
            told = Told(here.url)
            async with velaray.aio.Client(told) as client:
                producer = await client.create_producer("t", schema=own, batching_enabled=False)
                sends = [
                    asyncio.create_task(producer.send({"x": 1})),
                    asyncio.create_task(producer.send({"y": 2}, schema=other)),
                    asyncio.create_task(producer.send({"x": 3})),
                ]
                await until(lambda: len(here.kept) == 3)
                told.go(there.url)
                ids = await asyncio.gather(*sends)
                await producer.send({"x": 4})
                await producer.send({"y": 5}, schema=other)
            assert [each.entry_id() for each in ids] == [1, 2, 3]
            for server, numbers in ((here, [0, 1, 0]), (there, [1, 0, 1, 1, 0])):
                stamped = [metadata.schema_version for _, metadata, _ in server.kept]
                assert [int.from_bytes(version, "big") for version in stamped] == numbers
            sequences = [metadata.sequence_id for _, metadata, _ in there.kept]
            assert sequences == [0, 1, 2, 3, 4]
            assert [kept[2] for kept in here.kept] == [kept[2] for kept in there.kept[:3]]

    run(work())


def coordinators():
    """One coordinator, whose only transaction is the fifth."""
    ids = {"txnid_most_bits": 0, "txnid_least_bits": 5}
    return {
        "PartitionedTopicMetadata": lambda s, c, m, e: pb.CommandPartitionedTopicMetadataResponse(
            request_id=m.request_id, partitions="assign" in m.topic, response=0
        ),
        "TcClientConnectRequest": lambda s, c, m, e: pb.CommandTcClientConnectResponse(
            request_id=m.request_id
        ),
        "NewTxn": lambda s, c, m, e: pb.CommandNewTxnResponse(request_id=m.request_id, **ids),
        "AddPartitionToTxn": lambda s, c, m, e: pb.CommandAddPartitionToTxnResponse(
            request_id=m.request_id, **ids
        ),
    }


def test_messages_of_a_transaction_do_not_join_one_with_the_same_id_in_the_new_cluster():
    async def work():
        async with (
            Keeping(False, **coordinators()) as here,
            Keeping(True, **coordinators()) as there,
        ):
            told = Told(here.url)
            client = velaray.aio.Client(told)
            producer = await client.create_producer("t", batching_enabled=False)
            txn = await client.new_transaction()
            sends = [
                asyncio.create_task(producer.send(b"in it", txn=txn)),
                asyncio.create_task(producer.send(b"in none")),
            ]
            await until(lambda: len(here.kept) == 2)
            told.go(there.url)
            with pytest.raises(TransactionNotFound):
                await sends[0]
            await sends[1]
            assert [payload for _, _, payload in there.kept] == [b"in none"]
            another = await client.new_transaction()
            assert another.txn_id == txn.txn_id
            await producer.send(b"in another", txn=another)
            assert there.kept[1][0].txn_id == (0, 5)
            await client.shutdown()

    run(work())


def test_connection_attempts_to_the_former_cluster_switch_at_once():
    async def work():
        async with (
            ScriptedServer(Connect=lambda *_: None) as silent,
            ScriptedServer() as there,
        ):
            told = Told(silent.url)
            client = velaray.aio.Client(told, connection_timeout_ms=3_600_000)
            producing = asyncio.create_task(client.create_producer("t"))
            await until(lambda: silent.count("Connect"))
            told.go(there.url)
            await producing
            await client.close()

    run(work())


def test_former_connections_are_closed_and_an_equal_service_info_changes_nothing():
    async def work():
        async with ScriptedServer() as here, ScriptedServer() as there:
            told = Told(here.url)
            client = velaray.aio.Client(told)
            await client.create_producer("t")
            told.go(here.url)
            await client.get_topic_partitions("t")
            told.go(there.url)
            await until(lambda: there.count("Producer") and here.left)
            assert (here.count("Connect"), here.count("Producer")) == (1, 1)
            await client.close()
            assert told.closed == 1
            told.go(here.url)
            await client.close()
            assert (told.closed, client.get_service_info().service_url) == (1, there.url)

    run(work())


def test_any_thread_may_switch_and_an_exception_in_a_provider_does_no_harm(caplog):
    class Failing(Told):
        def close(self):
            super().close()
            raise RuntimeError("told so")

    async def work():
        async with ScriptedServer() as here, ScriptedServer() as there:
            told = Failing(here.url)
            client = velaray.aio.Client(told)
            await client.create_producer("t")
            thread = threading.Thread(target=told.go, args=(there.url,))
            thread.start()
            await until(lambda: there.count("Producer"))
            thread.join()
            with pytest.raises(velaray.InvalidConfiguration, match="ServiceInfo"):
                told.update(here.url)
            with caplog.at_level(logging.ERROR, "velaray"):
                await client.close()
            assert told.closed == 1

    run(work())


def test_a_provider_may_switch_before_anything_is_connected():
    async def work():
        async with ScriptedServer() as here, ScriptedServer() as there:
            told = Told(here.url)
            client = velaray.aio.Client(told)
            told.go(there.url)
            await client.create_producer("t")
            assert (here.count("Connect"), there.count("Producer")) == (0, 1)
            await client.shutdown()
            assert told.closed == 1

    run(work())


def test_each_cluster_gets_its_own_credentials():
    async def work():
        async with ScriptedServer() as here, ScriptedServer() as there:
            first, second = (
                velaray.ServiceInfo(server.url, velaray.AuthenticationToken(token))
                for server, token in ((here, "of here"), (there, "of there"))
            )
            told = Told(here.url)
            told.first = first
            client = velaray.aio.Client(told)
            await client.create_producer("t")
            told.update(second)
            await until(lambda: there.count("Producer"))
            renewed = velaray.ServiceInfo(there.url, velaray.AuthenticationToken("newer"))
            told.update(renewed)
            await until(lambda: there.count("Producer") == 2)
            await client.close()
            for server, tokens in ((here, [b"of here"]), (there, [b"of there", b"newer"])):
                connects = [each for each in server.seen if type(each) is pb.CommandConnect]
                assert [each.auth_data for each in connects] == tokens

    run(work())


def test_a_probe_counts_a_refusal_as_an_answer_and_silence_as_a_failure():
    async def work():
        refusing = ScriptedServer(
            Connect=lambda *_: pb.CommandError(
                request_id=0, error=pb.AuthenticationError, message="told so"
            )
        )
        options = {"connection_timeout_ms": 200}
        async with refusing, ScriptedServer(Connect=lambda *_: None) as silent:
            assert await answers(ClientOptions(refusing.url, **options))
            assert not await answers(ClientOptions(silent.url, **options))
            both = f"{silent.url},{refusing.url.removeprefix('pulsar://')}"
            assert await answers(ClientOptions(both, **options))
        assert not await answers(ClientOptions(refusing.url, **options))

    run(work())
