"""What the handlers of requests share: the errors of calls, and attempts to connect."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.runtime import Stopped
from velaray.broker.partition.session.protocols import Client, Refuse
from velaray.events.ids import InvalidNameError
from velaray.topology.transient import TRANSIENT_OR_STORE

CALL_ERRORS: tuple[type[Exception], ...] = (
    *TRANSIENT_OR_STORE,
    InvalidNameError,
    Stopped,
    NoSuchEntryError,
)
"""The errors with which a request is answered. Any other error ends the connection."""

CONSUMER_CLOSED = "the subscription closed its consumers: subscribe again"


class Attempts:
    """The producers, or the consumers, of a client that are being connected, by their ids."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, number: int, work: Coroutine[Any, Any, None], refuse: Refuse) -> None:
        """Run ``work``, which connects the producer or consumer, and cancel an older attempt.

        A failed call is answered by ``refuse``.
        """
        self.stop(number)
        task = self._tasks[number] = self._client.spawn_request(work, refuse)

        def done(_: asyncio.Task[None]) -> None:
            if self._tasks.get(number) is task:
                del self._tasks[number]

        task.add_done_callback(done)

    def stop(self, number: int) -> None:
        """Cancel the attempt for this id."""
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()
