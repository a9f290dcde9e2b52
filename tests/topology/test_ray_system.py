"""Asking a Ray actor again while a call hangs on its former process."""

from __future__ import annotations

import asyncio

import pytest

from velaray.topology import ray_system


def run(calls: list[str | Exception | None]) -> tuple[object, int]:
    """Each ask takes the next of ``calls``; None hangs. Returns the answer and how many asks."""

    async def main() -> tuple[object, int]:
        asked = 0

        async def ask() -> object:
            nonlocal asked
            asked += 1
            found = calls[asked - 1]
            if found is None:
                await asyncio.get_running_loop().create_future()
            if isinstance(found, Exception):
                raise found
            return found

        answer = await ray_system.first_answer(ask)
        assert asyncio.all_tasks() == {asyncio.current_task()} or await settled()
        return answer, asked

    async def settled() -> bool:
        await asyncio.sleep(0)
        return asyncio.all_tasks() == {asyncio.current_task()}

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def short_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_system, "_FIRST_ASK_AGAIN_S", 0.001)


def test_an_answer_needs_one_call() -> None:
    assert run(["here"]) == ("here", 1)


def test_a_call_that_hangs_is_made_again_and_given_up() -> None:
    assert run([None, None, "here"]) == ("here", 3)


def test_a_failure_that_comes_first_is_raised() -> None:
    with pytest.raises(ConnectionError, match="gone"):
        run([None, ConnectionError("gone")])
