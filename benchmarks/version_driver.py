"""Runs workloads of the tree in the current directory; `benchmarks.versions` starts it in each.

It reads one JSON object a line, ``{"load", "topic", "way", ...}``, and answers each with one.
An older version's tree runs this file too, so it uses only what every version has.

It answers when the files of the workload's topics are gone. A version that deletes them later than
another one would run its next workload beside that, and on pages of memory that are colder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

GONE_WITHIN_S = 120.0
LEFT_BYTES = 64 << 20
"""What a workload may leave: catalogs, and space that is allocated ahead."""
_LOOK_S = 0.2


def main() -> None:
    """Serve requests until standard input ends. ``sys.argv[1]`` is the log of the cluster."""
    sys.path.insert(0, str(Path.cwd()))
    from benchmarks.worker import Remote

    remote = Remote("velaray", Path(sys.argv[1]))
    try:
        print(json.dumps(remote.settings()), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            before = _stored(remote._scratch)
            values = remote.run(request.pop("load"), 100.0, **request)
            _wait_for_removal(remote._scratch, before + LEFT_BYTES)
            print(json.dumps(values), flush=True)
    finally:
        remote.close()


def _wait_for_removal(directory: str, limit: int) -> None:
    """Raises `TimeoutError` if more than ``limit`` bytes stay in the directory."""
    late = time.monotonic() + GONE_WITHIN_S
    while (stored := _stored(directory)) > limit:
        if time.monotonic() > late:
            raise TimeoutError(f"{stored >> 20} MiB are left in {directory}")
        time.sleep(_LOOK_S)
    os.sync()


def _stored(directory: str) -> int:
    """The bytes of all files below ``directory``."""
    total = 0
    for path, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.stat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


if __name__ == "__main__":
    main()
