"""What clients do in a run: producers that retry, consumers of every type. Nothing is judged here.

The clients are velaray's own asyncio clients, unchanged. What they do and learn goes into the
history, which `tests.sim.checkers` reads.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tests.sim.cluster import EPOCH_MS
from tests.sim.history import History
from velaray.aio import Client
from velaray.client.consumer import Consumer
from velaray.client.enums import BatchingType, ConsumerType, InitialPosition
from velaray.client.exceptions import AlreadyClosed, Timeout, TopicTerminated, VelarayError
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.policies import ConsumerKeySharedPolicy
from velaray.client.producer import Producer

PATTERN = "pattern:"
POISON = 7
"""One of so many messages can't be processed, where there is a dead-letter topic."""
LATEST_S = 8.0
"""The longest delay of delayed messages."""


@dataclass(frozen=True)
class Producing:
    """A producer's part: ``count`` messages that are acknowledged, ``window`` at a time."""

    name: str
    topic: str
    count: int
    window: int
    batching: bool
    timeout_ms: int
    keys: int
    by_key: bool = False
    """Whether batches are of one key."""
    doomed: bool = False
    """Whether its topic may be deleted: then an error doesn't say that a message isn't stored."""
    later: int = 0
    """The chance, of 1000, that a message is delayed."""


@dataclass(frozen=True)
class Consuming:
    """A consumer's part. The chances are per message, of 1000.

    ``topic`` is one name, several, or a pattern, which begins with ``pattern:``.
    """

    name: str
    topic: str | tuple[str, ...]
    subscription: str
    kind: ConsumerType
    queue: int
    batch_index: bool
    nack: int
    keep: int
    redeliver: int
    leave: int
    seek: int
    unsubscribe: int
    cumulative: bool
    keys: ConsumerKeySharedPolicy | None = None
    away: float = 0
    """The most seconds that it starts late, and that it stays away after leaving."""


