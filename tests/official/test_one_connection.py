"""A client with its defaults keeps its one connection to a host while actors of the host fail.

The connection carries 100 partitions. A failed partition stays away until its neighbours have
published more, and no receipt of its former activation reaches the client.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pulsar
import pytest

from tests.official import go_client, java_client
from tests.official.support import LocalServer, ask, create_partitioned, partition_key, receive
from tests.support.local_cluster import LocalCluster
from tests.support.write_faults import Gate, WriteFaults
from velaray.broker.client_session import ClientSession
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import SyncFailed
from velaray.wire.hashing import HashingScheme, partition_of

PARTITIONS = 100
WINDOW = 100
"""The most messages without an answer."""
STEP_S = 60.0


class Id(NamedTuple):
    """The id of a message."""

    ledger: int
    entry: int
    partition: int
    batch: int


class Pipe:
    """A producer and a consumer of one client. Message n goes to partition n modulo 100."""

    def __init__(
        self, tell: Callable[[str], None], line: Callable[[], str], scheme: HashingScheme
    ) -> None:
        """``tell`` sends a message: its key, a space, its number. ``line`` waits for the next line
        about a message that was sent or received. ``scheme`` is the client's default."""
        words = map(str, range(3000))
        self._keys = {partition_of(word, PARTITIONS, scheme): word for word in words}
        self._tell = tell
        self._line = line
        self.sent = 0
        self.answers: dict[int, Id] = {}
        self.received: list[tuple[int, Id]] = []
        self._came: set[int] = set()

    def publish_until(self, condition: Callable[[], bool]) -> None:
        """Publish until ``condition`` is true. Fails if neither answers nor messages come."""
        while not condition():
            while self.sent - len(self.answers) < WINDOW:
                self._tell(f"{self._keys[self.sent % PARTITIONS]} {self.sent}")
                self.sent += 1
            self._take()

    def publish_everywhere(self, but: int | None = None) -> None:
        """Publish until messages that are sent from now on are answered and received, one of each
        partition ``but`` one."""
        missing = {n for n in range(self.sent, self.sent + PARTITIONS) if n % PARTITIONS != but}

        def done() -> bool:
            missing.difference_update(
                [each for each in missing if each in self.answers and each in self._came]
            )
            return not missing

        self.publish_until(done)

    def drain(self) -> None:
        """Wait until everything is answered and received."""
        while len(self.answers) < self.sent or len(self._came) < self.sent:
            self._take()

    def waiting(self, partition: int) -> set[int]:
        """The messages of a partition without an answer."""
        return set(range(partition, self.sent, PARTITIONS)) - self.answers.keys()

    def _take(self) -> None:
        line = self._line()
        kind, _, number, shown = line.split(maxsplit=3)
        assert kind in ("sent", "got"), line
        message, message_id = int(number), Id(*map(int, shown.split(":")))
        assert message_id.partition == message % PARTITIONS
        if kind == "got":
            self.received.append((message, message_id))
            self._came.add(message)
        else:
            assert message not in self.answers, f"a second answer: {line}"
            self.answers[message] = message_id


def shown(message_id: Any) -> str:
    parts = (message_id.ledger_id, message_id.entry_id, message_id.partition)
    return ":".join(str(part()) for part in (*parts, message_id.batch_index))


