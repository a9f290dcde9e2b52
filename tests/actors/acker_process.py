"""A subscription in a process of its own, which prints every acknowledgement that is durable.

``python -m tests.actors.acker_process DIRECTORY SEED``: acknowledges entries below `END` that
aren't yet, in the seed's order, with a checkpoint every few of them, until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from random import Random

from tests.actors.acknowledging import END, SMALL, acked, begin, small_segments
from velaray.actors.subscription.machine import Ack
from velaray.journal.files import FileStore


async def _acknowledge(directory: str, seed: int) -> None:
    runtime = await begin(FileStore(directory), SMALL)
    left = sorted(set(range(END)) - await acked(runtime))
    Random(seed).shuffle(left)
    print("ready", flush=True)
    for offset in left:
        await runtime.ask(Ack(END, [(offset, offset + 1)]))
        print(offset, flush=True)


if __name__ == "__main__":
    small_segments(lambda owner, name, value: setattr(owner, name, value))
    asyncio.run(_acknowledge(sys.argv[1], int(sys.argv[2])))
