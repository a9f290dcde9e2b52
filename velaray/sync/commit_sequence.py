"""Commit sequences of the synchronous client."""

from __future__ import annotations

from collections.abc import Iterable

from velaray.client.commit_sequence import CommitSequence as AioCommitSequence
from velaray.events.ids import TransactionId
from velaray.sync.loop import LoopThread
from velaray.sync.transaction import Transaction


class CommitSequence:
    """Numbered idempotent commits, as `velaray.client.commit_sequence.CommitSequence`.

    Created by `velaray.Client.commit_sequence`. Methods block, and raise as those of the asyncio
    class.
    """

    def __init__(self, thread: LoopThread, inner: AioCommitSequence) -> None:
        self._thread = thread
        self._inner = inner

    @property
    def name(self) -> str:
        """The name of the sequence."""
        return self._inner.name

    @property
    def coordinator(self) -> int:
        """The number of its coordinator."""
        return self._inner.coordinator

    @property
    def last(self) -> int:
        """The number of the last commit known to this client; -1 if there was none."""
        return self._inner.last

    def begin(self, timeout: float = 60.0, number: int | None = None) -> Transaction:
        """Begin a transaction for this number of the sequence; by default for the next one."""
        return Transaction(self._thread, self._thread.run(self._inner.begin(timeout, number)))

    def commit(self, number: int, transactions: Iterable[TransactionId]) -> bool:
        """Commit these transactions as ``number``; False if that number was committed before."""
        return self._thread.run(self._inner.commit(number, transactions))

    def abort(self, transactions: Iterable[TransactionId]) -> None:
        """Abort the open ones of these transactions permanently; others stay unchanged."""
        self._thread.run(self._inner.abort(transactions))

    def forget(self) -> None:
        """Delete the sequence, its name and its numbers; open transactions are aborted."""
        self._thread.run(self._inner.forget())

    def __repr__(self) -> str:
        return repr(self._inner)
