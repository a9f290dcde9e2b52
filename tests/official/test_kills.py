"""Actors die at random while the official client publishes and consumes.

After any kill: a message whose send was acknowledged is received; a message whose acknowledgement
has a receipt is never redelivered; the first deliveries of one producer's messages keep their
order; in the end the backlog is 0.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pulsar
import pytest

from tests.official.raw import RawClient
from tests.official.support import ask, backlog, create_partitioned, eventually, partition_key
from velaray.events.ids import ActorKind
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message

KILL_EVERY_S = (0.05, 0.4)
ENOUGH_KILLS = 6
SEEDS = range(int(os.environ.get("VELARAY_KILL_SEEDS", "2")))
SILENCE_S = 30.0


class Killer(threading.Thread):
    """Kills an actor of the kinds, at random moments, until it is stopped."""

    def __init__(self, local, topic: str, kinds: list[ActorKind], seed: int) -> None:
        super().__init__(daemon=True)
        self._local = local
        self._name = topic.rpartition("/")[2]
        self._kinds = kinds
        self._random = random.Random(seed)
        self._done = threading.Event()
        self.kills: list[str] = []

    def _victims(self) -> list:
        return [
            key
            for kind in self._kinds
            for key in self._local.cluster.keys(kind)
            if kind is ActorKind.CATALOG or key.topic.startswith(self._name)
        ]

    def run(self) -> None:
        while not self._done.wait(self._random.uniform(*KILL_EVERY_S)):
            victims = self._victims()
            if victims:
                victim = self._random.choice(victims)
                self.kills.append(victim.text())
                self._local.cluster.kill(victim)

    def pause(self, seconds: float) -> None:
        """Pause a publisher for so long, or until the run is done."""
        self._done.wait(seconds)

    def stop(self) -> None:
        self._done.set()
        self.join()


class Publisher(threading.Thread):
    """Publishes numbered messages until enough was killed; remembers which have a receipt."""

    def __init__(self, client, topic: str, name: str, killer: Killer, batching: bool) -> None:
        super().__init__(daemon=True)
        self._producer = client.create_producer(
            topic,
            name,
            send_timeout_millis=120_000,
            batching_enabled=batching,
            batching_max_messages=7,
            batching_type=pulsar.BatchingType.KeyBased,
            block_if_queue_full=True,
            max_pending_messages=50,
        )
        self._name = name
        self._killer = killer
        self.sent = 0
        self.confirmed: set[bytes] = set()
        self.failed: list[tuple[bytes, pulsar.Result]] = []

    def run(self) -> None:
        while len(self._killer.kills) < ENOUGH_KILLS or self.sent < 100:
            payload = f"{self._name}:{self.sent}".encode()
            self._producer.send_async(payload, self._callback(payload), partition_key=self._name)
            self.sent += 1
            if self.sent % 10 == 0:
                self._killer.pause(0.01)
        self._producer.flush()
        # The client may return from it while its own thread calls the last of them.
        eventually(lambda: len(self.confirmed) + len(self.failed) == self.sent)

    def _callback(self, payload: bytes) -> Callable[[pulsar.Result, object], None]:
        def done(result: pulsar.Result, _: object) -> None:
            if result == pulsar.Result.Ok:
                self.confirmed.add(payload)
            else:
                self.failed.append((payload, result))

        return done


def _consume_all(consumers: list, publishers: list[Publisher], report) -> list[bytes]:
    """Everything that is received until all of it was, in order; acknowledged one by one."""
    received: list[bytes] = []
    distinct: set[bytes] = set()
    deadline = time.monotonic() + SILENCE_S
    while any(publisher.is_alive() for publisher in publishers) or len(distinct) < sum(
        publisher.sent for publisher in publishers
    ):
        for consumer in consumers:
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            deadline = time.monotonic() + SILENCE_S
            received.append(message.data())
            distinct.add(message.data())
            consumer.acknowledge(message)
        assert time.monotonic() < deadline, f"nothing comes after {len(distinct)}: {report()}"
    return received


def _first_deliveries_in_order(received: list[bytes]) -> None:
    newest: dict[bytes, int] = {}
    seen: set[bytes] = set()
    for payload in received:
        if payload in seen:
            continue
        seen.add(payload)
        name, number = payload.split(b":")
        assert int(number) == newest.get(name, -1) + 1, f"{payload!r} after {newest.get(name)}"
        newest[name] = int(number)


def _drain(local, partitions: list[str], consumers: list) -> None:
    """Receive until nothing is left: acknowledgements that a kill removed bring messages back."""
    deadline, again = time.monotonic() + SILENCE_S, 0
    while any(backlog(local, partition, "s") for partition in partitions):
        for consumer in consumers:
            with suppress(pulsar.Timeout):
                while time.monotonic() < deadline:
                    consumer.acknowledge(consumer.receive(100))
                    again += 1
        if time.monotonic() > deadline:
            left = [ask(local, each, "describe_subscription", name="s") for each in partitions]
            pytest.fail(f"{again} messages came again, and there is a backlog: {left}")


KINDS = {
    "partition": [ActorKind.PARTITION],
    "subscription": [ActorKind.SUBSCRIPTION],
    "all": [ActorKind.PARTITION, ActorKind.SUBSCRIPTION, ActorKind.CATALOG],
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
@pytest.mark.slow
def test_nothing_is_lost_or_reordered(local, connect, topic, kind, kinds, seed):
    consumer = connect(local.service_url).subscribe(topic, "s", getattr(pulsar.ConsumerType, kind))
    killer = Killer(local, topic, KINDS[kinds], seed)
    publishers = [
        Publisher(connect(local.service_url), topic, f"p{n}", killer, batching=n == 1)
        for n in range(2)
    ]
    for thread in [*publishers, killer]:
        thread.start()
    received = _consume_all([consumer], publishers, lambda: ask(local, topic, "stats"))
    killer.stop()
    for publisher in publishers:
        assert publisher.failed == []
        assert publisher.confirmed <= set(received)
    _first_deliveries_in_order(received)
    _drain(local, [topic], [consumer])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow
def test_two_partitions_and_two_shared_consumers(local, connect, topic, seed):
    create_partitioned(local, topic, 2)
    consumers = [
        connect(local.service_url).subscribe(topic, "s", pulsar.ConsumerType.Shared)
        for _ in range(2)
    ]
    killer = Killer(local, topic, KINDS["all"], seed)
    publishers = [
        Publisher(connect(local.service_url), topic, f"p{n}", killer, batching=n % 2 == 1)
        for n in range(3)
    ]
    partitions = [f"{topic}-partition-{n}" for n in range(2)]
    for thread in [*publishers, killer]:
        thread.start()
    received = _consume_all(
        consumers, publishers, lambda: [ask(local, name, "stats") for name in partitions]
    )
    killer.stop()
    for publisher in publishers:
        assert publisher.failed == []
        assert publisher.confirmed <= set(received)
    _drain(local, partitions, consumers)


@pytest.mark.parametrize("kinds", ["partition", "all"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_de_duplication_survives_kills(local, connect, topic, kinds, seed):
    """Every message exactly once in the log, although the client sends again what it must."""
    killer = Killer(local, topic, KINDS[kinds], seed)
    publisher = Publisher(connect(local.service_url), topic, "p", killer, batching=seed == 1)
    publisher.start()
    killer.start()
    publisher.join(60)
    killer.stop()
    assert publisher.failed == []
    assert len(publisher.confirmed) == publisher.sent
    reader = connect(local.service_url).create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000).data())
    assert found == [b"p:%d" % number for number in range(publisher.sent)]


@pytest.mark.slow
def test_seeking_while_actors_die(local, connect, topic):
    client = connect(local.service_url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(50)]
    killer = Killer(local, topic, [ActorKind.SUBSCRIPTION], seed=1)
    killer.start()
    for target in (40, 10, 25, 0, 49, 5):
        _seek_until_done(consumer, ids[target])
        got: list[int] = []
        while not got or got[-1] != 49:
            if target == 49:
                break
            got.append(int(consumer.receive(30_000).data()))
        distinct = list(dict.fromkeys(got))
        assert distinct == list(range(target + 1, 50))
    killer.stop()


def _seek_until_done(consumer, message_id) -> None:
    """A seek that meets a dying actor fails with an error that says to try again."""

    def done() -> bool:
        try:
            consumer.seek(message_id)
            return True
        except pulsar.PulsarException:
            return False

    eventually(done)


class _ConfirmingConsumer:
    """Acknowledges with receipts, over the bare wire, and reconnects after every failure."""

    def __init__(self, local, topic: str) -> None:
        self._local = local
        self._topic = topic
        self._numbers = itertools.count(1)
        self.confirmed: set[tuple[int, int]] = set()
        self.seen: set[tuple[int, int]] = set()
        self.again: list[tuple[int, int]] = []
        #: What is acknowledged over this connection and has no receipt, by request id.
        self.waiting: dict[int, tuple[int, int]] = {}

    async def run(self) -> None:
        while True:
            try:
                await self._connected()
            except (OSError, AssertionError):  # the connection broke while an answer was due
                await asyncio.sleep(0.05)

    async def _connected(self) -> None:
        actor_system = self._local.cluster.actor_system
        key = await asyncio.to_thread(partition_key, self._local, self._topic)
        address = await asyncio.to_thread(self._local.cluster.run, actor_system.reach(key))
        client = await RawClient.connect(address.host, address.service_port)
        await client.subscribe(self._topic, kind=pb.CommandSubscribe.Shared)
        client.flow(1000)
        self.waiting = {}
        while not client.closed.is_set():
            for command, _ in client.received:
                match command:
                    case Message():
                        place = (command.ledger_id, command.entry_id)
                        self.seen.add(place)
                        if place in self.confirmed:
                            self.again.append(place)
                        request_id = next(self._numbers)
                        self.waiting[request_id] = place
                        client.send_ack(command, request_id)
                        client.flow(1)
                    case pb.CommandAckResponse() if not command.HasField("error"):
                        self.confirmed.add(self.waiting.pop(command.request_id))
                    case pb.CommandCloseConsumer() | pb.CommandError():
                        client.close()
            client.received.clear()
            await asyncio.sleep(0.002)
        client.close()


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow
def test_acks_with_a_receipt_are_never_redelivered(local, connect, topic, kinds, seed):
    killer = Killer(local, topic, KINDS[kinds], seed)
    publisher = Publisher(connect(local.service_url), topic, "p", killer, batching=False)
    consumer = _ConfirmingConsumer(local, topic)
    ask(local, topic, "create_subscription", name="s", position="earliest")
    publisher.start()
    killer.start()

    def finish() -> None:
        publisher.join(60)
        killer.stop()
        eventually(lambda: len(consumer.seen) >= publisher.sent)
        eventually(lambda: backlog(local, topic, "s") == 0)
        eventually(lambda: not consumer.waiting)

    async def main() -> None:
        consuming = asyncio.create_task(consumer.run())
        await asyncio.to_thread(finish)
        consuming.cancel()

    asyncio.run(main())
    assert publisher.failed == []
    assert consumer.again == []
    assert len(consumer.seen) == publisher.sent
    assert consumer.confirmed <= consumer.seen
    assert len(consumer.confirmed) > publisher.sent / 10  # each kill takes receipts with it
