"""Where the service of a query is, and what it presents there."""

import pickle

import jwt
import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from velaray.client.exceptions import ErrorGettingAuthenticationData, InvalidConfiguration
from velaray.pipelines.spark_client import CONNECTION, Service, link_to
from velaray.pipelines.spark_options import Options
from velaray.topology.config import AuthSettings

pytestmark = pytest.mark.slow

SECRET = b"a secret that is long enough for signatures"
TOPIC = "persistent://public/default/guarded"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A cluster that asks for tokens."""
    with LocalCluster(
        tmp_path_factory.mktemp("guarded"), auth=AuthSettings(secret=SECRET)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def token():
    return jwt.encode({"sub": "admin"}, SECRET, algorithm="HS256")


def of(**options):
    return Service.of(Options(options, CONNECTION, "the test"))


def test_source_and_sink_use_a_token_and_never_show_it(spark, guarded, token, tmp_path, capfd):
    file = tmp_path / "token"
    file.write_text(token + "\n")
    with velaray.Client(
        guarded.service_url, authentication=velaray.AuthenticationToken(token)
    ) as client:
        with client.create_producer(TOPIC) as producer:
            producer.send(b"secret")
        query = (
            spark.readStream.format("velaray")
            .options(service_url=guarded.service_url, topic=TOPIC, token=token)
            .options(columns="value", starting_position="earliest")
            .load()
            .writeStream.format("velaray")
            .options(service_url=guarded.service_url, topic=TOPIC + "-copy")
            .options(token_file=str(file), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        query.explain(extended=True)
        with client.create_reader(TOPIC + "-copy", velaray.MessageId.earliest) as reader:
            assert reader.read_next(10_000).data() == b"secret"
    kept = "".join(
        each.read_text(errors="replace")
        for each in (tmp_path / "checkpoint").rglob("*")
        if each.is_file()
    )
    printed = "".join(capfd.readouterr())
    assert "velaray" in printed.lower()
    assert token not in kept + printed + str(query.recentProgress)


def test_a_wrong_token_is_refused_without_being_shown(spark, guarded):
    options = {"service_url": guarded.service_url, "topic": TOPIC, "token": "not-a-token"}
    with pytest.raises(Exception, match="AuthenticationError") as caught:
        spark.read.format("velaray").options(**options).load().collect()
    assert "not-a-token" not in str(caught.value)


def test_a_service_is_pickled_with_its_token_and_does_not_print_it(token):
    service = of(service_url="pulsar://here", token=token)
    assert token not in repr(service)
    assert pickle.loads(pickle.dumps(service)).token == token


def test_a_missing_token_file_is_named(guarded, tmp_path):
    service = of(service_url=guarded.service_url, token_file=str(tmp_path / "none"))
    with (
        pytest.raises(ErrorGettingAuthenticationData, match="none: No such file"),
        link_to(service) as link,
    ):
        link.client.get_topic_partitions(TOPIC)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "one of the options service_url, cluster"),
        ({"service_url": "pulsar://a", "cluster": "auto"}, "only one"),
        ({"service_url": "pulsar://a", "token": "a", "token_file": "b"}, "not both"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, says):
    with pytest.raises(InvalidConfiguration, match=says):
        of(**options)
