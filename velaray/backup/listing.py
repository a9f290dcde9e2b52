"""The listing of a backup: its journals, and where the bytes of their ledgers are.

::

    backups/<number>/begun                   a backup of this number was begun
    backups/<number>/complete                its listing: the backup is complete
    parts/<ledger id>/<start>-<random>       a run of a ledger's bytes, shared by backups
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from velaray.backup.blobs import Blobs
from velaray.journal.errors import CorruptJournal, JournalError, UnsupportedFormat
from velaray.journal.objects.bodies import decode_record, encode_record

FORMAT_VERSION: Final = 1
BACKUPS: Final = "backups"
PARTS: Final = "parts"
_BEGUN: Final = "begun"
_COMPLETE: Final = "complete"
_NAME: Final = re.compile(rf"{BACKUPS}/(\d+)/({_BEGUN}|{_COMPLETE})")
_MAGIC: Final = b"\x89VBACKU"
_DIGEST: Final = 32


class NoBackup(JournalError):
    """The place has no complete backup, or not the wanted one."""


class Interrupted(JournalError):
    """The backup isn't complete: it was interrupted, or it is still being made."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """An object with ``length`` bytes of a ledger from ``start`` on, and their SHA-256."""

    start: int
    length: int
    name: str
    digest: bytes

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A ledger in a backup: its first ``size`` bytes, in ``parts`` without gaps. The last part may
    go on behind them. ``salt`` is that of its header: it tells ledgers of one id apart."""

    ledger_id: int
    salt: bytes
    size: int
    parts: tuple[StoredPart, ...]


@dataclass(frozen=True, slots=True)
class StoredJournal:
    """A journal in a backup: its manifest, whose ledgers are all sealed, and their bytes."""

    manifest: bytes
    ledgers: Mapping[int, StoredLedger] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listing:
    """A complete backup. Times are milliseconds since 1970.

    The journals are as they were at ``moment_ms``. ``records`` have manifests that aren't those of
    journals. ``numbers`` were taken by journals so far. ``left_out`` are journals that were deleted
    just after the moment, before they could be copied.
    """

    number: int
    began_ms: int
    moment_ms: int
    completed_ms: int
    numbers: int
    records: Mapping[str, bytes]
    journals: Mapping[str, StoredJournal]
    left_out: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The stored form."""
        body = encode_record(
            FORMAT_VERSION,
            *(self.number, self.began_ms, self.moment_ms, self.completed_ms, self.numbers),
            dict(self.records),
            [[key, each.manifest, _rows(each)] for key, each in self.journals.items()],
            list(self.left_out),
        )
        return _MAGIC + sha256(body).digest() + body

    def parts(self) -> Iterable[StoredPart]:
        """The parts of all ledgers."""
        for journal in self.journals.values():
            for ledger in journal.ledgers.values():
                yield from ledger.parts


def _rows(journal: StoredJournal) -> list[Any]:
    return [
        [each.ledger_id, each.salt, each.size, [_part_row(part) for part in each.parts]]
        for each in journal.ledgers.values()
    ]


def _part_row(part: StoredPart) -> list[Any]:
    return [part.start, part.length, part.name, part.digest]


def decode_listing(place: str, raw: bytes) -> Listing:
    """Read what `Listing.encode` wrote. Raises `CorruptJournal`, `UnsupportedFormat`."""
    start = len(_MAGIC) + _DIGEST
    if not raw.startswith(_MAGIC):
        raise CorruptJournal(place, 0, "not the listing of a backup")
    if sha256(raw[start:]).digest() != raw[len(_MAGIC) : start]:
        raise CorruptJournal(place, start, "the listing's digest is wrong")
    version, *fields = decode_record(place, memoryview(raw)[start:])
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(place, version)
    number, began_ms, moment_ms, completed_ms, numbers, records, journals, left_out = fields
    return Listing(
        *(number, began_ms, moment_ms, completed_ms, numbers, records),
        {key: StoredJournal(manifest, _ledgers(rows)) for key, manifest, rows in journals},
        tuple(left_out),
    )


def _ledgers(rows: list[Any]) -> dict[int, StoredLedger]:
    return {
        ledger_id: StoredLedger(ledger_id, salt, size, tuple(StoredPart(*part) for part in parts))
        for ledger_id, salt, size, parts in rows
    }


# -- the backups of a place --------------------------------------------------------


async def numbers_of(blobs: Blobs) -> dict[int, bool]:
    """The numbers of all backups, ascending, and whether each is complete."""
    found: dict[int, bool] = {}
    for name in await blobs.list(BACKUPS):
        if (parsed := _NAME.fullmatch(name)) is None:
            raise NoBackup(f"{blobs.location(name)}: not a file of backups; give another place")
        number = int(parsed[1])
        found[number] = found.get(number, False) or parsed[2] == _COMPLETE
    return dict(sorted(found.items()))


async def read_listing(blobs: Blobs, number: int | None = None) -> Listing:
    """The listing of a backup (None: the newest complete one).

    Raises `NoBackup`, `Interrupted`, `CorruptJournal`, `UnsupportedFormat`.
    """
    known = await numbers_of(blobs)
    complete = [each for each, is_complete in known.items() if is_complete]
    place = blobs.location(BACKUPS)
    if number is None and known and not complete:
        raise _interrupted(place, max(known), None)
    if number is None and not complete:
        raise NoBackup(f"{place}: there is no backup")
    wanted = complete[-1] if number is None else number
    if wanted not in known:
        numbers = ", ".join(map(str, complete)) or "none"
        raise NoBackup(f"{place}: there is no backup {wanted}; the complete ones: {numbers}")
    name = _name(wanted, _COMPLETE)
    raw = await blobs.get(name)
    if raw is None:
        raise _interrupted(place, wanted, complete[-1] if complete else None)
    return decode_listing(blobs.location(name), raw)


def _interrupted(place: str, number: int, newest: int | None) -> Interrupted:
    other = "there is no complete one" if newest is None else f"the newest complete one is {newest}"
    return Interrupted(f"{place}: backup {number} was interrupted or isn't ready yet; {other}")


async def write_begun(blobs: Blobs, number: int) -> None:
    """Record that a backup begins. Raises `BlobExists` if another one has the number."""
    await blobs.create(_name(number, _BEGUN), b"begun")


async def write_listing(blobs: Blobs, listing: Listing) -> None:
    """Complete a backup, durably."""
    await blobs.create(_name(listing.number, _COMPLETE), listing.encode())


def _name(number: int, kind: str) -> str:
    return f"{BACKUPS}/{number:08}/{kind}"
