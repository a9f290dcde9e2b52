"""Writes records to the audit log. Each process has one writer.

Records that wait for the log are written together, as one entry: a JSON list. The writer tries
until the log has taken an entry; the log drops a repetition, by the writer's name and the entry's
number.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

from velaray.broker.audit.topic import ensure_audit_topic
from velaray.broker.partition.messages import Append
from velaray.events.backoff import Backoff
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import AuditSettings
from velaray.topology.rpc import reason_of
from velaray.topology.transient import TRANSIENT_OR_STORE
from velaray.wire.messages import build_entry
from velaray.wire.pulsar_pb2 import MessageMetadata

logger = logging.getLogger(__name__)

MOST_WAITING = 1000
"""Records that may wait for the log before new changes are refused at once."""
ENTRY_RECORDS = 100
"""The most records of an entry."""
TRY_S = 5.0
"""The time limit of one attempt."""
FLUSH_S = 2.0
"""How long `AuditWriter.close` waits for the log."""

Record = Mapping[str, Any]


class AuditAway(Exception):
    """The audit log hasn't confirmed a record in time."""


class AuditWriter:
    """Writes the records of a process in order."""

    def __init__(self, actor_system: ActorSystem, settings: AuditSettings) -> None:
        self._actor_system = actor_system
        self._settings = settings
        self._producer = f"audit-of:{secrets.token_hex(8)}"
        self._entries = 0
        self._waiting: deque[tuple[Record, asyncio.Future[None]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._key: ActorKey | None = None
        self._problem = "it hasn't answered yet"

    @property
    def full(self) -> bool:
        """Whether too many records wait for the log."""
        return len(self._waiting) >= MOST_WAITING

    @property
    def problem(self) -> str:
        """Why records wait."""
        return f"the audit log doesn't take records: {self._problem}"

    def add(self, record: Record) -> asyncio.Future[None]:
        """Have a record written after the earlier ones. The result is set when it is durable.

        It stays in memory until the log takes it, or until the process ends.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write())
        return done

    async def confirmed(self, done: asyncio.Future[None], within_s: float) -> None:
        """Wait until a record of `add` is durable. Raises `AuditAway` after that time."""
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(done)
        except TimeoutError as error:
            raise AuditAway(self.problem) from error

    async def close(self) -> None:
        """Write what waits, within a limited time, and stop."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=FLUSH_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self) -> None:
        while self._waiting:
            batch = list(islice(self._waiting, ENTRY_RECORDS))
            self._entries += 1
            await self._append([record for record, _ in batch])
            for _, done in batch:
                self._waiting.popleft()
                done.set_result(None)

    async def _append(self, records: list[Record]) -> None:
        """Store one entry, however long it takes."""
        metadata = MessageMetadata(
            producer_name=self._producer,
            sequence_id=self._entries,
            publish_time=self._actor_system.clock_ms(),
        )
        entry = build_entry(metadata, json.dumps(records).encode())
        backoff: Backoff = self._actor_system.backoff()
        while True:
            try:
                if self._key is None:
                    self._key = await ensure_audit_topic(self._actor_system, self._settings)
                append = Append(self._producer, self._entries, entry, 1)
                await self._actor_system.request(self._key, append, TRY_S)
            except TRANSIENT_OR_STORE as error:
                self._key, self._problem = None, reason_of(error)
                logger.warning("%d audit records wait: %s", len(self._waiting), self._problem)
                await backoff.wait()
            else:
                return
