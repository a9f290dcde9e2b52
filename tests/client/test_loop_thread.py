"""The thread of a synchronous client."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from velaray.client.exceptions import AlreadyClosed
from velaray.sync.loop import LoopThread


def test_a_call_that_waits_ends_with_the_loop() -> None:
    thread, begun = LoopThread(), threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(thread.run, wait())
        assert begun.wait(20)
        thread.stop()
        with pytest.raises(AlreadyClosed, match="meanwhile"):
            waiting.result(20)


def test_a_stopped_loop_refuses_calls() -> None:
    thread = LoopThread()
    thread.stop()
    thread.stop()
    with pytest.raises(AlreadyClosed):
        thread.run(asyncio.sleep(0))
