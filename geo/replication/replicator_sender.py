"""Sends the entries of a replicator's window to the other cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from velaray.events.ids import Position, TransactionId
from velaray.geo.replication.replication_window import Window
from velaray.geo.replication.replicator_ends import Ends
from velaray.geo.replication.replicator_schemas import SchemaTarget, Translation
from velaray.geo.replication.replicator_throttle import Throttle
from velaray.geo.replication.replicator_transactions import Transactions
from velaray.wire.stamping import stamped


class EntryTarget(SchemaTarget, Protocol):
    """What the sender needs of the target."""

    @property
    def is_velaray(self) -> bool:
        """Whether the cluster runs velaray."""
        ...

    def send(self, entry: bytes, messages: int, *, is_chunk: bool) -> None:
        """Send an entry. It is confirmed unless the connection breaks first."""


class Sender:
    """Sends in order, once it has looked up what each entry needs: its schema, its transaction."""

    def __init__(
        self,
        ends: Ends,
        window: Window,
        throttle: Throttle,
        transactions: Transactions | None,
        failed: Callable[[Exception], None],
    ) -> None:
        """``failed`` is called with the error of a failed look-up. Without ``transactions``
        entries are in none."""
        self._ends = ends
        self._window = window
        self._throttle = throttle
        self._transactions = transactions
        self._failed = failed
        self._target: EntryTarget | None = None
        self._schemas: Translation
        self._learning: asyncio.Task[None] | None = None

    def connect(self, target: EntryTarget) -> None:
        """Send to this target, which is open, until `disconnect`."""
        self._target = target
        self._schemas = Translation(self._ends.schema, self._ends.key.topic_name, target)
        self.send()

    def disconnect(self) -> None:
        """Send nothing until the next `connect`."""
        self._target = None

    def close(self) -> None:
        """Send nothing more, and end what is under way."""
        self._target = None
        self._throttle.cancel()
        learning, self._learning = self._learning, None
        if learning is not None:
            learning.cancel()

    def send(self) -> None:
        """Send the entries that may be sent now."""
        while self._target is not None and not self._throttle.paused and self._learning is None:
            held = self._window.next_unsent()
            if held is None:
                return
            assert held.outgoing is not None
            entry, metadata, start = held.outgoing
            transaction = held.transaction
            if transaction is not None:
                is_of = self._is_of(transaction, held.position, self._target)
                if is_of is None:
                    return
                transaction = transaction if is_of else None
            version = metadata.schema_version
            if version:
                known = self._schemas.get(version)
                if known is None:
                    self._learn(self._schemas.learn(version, held.position))
                    return
                version = known
            self._window.sent()
            origin, at = self._ends.origin, held.position
            outgoing = stamped(entry, metadata, start, origin, at, transaction, version)
            is_chunk = metadata.num_chunks_from_msg > 1
            self._target.send(outgoing, held.messages, is_chunk=is_chunk)
            self._throttle.take(held.messages, held.size, self.send)

    def _is_of(
        self, transaction: TransactionId, position: Position, target: EntryTarget
    ) -> bool | None:
        """Whether the entry belongs to this transaction; None if that must be looked up."""
        if self._transactions is None or not target.is_velaray:
            return False
        is_of = self._transactions.is_of(transaction, position)
        if is_of is None:
            self._learn(self._transactions.learn())
        return is_of

    def _learn(self, work: Coroutine[Any, Any, None]) -> None:
        """Look up what the next entry needs, such as its schema, before it is sent."""
        learning = asyncio.ensure_future(work)
        self._learning = learning
        learning.add_done_callback(self._learnt)

    def _learnt(self, learning: asyncio.Task[None]) -> None:
        if self._learning is not learning:
            return  # it the sender is closed
        self._learning = None
        if learning.cancelled():
            return
        error = learning.exception()
        if isinstance(error, Exception):
            self._failed(error)
        else:
            self.send()
