from collections.abc import Iterator

import pytest

from tests.journal.testing import Backend, FileBackend, MemoryBackend, ObjectBackend


@pytest.fixture(params=["memory", "files", "objects"])
def backend(request, tmp_path) -> Iterator[Backend]:
    if request.param == "objects":
        chosen = ObjectBackend()
    else:
        chosen = MemoryBackend() if request.param == "memory" else FileBackend(tmp_path)
    yield chosen
    chosen.close()


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def files(tmp_path) -> Iterator[FileBackend]:
    chosen = FileBackend(tmp_path)
    yield chosen
    chosen.close()
