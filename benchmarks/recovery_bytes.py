"""What recovery of a partition reads: it must depend on the tail, not on the history."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from velaray.actors.partition.machine import (
    PartitionMachine,
    Publish,
)
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.events.ids import ActorKey, TopicName
from velaray.journal.files import FileStore
from velaray.journal.journal import JournalSettings

HISTORY = 1_000
TIMES = 100
TAIL = 500
ENTRY = b"x" * 100
BATCH = 1_000
LIMIT = 2.0
_KEY = ActorKey.of_partition(TopicName.parse("recovery-bytes"), 1)


def run(options: Options) -> Result:
    """The histories are written once; every round recovers anew from a copy of them."""
    samples = Samples()
    for entries in (HISTORY, HISTORY * TIMES):
        for _ in range(options.rounds):
            read, seconds = asyncio.run(measure(entries, TAIL))
            subject = f"history of {entries:,} entries"
            samples.add("", subject, "bytes read by recovery", "B", read)
            samples.add("", subject, "recovery in process", "ms", seconds * 1e3)
    result = Result(
        name="recovery_bytes",
        settings={
            "journal": "local files, default roll-over",
            "entries": f"{len(ENTRY)} B, in commits of {BATCH}",
            "tail": f"{TAIL} entries after the last start of the partition",
        },
        baseline=f"history of {HISTORY:,} entries",
        rows=samples.rows(),
    )
    ratios = [result.ratio(row) for row in result.rows if row.unit == "B"]
    result.verdicts = [
        Verdict(f"bytes read with {TIMES} x the history over those with 1 x", ratio, LIMIT)
        for ratio in ratios
        if ratio is not None
    ]
    return result


async def measure(history: int, tail: int) -> tuple[int, float]:
    """Write a history, start anew, write the tail, start once more.

    Returns the bytes that the recovery read, and how many seconds it took.
    """
    directory = Path(tempfile.mkdtemp(prefix="velaray-bench-"))
    try:
        for entries in (history, tail):
            store = FileStore(str(directory))
            runtime = await _recover(store)
            await _publish(runtime, entries)
            await runtime.close()
            await store.close()
        store = FileStore(str(directory))
        began = time.perf_counter()
        runtime = await _recover(store)
        seconds, read = time.perf_counter() - began, store.counters.bytes_read
        if runtime.state.end_offset != history + tail:
            raise AssertionError(f"recovered {runtime.state.end_offset} of {history + tail}")
        await runtime.close()
        await store.close()
        return read, seconds
    finally:
        shutil.rmtree(directory)


async def _recover(store: FileStore) -> Runtime[PartitionState]:
    def fail(error: BaseException) -> None:
        raise error

    return await Runtime.recover(
        PartitionMachine(), store, _KEY, lambda: time.time_ns() // 10**6, JournalSettings(), fail
    )


async def _publish(runtime: Runtime[PartitionState], entries: int) -> None:
    first = runtime.state.end_offset
    for start in range(first, first + entries, BATCH):
        sequences = range(start, min(start + BATCH, first + entries))
        await asyncio.gather(
            *(
                runtime.ask(Publish("producer", number, number, 1, ENTRY, True, None))
                for number in sequences
            )
        )
