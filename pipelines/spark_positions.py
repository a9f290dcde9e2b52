"""Positions in topics, in the form of Spark's offsets and options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from velaray import MessageId
from velaray.client.exceptions import InvalidConfiguration
from velaray.events.ids import TopicName

_ID = re.compile(r"(\d+):(\d+)(?::(-?\d+))?")


class Place(NamedTuple):
    """A position after an entry; before the first entry of its ledger if ``entry`` is -1."""

    ledger: int
    entry: int

    @staticmethod
    def of(message_id: MessageId) -> Place:
        """The position after the whole entry of a message."""
        return Place(message_id.ledger_id(), message_id.entry_id())

    @staticmethod
    def parse(text: str) -> Place:
        """Read the form of ``str``."""
        ledger, entry = text.split(":")
        return Place(int(ledger), int(entry))

    def message_id(self, partition: int) -> MessageId:
        """The id after which a reader at this position begins: the end of the entry's batch."""
        whole = MessageId(partition, *self, batch_index=_END_OF_BATCH)
        return whole if self.ledger >= 0 else MessageId.earliest

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


_END_OF_BATCH = (1 << 31) - 1
BEGINNING = Place(-1, -1)
Positions: TypeAlias = Mapping[str, Place]
"""The position of each partition, by its full name; the messages after it are unread."""


def number_of(partition: str) -> int:
    """The partition's number, -1 for a topic that has no partitions."""
    return TopicName.parse(partition).partition


@dataclass(frozen=True)
class Start:
    """The start of a query: an end of its topics, a publish time, or messages."""

    text: str
    end: MessageId = MessageId.earliest
    time: int | None = None
    ids: Mapping[int, Place] | None = None

    @staticmethod
    def parse(text: str) -> Start:
        """Read an option. Raises `InvalidConfiguration`."""
        if text.lower() == "earliest":
            return Start(text)
        if text.lower() == "latest":
            return Start(text, MessageId.latest)
        found = [_ID.fullmatch(each.strip()) for each in text.split(",")]
        if all(found):
            groups = [each.groups() for each in found if each]
            ids = {int(part or -1): Place(int(ledger), int(at) - 1) for ledger, at, part in groups}
            if len(ids) == len(found):
                return Start(text, ids=ids)
        try:
            time = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidConfiguration(
                f"{text!r} isn't a position: give earliest, latest, ledger:entry:partition (one"
                " for each partition, with commas) or an ISO timestamp"
            ) from error
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return Start(text, time=round(time.timestamp() * 1000))

    def check(self, partitions: Iterable[str]) -> None:
        """Raise `InvalidConfiguration` unless every partition has a position."""
        names = list(partitions)
        if self.ids is not None and sorted(map(number_of, names)) != sorted(self.ids):
            raise InvalidConfiguration(
                f"{self.text!r}: give one position for each of {', '.join(names)}"
            )

    def target(self, partition: str) -> MessageId | int:
        """The target for ``seek``."""
        if self.time is not None:
            return self.time
        if self.ids is not None:
            number = number_of(partition)
            return self.ids[number].message_id(number)
        return self.end

    def place(self, partition: str, last: Place, sought: Callable[[int], Place]) -> Place:
        """Return the position of this start in a partition that ends with ``last``.

        ``sought`` looks up the position before a publish time.
        """
        if self.time is not None:
            return min(last, sought(self.time))
        if self.ids is not None:
            return min(last, self.ids[number_of(partition)])
        return last if self.end == MessageId.latest else BEGINNING
