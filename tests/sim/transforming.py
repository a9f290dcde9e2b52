"""Clients that acknowledge in transactions: some turn each message into another one, exactly once;
some do it carelessly, on subscriptions that others move and delete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tests.sim.transacting import DOMAIN, Sender
from tests.sim.transactions import Transacted
from tests.sim.workload import Shared, place_of, until_it_works
from velaray.aio import Client, Transaction
from velaray.client.consumer import Consumer
from velaray.client.enums import ConsumerType, InitialPosition
from velaray.client.exceptions import Timeout, VelarayError
from velaray.client.message import Message


@dataclass(frozen=True)
class Working:
    """A client's part: up to ``most`` messages in a transaction.

    ``to`` is the topic of the results; None: there are no results, and acknowledgements of any kind
    are allowed. ``cumulative``: the last message is acknowledged, with all before it. Chances are
    percentages.
    """

    name: str
    topic: str
    subscription: str
    kind: ConsumerType
    to: str | None
    most: int
    queue: int
    batch_index: bool
    cumulative: bool
    batching: bool
    abort: int
    abandon: int
    leave: int = 3
    careless: int = 0
    """The chance to acknowledge pending messages without a transaction too, or to skip them."""


class WorkerScript:
    """Receives messages, publishes a result for each and acknowledges them, in one transaction."""

    def __init__(self, plan: Working, shared: Shared, transacted: Transacted, rng: Random) -> None:
        self._plan = plan
        self._shared = shared
        self._transacted = transacted
        self._rng = rng
        self._sender = Sender(plan.name, shared, transacted)

    async def run(self, client: Client) -> None:
        """Returns when the run is over."""
        plan, sender = self._plan, self._sender
        sender.forget()
        subscribe = partial(self._subscribe, client)
        while not self._shared.over.is_set():
            if plan.to is not None:
                await sender.connect(client, (plan.to,), plan.batching)
            consumer = await until_it_works(
                subscribe, self._shared.history, f"subscribe {plan.name}"
            )
            try:
                await self._work(client, consumer)
            except VelarayError as error:
                self._note("lost", error=f"{type(error).__name__}: {error}")
            await consumer.close()
        await sender.close()

    async def _subscribe(self, client: Client) -> Consumer:
        plan = self._plan
        return await client.subscribe(
            DOMAIN + plan.topic,
            plan.subscription,
            consumer_type=plan.kind,
            consumer_name=plan.name,
            receiver_queue_size=plan.queue,
            initial_position=InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=700,
            batch_index_ack_enabled=plan.batch_index,
        )

    def _note(self, event: str, **details: Any) -> None:
        plan = self._plan
        self._shared.history.add(event, by=plan.name, subscription=plan.subscription, **details)

    async def _work(self, client: Client, consumer: Consumer) -> None:
        """Returns to subscribe again."""
        while not self._shared.over.is_set():
            messages = await self._next(consumer)
            if not messages:
                # Kept messages are redelivered, and so are those that an abort returned.
                if self._shared.draining.is_set() and self._rng.random() < 0.2:
                    return
                continue
            if not await self._process(client, consumer, messages):
                await asyncio.sleep(self._rng.random())  # what it wants may be pending for long
                return
            if self._rng.randrange(100) < self._plan.leave:
                return

    async def _next(self, consumer: Consumer) -> list[Message]:
        messages: list[Message] = []
        count = self._rng.randint(1, self._plan.most)
        while len(messages) < count:
            try:
                message = await consumer.receive(timeout_millis=50 if messages else 500)
            except Timeout:
                break
            self._note("received", content=message.data().decode(), **place_of(message))
            messages.append(message)
        return messages

    async def _process(
        self, client: Client, consumer: Consumer, messages: Sequence[Message]
    ) -> bool:
        """Run one transaction. Return whether this consumer may continue."""
        plan, rng = self._plan, self._rng
        calm = self._shared.draining.is_set()
        fate = 100 if calm else rng.randrange(100)
        try:
            txn = await self._transacted.begin(client, plan.name, rng.choice([1.0, 3.0, 6.0]))
        except VelarayError as error:
            self._shared.history.add("retry", what=f"begin {plan.name}", error=f"{error!r}")
            return False
        began: dict[int, float] = {}
        works = [self._result(txn, message) for message in messages if plan.to is not None]
        works += [
            self._acknowledge(consumer, txn, message, began)
            for message in (messages[-1:] if plan.cumulative else messages)
        ]
        if rng.random() < 0.5:
            done = [await work for work in works]
        else:
            done = await asyncio.gather(*works)
        if rng.randrange(100) < plan.careless:
            await self._meddle(consumer, messages)
        if fate < plan.abandon:
            return not plan.cumulative and rng.random() < 0.5
        commit = fate >= plan.abandon + plan.abort and (all(done) or rng.random() < 0.3)
        verdict = await self._transacted.end(txn, commit)
        if verdict:
            self._confirm(messages, began)
            return True
        if plan.cumulative or verdict is None:
            return False  # nothing is redelivered by itself
        # The abort redelivers the transaction's messages; the others need a request.
        for message in messages if not all(done) else ():
            await consumer.negative_acknowledge(message)
        return rng.random() < 0.8

    async def _result(self, txn: Transaction, message: Message) -> bool:
        assert self._plan.to is not None
        return await self._sender.send(self._plan.to, txn, of=message.data().decode())

    async def _acknowledge(
        self, consumer: Consumer, txn: Transaction, message: Message, began: dict[int, float]
    ) -> bool:
        cumulative, place = self._plan.cumulative, place_of(message)
        began[id(message)] = self._shared.history.now()
        self._note(
            "acknowledging",
            cumulative=cumulative,
            receipt=True,
            txn=str(txn.txn_id),
            **place,
        )
        try:
            if cumulative:
                await consumer.acknowledge_cumulative(message, txn=txn)
            else:
                await consumer.acknowledge(message, txn=txn)
        except VelarayError as error:
            self._transacted.failed(txn, f"ack {place}", error)
            return False
        self._note("acked in transaction", txn=str(txn.txn_id), cumulative=cumulative, **place)
        return True

    def _confirm(self, messages: Sequence[Message], began: Mapping[int, float]) -> None:
        """Acknowledgements since ``began`` (by message) are durable."""
        for message in messages:
            if id(message) in began:
                at, cumulative = began[id(message)], self._plan.cumulative
                self._note("acked", began=at, cumulative=cumulative, **place_of(message))

    async def _meddle(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Acknowledge one of them without the transaction."""
        message = self._rng.choice(messages)
        began, place = self._shared.history.now(), place_of(message)
        self._note("acknowledging", cumulative=False, receipt=True, **place)
        try:
            await consumer.acknowledge(message, receipt=True)
        except VelarayError as error:
            self._note("ack failed", error=f"{type(error).__name__}: {error}", **place)
            return
        self._note("acked", began=began, cumulative=False, **place)
