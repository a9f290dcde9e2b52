"""What the acknowledgements of a subscription cost that has millions of holes.

10 million entries, every second one acknowledged: memory, the bytes of a checkpoint, the time
to recover. Run as a program (``python -m benchmarks.ack_state DIRECTORY ENTRIES BUDGET``) it
measures one recovery, in a process of its own, and prints it as JSON.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from benchmarks.processes import private_bytes
from velaray.actors.runtime import Runtime
from velaray.actors.sets import acknowledged_ranges
from velaray.actors.sets.acknowledged_ranges import AcknowledgedRanges
from velaray.actors.sets.bitmaps import Bitmap
from velaray.actors.sets.ranges import RangeSet
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.machine import Ack, Create, SubscriptionMachine, SubscriptionState
from velaray.events.ids import ActorKey, TopicName
from velaray.journal.files import FileStore
from velaray.journal.journal import Journal, JournalSettings

ENTRIES = 10_000_000
PER_ACK = 5_000
BUDGETS = {"budget 3 MiB": 3 << 20, "budget 256 KiB": 256 << 10}
MEMORY_LIMIT_MIB = 8.0
RECOVERY_LIMIT_S = 2.0
SEGMENT_LIMIT = (8 << 10) + 128
"""The largest segment of holes, and what its frame adds."""
STEPS = 20_000
FORMS = {"bitmaps": Bitmap, "ranges": RangeSet}
_KEY = ActorKey.of_partition(TopicName.parse("ack-state"), 1).of_subscription("s", 1)


def run(options: Options) -> Result:
    """The holes are made once, by acknowledgements; every round recovers them from a copy."""
    samples = Samples()
    for _ in range(options.rounds):
        for subject, form in FORMS.items():
            for case, nanoseconds in _speeds(form).items():
                samples.add(case, subject, "per acknowledgement", "ns", nanoseconds)
    directory = Path(tempfile.mkdtemp(prefix="velaray-bench-"))
    try:
        began = time.process_time()
        asyncio.run(_acknowledge(directory / "made", ENTRIES))
        spent = time.process_time() - began
        for _ in range(options.rounds):
            for subject, budget in BUDGETS.items():
                shutil.copytree(directory / "made", directory / "copy")
                found = _in_a_process(directory / "copy", ENTRIES, budget)
                shutil.rmtree(directory / "copy")
                for measure, (unit, value) in found.items():
                    samples.add("5 million holes", subject, measure, unit, value)
    finally:
        shutil.rmtree(directory)
    result = Result(
        name="ack_state",
        settings={
            "entries": f"{ENTRIES:,}, every second one acknowledged, {PER_ACK:,} a command",
            "segments": f"{acknowledged_ranges.SEGMENT:,} offsets each",
            "memory": "Private_Clean + Private_Dirty, over what it was before the recovery",
            "one more": "an entry in the middle, then the next owner's checkpoint",
        },
        baseline="ranges",
        rows=samples.rows(),
        notes=[f"acknowledging took {spent:.0f} s of CPU time"],
    )
    result.verdicts = list(_verdicts(result))
    return result


def _verdicts(result: Result) -> Any:
    for row in result.rows:
        if row.measure == "memory of the acknowledgements":
            yield Verdict(f"MiB of memory, {row.subject}", row.median, MEMORY_LIMIT_MIB)
        if row.measure == "segments in a checkpoint after one more":
            yield Verdict(
                f"bytes beside the marker after one more acknowledgement, {row.subject}",
                row.median,
                SEGMENT_LIMIT,
            )
        if row.measure == "recovery":
            yield Verdict(f"s to recover, {row.subject}", row.median, RECOVERY_LIMIT_S)


def _in_a_process(directory: Path, entries: int, budget: int) -> dict[str, tuple[str, float]]:
    command = [sys.executable, "-m", __name__, str(directory), str(entries), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, tuple[str, float]] = json.loads(done.stdout)
    return found


async def _recover(store: FileStore) -> Runtime[SubscriptionState]:
    def fail(error: BaseException) -> None:
        raise error

    return await Runtime.recover(
        SubscriptionMachine(), store, _KEY, lambda: time.time_ns() // 10**6, JournalSettings(), fail
    )


async def _acknowledge(directory: Path, entries: int) -> None:
    """Make the holes; the first entry is not acknowledged, so the mark stays."""
    store = FileStore(directory)
    runtime = await _recover(store)
    await runtime.ask(Create(0))
    for first in range(1, entries, 2 * PER_ACK):
        offsets = range(first, min(first + 2 * PER_ACK, entries), 2)
        await runtime.ask(Ack(entries, [(offset, offset + 1) for offset in offsets]))
    await runtime.close()
    await _restart(store)  # with all of it in one checkpoint
    await store.close()


async def _restart(store: FileStore) -> None:
    await (await _recover(store)).close()


async def measure(directory: Path, entries: int) -> dict[str, tuple[str, float]]:
    """Recover, acknowledge one more entry, recover again."""
    store = FileStore(directory)
    before = _memory()
    began = time.perf_counter()
    runtime = await _recover(store)
    seconds = time.perf_counter() - began
    cursor = runtime.state.cursor
    if cursor.acked_range_count() != entries // 2 or cursor.backlog(entries) != entries // 2:
        raise AssertionError(f"recovered {cursor.acked_range_count()} of {entries // 2} holes")
    unchanged = _checkpoint_bytes(runtime)
    for offset in range(
        0, entries, acknowledged_ranges.SEGMENT // 2
    ):  # every segment is looked into
        if cursor.is_acked(offset) != bool(offset % 2):
            raise AssertionError(f"entry {offset} would be delivered wrongly")
    memory = _memory() - before
    middle = entries // 2 // 2 * 2
    await runtime.ask(Ack(entries, [(middle, middle + 1)]))
    await runtime.close()
    runtime = await _recover(store)
    more = _checkpoint_bytes(runtime)
    await runtime.close()
    await store.close()
    return {
        "memory of the acknowledgements": ("MiB", memory / (1 << 20)),
        "segments in memory": ("MiB", cursor.beyond.memory() / (1 << 20)),
        "recovery": ("s", seconds),
        "marker of a checkpoint": ("B", unchanged),
        "segments in a checkpoint after one more": ("B", more - unchanged),
    }


def _memory() -> int:
    """This process's private memory, without what it has freed already."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return private_bytes(os.getpid())


def _checkpoint_bytes(runtime: Runtime[SubscriptionState]) -> int:
    """What precedes history in the newest ledger."""
    journal = runtime.journal
    assert isinstance(journal, Journal)
    return journal.ledgers[-1].data_offset


def _speeds(form: Any) -> dict[str, float]:
    """CPU nanoseconds per acknowledgement of one entry, with a look at the next one."""
    orders = {
        "in order": range(STEPS),
        "every second": range(1, 2 * STEPS, 2),
        "backwards": range(STEPS, 0, -1),
    }
    found = {}
    for case, order in orders.items():
        cursor = Cursor(beyond=AcknowledgedRanges(form))
        began = time.process_time_ns()
        for offset in order:
            cursor.ack_range(offset, offset + 1)
            cursor.is_acked(offset + 1)
        found[case] = (time.process_time_ns() - began) / STEPS
    return found


if __name__ == "__main__":
    acknowledged_ranges.BUDGET = int(sys.argv[3])
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1]), int(sys.argv[2])))))
