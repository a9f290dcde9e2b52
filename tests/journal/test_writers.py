"""Several write threads of one store: each journal has one, and they don't wait for each other."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tests.journal.testing import on_loop
from velaray.journal.errors import Misuse, SyncFailed
from velaray.journal.files import FileStore

WRITERS = 4


def journals_of_two_threads(store: FileStore) -> tuple[str, str]:
    names = [f"partition/public/default/t{number}/-1/1" for number in range(50)]
    first = store._writer_of(names[0])
    return names[0], next(name for name in names if store._writer_of(name) is not first)


class StuckSync:
    """Holds back syncs of the files below a folder until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
        self._sync, self._folder = os.fdatasync, folder
        self._released = threading.Event()
        self.stuck = threading.Event()
        monkeypatch.setattr(os, "fdatasync", self._slow_sync)

    def _slow_sync(self, fd: int) -> None:
        if self._folder in os.readlink(f"/proc/self/fd/{fd}"):
            self.stuck.set()
            assert self._released.wait(60)
        self._sync(fd)

    def release(self) -> None:
        self._released.set()


@on_loop
async def test_a_slow_sync_delays_only_the_journals_of_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path, writers=WRITERS)
    slow, quick = journals_of_two_threads(store)
    for journal in (slow, quick):
        await store.write_manifest(journal, 0, b"m")
    writers = [await store.create_ledger(journal, 1, b"head") for journal in (slow, quick)]
    sync = StuckSync(monkeypatch, str(store._directory(slow)))
    try:
        first = asyncio.ensure_future(writers[0].append([b"one"]))
        second = asyncio.ensure_future(writers[0].append([b"two"]))
        await asyncio.to_thread(sync.stuck.wait, 60)
        assert await writers[1].append([b"three"])
        assert not first.done() and not second.done()
    finally:
        sync.release()
    assert await first and await second
    assert await store.read(slow, 1, 0, 100) == b"headonetwo"
    await store.close()


@on_loop
async def test_closing_finishes_the_appends_of_every_thread(tmp_path: Path) -> None:
    store = FileStore(tmp_path, writers=WRITERS)
    journals = [f"partition/public/default/t{number}/-1/1" for number in range(20)]
    assert len({id(store._writer_of(journal)) for journal in journals}) == WRITERS
    writers = []
    for journal in journals:
        await store.write_manifest(journal, 0, b"m")
        writers.append(await store.create_ledger(journal, 1, b"head"))
    appends = [asyncio.ensure_future(writer.append([b"one"])) for writer in writers]
    await asyncio.sleep(0)
    await store.close()
    assert all(await asyncio.gather(*appends))
    for writer in writers:
        with pytest.raises((Misuse, SyncFailed)):
            await writer.append([b"two"])
    again = FileStore(tmp_path)
    assert {await again.read(journal, 1, 0, 100) for journal in journals} == {b"headone"}
    await again.close()


@on_loop
async def test_numbers_are_unique_with_several_threads(tmp_path: Path) -> None:
    store = FileStore(tmp_path, writers=WRITERS)
    numbers = await asyncio.gather(*(store.claim_number(f"journal {n}") for n in range(30)))
    assert sorted(numbers) == list(range(1, 31))
    await store.close()
