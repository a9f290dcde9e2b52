"""Reads that don't wait for lists of journals, or for writes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.journal.testing import KEY, on_loop
from velaray.journal.files import FileStore

MANY = [f"partition/public/default/t{number:03}/-1/1" for number in range(200)]


@on_loop
async def test_reads_do_not_wait_for_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    for name in [*MANY, KEY]:
        await store.write_manifest(name, 0, b"m")
    goes_on, walk = threading.Event(), os.walk

    def slow_walk(directory: Path) -> Iterator[tuple[Any, Any, Any]]:
        goes_on.wait()
        yield from walk(directory)

    monkeypatch.setattr(os, "walk", slow_walk)
    listed = asyncio.ensure_future(store.list_journals())
    try:
        assert await asyncio.wait_for(store.read_manifest(KEY), 30) == (1, b"m")
        assert not listed.done()
    finally:
        goes_on.set()
    assert await listed == sorted([*MANY, KEY])
    assert await store.list_journals("partition/public") == [KEY, *MANY]
    await store.close()


@on_loop
async def test_an_owner_is_confirmed_while_other_journals_are_synced(tmp_path: Path) -> None:
    store, synced = FileStore(tmp_path, writers=1), threading.Event()
    assert await store.write_manifest(KEY, 0, b"m") == 1
    syncing = store._writer_of(KEY).run(synced.wait)
    try:
        assert await asyncio.wait_for(store.holds(KEY, 1), 30)
        assert not await asyncio.wait_for(store.holds(KEY, 2), 30)
    finally:
        synced.set()
    await syncing
    await store.close()