def python_pipe(client: pulsar.Client, topic: str) -> Pipe:
    lines: SimpleQueue[str] = SimpleQueue()

    def got(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        lines.put(f"got {message.data().decode()} {shown(message.message_id())}")
        consumer.acknowledge(message)

    client.subscribe(topic, "s", message_listener=got)
    producer = client.create_producer(topic)

    def tell(text: str) -> None:
        def answered(result: pulsar.Result, message_id: Any) -> None:
            ok = result == pulsar.Result.Ok
            lines.put(f"sent {text} {shown(message_id)}" if ok else f"failed {text} {result}")

        producer.send_async(text.encode(), answered, partition_key=text.split()[0])

    return Pipe(tell, lambda: lines.get(timeout=STEP_S), HashingScheme.BOOST)


def running_program(
    request: pytest.FixtureRequest, program: str, *words: str
) -> contextlib.AbstractContextManager[go_client.Scenario]:
    """Run the scenario that publishes and consumes, with the client for Go or for Java."""
    if program == "go":
        return go_client.running(request.getfixturevalue("go"), "both", *words)
    return java_client.running(request.getfixturevalue("java"), "Both", *words)


@contextlib.contextmanager
def program_pipe(
    running: contextlib.AbstractContextManager[go_client.Scenario],
) -> Iterator[Pipe]:
    with running as scenario:
        assert scenario.line() == "ready"
        yield Pipe(scenario.tell, scenario.line, HashingScheme.JAVA_STRING)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalCluster(tmp_path, hosts=1) as cluster:
        yield LocalServer(cluster)


@pytest.fixture
def faults(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteFaults]:
    faults = WriteFaults(server.cluster, monkeypatch)
    yield faults
    faults.open_all()


@pytest.fixture(params=["python", "java", "go"])
def pipe(
    request: pytest.FixtureRequest,
    connect: Any,
    faults: WriteFaults,
    accepted: list[ClientSession],
    server: LocalServer,
    topic: str,
) -> Iterator[Pipe]:
    create_partitioned(server, topic, PARTITIONS)
    words = (server.service_url, topic, "s")
    if request.param == "python":
        yield python_pipe(connect(server.service_url), topic)
        return
    with program_pipe(running_program(request, request.param, *words)) as pipe:
        yield pipe


class Failures:
    """Ends actors by faults of their journals, and notes what waits for a receipt meanwhile."""

    def __init__(self, server: LocalServer, faults: WriteFaults, pipe: Pipe, topic: str) -> None:
        self._server = server
        self._faults = faults
        self._pipe = pipe
        self._topic = topic
        self.failed: list[ActorKey] = []
        self.waiting: list[tuple[int, set[int]]] = []
        """The ledger of each partition that failed, and its messages without an answer then."""

    def failed_sync(self, number: int) -> None:
        """A partition's entries are written, but the sync fails."""
        key = self._partition(number)
        append = self._reach(number, key, written=False)
        recovery = self._faults.hold_recovery(key)
        append.open(failing=True)
        self._recover(number, recovery)

    def unwritten(self, number: int) -> None:
        """A partition fails before its entries are written; the write comes after its recovery."""
        key = self._partition(number)
        append = self._reach(number, key, written=False)
        recovery = self._faults.hold_recovery(key)
        self._end(key)
        self._recover(number, recovery)
        append.open()
        self._pipe.publish_until(append.passed.is_set)

    def written(self, number: int) -> None:
        """A partition fails when its entries are durable, before it sends their receipts."""
        key = self._partition(number)
        append = self._reach(number, key, written=True)
        recovery = self._faults.hold_recovery(key)
        self._end(key)
        append.open()
        self._recover(number, recovery)

    def subscription(self, number: int) -> None:
        """The sync of a subscription's journal fails."""
        name = self._partition(number).topic_name
        (key,) = (
            key
            for key in self._server.cluster.keys(ActorKind.SUBSCRIPTION)
            if key.topic_name == name
        )
        append = self._faults.hold_append(key, written=False)
        recovery = self._faults.hold_recovery(key)
        append.open(failing=True)
        self._recover(number, recovery)
        self.failed.append(key)

    def _partition(self, number: int) -> ActorKey:
        return partition_key(self._server, f"{self._topic}-partition-{number}")

    def _reach(self, number: int, key: ActorKey, *, written: bool) -> Gate:
        """Hold an append of the partition, and note the messages whose receipts wait for it."""
        append = self._faults.hold_append(key, written=written)
        self._pipe.publish_until(append.reached.is_set)
        self._pipe.publish_everywhere(but=number)  # so earlier receipts have come
        ids = [each for each in self._pipe.answers.values() if each.partition == number]
        self.waiting.append((max(each.ledger for each in ids), self._pipe.waiting(number)))
        self.failed.append(key)
        return append

    def _end(self, key: ActorKey) -> None:
        async def end() -> None:
            actor_system = self._server.cluster.actor_system
            actor_system.fatal(actor_system.actors[key], SyncFailed(key.text(), "injected"))

        self._server.cluster.run(end())

    def _recover(self, number: int, recovery: Gate) -> None:
        """Recover the actor after its neighbours have published and delivered more."""
        self._pipe.publish_until(recovery.reached.is_set)
        self._pipe.publish_everywhere(but=number)
        recovery.open()
        self._pipe.publish_everywhere()


@pytest.mark.slow
def test_an_actor_fails_alone(
    server: LocalServer,
    faults: WriteFaults,
    accepted: list[ClientSession],
    pipe: Pipe,
    connect: Any,
    topic: str,
) -> None:
    pipe.publish_everywhere()
    failures = Failures(server, faults, pipe, topic)
    failures.failed_sync(7)
    failures.unwritten(23)
    failures.subscription(64)
    failures.written(99)
    failures.failed_sync(7)
    pipe.drain()
    assert [key for key, _ in server.cluster.actor_system.failures] == failures.failed
    (session,) = accepted
    assert not session.connection.closed

    stored = stored_in(connect(server.service_url), topic, pipe.sent)
    came_in_order(pipe.received, stored)
    twice: set[int] = set()
    for ledger, waiting in failures.waiting:
        assert waiting
        assert ledger not in {pipe.answers[each].ledger for each in waiting}
        twice |= {each for each in waiting if pipe.answers[each].ledger < 0}
    # The id says "nowhere" in the receipt of what was stored when it was sent again.
    assert {n: pipe.answers[n] for n in stored if n not in twice} == {
        n: stored[n] for n in stored if n not in twice
    }


def stored_in(client: pulsar.Client, topic: str, count: int) -> dict[int, Id]:
    """The ids of all messages of a topic. Each is there once, and each partition is in order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    stored: dict[int, Id] = {}
    newest: dict[int, int] = {}
    for message in receive(reader, count):
        number = int(message.data().split()[1])
        assert number not in stored
        assert number > newest.get(number % PARTITIONS, -1)
        stored[number] = Id(*map(int, shown(message.message_id()).split(":")))
        newest[number % PARTITIONS] = number
    assert not reader.has_message_available()
    return stored


def came_in_order(received: list[tuple[int, Id]], stored: dict[int, Id]) -> None:
    """Check that everything was received, and in order except for repeated messages."""
    newest: dict[int, int] = {}
    seen = set()
    for number, message_id in received:
        assert message_id == stored[number]
        assert number in seen or number > newest.get(number % PARTITIONS, -1)
        seen.add(number)
        newest[number % PARTITIONS] = number
    assert seen == stored.keys()


def hold_append_of(server: LocalServer, faults: WriteFaults, topic: str) -> Gate:
    """Activate a new topic, and hold its next append."""
    ask(server, topic, "stats")
    return faults.hold_append(partition_key(server, topic), written=False)


# The client for Go reports the error to the program.
@pytest.mark.parametrize("program", ["python", "java"])
def test_a_client_subscribes_after_its_first_request_failed(
    request: pytest.FixtureRequest,
    connect: Any,
    faults: WriteFaults,
    accepted: list[ClientSession],
    server: LocalServer,
    topic: str,
    program: str,
) -> None:
    append = hold_append_of(server, faults, topic)
    if program == "python":
        client = connect(server.service_url, operation_timeout_seconds=20)
        with ThreadPoolExecutor(1) as pool:
            subscribing = pool.submit(client.subscribe, topic, "s")
            assert append.reached.wait(STEP_S)
            append.open(failing=True)
            subscribing.result()
    else:
        words = (server.service_url, topic, "s")
        with running_program(request, program, *words) as scenario:
            assert append.reached.wait(STEP_S)
            append.open(failing=True)
            assert scenario.line() == "ready"
    assert len(server.cluster.actor_system.failures) == 1
    assert len(accepted) == 1, "the client kept its connection"


def test_a_client_makes_a_producer_after_its_first_request_failed(
    connect: Any, faults: WriteFaults, server: LocalServer, topic: str
) -> None:
    append = hold_append_of(server, faults, topic)
    client = connect(server.service_url, operation_timeout_seconds=20)
    exclusive = pulsar.ProducerAccessMode.Exclusive
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(client.create_producer, topic, access_mode=exclusive)
        assert append.reached.wait(STEP_S)
        append.open(failing=True)
        creating.result().send(b"stored")
    assert len(server.cluster.actor_system.failures) == 1
