"""How a runtime ends: aborted, given up by those who wait, fatal for everybody at once."""

import asyncio
import gc

import pytest

from tests.actors.test_runtime import Host, eventually, on_a_loop, recovered
from tests.actors.toy import Add, Look, Toy
from velaray.actors.runtime import Runtime, Stopped, VolatileJournal
from velaray.journal.errors import Misuse, SyncFailed
from velaray.journal.memory import MemoryDisk, MemoryStore, Step


def flushers() -> list[asyncio.Task]:
    return [task for task in asyncio.all_tasks() if "flusher" in task.get_name()]


@pytest.mark.parametrize("step", [Step.WRITE, Step.SYNC, Step.CONFIRM, Step.RETURN])
@on_a_loop
async def test_an_aborted_runtime_answers_no_caller_at_any_step_of_its_commit(step: Step) -> None:
    disk = MemoryDisk()
    host = await Host(disk).start()
    host.submit(Add("a"))
    await host.until(1)
    gate = host.hold(step)
    host.submit(Add("b"), Look())
    asked = asyncio.ensure_future(host.runtime.ask(Look()))
    read = asyncio.ensure_future(host.runtime.read(lambda state: 1))
    await gate.arrived.wait()
    host.runtime.abort()
    assert host.runtime.pending_bytes == 0
    for waiting in (asked, read):
        with pytest.raises(Stopped, match=r"catalog has stopped$"):
            await waiting
    with pytest.raises(Stopped):
        host.submit(Look())
    gate.opened.set()
    await host.runtime.close()
    assert host.released == [1]
    assert host.fatal == [], "whoever aborts it knows"
    assert not flushers()
    assert (await recovered(disk)).names == ["a", "b"], "the store had it already"


@on_a_loop
async def test_a_runtime_that_ends_before_a_roll_over_writes_no_checkpoint() -> None:
    disk = MemoryDisk()
    host = await Host(disk).start()
    first = host.hold(Step.SYNC)
    host.submit(Add("a"))
    await first.arrived.wait()
    host.submit(Add("b"))
    host.runtime._roll_asked = True
    second = host.hold(Step.SYNC)
    first.opened.set()
    await second.arrived.wait()
    host.runtime.abort()
    second.opened.set()
    await host.runtime.close()
    store = MemoryStore(disk)
    (journal,) = await store.list_journals()
    assert len(await store.list_ledgers(journal)) == 1


@on_a_loop
async def test_an_aborted_idle_runtime_closes_its_journal_by_itself() -> None:
    disk = MemoryDisk()
    host = await Host(disk).start()
    journal = host.runtime.journal
    host.runtime.abort()
    del host.runtime
    gc.collect()
    await eventually(lambda: journal.failure is not None)
    with pytest.raises(Misuse, match="closed"):
        journal.stage(b"event")
    await eventually(lambda: not flushers())
    assert host.fatal == []


@on_a_loop
async def test_failures_after_an_abort_are_not_reported() -> None:
    host = await Host().start()
    gate = host.hold(Step.SYNC, SyncFailed("file", "bad disk"))
    host.submit(Add("a"))
    await gate.arrived.wait()
    host.runtime.abort()
    host.runtime.abort()
    gate.opened.set()
    await host.runtime.close()
    assert (host.released, host.fatal) == ([], [])


@on_a_loop
async def test_a_cancelled_read_disturbs_no_other_caller() -> None:
    host = await Host().start()
    gate = host.hold(Step.SYNC)
    host.submit(Add("a"))
    read = asyncio.ensure_future(host.runtime.read(lambda state: len(state.names)))
    await gate.arrived.wait()
    read.cancel()
    host.submit(Look())
    gate.opened.set()
    await host.until(2)
    assert host.released == [1, 1]
    assert read.cancelled() and host.fatal == []
    await host.runtime.close()


@on_a_loop
async def test_a_fatal_error_skips_callers_that_were_just_cancelled() -> None:
    """They are still among the asked when the error is handed out."""
    host = await Host().start()
    gate = host.hold(Step.SYNC, SyncFailed("file", "bad disk"))
    host.submit(Add("a"))
    await gate.arrived.wait()
    given_up, waiting = (asyncio.ensure_future(host.runtime.ask(Look())) for _ in range(2))
    await eventually(lambda: len(host.runtime._asked) == 2)
    given_up.cancel()  # takes effect when the loop comes to it
    host.runtime.abort()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    with pytest.raises(Stopped):
        await waiting
    gate.opened.set()
    await host.runtime.close()


@on_a_loop
async def test_a_volatile_journal_refuses_operations_that_need_a_disk() -> None:
    journal = VolatileJournal()
    assert [journal.stage(b"a"), journal.stage(b"b", b"blob"), await journal.commit()] == [0, 1, 1]
    for call in (journal.reload(), journal.roll({}, b"")):
        with pytest.raises(Misuse, match="a volatile journal"):
            await call
    runtime = await Runtime.volatile(Toy(), "reader", lambda: 77, lambda error: None)
    assert not runtime.journal.should_roll
    runtime.abort()
    await eventually(lambda: not flushers())