class Shared:
    """What all clients of a run know."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.draining = asyncio.Event()
        self.over = asyncio.Event()


async def until_it_works(work: Callable[[], Awaitable[Any]], history: History, what: str) -> Any:
    """Repeat what fails, as an application would."""
    while True:
        try:
            return await work()
        except VelarayError as error:
            history.add("retry", what=what, error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(1.0)


class ProducerScript:
    """Sends numbered messages until enough of them are acknowledged."""

    wire_name = ""
    """Its name at the broker, if different from its own."""

    def __init__(self, plan: Producing, shared: Shared, rng: Random) -> None:
        self._plan = plan
        self._shared = shared
        self._rng = rng
        self._later = Random(f"{plan.name}/{plan.count}/later")
        self._number = 0
        self._stored = 0
        self._ended = False

    async def run(self, client: Client) -> None:
        """Returns when all is acknowledged, or the topic is terminated."""
        while self._stored < self._plan.count and not self._ended:
            create = partial(self._create, client)
            what = f"create {self._plan.name}"
            producer = await until_it_works(create, self._shared.history, what)
            if producer is None:
                break
            await self._produce(producer)
            await producer.close()
        self._shared.history.add("produced", producer=self._plan.name)

    async def _create(self, client: Client) -> Producer | None:
        plan = self._plan
        try:
            return await client.create_producer(
                plan.topic,
                producer_name=self.wire_name or plan.name,
                send_timeout_millis=plan.timeout_ms,
                batching_enabled=plan.batching,
                batching_max_messages=5,
                batching_type=BatchingType.KeyBased if plan.by_key else BatchingType.Default,
            )
        except TopicTerminated:
            return None

    async def _produce(self, producer: Producer) -> None:
        """Returns when nothing is left to do, or this producer is of no more use."""
        plan = self._plan
        pending: set[asyncio.Task[bool]] = set()
        useful = True
        while self._stored < plan.count and not self._ended and useful:
            while len(pending) < min(plan.window, plan.count - self._stored):
                pending.add(asyncio.get_running_loop().create_task(self._send(producer)))
            if not self._shared.draining.is_set():
                await asyncio.sleep(self._rng.random() * 24.0 * len(pending) / plan.count)
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            useful = all(task.result() for task in done)
        if pending:
            await asyncio.wait(pending)

    async def _publish(
        self, producer: Producer, content: str, key: str | None, deliver_at: int | None
    ) -> Any:
        return await producer.send(content.encode(), partition_key=key, deliver_at=deliver_at)

    async def _send(self, producer: Producer) -> bool:
        """Whether the producer may still be of use."""
        plan, history = self._plan, self._shared.history
        self._number += 1
        content = f"{plan.name}:{self._number}"
        key = f"k{self._rng.randrange(plan.keys)}" if plan.keys else None
        due = None
        if plan.later and self._later.randrange(1000) < plan.later:
            due = history.now() + self._later.random() * LATEST_S
        history.add(
            "send",
            producer=plan.name,
            content=content,
            topic=plan.topic,
            key=key,
            by_key=plan.by_key,
            due=due,
        )
        try:
            deliver_at = None if due is None else EPOCH_MS + math.ceil(due * 1000)
            stored = await self._publish(producer, content, key, deliver_at)
        except (Timeout, AlreadyClosed, TopicTerminated) as error:
            # What waited for its receipt when the producer came to its end may be stored.
            history.add("unknown", content=content, error=f"{type(error).__name__}: {error}")
            self._ended = self._ended or isinstance(error, TopicTerminated)
            return not isinstance(error, AlreadyClosed)
        except VelarayError as error:
            outcome = "unknown" if plan.doomed else "refused"
            history.add(outcome, content=content, error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.5)
            return not plan.doomed
        self._stored += 1
        history.add(
            "receipt",
            content=content,
            topic=stored.topic_name(),
            ledger=stored.ledger_id(),
            entry=stored.entry_id(),
            index=stored.batch_index(),
        )
        return True


class ConsumerScript:
    """Receives and acknowledges until everything is drained."""

    followed = False
    """Whether its subscription's progress is to go to other clusters."""

    def __init__(self, plan: Consuming, shared: Shared, rng: Random) -> None:
        self.plan = plan
        self.poisoned = False  # whether some messages are never acknowledged
        self._plan = plan
        self._shared = shared
        self._rng = rng
        self._acks: set[asyncio.Task[None]] = set()

    async def run(self, client: Client) -> None:
        """Returns when the run is over."""
        while not self._shared.over.is_set():
            if self._plan.away and not self._shared.draining.is_set():
                await asyncio.sleep(self._rng.random() * self._plan.away)
            subscribe = partial(self._subscribe, client)
            consumer = await until_it_works(subscribe, self._shared.history, self._plan.name)
            self._acks = set()
            try:
                await self._consume(consumer)
            except VelarayError as error:
                self._note("lost", error=f"{type(error).__name__}: {error}")
            await self._close(consumer)

    async def _subscribe(self, client: Client) -> Consumer:
        plan = self._plan
        topic: Any = list(plan.topic) if isinstance(plan.topic, tuple) else plan.topic
        pattern = topic.removeprefix(PATTERN) if isinstance(topic, str) else topic
        if pattern != topic:
            self._note("pattern", topics=topic)
        return await client.subscribe(
            pattern,
            plan.subscription,
            is_pattern_topic=pattern != topic,
            pattern_auto_discovery_period=2,
            consumer_type=plan.kind,
            consumer_name=plan.name,
            receiver_queue_size=plan.queue,
            initial_position=InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=700,
            batch_index_ack_enabled=plan.batch_index,
            ack_group_time_ms=50,
            key_shared_policy=plan.keys,
            replicate_subscription_state_enabled=self.followed,
        )

    async def _close(self, consumer: Consumer) -> None:
        if self._acks:
            await asyncio.wait(self._acks)
        await consumer.close()

    def _note(self, event: str, **details: Any) -> None:
        plan = self._plan
        self._shared.history.add(event, by=plan.name, subscription=plan.subscription, **details)

    async def _consume(self, consumer: Consumer) -> None:
        told = self._plan.cumulative and self._shared.draining.is_set()
        while not self._shared.over.is_set():
            if self._shared.draining.is_set() and not told:
                told = True
                if self._plan.cumulative:
                    return  # it subscribes again, and gets what it kept
                await consumer.redeliver_unacknowledged_messages()
            try:
                message = await consumer.receive(timeout_millis=500)
            except Timeout:
                if told and self._rng.random() < 0.2:  # a full disk may have refused what it acked
                    if self._plan.cumulative:
                        return
                    told = False
                continue
            self._received(message)
            if not await self._act(consumer, message):
                return

    def _received(self, message: Message) -> None:
        self._note("received", content=message.data().decode(), **place_of(message))

    async def _act(self, consumer: Consumer, message: Message) -> bool:
        """Do something about a message; False to leave."""
        if self.poisoned and int(message.data().decode().partition(":")[2]) % POISON == 0:
            topic = place_of(message)["topic"]
            self._note("poison", content=message.data().decode(), topic=topic)
            await consumer.negative_acknowledge(message)
            return True
        plan, draw = self._plan, self._rng.randrange(1000)
        if not self._shared.draining.is_set():
            for chance, action in (
                (plan.nack, self._nack),
                (plan.keep, self._keep),
                (plan.redeliver, self._redeliver),
                (plan.seek, self._seek),
                (plan.unsubscribe, self._unsubscribe),
            ):
                if draw < chance:
                    await action(consumer, message)
                    return True
                draw -= chance
            if draw < plan.leave:
                return False
        cumulative = plan.cumulative and self._rng.random() < 0.3
        receipt = self._rng.random() < 0.7
        task = asyncio.get_running_loop().create_task(
            self._acknowledge(consumer, message, cumulative, receipt)
        )
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)
        if len(self._acks) > 8:
            await asyncio.wait(self._acks, return_when=asyncio.FIRST_COMPLETED)
        return True

    async def _nack(self, consumer: Consumer, message: Message) -> None:
        await consumer.negative_acknowledge(message)

    async def _keep(self, consumer: Consumer, message: Message) -> None:
        return  # it stays unacknowledged

    async def _redeliver(self, consumer: Consumer, message: Message) -> None:
        await consumer.redeliver_unacknowledged_messages()

    async def _seek(self, consumer: Consumer, message: Message) -> None:
        whole = self._rng.random() < 0.5
        self._note("seek", to="earliest" if whole else str(message.message_id()))
        try:
            await consumer.seek(MessageId.earliest if whole else message.message_id())
        finally:
            self._note("sought")

    async def _unsubscribe(self, consumer: Consumer, message: Message) -> None:
        """Delete the subscription; the next one begins anew.

        After an error it may still be deleted some time later: nothing is judged from then on.
        """
        self._note("seek", to="nothing")
        await consumer.unsubscribe()
        self._note("sought")

    async def _acknowledge(
        self, consumer: Consumer, message: Message, cumulative: bool, receipt: bool
    ) -> None:
        began = self._shared.history.now()
        place = place_of(message)
        self._note("acknowledging", cumulative=cumulative, receipt=receipt, **place)
        try:
            if cumulative:
                await consumer.acknowledge_cumulative(message, receipt=receipt)
            else:
                await consumer.acknowledge(message, receipt=receipt)
        except VelarayError as error:
            self._note("ack failed", error=f"{type(error).__name__}: {error}", **place)
            return
        if receipt:
            self._note("acked", began=began, cumulative=cumulative, **place)


def place_of(message: Message) -> dict[str, Any]:
    """Where a message is, as the history has it."""
    at = message.message_id()
    return {
        "topic": at.topic_name(),
        "ledger": at.ledger_id(),
        "entry": at.entry_id(),
        "index": at.batch_index(),
    }
