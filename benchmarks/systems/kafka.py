"""Apache Kafka, one broker that is its own controller, through confluent-kafka."""

from __future__ import annotations

import subprocess
import threading
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.contract import Absent, Done, Transactor
from benchmarks.install import class_path
from benchmarks.servers import free_port, running, scratch, wait_until
from benchmarks.systems import kafka_transactions

CONSUME = 1_000
_WAIT_S = 0.2
_CALL_WITHIN_S = 60.0
_CONFIG = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
{flush}
"""
_LOG = """
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%p %c{1} %m%n
"""


class Kafka:
    """One broker; a topic has one partition, a subscription is a consumer group."""

    def __init__(self, flush_always: bool) -> None:
        """``flush_always`` sets ``flush.messages=1``: every appended batch is synced."""
        self._flush = "log.flush.interval.messages=1" if flush_always else ""
        self.settings = {
            "server": "Apache Kafka, KRaft, combined broker and controller, -Xmx1g, "
            + (f"{self._flush} (flush.messages=1)" if flush_always else "no flush of its own"),
            "client": "confluent-kafka, defaults (acks=all, linger 5 ms), no callback per message; "
            f"consume({CONSUME}), offsets committed after each, the last one synchronously",
            "transactions": "for each in flight a thread with a partition, its consumer and a "
            "producer; consume(), produce() per message, send_offsets_to_transaction()",
        }

    def __enter__(self) -> Self:
        jars = class_path("kafka")
        self.settings["version"] = _version(jars)
        with ExitStack() as stack:
            directory = stack.enter_context(scratch("kafka"))
            words = self._configure(directory, jars)
            self._server = stack.enter_context(running(words, directory))
            self._admin = AdminClient({**self._connect(), "log_level": 0})
            wait_until(self._answers, self._server, directory)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _configure(self, directory: Path, jars: str) -> list[str]:
        """Write the configuration, format the storage; returns the server's command."""
        self._port = free_port()
        config, log = directory / "server.properties", directory / "log4j.properties"
        config.write_text(
            _CONFIG.format(
                port=self._port, controller=free_port(), directory=directory, flush=self._flush
            )
        )
        log.write_text(_LOG)
        java = ["java", "-Xmx1g", f"-Dlog4j.configuration=file:{log}", "-cp", jars]
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With a sign between: an identifier may begin with a dash.
        identified = f"--cluster-id={cluster}"
        format_words = ["kafka.tools.StorageTool", "format", identified, "-c", str(config)]
        subprocess.run([*java, *format_words], check=True, capture_output=True)
        return [*java, "kafka.Kafka", str(config)]

    def _connect(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{self._port}"}

    def _answers(self) -> bool:
        try:
            return bool(self._admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def servers(self) -> Iterable[int]:
        """See `benchmarks.contract.Peer`."""
        return [self._server.pid]

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        """See `benchmarks.contract.Peer`. A group without offsets begins at the first message."""
        self._create(topic, 1)

    def _create(self, topic: str, partitions: int) -> None:
        for future in self._admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(_CALL_WITHIN_S)

    def remove(self, topic: str) -> None:
        """See `benchmarks.contract.Peer`."""
        for future in self._admin.delete_topics([topic]).values():
            future.result(_CALL_WITHIN_S)

    @contextmanager
    def sender(self, topic: str, way: str) -> Iterator[_Sender]:
        """See `benchmarks.contract.Peer`."""
        yield _Sender(Producer({**self._connect(), "message.max.bytes": 4 << 20}), topic)

    @contextmanager
    def single_sender(self, topic: str, way: str) -> Iterator[_Sender]:
        """See `benchmarks.contract.Peer`. Without lingering; receipts are polled for at once."""
        sender = _Sender(Producer({**self._connect(), "linger.ms": 0}), topic)
        with sender.polling():
            yield sender

    @contextmanager
    def taker(self, topic: str, subscription: str, way: str) -> Iterator[_Taker]:
        """See `benchmarks.contract.Peer`."""
        consumer = Consumer(
            {
                **self._connect(),
                "group.id": f"{topic}-{subscription}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
            }
        )
        consumer.subscribe([topic])
        try:
            yield _Taker(consumer)
        finally:
            consumer.close()

    @contextmanager
    def transactor(
        self, source: str, target: str, way: str, most_at_once: int
    ) -> Iterator[Transactor]:
        """See `benchmarks.contract.TransactionalPeer`. A group can't share a partition."""
        self._create(source, most_at_once)
        self._create(target, 1)
        with kafka_transactions.transactor(
            self._connect(), source, target, most_at_once
        ) as transactor:
            yield transactor


class _Sender:
    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic

    def send_many(self, payload: bytes, count: int) -> None:
        for _ in range(count):
            while True:
                try:
                    self._producer.produce(self._topic, payload)
                    break
                except BufferError:
                    self._producer.poll(0.01)

    def wait(self) -> None:
        left = self._producer.flush(_CALL_WITHIN_S)
        if left:
            raise TimeoutError(f"no receipt for {left} messages within {_CALL_WITHIN_S:g} s")

    def send_each(self, payloads: Sequence[bytes], done: Done) -> None:
        for payload in payloads:
            self._producer.produce(self._topic, payload, on_delivery=_completing(payload, done))

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Poll for receipts in a thread while within the context."""
        over = threading.Event()

        def poll() -> None:
            while not over.is_set():
                self._producer.poll(0.1)

        thread = threading.Thread(target=poll)
        thread.start()
        yield
        over.set()
        thread.join()


def _completing(payload: bytes, done: Done) -> Callable[[KafkaError | None, Message], None]:
    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        done(payload)

    return on_delivery


class _Taker:
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._last: Message | None = None

    def _consume(self, most: int) -> list[Message]:
        found: list[Message] = []
        # Whole batches are asked for only when they may fill: consume() waits for all of it.
        first = self._consumer.poll(_WAIT_S)
        if first is not None:
            found = [first, *self._consumer.consume(min(most, CONSUME) - 1, 0)]
        for message in found:
            if message.error() is not None:
                raise KafkaException(message.error())
        if found:
            self._last = found[-1]
            self._consumer.commit(asynchronous=True)
        return found

    def take(self, most: int) -> int:
        return len(self._consume(most))

    def take_payloads(self) -> list[bytes]:
        return [message.value() or b"" for message in self._consume(CONSUME)]

    def finish(self) -> None:
        if self._last is not None:
            self._consumer.commit(message=self._last, asynchronous=False)


def _version(jars: str) -> str:
    for jar in Path(jars).parent.glob("kafka_2.13-*.jar"):
        return jar.stem.rpartition("-")[2]
    raise Absent("there is no kafka_2.13 among the fetched jars")
