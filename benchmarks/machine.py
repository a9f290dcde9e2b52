"""What the figures were measured on, so that they can be compared with others."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import threading
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.steady_memory import memory_bytes, share_in_large_blocks

_PACKAGES = (
    *("velaray", "ray", "pulsar-client", "redis", "hiredis", "nats-py", "pika", "aio-pika"),
    *("confluent-kafka", "pyarrow", "protobuf", "uvloop"),
)


IDLE_OVER_S = 3.0
_IDLE = 3
_GUEST = 9
"""Time of guests comes after all others, and is in them already."""


def describe_machine() -> dict[str, str]:
    """Date, processor, memory and how it is free, kernel, file system, versions, load.

    Takes `IDLE_OVER_S`, to see whether anything else runs.
    """
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": "python -m benchmarks " + " ".join(sys.argv[1:]),
        "processor": f"{os.cpu_count()} x {_first('/proc/cpuinfo', 'model name')}",
        "memory": _memory(),
        "kernel": platform.release(),
        "journals on": f"{_file_system(tempfile.gettempdir())} (the directory for temporary files)",
        "python": platform.python_version(),
        "load before": load(),
        "idle before": f"{idle_share(IDLE_OVER_S):.2f}",
        **{name: _version(name) for name in _PACKAGES},
    }


def load() -> str:
    """Averages of the last 1, 5 and 15 minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def idle_share(seconds: float) -> float:
    """The idle share of the processors during the next ``seconds``, from 0 to 1.

    Waiting for a disk isn't idleness: another process uses the disk.
    """
    before = _ticks()
    threading.Event().wait(seconds)
    spent = [after - earlier for after, earlier in zip(_ticks(), before, strict=True)]
    return spent[_IDLE] / max(sum(spent), 1)


def _ticks() -> list[int]:
    """What all processors did since the start: user, nice, system, idle, waiting and so on."""
    return [int(value) for value in _first_line("/proc/stat").split()[1:_GUEST]]


def _first_line(path: str) -> str:
    return Path(path).read_text().partition("\n")[0]


def _first(path: str, label: str) -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == label:
            return value.strip()
    return "unknown"


def _memory() -> str:
    size, large = memory_bytes("MemTotal"), share_in_large_blocks()
    return f"{size / (1 << 30):.0f} GiB ({large:.0%} of what is free in blocks of 2 MiB or more)"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _file_system(path: str) -> str:
    """Type and device of the mount that holds ``path``."""
    best, found = "", "unknown"
    real = os.path.realpath(path)
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, found = mount, f"{kind} on {device}"
    return found
