"""Compaction as an option of a run: a keyed topic with a compacting administrator and a reader.

All of it is generated from a seed of its own, so that runs without it stay the same. In the end
a new reader must have exactly the newest value of every key, at its position in the log.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.sim.attic import HistoryStore, SimDisk
from tests.sim.checkers import COMPACTED
from tests.sim.cluster import ADMIN_PORT
from tests.sim.http import NoAnswer, ask
from tests.sim.stored import contents_of
from tests.sim.transaction_evidence import hidden_places
from tests.sim.workload import ProducerScript, Producing, Shared, until_it_works
from velaray.aio import Client, Consumer, Producer
from velaray.broker.partition.compacted_entries import contents
from velaray.client.exceptions import Timeout, VelarayError
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.reader import Reader
from velaray.events.ids import ActorKey
from velaray.journal.replay import replay
from velaray.wire.messages import is_batch, read_metadata

TOPIC = "public/default/k0"
PATH = f"/admin/v2/persistent/{TOPIC}"
HUGE = 1 << 40
Newest = dict[str, tuple[tuple[int, int, int], str]]
"""The place of the newest value and the value, by key."""


@dataclass
class Compacting:
    """The scripts of a run's compacted topic."""

    producers: dict[str, Any]
    readers: dict[str, Any]
    reader: CompactedReader


def make_compacting(seed: int, shared: Shared) -> Compacting | None:
    """Those of a seed; most have none."""
    rng = Random(f"{seed}/compaction")
    if rng.random() >= 0.2:
        return None
    plan = Producing(
        name="kp0",
        topic=f"persistent://{TOPIC}",
        count=rng.randint(30, 80),
        window=rng.choice([1, 4, 16]),
        batching=rng.random() < 0.6,
        timeout_ms=0,
        keys=rng.choice([2, 5, 12]),
        doomed=False,
    )
    reader = CompactedReader("kr0", rng.choice([1, 10, 1000]), shared, Random(rng.random()))
    cumulative, queue = rng.random() < 0.5, rng.choice([1, 3, 1000])
    return Compacting(
        {
            "kp0": KeyedProducer(plan, shared, Random(rng.random())),
            "ka0": CompactingScript(shared, Random(rng.random())),
        },
        {"kr0": reader, "kc0": CompactedConsumer(queue, cumulative, shared)},
        reader,
    )


async def prepare() -> None:
    """Make the topic; nothing is trimmed before it is compacted."""
    for path, value in ((PATH, {}), (f"{PATH}/policies/compactionThreshold", HUGE)):
        status, answer = await ask(ADMIN_PORT, "PUT", path, value)
        assert status == 204, answer


class KeyedProducer(ProducerScript):
    """A producer for which one message in five is a tombstone; a property has its content."""

    async def _publish(
        self, producer: Producer, content: str, key: str | None, deliver_at: int | None
    ) -> Any:
        if self._later.random() < 0.2:
            return await producer.send(None, properties={"content": content}, partition_key=key)
        return await super()._publish(producer, content, key, deliver_at)


class CompactingScript:
    """An administrator that compacts the topic repeatedly."""

    def __init__(self, shared: Shared, rng: Random) -> None:
        self._shared = shared
        self._rng = rng

    async def run(self, client: Client) -> None:
        """Returns after two compactions in the calm were begun."""
        calm = 0
        while calm < 2:
            await asyncio.sleep(self._rng.uniform(0.5, 5.0))
            try:
                status, _ = await ask(ADMIN_PORT, "PUT", f"{PATH}/compaction", None)
            except NoAnswer:
                continue
            self._shared.history.add("compact", status=status)
            calm += self._shared.draining.is_set() and status == 204


class CompactedReader:
    """Reads the compacted topic repeatedly; in the calm, until the end of the topic."""

    def __init__(self, name: str, queue: int, shared: Shared, rng: Random) -> None:
        self.settled: Newest = {}
        self._newest: Newest = {}
        self._name = name
        self._queue = queue
        self._shared = shared
        self._rng = rng

    async def run(self, client: Client) -> None:
        """Returns when the run is over."""

        async def create() -> Reader:
            return await client.create_reader(
                f"persistent://{TOPIC}",
                MessageId.earliest,
                receiver_queue_size=self._queue,
                reader_name=self._name,
                is_read_compacted=True,
            )

        while not self._shared.over.is_set():
            reader = await until_it_works(create, self._shared.history, self._name)
            self._newest = {}
            try:
                await self._follow(reader)
            except VelarayError as error:
                self._shared.history.add("lost", by=self._name, error=f"{error!r}")
            await reader.close()

    async def _follow(self, reader: Reader) -> None:
        idle = 0
        while not self._shared.over.is_set():
            try:
                message = await reader.read_next(timeout_millis=500)
            except Timeout:
                idle += 1
                if self._shared.draining.is_set() and idle >= 6:
                    self.settled = dict(self._newest)
                    return
                continue
            idle = 0
            self._note(message)
            if not self._shared.draining.is_set() and self._rng.random() < 0.03:
                return

    def _note(self, message: Message) -> None:
        key, found = message.partition_key(), message.message_id()
        place = (found.ledger_id(), found.entry_id(), found.batch_index())
        self._shared.history.add("read compacted", by=self._name, key=key, place=place)
        self._newest.pop(key, None)
        if not message.has_null_value():
            self._newest[key] = (place, message.data().decode())


class CompactedConsumer:
    """A durable subscription that reads what is compacted, and acknowledges all of it."""

    def __init__(self, queue: int, cumulative: bool, shared: Shared) -> None:
        self._queue = queue
        self._cumulative = cumulative
        self._shared = shared

    async def run(self, client: Client) -> None:
        """Returns when the run is over."""

        async def subscribe() -> Consumer:
            return await client.subscribe(
                f"persistent://{TOPIC}",
                COMPACTED,
                receiver_queue_size=self._queue,
                is_read_compacted=True,
                batch_index_ack_enabled=True,
            )

        while not self._shared.over.is_set():
            consumer = await until_it_works(subscribe, self._shared.history, "kc0")
            try:
                await self._follow(consumer)
            except VelarayError as error:
                self._shared.history.add("lost", by="kc0", error=f"{error!r}")
            await consumer.close()

    async def _follow(self, consumer: Consumer) -> None:
        while not self._shared.over.is_set():
            try:
                message = await consumer.receive(timeout_millis=500)
            except Timeout:
                if self._shared.draining.is_set():  # a full disk may have refused what was acked
                    await consumer.redeliver_unacknowledged_messages()
                continue
            if self._cumulative:
                await consumer.acknowledge_cumulative(message)
            else:
                await consumer.acknowledge(message)


async def newest_of(disk: SimDisk, key: ActorKey) -> Newest:
    """What a reader must have in the end, from the partition's own journal."""
    newest: Newest = {}
    hidden = await hidden_places(HistoryStore(disk), key)
    async for record in replay(HistoryStore(disk), key.text()):
        if record.blob is None or record.position is None or record.position in hidden:
            continue
        items = contents(record.blob).items
        assert items is not None
        batched = is_batch(read_metadata(record.blob))
        for index, (item, text) in enumerate(zip(items, contents_of(record.blob), strict=True)):
            assert item.key is not None
            newest.pop(item.key, None)
            if not item.empty:
                newest[item.key] = ((*record.position, index if batched else -1), text)
    return newest
