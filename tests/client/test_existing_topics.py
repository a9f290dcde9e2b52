"""What only reads creates no topic: a mistyped name is refused with the nearest ones."""

import asyncio

import pytest

import velaray
import velaray.aio
from velaray.client.similar import missing_topic
from velaray.events.ids import TopicName

FLIGHTS = "persistent://public/airport/flights"


@pytest.fixture(scope="module", autouse=True)
def flights(cluster):
    admin = velaray.Admin(cluster.admin_url)
    admin.create_namespace("public/airport")
    admin.create_topic(FLIGHTS, partitions=2)
    admin.create_topic("persistent://public/airport/gates")
    return admin


@pytest.fixture(autouse=True)
def nothing_is_created(flights):
    before = flights.topics("public/airport")
    yield
    assert flights.topics("public/airport") == before


def reading(client):
    return (
        lambda topic: client.create_reader(topic, velaray.MessageId.earliest),
        lambda topic: client.create_table_view(topic),
        lambda topic: client.get_topic_partitions(topic, create=False),
    )


def test_a_mistyped_topic_is_refused_with_the_nearest_name(client):
    for read in reading(client):
        with pytest.raises(
            velaray.TopicNotFound, match=rf"flihgts.* nearest .* {FLIGHTS}[.,]"
        ) as e:
            read("persistent://public/airport/flihgts")
        assert "gates" not in str(e.value)
        assert "velaray topics create persistent://public/airport/flihgts" in str(e.value)
        assert e.value.error() is velaray.Result.TopicNotFound


def test_the_asyncio_client_refuses_a_mistyped_topic(cluster):
    async def work():
        async with velaray.aio.Client(cluster.service_url) as client:
            for read in reading(client):
                with pytest.raises(velaray.TopicNotFound, match=FLIGHTS):
                    await read("persistent://public/airport/flihgts")

    asyncio.run(work())


def test_a_partition_that_the_topic_lacks_is_refused(client):
    for read in reading(client):
        with pytest.raises(velaray.TopicNotFound, match="flights has no such partition"):
            read(f"{FLIGHTS}-partition-2")


def test_a_namespace_without_a_similar_name_is_refused(client):
    for read in reading(client):
        with pytest.raises(velaray.TopicNotFound, match="none with a similar name"):
            read("persistent://public/airport/zzzzzz")


def test_existing_topics_are_read(client):
    names = [f"{FLIGHTS}-partition-{number}" for number in range(2)]
    assert client.get_topic_partitions(FLIGHTS, create=False) == names
    for name in (FLIGHTS, *names, "persistent://public/airport/gates"):
        with client.create_reader(name, velaray.MessageId.earliest) as reader:
            assert not reader.has_message_available()


def test_at_most_three_names_are_proposed():
    topic = TopicName.parse("a/b/topic")
    names = [f"persistent://a/b/topic-{number}" for number in range(5)]
    assert missing_topic(topic, names).count("persistent://a/b/topic-") == 3
