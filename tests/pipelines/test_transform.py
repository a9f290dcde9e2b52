"""Transforms by workers in this process, against a cluster in this process."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import velaray
from velaray.aio import Client
from velaray.broker.partition.session.acknowledgements import AcknowledgementHandlers
from velaray.client.enums import ConsumerType, InitialPosition
from velaray.client.policies import ConsumerDeadLetterPolicy
from velaray.client.transactions import Coordinators
from velaray.events.ids import ActorKind
from velaray.pipelines import Output, Transform, TransformCounts, TransformWorker
from velaray.wire import pulsar_pb2 as pb

EARLIEST = InitialPosition.Earliest
Messages = list[velaray.Message]


def run(cluster: Any, scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Client(cluster.service_url, operation_timeout_seconds=20) as client:
            await asyncio.wait_for(scenario(client), 120)

    asyncio.run(main())


async def fill(client: Client, topic: str, count: int, **options: Any) -> list[bytes]:
    """Publish numbers, every fifth of which has the same key."""
    values = [b"%d" % number for number in range(count)]
    async with await client.create_producer(topic, **options) as producer:
        sends = [
            producer.send(value, partition_key=str(number % 5))
            for number, value in enumerate(values)
        ]
        await asyncio.gather(*sends)
    return values


async def contents(client: Client, topic: str) -> list[velaray.Message]:
    """Every message of a topic by now, in order."""
    reader = await client.create_reader(topic, velaray.MessageId.earliest)
    found = []
    while await reader.has_message_available():
        found.append(await reader.read_next())
    await reader.close()
    return found


async def values(client: Client, topic: str) -> list[bytes]:
    return [message.data() for message in await contents(client, topic)]


async def drained(cluster: Any, transform: Transform, workers: int = 1) -> TransformCounts:
    """Run workers until everything is done; what they did together."""
    every = [TransformWorker(transform, cluster.service_url) for _ in range(workers)]
    for worker in every:
        worker.drain()
    done = await asyncio.gather(*(worker.run() for worker in every))
    return sum(done, TransformCounts())


def copying(to: str) -> Callable[[Messages], Iterator[Output]]:
    def copy(messages: Messages) -> Iterator[Output]:
        for message in messages:
            yield Output(to, message.data(), message.partition_key())

    return copy


class Copying:
    def __init__(self, to: str) -> None:
        self.copy = copying(to)

    def __call__(self, messages: Messages) -> list[Output]:
        return list(self.copy(messages))


class CopyingLater(Copying):
    async def __call__(self, messages: Messages) -> list[Output]:
        await asyncio.sleep(0)
        return super().__call__(messages)


async def copy_later(to: str, messages: Messages) -> list[Output]:
    return list(copying(to)(messages))


async def copy_one_by_one(to: str, messages: Messages) -> AsyncIterator[tuple[str, bytes]]:
    for message in messages:
        yield to, message.data()


KINDS = {
    "a generator function": copying,
    "an object": Copying,
    "a class": lambda to: functools.partial(Copying, to),
    "a class whose call is a coroutine function": lambda to: functools.partial(CopyingLater, to),
    "a coroutine function": lambda to: functools.partial(copy_later, to),
    "an asynchronous generator of tuples": lambda to: functools.partial(copy_one_by_one, to),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_function_is_accepted(cluster, topic, kind) -> None:
    async def scenario(client: Client) -> None:
        sent = await fill(client, topic, 25)
        transform = Transform(KINDS[kind](f"{topic}-out"), topic, "s", batch_size=10)
        done = await drained(cluster, transform)
        assert (done.consumed, done.produced, done.committed, done.aborted) == (25, 25, 3, 0)
        assert await values(client, f"{topic}-out") == sent

    run(cluster, scenario)


def test_outputs_may_set_message_properties_and_their_topic(cluster, topic) -> None:
    def split(messages: Messages) -> list[Output] | None:
        if messages[0].data() == b"0":
            return None
        return [
            Output(f"{topic}-{word}", value, "k", {"a": "b"}, 1234, "o")
            for word, value in (("left", b"l"), ("right", None))
        ]

    async def scenario(client: Client) -> None:
        await fill(client, topic, 2)
        done = await drained(cluster, Transform(split, topic, "s", batch_size=1))
        assert (done.consumed, done.produced) == (2, 2)
        (left,) = await contents(client, f"{topic}-left")
        (right,) = await contents(client, f"{topic}-right")
        for message in (left, right):
            assert (message.partition_key(), message.ordering_key()) == ("k", "o")
            assert message.properties() == {"a": "b"}
            assert message.event_timestamp() == 1234
        assert left.data() == b"l"
        assert right.has_null_value()

    run(cluster, scenario)


def test_draining_ends_at_the_messages_present_at_its_start(cluster, topic) -> None:
    async def scenario(client: Client) -> None:
        transform = Transform(copying(f"{topic}-out"), topic, "s")
        assert await drained(cluster, transform) == TransformCounts()  # the topic is made, empty
        await fill(client, topic, 3)
        producer = await client.create_producer(topic)
        txn = await client.new_transaction()
        await producer.send(b"never", txn=txn)  # and nothing after it
        await txn.abort()
        assert (await drained(cluster, transform)).consumed == 3
        assert await drained(cluster, transform) == TransformCounts()

    run(cluster, scenario)


def test_a_transform_runs_until_it_is_stopped(cluster, topic) -> None:
    async def scenario(client: Client) -> None:
        worker = TransformWorker(
            Transform(copying(f"{topic}-out"), topic, "s"), cluster.service_url
        )
        running = asyncio.create_task(worker.run())
        for count in (3, 7):
            await fill(client, topic, count)
        while worker.counts.consumed < 10:
            await asyncio.sleep(0.01)
        assert not running.done()
        worker.stop()
        assert (await running).consumed == 10

    run(cluster, scenario)


def test_a_worker_holds_at_most_two_batches(cluster, topic) -> None:
    may_go_on = threading.Event()

    def wait(messages: Messages) -> None:
        may_go_on.wait()

    async def scenario(client: Client) -> None:
        await fill(client, topic, 100, batching_enabled=False)
        worker = TransformWorker(Transform(wait, topic, "s", batch_size=10), cluster.service_url)
        running = asyncio.create_task(worker.run())

        def held() -> int:
            stats = velaray.Admin(cluster.admin_url).stats(topic)
            found = stats["subscriptions"].get("s", {"unackedMessages": 0})
            return int(found["unackedMessages"])

        async with asyncio.timeout(20):
            while await asyncio.to_thread(held) < 20:
                await asyncio.sleep(0.01)
        assert [await asyncio.to_thread(held) for _ in range(20)] == [20] * 20
        may_go_on.set()
        worker.stop()
        await running

    try:
        run(cluster, scenario)
    finally:
        may_go_on.set()


# --- the function's faults ---


def test_without_a_policy_the_first_exception_ends_the_transform(cluster, topic) -> None:
    def fail(messages: Messages) -> Iterator[Output]:
        for message in messages:
            if message.data() == b"7":
                raise ZeroDivisionError("seven")
            yield Output(f"{topic}-out", message.data())

    async def scenario(client: Client) -> None:
        sent = await fill(client, topic, 10)
        with pytest.raises(ZeroDivisionError, match="seven"):
            await drained(cluster, Transform(fail, topic, "s", batch_size=4))
        assert await values(client, f"{topic}-out") == sent[:4]
        await drained(cluster, Transform(copying(f"{topic}-out"), topic, "s"))
        assert await values(client, f"{topic}-out") == sent

    run(cluster, scenario)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("text", "not 'text'"),
        (("t",), "Output objects"),
        (("t", "text"), "t: .*bytes"),
        (("t", b"", None, {"a": 1}), "properties must map str to str"),
    ],
)
def test_an_output_that_cannot_be_published_is_an_error_of_the_function(
    cluster, topic, output, words
) -> None:
    async def scenario(client: Client) -> None:
        await fill(client, topic, 1)
        with pytest.raises(TypeError, match=words):
            await drained(cluster, Transform(lambda messages: [output], topic, "s"))

    run(cluster, scenario)


def test_only_the_failing_message_is_retried_and_becomes_a_dead_letter(cluster, topic) -> None:
    calls: Counter[bytes] = Counter()

    def fail(messages: Messages) -> Iterator[Output]:
        for message in messages:
            if len(messages) == 1:
                calls[message.data()] += 1
            if message.data() == b"3" or (message.data() == b"5" and calls[b"5"] < 2):
                raise ZeroDivisionError("no")
            yield Output(f"{topic}-out", message.data())

    async def scenario(client: Client) -> None:
        sent = await fill(client, topic, 8)
        policy = ConsumerDeadLetterPolicy(2, initial_subscription_name="undertaker")
        transform = Transform(fail, topic, "s", dead_letters=policy, retry_delay=0.05)
        done = await drained(cluster, transform)
        assert done.dead == 1  # 3, after two retries
        assert done.retried == 3
        assert done.consumed == 8 + 3
        assert sorted(await values(client, f"{topic}-out")) == sorted({*sent} - {b"3"})
        assert await drained(cluster, transform) == TransformCounts()
        undertaker = await client.subscribe(f"{topic}-s-DLQ", "undertaker")
        letter = await undertaker.receive(20_000)
        assert letter.data() == b"3"
        assert letter.partition_key() == "3"
        properties = letter.properties()
        assert properties["REAL_TOPIC"] == topic
        assert properties["REAL_SUBSCRIPTION"] == "s"
        assert properties["RECONSUMETIMES"] == "3"
        assert properties["EXCEPTION"] == "ZeroDivisionError: no"
        first = (await contents(client, topic))[3].message_id()
        origin = f"{first.ledger_id()}:{first.entry_id()}:-1:{first.batch_index()}"
        assert properties["ORIGIN_MESSAGE_ID"] == origin

    run(cluster, scenario)


def test_a_refused_output_fails_only_its_message(cluster, topic) -> None:
    def grow(messages: Messages) -> Iterator[Output]:
        for message in messages:
            value = bytes(6 << 20) if message.data() == b"2" else message.data()
            yield Output(f"{topic}-out", value)

    async def scenario(client: Client) -> None:
        sent = await fill(client, topic, 5)
        with pytest.raises(velaray.MessageTooBig):
            await drained(cluster, Transform(grow, topic, "s"))
        policy = ConsumerDeadLetterPolicy(1, f"{topic}-dead")
        done = await drained(
            cluster, Transform(grow, topic, "s", dead_letters=policy, retry_delay=0)
        )
        assert (done.retried, done.dead) == (1, 1)
        assert sorted(await values(client, f"{topic}-out")) == sorted({*sent} - {b"2"})
        assert await values(client, f"{topic}-dead") == [b"2"]

    run(cluster, scenario)


def test_an_output_that_the_service_refuses_is_not_retried_for_ever(cluster, topic) -> None:
    def grow(messages: Messages) -> Iterator[Output]:
        for message in messages:
            yield Output(f"{topic}-out", bytes(2000 if message.data() == b"1" else 10))

    async def scenario(client: Client) -> None:
        await fill(client, topic, 3)
        admin = velaray.Admin(cluster.admin_url)
        await asyncio.to_thread(admin.create_topic, f"{topic}-out")
        await asyncio.to_thread(admin.set_policy_of, f"{topic}-out", "maxMessageSize", 1000)
        worker = TransformWorker(Transform(grow, topic, "s"), cluster.service_url)
        with pytest.raises(velaray.NotAllowedError):
            await worker.run()
        assert worker.counts == TransformCounts(aborted=1)
        policy = ConsumerDeadLetterPolicy(1, f"{topic}-dead")
        transform = Transform(grow, topic, "s", dead_letters=policy, retry_delay=0)
        assert (await drained(cluster, transform)).dead == 1
        assert await values(client, f"{topic}-out") == [bytes(10)] * 2
        assert await values(client, f"{topic}-dead") == [b"1"]

    run(cluster, scenario)


# --- what may happen meanwhile ---


def test_a_lost_answer_to_a_commit_is_requested_again(cluster, topic, monkeypatch) -> None:
    lost: list[Any] = []
    request = Coordinators.request

    async def losing(self: Coordinators, number: int, command: Callable[[], Any]) -> Any:
        answer = await request(self, number, command)
        ends = isinstance(command(), pb.CommandEndTxn)
        if ends and len(lost) < 3:
            lost.append(answer)
            raise velaray.Timeout("the answer was lost")
        return answer

    monkeypatch.setattr(Coordinators, "request", losing)

    async def scenario(client: Client) -> None:
        sent = await fill(client, topic, 20)
        transform = Transform(copying(f"{topic}-out"), topic, "s", batch_size=10)
        done = await drained(cluster, transform)
        assert len(lost) == 3
        assert (done.consumed, done.committed, done.aborted) == (20, 2, 0)
        assert await values(client, f"{topic}-out") == sent

    run(cluster, scenario)


def test_a_consumer_closed_before_its_acknowledgement_arrives_is_retried(
    cluster, topic, monkeypatch
) -> None:
    """As it is when the subscription's actor dies between the two."""
    late: list[pb.CommandAck] = []
    on_ack = AcknowledgementHandlers.on_ack

    def closed(self: AcknowledgementHandlers, command: pb.CommandAck) -> None:
        if command.HasField("txnid_least_bits") and not late:
            late.append(command)
            self._refuse(command, pb.ServiceNotReady, "the consumer is not connected")
        else:
            on_ack(self, command)

    monkeypatch.setattr(AcknowledgementHandlers, "on_ack", closed)

    async def scenario(client: Client) -> None:
        sent = await fill(client, topic, 20)
        transform = Transform(copying(f"{topic}-out"), topic, "s", batch_size=10)
        done = await drained(cluster, transform)
        assert late
        assert (done.consumed, done.aborted) == (20, 0)
        assert await values(client, f"{topic}-out") == sent

    run(cluster, scenario)


