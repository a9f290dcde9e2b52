"""Writes of a journal's record that take effect although their answers are lost or late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.journal.testing import KEY, on_loop, seal_at_once
from velaray.journal.errors import Fenced
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.objects.journal_record import record_object
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.memory_objects import Call, MemoryBucket, MemoryObjects, Request
from velaray.journal.objects.object_store import StoreUnavailable

RECORD = record_object(KEY)


class Process:
    """A store whose next write of the record runs ``then`` before its answer arrives."""

    def __init__(self, bucket: MemoryBucket) -> None:
        self.then: Callable[[], Awaitable[None]] | None = None
        objects = MemoryObjects(bucket, self._hook)
        self.store = ObjectLedgerStore(objects, before_seal=seal_at_once)

    async def _hook(self, call: Call) -> None:
        if call.request is Request.REPLACE and call.done and call.name == RECORD and self.then:
            then, self.then = self.then, None
            await then()


async def opened(store: ObjectLedgerStore) -> tuple[Journal, list[bytes]]:
    journal = await Journal.open(store, KEY, JournalSettings(), clock_ms=lambda: 0)
    return journal, [record.event for record in journal.recovered.records]


@on_loop
async def test_parts_that_a_successor_names_are_kept():
    bucket = MemoryBucket()
    first, second, third = (Process(bucket) for _ in range(3))
    journal, _ = await opened(first.store)
    await journal.start({}, b"")
    journal.stage(b"one")
    await journal.commit()
    await journal.close()

    async def lose_the_answer_and_the_journal() -> None:
        await opened(second.store)
        raise StoreUnavailable(RECORD, "timeout")

    first.then = lose_the_answer_and_the_journal
    await first.store.housekeeper.tidy()
    assert first.then is None, "the closed journal was unpacked"
    assert (await opened(third.store))[1] == [b"one"]


@on_loop
async def test_a_late_answer_does_not_make_an_older_take_the_owner():
    bucket = MemoryBucket()
    process = Process(bucket)
    journal, _ = await opened(process.store)
    await journal.start({}, b"")
    journal.stage(b"one")
    await journal.commit()
    newer: list[Journal] = []

    async def take() -> None:
        newer.append((await opened(process.store))[0])

    process.then = take
    # Its first take was superseded when the answer arrived, so it takes the journal again.
    last, events = await opened(process.store)
    assert (last.epoch, newer[0].epoch, events) == (4, 3, [b"one"])
    with pytest.raises(Fenced):
        await newer[0].start({}, b"")
    await last.start({}, b"")
    last.stage(b"two")
    await last.commit()
    assert (await opened(Process(bucket).store))[1] == [b"two"]
