"""Series of commits of the synchronous client."""

from __future__ import annotations

from collections.abc import Iterable

from velaray.client.commit_sequence import CommitSequence as AioCommitSequence
from velaray.events.ids import TransactionId
from velaray.sync.loop import LoopThread
from velaray.sync.transaction import Transaction


class CommitSequence:
    """Commits that are numbered and count once, as `velaray.client.commit_sequence.CommitSequence`.

    Made by `velaray.Client.commit_sequence`. Methods wait, and raise as those of its asyncio twin.
    """

    def __init__(self, thread: LoopThread, inner: AioCommitSequence) -> None:
        self._thread = thread
        self._inner = inner

    @property
    def name(self) -> str:
        """What it is called."""
        return self._inner.name

    @property
    def coordinator(self) -> int:
        """The number of its coordinator."""
        return self._inner.coordinator

    @property
    def last(self) -> int:
        """The number of the last commit, as far as this client knows; -1 if there was none."""
        return self._inner.last

    def begin(self, timeout: float = 60.0, number: int | None = None) -> Transaction:
        """Begin a transaction for this number of the series; by default for the next one."""
        return Transaction(self._thread, self._thread.run(self._inner.begin(timeout, number)))

    def commit(self, number: int, transactions: Iterable[TransactionId]) -> bool:
        """Commit all of these as ``number``; False if it was committed before."""
        return self._thread.run(self._inner.commit(number, transactions))

    def abort(self, transactions: Iterable[TransactionId]) -> None:
        """Abort those of these that are open: they never count. Others stay as they are."""
        self._thread.run(self._inner.abort(transactions))

    def forget(self) -> None:
        """The series is over: the service forgets its name and numbers, and aborts what is open."""
        self._thread.run(self._inner.forget())

    def __repr__(self) -> str:
        return repr(self._inner)
