"""State that the parts of a subscription's dispatcher share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from velaray.actors.dispatch.dispatcher import Dispatcher
from velaray.actors.dispatch.suspects import Suspects
from velaray.actors.machine import Refusal
from velaray.actors.runtime import Runtime
from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.machine import SubscriptionState
from velaray.broker.subscription.messages import FeedFrom, Restart
from velaray.broker.subscription.tracing import Trace
from velaray.topology.messages import Message
from velaray.topology.rpc import RemoteError

Send = Callable[[Message], None]


def pairs(flat: Sequence[int]) -> list[Range]:
    """The ranges of a flat list."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def accepted(reply: Any) -> Any:
    """The reply of a machine. Raises `RemoteError` if the machine refused the command."""
    if isinstance(reply, Refusal):
        raise RemoteError(reply.reason, reply.message)
    return reply


class DispatchState:
    """The runtime, the served cursor, its dispatch decisions, and the connection to the
    partition."""

    def __init__(
        self,
        runtime: Runtime[SubscriptionState],
        partition: int,
        send: Send,
        trace: Trace | None,
        pump: Callable[[], None],
    ) -> None:
        """``pump`` dispatches; `schedule_pump` calls it once per turn of the event loop."""
        self.runtime = runtime
        self.send = send
        self.trace = trace
        self.cursor = runtime.state.cursor
        self.dispatcher = Dispatcher(self.cursor, partition, acks=runtime.state.pending)
        self.wanted = 0
        """The partition feeds entries up to this offset, as requested."""
        self.paused = 0
        """The number of running operations during which nothing may be dispatched."""
        self._partition = partition
        self._pump = pump
        self._pump_scheduled = False

    def begin(self, suspects: Suspects | None) -> None:
        """Serve the cursor of the journal's current state, with the delivery counts of that
        state."""
        state = self.runtime.state
        self.cursor = state.cursor
        counts = state.deliveries.copy()
        self.dispatcher = Dispatcher(self.cursor, self._partition, counts, state.pending, suspects)

    @property
    def current(self) -> bool:
        """Whether the served cursor is the journal's; it isn't after a write that failed."""
        return self.runtime.state.cursor is self.cursor

    def restart_if_stale(self) -> bool:
        """Tell the partition to connect again if the state fell back to what is durable, because
        the disk was full. Returns whether it did."""
        if self.current:
            return False
        self.send(Restart())
        return True

    def feed(self) -> None:
        """Have the partition feed entries from where the dispatcher needs them."""
        dispatcher = self.dispatcher
        self.wanted = dispatcher.wants()
        self.send(FeedFrom(dispatcher.feed_from, self.wanted, dispatcher.needs_hashes))

    def acked(self, ranges: Iterable[Range], partial: Iterable[tuple[int, int]] = ()) -> None:
        """Take acknowledged entries out of dispatch, if the served cursor is current."""
        if self.current:
            self.dispatcher.acked(ranges, partial)
            self.schedule_pump()

    def schedule_pump(self) -> None:
        """Dispatch later in this turn of the event loop."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_pump)

    def _run_pump(self) -> None:
        self._pump_scheduled = False
        if not self.paused:
            self._pump()
