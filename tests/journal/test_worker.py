"""The thread behind a store: calls in order, every outcome reported to its caller."""

import asyncio
import threading
from weakref import ref

import pytest

from velaray.journal.errors import Misuse
from velaray.journal.worker import Worker


@pytest.fixture(params=["counter", "the loop's way"])
def worker(request, monkeypatch):
    if request.param != "counter":
        monkeypatch.setattr("velaray.journal.worker.HAS_BELL", False)
    chosen = Worker("test")
    yield chosen
    asyncio.run(chosen.end())


def test_calls_run_in_order_on_one_other_thread(worker):
    seen: list[tuple[int, int]] = []

    async def main():
        def call(number):
            seen.append((number, threading.get_ident()))
            return number * 2

        calls = [worker.run(lambda number=number: call(number)) for number in range(50)]
        return await asyncio.gather(*calls)

    assert asyncio.run(main()) == [number * 2 for number in range(50)]
    assert [number for number, _ in seen] == list(range(50))
    (ident,) = {ident for _, ident in seen}
    assert ident != threading.get_ident()


def test_an_exception_reaches_its_caller_and_the_next_call_runs(worker):
    async def main():
        failing = worker.run(lambda: [][0])
        with pytest.raises(IndexError):
            await failing
        return await worker.run(lambda: "next")

    assert asyncio.run(main()) == "next"


def test_a_cancelled_call_is_executed_and_delays_no_caller(worker):
    done = []

    async def main():
        blocked = threading.Event()
        first = worker.run(blocked.wait)
        second = worker.run(lambda: done.append("cancelled"))
        first.cancel()
        second.cancel()
        blocked.set()
        return await worker.run(lambda: "third")

    assert asyncio.run(main()) == "third"
    assert done == ["cancelled"]


def test_the_newest_call_is_in_work_until_its_answer_and_for_its_loop_only(worker):
    async def main():
        assert worker.job_in_work() is None
        goes_on = threading.Event()
        first = worker.run(goes_on.wait)
        newest = worker.run(int)
        assert worker.job_in_work() is newest
        assert await asyncio.to_thread(asyncio.run, of_another_loop()) is None
        goes_on.set()
        assert await first
        await newest
        assert worker.job_in_work() is None

    async def results_are_not_kept():
        result = await worker.run(set)
        kept = ref(result)
        del result
        async with asyncio.timeout(60):
            while kept() is not None:  # until the thread has dropped it, too
                await asyncio.sleep(0)

    async def of_another_loop():
        return worker.job_in_work()

    asyncio.run(main())
    asyncio.run(results_are_not_kept())


def test_every_event_loop_is_answered_even_after_the_first_has_ended(worker):
    async def main():
        return await worker.run(lambda: "answer")

    assert [asyncio.run(main()) for _ in range(3)] == ["answer"] * 3


def test_an_event_loop_that_ended_before_the_answer_does_no_harm(worker):
    blocked = threading.Event()

    async def leave():
        worker.run(blocked.wait)

    async def main():
        return await worker.run(lambda: "answer")

    assert asyncio.run(main()) == "answer"
    asyncio.run(leave())
    blocked.set()
    assert asyncio.run(main()) == "answer"


def test_after_its_end_a_worker_takes_no_calls_and_its_thread_is_gone(worker):
    async def main():
        thread = await worker.run(threading.current_thread)
        waiting = worker.run(lambda: "answer")
        await worker.end()
        await worker.end()
        assert await waiting == "answer"
        with pytest.raises(Misuse, match="closed"):
            worker.run(int)
        return thread

    thread = asyncio.run(main())
    thread.join(10)
    assert not thread.is_alive()
