"""The first process of a machine of `machines.py`, in namespaces of its own.

Started with the machine's name and the folders of programs that it needs. It makes every directory
read-only that the machine shares with others, gives it an empty disk in memory, writes its process
id as others see it, and lives until its input ends. All processes of the machine end with it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

OWN = ("/dev/shm", "/tmp")
"""The directories of the machine's disk."""
_OF_THE_KERNEL = {
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
    *("efivarfs", "fusectl", "hugetlbfs", "mqueue", "proc", "pstore", "rpc_pipefs", "securityfs"),
    *("sysfs", "tracefs"),
}
_STAGING = "/dev/shm/.programs"


class _Mount(NamedTuple):
    place: str
    options: str
    kind: str


def _mounts() -> Iterator[_Mount]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        kind = fields[fields.index("-") + 1]
        place = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        yield _Mount(place, fields[5], kind)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", "--no-mtab", *arguments], check=True)


def _can_be_entered(place: str) -> bool:
    try:
        os.stat(place)
    except OSError:
        return False
    return True


def protect_shared() -> None:
    """Make everything read-only, except for the kernel's interfaces."""
    for mount in list(_mounts()):
        first, *kept = mount.options.split(",")
        if first == "rw" and mount.kind not in _OF_THE_KERNEL and _can_be_entered(mount.place):
            _mount("-o", ",".join(["remount", "bind", "ro", *kept]), mount.place)


def make_disk(programs: Sequence[str]) -> None:
    """An empty disk, in which ``programs`` are still where they were."""
    shared_memory, *others = OWN
    inside = [each for each in programs if Path(each).is_relative_to(Path(*others))]
    _mount("-t", "tmpfs", "disk", shared_memory)
    for number, program in enumerate(inside):
        os.makedirs(f"{_STAGING}/{number}")
        _mount("--bind", program, f"{_STAGING}/{number}")
    for place in others:
        _mount("-t", "tmpfs", "disk", place)
    for number, program in enumerate(inside):
        os.makedirs(program, exist_ok=True)
        _mount("--move", f"{_STAGING}/{number}", program)


def main() -> None:
    """Prepare the machine, and wait."""
    name, *programs = sys.argv[1:]
    seen_outside = os.readlink("/proc/self")
    socket.sethostname(name)
    _mount("-t", "proc", "proc", "/proc")
    protect_shared()
    make_disk(programs)
    # The processes that lose their parent become children of this one.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(seen_outside, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
