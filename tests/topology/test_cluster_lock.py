"""What a start does with the data directory before anything else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from velaray.starting import ClusterError, lock_data


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_start_tightens_permissions_of_an_existing_data_directory(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    (data_dir / "journals").mkdir(parents=True)
    data_dir.chmod(0o755)
    (data_dir / "owner.lock").touch(0o644)
    with lock_data(str(data_dir)):
        for path in (data_dir, data_dir / "journals"):
            assert mode(path) == 0o700
        assert mode(data_dir / "owner.lock") == 0o600


def test_a_start_creates_a_data_directory_readable_only_by_its_owner(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        with lock_data(str(tmp_path / "a" / "data")):
            pass
    finally:
        os.umask(umask)
    assert [mode(tmp_path / each) for each in ("a", "a/data", "a/data/owner.lock")] == [
        *(0o700, 0o700, 0o600)
    ]


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(ClusterError, match="data can't be used for data: "):
        lock_data(str(tmp_path / "data"))


def test_a_data_directory_whose_permissions_cannot_be_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(ClusterError, match="can be read by other users"):
        lock_data(str(tmp_path))
