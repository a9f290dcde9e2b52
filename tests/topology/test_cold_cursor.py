"""A subscription's dispatcher whose cursor is mostly on disk: it loads what it comes to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.actors.acknowledging import END, SMALL, begin, small_segments
from tests.actors.test_loading import Gate
from tests.journal.testing import on_loop
from velaray.actors.dispatch.suspects import Suspects
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.dead_letters import IntendDeadLetters
from velaray.actors.subscription.machine import Ack, Reset, SubscriptionState
from velaray.broker.subscription import messages as m
from velaray.broker.subscription.dispatcher import SubscriptionDispatcher
from velaray.broker.subscription.progress_exporter import Exporter
from velaray.journal.errors import CorruptJournal
from velaray.journal.memory import MemoryDisk, MemoryStore
from velaray.topology.messages import Message

ACKED = {offset for offset in range(1, END) if offset % 3 == 1}
LEFT = [offset for offset in range(END) if offset not in ACKED]
SHARED, IDLE = 1, 99


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch.setattr)


class Setting:
    """A partition with a log of `END` entries of one message, and the subscription's dispatcher."""

    def __init__(self, disk: MemoryDisk, gate: Gate, runtime: Runtime[SubscriptionState]) -> None:
        self.disk = disk
        self.gate = gate
        self.runtime = runtime
        self.fatal: list[BaseException] = []
        self.said: list[Message] = []
        self.delivered: list[int] = []
        self.dispatcher = SubscriptionDispatcher(runtime, 0, self.heard, None, self.suspects)
        self._fed, self._wanted = 0, 0

    @classmethod
    async def begun(cls) -> Setting:
        """Every third entry is acknowledged; most of the segments are cold."""
        disk, gate, fatal = MemoryDisk(), Gate(), list[BaseException]()
        runtime = await begin(MemoryStore(disk, hook=gate), SMALL, fatal.append)
        for offset in sorted(ACKED):
            await runtime.ask(Ack(END, [(offset, offset + 1)]))
        assert runtime.state.cursor.beyond.cold_count() > 20
        setting = cls(disk, gate, runtime)
        setting.fatal = fatal
        return setting

    async def suspects(self) -> Suspects:
        """None."""
        return Suspects()

    async def open(self) -> None:
        """Connect the partition, with a consumer that takes everything and an idle one."""
        await self.dispatcher.on_request(m.OpenDispatcher(0, None, END, []))
        for number, permits in ((1, 10_000), (IDLE, 0)):
            self.tell(m.Attach(number, f"c{number}", SHARED, 0, (0, (), False), ""))
            self.tell(m.AddPermits(number, permits))

    def heard(self, notice: Message) -> None:
        """Do what a partition does."""
        self.said.append(notice)
        match notice:
            case m.FeedFrom(offset, wanted):
                self._fed, self._wanted = offset, wanted
            case m.WantEntries(wanted):
                self._wanted = wanted
            case m.Deliver(grants):
                for grant in grants:
                    self.delivered += range(grant.first, grant.first + grant.count)
        if self._fed < (end := min(self._wanted, END)):
            sizes, first = [1] * (end - self._fed), self._fed
            self._fed = end
            feed = m.FeedEntries(first, sizes, {}, None, [])
            asyncio.get_running_loop().call_soon(self.tell, feed)

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher."""
        self.dispatcher.on_notice(notice)

    async def until(self, condition: Any) -> None:
        """Wait for a condition."""
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0)


@on_loop
async def test_everything_that_is_left_is_delivered_in_order() -> None:
    setting = await Setting.begun()
    await setting.open()
    await setting.until(lambda: len(setting.delivered) == len(LEFT))
    assert setting.delivered == LEFT and not setting.fatal
    setting.dispatcher._state.dispatcher.check()
    setting.dispatcher.close()
    await setting.runtime.close()


@on_loop
async def test_acknowledgements_do_not_wait_for_its_load() -> None:
    setting = await Setting.begun()
    setting.gate.close()
    await setting.open()
    await setting.until(lambda: setting.gate.waiting)
    known = len(setting.delivered)
    number = max(setting.runtime.state.cursor.beyond._recent)
    offset = next(at for at in range(16 * number, END) if at in LEFT)
    setting.tell(m.AckEntries(1, 7, END, [offset, offset + 1], []))
    await setting.until(lambda: m.AckReceipt(1, 7, None) in setting.said)
    assert len(setting.delivered) == known < len(LEFT)
    setting.gate.open()
    await setting.until(lambda: len(setting.delivered) == len(LEFT) - 1)
    assert setting.delivered == [at for at in LEFT if at != offset]
    setting.dispatcher.close()
    await setting.runtime.close()


@on_loop
async def test_a_reset_while_it_loads_begins_at_the_new_place() -> None:
    setting = await Setting.begun()
    setting.gate.close()
    await setting.open()
    await setting.until(lambda: setting.gate.waiting)
    moving = asyncio.create_task(setting.dispatcher.on_request(m.ResetCursor(END - 3, "seek", [])))
    await asyncio.sleep(0)
    setting.gate.open()
    await moving
    await setting.until(lambda: setting.delivered[-3:] == [END - 3, END - 2, END - 1])
    setting.dispatcher._state.dispatcher.check()
    setting.dispatcher.close()
    await setting.runtime.close()


@on_loop
async def test_a_connection_that_ends_while_it_loads_says_nothing_more() -> None:
    setting = await Setting.begun()
    setting.gate.close()
    await setting.open()
    await setting.until(lambda: setting.gate.waiting)
    said = len(setting.said)
    setting.dispatcher.close()
    setting.gate.open()
    await setting.runtime.ask(Ack(END, [(0, 1)]))
    await asyncio.sleep(0)
    assert len(setting.said) == said and not setting.fatal
    assert setting.runtime.state.cursor.beyond.cold_count() > 20
    await setting.runtime.close()


@on_loop
async def test_a_kill_while_it_loads_ends_quietly() -> None:
    setting = await Setting.begun()
    setting.gate.close()
    await setting.open()
    await setting.until(lambda: setting.gate.waiting)
    task = setting.dispatcher._loading._loading
    assert task is not None
    setting.runtime.abort()
    setting.gate.open()
    await asyncio.wait([task])
    assert task.exception() is None and not setting.fatal


@on_loop
async def test_a_segment_that_cannot_be_read_ends_the_actor() -> None:
    setting = await Setting.begun()
    beyond = setting.runtime.state.cursor.beyond
    cold = next(at for at in beyond._segments if at not in beyond._recent)
    place = beyond._segments[cold].stored
    assert place is not None
    file = setting.disk._file(setting.runtime.journal.key, place.ledger_id)  # type: ignore[union-attr]
    for content in (file.seen, file.durable):
        content[place.offset + 1] ^= 1
    await setting.open()
    await setting.until(lambda: setting.fatal)
    assert [type(error) for error in setting.fatal] == [CorruptJournal]
    await setting.runtime.close()


@on_loop
async def test_dead_letters_are_moved_with_what_remains_of_them() -> None:
    setting = await Setting.begun()
    await setting.runtime.ask(Ack(END, (), [(2, 0b101)]))
    await setting.runtime.ask(IntendDeadLetters([(2, 3), (5, 6)]))
    for offset in LEFT[-20:]:
        await setting.runtime.ask(Ack(END, [(offset, offset + 1)]))
    assert setting.runtime.state.cursor.beyond.cold_within(0, 8)
    await setting.open()
    await setting.until(lambda: any(isinstance(told, m.MoveDeadLetters) for told in setting.said))
    (told,) = (each for each in setting.said if isinstance(each, m.MoveDeadLetters))
    assert told.dead_letters == [(2, 0, [0b101]), (5, 1, [])]
    await setting.until(lambda: LEFT[-21] in setting.delivered)
    assert {2, 5}.isdisjoint(setting.delivered)
    setting.dispatcher.close()
    await setting.runtime.close()


@on_loop
async def test_dead_letters_that_a_reset_dropped_meanwhile_are_not_moved() -> None:
    setting = await Setting.begun()
    await setting.runtime.ask(Ack(END, (), [(2, 0b101)]))
    await setting.runtime.ask(IntendDeadLetters([(2, 3)]))
    for offset in LEFT[-20:]:
        await setting.runtime.ask(Ack(END, [(offset, offset + 1)]))
    assert setting.runtime.state.cursor.beyond.cold_within(2, 3)
    setting.gate.close()
    await setting.open()
    await setting.until(lambda: setting.gate.waiting)
    await setting.runtime.ask(Reset(0, "seek"))
    setting.gate.open()
    tasks = list(setting.dispatcher._dead_letters._moving)
    await asyncio.wait(tasks)
    assert not any(isinstance(told, m.MoveDeadLetters) for told in setting.said)
    setting.dispatcher.close()
    await setting.runtime.close()


@on_loop
async def test_queries_of_the_whole_cursor_load_it() -> None:
    setting = await Setting.begun()
    ask = setting.dispatcher.on_request
    for number in (1, 100, len(LEFT)):
        assert await ask(m.FindUnacked(number, END)) == LEFT[number - 1]
    assert await ask(m.FindUnacked(len(LEFT) + 1, END)) is None
    flat = await ask(m.GetUnacked(100, END, END))
    found = [
        at for first, end in zip(flat[::2], flat[1::2], strict=True) for at in range(first, end)
    ]
    assert found == [at for at in LEFT if at >= 100]
    details = await ask(m.GetDetails(END))
    assert details["first_holes"] == [[at, at + 1] for at in sorted(ACKED)[:20]]
    assert await ask(m.GetHoldings([0, 1, 1, 2, END - 2, END - 1])) == (0, [1, 2])
    await setting.runtime.ask(Ack(END, [(0, 1)]))
    assert setting.runtime.state.cursor.beyond.cold_count() > 20
    await setting.runtime.close()


@on_loop
async def test_finding_an_entry_reads_one_segment() -> None:
    setting = await Setting.begun()
    reads = setting.runtime.journal._store.counters.reads  # type: ignore[union-attr]
    assert await setting.dispatcher.on_request(m.FindUnacked(200, END)) == LEFT[199]
    assert setting.runtime.journal._store.counters.reads <= reads + 1  # type: ignore[union-attr]
    await setting.runtime.close()


@on_loop
async def test_progress_is_exported_in_parts_of_about_a_segment() -> None:
    setting = await Setting.begun()
    exporter, ranges, parts = Exporter("a", lambda: None), [], 0
    part: dict[str, Any] = {"token": None, "more": True}
    while part["more"]:
        part = await exporter.next(setting.runtime, "west", part["token"], END, None)
        parts += 1
        ranges += part["ranges"]
    found = [at for first, end in ranges for at in range(first, end)]
    assert found == sorted(ACKED) and parts > 20
    await setting.runtime.close()
