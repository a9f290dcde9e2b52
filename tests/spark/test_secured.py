"""Spark's source and sink by TLS, with credentials and end-to-end encryption."""

import pytest

import velaray
from tests.support.secured import KEY, secured

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with secured(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture
def encrypting(place):
    return {"encryption_key": KEY, "public_key_file": place.public_key}


def values(spark, options):
    rows = spark.read.format("velaray").options(**options, columns="key,value").load()
    return sorted((row["key"], bytes(row["value"]).decode()) for row in rows.collect())


def test_rows_go_to_a_topic_and_back(spark, place, encrypting, topic):
    rows = [(f"k{n % 3}", f"v{n}") for n in range(100)]
    frame = spark.createDataFrame(rows, "key string, value string").repartition(2)
    (
        frame.write.format("velaray")
        .options(**place.spark_certified, **encrypting, topic=topic)
        .mode("append")
        .save()
    )
    reading = place.spark_trusting | {"topic": topic, "private_key_file": place.private_key}
    assert values(spark, reading) == sorted(rows)
    with pytest.raises(Exception, match="can't be decrypted"):
        values(spark, reading | {"private_key_file": str(place.alice.key)})
    with (
        velaray.Client(
            place.url,
            authentication=velaray.AuthenticationToken(place.token),
            **place.trusting.arguments(),
        ) as client,
        client.create_reader(
            topic,
            velaray.MessageId.earliest,
            crypto_key_reader=velaray.CryptoKeyReader("", place.private_key),
        ) as reader,
    ):
        context = reader.read_next(20_000).encryption_context()
    (key,) = context.keys()
    assert key.key == KEY


def test_a_stream_copies_from_topic_to_topic(spark, place, encrypting, topic, tmp_path):
    to = f"{topic}-copy"
    with (
        velaray.Client(
            place.url,
            authentication=velaray.AuthenticationToken(place.token),
            **place.trusting.arguments(),
        ) as client,
        client.create_producer(topic) as producer,
    ):
        producer.send_many([b"%d" % n for n in range(50)], ["k"] * 50)
    reading = place.spark_certified | {"topic": topic, "starting_position": "earliest"}
    query = (
        spark.readStream.format("velaray")
        .options(**reading, columns="key,value,properties")
        .load()
        .writeStream.format("velaray")
        .options(**place.spark_trusting, **encrypting, topic=to)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    found = values(
        spark, place.spark_trusting | {"topic": to, "private_key_file": place.private_key}
    )
    assert found == sorted(("k", str(n)) for n in range(50))
    checkpoint = b"".join(
        path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()
    )
    assert place.token.encode() not in checkpoint


def test_a_key_that_cannot_be_read_writes_nothing(spark, place, topic, tmp_path):
    frame = spark.createDataFrame([("v",)], "value string")
    writer = frame.write.format("velaray").options(**place.spark_certified, topic=topic)
    absent = {"encryption_key": KEY, "public_key_file": str(tmp_path / "absent")}
    with pytest.raises(Exception, match="public key 'orders' can't be read"):
        writer.options(**absent).mode("append").save()
    assert values(spark, place.spark_trusting | {"topic": topic}) == []
    with pytest.raises(Exception, match="one file for each name"):
        writer.options(encryption_key=KEY, public_key_file="").mode("append").save()
