"""Commit sequences of the synchronous client."""

from __future__ import annotations

from velaray.client.commit_sequence import CommitSequence as AioCommitSequence
from velaray.sync.face import Face, blocking
from velaray.sync.transaction import Transaction


class CommitSequence(Face[AioCommitSequence]):
    """Numbered idempotent commits, as `velaray.client.commit_sequence.CommitSequence`.

    Created by `velaray.Client.commit_sequence`. Methods block, and raise as those of the asyncio
    class.
    """

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
        return Transaction(self._thread, self._run(self._inner.begin(timeout, number)))

    commit = blocking(AioCommitSequence.commit)
    abort = blocking(AioCommitSequence.abort)
    forget = blocking(AioCommitSequence.forget)
