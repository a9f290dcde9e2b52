"""The simulated object store: what is stored in it, and what a reader of all of it finds.

`SimBucket` is linearizable: a request has its effect at one moment. It knows at any time what each
journal's next owner would find, and notes deletions that mustn't happen: of a log's object that a
record needs, and of a part that a record names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.sim.attic import SimDisk
from velaray.journal.errors import NotStored
from velaray.journal.memory import _File, _Files
from velaray.journal.objects.activation import Runs
from velaray.journal.objects.adoption import LogPage, decode_page
from velaray.journal.objects.bodies import Chunk, Kind, decode_body
from velaray.journal.objects.host_log import HOSTS
from velaray.journal.objects.journal_record import (
    JOURNALS,
    LEDGERS,
    JournalRecord,
    decode_journal_record,
    journals_of_records,
)
from velaray.journal.objects.memory_objects import MemoryBucket
from velaray.journal.objects.object_store import StoredObject
from velaray.journal.objects.reading import end_of
from velaray.journal.paths import journal_of

FLOOR = "floor"


@dataclass
class _Log:
    """The log of one process: its objects so far, deleted ones too, and the numbers of each
    activation's chunks in its unbroken beginning."""

    pages: dict[int, LogPage] = field(default_factory=dict)
    end: int = 0
    sealed: bool = False
    chunks: dict[tuple[str, int], list[tuple[int, Chunk]]] = field(default_factory=dict)

    def add(self, number: int, page: LogPage) -> None:
        self.pages.setdefault(number, page)
        while not self.sealed and (found := self.pages.get(self.end)) is not None:
            if found.sealed:
                self.sealed = True
                return
            for chunk in found.chunks:
                row = self.chunks.setdefault((chunk.journal, chunk.epoch), [])
                row.append((self.end, chunk))
            self.end += 1

    def of(self, journal: str, epoch: int, first: int, end: int) -> list[tuple[int, Chunk]]:
        row = self.chunks.get((journal, epoch), [])
        at = bisect_left(row, first, key=lambda each: each[0])
        return [each for each in row[at:] if end < 0 or each[0] < end]


class SimBucket(MemoryBucket):
    """The objects of a simulated cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = StoreDisk(self)
        self.logs: dict[str, _Log] = {}
        self._records: dict[str, JournalRecord] = {}
        self._stored: dict[str, dict[int, set[str]]] = {}

    # -- effects of requests ---------------------------------------------------------

    def _store(self, name: str, data: bytes) -> str:
        folder, _, rest = name.partition("/")
        if folder == JOURNALS:
            self._note_record(name, data)
        tag = super()._store(name, data)
        if folder == HOSTS and not rest.endswith(FLOOR):
            incarnation, _, number = rest.partition("/")
            page = decode_page(name, name, StoredObject(data, tag))
            self.logs.setdefault(incarnation, _Log()).add(int(number), page)
        elif folder == LEDGERS:
            journal, ledger_id = _ledger_of(rest)
            self._stored.setdefault(journal, {}).setdefault(ledger_id, set()).add(name)
        return tag

    def remove(self, name: str) -> None:
        """Delete an object, if it exists."""
        if self.objects.pop(name, None) is None:
            return
        folder, _, rest = name.partition("/")
        if folder == JOURNALS:
            self._records.pop(journal_of_record(name), None)
        elif folder == LEDGERS:
            self._part_deleted(name, *_ledger_of(rest))
        elif folder == HOSTS:
            self._log_object_deleted(name, *rest.split("/"))

    def _note_record(self, name: str, data: bytes) -> None:
        journal, record = journal_of_record(name), decode_journal_record(name, name, data)
        former = self._records.get(journal)
        if former is not None:
            self.disk.note_dropped(journal, record.manifest)
            for ledger_id in former.listed - record.listed:
                if (raw := self.content(journal, ledger_id)) is not None:
                    self.disk.attic.contents.setdefault(journal, {})[ledger_id] = raw
        self._records[journal] = record

    def _part_deleted(self, name: str, journal: str, ledger_id: int) -> None:
        stored = self._stored[journal]
        stored[ledger_id].discard(name)
        if not stored[ledger_id]:
            del stored[ledger_id]
        if not stored:
            del self._stored[journal]
        record = self._records.get(journal)
        if record is not None and any(
            part.name == name for parts in record.parts.values() for part in parts
        ):
            self.disk.faults.append(f"{journal}: part {name} is deleted and named")

    def _log_object_deleted(self, name: str, incarnation: str, what: str) -> None:
        if what == FLOOR or self.logs[incarnation].pages[int(what)].sealed:
            self.disk.faults.append(f"{name} is deleted, which must stay for ever")
            return
        for chunk in self.logs[incarnation].pages[int(what)].chunks:
            record = self._records.get(chunk.journal)
            tail = record.tail if record is not None else None
            if (
                tail is not None
                and (tail.incarnation, tail.epoch) == (incarnation, chunk.epoch)
                and tail.first <= int(what)
                and (tail.end < 0 or int(what) < tail.end)
                and int(what) < self.logs[incarnation].end
            ):
                self.disk.faults.append(f"{name} is deleted, and {chunk.journal} needs it")

    # -- what is stored --------------------------------------------------------------

    def record(self, journal: str) -> JournalRecord | None:
        """A journal's record."""
        return self._records.get(journal)

    def journals(self) -> list[str]:
        """The journals that have any object of their own."""
        return sorted(self._records.keys() | self._stored.keys())

    def ledgers(self, journal: str) -> set[int]:
        """The ledgers that have objects, or that the record lists and that have bytes."""
        record, stored = self._records.get(journal), set(self._stored.get(journal, {}))
        if record is None:
            return stored
        return stored | (record.listed & self._runs(journal, record).by_ledger.keys())

    def indexes(self, journal: str) -> set[int]:
        """The ledgers that have an index."""
        stored = self._stored.get(journal, {})
        return {number for number, names in stored.items() if any(map(_is_index, names))}

    def content(self, journal: str, ledger_id: int) -> bytes | None:
        """The bytes of a listed ledger, as the next owner would find them. None: there are none.

        Raises `NotStored` if a part is missing.
        """
        record = self._records.get(journal)
        if record is None or ledger_id not in record.listed:
            return None
        parts, runs = record.parts.get(ledger_id, ()), self._runs(journal, record)
        if not parts and ledger_id not in runs.by_ledger:
            return None
        raw = b"".join(self._part(part.name) for part in parts)
        return raw + runs.read(ledger_id, end_of(parts), runs.end(ledger_id))

    def seals(self) -> int:
        """The logs that were ended."""
        return sum(log.sealed for log in self.logs.values())

    def unneeded_parts(self) -> int:
        """The stored parts that no record names."""
        named = {
            part.name
            for record in self._records.values()
            for parts in record.parts.values()
            for part in parts
        }
        stored = {n for by_id in self._stored.values() for names in by_id.values() for n in names}
        return sum(name not in named and not _is_index(name) for name in stored)

    def _part(self, name: str) -> bytes:
        found = self.objects.get(name)
        if found is None:
            raise NotStored(name)
        return bytes(decode_body(name, name, found.data, Kind.PART).payload)

    def _runs(self, journal: str, record: JournalRecord) -> Runs:
        tail = record.tail
        log = self.logs.get(tail.incarnation) if tail is not None else None
        if tail is None or log is None:
            return Runs()
        return Runs(chunk for _, chunk in log.of(journal, tail.epoch, tail.first, tail.end))


