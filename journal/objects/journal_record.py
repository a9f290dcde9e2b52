"""The object that every journal has: its manifest, its owner, and the places of its bytes.

It is replaced by compare-and-set only. `Tail` names the log that holds the journal's newest bytes,
from a number on; `Part` names an object with a run of bytes of one ledger. A reader takes the parts
and then the frames of the tail's epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from velaray.journal.objects.bodies import Kind, decode_body, decode_record, encode_record
from velaray.journal.paths import directory_of, journal_of

JOURNALS: Final = "journals"
LEDGERS: Final = "ledgers"
_RECORD: Final = "+record"
"""No part of a journal's name is so, and no object's name is another's folder."""


class Status(StrEnum):
    """The owner's state."""

    OPENING = "opening"
    """It took the journal and hasn't listed a ledger of its own: the tail is its predecessor's."""
    OPEN = "open"
    CLOSED = "closed"


class Tail(NamedTuple):
    """The frames of ``epoch`` in a log, in the objects from ``first`` on; below ``end`` if its
    owner closed the journal (else ``end`` is -1, and the log's SEAL ends them)."""

    incarnation: str
    first: int
    epoch: int
    end: int = -1


class Part(NamedTuple):
    """An object with ``length`` bytes of a ledger from ``start`` on."""

    start: int
    length: int
    name: str


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """The content of the object. ``version`` is the manifest's; ``revision`` counts every write.
    ``listed`` are the ledgers that the manifest lists, ``parts`` the places of their bytes, in
    order; bytes behind them are in the tail's log."""

    version: int
    revision: int
    epoch: int
    owner: str
    status: Status
    tail: Tail | None
    listed: frozenset[int]
    parts: Mapping[int, tuple[Part, ...]]
    manifest: bytes

    def is_same_write(self, other: JournalRecord) -> bool:
        """Whether both are one write. The tags don't tell: a store may answer a read with the
        former tag."""
        return (self.revision, self.epoch, self.owner) == (
            other.revision,
            other.epoch,
            other.owner,
        )

    def encode(self) -> bytes:
        """The object's payload."""
        return encode_record(
            self.version,
            self.revision,
            self.epoch,
            self.owner,
            str(self.status),
            list(self.tail) if self.tail else None,
            sorted(self.listed),
            [[ledger_id, [list(part) for part in parts]] for ledger_id, parts in self._rows()],
            self.manifest,
        )

    def _rows(self) -> list[tuple[int, tuple[Part, ...]]]:
        return sorted(self.parts.items())

    def listing(self, ledger_ids: frozenset[int]) -> JournalRecord:
        """The record that lists these ledgers, without the parts of others."""
        kept = {number: parts for number, parts in self.parts.items() if number in ledger_ids}
        return replace(self, listed=ledger_ids, parts=kept)


def decode_journal_record(name: str, place: str, raw: bytes) -> JournalRecord:
    """Read the object with `JournalRecord.encode`'s payload. Raises `CorruptJournal`,
    `UnsupportedFormat`."""
    body = decode_body(name, place, raw, Kind.MANIFEST)
    version, revision, epoch, owner, status, tail, listed, parts, manifest = decode_record(
        place, body.payload
    )
    return JournalRecord(
        version,
        revision,
        epoch,
        owner,
        Status(status),
        Tail(*tail) if tail else None,
        frozenset(listed),
        {ledger_id: tuple(Part(*row) for row in rows) for ledger_id, rows in parts},
        manifest,
    )


def record_object(journal: str) -> str:
    """The name of the journal's record. Raises `UnsafeKey`."""
    return f"{JOURNALS}/{directory_of(journal)}/{_RECORD}"


def journals_of_records(names: Iterable[str]) -> list[str]:
    """The journals whose records are among the objects of these names, in order."""
    folders = (name.removeprefix(f"{JOURNALS}/").rpartition("/") for name in names)
    return sorted(journal_of(folder) for folder, _, last in folders if last == _RECORD)


def ledger_prefix(journal: str, ledger_id: int | None = None) -> str:
    """The beginning of the names of a ledger's objects, or of those of all ledgers of a journal."""
    ledgers = f"{LEDGERS}/{directory_of(journal)}/"
    return ledgers if ledger_id is None else f"{ledgers}{ledger_id}/"


def part_object(journal: str, ledger_id: int, epoch: int, start: int, write_id: bytes) -> str:
    """The name of a part. No other write has the same one."""
    return f"{ledger_prefix(journal, ledger_id)}{epoch}-{start}-{write_id.hex()}"


def index_object(journal: str, ledger_id: int) -> str:
    """The name of a ledger's index."""
    return f"{ledger_prefix(journal, ledger_id)}index"
