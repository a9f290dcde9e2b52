"""What the disk does without anybody's software: append and fdatasync, as dd would."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.loads.measure import Values
from benchmarks.servers import scratch

BLOCK = 1 << 20


def run(seconds: float) -> Values:
    """Append a MiB, fdatasync, and again, in the directory for temporary files."""
    with scratch("disk") as directory:
        return _append(directory / "appended", seconds)


def _append(path: Path, seconds: float) -> Values:
    block, blocks = os.urandom(BLOCK), 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            os.write(file, block)
            os.fdatasync(file)
            blocks += 1
        took = time.perf_counter() - began
    finally:
        os.close(file)
    return {"append and fdatasync per MiB": ("MiB/s", blocks / took)}
