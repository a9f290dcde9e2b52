"""Holds the entries of one topic partition until the schemas of their writers are known."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from velaray.client.blocks import Block
from velaray.client.core import Core
from velaray.client.retry import TRANSIENT
from velaray.client.schema.base import Schema
from velaray.client.tail import Tail
from velaray.client.topic_schemas import Decoders
from velaray.events.backoff import Backoff

logger = logging.getLogger("velaray")


class Decoding:
    """Assigns decoders to entries, in order.

    An entry whose schema isn't known is held, with all entries behind it, until the registry
    answers. Without a schema nothing is held.
    """

    def __init__(
        self,
        core: Core,
        topic: str,
        schema: Schema[Any] | None,
        hand_over: Callable[[Block, int], None],
        tail: Tail,
    ) -> None:
        """``hand_over`` takes an entry that was held, and its permits."""
        self._core = core
        self._topic = topic
        self._schema = schema
        self._hand_over = hand_over
        self._tail = tail
        self._switches = core.switches
        self._decoders = self._made_decoders()
        self._held: deque[tuple[Block, int]] = deque()
        self._learning: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def _made_decoders(self) -> Decoders | None:
        if self._schema is None:
            return None
        return Decoders(self._core.schemas, self._topic, self._schema)

    def restart(self) -> None:
        """Drop the held entries, which are redelivered.

        Other clusters number versions differently.
        """
        self._held.clear()
        if self._switches != self._core.switches:
            self._switches = self._core.switches
            self._decoders = self._made_decoders()

    def holds(self, block: Block, permits: int) -> bool:
        """Assign a decoder to the entry, or hold it; True if it is held."""
        if self._decoders is None or not (self._held or not self._decoders.set(block.info)):
            return False
        self._held.append((block, permits))
        if self._learning is None:
            self._learning = self._core.spawn(self._learn(self._decoders))
        return True

    def drop(self) -> int:
        """Drop the held entries; return their permits."""
        permits = sum(permits for _, permits in self._held)
        self._held.clear()
        return permits

    def stop(self) -> None:
        """Stop asking the registry."""
        if self._learning is not None:
            self._learning.cancel()

    async def _learn(self, decoders: Decoders) -> None:
        """Look up the decoders of the held entries, in order."""
        backoff = Backoff()
        try:
            while self._held:
                info = self._held[0][0].info
                if decoders.set(info):
                    self._hand_over(*self._held.popleft())
                    self._tail.wake()
                    continue
                try:
                    await decoders.learn(info.metadata.schema_version)
                except TRANSIENT as error:
                    logger.warning("consumer of %s waits for a schema: %s", self._topic, error)
                    await backoff.wait()
        finally:
            self._learning = None
            self._tail.wake()