def test_a_conflict_with_a_faster_worker_is_retried(cluster, topic) -> None:
    held: list[velaray.Message] = []
    received, may_go_on = threading.Event(), threading.Event()

    def be_slow(messages: Messages) -> Iterator[Output]:
        held.extend(messages)
        received.set()
        may_go_on.wait()
        return copying(f"{topic}-out")(messages)

    async def scenario(client: Client) -> None:
        sent = await fill(client, topic, 10, batching_enabled=False)
        worker = TransformWorker(Transform(be_slow, topic, "s"), cluster.service_url)
        worker.drain()
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(received.wait)
        other = await client.subscribe(topic, "s", ConsumerType.Shared)
        await other.acknowledge(held[4], receipt=True)
        await other.close()
        may_go_on.set()
        done = await running
        assert done.aborted == 1
        assert done.consumed == 9
        assert sorted(await values(client, f"{topic}-out")) == sorted({*sent} - {b"4"})

    try:
        run(cluster, scenario)
    finally:
        may_go_on.set()


@pytest.mark.parametrize(
    "kind", [ActorKind.COORDINATOR, ActorKind.PARTITION, ActorKind.SUBSCRIPTION]
)
@pytest.mark.parametrize("consumer_type", [ConsumerType.Failover, ConsumerType.KeyShared])
def test_nothing_is_lost_duplicated_or_reordered_after_any_crash(
    cluster, topic, kind, consumer_type
) -> None:
    async def scenario(client: Client) -> None:
        by_key = {"batching_type": velaray.BatchingType.KeyBased}
        await fill(client, topic, 400, **by_key)
        transform = Transform(copying(f"{topic}-out"), topic, "s", consumer_type, batch_size=20)
        worker = TransformWorker(transform, cluster.service_url)
        worker.drain()
        running = asyncio.create_task(worker.run())
        killed_at = -1
        while not running.done():
            committed = worker.counts.committed
            if committed % 5 == 3 and committed != killed_at:
                killed_at = committed
                for key in cluster.keys(kind):
                    await asyncio.to_thread(cluster.kill, key)
            await asyncio.sleep(0)
        assert (await running).consumed == 400
        assert killed_at > 0
        found = [int(value) for value in await values(client, f"{topic}-out")]
        for key in range(5):
            numbers = [number for number in found if number % 5 == key]
            assert numbers == list(range(key, 400, 5))

    run(cluster, scenario)


def test_invalid_arguments_are_refused() -> None:
    def nothing(messages: Messages) -> None:
        pass

    for wrong in (
        {"function": 5},
        {"source": []},
        {"source": [5]},
        {"consumer_type": ConsumerType.Exclusive},
        {"batch_size": 0},
        {"batch_wait": -1},
        {"retry_delay": -1},
        {"transaction_timeout": 0},
    ):
        with pytest.raises(velaray.InvalidConfiguration):
            Transform(**({"function": nothing, "source": "t", "subscription": "s"} | wrong))
