"""More than a frame's worth: several commits, in order, each released by itself."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.actors.test_runtime import KEY, Host, eventually, on_a_loop, recovered
from tests.actors.toy import Add, Look, Toy
from velaray.actors.machine import Reason, Refusal
from velaray.actors.runtime import Runtime
from velaray.journal.errors import StorageFull, SyncFailed
from velaray.journal.memory import MemoryDisk, Step
from velaray.journal.objects.host_log import HOSTS, LARGEST_COMMIT, HostLogSettings
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.memory_objects import MemoryBucket, MemoryObjects
from velaray.topology.config import ClusterConfig
from velaray.topology.stores import journal_settings_of

NAMES = [f"name {number:02}" for number in range(12)]


async def _held(disk: MemoryDisk | None = None, error: Exception | None = None, **settings: int):
    """A host whose first commit waits at its sync, with twelve commands behind it."""
    host = await Host(disk).start(frame_bytes=40, **settings)
    gate = host.hold(Step.SYNC, error)
    host.submit(Add("first"))
    await gate.arrived.wait()
    host.submit(*map(Add, NAMES))
    return host, gate


@on_a_loop
async def test_each_frame_is_released_when_it_is_durable_and_not_before() -> None:
    disk = MemoryDisk()
    host, gate = await _held(disk)
    pending = host.runtime.pending_bytes
    released = []
    for _ in range(3):
        arrived = gate
        gate = host.hold(Step.SYNC)
        arrived.opened.set()
        await gate.arrived.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        released.append(len(host.released))
        assert host.runtime.pending_bytes < pending
        pending = host.runtime.pending_bytes
    assert released[0] == 1
    steps = [after - before for before, after in pairwise(released)]
    assert len(set(steps)) == 1
    assert 1 < steps[0] < 12
    gate.opened.set()
    await host.until(13)
    assert host.released == list(range(1, 14))
    assert host.runtime.pending_bytes == 0
    await host.runtime.close()
    assert (await recovered(disk)).names == ["first", *NAMES]


@on_a_loop
async def test_a_read_waits_for_every_frame_that_it_may_depend_on() -> None:
    host, gate = await _held()
    host.submit(Look())
    reading = asyncio.ensure_future(host.runtime.read(lambda state: len(state.names)))
    second = host.hold(Step.SYNC)
    gate.opened.set()
    await second.arrived.wait()
    assert not reading.done()
    assert len(host.released) == 1
    second.opened.set()
    assert await reading == 13
    assert host.released[-1] == 13
    await host.runtime.close()


@on_a_loop
async def test_a_read_right_after_a_full_frame_waits_for_it() -> None:
    host = await Host().start(frame_bytes=1)
    host.submit(Add("a"), Look())
    assert host.released == []
    await host.until(2)
    assert host.released == [1, 1]
    await host.runtime.close()


@on_a_loop
async def test_a_disk_that_fills_up_between_frames_refuses_the_unwritten_frames() -> None:
    disk = MemoryDisk()
    host, gate = await _held(disk)
    second = host.hold(Step.WRITE, StorageFull("file", "full"))
    gate.opened.set()
    await second.arrived.wait()
    second.opened.set()
    await host.until(13)
    assert host.released[0] == 1
    assert all(
        isinstance(reply, Refusal) and reply.reason is Reason.STORAGE_FULL
        for reply in host.released[1:]
    )
    assert host.runtime.state.names == ["first"]
    assert host.runtime.pending_bytes == 0
    host.store.hook = None
    host.submit(Add("again"))
    await host.until(14)
    assert host.released[13] == 2
    await host.runtime.close()
    assert (await recovered(disk)).names == ["first", "again"]


@on_a_loop
async def test_a_roll_over_takes_every_frame_before_it() -> None:
    disk = MemoryDisk()
    host, gate = await _held(disk, roll_records=2)
    host.submit(Add("alone"))  # less than a frame's worth: in the state, and in no frame yet
    rolling = host.hold(Step.CREATE)
    gate.opened.set()
    await rolling.arrived.wait()
    assert host.released == list(range(1, 15))
    rolling.opened.set()
    await eventually(lambda: host.runtime.stats.rolls == 1)
    host.submit(Add("last"))
    await host.until(15)
    assert host.released == list(range(1, 16))
    await host.runtime.close()
    assert (await recovered(disk)).names == ["first", *NAMES, "alone", "last"]


@pytest.mark.parametrize("ending", ["failed sync", "abort"])
@on_a_loop
async def test_no_frame_is_released_after_the_runtime_ended(ending: str) -> None:
    error = SyncFailed("file", "broken") if ending == "failed sync" else None
    host, gate = await _held(error=error)
    if ending == "abort":
        host.runtime.abort()
    gate.opened.set()
    for _ in range(50):
        await asyncio.sleep(0)
    assert host.released == []
    assert host.runtime.pending_bytes == 0
    assert host.fatal == ([error] if error is not None else [])
    await host.runtime.close()


@on_a_loop
async def test_closing_writes_and_releases_every_frame() -> None:
    disk = MemoryDisk()
    host, gate = await _held(disk)
    closing = asyncio.ensure_future(host.runtime.close())
    await asyncio.sleep(0)
    gate.opened.set()
    await closing
    assert host.released == list(range(1, 14))
    assert (await recovered(disk)).names == ["first", *NAMES]


@on_a_loop
async def test_a_busy_journal_in_an_object_store_does_not_wait_for_the_interval_with_each_frame():
    """A full frame is as large as an object that is sent at once."""
    bucket, host = MemoryBucket(), Host()
    log = HostLogSettings(commit_interval_s=0)
    store = ObjectLedgerStore(MemoryObjects(bucket), settings=log)
    settings = journal_settings_of(ClusterConfig("s3://bucket/prefix", "1", b""))
    host.runtime = await Runtime.recover(Toy(), store, KEY, lambda: 77, settings, host.fatal.append)
    before = set(bucket.objects)
    host.submit(*(Add(f"{number} {'x' * (256 << 10)}") for number in range(64)))
    await host.until(64)
    new = (name for name in bucket.objects.keys() - before if name.startswith(HOSTS))
    sizes = [len(bucket.objects[name].data) for name in sorted(new)]
    assert len(sizes) == 4
    assert min(sizes) >= LARGEST_COMMIT
    await host.runtime.close()
    await store.close()
