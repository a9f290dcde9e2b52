"""Notes in the history about the transactions of a run's clients. Nothing is judged here.

``txn begun``, ``txn asked`` (to commit or abort), ``txn answered``: ``done`` is the answer to the
client, True for committed, False for aborted, None without an answer. ``txn failed``: an operation
in it failed, so its client must not commit it.
"""

from __future__ import annotations

import asyncio
from random import Random

from tests.sim.history import History
from tests.sim.workload import Shared
from velaray.aio import Client, Transaction
from velaray.client.enums import TransactionState
from velaray.client.exceptions import (
    InvalidTxnStatusError,
    TransactionHasOperationFailed,
    TransactionNotFound,
    VelarayError,
)
from velaray.client.transactions import Coordinators
from velaray.events.ids import TransactionId
from velaray.wire import pulsar_pb2 as pb

FORGOTTEN = "there is no such transaction"
CONTRADICTED = 0.1
"""The share of commits with a request to abort meanwhile."""


class Transacted:
    """The transactions of a run and the answers to their clients; outlives all clients."""

    def __init__(self, history: History) -> None:
        self.history = history
        #: Transactions whose end may be requested again: whether their client wanted to commit,
        #: and whether it got an answer.
        self.asked: dict[TransactionId, tuple[bool, bool]] = {}
        #: Transactions that a client is committing or aborting, for the script that contradicts it.
        self.asking: asyncio.Queue[tuple[TransactionId, bool]] = asyncio.Queue()

    async def begin(self, client: Client, by: str, timeout_s: float) -> Transaction:
        """Begin one. Raises `VelarayError`."""
        txn = await client.new_transaction(timeout_s)
        self.history.add("txn begun", txn=str(txn.txn_id), by=by, timeout_s=timeout_s)
        return txn

    def failed(self, txn: Transaction, what: str, error: Exception) -> None:
        """Note that an operation in it failed. An operation that began too late isn't in it."""
        if isinstance(error, InvalidTxnStatusError):
            return
        text = f"{type(error).__name__}: {error}"
        self.history.add("txn failed", txn=str(txn.txn_id), what=what, error=text)

    async def end(self, txn: Transaction, commit: bool) -> bool | None:
        """Commit or abort; the verdict, None if it isn't known.

        A transaction that timed out at its client is left to its coordinator, without a request.
        """
        if txn.state == TransactionState.TIME_OUT:
            return None
        self._asks(txn.txn_id, commit)
        self.asking.put_nowait((txn.txn_id, commit))
        verdict: bool | None = None
        error = ""
        try:
            await (txn.commit() if commit else txn.abort())
            verdict = commit
        except TransactionHasOperationFailed as failure:
            verdict, error = False, str(failure)
        except VelarayError as failure:
            error = f"{type(failure).__name__}: {failure}"
            if txn.state == TransactionState.ERROR:  # its coordinator says so
                verdict = None if isinstance(failure, TransactionNotFound) else not commit
                error = FORGOTTEN if verdict is None else error
        wanted = txn.state in (TransactionState.COMMITTING, TransactionState.COMMITTED)
        self.asked[txn.txn_id] = (wanted if verdict is None else verdict, verdict is not None)
        self._is_told(txn.txn_id, commit, verdict, error)
        return verdict

    async def end_for_sure(self, txn: Transaction, commit: bool) -> bool:
        """Repeat `end` until the answer is known; a timed-out transaction counts as aborted."""
        while txn.state not in (TransactionState.TIME_OUT, TransactionState.ERROR):
            verdict = await self.end(txn, commit)
            if verdict is not None:
                return verdict
            commit = commit and txn.state != TransactionState.ABORTING
        return False

    async def ask_again(self, client: Client, txn: TransactionId, commit: bool) -> None:
        """Repeat a request for a verdict, as after a lost answer."""
        action = pb.COMMIT if commit else pb.ABORT
        command = pb.CommandEndTxn(
            txnid_most_bits=txn.coordinator, txnid_least_bits=txn.sequence, txn_action=action
        )
        self._asks(txn, commit)
        verdict: bool | None = None
        error = ""
        try:
            await Coordinators(client._live()).request(txn.coordinator, lambda: command)
            verdict = commit
        except InvalidTxnStatusError as failure:
            verdict, error = not commit, str(failure)
        except TransactionNotFound:
            error = FORGOTTEN
        except VelarayError as failure:
            error = f"{type(failure).__name__}: {failure}"
        self._is_told(txn, commit, verdict, error)

    def _asks(self, txn: TransactionId, commit: bool) -> None:
        self.history.add("txn asked", txn=str(txn), commit=commit)

    def _is_told(self, txn: TransactionId, commit: bool, verdict: bool | None, error: str) -> None:
        told = {"commit": commit, "done": verdict, "error": error}
        self.history.add("txn answered", txn=str(txn), **told)


class AskingScript:
    """Repeats requests to end transactions; in the calm, for every transaction that a client ended.
    Where the client got an answer, the script requests the opposite as well. Meanwhile it
    contradicts some clients: it requests an abort of transactions that they are committing."""

    def __init__(self, shared: Shared, transacted: Transacted, rng: Random) -> None:
        self._shared = shared
        self._transacted = transacted
        self._rng = rng

    async def run(self, client: Client) -> None:
        """Returns when all answers are known."""
        known = self._transacted.asked
        while not self._shared.draining.is_set():
            await self._contradict(client, self._rng.random() * 2)
            if known:
                txn = self._rng.choice(list(known))
                wanted, told = known[txn]
                opposite = told and self._rng.random() < 0.5
                await self._transacted.ask_again(client, txn, wanted is not opposite)
        for txn, (wanted, told) in list(known.items()):
            await self._transacted.ask_again(client, txn, wanted)
            if told:
                await self._transacted.ask_again(client, txn, not wanted)

    async def _contradict(self, client: Client, for_s: float) -> None:
        """Ask to abort some of what clients begin to commit."""
        loop, asking = asyncio.get_running_loop(), self._transacted.asking
        until = loop.time() + for_s
        while loop.time() < until:
            try:
                async with asyncio.timeout_at(until):
                    txn, wanted = await asking.get()
            except TimeoutError:
                return
            # A client may abort because an operation in the transaction failed.
            if wanted and self._rng.random() < CONTRADICTED:
                await asyncio.sleep(self._rng.random() * 0.02)
                await self._transacted.ask_again(client, txn, commit=False)
