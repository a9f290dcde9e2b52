"""Which versions of velaray can run side by side in one cluster, as during a rolling upgrade.

A process keeps the code that it was started with. So after an upgrade of the package, hosts that
were restarted run the new version, and the others the old one. They work together if they have the
same protocol number.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from importlib.metadata import version

PROTOCOL = 1
"""The number of what processes of one cluster exchange: messages between actors, the settings that
new processes get, and the events that an actor may read after a move. A release that changes any of
it raises the number (``tests/topology/test_compatibility.py``)."""
VERSION = version("velaray")
"""The version that this process runs, also after another one was installed."""

_INSTALLED_S = 60.0
_CALL = "from velaray.topology.compatibility import PROTOCOL, VERSION; print(PROTOCOL, VERSION)"


@dataclass(frozen=True, slots=True)
class Installed:
    """The version that a new process of this machine would run."""

    version: str
    protocol: int


async def installed() -> Installed:
    """Ask a new Python process. Raises `OSError` if it fails, `TimeoutError` if it hangs."""
    path = os.pathsep.join(filter(None, sys.path))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CALL,
        env={**os.environ, "PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_INSTALLED_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        last = err.decode(errors="replace").strip().splitlines()[-1:]
        raise OSError(f"the installed velaray can't be loaded: {''.join(last)}")
    protocol, found = out.decode().split(maxsplit=1)
    return Installed(found.strip(), int(protocol))
