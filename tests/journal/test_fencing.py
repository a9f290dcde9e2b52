"""Fencing between real processes, stopped and resumed at every step of what they do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.journal import owner_process
from tests.journal.testing import KEY, blobs, events_of, on_loop, open_journal, started, write
from velaray.journal.errors import ManifestConflict
from velaray.journal.files import KEPT_VERSIONS, FileStore

ROOT = Path(__file__).parents[2]


@contextmanager
def _owner(directory: Path, point: str, skip: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.journal.owner_process", str(directory), point]
    with subprocess.Popen(
        [*command, str(skip)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_until_stopped(process: subprocess.Popen[str]) -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"ended instead of stopping: {status}"


def _acknowledged(lines: list[str]) -> list[bytes]:
    return [line.split()[2].encode() for line in lines if line.startswith("acknowledged")]


async def _take_over_and_resume(directory: Path, process: subprocess.Popen[str]) -> None:
    """The stopped owner's journal is taken over and used; then the owner comes back."""
    store = FileStore(directory)
    journal = await started(store)
    inherited = [bytes(blob[: len(blob) // 100]) for blob in await blobs(journal)]
    await write(journal, b"new-1")
    process.send_signal(signal.SIGCONT)
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    assert process.wait() == owner_process.FENCED
    # What it acknowledged, before or after the stop, the new owner has; in order.
    acknowledged = _acknowledged(lines)
    assert acknowledged and acknowledged == inherited[: len(acknowledged)]
    assert lines[-1] == "fenced"
    await write(journal, b"new-2")
    await journal.close()
    successor = await open_journal(store)
    assert events_of(successor) == [*inherited, b"new-1", b"new-2"]
    assert (await blobs(successor))[-2:] == [b"new-1" * 3, b"new-2" * 3]
    await store.close()


POINTS = [
    ("before:pwritev", 2),
    ("after:pwritev", 2),
    ("before:fdatasync", 2),
    ("after:fdatasync", 2),
    ("before:pwrite", 2),
    ("after:pwrite", 2),
    # The sixth commit rolls: the ledger's file, its checkpoint, the manifest.
    ("before:link", 1),
    ("after:link", 1),
    ("after:fdatasync", 7),
    ("before:unlink", 1),
    ("before:listdir", 1),
    ("before:replace", 1),
]


@pytest.mark.parametrize(("point", "skip"), POINTS)
def test_an_owner_stopped_at_any_step_acknowledges_nothing_more(tmp_path, point, skip):
    with _owner(tmp_path, point, skip) as process:
        _wait_until_stopped(process)
        asyncio.run(_take_over_and_resume(tmp_path, process))


@pytest.mark.slow
@pytest.mark.parametrize("commits", range(1, 21))
def test_an_owner_stopped_at_any_moment_acknowledges_nothing_more(tmp_path, commits):
    with _owner(tmp_path, "never", 0) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(commits)]
        process.send_signal(signal.SIGSTOP)
        _wait_until_stopped(process)
        asyncio.run(_resume_after(tmp_path, process, seen))


async def _resume_after(directory: Path, process: subprocess.Popen[str], seen: list[str]) -> None:
    store = FileStore(directory)
    journal = await started(store)
    inherited = [bytes(blob[: len(blob) // 100]) for blob in await blobs(journal)]
    await write(journal, b"new-1")
    process.send_signal(signal.SIGCONT)
    assert process.stdout is not None
    lines = seen + process.stdout.read().splitlines()
    assert process.wait() == owner_process.FENCED
    acknowledged = _acknowledged(lines)
    assert acknowledged == inherited[: len(acknowledged)]
    assert events_of(await open_journal(store)) == [*inherited, b"new-1"]
    await store.close()


_RACER = """
import asyncio, sys
from velaray.journal.errors import ManifestConflict
from velaray.journal.files import FileStore

async def race(root, rounds):
    store = FileStore(root)
    won = 0
    while won < rounds:
        stored = await store.read_manifest("counter")
        version, count = (stored.version, int(stored.data)) if stored else (0, 0)
        try:
            await store.write_manifest("counter", version, b"%d" % (count + 1))
            won += 1
        except ManifestConflict:
            continue

asyncio.run(race(sys.argv[1], 25))
"""


def test_processes_that_race_for_the_manifest_lose_no_update(tmp_path):
    command = [sys.executable, "-c", _RACER, str(tmp_path)]
    racers = [subprocess.Popen(command, cwd=ROOT) for _ in range(4)]
    assert [racer.wait() for racer in racers] == [0] * 4
    version, count = asyncio.run(FileStore(tmp_path).read_manifest("counter"))
    # A version that was superseded before its writer looked counts as lost to it.
    assert version == int(count) >= 100
    directory = tmp_path / "journals" / "counter" / "+manifest"
    kept = sorted(int(path.name) for path in directory.iterdir())
    assert kept == [version - 2, version - 1, version]


_CLAIMER = """
import asyncio, sys
from velaray.journal.files import FileStore

async def claim(root):
    store = FileStore(root)
    print(*[await store.claim_number("me") for _ in range(20)])

asyncio.run(claim(sys.argv[1]))
"""


def test_processes_that_claim_numbers_never_share_one(tmp_path):
    command = [sys.executable, "-c", _CLAIMER, str(tmp_path)]
    claimers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    numbers = " ".join(claimer.communicate()[0] for claimer in claimers).split()
    assert sorted(map(int, numbers)) == list(range(1, 81))


def _advance(store: FileStore, version: int, times: int) -> int:
    for current in range(version, version + times):
        store._write_manifest(KEY, current, b"theirs")
    return version + times


@pytest.mark.parametrize("moment", ["urandom", "link"])
@on_loop
async def test_a_writer_that_pauses_before_linking_loses(files, monkeypatch, moment):
    """Meanwhile so many versions come and go that the name it wants is free again. It stops
    before it creates its file (which others would clean up) or before it links it."""
    slow, fast = files.store(), files.store()
    await fast.write_manifest(KEY, 0, b"theirs")
    call = getattr(os, moment)
    newest = []

    def late(*args):
        monkeypatch.setattr(os, moment, call)
        newest.append(_advance(fast, 1, KEPT_VERSIONS + 3))
        return call(*args)

    monkeypatch.setattr(os, moment, late)
    with pytest.raises(ManifestConflict):
        await slow.write_manifest(KEY, 1, b"stale")
    assert await slow.read_manifest(KEY) == (newest[0], b"theirs")
    assert not await slow.holds(KEY, 2)
    assert await fast.holds(KEY, newest[0])
    await fast.write_manifest(KEY, newest[0], b"theirs")


@on_loop
async def test_a_name_linked_again_by_a_late_writer_does_not_restore_a_former_owner(files):
    """The owner of version 2 stands still; 2 is cleaned up; a late writer links it anew."""
    owner, others = files.store(), files.store()
    await others.write_manifest(KEY, 0, b"theirs")
    await owner.write_manifest(KEY, 1, b"the owner's")
    await asyncio.to_thread(_advance, others, 2, KEPT_VERSIONS + 3)
    directory = files.root / "journals" / KEY / "+manifest"
    assert not (directory / "2").exists()
    (directory / "2").write_bytes(b"the owner's")
    assert not (directory / "3").exists()
    assert not await owner.holds(KEY, 2)


@on_loop
async def test_the_files_of_failed_attempts_are_cleaned_up(files):
    store = files.store()
    await store.write_manifest(KEY, 0, b"m")
    directory = files.root / "journals" / KEY / "+manifest"
    (directory / "new-2-dead").write_bytes(b"from a process that was killed")
    (directory / "new-9-alive").write_bytes(b"of somebody who is ahead")
    await store.write_manifest(KEY, 1, b"m")
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2", "new-9-alive"]
