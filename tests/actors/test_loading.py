"""Commands that need stored segments wait until these are loaded, and so do later commands."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.actors.acknowledging import END, KEY, SMALL, acked, begin, small_segments
from tests.journal.testing import on_loop
from velaray.actors.machine import ColdSegment, SegmentLoader, digest
from velaray.actors.runtime import Runtime, Stopped
from velaray.actors.sets.offset_sets import gaps
from velaray.actors.subscription.machine import (
    Ack,
    AckBefore,
    Acked,
    SubscriptionMachine,
    SubscriptionState,
)
from velaray.actors.subscription.tracing import Note
from velaray.journal.errors import CorruptJournal, StorageFull
from velaray.journal.memory import MemoryDisk, MemoryStore, Step

KNOWN = set(range(1, END, 3))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch.setattr)


class Gate:
    """A hook of a store that stops the first read after it was closed."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = 0
        self.full = False

    def close(self) -> None:
        """Stop the next read, until it is opened."""
        self._open.clear()

    def open(self) -> None:
        """Let the read go on."""
        self._open.set()

    async def __call__(self, step: Step, name: str) -> None:
        if self.full and step is Step.WRITE:
            raise StorageFull("disk", "no space")
        if step is Step.READ and not self._open.is_set() and not self.waiting:
            self.waiting += 1
            await self._open.wait()


class Host:
    """A subscription with cold segments, whose reads can be stopped."""

    def __init__(self, disk: MemoryDisk, gate: Gate, runtime: Runtime[SubscriptionState]) -> None:
        self.disk = disk
        self.gate = gate
        self.runtime = runtime
        self.fatal: list[BaseException] = []
        self.released: list[tuple[str, Any]] = []

    @classmethod
    async def with_cold_segments(cls) -> Host:
        """A host with every third entry acknowledged, most of them in cold segments."""
        disk, gate, fatal = MemoryDisk(), Gate(), list[BaseException]()
        runtime = await begin(MemoryStore(disk, hook=gate), SMALL, fatal.append)
        host = cls(disk, gate, runtime)
        host.fatal = fatal
        for offset in sorted(KNOWN):
            await runtime.ask(Ack(END, [(offset, offset + 1)]))
        assert runtime.state.cursor.beyond.cold_count() > 20
        return host

    def cold(self) -> list[int]:
        """The numbers of the cold segments."""
        acked_ranges = self.runtime.state.cursor.beyond
        return [at for at in acked_ranges._segments if at not in acked_ranges._recent]

    def submit(self, name: str, command: Any) -> None:
        """Submit a command; its reply is kept under ``name``."""
        release = lambda reply, effects: self.released.append((name, reply))  # noqa: E731
        self.runtime.submit(command, release)

    async def loaded(self) -> None:
        """Wait until nothing is loaded any more."""
        while self.runtime.loads:
            await asyncio.sleep(0)


def _ack(offset: int) -> Ack:
    return Ack(END, [(offset, offset + 1)])


@on_loop
async def test_a_command_that_needs_a_segment_is_parked_until_it_is_loaded() -> None:
    host = await Host.with_cold_segments()
    number = host.cold()[0]
    offset = number * 16 + (2 - number * 16) % 3  # not acknowledged
    reads = host.runtime.journal._store.counters.reads  # type: ignore[union-attr]
    host.gate.close()
    asked = asyncio.create_task(host.runtime.ask(_ack(offset)))
    while not host.gate.waiting:
        await asyncio.sleep(0)
    assert host.runtime.loads and host.runtime.puts_off and number in host.cold()
    assert host.runtime.journal._store.counters.reads == reads  # type: ignore[union-attr]
    host.gate.open()
    assert await asked == Acked(((offset, offset + 1),))
    assert not host.runtime.loads and not host.runtime.puts_off
    assert await acked(host.runtime) == KNOWN | {offset}
    await host.runtime.close()


@on_loop
async def test_later_commands_wait_behind_it_and_keep_their_order() -> None:
    host = await Host.with_cold_segments()
    warm, number = END - 1, host.cold()[0]
    offset = number * 16 + (2 - number * 16) % 3
    host.gate.close()
    host.submit("cold", _ack(offset))
    host.submit("warm", _ack(warm))
    host.submit("nothing", Note(()))
    host.submit("all", AckBefore(END, END))
    while not host.gate.waiting:
        await asyncio.sleep(0)
    assert host.released == [] and host.runtime.state.cursor.acked_before == 0
    host.gate.open()
    await host.runtime.sync()
    await host.loaded()
    assert host.runtime.state.cursor.acked_before == END  # before anything is durable
    await host.runtime.close()
    assert [name for name, _ in host.released] == ["cold", "warm", "nothing", "all"]
    assert [reply.ranges for name, reply in host.released if name != "nothing"] == [
        ((offset, offset + 1),),
        ((warm, END),),
        ((0, END),),
    ]


