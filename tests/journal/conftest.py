from collections.abc import Iterator

import pytest

from tests.journal.testing import (
    Backend,
    EncryptedBackend,
    FileBackend,
    MemoryBackend,
    ObjectBackend,
    S3Backend,
)
from tests.support.on_s3 import on_s3
from tests.support.s3_server import BUILD_WITHIN_S, installed

ON_S3 = {"test_store_contract", "test_journal", "test_recovery", "test_encryption"}
"""The modules whose tests run on an S3 server, too."""
ENCRYPTED = {
    *("test_fencing", "test_journal", "test_recovery", "test_relaxed", "test_replay"),
    *("test_segments", "test_store_contract", "test_faults", "test_damage", "test_tiered_ledgers"),
    *("test_inconsistent_journals", "test_garbage_collection", "test_lost_answers"),
}
"""The modules whose tests run with encrypted ledgers, too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that don't run on an S3 server; give the others the time to build it."""
    on_server = [item for item in items if _has_s3_backend(item)]
    left_out = {item for item in on_server if not _can_run_on_s3(item)}
    left_out |= {item for item in items if not _can_be_encrypted(item)}
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        if _needs_server(item) and not installed().exists():
            item.add_marker(pytest.mark.timeout(BUILD_WITHIN_S))


def _needs_server(item: pytest.Item) -> bool:
    return _has_s3_backend(item) or "s3_url" in getattr(item, "fixturenames", ())


def _has_s3_backend(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("backend") == "s3"


def _can_run_on_s3(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    module = item.module.__name__.rpartition(".")[2]
    return module in ON_S3


def _can_be_encrypted(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    if callspec is None or callspec.params.get("backend") != "encrypted":
        return True
    assert isinstance(item, pytest.Function)
    return item.module.__name__.rpartition(".")[2] in ENCRYPTED


@pytest.fixture(params=["memory", "encrypted", "files", "objects", pytest.param("s3", marks=on_s3)])
def backend(request, tmp_path) -> Iterator[Backend | ObjectBackend]:
    chosen: Backend | ObjectBackend
    if request.param == "s3":
        chosen = S3Backend(request.getfixturevalue("s3_url"))
    elif request.param == "objects":
        chosen = ObjectBackend()
    elif request.param == "encrypted":
        chosen = EncryptedBackend()
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
