"""Only the owner of a data directory can read its files."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from velaray.journal.files import FileStore
from velaray.journal.private import tighten


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """The permissions of everything in a directory, by relative path."""
    found = [root, *root.rglob("*")]
    return {str(each.relative_to(root)): stat.S_IMODE(each.stat().st_mode) for each in found}


def test_a_store_creates_files_readable_only_by_their_owner(tmp_path: Path) -> None:
    root = tmp_path / "above" / "data"

    async def scenario() -> None:
        store = FileStore(root)
        await store.claim_number("a/b")
        await store.write_manifest("a/b", 0, b"manifest")
        writer = await store.create_ledger("a/b", 1, b"header")
        await writer.append([b"frame"], confirm=1, mark=b"mark")
        await store.write_index("a/b", 1, b"index")
        await writer.close()
        await store.close()

    asyncio.run(scenario())
    assert modes(tmp_path / "above") == {
        ".": 0o700,
        "data": 0o700,
        "data/numbers": 0o700,
        "data/numbers/1": 0o600,
        "data/journals": 0o700,
        "data/journals/a": 0o700,
        "data/journals/a/b": 0o700,
        "data/journals/a/b/+manifest": 0o700,
        "data/journals/a/b/+manifest/1": 0o600,
        "data/journals/a/b/1.ledger": 0o600,
        "data/journals/a/b/1.mark": 0o600,
        "data/journals/a/b/1.index": 0o600,
    }


def test_permissions_of_a_readable_directory_are_tightened(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "journals" / "a").mkdir(parents=True)
    root.chmod(0o2755)
    tighten(root, ("journals", "numbers"))
    assert modes(root) == {".": 0o2700, "journals": 0o700, "journals/a": 0o755}


def test_a_directory_with_unknown_contents_is_left_unchanged(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "journals").mkdir(parents=True)
    (root / "neighbour").mkdir()
    tighten(root, ("journals", "numbers"))
    assert modes(root) == {".": 0o755, "journals": 0o700, "neighbour": 0o755}
