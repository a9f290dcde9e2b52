"""Real Ray for the tests in this folder: one small cluster per module."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.support import RayNodes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs Ray."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ray)


@pytest.fixture(scope="module")
def nodes(request: pytest.FixtureRequest) -> Iterator[RayNodes]:
    """A Ray cluster on this machine: a head, and the module's ``WORKERS`` or one more raylet."""
    with RayNodes(workers=getattr(request.module, "WORKERS", 1)) as nodes:
        yield nodes


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A short path: Ray's sockets and our journals share its limit."""
    with tempfile.TemporaryDirectory(prefix="vr-") as folder:
        yield Path(folder)
