"""What every place of backups promises."""

from __future__ import annotations

import stat

import pytest

from tests.journal.testing import on_loop
from velaray.backup.blobs import BlobExists, FolderBlobs, PlaceFailed
from velaray.journal.errors import NotStored


@on_loop
async def test_an_object_is_created_once_and_read(blobs):
    assert await blobs.list("") == []
    await blobs.create("one/two", b"content")
    with pytest.raises(BlobExists, match="one/two: exists already"):
        await blobs.create("one/two", b"other")
    await blobs.create("one/three", b"")
    await blobs.create("other", b"x")
    assert await blobs.get("one/two") == b"content"
    assert await blobs.get("one/four") is None
    assert await blobs.get_range("one/two", 3, 2) == b"te"
    assert await blobs.get_range("one/two", 3, 200) == b"tent"
    with pytest.raises(NotStored):
        await blobs.get_range("one/four", 0, 1)
    assert await blobs.list("one") == ["one/three", "one/two"]
    assert await blobs.list("") == ["one/three", "one/two", "other"]
    await blobs.close()


@on_loop
async def test_files_are_for_their_owner_and_whole(folder):
    await folder.create("a/b/c", b"content")
    for path, mode in ((folder.root, 0o700), (folder.root / "a/b", 0o700)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE((folder.root / "a/b/c").stat().st_mode) == 0o600
    assert [path.name for path in (folder.root / "a/b").iterdir()] == ["c"]
    (folder.root / "a/b/.new-interrupted").write_bytes(b"half")
    assert await folder.list("") == ["a/b/c"]


@on_loop
async def test_a_place_that_can_not_be_used_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PlaceFailed, match="Not a directory"):
        await FolderBlobs(tmp_path / "file").create("a", b"x")
