"""The manifest: the owner of a journal and the list of its ledgers."""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

import msgpack
from crc32c import crc32c

from velaray.events.ids import LEDGER_INDEX_BITS as LEDGER_INDEX_BITS
from velaray.events.ids import NUMBER_BITS as NUMBER_BITS
from velaray.events.ids import cluster_number_of as cluster_number_of
from velaray.journal.errors import CorruptJournal, UnsupportedFormat
from velaray.journal.store import Ownership

FORMAT_VERSION: Final = 4
"""The format with encrypted ledgers. Journals without them keep `_OFFLOADED_VERSION`, and without
offloaded ones `_LOCAL_VERSION`, which older versions can open."""
_OFFLOADED_VERSION: Final = 3
_LOCAL_VERSION: Final = 2
MAX_LEDGERS: Final = 1 << LEDGER_INDEX_BITS
_MAGIC: Final = b"\x89VMANIF\n"
_HEADER: Final = struct.Struct("<8sHI")


def number_base(cluster_number: int) -> int:
    """The number after which the numbers of a cluster's journals begin."""
    return cluster_number << NUMBER_BITS


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """One ledger, as the manifest lists it.

    While a ledger is open, the manifest's ``records``, ``entries`` and ``bytes`` are those
    at its creation; `Journal.ledgers` gives the live ones. ``first_offset`` counts the
    entries (records with a blob) of the journal before this ledger, ``data_offset`` is where
    history starts in the file, behind the checkpoint. ``sealed_ms`` is 0 while open.
    ``refers_from`` is the oldest ledger that has a segment of the checkpoint. Once a ledger from
    there on is no longer listed, the checkpoint isn't ``whole``: recovery can't use it.
    ``offloaded_ms`` is the time since which the archive has a verified copy (0: none is known of).
    ``key_id`` is the id of the master key with which the ledger is encrypted ("": it isn't).
    """

    ledger_id: int
    first_sequence: int
    first_offset: int
    data_offset: int
    records: int
    entries: int
    bytes: int
    sealed: bool
    sealed_ms: int = 0
    refers_from: int = 0
    whole: bool = True
    offloaded_ms: int = 0
    key_id: str = ""

    @property
    def record_bytes(self) -> int:
        """The bytes of its records, without its checkpoint."""
        return self.bytes - self.data_offset

    @property
    def next_sequence(self) -> int:
        """The sequence of the first record after this ledger."""
        return self.first_sequence + self.records

    @property
    def next_offset(self) -> int:
        """The offset of the first entry after this ledger."""
        return self.first_offset + self.entries

    def grown(self, records: int, entries: int, end: int) -> LedgerInfo:
        """The same ledger with more records and entries, ending at ``end``. It runs once per
        commit; `replace` would be slower."""
        return LedgerInfo(
            self.ledger_id,
            self.first_sequence,
            self.first_offset,
            self.data_offset,
            self.records + records,
            self.entries + entries,
            end,
            self.sealed,
            self.sealed_ms,
            self.refers_from,
            self.whole,
            key_id=self.key_id,
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest object. All ledgers but the last are sealed.

    A ``dead`` journal has no ledgers and never gets any: its actor was deleted.
    """

    owner: str
    number: int
    epoch: int
    next_index: int
    ledgers: tuple[LedgerInfo, ...] = ()
    dead: bool = False

    def encode(self) -> bytes:
        """The stored form."""
        body: bytes = msgpack.packb(
            [
                self.owner,
                self.number,
                self.epoch,
                self.next_index,
                [_ledger_row(ledger) for ledger in self.ledgers],
                self.dead,
            ]
        )
        version = _OFFLOADED_VERSION if self.offloaded else _LOCAL_VERSION
        if any(ledger.key_id for ledger in self.ledgers):
            version = FORMAT_VERSION
        return _HEADER.pack(_MAGIC, version, crc32c(body)) + body

    @property
    def offloaded(self) -> frozenset[int]:
        """The ids of the offloaded ledgers."""
        return frozenset(info.ledger_id for info in self.ledgers if info.offloaded_ms)

    @property
    def ownership(self) -> Ownership:
        """What the manifest tells a store."""
        return Ownership(self.epoch, frozenset(info.ledger_id for info in self.ledgers))

    def ledger_id(self, index: int) -> int:
        """The id of this journal's ledger ``index``: unique in the cluster."""
        return self.number << LEDGER_INDEX_BITS | index

    def raise_epoch(self, next_index: int) -> Manifest:
        """The manifest of the next owner."""
        return replace(self, epoch=self.epoch + 1, next_index=next_index)

    def without(self, ledger_ids: Collection[int]) -> Manifest:
        """The manifest without these ledgers. Checkpoints that refer to them are no longer whole,
        except the last two, which don't need them, as the caller has checked."""
        kept = [info for info in self.ledgers if info.ledger_id not in ledger_ids]
        older = (
            replace(info, whole=False) if _needs(info, ledger_ids) else info for info in kept[:-2]
        )
        return replace(self, ledgers=(*older, *kept[-2:]))

    def with_offloaded(self, ledger_ids: Collection[int], at_ms: int) -> Manifest:
        """The manifest in which these ledgers are offloaded since ``at_ms``."""
        return replace(
            self,
            ledgers=tuple(
                replace(info, offloaded_ms=at_ms) if info.ledger_id in ledger_ids else info
                for info in self.ledgers
            ),
        )

    def without_marks(self) -> Manifest:
        """The manifest of a copy of the journal, which has no archive."""
        return self.with_offloaded(self.offloaded, 0)

    def purged(self, next_index: int) -> Manifest:
        """The manifest of a journal whose actor was deleted; no ledger below it will be listed."""
        return replace(self, epoch=self.epoch + 1, next_index=next_index, ledgers=(), dead=True)


def _needs(info: LedgerInfo, ledger_ids: Collection[int]) -> bool:
    """Whether the checkpoint of a ledger may have a part in one of these."""
    return any(info.refers_from <= ledger_id < info.ledger_id for ledger_id in ledger_ids)


def _ledger_row(ledger: LedgerInfo) -> list[Any]:
    row = [
        ledger.ledger_id,
        ledger.first_sequence,
        ledger.first_offset,
        ledger.data_offset,
        ledger.records,
        ledger.entries,
        ledger.bytes,
        ledger.sealed,
        ledger.sealed_ms,
        ledger.refers_from,
        ledger.whole,
    ]
    if ledger.key_id:
        return [*row, ledger.offloaded_ms, ledger.key_id]
    return [*row, ledger.offloaded_ms] if ledger.offloaded_ms else row


def decode_manifest(place: str, raw: bytes) -> Manifest:
    """Read what `Manifest.encode` wrote.

    Raises `CorruptJournal` (offset 0 of ``place``) or `UnsupportedFormat`.
    """
    if len(raw) < _HEADER.size or not raw.startswith(_MAGIC):
        raise CorruptJournal(place, 0, "not a manifest")
    _, version, crc = _HEADER.unpack_from(raw)
    body = raw[_HEADER.size :]
    if not 1 <= version <= FORMAT_VERSION:
        raise UnsupportedFormat(place, version)
    if crc32c(body) != crc:
        raise CorruptJournal(place, 0, "the manifest's checksum is wrong")
    owner, number, epoch, next_index, rows, *dead = msgpack.unpackb(body)
    ledgers = tuple(LedgerInfo(*row) for row in rows)
    return Manifest(owner, number, epoch, next_index, ledgers, *dead)
