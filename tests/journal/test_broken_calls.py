"""Any one call to the operating system may fail: nothing acknowledged is lost, no error is
untyped, no file stays open, and who opens the journal next finds it sound."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.journal.testing import KEY, events_of, on_loop, open_journal, started, write
from velaray.journal import files, worker
from velaray.journal.errors import Contended, JournalError, StorageFull, SyncFailed
from velaray.journal.files import MAKE_TRIES, READ_TRIES, REMOVE_TRIES, FileStore
from velaray.journal.replay import load_manifest, verify

CALLS = (
    "fdatasync",
    "fstat",
    "fsync",
    "ftruncate",
    "link",
    "listdir",
    "lstat",
    "mkdir",
    "open",
    "posix_fadvise",
    "pread",
    "pwrite",
    "pwritev",
    "replace",
    "stat",
    "unlink",
)


class Saboteur:
    """Counts the calls that concern the store's directory and fails one of them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = str(root)
        self.left = 0
        self.code = 0
        self.hit: str | None = None
        self.only = ""
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, call: Callable) -> Callable:
        def watched(target: Any, *args: Any, **kwargs: Any) -> Any:
            ours = isinstance(target, int) or str(target).startswith(self.root)
            if ours and self.only in ("", name):
                self.left -= 1
                if self.left == 0:
                    self.hit = name
                    raise OSError(self.code, os.strerror(self.code))
            # No power fails here, and syncing is what takes long.
            return None if name in ("fsync", "fdatasync") else call(target, *args, **kwargs)

        return watched

    def arm(self, at: int, code: int, only: str = "") -> None:
        """Fail the call number ``at`` from now on (1: the next one), of those named ``only``."""
        self.left, self.code, self.hit, self.only = at, code, None, only

    def disarm(self) -> str | None:
        """Let all calls pass; returns the name of the one that failed."""
        self.left = 0
        return self.hit


async def _live(store: FileStore, name: bytes, acknowledged: list[bytes]) -> None:
    """An owner's life: take over, write, roll over, write."""
    journal = await open_journal(store)
    try:
        known = events_of(journal)
        await journal.start({"events": b"\n".join(known)}, b"")
        for number in range(4):
            if number == 2:
                await journal.roll({"events": b"\n".join(known)}, b"")
            event = b"%b-%d" % (name, number)
            await write(journal, event)
            acknowledged.append(event)
            known.append(event)
    finally:
        await journal.close()


