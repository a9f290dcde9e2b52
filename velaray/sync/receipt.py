"""What ``send_async`` hands out: a future that costs next to nothing until it's used."""

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
"""What ``send_async`` calls with the outcome."""


class Shipment:
    """Messages that share a receipt, since they share an entry. Completed once.

    ``lock`` guards what is known here and is held for moments only.
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
        """All messages are stored, in this entry."""
        self._stored, self._topic, self._where = stored, topic, partition
        self._finish()

    def failed(self, error: VelarayError) -> None:
        """No message is stored, as far as is known."""
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

    What a future consists of (a lock, a condition, lists) is made when somebody waits for
    it or asks more than whether it's done; until then it only knows its place in a shipment.
    Cancelling it doesn't take the message back.
    """

    def __init__(self, shipment: Shipment, index: int) -> None:
        self._shipment = shipment
        self._index = index

    @property
    def full(self) -> bool:
        """Whether it has all that a future consists of."""
        return "_state" in self.__dict__

    def __getattr__(self, name: str) -> Any:
        if name not in _PARTS:
            raise AttributeError(f"a receipt has no attribute {name!r}")
        if self._shipment.awaits(self):
            self.complete()
        return self.__dict__[name]

    def complete(self) -> None:
        """The shipment is finished: tell who waits."""
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
        """The id of the stored message; raises why it isn't stored."""
        shipment = self._shipment
        if shipment.finished and shipment.error is None and not self.full:
            return shipment.message_id(self._index)
        return super().result(timeout)
