"""The log of a process: what an object holds, when it is sent, and when the log ends."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.journal.testing import on_loop
from velaray.journal.errors import JournalError, SyncFailed
from velaray.journal.objects.bodies import (
    Chunk,
    Kind,
    decode_body,
    decode_chunks,
    encode_body,
)
from velaray.journal.objects.conditional import ConditionalObjects
from velaray.journal.objects.host_log import (
    HostLog,
    HostLogSettings,
    LogSealed,
    Owner,
    log_object,
)
from velaray.journal.objects.memory_objects import Call, MemoryBucket, MemoryObjects, Request
from velaray.journal.objects.object_store import StoredObject, StoreUnavailable

NAME = "00000001-me"


class Bench:
    """A log in a bucket of its own, whose creations wait until the test lets them go on."""

    def __init__(self, interval_s: float = 0.0, *, held: bool = False, patience_s: float = 60.0):
        self.bucket = MemoryBucket()
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()
        self.died: list[JournalError] = []
        self.objects = MemoryObjects(self.bucket, self.hook)
        random = Random(1)
        conditional = ConditionalObjects(self.objects, random.randbytes, random, patience_s)
        settings = HostLogSettings(commit_interval_s=interval_s, largest_commit=1000, in_flight=2)
        self.log = HostLog(conditional, NAME, settings, self.died.append)
        self.first, self.second = Owner("a", 1), Owner("b", 7)

    async def hook(self, call: Call) -> None:
        if call.request is Request.CREATE and not call.done:
            await self.gate.wait()

    def stage(self, data: bytes, owner: Owner | None = None, offset: int = 0) -> int:
        owner = owner or self.first
        return self.log.stage(owner, [Chunk(owner.journal, owner.epoch, 5, offset, data)])

    def stored(self, number: int) -> list[tuple[str, int, bytes]]:
        name = log_object(NAME, number)
        found = self.bucket.objects[name]
        chunks, _, _ = decode_chunks("", decode_body(name, "", found.data, Kind.FRAMES).payload)
        return [(chunk.journal, chunk.epoch, bytes(chunk.data)) for chunk in chunks]


@on_loop
async def test_one_object_holds_what_all_journals_append_within_an_interval():
    bench = Bench(interval_s=0.02)
    await bench.log.wait(bench.stage(b"at once"))
    numbers = {bench.stage(b"one"), bench.stage(b"two", bench.second), bench.stage(b"three")}
    (number,) = numbers
    await bench.log.wait(number)
    assert bench.stored(number) == [("a", 1, b"one"), ("b", 7, b"two"), ("a", 1, b"three")]
    assert bench.objects.counters.puts == 2
    await bench.log.close()


@on_loop
async def test_a_full_object_does_not_wait_for_the_interval():
    bench = Bench(interval_s=3600)
    await bench.log.wait(bench.stage(b"at once"))
    await bench.log.wait(bench.stage(bytes(1000)))
    assert bench.log.committed == 2


@on_loop
async def test_a_number_is_committed_after_all_before_it():
    bench = Bench(held=True)
    waits = []
    for at, data in enumerate((b"one", b"two", b"three")):
        number = bench.stage(data)
        assert number == at
        waits.append(asyncio.ensure_future(bench.log.wait(number)))
        while at < 2 and bench.log.next_number == number:  # the third is beyond those in flight
            await asyncio.sleep(0)
    assert (bench.log.committed, bench.log.next_number) == (0, 2)
    bench.gate.set()
    await asyncio.gather(*waits)
    assert bench.log.committed == 3


@on_loop
async def test_what_a_cut_owner_staged_never_appears():
    bench = Bench(interval_s=0.02)
    await bench.log.wait(bench.stage(b"at once"))
    bench.stage(b"lost")
    number = bench.stage(b"kept", bench.second)
    bench.first.cut = True
    await bench.log.wait(number)
    assert bench.stored(number) == [("b", 7, b"kept")]


@on_loop
async def test_a_seal_ends_the_log_and_nothing_more_is_created():
    bench = Bench()
    await bench.log.wait(bench.stage(b"one"))
    bench.bucket.create(log_object(NAME, 1), b"")
    bench.bucket.objects[log_object(NAME, 1)] = _seal()
    with pytest.raises(LogSealed):
        await bench.log.wait(bench.stage(b"two"))
    with pytest.raises(LogSealed):
        bench.stage(b"three")
    assert [type(error) for error in bench.died] == [LogSealed]
    assert sorted(bench.bucket.objects) == [log_object(NAME, 0), log_object(NAME, 1)]


@on_loop
async def test_a_look_finds_a_seal_and_calls_at_once_share_it():
    bench = Bench()
    await bench.log.wait(bench.stage(b"one"))
    gets = bench.objects.counters.gets
    assert await asyncio.gather(*(bench.log.is_alive() for _ in range(50))) == [True] * 50
    assert bench.objects.counters.gets - gets <= 2
    bench.bucket.objects[log_object(NAME, 1)] = _seal()
    assert not await bench.log.is_alive()
    assert [type(error) for error in bench.died] == [LogSealed]


@on_loop
async def test_a_call_that_permits_it_uses_a_recent_look():
    bench = Bench()
    await bench.log.wait(bench.stage(b"one"))
    assert await bench.log.is_alive(3600)
    gets = bench.objects.counters.gets
    assert await bench.log.is_alive(3600)
    assert bench.objects.counters.gets == gets
    bench.bucket.objects[log_object(NAME, 1)] = _seal()
    assert await bench.log.is_alive(3600)
    assert not await bench.log.is_alive()
    assert not await bench.log.is_alive(3600)


@on_loop
async def test_looks_are_limited_to_one_for_each_interval():
    bench = Bench(interval_s=0.05)
    await bench.log.wait(bench.stage(b"one"))
    loop = asyncio.get_running_loop()
    began, gets = loop.time(), bench.objects.counters.gets
    while loop.time() < began + 0.5:
        assert await bench.log.is_alive()
    assert bench.objects.counters.gets - gets <= (loop.time() - began) / 0.05 + 1


@on_loop
async def test_a_log_whose_object_has_an_unknown_outcome_is_dead():
    bench = Bench(patience_s=0.0)

    async def refuse(call: Call) -> None:
        raise StoreUnavailable(call.name, "503")

    bench.objects.hook = refuse
    with pytest.raises(SyncFailed, match="outcome is unknown"):
        await bench.log.wait(bench.stage(b"one"))
    assert len(bench.died) == 1


@on_loop
async def test_a_lost_answer_is_resolved_by_the_write_id():
    bench = Bench()
    lost = ["once"]

    async def lose(call: Call) -> None:
        if call.request is Request.CREATE and call.done and lost:
            lost.pop()
            raise StoreUnavailable(call.name, "timeout")

    bench.objects.hook = lose
    await bench.log.wait(bench.stage(b"one"))
    assert bench.objects.counters.puts == 2 and bench.log.committed == 1


def _seal() -> StoredObject:
    return StoredObject(encode_body(log_object(NAME, 1), Kind.SEAL, bytes(16), b""), "seal")
