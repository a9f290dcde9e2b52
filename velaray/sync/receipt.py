"""Receipts of ``send_async``: futures that are cheap until they are used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from velaray.client.enums import Result
from velaray.client.exceptions import VelarayError
from velaray.client.message_id import MessageId
from velaray.events.ids import MessageId as StoredId

Callback = Callable[[Result, MessageId | None], object]
"""The callback of ``send_async``, called with the outcome."""


class Shipment:
    """Messages that share an entry and therefore a receipt. Completed once.

    ``lock`` guards the fields and is held only briefly.
    """

    __slots__ = ("_awaited", "_lock", "_stored", "_topic", "_where", "count", "error", "finished")

    def __init__(self, lock: threading.Lock) -> None:
        self.count = 0
        self.finished = False
        self.error: VelarayError | None = None
        self._lock = lock
        self._awaited: list[Receipt] = []
        self._stored: StoredId | None = None
        self._topic = ""
        self._where = -1

    def stored(self, stored: StoredId, topic: str, partition: int) -> None:
        """Record that all messages are stored in this entry."""
        self._stored, self._topic, self._where = stored, topic, partition
        self._finish()

    def failed(self, error: VelarayError) -> None:
        """Record that the messages failed; whether they are stored may be unknown."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            self.finished = True
            awaited, self._awaited = self._awaited, []
        for receipt in awaited:
            receipt.complete()

    def message_id(self, index: int) -> MessageId:
        """The id of a stored message."""
        assert self._stored is not None
        return MessageId(
            self._where,
            self._stored.ledger_id,
            self._stored.entry_id,
            index,
            batch_size=self.count,
            topic=self._topic,
        )

    def awaits(self, receipt: Receipt) -> bool:
        """Make ``receipt`` a full future, unless it is; True if it can be completed now."""
        with self._lock:
            if receipt.full:
                return False
            Future.__init__(receipt)
            if not self.finished:
                self._awaited.append(receipt)
            return self.finished


_PARTS = frozenset(vars(Future()))


class Receipt(Future[MessageId]):
    """The future id of one message. Behaves as any `concurrent.futures.Future`.

    The parts of a future (a lock, a condition, lists) are created when a thread waits for it or
    uses more than `done`. Until then it only holds its place in a shipment. Cancelling it doesn't
    cancel the message.
    """

    def __init__(self, shipment: Shipment, index: int) -> None:
        self._shipment = shipment
        self._index = index

    @property
    def full(self) -> bool:
        """Whether the parts of a future have been created."""
        return "_state" in self.__dict__

    def __getattr__(self, name: str) -> Any:
        if name not in _PARTS:
            raise AttributeError(f"a receipt has no attribute {name!r}")
        if self._shipment.awaits(self):
            self.complete()
        return self.__dict__[name]

    def complete(self) -> None:
        """Complete the future after its shipment has finished."""
        if not self.set_running_or_notify_cancel():
            return
        if self._shipment.error is not None:
            self.set_exception(self._shipment.error)
        else:
            self.set_result(self._shipment.message_id(self._index))

    def done(self) -> bool:
        """Whether the message is stored, or has failed."""
        return self._shipment.finished or (self.full and super().done())

    def result(self, timeout: float | None = None) -> MessageId:
        """The id of the stored message; raises the error if it isn't stored."""
        shipment = self._shipment
        if shipment.finished and shipment.error is None and not self.full:
            return shipment.message_id(self._index)
        return super().result(timeout)
