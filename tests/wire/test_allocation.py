"""The memory of freed buffers stays in the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource
from velaray.wire.allocation import keep_freed_memory
if {called}:
    keep_freed_memory()
def fill():
    buffers = [b"x" * (200 << 10) for _ in range(20)]
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(called: bool) -> int:
    """Page faults of a process that fills 4 MiB of buffers 50 times."""
    command = [sys.executable, "-c", _FAULTS.format(called=called)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator isn't glibc's")
def test_freed_buffers_are_used_again() -> None:
    assert _faults(True) < 1_000
    assert _faults(False) > 10_000, "the allocator keeps them anyway: remove the call"
