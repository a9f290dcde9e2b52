"""The result of ``send_many``, and the entries in the error after a partial failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from velaray.client.message_id import MessageId


class SentEntry(NamedTuple):
    """One entry with messages of a ``send_many``: its position, and the rows of the values."""

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    rows: Sequence[int]

    def message_ids(self) -> list[MessageId]:
        """The ids of its messages, in the order of `rows`."""
        size = len(self.rows)
        return [
            MessageId(
                self.partition,
                self.ledger_id,
                self.entry_id,
                index,
                batch_size=size,
                topic=self.topic,
            )
            for index in range(size)
        ]


class SentBatch:
    """The receipts of a ``send_many``: every value is stored durably.

    `entries` contains the positions by entry; `message_ids` makes an id for each value.
    """

    __slots__ = ("_size", "entries")

    def __init__(self, entries: list[SentEntry]) -> None:
        self.entries = entries
        self._size = sum(len(entry.rows) for entry in entries)

    def __len__(self) -> int:
        return self._size

    def message_ids(self) -> list[MessageId]:
        """The id of each value, in the order of the values."""
        ids: dict[int, MessageId] = {}
        for entry in self.entries:
            ids.update(zip(entry.rows, entry.message_ids(), strict=True))
        return [ids[row] for row in sorted(ids)]

    def __repr__(self) -> str:
        return f"<SentBatch of {self._size} messages in {len(self.entries)} entries>"
