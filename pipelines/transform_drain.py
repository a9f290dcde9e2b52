"""The check that a subscription has acknowledged everything up to a point."""

from __future__ import annotations

import asyncio

from velaray.client.consumer import Consumer
from velaray.client.core import topic_name
from velaray.client.message_id import MessageId


class Drain:
    """The ends of the topics at the first check, and the current end of the retry topic.

    A worker checks after it has sent a message to the retry topic, so the last worker leaves no
    message there.
    """

    def __init__(self, retry_topic: str | None) -> None:
        self._retry_topic = retry_topic
        self._ends: dict[str, MessageId] | None = None

    async def finished(self, consumer: Consumer) -> bool:
        """Whether everything up to the ends is acknowledged. Raises as a request does."""
        parts = consumer.parts
        places = await asyncio.gather(*(part.queries.last_message_id() for part in parts))
        lasts = {part.topic: last for part, (last, _) in zip(parts, places, strict=True)}
        if self._ends is None:
            self._ends = {
                part.topic: lasts[part.topic] for part in parts if not self._is_retry(part.topic)
            }
        return all(
            marked.position >= self._ends.get(part.topic, lasts[part.topic]).position
            for part, (_, marked) in zip(parts, places, strict=True)
        )

    def _is_retry(self, topic: str) -> bool:
        retry = self._retry_topic
        return retry is not None and topic_name(topic).topic == topic_name(retry).topic
