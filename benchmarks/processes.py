"""What the kernel knows about processes: private memory, CPU time, bytes written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def private_bytes(pid: int) -> int:
    """Memory that the process doesn't share (USS): what its end would free."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Private_Clean", "Private_Dirty"):
            total += int(value.split()[0]) << 10
    return total


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds (user and system), bytes sent towards the disk, and read from files, so far.

    Reads count whether or not the page cache had the bytes; those from sockets don't count.
    """

    cpu_s: float
    written: int
    read: int = 0

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            self.cpu_s - earlier.cpu_s, self.written - earlier.written, self.read - earlier.read
        )


def usage(pids: Iterable[int]) -> Usage:
    """The sum over the processes. Raises `FileNotFoundError` if one is gone."""
    cpu_s, written, read = 0.0, 0, 0
    for pid in pids:
        cpu_s += sum(cpu_ticks(pid)) / TICKS_PER_S
        counters = _counters(pid)
        written += counters["write_bytes"]
        read += counters["rchar"]
    return Usage(cpu_s, written, read)


def cpu_ticks(pid: int) -> tuple[int, int]:
    """Ticks in user mode and in the kernel. Raises `FileNotFoundError` if the process is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])


def _counters(pid: int) -> dict[str, int]:
    """What the kernel counts of a process's reading and writing."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {name: int(value) for name, _, value in (line.partition(":") for line in lines)}


def descendants(pid: int, name: str | None = None) -> list[int]:
    """``pid``, its children, their children and so on; those called ``name`` if it's given."""
    found, left = [], [pid]
    while left:
        one = left.pop()
        try:
            if name in (None, Path(f"/proc/{one}/comm").read_text().strip()):
                found.append(one)
            for task in Path(f"/proc/{one}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return found
