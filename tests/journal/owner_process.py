"""An owner in a process of its own, which prints every sequence that it acknowledges.

``python -m tests.journal.owner_process DIRECTORY POINT SKIP``: POINT is ``before:CALL`` or
``after:CALL`` of a system call that the store makes, and the process stops itself (SIGSTOP)
there at its SKIP-th such call after the first acknowledgement; ``never`` to go on for ever.
Exit code 3: fenced.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from tests.journal.testing import started
from velaray.journal.errors import Fenced
from velaray.journal.files import FileStore
from velaray.journal.journal import JournalSettings

FENCED = 3


def _stop_at(point: str, skip: int) -> None:
    when, _, name = point.partition(":")
    call = getattr(os, name)
    left = skip

    def stopping(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if when == "before" and left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        result = call(*args, **kwargs)
        if when == "after" and left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    setattr(os, name, stopping)


async def _own(directory: str, point: str, skip: int) -> None:
    journal = await started(FileStore(directory), settings=JournalSettings(roll_records=7))
    events: list[bytes] = []
    while True:
        event = b"old-%d" % len(events)
        journal.stage(event, event * 100)
        sequence = await journal.commit()
        events.append(event)
        print(f"acknowledged {sequence} {event.decode()}", flush=True)
        if sequence == 0 and point != "never":
            _stop_at(point, skip)
        if journal.should_roll:
            await journal.roll({"events": b"\n".join(events)}, b"")


def main() -> None:
    directory, point, skip = sys.argv[1:]
    try:
        asyncio.run(_own(directory, point, int(skip)))
    except Fenced:
        print("fenced", flush=True)
        os._exit(FENCED)


if __name__ == "__main__":
    main()
