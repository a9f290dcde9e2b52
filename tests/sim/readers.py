"""Readers: applications that read a topic from its beginning, without a subscription that stays."""

from __future__ import annotations

import asyncio
from random import Random

from tests.sim.workload import Shared, until_it_works
from velaray.aio import Client
from velaray.client.exceptions import Timeout, VelarayError
from velaray.client.message_id import MessageId
from velaray.client.reader import Reader


class ReaderScript:
    """Reads the topic from its beginning, repeatedly; the last time to its end."""

    def __init__(self, name: str, topic: str, queue: int, shared: Shared, rng: Random) -> None:
        self.life = 0
        self.seen: set[str] = set()
        self._name = name
        self._topic = topic
        self._queue = queue
        self._shared = shared
        self._rng = rng

    async def run(self, client: Client) -> None:
        """Returns when the run is over."""

        async def create() -> Reader:
            return await client.create_reader(
                self._topic,
                MessageId.earliest,
                receiver_queue_size=self._queue,
                reader_name=self._name,
            )

        while not self._shared.over.is_set():
            reader = await until_it_works(create, self._shared.history, self._name)
            self.life += 1
            self.seen.clear()
            try:
                await self._follow(reader)
            except VelarayError as error:
                self._shared.history.add("lost", by=self._name, error=f"{error!r}")
            await reader.close()

    async def _follow(self, reader: Reader) -> None:
        while not self._shared.over.is_set():
            try:
                message = await reader.read_next(timeout_millis=500)
            except Timeout:
                continue
            content = message.data().decode()
            self.seen.add(content)
            self._shared.history.add(
                "read",
                by=self._name,
                life=self.life,
                topic=message.message_id().topic_name(),
                content=content,
            )
            if not self._shared.draining.is_set():
                if self._rng.random() < 0.02:
                    return
                if self._rng.random() < 0.05:
                    await asyncio.sleep(self._rng.random())