def journal_of_record(name: str) -> str:
    """The journal of the record ``name``."""
    (journal,) = journals_of_records([name])
    return journal


def _is_index(name: str) -> bool:
    return name.endswith("/index")


def _ledger_of(rest: str) -> tuple[str, int]:
    """The journal and the ledger of the object ``ledgers/<rest>``."""
    folder, _, _ = rest.rpartition("/")
    directory, _, ledger_id = folder.rpartition("/")
    return journal_of(directory), int(ledger_id)


class _Ledgers(Mapping[int, _File]):
    """The ledgers of a journal, which are put together when they are read."""

    def __init__(self, bucket: SimBucket, journal: str) -> None:
        self._bucket = bucket
        self._journal = journal

    def __getitem__(self, ledger_id: int) -> _File:
        if ledger_id not in self._bucket.ledgers(self._journal):
            raise KeyError(ledger_id)
        return _File(bytearray(self._bucket.disk.content_of(self._journal, ledger_id)))

    def __iter__(self) -> Iterator[int]:
        return iter(self._bucket.ledgers(self._journal))

    def __len__(self) -> int:
        return len(self._bucket.ledgers(self._journal))


class StoredJournals(Mapping[str, _Files]):
    """The journals of a bucket, as files of a disk."""

    def __init__(self, bucket: SimBucket) -> None:
        self._bucket = bucket

    def __getitem__(self, journal: str) -> _Files:
        bucket = self._bucket
        record, stored = bucket.record(journal), bucket.indexes(journal)
        if record is None and not bucket.ledgers(journal):
            raise KeyError(journal)
        files = _Files(ledgers=_Ledgers(bucket, journal))  # type: ignore[arg-type]
        if record is not None:
            files.version, files.manifest = record.version, record.manifest
        files.indexes = dict.fromkeys(stored, b"")
        return files

    def __iter__(self) -> Iterator[str]:
        return iter(self._bucket.journals())

    def __len__(self) -> int:
        return len(self._bucket.journals())


class StoreDisk(SimDisk):
    """A bucket as the checkers see it: journals with manifests and ledgers.

    They read it as they read a disk; nothing is written to it.
    """

    takes_foreign_ledgers = False  # a record names the parts of its journal

    def __init__(self, bucket: SimBucket) -> None:
        super().__init__()
        self._bucket = bucket
        self._journals = StoredJournals(bucket)  # type: ignore[assignment]

    def content_of(self, journal: str, ledger_id: int) -> bytes:
        """The bytes of a ledger, listed or not; b"" if nothing of it can be read."""
        raw = self._bucket.content(journal, ledger_id)
        return raw if raw is not None else self.attic.contents.get(journal, {}).get(ledger_id, b"")

    def _file(self, journal: str, ledger_id: int) -> _File:
        raw = self.content_of(journal, ledger_id)
        if not raw:
            raise NotStored(f"{journal} {ledger_id}")
        return _File(bytearray(raw))
