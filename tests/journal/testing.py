"""What the journal's tests share: the two backends behind one face, and small histories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

import pytest

from velaray.events.ids import EARLIEST
from velaray.journal.encryption.keys import LedgerKeys
from velaray.journal.files import FileStore
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.memory import Hook, MemoryDisk, MemoryStore, Step, _File
from velaray.journal.objects.conditional import PATIENCE_S
from velaray.journal.objects.host_log import HostLogSettings
from velaray.journal.objects.journal_record import Tail
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.memory_objects import Call, CallHook, MemoryBucket, MemoryObjects
from velaray.journal.objects.object_store import ObjectStore
from velaray.journal.objects.remote_objects import open_objects
from velaray.journal.store import LedgerStore

KEY = "partition/public/default/orders/0/1"


def on_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def give_way(step: Step, journal: str) -> None:
    """A hook that lets other tasks run at every step, as real I/O does."""
    await asyncio.sleep(0)


async def give_way_to_requests(call: Call) -> None:
    """The same for the requests of an object store."""
    await asyncio.sleep(0)


async def seal_at_once(journal: str, tail: Tail, number: int) -> None:
    """End any log without waiting for its process."""


class MemoryBackend:
    """Every `store` is another process on the same disk."""

    stride = 1
    """Tests that go through every byte go in such steps; opening files costs real syncs."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self._stores = 0

    def store(self, hook: Hook | None = give_way) -> MemoryStore:
        self._stores += 1
        return MemoryStore(self.disk, hook=hook, seed=self._stores)

    def content(self, ledger_id: int, journal: str = KEY) -> bytes:
        return bytes(self.disk.content(journal, ledger_id))

    def put(self, ledger_id: int, data: bytes, journal: str = KEY) -> None:
        file = self.disk._file(journal, ledger_id)
        file.seen[:] = data
        file.durable[:] = data
        file.pending.clear()

    def mark(self, ledger_id: int, journal: str = KEY) -> bytes | None:
        mark = self.disk._files(journal).marks.get(ledger_id)
        return bytes(mark.seen) if mark is not None else None

    def put_mark(self, ledger_id: int, data: bytes | None, journal: str = KEY) -> None:
        marks = self.disk._files(journal).marks
        marks.pop(ledger_id, None)
        if data is not None:
            marks[ledger_id] = _File(bytearray(data), bytearray(data))

    def close(self) -> None:
        return


class OneKey:
    """A `KeyProvider` with one master key."""

    place = "a test"

    def newest_id(self) -> str:
        return "one"

    def wrap(self, key: bytes) -> tuple[str, bytes]:
        return "one", key[::-1]

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        return wrapped[::-1]


class EncryptedBackend(MemoryBackend):
    """A memory disk whose ledgers are encrypted."""

    def store(self, hook: Hook | None = give_way) -> MemoryStore:
        found = super().store(hook)
        found.keys = LedgerKeys(OneKey())
        return found


class FileBackend:
    """Every `store` has its own threads on the same directory."""

    stride = 17

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stores: list[FileStore] = []

    def store(self) -> FileStore:
        self._stores.append(FileStore(self.root))
        return self._stores[-1]

    def path(self, ledger_id: int, journal: str = KEY) -> Path:
        return self.root / "journals" / journal / f"{ledger_id}.ledger"

    def content(self, ledger_id: int, journal: str = KEY) -> bytes:
        return self.path(ledger_id, journal).read_bytes()

    def put(self, ledger_id: int, data: bytes, journal: str = KEY) -> None:
        self.path(ledger_id, journal).write_bytes(data)

    def mark(self, ledger_id: int, journal: str = KEY) -> bytes | None:
        path = self.path(ledger_id, journal).with_suffix(".mark")
        return path.read_bytes() if path.exists() else None

    def put_mark(self, ledger_id: int, data: bytes | None, journal: str = KEY) -> None:
        path = self.path(ledger_id, journal).with_suffix(".mark")
        if data is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(data)

    def close(self) -> None:
        for store in self._stores:
            asyncio.run(store.close())


class ObjectBackend:
    """Every `store` is another process with the same bucket."""

    stride = 1

    def __init__(self) -> None:
        self.bucket = MemoryBucket()
        self.random = Random(1)

    def store(self, hook: CallHook | None = give_way_to_requests) -> ObjectLedgerStore:
        return self.on(MemoryObjects(self.bucket, hook))

    def on(self, objects: ObjectStore, patience_s: float = PATIENCE_S) -> ObjectLedgerStore:
        return ObjectLedgerStore(
            objects,
            settings=HostLogSettings(commit_interval_s=0),
            random_bytes=self.random.randbytes,
            source=self.random,
            number_block=1,
            before_seal=seal_at_once,
            patience_s=patience_s,
        )

    def close(self) -> None:
        return


class S3Backend(ObjectBackend):
    """Every `store` is another process with the same URL."""

    stride = 17

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def store(self, hook: CallHook | None = None) -> ObjectLedgerStore:
        assert hook is None, "the requests of a real store have no hooks"
        return self.on(open_objects(self.url))


Backend = MemoryBackend | FileBackend


on_disks = pytest.mark.parametrize("backend", ["memory", "files"], indirect=True)
"""For a test of the bytes and marks of ledger files, or of ledgers that a non-owner creates."""


async def open_journal(
    store: LedgerStore, key: str = KEY, settings: JournalSettings | None = None
) -> Journal:
    return await Journal.open(store, key, settings, clock_ms=lambda: 1_000)


async def started(
    store: LedgerStore, key: str = KEY, settings: JournalSettings | None = None
) -> Journal:
    """An owner that carries on where the former one stopped. Its "state" is the list of
    all events so far."""
    journal = await open_journal(store, key, settings)
    await journal.start({"events": b"\n".join(events_of(journal))}, b"digest")
    return journal


def events_of(journal: Journal) -> list[bytes]:
    """The state that an owner recovers: every event since the creation of the journal."""
    checkpoint = journal.recovered.checkpoint
    known = checkpoint.segments["events"].split(b"\n") if checkpoint else []
    return [event for event in known if event] + [r.event for r in journal.recovered.records]


async def write(journal: Journal, *events: bytes, blob: bytes | None = b"") -> int:
    """Commit ``events`` as one frame, each with its name (or ``blob``) as blob."""
    for event in events:
        journal.stage(event, event * 3 if blob == b"" else blob)
    return await journal.commit()


async def blobs(journal: Journal) -> list[bytes]:
    """Every durable blob, read in small pieces."""
    found: list[bytes] = []
    position = EARLIEST
    while entries := await journal.read(position, 3, 1 << 16):
        found += [bytes(entry.blob) for entry in entries]
        last = entries[-1].position
        position = last._replace(entry_id=last.entry_id + 1)
    return found
