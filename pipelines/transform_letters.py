"""Where the messages of a transform go that its function raises exceptions for."""

from __future__ import annotations

from velaray.aio.consumer_base import letter_rules
from velaray.aio.core import Core
from velaray.aio.letters import Letters
from velaray.exceptions import InvalidMessage
from velaray.message import Message
from velaray.options import AioConsumerOptions
from velaray.pipelines.transform import Transform
from velaray.pipelines.transform_function import Addressed

EXCEPTION = "EXCEPTION"
"""The property that says what was raised."""

MAX_TEXT = 1000


class TransformLetters:
    """Makes the copies; the worker publishes them in its transactions."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform
        self._rules = None
        self._letters: Letters | None = None
        if transform.dead_letters is not None:
            options = AioConsumerOptions(
                transform.sources,
                transform.subscription,
                dead_letter_policy=transform.dead_letters,
                enable_retry=True,
            )
            self._rules = letter_rules(options)

    @property
    def retry_topic(self) -> str | None:
        """Where they go at first; None if there is no policy."""
        return None if self._rules is None else self._rules.retry_letter_topic

    @property
    def dead_topic(self) -> str | None:
        """Where they go at last; None if there is no policy."""
        return None if self._rules is None else self._rules.dead_letter_topic

    @property
    def dead_subscription(self) -> str | None:
        """The subscription that the dead-letter topic is to have, if any."""
        return None if self._rules is None else self._rules.initial_subscription

    def of(self, core: Core, message: Message, error: Exception) -> Addressed:
        """The copy of ``message``, and whether it goes to the retry or dead-letter topic."""
        assert self._rules is not None
        if self._letters is None:
            self._letters = Letters(core, self._transform.subscription, self._rules)
        text = f"{type(error).__name__}: {error}"[:MAX_TEXT]
        delay_ms = round(self._transform.retry_delay * 1000)
        try:
            letter, topic, _ = self._letters.later(message, delay_ms, {EXCEPTION: text})
        except InvalidMessage:  # somebody else's property says that it was retried "x" times
            letter, topic, _ = self._letters.dead(message)
        letter.sequence_id = None  # the transaction keeps it from being stored twice
        return topic, letter
