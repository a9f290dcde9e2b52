"""Memory in small free blocks, for steady measurements."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import steady_memory


def test_memory_is_taken_and_the_rest_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 MiB: a page of each MiB stays."""
    size = 64 << 20
    monkeypatch.setattr(steady_memory, "memory_bytes", lambda _: steady_memory.LEFT_BYTES + size)
    before = resident_bytes()
    with steady_memory.small_free_blocks():
        held = resident_bytes() - before
    assert 64 * 4096 <= held < 16 << 20


def test_too_little_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady_memory, "memory_bytes", lambda _: steady_memory.LEFT_BYTES)
    with pytest.raises(RuntimeError, match="2 GiB"), steady_memory.small_free_blocks():
        pass


def test_a_share_is_between_none_and_all() -> None:
    assert 0 <= steady_memory.share_in_large_blocks() <= 1


def test_a_command_is_needed() -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "benchmarks.steady_memory"], capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "name the command" in refused.stderr


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
