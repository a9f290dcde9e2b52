"""Transactions of the synchronous client."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from velaray.client.enums import TransactionState
from velaray.client.exceptions import InvalidConfiguration
from velaray.client.transactions import Transaction as AioTransaction
from velaray.events.ids import TransactionId
from velaray.sync.face import Face, blocking


def inner_of(txn: Transaction) -> AioTransaction:
    """The asyncio transaction of ``txn``. Raises `InvalidConfiguration` for other types."""
    if not isinstance(txn, Transaction):
        raise InvalidConfiguration(f"txn must be what Client.transaction returned: {txn!r}")
    return txn.inner


class Transaction(Face[AioTransaction]):
    """Messages and acknowledgements that take effect together or not at all.

    Created by `velaray.Client.transaction`. Pass it to the methods that send and acknowledge. As a
    context manager it commits on normal exit and aborts on an exception. The service aborts it
    after its timeout, also when its client is shut down or crashes. Closing the client gracefully
    aborts its open transactions at once. Methods block, and raise as those of the asyncio class.
    """

    @property
    def inner(self) -> AioTransaction:
        """The asyncio transaction; not for users."""
        return self._inner

    @property
    def txn_id(self) -> TransactionId:
        """The transaction's id: the coordinator's number, and a sequence number there."""
        return self._inner.txn_id

    @property
    def state(self) -> TransactionState:
        """The state of the transaction that this client knows."""
        return self._inner.state

    commit = blocking(AioTransaction.commit)
    prepare = blocking(AioTransaction.prepare)
    abort = blocking(AioTransaction.abort)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))