def _open_files(root: Path) -> list[str]:
    """What this process has open below ``root``."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [target for target in targets if target.startswith(str(root))]


async def _fail_one(root: Path, saboteur: Saboteur, at: int, code: int) -> str | None:
    """Live twice, with call ``at`` of the second life failing; returns its name, if there was
    such a call."""
    store = FileStore(root)
    acknowledged: list[bytes] = []
    await _live(store, b"first", acknowledged)
    saboteur.arm(at, code)
    with suppress(JournalError):
        await _live(store, b"second", acknowledged)
    broken = saboteur.disarm()
    await store.close()
    assert _open_files(root) == []
    store = FileStore(root)
    found = events_of(await open_journal(store))
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) - len(acknowledged) in (0, 1)
    await _live(store, b"third", [])
    assert [problem for report in await verify(store, KEY) for problem in report.problems] == []
    listed = [info.ledger_id for info in (await load_manifest(store, KEY)).ledgers]
    assert await store.list_ledgers(KEY) == listed
    assert not list(root.rglob("new-*"))
    await store.close()
    return broken


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("idle_s", [files.IDLE_S, 0.0], ids=["stays open", "opened for each write"])
def test_one_failed_call_loses_nothing_acknowledged(tmp_path, monkeypatch, code, idle_s):
    monkeypatch.setattr(files, "IDLE_S", idle_s)
    monkeypatch.setattr(worker, "TIDY_S", idle_s)
    saboteur = Saboteur(tmp_path, monkeypatch)
    broken: set[str] = set()
    for at in count(1):
        root = tmp_path / str(at)
        root.mkdir()
        call = asyncio.run(_fail_one(root, saboteur, at, code))
        if call is None:
            break
        broken.add(call)
    assert broken >= {"fdatasync", "fstat", "fsync", "link", "lstat", "pwrite", "pwritev"}
    assert broken >= {"listdir", "open", "posix_fadvise", "pread", "replace", "stat", "unlink"}


@on_loop
async def test_an_owner_that_cannot_check_for_a_newer_one_acknowledges_nothing(files, monkeypatch):
    former = await started(files.store())
    await write(former, b"a")
    await started(files.store())
    saboteur = Saboteur(files.root, monkeypatch)
    saboteur.arm(1, errno.EIO, only="lstat")
    with pytest.raises(SyncFailed, match="looking for a newer version: Input/output error"):
        await write(former, b"unknown")
    assert saboteur.disarm() == "lstat"
    with pytest.raises(SyncFailed):
        await write(former, b"never")
    saboteur.arm(1, errno.EIO, only="lstat")
    with pytest.raises(SyncFailed, match="looking for a newer version"):
        await former._store.holds(KEY, former._version)


@on_loop
async def test_a_failed_truncation_after_a_refused_write_kills_the_writer(files, monkeypatch):
    """What the refused write left could be taken for an append later."""
    store = files.store()
    await store.write_manifest(KEY, 0, b"m")
    writer = await store.create_ledger(KEY, 7, b"h")

    def broken(fd, *_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def unwilling(fd, *_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", broken)
        patch.setattr(os, "ftruncate", unwilling)
        with pytest.raises(SyncFailed, match="removing a refused write"):
            await writer.append([b"a"])
    with pytest.raises(SyncFailed):
        await writer.append([b"b"])


@on_loop
async def test_a_claim_whose_temporary_file_cannot_be_removed_is_lost_not_shared(
    files, monkeypatch
):
    store = files.store()
    assert await store.claim_number("first") == 1
    saboteur = Saboteur(files.root, monkeypatch)
    saboteur.arm(1, errno.ENOSPC, only="unlink")
    with pytest.raises(SyncFailed, match="removing: No space left"):
        await store.claim_number("second")
    saboteur.disarm()
    assert await files.store().claim_number("third") == 3


@on_loop
async def test_a_reader_that_always_comes_too_late_gives_up(files, monkeypatch):
    store = files.store()
    await store.write_manifest(KEY, 0, b"m")
    read_bytes = Path.read_bytes

    def gone(path):
        if path.parent.name == "+manifest":
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return read_bytes(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", gone)
        with pytest.raises(Contended, match=f"lost the race {READ_TRIES} times"):
            await store.read_manifest(KEY)
    assert await store.read_manifest(KEY) == (1, b"m")


NEIGHBOUR = KEY.replace("orders", "returns")


@on_loop
async def test_deleting_a_journal_leaves_its_neighbours_directory(files):
    store = files.store()
    for key in (KEY, NEIGHBOUR):
        await store.write_manifest(key, 0, b"m")
    await store.delete_journal(KEY)
    assert await store.list_journals() == [NEIGHBOUR]
    assert await store.read_manifest(NEIGHBOUR) == (1, b"m")
    await store.delete_ledger(KEY, 7)
    await store.delete_journal(NEIGHBOUR)
    assert list((files.root / "journals").iterdir()) == []


@on_loop
async def test_leftovers_of_a_journal_without_a_manifest_can_be_deleted(files):
    store = files.store()
    await store.write_manifest(KEY, 0, b"m")
    await (await store.create_ledger(KEY, 7, b"h")).close()
    for version in (files.root / "journals" / KEY / "+manifest").iterdir():
        version.unlink()
    (files.root / "journals" / KEY / "+manifest").rmdir()
    assert await store.list_journals() == [KEY]
    await store.delete_journal(KEY)
    assert await store.list_journals() == []


@on_loop
async def test_concurrent_deletions_of_neighbours_both_succeed(files, monkeypatch):
    """The other one removes the directories that both journals were in, before each step."""
    ours, theirs = files.store(), files.store()
    rmdir = os.rmdir
    parents = len(KEY.split("/")) - 1
    for moment in range(parents + 1):
        for key in (KEY, NEIGHBOUR):
            await ours.write_manifest(key, 0, b"m")
        left = moment

        def late(path, *args, **kwargs):
            nonlocal left
            if not str(path).endswith("+manifest"):
                left -= 1
                if left == -1:
                    theirs._delete_journal(NEIGHBOUR)
            return rmdir(path, *args, **kwargs)

        monkeypatch.setattr(os, "rmdir", late)
        await ours.delete_journal(KEY)
        monkeypatch.setattr(os, "rmdir", rmdir)
        await theirs.delete_journal(NEIGHBOUR)
        assert await ours.list_journals() == []


@on_loop
async def test_a_directory_kept_for_a_neighbour_is_deleted_with_the_neighbour(files, monkeypatch):
    ours, theirs = files.store(), files.store()
    for key in (KEY, NEIGHBOUR):
        await ours.write_manifest(key, 0, b"m")
    rmdir = os.rmdir

    def late(path, *args, **kwargs):
        try:
            rmdir(path, *args, **kwargs)
        except OSError:
            monkeypatch.setattr(os, "rmdir", rmdir)
            theirs._delete_journal(NEIGHBOUR)
            raise

    monkeypatch.setattr(os, "rmdir", late)
    await ours.delete_journal(KEY)
    assert os.rmdir is rmdir
    assert list((files.root / "journals").iterdir()) == []


@pytest.mark.parametrize("losses", [1, REMOVE_TRIES])
@on_loop
async def test_a_journal_is_deleted_while_a_former_owner_creates_ledgers(
    files, monkeypatch, losses
):
    """One that doesn't know yet creates one before the directory goes, as often as it can."""
    former, store = files.store(), files.store()
    await former.write_manifest(KEY, 0, b"m")
    rmdir, created = os.rmdir, []

    def late(path, *args, **kwargs):
        if str(path) == str(files.root / "journals" / KEY) and len(created) < losses:
            created.append(former._create_ledger(KEY, 7 + len(created), b"h"))
        return rmdir(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", late)
        if losses < REMOVE_TRIES:
            await store.delete_journal(KEY)
        else:
            with pytest.raises(Contended, match=KEY):
                await store.delete_journal(KEY)
    assert len(created) == losses
    await store.delete_journal(KEY)
    for writer in created:
        await writer.close()
    assert list((files.root / "journals").iterdir()) == []


@on_loop
async def test_concurrent_deletions_of_one_journal_both_succeed(files, monkeypatch):
    ours, theirs = files.store(), files.store()
    for call in ("unlink", "rmdir"):
        for moment in range(4):
            await ours.write_manifest(KEY, 0, b"m")
            await (await ours.create_ledger(KEY, 7, b"h")).close()
            original, left = getattr(os, call), moment

            def late(path, *args, original=original, **kwargs):
                nonlocal left
                left -= 1
                if left == -1:
                    theirs._delete_journal(KEY)
                return original(path, *args, **kwargs)

            with monkeypatch.context() as patch:
                patch.setattr(os, call, late)
                await ours.delete_journal(KEY)
            assert list((files.root / "journals").iterdir()) == []


@on_loop
async def test_a_deletion_that_cannot_be_synced_is_not_done(files, monkeypatch):
    store = files.store()
    await store.write_manifest(KEY, 0, b"m")
    saboteur = Saboteur(files.root, monkeypatch)
    saboteur.arm(1, errno.EIO, only="fsync")
    with pytest.raises(SyncFailed, match="journals: syncing the directory"):
        await store.delete_journal(KEY)
    saboteur.disarm()
    await store.delete_journal(KEY)


@on_loop
async def test_a_directory_that_cannot_be_removed_is_named(files, monkeypatch):
    store = files.store()
    await store.write_manifest(KEY, 0, b"m")
    rmdir = os.rmdir

    def broken(path, *args, **kwargs):
        if str(path).endswith("+manifest"):
            return rmdir(path, *args, **kwargs)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", broken)
        with pytest.raises(SyncFailed, match=f"{KEY}: Input/output error"):
            await store.delete_journal(KEY)
    await store.delete_journal(KEY)
    assert list((files.root / "journals").iterdir()) == []


@pytest.mark.parametrize("losses", [1, 2 * MAKE_TRIES])
@on_loop
async def test_a_journal_is_created_while_the_directory_above_is_removed(
    files, monkeypatch, losses
):
    """Another process deletes the last other journal of a topic."""
    left = losses
    mkdir = Path.mkdir

    def raced(path, *args, **kwargs):
        nonlocal left
        if path.name == "+manifest" and left:
            left -= 1
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return mkdir(path, *args, **kwargs)

    store = files.store()
    monkeypatch.setattr(Path, "mkdir", raced)
    if losses < MAKE_TRIES:
        assert await store.write_manifest(KEY, 0, b"m") == 1
    else:
        with pytest.raises(Contended, match="try again later"):
            await store.write_manifest(KEY, 0, b"m")
        assert await store.write_manifest(KEY, 0, b"m") == 1


@on_loop
async def test_a_ledger_without_room_for_its_header_is_not_created(files, monkeypatch):
    store = files.store()
    await store.write_manifest(KEY, 0, b"m")

    def full(fd, *_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(StorageFull):
            await store.create_ledger(KEY, 7, b"header")
    assert await store.list_ledgers(KEY) == []
    await (await store.create_ledger(KEY, 7, b"header")).close()
    assert await store.read(KEY, 7, 0, 99) == b"header"


@on_loop
async def test_two_concurrent_closes_close_a_writer_once(files):
    store = files.store()
    await store.write_manifest(KEY, 0, b"m")
    writer = await store.create_ledger(KEY, 7, b"h")
    await asyncio.gather(writer.close(), writer.close(), store.close())
    assert _open_files(files.root) == []
