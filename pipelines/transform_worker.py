"""One worker of a transform: consumes, processes and produces, with a transaction per batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from time import monotonic
from typing import Any

from velaray.client.client import Client
from velaray.client.consumer import Consumer
from velaray.client.enums import InitialPosition
from velaray.client.exceptions import (
    ConsumerAssignError,
    ConsumerBusy,
    ConsumerNotFound,
    InvalidMessage,
    InvalidTopicName,
    InvalidTxnStatusError,
    MessageTooBig,
    NotAllowedError,
    Timeout,
    TransactionConflict,
    TransactionHasOperationFailed,
    TransactionNotFound,
    VelarayError,
)
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.producer import Producer
from velaray.client.retry import TRANSIENT
from velaray.client.transactions import Transaction
from velaray.events.backoff import Backoff
from velaray.pipelines.transform import Transform
from velaray.pipelines.transform_counts import TransformCounts
from velaray.pipelines.transform_dead_letters import TransformDeadLetters
from velaray.pipelines.transform_drain import Drain
from velaray.pipelines.transform_function import Addressed, Function, UserError

logger = logging.getLogger("velaray")

_TRANSIENT: tuple[type[VelarayError], ...] = (
    *TRANSIENT,
    ConsumerAssignError,
    ConsumerBusy,
    ConsumerNotFound,
    InvalidTxnStatusError,
    TransactionConflict,
    TransactionHasOperationFailed,
    TransactionNotFound,
)
"""Errors after which a worker subscribes again. Others end the transform."""

REFUSED: tuple[type[VelarayError], ...] = (
    InvalidMessage,
    InvalidTopicName,
    MessageTooBig,
    NotAllowedError,
)
"""Errors that are caused by the output itself."""

IDLE_S = 0.2
"""Seconds that a worker waits for messages before it checks whether to stop."""

DRAIN_CHECK_S = 0.5


class TransformWorker:
    """Runs a transform in this event loop, alone or with other workers on the same subscription.

    ``service_url`` is that of the cluster. `TransformRun` runs several workers on Ray.
    """

    def __init__(self, transform: Transform, service_url: str) -> None:
        self._transform = transform
        self._function = Function(transform.function)
        self._client = Client(service_url, authentication=transform.authentication)
        self._dead_letters = TransformDeadLetters(transform, self._client)
        self._producers: dict[str, Producer] = {}
        self._counts = TransformCounts()
        self._stopping = False
        self._drain: Drain | None = None
        self._backoff = Backoff()

    @property
    def counts(self) -> TransformCounts:
        """A copy of the counters."""
        return replace(self._counts)

    def stop(self) -> None:
        """Make `run` return, after the current batch is committed."""
        self._stopping = True

    def drain(self) -> None:
        """Make `run` return when everything that is in the topic now is acknowledged.

        This includes all messages in the retry topic.
        """
        if self._drain is None:
            self._drain = Drain(self._dead_letters.retry_topic)

    async def run(self) -> TransformCounts:
        """Work until `stop` or the end of `drain`; return the counters. Call it only once.

        The work is retried without limit, with back-off, after transient errors: unreachable
        servers, aborted transactions. Raises the exception of ``function``, if the transform has no
        dead-letter policy, and permanent errors of the service (`AuthorizationError`,
        `TopicTerminated`, …). Uncommitted messages are redelivered then to other consumers of the
        subscription.
        """
        try:
            await self._function.start()
            while not self._stopping:
                try:
                    await self._consume()
                except _TRANSIENT as error:
                    self._counts.failures += 1
                    logger.info(
                        "a transform subscribes again after %s: %s", type(error).__name__, error
                    )
                    await self._backoff.wait()
        except UserError as error:
            raise error.error from None
        finally:
            self._function.stop()
            self._dead_letters.stop()
            await self._client.close()
        return self.counts

    # --- consuming ---

    async def _consume(self) -> None:
        """Subscribe, and process batches until one fails.

        The consumer is closed then. Its unacknowledged messages are redelivered, once and in order,
        to the remaining consumers. So no message stays unassigned, whatever the results of the
        operations.
        """
        transform = self._transform
        retry_topic = self._dead_letters.retry_topic
        consumer = await self._client.subscribe(
            [*transform.sources, *([] if retry_topic is None else [retry_topic])],
            transform.subscription,
            transform.consumer_type,
            initial_position=InitialPosition.Earliest,
            receiver_queue_size=transform.batch_size,
            max_total_receiver_queue_size_across_partitions=transform.batch_size,
        )
        try:
            check_at = 0.0
            while not self._stopping:
                messages = await self._receive(consumer)
                if messages:
                    await self._process(consumer, messages)
                    self._backoff.reset()
                if self._drain is not None and monotonic() >= check_at:
                    self._stopping |= await self._drain.finished(consumer)
                    check_at = monotonic() + DRAIN_CHECK_S
        finally:
            await consumer.close()

    async def _receive(self, consumer: Consumer) -> list[Message]:
        """Return a batch, or an empty one if no message comes for a while."""
        transform = self._transform
        found: dict[Any, Message] = {}  # acknowledge a redelivered duplicate once
        wait_s = IDLE_S
        end = None
        while (room := transform.batch_size - len(found)) > 0 and wait_s > 0:
            try:
                batch = await consumer.receive_many(room, max(1, round(wait_s * 1000)))
            except Timeout:
                break
            for message in batch.messages():
                found[message.message_id()] = message
            end = end or monotonic() + transform.batch_wait
            wait_s = end - monotonic()
        return list(found.values())

    # --- processing ---

    async def _process(self, consumer: Consumer, messages: list[Message]) -> None:
        outputs, faults = await self._outcome(messages)
        try:
            await self._transact(consumer, messages, outputs, faults)
        except REFUSED as error:
            if self._transform.dead_letters is None:
                raise
            if len(messages) == 1:
                await self._transact(consumer, messages, [], [(messages[0], error)])
                return
            for message in messages:  # one of them is at fault
                await self._process(consumer, [message])

    async def _outcome(
        self, messages: list[Message]
    ) -> tuple[list[Addressed], list[tuple[Message, Exception]]]:
        """Return the function's outputs for ``messages``, and the messages that it fails for."""
        try:
            return await self._function(messages), []
        except UserError as error:
            if self._transform.dead_letters is None:
                raise
            if len(messages) == 1:
                return [], [(messages[0], error.error)]
        outputs: list[Addressed] = []
        faults: list[tuple[Message, Exception]] = []
        for message in messages:
            made, failed = await self._outcome([message])
            outputs += made
            faults += failed
        return outputs, faults

    async def _transact(
        self,
        consumer: Consumer,
        messages: list[Message],
        outputs: list[Addressed],
        faults: list[tuple[Message, Exception]],
    ) -> None:
        """Publish and acknowledge in one transaction.

        After an error it is assumed that nothing was committed; redeliveries show whether that is
        so.
        """
        producers = await self._producers_of({topic for topic, _ in outputs})
        timeout_s = self._transform.transaction_timeout
        txn, ends = await self._client.new_transaction(timeout_s), monotonic() + timeout_s
        errors: list[BaseException | None] = []

        def sent(error: VelarayError | None, message_id: MessageId | None) -> None:
            errors.append(error)

        try:
            for topic, message in outputs:
                producers[topic].submit_in(txn, message, sent)
            dead_letters = [
                self._dead_letters.send(txn, message, error) for message, error in faults
            ]
            acknowledging = consumer.acknowledge_many(messages, txn=txn)
            done = await asyncio.gather(acknowledging, *dead_letters, return_exceptions=True)
            _raise_worst([*errors, *done])
            await self._commit(txn)
        except VelarayError:
            self._counts.aborted += 1
            await _abort(txn)
            if monotonic() >= ends:  # whatever failed, the batch gets another transaction
                raise Timeout(f"{txn!r} has lasted longer than {timeout_s:g} s") from None
            _raise_worst(errors)  # a commit reports only that something failed
            raise
        dead = sum(topic == self._dead_letters.dead_topic for topic in done[1:])
        self._counts += TransformCounts(
            consumed=len(messages),
            produced=len(outputs),
            retried=len(faults) - dead,
            dead=dead,
            committed=1,
        )

    async def _commit(self, txn: Transaction) -> None:
        """Commit, and repeat until the result is known."""
        backoff = Backoff()
        while True:
            try:
                await txn.commit()
            except Timeout as error:
                logger.info("the outcome of %r isn't known yet: %s", txn, error)
                await backoff.wait()
            else:
                return

    async def _producers_of(self, topics: set[str]) -> dict[str, Producer]:
        timeout_ms = max(1, round(self._transform.transaction_timeout * 1000))
        for topic in topics - self._producers.keys():
            self._producers[topic] = await self._client.create_producer(
                topic, send_timeout_millis=timeout_ms
            )
        return self._producers


def _raise_worst(results: Iterable[Any]) -> None:
    """Raise the first permanent error, or else the first error, if there is any."""
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, _TRANSIENT):
            raise error
    if errors:
        raise errors[0]


async def _abort(txn: Transaction) -> None:
    """Abort if that succeeds at once; otherwise the transaction ends by its timeout."""
    try:
        await txn.abort()
    except VelarayError as error:
        logger.debug("can't abort %r, or it is aborted already: %s", txn, error)
