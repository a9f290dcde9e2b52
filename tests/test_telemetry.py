"""OpenTelemetry: one trace from the producer over the broker to the consumer, and metrics by OTLP.

A receiver in this process takes what the official exporters send.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import velaray.aio
from tests.support.encryption import written_keys
from tests.support.local_cluster import LocalCluster
from tests.support.otlp import TOPIC, Receiver
from tests.support.samples import python_of
from tests.support.waiting import wait_until
from velaray import BatchingType, Client, CompressionType, ConsumerType, MessageId
from velaray.admin.otlp_metrics import metrics_of
from velaray.client import telemetry
from velaray.client.message import OutgoingMessage
from velaray.starting import ClusterError
from velaray.telemetry import TracingConsumerInterceptor, TracingProducerInterceptor, context_of
from velaray.topology import telemetry as telemetry_of_processes
from velaray.topology.metrics import Sample
from velaray.topology.store_spans import contexts_of
from velaray.topology.telemetry import url_of
from velaray.wire.pulsar_pb2 import KeyValue, MessageMetadata
from velaray.wire.trace_context import exposed, exposed_in


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.close()


@pytest.fixture(scope="module")
def cluster(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        directory = tmp_path_factory.mktemp("cluster")
        with LocalCluster(directory, otlp_endpoint=receiver.url, otlp_interval_s=0.2) as running:
            yield running


class Program:
    """A program with a provider of its own, whose spans stay in memory."""

    def __init__(self, **options: Any) -> None:
        self.memory = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.tracer = self.provider.get_tracer("program")
        self.producing = TracingProducerInterceptor(self.provider)
        self.consuming = TracingConsumerInterceptor(self.provider)

    def named(self, name: str) -> list[Any]:
        return [span for span in self.memory.get_finished_spans() if span.name == name]


@pytest.fixture
def program() -> Program:
    return Program()


class Key:
    """A pair of keys, and the options of a consumer and a producer with it."""

    def __init__(self, public: str, private: str) -> None:
        self._reader = velaray.CryptoKeyReader(public, private)

    def options(self, encrypted: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        reader = {"crypto_key_reader": self._reader} if encrypted else {}
        return reader, {**reader, "encryption_key": "k"} if encrypted else {}


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return Key(*written_keys(tmp_path_factory.mktemp("keys"), "pair"))


def hexed(span: Any) -> tuple[str, str, str]:
    return span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}


# -- one trace ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"batching_enabled": False},
        {"batching_enabled": True, "batching_max_publish_delay_ms": 1000},
        {"batching_enabled": True, "compression_type": CompressionType.ZSTD},
        {"batching_enabled": True, "batching_type": BatchingType.KeyBased},
    ],
)
def test_one_trace_goes_from_producer_over_broker_to_consumer(
    cluster: LocalCluster, receiver: Receiver, program: Program, options: dict[str, Any]
) -> None:
    topic = f"t{abs(hash(str(options)))}"
    with Client(cluster.service_url) as client:
        consumer = client.subscribe(topic, "s", interceptors=[program.consuming])
        producer = client.create_producer(topic, interceptors=[program.producing], **options)
        with program.tracer.start_as_current_span("request") as request:
            for number in range(3):
                producer.send_async(b"%d" % number, properties={"own": "kept"}, partition_key="k")
            producer.flush()
        for _ in range(3):
            message = consumer.receive(10_000)
            assert message.properties()["own"] == "kept"
            consumer.acknowledge(message)
    wait_until(lambda: len(receiver.stored(topic)) == len(receiver.delivered(topic)) == 3)
    context = request.get_span_context()
    sent, processed = (
        program.named(f"send {TOPIC.format(topic)}"),
        program.named(f"process {TOPIC.format(topic)}"),
    )
    assert len(sent) == len(processed) == 3
    assert {span.parent.span_id for span in sent} == {context.span_id}
    ids = {span.context.span_id for span in sent}
    assert {span.parent.span_id for span in processed} == ids
    assert {int(hexed(span)[2], 16) for span in receiver.stored(topic)} == ids
    assert {int(hexed(span)[2], 16) for span in receiver.delivered(topic)} == ids
    assert {int(hexed(span)[0], 16) for span in receiver.stored(topic)} == {context.trace_id}
    assert {span.context.trace_id for span in (*sent, *processed)} == {context.trace_id}
    assert [span.kind.name for span in (sent[0], processed[0])] == ["PRODUCER", "CONSUMER"]
    # Sent and processed are the same messages, and the broker's spans name their entries.
    named = [span.attributes["messaging.message.id"] for span in sent]
    assert sorted(named) == sorted(span.attributes["messaging.message.id"] for span in processed)
    entries = {attributes(span)["velaray.entry"] for span in receiver.stored(topic)}
    assert entries == {":".join(each.split(":")[:2]) for each in named}
    assert receiver.resources[-1]["service.name"] == "velaray"


def test_attributes_are_those_of_the_conventions(
    cluster: LocalCluster, receiver: Receiver, program: Program
) -> None:
    with Client(cluster.service_url) as client:
        consumer = client.subscribe("named", "s", interceptors=[program.consuming])
        producer = client.create_producer("named", interceptors=[program.producing])
        stored = producer.send(b"four")
        message = consumer.receive(10_000)
        inner = program.tracer.start_span("part", program.consuming.context_of(message))
        inner.end()
        consumer.acknowledge(message)
        assert context_of(message)
    wait_until(lambda: receiver.stored("named"))
    (sent,) = program.named(f"send {TOPIC.format('named')}")
    (processed,) = program.named(f"process {TOPIC.format('named')}")
    common = {
        "messaging.system": "pulsar",
        "messaging.destination.name": TOPIC.format("named"),
        "messaging.message.body.size": 4,
        "messaging.message.id": f"{stored.ledger_id()}:{stored.entry_id()}:-1:-1",
    }
    assert dict(sent.attributes) == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert dict(processed.attributes) == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.subscription.name": "s",
    }
    assert program.named("part")[0].parent.span_id == processed.context.span_id
    wait_until(lambda: receiver.delivered("named"))
    (delivered,) = map(attributes, receiver.delivered("named"))
    assert delivered.pop("velaray.consumer")
    assert delivered == {
        "messaging.system": "pulsar",
        "messaging.destination.name": TOPIC.format("named"),
        "messaging.destination.subscription.name": "s",
        "messaging.operation.name": "deliver",
        "velaray.entry": f"{stored.ledger_id()}:{stored.entry_id()}",
    }
    (broker,) = receiver.stored("named")
    assert attributes(broker) == {
        "messaging.system": "pulsar",
        "messaging.destination.name": TOPIC.format("named"),
        "messaging.operation.name": "store",
        "velaray.entry": f"{stored.ledger_id()}:{stored.entry_id()}",
    }


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_call_of_send_many_is_one_span_above_those_of_its_entries(
    cluster: LocalCluster, receiver: Receiver, program: Program, key: Key, encrypted: bool
) -> None:
    topic = f"many-{encrypted}"
    with Client(cluster.service_url) as client:
        of_consumer, of_producer = key.options(encrypted)
        consumer = client.subscribe(topic, "s", interceptors=[program.consuming], **of_consumer)
        producer = client.create_producer(topic, interceptors=[program.producing], **of_producer)
        with program.tracer.start_as_current_span("request") as request:
            producer.send_many([b"x" * 300_000] * 3)
        for _ in range(3):
            message = consumer.receive(10_000)
            assert message.properties() == {}
            assert context_of(message)
            consumer.acknowledge(message)
    entries = 3  # of up to 512 KiB
    wait_until(lambda: len(receiver.stored(topic)) == len(receiver.delivered(topic)) == entries)
    (sent,) = program.named(f"send {TOPIC.format(topic)}")
    processed = program.named(f"process {TOPIC.format(topic)}")
    assert sent.attributes["messaging.batch.message_count"] == 3
    assert sent.parent.span_id == request.get_span_context().span_id
    assert [span.parent.span_id for span in processed] == [sent.context.span_id] * 3
    for spans in (receiver.stored(topic), receiver.delivered(topic)):
        assert [int(hexed(span)[2], 16) for span in spans] == [sent.context.span_id] * entries


def test_a_failed_call_of_send_many_ends_its_span_with_the_error(
    cluster: LocalCluster, program: Program
) -> None:
    with Client(cluster.service_url) as client:
        producer = client.create_producer("failed-many", interceptors=[program.producing])
        velaray.Admin(cluster.admin_url).topics.terminate("failed-many")
        # The broker may have ended the producer before the call or during it.
        with pytest.raises((velaray.TopicTerminated, velaray.NotAllStored)) as failure:
            producer.send_many([b"x"])
        with pytest.raises(velaray.InvalidMessage):
            producer.send_many([5])
    (failed,) = program.named(f"send {TOPIC.format('failed-many')}")
    assert failed.attributes["error.type"] == failure.type.__name__


def test_the_messages_of_an_encrypted_batch_have_spans_of_the_broker(
    cluster: LocalCluster, receiver: Receiver, program: Program, key: Key
) -> None:
    with Client(cluster.service_url) as client:
        of_consumer, of_producer = key.options(True)
        consumer = client.subscribe("sealed", "s", interceptors=[program.consuming], **of_consumer)
        producer = client.create_producer(
            "sealed",
            interceptors=[program.producing],
            batching_enabled=True,
            batching_max_publish_delay_ms=1000,
            **of_producer,
        )
        for number in range(3):
            producer.send_async(b"%d" % number, properties={"own": "hidden"})
        producer.flush()
        for _ in range(3):
            message = consumer.receive(10_000)
            assert message.properties()["own"] == "hidden"
            assert [pair.key for pair in message.info.metadata.properties] == [
                "velaray.traceparent"
            ] * 3
            consumer.acknowledge(message)
    wait_until(lambda: len(receiver.stored("sealed")) == len(receiver.delivered("sealed")) == 3)
    ids = {span.context.span_id for span in program.named(f"send {TOPIC.format('sealed')}")}
    assert len(ids) == 3
    for spans in (receiver.stored("sealed"), receiver.delivered("sealed")):
        assert {int(hexed(span)[2], 16) for span in spans} == ids
    processed = program.named(f"process {TOPIC.format('sealed')}")
    assert {span.parent.span_id for span in processed} == ids


def test_copies_of_contexts_keep_the_state_of_each() -> None:
    given = [{"traceparent": "a", "tracestate": "x=1"}, {"own": "1"}, {"traceparent": "b"}]
    copies = [KeyValue(key=name, value=value) for each in given for name, value in exposed(each)]
    others = [KeyValue(key="other", value="1")]
    assert list(exposed_in([*others, *copies])) == [given[0], given[2]]
    assert list(exposed_in(others)) == []


def test_the_asyncio_client_and_partitions(
    cluster: LocalCluster, receiver: Receiver, program: Program
) -> None:
    async def scenario() -> None:
        async with velaray.aio.Client(cluster.service_url) as client:
            consumer = await client.subscribe("split", "s", interceptors=[program.consuming])
            producer = await client.create_producer("split", interceptors=[program.producing])
            with program.tracer.start_as_current_span("request"):
                await producer.send(b"x", partition_key="k")
            message = await consumer.receive(10_000)
            await consumer.acknowledge_cumulative(message)

    velaray.Admin(cluster.admin_url).topics.create("split", partitions=2)
    asyncio.run(scenario())
    (request,) = program.named("request")
    (sent,) = program.named(f"send {TOPIC.format('split')}")
    partition = sent.attributes["messaging.destination.partition.id"]
    (processed,) = program.named(f"process {TOPIC.format('split')}-partition-{partition}")
    assert sent.parent.span_id == request.context.span_id
    assert processed.parent.span_id == sent.context.span_id
    wait_until(lambda: receiver.stored(f"split-partition-{partition}"))


def test_traces_that_are_not_sampled_leave_no_spans(
    cluster: LocalCluster, receiver: Receiver
) -> None:
    silent, loud = Program(sampler=ALWAYS_OFF), Program()
    with Client(cluster.service_url) as client:
        consumer = client.subscribe("unsampled", "s", interceptors=[silent.consuming])
        for each in (silent, loud):
            producer = client.create_producer("unsampled", interceptors=[each.producing])
            producer.send(b"x")
            producer.close()
        client.create_producer("unsampled").send(b"without a context")
        received = [consumer.receive(10_000) for _ in range(3)]
        flags = received[0].properties()["traceparent"].split("-")[3]
        assert not int(flags, 16) & 1
        assert received[2].properties() == {}
        for message in received:
            consumer.acknowledge(message)
    wait_until(lambda: receiver.stored("unsampled"))
    assert len(receiver.stored("unsampled")) == 1
    assert silent.memory.get_finished_spans() == ()


def test_a_refused_entry_ends_its_spans_with_an_error(
    cluster: LocalCluster, receiver: Receiver, program: Program
) -> None:
    with Client(cluster.service_url) as client:
        producer = client.create_producer("ended", interceptors=[program.producing])
        producer.send(b"x")
        velaray.Admin(cluster.admin_url).topics.terminate("ended")
        with pytest.raises(velaray.PulsarException):
            producer.send(b"y")
    (_, failed) = program.named(f"send {TOPIC.format('ended')}")
    assert failed.status.status_code.name == "ERROR"
    assert failed.attributes["error.type"] == "TopicTerminated"


def test_redelivered_messages_have_a_span_for_each_delivery(
    cluster: LocalCluster, program: Program
) -> None:
    with Client(cluster.service_url) as client:
        consumer = client.subscribe(
            *("again", "s", ConsumerType.Shared),
            interceptors=[program.consuming],
            negative_ack_redelivery_delay_ms=10,
        )
        client.create_producer("again", interceptors=[program.producing]).send(b"x")
        consumer.negative_acknowledge(consumer.receive(10_000))
        consumer.acknowledge(consumer.receive(10_000))
    first, second = program.named(f"process {TOPIC.format('again')}")
    assert first.attributes["error.type"] == "negative acknowledgement"
    assert second.status.status_code.name == "UNSET"
    assert second.attributes["velaray.redelivery_count"] == 1
    assert first.parent.span_id == second.parent.span_id


def test_the_sample_of_the_page(cluster: LocalCluster, program: Program) -> None:
    (code,) = python_of("docs/telemetry.md")
    with Client(cluster.service_url) as client:
        names: dict[str, Any] = {"client": client}
        exec(code, names)
        names["producer"].send(b"x")
        assert names["consumer"].receive(10_000).data() == b"x"


# -- the interceptors alone --------------------------------------------------------


def message_at(entry: int, index: int = -1, size: int = 0) -> Any:
    found = MessageId(-1, 1, entry, index, batch_size=size, topic="t")
    return SimpleNamespace(
        topic_name=lambda: "t",
        message_id=lambda: found,
        properties=dict,
        index=index,
        info=SimpleNamespace(metadata=MessageMetadata()),
        redelivery_count=lambda: 0,
        __len__=lambda: 0,
    )


class Received(SimpleNamespace):
    def __len__(self) -> int:
        return 0


def consume(program: Program, *messages: Any) -> None:
    consumer = SimpleNamespace(subscription_name=lambda: "s")
    for each in messages:
        program.consuming.before_consume(consumer, Received(**vars(each)))


def test_cumulative_acknowledgements_end_all_spans_before(program: Program) -> None:
    consume(program, message_at(1), message_at(2, 0, 2), message_at(2, 1, 2), message_at(3))
    until = message_at(2, 0, 2).message_id()
    program.consuming.on_acknowledge_cumulative(None, until, None)
    assert len(program.named("process t")) == 2
    program.consuming.on_acknowledge_cumulative(None, message_at(2).message_id(), None)
    program.consuming.on_acknowledge_cumulative(None, MessageId(-1, 1, 9, topic="other"), None)
    program.consuming.on_ack_timeout_send(None, {message_at(3).message_id()})
    *_, last = program.named("process t")
    assert last.attributes["error.type"] == "acknowledgement timeout"


def test_open_spans_are_limited(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MOST_OPEN", 2)
    consume(program, message_at(1), message_at(2), message_at(3), message_at(3))
    found = program.named("process t")
    assert [span.attributes["error.type"] for span in found] == ["not acknowledged"] * 2
    program.consuming.close()
    assert len(program.named("process t")) == 4


def test_a_closed_producer_ends_its_spans(program: Program) -> None:
    producer = SimpleNamespace(topic=lambda: "t")
    message = OutgoingMessage(b"x", {"traceparent": "of another", "tracestate": "a=b"})
    sent = program.producing.before_send(producer, message)
    assert sent.properties()["traceparent"] != "of another"
    assert "tracestate" not in sent.properties()
    program.producing.close()
    (span,) = program.named("send t")
    assert span.attributes["error.type"] == "closed"
    program.producing.on_send_acknowledgement(producer, message, None, None)


def test_the_global_provider_is_the_default() -> None:
    assert trace.get_tracer_provider() is not None
    message = TracingProducerInterceptor().before_send(
        SimpleNamespace(topic=lambda: "t"), OutgoingMessage(b"x")
    )
    assert message.properties() == {}  # the program has set up no provider


def test_unreadable_entries_have_no_contexts() -> None:
    assert list(contexts_of(b"no entry")) == []


# -- metrics -----------------------------------------------------------------------


def test_metrics_are_pushed(cluster: LocalCluster, receiver: Receiver) -> None:
    with Client(cluster.service_url) as client:
        client.create_producer("counted").send(b"x")

    def counted() -> bool:
        metric = receiver.metrics.get("pulsar_in_messages_total")
        points = [] if metric is None else metric.sum.data_points
        return any(attributes(point).get("topic") == TOPIC.format("counted") for point in points)

    wait_until(counted)
    found = receiver.metrics
    assert found["pulsar_in_messages_total"].sum.is_monotonic
    assert found["velaray_actors"].gauge.data_points
    assert found["velaray_host_memory_bytes"].unit == "By"
    histogram = found["velaray_storage_write_latency_seconds"]
    assert histogram.unit == "s" and histogram.description
    for point in histogram.histogram.data_points:
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        assert sum(point.bucket_counts) == point.count
        assert not point.HasField("min")


def test_buckets_are_taken_apart() -> None:
    name, labels = "velaray_txn_commit_latency_seconds", {"coordinator_id": "0"}
    parts = [("0.5", 2.0), ("+Inf", 5.0), ("0.1", 1.0)]
    samples = [Sample(f"{name}_bucket", {**labels, "le": le}, count) for le, count in parts]
    samples += [Sample(f"{name}_sum", labels, 7.5), Sample(f"{name}_count", labels, 5.0)]
    (metric,) = metrics_of(samples, 1)
    (point,) = metric.data.data_points
    assert (point.bucket_counts, point.explicit_bounds) == ([1, 1, 3], [0.1, 0.5])
    assert (point.count, point.sum, point.attributes) == (5, 7.5, labels)


# -- settings ----------------------------------------------------------------------


def test_without_packages_a_start_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_of_processes, "find_spec", lambda _: None)
    with pytest.raises(ClusterError, match=r"pip install 'velaray\[otel\]'"):
        velaray.LocalCluster.start(tmp_path / "data", otlp_endpoint="http://127.0.0.1:1")
    with pytest.raises(ValueError, match="write http://host:port"):
        velaray.LocalCluster.start(tmp_path / "data", otlp_endpoint="collector:4318")


def test_without_an_endpoint_nothing_is_loaded(tmp_path: Path) -> None:
    code = """if True:
        import sys
        import velaray
        with velaray.LocalCluster.start() as cluster, velaray.Client(cluster.service_url) as client:
            client.create_producer("t").send(b"x")
        print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout.strip() == "[]"


def test_urls_of_signals() -> None:
    assert url_of("http://a:4318/", "traces") == "http://a:4318/v1/traces"
