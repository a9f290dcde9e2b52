"""Run a command while free memory consists of small blocks: ``python -m benchmarks.steady_memory
COMMAND``.

The host of a virtual machine with free page reporting takes back each free block of 2 MiB or more.
The next write to one of its pages costs several times as much as otherwise, so the CPU time of
workloads that allocate memory varies by a factor of two. This program takes nearly all memory and
gives back all but one page of each MiB. The rest is free for the command, in blocks that are
too small to be reported.
"""

from __future__ import annotations

import argparse
import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK_BYTES = 1 << 20
"""One page of each such block is kept: two of each reported one, since physical pages may be in
another order."""
LEFT_BYTES = 2 << 30
"""Memory that is never taken, for what else the machine does."""
REPORTED_ORDER = 9
"""Free blocks of two to this power pages are reported: 2 MiB with pages of 4 KiB."""


@contextmanager
def small_free_blocks() -> Iterator[None]:
    """Have free memory in blocks below 2 MiB. Raises `RuntimeError` if too little is available."""
    size = memory_bytes("MemAvailable") - LEFT_BYTES
    if size < BLOCK_BYTES:
        raise RuntimeError(f"less than {LEFT_BYTES >> 30} GiB of memory are available")
    page = mmap.PAGESIZE
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, size, page):
            memory[at] = 1
        for at in range(0, size - BLOCK_BYTES + 1, BLOCK_BYTES):
            memory.madvise(mmap.MADV_DONTNEED, at + page, BLOCK_BYTES - page)
        yield


def memory_bytes(label: str) -> int:
    """A line of `/proc/meminfo`. Raises `RuntimeError` if it isn't there."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == label:
            return int(value.split()[0]) << 10
    raise RuntimeError(f"/proc/meminfo has no line {label}")


def share_in_large_blocks() -> float:
    """The share of free memory in blocks that the host may take back, from 0 to 1."""
    large = free = 0
    for line in Path("/proc/buddyinfo").read_text().splitlines():
        _, _, counts = line.partition(" zone ")
        for order, count in enumerate(map(int, counts.split()[1:])):
            free += count << order
            large += count << order if order >= REPORTED_ORDER else 0
    return large / max(free, 1)


def main() -> int:
    """Run the command; its exit code is that of this program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steady_memory", description=__doc__)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="with its arguments")
    command = parser.parse_args().command
    if not command:
        parser.error("name the command to run")
    with small_free_blocks():
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
