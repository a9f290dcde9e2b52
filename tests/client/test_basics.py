"""Ids, options, credentials, URLs, timers: the small parts, without I/O."""

import pickle
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

import velaray
from velaray.client.enums import RegexSubscriptionMode
from velaray.client.exceptions import from_server
from velaray.client.options import (
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    ReaderOptions,
)
from velaray.client.service_info import parse_service_url
from velaray.client.topics import TopicPattern
from velaray.events.backoff import Backoff
from velaray.wire.errors import ServerError


def test_ids_have_the_byte_form_of_the_official_client():
    mine = velaray.MessageId(3, 17, 4, 2, batch_size=5)
    theirs = pulsar.MessageId.deserialize(mine.serialize())
    assert (theirs.partition(), theirs.ledger_id()) == (3, 17)
    assert (theirs.entry_id(), theirs.batch_index()) == (4, 2)
    back = velaray.MessageId.deserialize(theirs.serialize(), topic="t")
    assert (back, back.batch_size(), back.topic_name()) == (mine, 5, "t")


@pytest.mark.parametrize("end", ["earliest", "latest"])
def test_both_ends_of_a_topic_equal_those_of_the_official_client(end):
    mine, theirs = getattr(velaray.MessageId, end), getattr(pulsar.MessageId, end)
    assert velaray.MessageId.deserialize(theirs.serialize()) == mine
    assert pulsar.MessageId.deserialize(mine.serialize()) == theirs


def test_ids_are_ordered_hashable_and_picklable():
    ids = [velaray.MessageId(0, ledger, entry) for ledger in (1, 2) for entry in (0, 1)]
    assert sorted(ids, reverse=True) == ids[::-1]
    assert velaray.MessageId.earliest < ids[0] < velaray.MessageId.latest
    assert len({*ids, velaray.MessageId(0, 1, 0)}) == 4
    copy = pickle.loads(pickle.dumps(velaray.MessageId(0, 1, 2, 3, batch_size=9, topic="t")))
    assert (copy.batch_size(), copy.topic_name()) == (9, "t")


def test_invalid_bytes_of_an_id_are_refused():
    with pytest.raises(velaray.InvalidMessage):
        velaray.MessageId.deserialize(b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("pulsar://localhost:6650", ["localhost:6650"]),
        ("pulsar://localhost", ["localhost:6650"]),
        ("pulsar://a:1,b:2/", ["a:1", "b:2"]),
        ("pulsar://[::1]:7", ["[::1]:7"]),
        ("pulsar+ssl://a,b:1", ["a:6651", "b:1"]),
    ],
)
def test_service_urls_are_parsed(url, addresses):
    assert parse_service_url(url) == addresses


@pytest.mark.parametrize(
    "url",
    ["localhost:6650", "http://a:8080", "pulsar://", "pulsar://a:x",
     "pulsar://u@a:1", "pulsar://a:1/path", 5],
)  # fmt: skip
def test_wrong_service_urls_are_refused_at_once(url):
    with pytest.raises(velaray.InvalidUrl):
        velaray.Client(url)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ClientOptions("pulsar://a", operation_timeout_seconds=0), "operation_timeout"),
        (lambda: ClientOptions("pulsar://a", authentication="token"), "authentication"),
        (lambda: ClientOptions("pulsar://a", tls_trust_certs_file_path="/nowhere"), "/nowhere"),
        (lambda: ClientOptions("pulsar+ssl://a", tls_certificate_file_path="c"), "tls_private_key"),
        (lambda: velaray.AuthenticationTLS("/nowhere", "/nowhere"), "/nowhere"),
        (lambda: ProducerOptions("t", max_pending_messages=0), "max_pending_messages"),
        (lambda: ProducerOptions("t", send_timeout_millis=-1), "send_timeout_millis"),
        (lambda: ProducerOptions("t", batching_enabled=True, chunking_enabled=True), "chunking"),
        (lambda: ProducerOptions("t", properties={"a": 1}), "properties"),
        (lambda: ConsumerOptions("t", ""), "subscription_name"),
        (lambda: ConsumerOptions("t", "s", receiver_queue_size=-1), "receiver_queue_size"),
        (lambda: ConsumerOptions("t", "s", unacked_messages_timeout_ms=9999), "unacked"),
        (
            lambda: ConsumerOptions("t", "s", key_shared_policy=velaray.ConsumerKeySharedPolicy()),
            "key_shared_policy",
        ),
        (lambda: ReaderOptions("t", 5), "start_message_id"),
        (lambda: ProducerOptions("t", schema=object()), "schema"),
        (lambda: ConsumerOptions("t", "s", dead_letter_policy=object()), "dead_letter_policy"),
    ],
)
def test_invalid_values_are_refused(make, name):
    with pytest.raises(velaray.InvalidConfiguration, match=name):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClientOptions("pulsar://a", io_threads=4),
        lambda: ConsumerOptions("t", "s", broker_consumer_stats_cache_time_ms=1),
    ],
)
def test_unsupported_parameters_are_refused_not_ignored(make):
    with pytest.raises(velaray.OperationNotSupported):
        make()


