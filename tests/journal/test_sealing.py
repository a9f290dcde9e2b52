"""When a process ends the log of another one, and when that one releases a journal instead."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.journal.testing import KEY, on_loop
from velaray.journal.errors import Fenced, Misuse
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.objects.conditional import ConditionalObjects
from velaray.journal.objects.journal_record import Tail
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.memory_objects import MemoryBucket, MemoryObjects
from velaray.journal.objects.sealing import GONE, SealPatience, incarnation_name

OTHER = "partition/public/default/other/0/2"
TAIL = Tail(incarnation_name(1, "ff"), 0, 1)


class Processes:
    """The stores of processes that ask each other over one bucket."""

    def __init__(self) -> None:
        self.bucket = MemoryBucket()
        self.alive: list[ObjectLedgerStore] = []

    def start(self) -> ObjectLedgerStore:
        store = ObjectLedgerStore(MemoryObjects(self.bucket), generation=1, ask_owner=self.ask)
        self.alive.append(store)
        return store

    async def ask(self, journal: str, tail: Tail) -> int | None:
        for store in self.alive:
            end = await store.release_to_successor(journal, tail)
            if end != GONE:
                return end
        return GONE


async def opened(store: ObjectLedgerStore, key: str) -> tuple[Journal, list[bytes]]:
    """The journal, started, and the events that it recovered; nothing is in its checkpoint."""
    journal = await Journal.open(store, key, JournalSettings(), clock_ms=lambda: 0)
    events = [record.event for record in journal.recovered.records]
    await journal.start({}, b"")
    return journal, events


async def written(journal: Journal, event: bytes) -> None:
    journal.stage(event)
    await journal.commit()


@on_loop
async def test_a_live_process_releases_one_journal_and_keeps_the_others():
    processes = Processes()
    first, second = processes.start(), processes.start()
    (taken, _), (kept, _) = await opened(first, KEY), await opened(first, OTHER)
    await written(taken, b"one")
    _, events = await opened(second, KEY)
    assert events == [b"one"]
    with pytest.raises(Fenced):
        await written(taken, b"two")
    await written(kept, b"three")
    assert first.log.failure is None
    assert (await opened(processes.start(), OTHER))[1] == [b"three"]


@on_loop
async def test_what_a_released_owner_did_not_send_never_appears():
    processes = Processes()
    first, second = processes.start(), processes.start()
    taken, _ = await opened(first, KEY)
    await written(taken, b"one")
    taken.stage(b"two")
    late = asyncio.ensure_future(taken.commit())
    _, events = await opened(second, KEY)
    if events == [b"one"]:
        with pytest.raises(Fenced):
            await late
    else:
        assert events == [b"one", b"two"]
        await asyncio.wait({late})
    with pytest.raises((Fenced, Misuse)):
        await written(taken, b"three")


@on_loop
async def test_the_log_of_a_process_that_is_gone_is_ended_at_once():
    processes = Processes()
    first = processes.start()
    journals = [(await opened(first, key))[0] for key in (KEY, OTHER)]
    for journal in journals:
        await written(journal, b"one")
    processes.alive.remove(first)
    second = processes.start()
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert [(await opened(second, key))[1] for key in (KEY, OTHER)] == [[b"one"], [b"one"]]
    assert loop.time() < began + 4, "it didn't wait until the log was quiet"
    with pytest.raises(Fenced):
        await written(journals[0], b"two")


@on_loop
async def test_a_log_whose_process_does_not_answer_is_ended_when_it_is_quiet():
    async def no_answer(journal: str, tail: Tail) -> int | None:
        return None

    async def never(journal: str, tail: Tail) -> int | None:
        await asyncio.Event().wait()
        return None

    random = Random(1)
    objects = ConditionalObjects(MemoryObjects(MemoryBucket()), random.randbytes, random, 60.0)
    for ask in (None, no_answer, never):
        patience = SealPatience(objects, 1, quiet_s=0.01, ask=ask)
        assert await patience.wait(KEY, TAIL, 0) is None


@on_loop
async def test_a_process_is_not_asked_again_after_it_was_gone():
    asked = []

    async def gone(journal: str, tail: Tail) -> int | None:
        asked.append(journal)
        return GONE

    random = Random(1)
    objects = ConditionalObjects(MemoryObjects(MemoryBucket()), random.randbytes, random, 60.0)
    patience = SealPatience(objects, 1, quiet_s=3600.0, ask=gone)
    waits = [patience.wait(key, TAIL, 0) for key in (KEY, OTHER, KEY)]
    assert await asyncio.gather(*waits) == [None] * 3
    assert asked == [KEY]


@on_loop
async def test_a_newer_owner_is_not_cut_for_an_older_one():
    processes = Processes()
    first = processes.start()
    owner, _ = await opened(first, KEY)
    await written(owner, b"one")
    stale = Tail(first.log.incarnation, 0, owner.epoch - 1)
    assert await first.release_to_successor(KEY, stale) == first.log.committed
    await written(owner, b"two")
