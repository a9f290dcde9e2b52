"""The base of the synchronous consumer and reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, TypeVar

from velaray.client.calls import TopicCalls
from velaray.client.closing import Closing
from velaray.client.consumer_base import ConsumerBase
from velaray.sync.face import Face, blocking, direct
from velaray.sync.inbox import ThreadInbox
from velaray.sync.loop import Funnel, LoopThread

CallsT_co = TypeVar("CallsT_co", bound=TopicCalls, covariant=True)
R = TypeVar("R")


def deadline_of(timeout_millis: int | None) -> float | None:
    """Return the `monotonic` time after the timeout; None without one."""
    return None if timeout_millis is None else monotonic() + timeout_millis / 1000


class TopicFace(Face[CallsT_co], Closing):
    """Base of the synchronous consumer and reader.

    Notes to the loop's thread, such as acknowledgements, are handled by ``handle_notes``. All calls
    come after the notes of earlier calls.
    """

    def __init__(
        self,
        thread: LoopThread,
        base: ConsumerBase,
        inbox: ThreadInbox,
        calls: CallsT_co,
        handle_notes: Callable[[deque[Any]], None],
    ) -> None:
        super().__init__(thread, calls)
        self._base = base
        self._inbox = inbox
        self._notes = Funnel(thread, handle_notes)

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._thread.run(self._after_notes(work))

    async def _after_notes(self, work: Coroutine[Any, Any, R]) -> R:
        self._notes.drain()
        return await work

    seek = blocking(TopicCalls.seek)
    get_positions = blocking(TopicCalls.get_positions)
    get_spans = blocking(TopicCalls.get_spans)
    topic = direct(TopicCalls.topic)
    is_connected = direct(TopicCalls.is_connected)
    _close = blocking(TopicCalls.close)

    def close(self) -> None:
        """Leave the service. Acknowledgements are made durable before, if possible.

        A subscription delivers un-acknowledged messages to other consumers, or keeps them in the
        backlog. Closing twice has no effect.
        """
        if not self._base.closed:
            self._close()