def test_defaults_of_unsupported_parameters_are_harmless():
    ClientOptions("pulsar://a", io_threads=1, concurrent_lookup_requests=50000)
    ConsumerOptions("t", "s", message_listener=None, schema=velaray.BytesSchema())


def test_key_shared_ranges_are_checked():
    sticky = velaray.KeySharedMode.Sticky
    velaray.ConsumerKeySharedPolicy(sticky, sticky_ranges=[(0, 10), (11, 65535)])
    for wrong in ([(0, 10), (10, 20)], [(5, 4)], [(0, 65536)], []):
        with pytest.raises(velaray.InvalidConfiguration):
            velaray.ConsumerKeySharedPolicy(sticky, sticky_ranges=wrong)


def test_every_server_error_has_its_class():
    for code in ServerError:
        error = from_server(code, "text")
        assert isinstance(error, velaray.VelarayError) and str(error) == "text"
    assert isinstance(from_server(ServerError.ProducerFenced, ""), velaray.ProducerFenced)
    assert isinstance(from_server(ServerError.ConsumerBusy, ""), velaray.ConsumerBusy)
    assert "99" in str(from_server(99, "new"))


def test_errors_derive_from_builtin_ones_where_those_fit():
    assert issubclass(velaray.Timeout, TimeoutError)
    assert issubclass(velaray.ConnectError, ConnectionError)


def test_a_token_function_is_called_each_time_and_its_result_checked():
    tokens = iter(["a", "b"])
    auth = velaray.AuthenticationToken(lambda: next(tokens))
    assert [auth.data(), auth.data()] == [b"a", b"b"]
    with pytest.raises(velaray.ErrorGettingAuthenticationData):
        velaray.AuthenticationToken(lambda: None).data()


def test_backoff_doubles_up_to_its_limit_and_restarts():
    backoff = Backoff(first=1, longest=8)
    delays = [backoff.delay() for _ in range(6)]
    for delay, full in zip(delays, [1, 2, 4, 8, 8, 8], strict=True):
        assert full * 0.8 <= delay <= full
    backoff.reset()
    assert backoff.delay() <= 1


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("persistent://public/default/a-.*", "public/default/a-1", "public/default/b-1"),
        ("a-.*", "public/default/a-1", "public/default/ba-1"),
        ("my.t/n/x", "my.t/n/x", "myAt/n/x"),
    ],
)
def test_patterns_match_whole_names_of_one_namespace(pattern, matching, other):
    found = TopicPattern(pattern, RegexSubscriptionMode.PersistentOnly)
    assert found.matches_name(f"persistent://{matching}")
    assert not found.matches_name(f"persistent://{other}")


def test_a_wrong_pattern_is_refused():
    with pytest.raises(velaray.InvalidConfiguration):
        TopicPattern("a-(", RegexSubscriptionMode.PersistentOnly)


def test_importing_velaray_loads_nothing_heavy():
    code = (
        "import sys, velaray; dir(velaray);"
        "print([m for m in ('ray','aiohttp','click','rich','cramjam','google.protobuf','asyncio',"
        "'pydantic')"
        " if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.stdout.strip() == "[]", output.stderr


def test_lazy_names_equal_those_that_type_checkers_see():
    source = Path(velaray.__file__).read_text(encoding="utf-8")
    for home, names in velaray._HOMES.items():
        for name in names:
            assert f"{name} as {name}" in source
            assert getattr(velaray, name) is getattr(sys.modules[home], name)
    with pytest.raises(AttributeError):
        _ = velaray.nothing
