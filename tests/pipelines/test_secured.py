"""The service's address, its credentials, TLS and keys in the options of pipelines."""

import pickle
from functools import partial

import pytest

import velaray
from tests.support.secured import secured
from velaray.client.exceptions import InvalidConfiguration
from velaray.client.tls import TlsOptions

pytest.importorskip("pyarrow", reason="pyarrow isn't installed")
from velaray.pipelines import spark_client
from velaray.pipelines.public_keys import PublicKeys, listed
from velaray.pipelines.spark_client import CONNECTION, Service, link_to
from velaray.pipelines.spark_options import Options

URL = "pulsar+ssl://broker:6651"


def service(**given):
    return Service.of(Options({"service_url": URL} | given, CONNECTION, "the velaray source"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with secured(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.mark.parametrize("by", ["token", "token_file", "certificate"])
def test_each_form_of_credentials_connects_by_tls(place, by):
    made = {
        "token": lambda: Service(place.url, token=place.token, tls=place.trusting),
        "token_file": lambda: Service.of(
            Options(place.spark_trusting, CONNECTION, "the velaray source")
        ),
        "certificate": lambda: Service.of(
            Options(place.spark_certified, CONNECTION, "the velaray source")
        ),
    }[by]()
    made = pickle.loads(pickle.dumps(made))  # as it goes to the tasks
    topic = f"persistent://public/default/by-{by}"
    with link_to(made) as link:
        link.producer(topic, None).send(b"hello")
        with link.client.create_reader(topic, velaray.MessageId.earliest) as reader:
            assert reader.read_next(20_000).data() == b"hello"
    assert place.token not in repr(made)


def test_the_name_of_the_host_is_checked_unless_an_option_says_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr(
        spark_client, "Client", partial(velaray.Client, operation_timeout_seconds=3)
    )
    with secured(tmp_path, "elsewhere.example") as place:

        def partitions(**given):
            options = Options(place.spark_trusting | given, CONNECTION, "the velaray source")
            with Service.of(options).client() as client:
                return client.get_topic_partitions("t")

        with pytest.raises(velaray.Timeout, match="Hostname mismatch"):
            partitions()
        assert partitions(tls_validate_hostname="false")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"token": "a", "token_file": "b"}, "token or token_file, not both"),
        (
            {"service_url": "pulsar://broker:6650", "tls_validate_hostname": "false"},
            "pulsar://broker:6650 isn't a URL of TLS",
        ),
        ({"tls_certificate_file_path": "client.pem"}, "both tls_certificate_file_path and"),
        ({"tls_trust_certs_file_path": "/absent/ca.pem"}, "/absent/ca.pem is no file"),
        ({"tls_validate_hostname": "perhaps"}, "give true or false"),
    ],
)
def test_options_that_cannot_work_are_refused(given, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        service(**given)


def test_without_options_of_tls_the_authorities_of_the_system_are_trusted():
    assert service().tls is None
    assert service(tls_validate_hostname="false").tls == TlsOptions(validate_hostname=False)


def test_each_key_has_a_file(tmp_path):
    assert PublicKeys.of([], []) is None
    for name in ("billing", "audit"):
        (tmp_path / name).write_text(f"key of {name}")
    files = f"{tmp_path}/billing , {tmp_path}/audit"
    keys = PublicKeys.of(listed("billing,audit"), listed(files))
    assert keys.names == ["billing", "audit"]
    for name in keys.names:
        assert keys.get_public_key(name, {}).key == f"key of {name}".encode()
    for names, paths in (
        (["a"], []),
        ([], ["a"]),
        (["a", "a"], ["b", "b"]),
        (["a", "b"], ["c"]),
        ([""], ["c"]),
    ):
        with pytest.raises(InvalidConfiguration, match="one file for each name"):
            PublicKeys.of(names, paths)
