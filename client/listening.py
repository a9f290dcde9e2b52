"""Calls message listeners on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

from velaray.client.core import Core
from velaray.client.exceptions import VelarayError
from velaray.client.inbox import AsyncInbox
from velaray.client.interceptors import Harmless
from velaray.client.message import Message


class Listening:
    """Passes one consumer's messages to its listener, one after the other.

    An exception of the listener is logged, and its message stays unacknowledged. If the listener
    returns an awaitable, that is awaited before the next message.
    """

    def __init__(
        self, core: Core, inbox: AsyncInbox, listener: Callable[[Message[Any]], Any]
    ) -> None:
        self._inbox = inbox
        self._listener = listener
        self._stopped = False
        self._running = asyncio.Event()
        self._running.set()
        self._task = core.spawn(self._listen())

    async def _listen(self) -> None:
        while not self._stopped:
            await self._running.wait()
            message = self._inbox.pop()
            if message is None:
                try:
                    await self._inbox.arrival()
                except VelarayError:
                    return  # the consumer is closed, or has failed permanently and logged it
                continue
            with Harmless("a message listener"):
                outcome = self._listener(message)
                if isawaitable(outcome):
                    await outcome

    def pause(self) -> None:
        """Stop calling the listener, after the current call."""
        self._running.clear()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._running.set()

    def stop(self) -> None:
        """Stop calling the listener; cancel the current call unless that is the caller."""
        self._stopped = True
        if asyncio.current_task() is not self._task:
            self._task.cancel()
