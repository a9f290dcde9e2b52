"""Transactions of handles: open ones by id, and their calls under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any, TypeVar

from velaray.client.client import Client
from velaray.client.exceptions import TransactionCoordinatorNotFoundError, TransactionNotFound
from velaray.client.transactions import Coordinators, Transaction
from velaray.events.ids import TransactionId

T = TypeVar("T")


class _Open:
    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.calls: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call. If it fails, the transaction isn't committed."""
        call = asyncio.get_running_loop().create_task(self.transaction.run(work))
        self.calls.add(call)
        call.add_done_callback(self.calls.discard)
        return await asyncio.shield(call)

    async def settle(self) -> None:
        """Wait for the calls. The transaction stays open: a call may have yet to use it."""
        while self.calls:
            await asyncio.wait(self.calls)


class HandleTransactions:
    """The transactions that handles have begun."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._open: dict[TransactionId, _Open] = {}

    @cached_property
    def _coordinators(self) -> Coordinators:
        return Coordinators(self._client.core)

    async def check(self, coordinator: int) -> None:
        """Raise `TransactionCoordinatorNotFoundError` if there is no coordinator of this number."""
        count = await self._coordinators.count()
        if not 0 <= coordinator < count:
            raise TransactionCoordinatorNotFoundError(
                f"there is no coordinator {coordinator}: they are 0 to {count - 1}"
            )

    async def begin(self, coordinator: int, timeout_s: float) -> TransactionId:
        """Begin a transaction. Raises what `check` raises."""
        await self.check(coordinator)
        begun = await self._coordinators.begin_at(coordinator, timeout_s)
        self._open[begun.txn_id] = _Open(begun)
        begun.when_ended(lambda committed: self._open.pop(begun.txn_id, None))
        return begun.txn_id

    async def within(
        self,
        txn: TransactionId | None,
        work: Callable[[Transaction | None], Coroutine[Any, Any, T]],
    ) -> T:
        """Run a call, in the transaction of this id if there is one.

        From now on the end of the transaction waits for the call. Raises `TransactionNotFound`.
        """
        if txn is None:
            return await work(None)
        found = self._find(txn)
        return await found.run(work(found.transaction))

    async def end(self, txn: TransactionId, *, commit: bool) -> None:
        """Commit or abort, once the calls under way have ended. Raises `TransactionNotFound`, and
        what `Transaction.commit` or `Transaction.abort` raises."""
        found = self._find(txn)
        await found.settle()
        await (found.transaction.commit() if commit else found.transaction.abort())

    def _find(self, txn: TransactionId) -> _Open:
        if txn not in self._open:
            raise TransactionNotFound(
                f"transaction {txn} isn't open here: it has ended, or the actor of the handles has "
                "restarted since, and it ends by its timeout"
            )
        return self._open[txn]
