"""Retry and dead-letter topics for messages for which a transform's function raises exceptions."""

from __future__ import annotations

from velaray.client.client import Client
from velaray.client.consumer_base import dead_letter_rules
from velaray.client.dead_letters import DeadLetterPolicy, DeadLetterProducers
from velaray.client.exceptions import InvalidMessage
from velaray.client.message import Message
from velaray.client.options import AioConsumerOptions
from velaray.client.transactions import Transaction
from velaray.pipelines.transform import Transform

EXCEPTION = "EXCEPTION"
"""The property that contains the exception."""

MAX_TEXT = 1000


class TransformDeadLetters:
    """Publishes copies of messages to the retry and dead-letter topics, in transactions.

    The consumer itself has no dead-letter policy. With one it would move messages that were
    redelivered often, for example after deaths of workers, without calling the function.
    """

    def __init__(self, transform: Transform, client: Client) -> None:
        self._transform = transform
        self._client = client
        self._rules: DeadLetterPolicy | None = None
        self._dead_letters: DeadLetterProducers | None = None
        if transform.dead_letters is not None:
            options = AioConsumerOptions(
                transform.sources,
                transform.subscription,
                dead_letter_policy=transform.dead_letters,
                enable_retry=True,
            )
            self._rules = dead_letter_rules(options)

    @property
    def retry_topic(self) -> str | None:
        """The first target of failed messages; None if there is no policy."""
        return None if self._rules is None else self._rules.retry_letter_topic

    @property
    def dead_topic(self) -> str | None:
        """The last target of failed messages; None if there is no policy."""
        return None if self._rules is None else self._rules.dead_letter_topic

    async def send(self, txn: Transaction, message: Message, error: Exception) -> str:
        """Publish the copy of ``message`` to its target, and return that topic."""
        assert self._rules is not None
        if self._dead_letters is None:
            self._dead_letters = DeadLetterProducers(
                self._client.core, self._transform.subscription, self._rules
            )
        properties = {EXCEPTION: f"{type(error).__name__}: {error}"[:MAX_TEXT]}
        delay_ms = round(self._transform.retry_delay * 1000)
        try:
            dead_letter = self._dead_letters.later(message, delay_ms, properties)
        except InvalidMessage:  # the property may be another application's, with any value
            dead_letter = self._dead_letters.dead(message, properties)
        await txn.run(self._dead_letters.send_in(txn, message, dead_letter))
        return dead_letter.topic

    def stop(self) -> None:
        """Stop sending."""
        if self._dead_letters is not None:
            self._dead_letters.stop()
