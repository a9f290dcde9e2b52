"""The files that a store keeps open: none for idle ledgers, and never a closed one with unsynced
bytes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from velaray.journal import files, worker
from velaray.journal.errors import SyncFailed
from velaray.journal.files import FileStore

JOURNALS = 40


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "IDLE_S", 0.05)
    monkeypatch.setattr(worker, "TIDY_S", 0.02)


def open_files(under: Path) -> Iterator[str]:
    """The files below a directory that this process has open."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor of the list itself
        if target.startswith(str(under)):
            yield target


async def none_open(under: Path) -> None:
    async with asyncio.timeout(30):
        while list(open_files(under)):
            await asyncio.sleep(0.01)


def scenario(root: Path, play: Callable[[FileStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = FileStore(root, writers=2)
        try:
            await play(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_idle_ledgers_have_no_open_files(tmp_path: Path) -> None:
    async def play(store: FileStore) -> None:
        writers = []
        for number in range(JOURNALS):
            version = await store.write_manifest(f"j/{number}", 0, b"m")
            writers.append(await store.create_ledger(f"j/{number}", 1, b"head"))
            assert await writers[-1].append([b"1"], confirm=version, mark=b"mark1")
        await none_open(tmp_path)
        for number, writer in enumerate(writers):
            assert await store.holds(f"j/{number}", 1)
            assert await writer.append([b"2"], confirm=1, mark=b"mark2")
            assert (await store.read(f"j/{number}", 1, 0, 100)).rstrip(b"\0") == b"head12"
            assert await store.read_mark(f"j/{number}", 1) == b"mark2"
        await none_open(tmp_path)
        await writers[0].close()
        assert await store.size("j/0", 1) == len(b"head12")

    scenario(tmp_path, play)


def test_a_ledger_with_unsynced_bytes_stays_open(tmp_path: Path) -> None:
    async def play(store: FileStore) -> None:
        version = await store.write_manifest("j", 0, b"m")
        writer = await store.create_ledger("j", 1, b"head")
        assert await writer.append_unsynced([b"1"], confirm=version)
        await store.write_manifest("other", 0, b"m")
        other = await store.create_ledger("other", 1, b"head")
        await other.append([b"1"], confirm=1, mark=b"m")
        async with asyncio.timeout(30):
            while any("/other/" in path for path in open_files(tmp_path)):
                await asyncio.sleep(0.01)
        assert any(path.endswith("1.ledger") for path in open_files(tmp_path))
        assert await writer.sync(confirm=version, mark=b"m")
        await none_open(tmp_path)

    scenario(tmp_path, play)


def test_a_superseded_owner_is_refused_after_its_files_were_closed(tmp_path: Path) -> None:
    async def play(store: FileStore) -> None:
        version = await store.write_manifest("j", 0, b"m")
        writer = await store.create_ledger("j", 1, b"head")
        assert await writer.append([b"1"], confirm=version, mark=b"m")
        await none_open(tmp_path)
        successor = FileStore(tmp_path)
        assert await successor.write_manifest("j", version, b"n") == version + 1
        assert not await writer.append([b"2"], confirm=version, mark=b"m")
        await none_open(tmp_path)
        await successor.delete_journal("j")
        assert not await writer.append([b"3"], confirm=version, mark=b"m")
        await successor.close()

    scenario(tmp_path, play)


def test_a_ledger_that_was_replaced_is_not_written(tmp_path: Path) -> None:
    async def play(store: FileStore) -> None:
        version = await store.write_manifest("j", 0, b"m")
        writer = await store.create_ledger("j", 1, b"head")
        assert await writer.append([b"1"], confirm=version, mark=b"m")
        await none_open(tmp_path)
        path = Path(store.location("j", 1))
        path.rename(path.with_name("kept"))
        path.write_bytes(b"another one")
        for _ in range(2):
            with pytest.raises(SyncFailed, match="another file has its name"):
                await writer.append([b"2"], confirm=version, mark=b"m")
        assert path.read_bytes() == b"another one"

    scenario(tmp_path, play)


@pytest.mark.parametrize("closing", [False, True], ids=["append", "close"])
def test_a_former_owner_leaves_the_ledger_of_a_new_journal_alone(
    tmp_path: Path, closing: bool
) -> None:
    """The journal is created again, and the system gives the inode of the ledger again."""

    async def play(store: FileStore) -> None:
        version = await store.write_manifest("j", 0, b"m")
        writer = await store.create_ledger("j", 1, b"head")
        for _ in range(8):  # zeros follow the last frame
            assert await writer.append([b"old!"], confirm=version, mark=b"m")
        await none_open(tmp_path)
        other = FileStore(tmp_path)
        await other.delete_journal("j")
        newer = await other.write_manifest("j", 0, b"other")
        created = await other.create_ledger("j", 1, b"HEAD")
        assert await created.append([b"ACKNOWLEDGED" * 20], confirm=newer, mark=b"m")
        path = Path(store.location("j", 1))
        writer._inode = path.stat().st_ino
        before = path.read_bytes()
        if closing:
            await writer.close()
        else:
            assert not await writer.append([b"STALE"], confirm=version, mark=b"m")
        assert path.read_bytes().rstrip(b"\0") == before.rstrip(b"\0")
        await other.close()

    scenario(tmp_path, play)


def test_more_ledgers_than_may_be_open_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "IDLE_S", 600.0)
    monkeypatch.setattr(files, "MOST_OPEN", 4)

    async def play(store: FileStore) -> None:
        writers = []
        for number in range(JOURNALS):
            version = await store.write_manifest(f"j/{number}", 0, b"m")
            writers.append(await store.create_ledger(f"j/{number}", 1, b"head"))
            assert await writers[-1].append([b"1"], confirm=version, mark=b"m")
        for _ in range(3):
            for writer in writers:
                assert await writer.append([b"2"], confirm=1, mark=b"m")
                assert len(list(open_files(tmp_path))) <= 2 * 2 * (4 + 1)

    scenario(tmp_path, play)


def test_a_version_with_the_name_and_inode_of_ours_is_not_ours(tmp_path: Path) -> None:
    """A suspended process may link the name again, and the system uses inodes again."""

    async def play(store: FileStore) -> None:
        version = await store.write_manifest("j", 0, b"m")
        assert await store.holds("j", version)
        path = Path(store.location("j")) / str(version)
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        assert not await store.holds("j", version)

    scenario(tmp_path, play)