@on_loop
async def test_a_command_that_needs_no_segment_is_decided_at_once() -> None:
    host = await Host.with_cold_segments()
    host.gate.close()
    recent = max(host.runtime.state.cursor.beyond._recent)
    host.submit("warm", _ack(recent * 16 + (2 - recent * 16) % 3))
    assert not host.runtime.puts_off and host.gate.waiting == 0
    await host.runtime.close()
    assert [name for name, _ in host.released] == ["warm"]


@on_loop
async def test_a_command_that_needs_many_segments_gets_all_of_them_at_once() -> None:
    """More than the budget: they leave memory after the decision, not between its parts."""
    host = await Host.with_cold_segments()
    reply = await host.runtime.ask(Ack(END, [(0, END)]))
    assert {at for first, end in reply.ranges for at in range(first, end)} == (
        set(range(END)) - KNOWN
    )
    assert host.runtime.state.cursor.acked_before == END and not host.fatal
    await host.runtime.close()


def _damage(host: Host, number: int) -> None:
    place = host.runtime.state.cursor.beyond._segments[number].stored
    assert place is not None
    file = host.disk._file(KEY.text(), place.ledger_id)
    for content in (file.seen, file.durable):
        content[place.offset + 1] ^= 1


@on_loop
async def test_a_segment_that_cannot_be_read_fails_the_command_and_changes_nothing() -> None:
    host = await Host.with_cold_segments()
    number = host.cold()[0]
    _damage(host, number)
    before = digest(SubscriptionMachine().snapshot(host.runtime.state))
    asked = asyncio.create_task(host.runtime.ask(_ack(number * 16 + (2 - number * 16) % 3)))
    with pytest.raises(CorruptJournal, match=f"holes/{number}"):
        await asked
    assert digest(SubscriptionMachine().snapshot(host.runtime.state)) == before
    assert [type(error) for error in host.fatal] == [CorruptJournal]
    with pytest.raises(Stopped):
        await host.runtime.ask(_ack(0))
    await host.runtime.close()
    again = await begin(MemoryStore(host.disk))
    assert await acked(again) == KNOWN
    await again.close()


@on_loop
async def test_a_kill_while_commands_are_parked_loses_nothing_acknowledged() -> None:
    host = await Host.with_cold_segments()
    number = host.cold()[0]
    host.submit("durable", _ack(END - 1))
    while not host.released:
        await asyncio.sleep(0)
    host.gate.close()
    host.submit("parked", _ack(number * 16 + (2 - number * 16) % 3))
    host.submit("behind", _ack(0))
    while not host.gate.waiting:
        await asyncio.sleep(0)
    host.runtime.abort()
    host.gate.open()
    host.disk.power_loss()
    again = await begin(MemoryStore(host.disk, seed=1))
    assert await acked(again) == KNOWN | {END - 1}
    assert [name for name, _ in host.released] == ["durable"] and not host.fatal
    await again.close()


@on_loop
async def test_closing_waits_for_parked_commands() -> None:
    host = await Host.with_cold_segments()
    number = host.cold()[0]
    host.gate.close()
    host.submit("parked", _ack(number * 16 + (2 - number * 16) % 3))
    host.submit("behind", _ack(END - 1))
    closing = asyncio.create_task(host.runtime.close())
    while not host.gate.waiting:
        await asyncio.sleep(0)
    assert not closing.done()
    host.gate.open()
    await closing
    assert [name for name, _ in host.released] == ["parked", "behind"]


@on_loop
async def test_a_roll_over_during_a_load_keeps_the_order() -> None:
    host = await Host.with_cold_segments()
    rolls, number = host.runtime.stats.rolls, host.cold()[0]
    host.gate.close()
    host.submit("cold", _ack(number * 16 + (2 - number * 16) % 3))
    host.submit("behind", AckBefore(END, END))
    host.runtime.roll_over()
    while host.runtime.stats.rolls == rolls:
        await asyncio.sleep(0)
    assert host.released == [] and host.runtime.puts_off
    host.gate.open()
    await host.runtime.close()
    assert [name for name, _ in host.released] == ["cold", "behind"]
    again = await begin(MemoryStore(host.disk))
    assert again.state.cursor.acked_before == END
    await again.close()


