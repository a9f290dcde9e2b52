"""End-to-end encryption: velaray's client at one or both ends, the official one at the other."""

import asyncio
from dataclasses import replace

import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import velaray
import velaray.aio
from tests.support.encryption import written_keys
from velaray.client.batcher import EntryBuilder
from velaray.client.encryption import KEY_LIFE_S, RETRY_S, Decryptor, Encryptor
from velaray.client.message import OutgoingMessage
from velaray.client.options import ConsumerOptions, ProducerOptions
from velaray.wire.compression import decompress
from velaray.wire.messages import open_entry, split_entry
from velaray.wire.pulsar_pb2 import MessageMetadata

WAIT = 10_000
FAIL, SEND = velaray.ProducerCryptoFailureAction
PAYLOAD = b"secret payload " * 200


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Pairs of files: two RSA keys, and a key on an elliptic curve."""
    folder = tmp_path_factory.mktemp("keys")
    curve = ec.generate_private_key(ec.SECP256R1())
    made = {"right": None, "wrong": None, "curve": curve}
    return {name: written_keys(folder, name, private) for name, private in made.items()}


def ignore(error, message_id):
    pass


class Named:
    """A reader of several keys; ``asked`` counts the questions for private keys."""

    def __init__(self, keys):
        self._keys = keys
        self.asked = []

    def get_public_key(self, key_name, metadata):
        return velaray.EncryptionKeyInfo(read(self._keys[key_name][0]), {"version": key_name})

    def get_private_key(self, key_name, metadata):
        self.asked.append((key_name, dict(metadata)))
        return velaray.EncryptionKeyInfo(read(self._keys[key_name][1]))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def send_all(producer, payloads):
    outcomes = []
    for payload in payloads:
        producer.send_async(
            payload, lambda result, message_id: outcomes.append(result.name), properties={"p": "v"}
        )
    producer.flush()
    producer.close()
    assert outcomes == ["Ok"] * len(payloads)


def subscribe(module, client, topic, **options):
    earliest = module.InitialPosition.Earliest
    return client.subscribe(topic, "s", initial_position=earliest, **options)


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("direction", ["to theirs", "from theirs", "ours"])
def test_encrypted_messages_cross_libraries(
    client, official, topic, keys, direction, batching, compression
):
    ours, theirs = (velaray, client), (pulsar, official)
    sending, client_ = theirs if direction == "from theirs" else ours
    receiving, other = theirs if direction == "to theirs" else ours
    producer = client_.create_producer(
        topic,
        batching_enabled=batching,
        compression_type=getattr(sending.CompressionType, compression),
        encryption_key="right",
        crypto_key_reader=sending.CryptoKeyReader(*keys["right"]),
    )
    payloads = [PAYLOAD[:size] for size in (3000, 0, 1, 16)]
    send_all(producer, payloads)
    raw = client.create_reader(
        topic,
        velaray.MessageId.earliest,
        crypto_failure_action=velaray.ConsumerCryptoFailureAction.CONSUME,
    )
    first = raw.read_next(WAIT)
    context = first.encryption_context()
    assert context.is_decryption_failed()
    assert context.compression_type().name == compression
    (found,) = context.keys()
    assert found.key == "right"
    assert len(context.param()) == 12
    consumer = subscribe(
        receiving, other, topic, crypto_key_reader=receiving.CryptoKeyReader(*keys["right"])
    )
    got = [consumer.receive(WAIT) for _ in payloads]
    assert [message.data() for message in got] == payloads
    assert all(message.properties() == {"p": "v"} for message in got)
    if receiving is velaray:
        assert not any(message.encryption_context().is_decryption_failed() for message in got)
        assert got[0].encryption_context().batch_size() == context.batch_size()


@pytest.mark.parametrize("direction", ["to theirs", "from theirs", "ours"])
def test_chunks_are_encrypted_one_by_one(client, official, topic, keys, direction):
    ours, theirs = (velaray, client), (pulsar, official)
    sending, client_ = theirs if direction == "from theirs" else ours
    receiving, other = theirs if direction == "to theirs" else ours
    producer = client_.create_producer(
        topic,
        chunking_enabled=True,
        batching_enabled=False,
        encryption_key="right",
        crypto_key_reader=sending.CryptoKeyReader(*keys["right"]),
    )
    payload = PAYLOAD * 4000
    send_all(producer, [payload])
    consumer = subscribe(
        receiving, other, topic, crypto_key_reader=receiving.CryptoKeyReader(*keys["right"])
    )
    assert consumer.receive(WAIT).data() == payload


def produce(client, topic, keys, payloads, **options):
    producer = client.create_producer(
        topic,
        encryption_key="right",
        crypto_key_reader=velaray.CryptoKeyReader(*keys["right"]),
        **options,
    )
    send_all(producer, payloads)


@pytest.mark.parametrize("with_reader", [True, False], ids=["wrong key", "no key reader"])
@pytest.mark.parametrize("batching", [True, False])
def test_failure_actions_of_consumers(client, cluster, topic, keys, batching, with_reader):
    produce(client, topic, keys, [b"one", b"two"], batching_enabled=batching)
    plain = client.create_producer(topic)
    plain.send(b"plain")
    actions = velaray.ConsumerCryptoFailureAction
    reader = velaray.CryptoKeyReader(*keys["wrong"]) if with_reader else None

    def consumer_with(name, action, **options):
        return client.subscribe(
            topic,
            name,
            velaray.ConsumerType.Shared,
            initial_position=velaray.InitialPosition.Earliest,
            crypto_key_reader=reader,
            crypto_failure_action=action,
            **options,
        )

    failing = consumer_with("fail", actions.FAIL, receiver_queue_size=1)
    message = failing.receive(WAIT)
    assert message.data() == b"plain"
    assert message.encryption_context() is None
    failing.acknowledge(message)
    failing.close()
    working = client.subscribe(
        topic, "fail", crypto_key_reader=velaray.CryptoKeyReader(*keys["right"])
    )
    assert [working.receive(WAIT).data() for _ in range(2)] == [b"one", b"two"]

    discarding = consumer_with("discard", actions.DISCARD, ack_receipt_enabled=True)
    message = discarding.receive(WAIT)
    assert message.data() == b"plain"
    discarding.acknowledge(message)
    discarding.close()
    stats = velaray.Admin(cluster.admin_url).topics.stats(topic)
    assert stats["subscriptions"]["discard"]["msgBacklog"] == 0

    consuming = consumer_with("consume", actions.CONSUME)
    got = [consuming.receive(WAIT) for _ in range(2 if batching else 3)]
    assert got[-1].data() == b"plain"
    for message in got[:-1]:
        context = message.encryption_context()
        assert context.is_decryption_failed()
        assert context.batch_size() == (2 if batching else -1)
        assert message.data() not in (b"one", b"two")
    own = Decryptor(velaray.CryptoKeyReader(*keys["right"]))
    opened = own.decrypt(got[0].info.metadata, got[0].data())
    assert b"one" in opened
    for message in got:
        consuming.acknowledge(message)


def test_an_undecryptable_message_comes_again_after_the_acknowledgement_timeout(
    client, topic, keys, monkeypatch
):
    monkeypatch.setattr("velaray.client.options.MIN_ACK_TIMEOUT_MS", 1)
    produce(client, topic, keys, [b"one"])
    found = Named({"right": keys["wrong"]})
    consumer = subscribe(
        velaray, client, topic, crypto_key_reader=found, unacked_messages_timeout_ms=100
    )
    with pytest.raises(velaray.Timeout):
        consumer.receive(500)
    found._keys["right"] = keys["right"]
    message = consumer.receive(60_000)
    assert message.data() == b"one"
    assert message.redelivery_count() >= 1


def test_the_official_consumer_cannot_read_with_another_key(client, official, topic, keys):
    produce(client, topic, keys, [b"one"])
    consumer = subscribe(
        pulsar,
        official,
        topic,
        crypto_key_reader=pulsar.CryptoKeyReader(*keys["wrong"]),
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    message = consumer.receive(WAIT)
    assert message.encryption_context().is_decryption_failed()
    assert message.data() != b"one"


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("bad", ["missing", "curve"])
def test_failure_actions_of_producers(client, topic, keys, batching, bad):
    paths = keys.get(bad, ("/nowhere/public.pem", "/nowhere/private.pem"))
    options = {
        "batching_enabled": batching,
        "encryption_key": "k",
        "crypto_key_reader": velaray.CryptoKeyReader(*paths),
    }
    failing = client.create_producer(topic, **options)
    with pytest.raises(velaray.CryptoError, match="'k'"):
        failing.send(b"never")
    with pytest.raises(velaray.NotAllStored, match="'k'"):
        failing.send_many([b"never"])
    sending = client.create_producer(topic, crypto_failure_action=SEND, **options)
    sending.send(b"in plain")
    consumer = subscribe(velaray, client, topic)
    message = consumer.receive(WAIT)
    assert (message.data(), message.encryption_context()) == (b"in plain", None)


def test_many_values_are_encrypted_for_several_keys(client, topic, keys):
    found = Named(keys)
    producer = client.create_producer(
        topic,
        compression_type=velaray.CompressionType.LZ4,
        encryption_keys=["wrong", "right"],
        crypto_key_reader=found,
    )
    values = [b"%d" % number for number in range(1000)]
    producer.send_many(values)
    reader = Named({"right": keys["right"]})
    consumer = subscribe(velaray, client, topic, crypto_key_reader=reader)
    assert [consumer.receive(WAIT).data() for _ in values] == values
    producer.send(b"again")
    assert consumer.receive(WAIT).data() == b"again"
    assert reader.asked == [("wrong", {"version": "wrong"}), ("right", {"version": "right"})]


@pytest.mark.parametrize("with_keys", [True, False])
def test_arrays_of_arrow_are_encrypted(client, topic, keys, with_keys):
    pa = pytest.importorskip("pyarrow", reason="pyarrow isn't installed")
    reader = velaray.CryptoKeyReader(*keys["right"])
    values = [b"x" * (number % 7) for number in range(100)]
    producer = client.create_producer(topic, encryption_key="right", crypto_key_reader=reader)
    named = pa.array([f"k{number}" for number in range(100)]) if with_keys else None
    producer.send_many(pa.array(values, pa.binary()), named)
    consumer = subscribe(velaray, client, topic, crypto_key_reader=reader)
    assert [consumer.receive(WAIT).data() for _ in values] == values


def test_asyncio_producers_and_readers_encrypt(cluster, topic, keys):
    async def exchange():
        async with velaray.aio.Client(cluster.service_url) as client:
            pair = velaray.CryptoKeyReader(*keys["right"])
            producer = await client.create_producer(
                topic, encryption_key="right", crypto_key_reader=pair
            )
            await producer.send(b"one")
            reader = await client.create_reader(
                topic, velaray.MessageId.earliest, crypto_key_reader=pair
            )
            message = await reader.read_next()
            assert message.data() == b"one"
            assert message.encryption_context() is not None

    asyncio.run(exchange())


def test_data_keys_are_replaced_after_their_life(keys):
    now = [0.0]
    found = Named({"right": keys["right"]})
    encryptor = Encryptor(["right"], found, FAIL, lambda: now[0])
    decryptor = Decryptor(found)

    def data_key():
        metadata = MessageMetadata()
        sealed = encryptor.encrypt(metadata, PAYLOAD)
        assert decryptor.decrypt(metadata, sealed) == PAYLOAD
        assert (
            len(sealed) + len(metadata.SerializePartialToString())
            <= len(PAYLOAD) + encryptor.overhead()
        )
        return metadata.encryption_keys[0].value, metadata.encryption_param

    first, first_iv = data_key()
    now[0] = KEY_LIFE_S - 1
    second, second_iv = data_key()
    assert first == second
    assert first_iv != second_iv
    now[0] = KEY_LIFE_S
    third, _ = data_key()
    assert third != first
    found._keys.clear()
    now[0] = 2 * KEY_LIFE_S
    decryptor = Decryptor(Named({"right": keys["right"]}))
    assert data_key()[0] == third  # no key to replace it with
    found._keys["right"] = keys["right"]
    assert data_key()[0] == third
    now[0] += RETRY_S
    assert data_key()[0] != third


def test_changed_entries_are_refused(keys):
    pair = velaray.CryptoKeyReader(*keys["right"])
    metadata = MessageMetadata()
    sealed = bytearray(Encryptor(["right"], pair, FAIL).encrypt(metadata, PAYLOAD))
    sealed[5] ^= 1
    for payload in (bytes(sealed), b"short", b""):
        with pytest.raises(velaray.CryptoError, match="doesn't fit"):
            Decryptor(pair).decrypt(metadata, payload)
    metadata.encryption_param = b"1"
    with pytest.raises(velaray.CryptoError, match="doesn't fit"):
        Decryptor(pair).decrypt(metadata, bytes(sealed))


@pytest.mark.parametrize("batching", [True, False])
def test_batches_are_compressed_before_they_are_encrypted_and_stay_within_the_limit(keys, batching):
    pair = velaray.CryptoKeyReader(*keys["right"])
    options = ProducerOptions(
        "t",
        encryption_key="right",
        crypto_key_reader=pair,
        batching_enabled=batching,
        chunking_enabled=not batching,
        batching_max_allowed_size_in_bytes=1 << 20,
    )
    limit = 10_000
    builder = EntryBuilder(options, "p", limit)
    entries = []
    for number in range(20):
        message = OutgoingMessage(PAYLOAD if batching else PAYLOAD * 8)
        entries += builder.add(message, number, ignore)
    entries += builder.flush()
    assert max(len(entry.data) for entry in entries) <= limit
    options = replace(options, compression_type=velaray.CompressionType.ZSTD)
    compressing = EntryBuilder(options, "p", 1 << 20)
    (entry,) = compressing.add(OutgoingMessage(PAYLOAD), 0, ignore) + compressing.flush()
    metadata, payload = split_entry(entry.data)
    assert len(payload) < len(PAYLOAD)
    plain = Decryptor(pair).decrypt(metadata, payload)
    assert PAYLOAD in decompress(metadata.compression, plain, metadata.uncompressed_size, 1 << 20)
    assert open_entry(entry.stamped(b"\1" * 8).data)[0].encryption_keys


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"encryption_key": "k"}, "crypto_key_reader"),
        ({"encryption_keys": "k"}, "encryption_keys"),
        ({"encryption_keys": [""]}, "encryption_keys"),
        ({"encryption_key": "k", "crypto_key_reader": object()}, "crypto_key_reader"),
        ({"crypto_failure_action": 1}, "crypto_failure_action"),
        ({"crypto_key_reader": velaray.CryptoKeyReader("a", "b")}, "encryption_key"),
    ],
)
def test_options_that_would_send_in_plain_are_refused(options, name):
    with pytest.raises(velaray.InvalidConfiguration, match=name):
        ProducerOptions("t", **options)


def test_consumer_options_are_checked():
    for options in ({"crypto_key_reader": object()}, {"crypto_failure_action": 1}):
        with pytest.raises(velaray.InvalidConfiguration, match=next(iter(options))):
            ConsumerOptions("t", "s", **options)


def moving(client, topic, **options):
    """A consumer that can move messages to the dead-letter topic."""
    policy = velaray.ConsumerDeadLetterPolicy(3)
    shared = velaray.ConsumerType.Shared
    return subscribe(
        velaray, client, topic, consumer_type=shared, dead_letter_policy=policy, **options
    )


def publish_encrypted(client, topic, reader):
    producer = client.create_producer(topic, encryption_key="app", crypto_key_reader=reader)
    producer.send(PAYLOAD)


def test_a_dead_letter_is_encrypted_for_the_keys_of_its_original(client, topic, keys):
    reader = velaray.CryptoKeyReader(*keys["right"])
    dead = client.subscribe(f"{topic}-s-DLQ", "d", crypto_key_reader=reader)
    consumer = moving(client, topic, crypto_key_reader=reader)
    publish_encrypted(client, topic, reader)
    consumer.dead_letter(consumer.receive(WAIT))
    moved = dead.receive(WAIT)
    assert moved.data() == PAYLOAD
    data_keys = moved.encryption_context().keys()
    assert [each.key for each in data_keys] == ["app"]


def test_a_dead_letter_is_never_sent_in_plain(client, topic, keys):
    only_private = velaray.CryptoKeyReader("missing", keys["right"][1])
    consumer = moving(client, topic, crypto_key_reader=only_private)
    publish_encrypted(client, topic, velaray.CryptoKeyReader(*keys["right"]))
    with pytest.raises(velaray.CryptoError, match="the public key 'app'"):
        consumer.dead_letter(consumer.receive(WAIT))


def test_a_message_that_was_not_decrypted_cannot_become_a_dead_letter(client, topic, keys):
    consume = velaray.ConsumerCryptoFailureAction.CONSUME
    consumer = moving(client, topic, crypto_failure_action=consume)
    publish_encrypted(client, topic, velaray.CryptoKeyReader(*keys["right"]))
    with pytest.raises(velaray.CryptoError, match="still encrypted, so it can't be moved"):
        consumer.dead_letter(consumer.receive(WAIT))
