"""Turns: one client's requests don't hold up another one's messages."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context

import pytest

from velaray.wire.turns import BURST, ITERATION, PAUSE_S, REQUEST, Turns


class Asker:
    """A connection that has many requests."""

    def __init__(self, turns: Turns, group: str, requests: int) -> None:
        self.turns = turns
        self.group = group
        self.left = requests
        self.iterations: list[int] = []
        """The iteration of each request that was handled."""

    def handle(self) -> None:
        """Handle requests as a connection does."""
        least = self.turns.least
        while self.left:
            if self.turns.left <= least:
                self.turns.wait(self.group, self.handle)
                return
            self.left -= 1
            self.turns.spend(REQUEST)
            self.iterations.append(ITERATIONS[0])


ITERATIONS = [0]


def pressed() -> Turns:
    """Turns in an iteration whose work is nearly done, and that may do no more at once."""
    turns = Turns()
    turns.spend(BURST + ITERATION - 1)
    assert turns.left == 1
    return turns


@pytest.fixture(autouse=True)
def first_iteration() -> None:
    ITERATIONS[0] = 0


async def _iterate(*askers: Asker) -> None:
    while any(each.left for each in askers):
        ITERATIONS[0] += 1
        await asyncio.sleep(0)
        assert ITERATIONS[0] < 10_000


def _most_in_an_iteration(*askers: Asker) -> int:
    found = [number for each in askers for number in each.iterations]
    return max(map(found.count, set(found)))


def test_an_iteration_does_a_bounded_amount_of_work() -> None:
    async def run() -> None:
        turns = pressed()
        askers = [Asker(turns, f"10.0.0.{number}", 100) for number in range(20)]
        for each in askers:
            each.handle()
        await _iterate(*askers)
        # In one iteration the last request may exceed the bound.
        assert _most_in_an_iteration(*askers) <= 1 + ITERATION // REQUEST
        assert len({number for each in askers for number in each.iterations}) >= 400

    asyncio.run(run())


def test_after_a_rest_some_requests_are_handled_at_once() -> None:
    async def run() -> None:
        few = Asker(Turns(), "a", BURST // REQUEST)
        few.handle()
        assert not few.left
        many = Asker(Turns(), "a", 100)
        many.handle()
        assert 0 < many.left < 100 - BURST // REQUEST
        await _iterate(many)

    asyncio.run(run())


def test_groups_take_turns_however_many_connections_one_has() -> None:
    async def run() -> None:
        turns = pressed()
        crowd = [Asker(turns, "crowd", 20) for _ in range(200)]
        alone = Asker(turns, "alone", 20)
        for each in (*crowd, alone):
            each.handle()
        await _iterate(*crowd, alone)
        assert alone.iterations[-1] < 50 < max(each.iterations[-1] for each in crowd) / 10

    asyncio.run(run())


def test_connections_of_a_group_take_turns() -> None:
    async def run() -> None:
        turns = pressed()
        long, short = Asker(turns, "a", 1000), Asker(turns, "a", 4)
        long.handle()
        short.handle()
        await _iterate(long, short)
        assert short.iterations[-1] <= 8

    asyncio.run(run())


def test_too_much_work_is_less_for_the_next_iterations() -> None:
    async def run() -> None:
        turns = pressed()
        await turns.take("a", 3 * ITERATION)
        waiting = [asyncio.ensure_future(turns.take("a", 1)) for _ in range(3)]
        for _ in range(2):
            await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        waiting[0].cancel()
        for each in waiting[1:]:
            await each
        for _ in range(3):
            await asyncio.sleep(0)
        assert turns.left == ITERATION

    asyncio.run(run())


def test_a_turn_that_fails_ends_no_other_one() -> None:
    async def run() -> None:
        turns, problems = pressed(), []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, problem: problems.append(problem)
        )

        def fail() -> None:
            raise ValueError("broken")

        turns.spend(ITERATION)
        turns.wait("a", fail)
        await turns.take("b", 1)
        assert len(problems) == 1 and isinstance(problems[0]["exception"], ValueError)

    asyncio.run(run())


def test_a_turn_is_in_the_context_of_the_one_that_waits() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")

    async def run() -> None:
        turns, found = pressed(), []

        def wait(name: str) -> None:
            who.set(name)
            turns.wait("a", lambda: found.append(who.get()))

        turns.spend(ITERATION)
        for name in ("first", "second"):
            copy_context().run(wait, name)
        await turns.take("a", 1)
        assert found == ["first", "second"]

    asyncio.run(run())


def test_waiting_requests_pause_during_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velaray.wire.turns.PAUSE_S", 60.0)

    async def run() -> None:
        write: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        turns = pressed()
        turns.write_in_work = lambda: None if write.done() else write
        asker = Asker(turns, "a", 100)
        asker.handle()
        for _ in range(100):
            await asyncio.sleep(0)
        assert asker.left >= 95
        write.set_result(True)
        await _iterate(asker)

    asyncio.run(run())


def test_requests_wait_for_a_slow_write_for_a_moment_only() -> None:
    async def run() -> None:
        write: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        turns = pressed()
        turns.write_in_work = lambda: write
        asker = Asker(turns, "a", 20)
        asker.handle()
        async with asyncio.timeout(60):
            while asker.left:
                await asyncio.sleep(PAUSE_S)

    asyncio.run(run())
