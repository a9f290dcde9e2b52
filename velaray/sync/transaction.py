"""Transactions of the synchronous client."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from velaray.client.enums import TransactionState
from velaray.client.exceptions import InvalidConfiguration
from velaray.client.transactions import Transaction as AioTransaction
from velaray.events.ids import TransactionId
from velaray.sync.loop import LoopThread


def inner_of(txn: Transaction) -> AioTransaction:
    """Its asyncio twin. Raises `InvalidConfiguration` for anything but such a transaction."""
    if not isinstance(txn, Transaction):
        raise InvalidConfiguration(f"txn must be what Client.transaction returned: {txn!r}")
    return txn.inner


class Transaction:
    """Messages and acknowledgements that count all together, or not at all.

    Made by `velaray.Client.transaction`; pass it to what sends and acknowledges. As a context
    manager it commits on leaving, and aborts if an exception leaves. After its timeout it is
    aborted, by the service as well; so is one whose client is shut down, or dies. Closing the
    client in good order aborts what is open at once. Methods wait, and raise as those of its
    asyncio twin.
    """

    def __init__(self, thread: LoopThread, inner: AioTransaction) -> None:
        self._thread = thread
        self.inner = inner

    @property
    def txn_id(self) -> TransactionId:
        """Its id: the coordinator's number, and its sequence there."""
        return self.inner.txn_id

    @property
    def state(self) -> TransactionState:
        """Where it is, as far as this client knows."""
        return self.inner.state

    def commit(self) -> None:
        """As `velaray.aio.Transaction.commit`."""
        self._thread.run(self.inner.commit())

    def prepare(self) -> TransactionId:
        """As `velaray.aio.Transaction.prepare`."""
        return self._thread.run(self.inner.prepare())

    def abort(self) -> None:
        """As `velaray.aio.Transaction.abort`."""
        self._thread.run(self.inner.abort())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.run(self.inner.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self.inner)
