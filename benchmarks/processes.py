"""What the kernel knows about processes: private memory, CPU time, bytes written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def private_bytes(pid: int) -> int:
    """Memory that the process shares with nobody (USS): what its end would free."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Private_Clean", "Private_Dirty"):
            total += int(value.split()[0]) << 10
    return total


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds (user and system) and bytes sent towards the disk, so far."""

    cpu_s: float
    written: int

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.cpu_s - earlier.cpu_s, self.written - earlier.written)


def usage(pids: Iterable[int]) -> Usage:
    """The sum over the processes. Raises `FileNotFoundError` if one is gone."""
    cpu_s, written = 0.0, 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s += (int(fields[11]) + int(fields[12])) / _TICK
        written += _write_bytes(pid)
    return Usage(cpu_s, written)


def _write_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "write_bytes":
            return int(value)
    raise ValueError(f"/proc/{pid}/io has no write_bytes")
