"""Every public parameter and method of pulsar-client: the same here, or listed in the table."""

import inspect
import re
from pathlib import Path

import pulsar
import pulsar.asyncio
import pytest

import velaray
import velaray.aio
from velaray.client import options

TABLE = (Path(__file__).parents[2] / "docs" / "parity.md").read_text(encoding="utf-8")

METHODS = [
    (pulsar.Client.__init__, velaray.Client.__init__, "Client"),
    (pulsar.Client.create_producer, velaray.Client.create_producer, "create_producer"),
    (pulsar.Client.subscribe, velaray.Client.subscribe, "subscribe"),
    (pulsar.Client.create_reader, velaray.Client.create_reader, "create_reader"),
    (pulsar.Client.create_table_view, velaray.Client.create_table_view, "create_table_view"),
    (pulsar.Client.get_topic_partitions, velaray.Client.get_topic_partitions, ""),
    (pulsar.Producer.send, velaray.Producer.send, "send"),
    (pulsar.Producer.send_async, velaray.Producer.send_async, "send_async"),
    (pulsar.Consumer.receive, velaray.Consumer.receive, "receive"),
    (pulsar.Consumer.batch_receive, velaray.Consumer.batch_receive, ""),
    (pulsar.Consumer.acknowledge, velaray.Consumer.acknowledge, "acknowledge"),
    (pulsar.Consumer.acknowledge_cumulative, velaray.Consumer.acknowledge_cumulative, ""),
    (pulsar.Consumer.negative_acknowledge, velaray.Consumer.negative_acknowledge, ""),
    (pulsar.Consumer.seek, velaray.Consumer.seek, "seek"),
    (pulsar.Reader.read_next, velaray.Reader.read_next, "read_next"),
    (pulsar.Reader.seek, velaray.Reader.seek, "seek"),
    (pulsar.MessageId.__init__, velaray.MessageId.__init__, "MessageId"),
    (pulsar.MessageId.deserialize, velaray.MessageId.deserialize, "deserialize"),
    (
        pulsar.ConsumerBatchReceivePolicy.__init__,
        velaray.ConsumerBatchReceivePolicy.__init__,
        "ConsumerBatchReceivePolicy",
    ),
    (
        pulsar.ConsumerKeySharedPolicy.__init__,
        velaray.ConsumerKeySharedPolicy.__init__,
        "ConsumerKeySharedPolicy",
    ),
    (
        pulsar.ConsumerDeadLetterPolicy.__init__,
        velaray.ConsumerDeadLetterPolicy.__init__,
        "ConsumerDeadLetterPolicy",
    ),
    (pulsar.CryptoKeyReader.__init__, velaray.CryptoKeyReader.__init__, "CryptoKeyReader"),
    (pulsar.ServiceInfo.__init__, velaray.ServiceInfo.__init__, "ServiceInfo"),
    (
        pulsar.ServiceInfoProvider.initialize,
        velaray.ServiceInfoProvider.initialize,
        "ServiceInfoProvider",
    ),
    (
        pulsar.AutoClusterFailover.__init__,
        velaray.AutoClusterFailover.__init__,
        "AutoClusterFailover",
    ),
    (pulsar.AuthenticationToken.__init__, velaray.AuthenticationToken.__init__, ""),
    (pulsar.AuthenticationOauth2.__init__, velaray.AuthenticationOauth2.__init__, ""),
    (pulsar.asyncio.Client.create_producer, velaray.aio.Client.create_producer, "create_producer"),
    (pulsar.asyncio.Client.subscribe, velaray.aio.Client.subscribe, "subscribe"),
    (pulsar.asyncio.Client.create_reader, velaray.aio.Client.create_reader, "create_reader"),
    (pulsar.asyncio.Client.get_topic_partitions, velaray.aio.Client.get_topic_partitions, ""),
    (pulsar.asyncio.Producer.send, velaray.aio.Producer.send, "send"),
    (pulsar.asyncio.Consumer.acknowledge, velaray.aio.Consumer.acknowledge, "acknowledge"),
    (pulsar.asyncio.Consumer.seek, velaray.aio.Consumer.seek, "seek"),
]

CLASSES = [
    (pulsar.Client, velaray.Client),
    (pulsar.Producer, velaray.Producer),
    (pulsar.Consumer, velaray.Consumer),
    (pulsar.Reader, velaray.Reader),
    (pulsar.TableView, velaray.TableView),
    (pulsar.Message, velaray.Message),
    (pulsar.MessageId, velaray.MessageId),
    (pulsar.EncryptionContext, velaray.EncryptionContext),
    (pulsar.EncryptionKey, velaray.EncryptionKey),
    (pulsar.ServiceInfo, velaray.ServiceInfo),
    (pulsar.ServiceInfoProvider, velaray.ServiceInfoProvider),
    (pulsar.AutoClusterFailover, velaray.AutoClusterFailover),
    (pulsar.asyncio.Client, velaray.aio.Client),
    (pulsar.asyncio.Producer, velaray.aio.Producer),
    (pulsar.asyncio.Consumer, velaray.aio.Consumer),
    (pulsar.asyncio.Reader, velaray.aio.Reader),
]

