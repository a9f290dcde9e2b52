"""Encrypted messages in Spark's and Ray Data's sources: from the service and from files."""

import pickle

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import velaray
from velaray.client.exceptions import InvalidConfiguration
from velaray.pipelines.spark_positions import Start

pytest.importorskip("pyarrow", reason="pyarrow isn't installed")
from velaray.pipelines import ledgers, service_parts
from velaray.pipelines.spark_client import Service

EARLIEST, LATEST = Start.parse("earliest"), Start.parse("latest")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The public key of the producer, and the private keys: the right one and another."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("right", "wrong"):
        private = rsa.generate_private_key(65537, 2048)
        (folder / name).write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        (folder / f"{name}.public").write_bytes(
            private.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
    return folder


@pytest.fixture
def filled(cluster, topic, keys):
    """The topic, with encrypted batches, encrypted single messages, and one in plain."""
    pair = velaray.CryptoKeyReader(str(keys / "right.public"), "")
    with velaray.Client(cluster.service_url, operation_timeout_seconds=15) as client:
        options = {"encryption_key": "k", "crypto_key_reader": pair}
        with client.create_producer(
            topic, compression_type=velaray.CompressionType.LZ4, **options
        ) as producer:
            producer.send_many([b"%d" % n for n in range(50)])
            producer.send(b"alone")
        with client.create_producer(topic) as producer:
            producer.send(b"plain")
    return topic


@pytest.fixture(params=["service", "files"])
def source(request, cluster, filled):
    """The parts of the topic."""
    if request.param == "files":
        return ledgers.plan(cluster.config.data_dir, [filled], EARLIEST, LATEST)
    service = Service(cluster.service_url)
    return service_parts.plan(service, lambda _: [filled], EARLIEST, LATEST)


def values(parts, key_file):
    parts = pickle.loads(pickle.dumps(parts))  # as they go to the tasks
    batches = [batch for part in parts for batch in part.read(["value"], None, key_file)]
    return [value.as_py() for batch in batches for value in batch.column(0)]


def test_parts_are_read_with_the_private_key(source, keys):
    expected = [b"%d" % n for n in range(50)] + [b"alone", b"plain"]
    assert values(source, str(keys / "right")) == expected


@pytest.mark.parametrize("key_file", ["wrong", "missing", None])
def test_a_message_that_cannot_be_decrypted_ends_the_read(source, keys, key_file):
    named = None if key_file is None else str(keys / key_file)
    with pytest.raises(velaray.CryptoError, match="private_key_file"):
        values(source, named)


@pytest.mark.slow
def test_spark_takes_the_option_in_both_sources(cluster, filled, keys):
    pytest.importorskip("pyspark", reason="pyspark isn't installed")
    from velaray.pipelines.spark_batch import BatchSource, PartitionToRead
    from velaray.pipelines.spark_source import StreamSource

    given = {
        "service_url": cluster.service_url,
        "topic": filled,
        "columns": "value",
        "private_key_file": str(keys / "right"),
        "starting_position": "earliest",
    }
    expected = [b"%d" % n for n in range(50)] + [b"alone", b"plain"]
    batch = BatchSource(given)
    parts = [part for part in batch.partitions() if isinstance(part, PartitionToRead)]
    found = [
        value.as_py() for part in parts for rows in batch.read(part) for value in rows["value"]
    ]
    assert found == expected
    stream = StreamSource(given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    spans = stream.partitions(start, end)
    found = [
        value.as_py() for span in spans for rows in stream.read(span) for value in rows["value"]
    ]
    assert found == expected
    with pytest.raises(InvalidConfiguration, match="private_key"):
        BatchSource(given | {"private_key": "x"})


@pytest.mark.slow
def test_ray_data_takes_the_option(cluster, filled, keys):
    pytest.importorskip("ray.data", reason="ray[data] isn't installed")
    from velaray.pipelines.ray_data_read import TopicDatasource

    service = Service(cluster.service_url)
    parts = service_parts.plan(service, lambda _: [filled], EARLIEST, LATEST)
    (task,) = TopicDatasource(parts, ["value"], None, str(keys / "right")).get_read_tasks(1)
    found = [value.as_py() for table in task() for value in table["value"]]
    assert found == [b"%d" % n for n in range(50)] + [b"alone", b"plain"]
