"""Clients that publish in transactions: messages to several topics, and transfers between accounts.

A message's content names its transaction: ``<client>/<transaction>:<number>``; plain ones are
``<client>/plain:<number>``. Numbers ascend in the order of sending.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tests.sim.cluster import EPOCH_MS
from tests.sim.transactions import Transacted
from tests.sim.workload import LATEST_S, Shared, until_it_works
from velaray.aio import Client, Transaction
from velaray.client.exceptions import AlreadyClosed, TopicTerminated, VelarayError
from velaray.client.producer import Producer

DOMAIN = "persistent://"


@dataclass(frozen=True)
class Transacting:
    """A client's part: ``rounds`` transactions, ``overlap`` at a time, of ``most`` messages each.

    The chances to ``abort`` one or to ``abandon`` it are of 100; ``later`` as in `Producing`.
    """

    name: str
    topics: tuple[str, ...]
    rounds: int
    overlap: int
    most: int
    batching: bool
    abort: int = 20
    abandon: int = 15
    later: int = 0
    keys: int = 0


class Sender:
    """What one life of a client publishes with; its numbers outlive it."""

    def __init__(self, name: str, shared: Shared, transacted: Transacted) -> None:
        self._name = name
        self._history = shared.history
        self._transacted = transacted
        self._producers: dict[str, Producer] = {}
        self._number = 0
        self.ended: set[str] = set()

    async def connect(self, client: Client, topics: tuple[str, ...], batching: bool) -> None:
        """Have a producer for each topic that isn't terminated."""
        for topic in topics:
            if topic not in self._producers and topic not in self.ended:
                create = partial(self._create, client, topic, batching)
                producer = await until_it_works(create, self._history, f"create {self._name}")
                if producer is None:
                    self.ended.add(topic)
                else:
                    self._producers[topic] = producer

    async def _create(self, client: Client, topic: str, batching: bool) -> Producer | None:
        try:
            return await client.create_producer(
                DOMAIN + topic,
                producer_name=f"{self._name}-{topic.rpartition('/')[2]}",
                batching_enabled=batching,
                batching_max_messages=5,
            )
        except TopicTerminated:
            return None

    async def close(self) -> None:
        """End this life in order."""
        producers, self._producers = self._producers, {}
        for producer in producers.values():
            await producer.close()

    def forget(self) -> None:
        """The former life crashed."""
        self._producers = {}

    async def send(
        self,
        topic: str,
        txn: Transaction | None,
        *,
        key: str | None = None,
        due: float | None = None,
        tombstone: bool = False,
        **details: Any,
    ) -> bool:
        """Publish one message; whether it is stored for sure."""
        producer = self._producers.get(topic)
        if producer is None:
            return False
        self._number += 1
        whose = "plain" if txn is None else str(txn.txn_id)
        content = f"{self._name}/{whose}:{self._number}"
        note = self._history.add
        note(
            "send",
            producer=self._name,
            content=content,
            topic=DOMAIN + topic,
            key=key,
            by_key=False,
            due=due,
            txn=None if txn is None else whose,
            **details,
        )
        try:
            stored = await producer.send(
                None if tombstone else content.encode(),
                properties={"content": content} if tombstone else None,
                partition_key=key,
                deliver_at=None if due is None else EPOCH_MS + math.ceil(due * 1000),
                txn=txn,
            )
        except VelarayError as error:
            note("unknown", content=content, error=f"{type(error).__name__}: {error}")
            if txn is not None:
                self._transacted.failed(txn, content, error)
            if isinstance(error, AlreadyClosed | TopicTerminated):
                self._producers.pop(topic, None)
            return False
        note(
            "receipt",
            content=content,
            topic=stored.topic_name(),
            ledger=stored.ledger_id(),
            entry=stored.entry_id(),
            index=stored.batch_index(),
        )
        return True