@on_loop
async def test_a_load_goes_on_after_the_disk_was_full() -> None:
    """The state falls back to another object meanwhile, and the tried command needs segments."""
    host = await Host.with_cold_segments()
    first, second, *_ = host.cold()
    host.gate.full = True
    host.submit("refused", _ack(END - 1))
    while not host.released:
        await asyncio.sleep(0)
    host.submit("tried", _ack(first * 16 + (2 - first * 16) % 3))
    host.submit("behind", _ack(second * 16 + (2 - second * 16) % 3))
    host.gate.full = False
    await host.loaded()
    await host.runtime.close()
    assert [name for name, _ in host.released][:1] == ["refused"]
    assert {name for name, _ in host.released} == {"refused", "tried", "behind"}
    done = {name for name, reply in host.released if isinstance(reply, Acked)}
    assert "tried" in done and not host.fatal
    again = await begin(MemoryStore(host.disk))
    assert len(await acked(again)) == len(KNOWN) + len(done)
    await again.close()


@on_loop
async def test_a_query_waits_for_the_segments_that_it_reads() -> None:
    host = await Host.with_cold_segments()
    first, *_, last = host.cold()
    places, made = [first * 16, last * 16], 0

    def query(state: SubscriptionState) -> list[list[tuple[int, int]]]:
        nonlocal made
        made += 1
        return [state.cursor.unacked_ranges(at, at + 2) for at in places]

    host.gate.close()
    asked = asyncio.create_task(host.runtime.read(query))
    while not host.gate.waiting:
        await asyncio.sleep(0)
    assert not host.runtime.puts_off  # commands don't wait for it
    await host.runtime.ask(_ack(END - 1))
    host.gate.open()
    expected = [gaps(at, at + 2, [(o, o + 1) for o in (at, at + 1) if o in KNOWN]) for at in places]
    assert await asked == expected and made == 3
    await host.runtime.ask(_ack(0))
    assert host.runtime.state.cursor.beyond.cold_count() > 20  # they leave memory again
    await host.runtime.close()


@on_loop
async def test_a_query_of_everything_reads_ahead() -> None:
    host = await Host.with_cold_segments()
    made = 0

    def query(state: SubscriptionState) -> set[int]:
        nonlocal made
        made += 1
        return {
            offset for first, end in state.cursor.acked_ranges() for offset in range(first, end)
        }

    assert await host.runtime.look(query) == KNOWN
    assert made <= 7  # not once for each of more than 20 segments
    await host.runtime.close()


@on_loop
async def test_a_query_whose_segment_cannot_be_read_gets_the_error() -> None:
    host = await Host.with_cold_segments()
    offset = host.cold()[0] * 16
    _damage(host, offset // 16)
    with pytest.raises(CorruptJournal, match=f"holes/{offset // 16}"):
        await host.runtime.read(lambda state: state.cursor.is_acked(offset))
    assert [type(error) for error in host.fatal] == [CorruptJournal]
    with pytest.raises(Stopped):
        await host.runtime.look(lambda state: state.cursor.is_acked(offset))
    await host.runtime.close()


@on_loop
async def test_a_query_of_a_state_that_is_gone_does_not_load_for_ever() -> None:
    host = await Host.with_cold_segments()
    gone, offset = host.runtime.state.cursor, host.cold()[0] * 16
    host.gate.full = True
    host.submit("refused", _ack(END - 1))
    while not host.released:
        await asyncio.sleep(0)
    assert host.runtime.state.cursor is not gone
    with pytest.raises(ColdSegment):
        await host.runtime.look(lambda state: gone.is_acked(offset))
    await host.runtime.close()


@on_loop
async def test_a_kill_while_a_query_loads_ends_it() -> None:
    host = await Host.with_cold_segments()
    offset = host.cold()[0] * 16
    host.gate.close()
    asked = asyncio.create_task(host.runtime.look(lambda state: state.cursor.is_acked(offset)))
    while not host.gate.waiting:
        await asyncio.sleep(0)
    host.runtime.abort()
    host.gate.open()
    with pytest.raises(Stopped):
        await asked


@on_loop
async def test_replay_needs_no_loads() -> None:
    """Recovery has all segments in memory until it has applied all events."""
    host = await Host.with_cold_segments()
    for number in host.cold()[:5]:
        await host.runtime.ask(_ack(number * 16 + (2 - number * 16) % 3))
    expected = digest(SubscriptionMachine().snapshot(host.runtime.state))
    host.runtime.abort()
    host.disk.power_loss()
    again = await begin(MemoryStore(host.disk, seed=1))
    assert digest(SubscriptionMachine().snapshot(again.state)) == expected
    assert again.state.cursor.beyond.cold_count() > 20
    await again.close()


def test_a_machine_without_stored_segments_loads_nothing() -> None:
    class Plain:
        def on_checkpoint(self, state: Any, stored: Any) -> None: ...
        def needs_checkpoint(self, state: Any) -> bool:
            return False

    assert isinstance(SubscriptionMachine(), SegmentLoader)
    assert not isinstance(Plain(), SegmentLoader)
