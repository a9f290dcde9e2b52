from collections.abc import Iterator

import pytest

from tests.journal.testing import Backend, FileBackend, MemoryBackend, ObjectBackend
from velaray.backup.blobs import Blobs, FolderBlobs, ObjectBlobs
from velaray.journal.objects.memory_objects import MemoryObjects


@pytest.fixture(params=["memory", "files", "objects"])
def backend(request, tmp_path) -> Iterator[Backend | ObjectBackend]:
    chosen: Backend | ObjectBackend
    match request.param:
        case "memory":
            chosen = MemoryBackend()
        case "files":
            chosen = FileBackend(tmp_path / "data")
        case _:
            chosen = ObjectBackend()
    yield chosen
    chosen.close()


@pytest.fixture(params=["folder", "objects"])
def blobs(request, tmp_path) -> Blobs:
    if request.param == "folder":
        return FolderBlobs(tmp_path / "backups")
    return ObjectBlobs(MemoryObjects())


@pytest.fixture
def folder(tmp_path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "backups")