class TransactingScript:
    """Publishes in transactions that overlap, with plain messages between."""

    def __init__(
        self, plan: Transacting, shared: Shared, transacted: Transacted, rng: Random
    ) -> None:
        self._plan = plan
        self._shared = shared
        self._transacted = transacted
        self._rng = rng
        self._sender = Sender(plan.name, shared, transacted)
        self._left = plan.rounds

    async def run(self, client: Client) -> None:
        """Returns after all rounds."""
        plan, sender = self._plan, self._sender
        sender.forget()
        under_way: set[asyncio.Task[None]] = set()
        while self._left > 0 and len(sender.ended) < len(plan.topics):
            await sender.connect(client, plan.topics, plan.batching)
            while self._left > 0 and len(under_way) < plan.overlap:
                self._left -= 1
                under_way.add(asyncio.get_running_loop().create_task(self._round(client)))
                if not self._shared.draining.is_set():
                    await asyncio.sleep(self._rng.random() * 20.0 / plan.rounds)
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        if under_way:
            await asyncio.wait(under_way)
        await sender.close()

    async def _round(self, client: Client) -> None:
        plan, rng = self._plan, self._rng
        fate, timeout_s = rng.randrange(100), rng.choice([1.0, 3.0, 10.0])
        try:
            txn = await self._transacted.begin(client, plan.name, timeout_s)
        except VelarayError as error:
            self._shared.history.add("retry", what=f"begin {plan.name}", error=f"{error!r}")
            return
        sends: list[asyncio.Task[bool]] = []
        for _ in range(rng.randint(1, plan.most)):
            sends.append(self._begin_to_send(txn))
            if rng.random() < 0.3:
                sends.append(self._begin_to_send(None))
            if rng.random() < 0.4:
                await asyncio.sleep(rng.random() * 0.5)
        if rng.random() < 0.5:  # else the end waits for them itself
            await asyncio.wait(sends)
        if fate >= plan.abort + plan.abandon:
            await self._transacted.end(txn, True)
        elif fate >= plan.abandon:
            await self._transacted.end(txn, False)
        await asyncio.wait(sends)

    def _begin_to_send(self, txn: Transaction | None) -> asyncio.Task[bool]:
        plan, rng = self._plan, self._rng
        topic = rng.choice(plan.topics)
        due = None
        if plan.later and rng.randrange(1000) < plan.later:
            due = self._shared.history.now() + rng.random() * LATEST_S
        key = f"k{rng.randrange(plan.keys)}" if plan.keys else None
        tombstone = bool(plan.keys) and rng.random() < 0.2
        sending = self._sender.send(topic, txn, key=key, due=due, tombstone=tombstone)
        return asyncio.get_running_loop().create_task(sending)


class TellerScript:
    """Transfers between accounts of two topics, each in a transaction, until enough are done."""

    def __init__(
        self,
        name: str,
        topics: tuple[str, str],
        transfers: int,
        shared: Shared,
        transacted: Transacted,
        rng: Random,
    ) -> None:
        self._name = name
        self._topics = topics
        self._left = transfers
        self._pause_s = 20.0 / transfers
        self._shared = shared
        self._transacted = transacted
        self._rng = rng
        self._sender = Sender(name, shared, transacted)

    async def run(self, client: Client) -> None:
        """Returns when all transfers are committed."""
        self._sender.forget()
        while self._left > 0:
            await self._sender.connect(client, self._topics, batching=False)
            self._left -= await self._transfer(client)
            if not self._shared.draining.is_set():
                await asyncio.sleep(self._rng.random() * self._pause_s)
        await self._sender.close()

    async def _transfer(self, client: Client) -> bool:
        rng = self._rng
        amount, accounts = rng.randint(1, 100), [rng.randrange(4), rng.randrange(4)]
        try:
            txn = await self._transacted.begin(client, self._name, 5.0)
        except VelarayError as error:
            self._shared.history.add("retry", what=f"begin {self._name}", error=f"{error!r}")
            await asyncio.sleep(0.5)
            return False
        sides = zip(self._topics, (-amount, amount), accounts, strict=True)
        done = [
            await self._sender.send(topic, txn, amount=value, account=f"{topic}/{account}")
            for topic, value, account in sides
        ]
        if not all(done):
            # A commit is refused all the same; the script tries that as well.
            await self._transacted.end(txn, rng.random() < 0.5)
            return False
        return await self._transacted.end_for_sure(txn, commit=True)
