"""An official client with its defaults loses nothing that was answered Ok, however it numbers.

Partitions die under a full pipeline, before the first receipt and after it; messages are delayed;
several threads send.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

import pulsar
import pytest

from tests.official import go_client, java_client
from tests.official.support import (
    LocalServer,
    ask,
    data,
    eventually,
    nothing_comes,
    numbered,
    partition_key,
    receive,
)
from velaray.broker.partition.session.producer import ConnectedProducer
from velaray.broker.partition.session.publishing import PublishHandlers
from velaray.wire.commands import Send


class Sender(Protocol):
    """One producer of an official client."""

    sent: list[str]

    def send(self, payloads: list[str]) -> None:
        """Send without waiting; what begins with "later" is delayed."""

    def wait(self) -> None:
        """Until everything is answered, with Ok."""


class PythonSender:
    def __init__(self, producer: pulsar.Producer) -> None:
        self._producer = producer
        self._answers: list[pulsar.Result] = []
        self.sent: list[str] = []

    def send(self, payloads: list[str]) -> None:
        for payload in payloads:
            self.sent.append(payload)
            later = {"deliver_at": int(time.time() * 1000) + 500}
            options = later if payload.startswith("later") else {}
            self._producer.send_async(payload.encode(), self._answered, **options)

    def _answered(self, result: pulsar.Result, _: Any) -> None:
        self._answers.append(result)

    def wait(self) -> None:
        self._producer.flush()
        eventually(lambda: len(self._answers) == len(self.sent))
        assert set(self._answers) == {pulsar.Result.Ok}


class ProgramSender:
    """A program of Go's or Java's client."""

    def __init__(self, scenario: go_client.Scenario) -> None:
        assert scenario.line() == "ready"
        self._scenario = scenario
        self._answered = 0
        self.sent: list[str] = []

    def send(self, payloads: list[str]) -> None:
        self.sent += payloads
        self._scenario.tell(*payloads)

    def wait(self) -> None:
        while self._answered < len(self.sent):
            answer = self._scenario.line()
            assert answer.startswith("sent "), answer
            self._answered += 1


CLIENTS = ["python", "python named", "go", "go named", "java"]


@pytest.fixture(params=CLIENTS)
def sender(
    request: pytest.FixtureRequest, connect: Any, local: LocalServer, topic: str
) -> Iterator[Sender]:
    """A producer of one of the clients, with a name of its own or without."""
    client, *named = request.param.split()
    words = [local.service_url, topic, *named]
    if client == "python":
        yield PythonSender(connect(local.service_url).create_producer(*words[1:]))
        return
    if client == "go":
        running = go_client.running(request.getfixturevalue("go"), "publish", *words)
    else:
        running = java_client.running(request.getfixturevalue("java"), "Publishing", *words)
    with running as scenario:
        yield ProgramSender(scenario)


class Gate:
    """What the next producers that send something may have: so many entries are stored, and none
    gets a receipt; or, with None, everything. A client that comes back has another producer, on
    the same connection or on another one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored: int | None = None
        self.arrived = 0
        self._left: dict[ConnectedProducer, int | None] = {}
        on_send, answer = PublishHandlers.on_send, ConnectedProducer.stored

        def take(handlers: PublishHandlers, send: Send, entry: bytes | None) -> None:
            producer = handlers._producers.connected.get(send.producer_id)
            if producer is None:
                return  # it was closed
            self.arrived += 1
            left = self._left.setdefault(producer, self.stored)
            if left:
                self._left[producer] = left - 1
            if left != 0:
                on_send(handlers, send, entry)

        def receipt(producer: ConnectedProducer, *args: Any) -> None:
            if self._left[producer] is None:
                answer(producer, *args)

        monkeypatch.setattr(PublishHandlers, "on_send", take)
        monkeypatch.setattr(PublishHandlers, "on_sends", lambda handlers, run: False)  # one by one
        monkeypatch.setattr(ConnectedProducer, "stored", receipt)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def entries(local: LocalServer, topic: str) -> int:
    return int(ask(local, topic, "stats")["entries"])


def fill(gate: Gate, sender: Sender, payloads: Iterator[str]) -> None:
    """Several batches, one after the other."""
    for _ in range(8):
        before = gate.arrived
        sender.send([next(payloads) for _ in range(10)])
        eventually(lambda before=before: gate.arrived > before)


def die(local: LocalServer, topic: str) -> None:
    """The partition dies, and its producer comes back."""
    local.cluster.kill(partition_key(local, topic))
    eventually(lambda: ask(local, topic, "stats")["producers"])


def all_came_once(client: pulsar.Client, topic: str, sent: list[str]) -> None:
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    came = [message.decode() for message in data(receive(consumer, len(sent), ack=True))]
    assert sorted(came) == sorted(sent)
    assert nothing_comes(consumer)


def payloads_of(count: int) -> Iterator[str]:
    return iter([payload.decode() for payload in numbered(count)])


def test_nothing_is_lost_when_a_partition_dies_before_the_first_receipt(
    gate: Gate, sender: Sender, local: LocalServer, connect, topic
) -> None:
    payloads = payloads_of(1000)
    gate.stored = 4
    fill(gate, sender, payloads)
    gate.stored = 15
    die(local, topic)
    fill(gate, sender, payloads)
    gate.stored = None
    die(local, topic)
    fill(gate, sender, payloads)
    sender.wait()
    all_came_once(connect(local.service_url), topic, sender.sent)


@pytest.mark.parametrize("sender", ["python", "go"], indirect=True)
def test_nothing_is_lost_when_a_partition_dies_after_the_first_receipt(
    gate: Gate, sender: Sender, local: LocalServer, connect, topic
) -> None:
    payloads = payloads_of(1000)
    sender.send([next(payloads)])
    sender.wait()
    for gate.stored in (3, 10, None):
        die(local, topic)
        fill(gate, sender, payloads)
    sender.wait()
    all_came_once(connect(local.service_url), topic, sender.sent)


def test_a_delayed_message_may_overtake_the_batch_before_it(
    gate: Gate, sender: Sender, local: LocalServer, connect, topic
) -> None:
    payloads = payloads_of(1000)

    def overtaken(number: int) -> None:
        sender.send([next(payloads), next(payloads), f"later-{number}", next(payloads)])

    gate.stored = 1  # the delayed message alone
    overtaken(0)
    eventually(lambda: entries(local, topic) == 1)
    gate.stored = None
    die(local, topic)
    for number in range(1, 6):
        before = gate.arrived
        overtaken(number)
        eventually(lambda before=before: gate.arrived >= before + 2)
    sender.wait()
    all_came_once(connect(local.service_url), topic, sender.sent)


def test_messages_of_many_goroutines_may_overtake_each_other(
    go: str, local: LocalServer, connect, topic
) -> None:
    with go_client.running(go, "crowd", local.service_url, topic) as crowd:
        assert crowd.line() == "ready"
        sent = [crowd.line() for _ in range(1000)]
        die(local, topic)
        sent += [crowd.line() for _ in range(1000)]
    lines = [line.removeprefix("sent ") for line in sent]
    all_came_once(connect(local.service_url), topic, lines)


def test_threads_of_one_python_producer(local: LocalServer, connect, topic) -> None:
    sender = PythonSender(connect(local.service_url).create_producer(topic))

    def some(thread: int) -> None:
        for number in range(100):
            kind = "later" if number % 7 == 0 else "m"
            sender.send([f"{kind}-{thread}-{number}"])

    threads = [threading.Thread(target=some, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sender.wait()
    all_came_once(connect(local.service_url), topic, sender.sent)
