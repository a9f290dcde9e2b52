"""Lists of many journals."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.journal.testing import KEY, on_loop
from velaray.journal.files import FileStore

MANY = [f"partition/public/default/t{number:03}/-1/1" for number in range(200)]


@on_loop
async def test_reads_do_not_wait_for_a_long_list(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for name in [*MANY, KEY]:
        await store.write_manifest(name, 0, b"m")
    listed = asyncio.ensure_future(store.list_journals())
    await asyncio.sleep(0)  # the list has begun
    assert await store.read_manifest(KEY) == (1, b"m")
    assert not listed.done()
    assert await listed == sorted([*MANY, KEY])
    assert await store.list_journals("partition/public") == [KEY, *MANY]
    await store.close()