ENUMS = [
    "BatchingType",
    "CompressionType",
    "ConsumerCryptoFailureAction",
    "ConsumerType",
    "InitialPosition",
    "KeySharedMode",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "RegexSubscriptionMode",
    "Result",
]


def listed(owner: str, name: str) -> bool:
    """Whether docs/parity.md has a row for this name of this method or class."""
    return (
        re.search(rf"^\| `{re.escape(owner)}` \| `{re.escape(name)}` \|", TABLE, re.M) is not None
    )


def comparable(default: object) -> object:
    """A default in a form that both libraries share."""
    if type(default).__name__ == "BytesSchema":
        return None  # the schema that "no schema" means
    if hasattr(default, "name") and hasattr(default, "value"):
        return default.name
    return default


def test_the_asyncio_client_takes_the_parameters_of_the_synchronous_one():
    mine = inspect.signature(velaray.aio.Client.__init__)
    assert list(mine.parameters) == list(inspect.signature(velaray.Client.__init__).parameters)


@pytest.mark.parametrize(
    ("theirs", "mine", "owner"), METHODS, ids=lambda value: getattr(value, "__qualname__", "")
)
def test_parameters_have_the_same_name_default_and_place_or_are_listed(theirs, mine, owner):
    own = inspect.signature(mine).parameters
    expected = [p for p in inspect.signature(theirs).parameters.values() if p.name != "self"]
    found = []
    for parameter in expected:
        if parameter.name not in own:
            assert listed(owner, parameter.name), f"{owner}: {parameter.name} is missing"
            continue
        found.append(parameter.name)
        same = comparable(parameter.default) == comparable(own[parameter.name].default)
        assert same or listed(owner, parameter.name), f"{owner}: default of {parameter.name}"
    assert [name for name in own if name in found] == found


@pytest.mark.parametrize(
    ("theirs", "mine"), CLASSES, ids=lambda value: f"{value.__module__}.{value.__name__}"
)
def test_every_public_method_exists_or_is_listed(theirs, mine):
    missing = [
        name
        for name in dir(theirs)
        if not name.startswith("_")
        and not hasattr(mine, name)
        and not listed(theirs.__name__, name)
    ]
    assert missing == []


@pytest.mark.parametrize("name", ENUMS)
def test_choices_have_the_same_names_and_numbers(name):
    theirs = getattr(pulsar, name).__members__
    mine = getattr(velaray, name).__members__
    assert {key: int(value) for key, value in mine.items()} == {
        key: value.value if isinstance(value.value, int) else int(value)
        for key, value in theirs.items()
    }


def test_every_exception_class_exists_and_has_pulsars_code():
    for name in dir(pulsar.exceptions):
        theirs = getattr(pulsar.exceptions, name)
        if not isinstance(theirs, type):
            continue
        mine = getattr(velaray.client.exceptions, name)
        assert issubclass(mine, velaray.PulsarException)
        if name != "PulsarException":
            assert mine("text").error().name == name
            assert getattr(velaray, name) is mine


def test_every_public_name_of_pulsar_exists_or_is_listed():
    missing = [
        name
        for name, value in vars(pulsar).items()
        if not name.startswith("_")
        and (isinstance(value, type) or callable(value))
        and getattr(value, "__module__", "").split(".")[0] in ("pulsar", "_pulsar")
        and not hasattr(velaray, name)
        and not listed("pulsar", name)
    ]
    assert missing == []


OPTIONS = [
    (options.ClientOptions, "Client"),
    (options.ProducerOptions, "create_producer"),
    (options.ConsumerOptions, "subscribe"),
    (options.ReaderOptions, "create_reader"),
]


@pytest.mark.parametrize(("cls", "owner"), OPTIONS)
def test_every_unsupported_parameter_is_listed_with_its_reason(cls, owner):
    for name, reason in cls.unsupported.items():
        row = re.search(rf"^\| `{owner}` \| `{name}` \| (.*) \|$", TABLE, re.M)
        assert row is not None, f"{owner}: {name} is not in docs/parity.md"
        assert reason in row[1]


def test_own_parameters_are_listed_too():
    for cls, owner in OPTIONS:
        known = set()
        for theirs, _, name in METHODS:
            if name == owner:
                known |= set(inspect.signature(theirs).parameters)
        for name in inspect.signature(cls).parameters:
            assert name in known or listed(owner, name), f"{owner}: {name}"
