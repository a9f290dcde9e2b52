"""A query that is over for good leaves nothing behind in the service."""

import json

import pytest
from click.testing import CliRunner

import velaray
from tests.spark.driving import Driver
from tests.support.waiting import wait_until
from velaray.cli.app import main
from velaray.pipelines import release

pytestmark = pytest.mark.slow


@pytest.fixture
def admin(cluster):
    return velaray.Admin(cluster.admin_url)


@pytest.fixture
def done(copy, make_topic, client, admin, topic, tmp_path):
    """A query that copied four partitions; returns its checkpoint."""
    make_topic(topic, 4)
    with client.create_producer(topic) as producer:
        producer.send_many([b"1", b"2", b"3"], keys=["a", "b", "c"])
    copy()
    for number in range(4):
        wait_until_left(admin, f"{topic}-partition-{number}")
    return tmp_path / "checkpoint"


def wait_until_left(admin, topic):
    """Spark doesn't wait for the process in which a source leaves the service."""
    wait_until(lambda: not any(each["consumers"] for each in stats(admin, topic)), 60)


def stats(admin, topic):
    return admin.stats(topic)["subscriptions"].values()


def marks(admin, topic):
    return {
        name for number in range(4) for name in admin.subscriptions(f"{topic}-partition-{number}")
    }


def test_a_query_is_released_by_its_checkpoint_idempotently(done, admin, client, topic):
    query = json.loads((done / "metadata").read_text())["id"]
    assert client.commit_sequence(f"spark/{query}").last == 0
    assert len(marks(admin, topic)) == 1
    found = release(client, checkpoint=done)
    assert len(found.marks) == 4 and found.series == [f"spark/{query}"]
    assert marks(admin, topic) == set()
    assert client.commit_sequence(f"spark/{query}").last == -1
    assert release(client, checkpoint=done) == found


def test_a_release_does_not_recreate_a_deleted_topic(done, admin, client, topic):
    admin.delete_topic(topic, force=True)
    release(client, checkpoint=done)
    assert topic not in admin.topics("public/default")


def test_a_running_query_is_not_released(writing, admin, client, topic, tmp_path):
    with client.create_producer(topic) as producer:
        producer.send(b"1")
    query = writing(subscription="mark").format("noop").start()
    try:
        query.processAllAvailable()
        with pytest.raises(velaray.VelarayError, match=r"mark on .* is in use"):
            release(client, subscription="mark", topics=[topic])
        assert admin.subscriptions(topic) == ["mark"]
    finally:
        query.stop()
    wait_until_left(admin, topic)
    release(client, subscription="mark", topics=[topic])
    assert admin.subscriptions(topic) == []


def test_the_command_releases_a_query(done, cluster, admin, topic, tmp_path):
    where = ["--service-url", cluster.service_url]
    command = ["pipelines", "release", "--checkpoint", str(done), "--yes", *where]
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.output) == (
        0,
        "released 4 retention marks, 1 commit sequences\n",
    )
    assert marks(admin, topic) == set()
    result = CliRunner().invoke(
        main, ["pipelines", "release", "--checkpoint", str(tmp_path), "--yes", *where]
    )
    assert result.exit_code == 1 and "isn't a checkpoint" in result.output
    nothing = CliRunner().invoke(main, ["pipelines", "release", "--yes", *where])
    assert nothing.exit_code == 2 and "give --checkpoint" in nothing.output
    unsure = CliRunner().invoke(main, command[:4] + where)
    assert unsure.exit_code == 2 and "give --yes" in unsure.output


def test_the_marks_of_a_query_that_stopped_are_listed(cluster, client, admin, topic):
    with client.create_producer(topic) as producer:
        producer.send(b"read")
        driver = Driver(service_url=cluster.service_url, topic=topic, subscription="mine")
        assert driver.run() == [b"read"]
        wait_until_left(admin, topic)
        producer.send(b"unread")
    (mark,) = admin.pipelines.marks(topic)
    assert (mark["subscription"], mark["abandoned"]) == ("mine", False)
    result = CliRunner().invoke(
        main, ["pipelines", "marks", topic, "--idle", "0", "--admin-url", cluster.admin_url]
    )
    assert result.exit_code == 0 and "mine" in result.output and "abandoned" in result.output
    admin.pipelines.release(topic, "mine")
    assert admin.subscriptions(topic) == []
