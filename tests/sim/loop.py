"""An asyncio event loop in virtual time, whose callbacks belong to simulated processes.

Nothing here waits: when no callback is ready, the clock jumps to the next timer. There is no
selector, no thread and no wall clock; sockets are those of `tests.sim.network`.

Every callback runs in a context that names its process (`Node`). A process that was killed
runs nothing any more, not even its ``finally`` blocks, as after SIGKILL; one that is paused
runs later, in order, as after SIGSTOP and SIGCONT.

Objects whose place in a set depended on their address (tasks, futures, sessions, connections) get
hashes from a counter, so that a seed gives one history in every process.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from velaray.broker.client_session import ClientSession
from velaray.broker.coordinator.coordinator_handlers import CoordinatorHandlers
from velaray.broker.proxy.proxy import ProxySession, _Tunnel
from velaray.client.consumer import Consumer
from velaray.client.partition_producer import PartitionProducer
from velaray.client.producer import Producer
from velaray.client.reader import Reader
from velaray.client.transactions import Transaction
from velaray.topology.rpc import RpcConnection
from velaray.wire.connection import WireConnection

_HASHED = (
    RpcConnection,
    ClientSession,
    CoordinatorHandlers,
    ProxySession,
    _Tunnel,
    WireConnection,
    Producer,
    Consumer,
    Reader,
    PartitionProducer,
    Transaction,
)


class Node:
    """A simulated process; ``site`` is where it runs, if there are several clusters."""

    watch: Callable[[asyncio.Handle], None] | None = None
    """Called with each callback that runs; set for an actor of a host that has ended."""

    def __init__(self, name: str, site: str = "") -> None:
        self.name = name
        self.site = site
        self.dead = False
        self.paused_until = 0.0
        self.pauses = 0
        self.backlog: deque[asyncio.Handle] = deque()
        self.skew_ms = 0

    def __repr__(self) -> str:
        return self.name

    @property
    def process(self) -> Node:
        """The process itself; the host of an actor that shares one."""
        return self


NODE: contextvars.ContextVar[Node] = contextvars.ContextVar("node")
HARNESS = Node("harness")


def current_node() -> Node:
    """The process that runs now; the harness itself outside of any."""
    return NODE.get(HARNESS)


@contextmanager
def within(node: Node) -> Iterator[None]:
    """Let ``node`` be the one that runs, in this context."""
    token = NODE.set(node)
    try:
        yield
    finally:
        NODE.reset(token)


def context_of(node: Node) -> contextvars.Context:
    """A context in which callbacks and tasks belong to ``node``."""
    context = contextvars.Context()
    context.run(NODE.set, node)
    return context


class Deadlock(RuntimeError):
    """Nothing can ever happen again, and the run isn't over."""


class OutOfSteps(RuntimeError):
    """The run took more turns than any sound run takes."""


class _Numbers:
    """Gives out hashes; begun anew for every run."""

    def __init__(self) -> None:
        self.next: Callable[[], int] = itertools.count(1).__next__

    def restart(self) -> None:
        self.next = itertools.count(1).__next__


_numbers = _Numbers()


def _numbered_hash(self: Any) -> int:
    number: int | None = getattr(self, "_sim_number", None)
    if number is None:
        number = self._sim_number = _numbers.next()
    return number


class SimFuture(asyncio.Future):
    """A future whose hash is its number."""

    __hash__ = _numbered_hash


class SimTask(asyncio.Task):
    """A task whose hash is its number."""

    __hash__ = _numbered_hash


class _Handle(asyncio.Handle):
    def _run(self) -> None:
        if _may_run(self, self._loop):
            super()._run()


class _TimerHandle(asyncio.TimerHandle):
    def _run(self) -> None:
        if _may_run(self, self._loop):
            super()._run()


def _may_run(handle: asyncio.Handle, loop: Any) -> bool:
    actor = handle._context.get(NODE, HARNESS)
    if loop.unwinding:
        return True
    node = actor.process
    if node.dead:
        return False
    if node.paused_until and node is not HARNESS:
        if loop.time() < node.paused_until or node.backlog:
            node.backlog.append(handle)
            return False
        node.paused_until = 0.0
    if actor.watch is not None:
        actor.watch(handle)
    return True


class _Clock:
    """Stands where a selector would: waiting moves the clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.advance(timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """The loop; ``network`` is set by the creator of a run."""

    def __init__(self, max_turns: int) -> None:
        super().__init__()
        _numbers.restart()
        for kind in _HASHED:
            kind.__hash__ = _numbered_hash
        self._now = 0.0
        self._clock_resolution = 1e-9
        self._selector = _Clock(self)
        self.turns, self.max_turns = 0, max_turns
        self.unwinding = False
        self.network: Any = None
        self.tasks: dict[SimTask, None] = {}
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Virtual seconds since the run began."""
        return self._now

    def advance(self, timeout: float | None) -> None:
        """Move the clock to the next timer."""
        self.turns += 1
        if self.turns > self.max_turns:
            raise OutOfSteps(f"still busy at {self._now:.3f} s")
        if timeout is None:
            raise Deadlock(f"nothing is left to happen at {self._now:.3f} s")
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0]._when)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def remove_reader(self, fd: Any) -> bool:
        """There is no selector; `SimServer.close` ends accepting."""
        return False

    def _write_to_self(self) -> None:
        """There is no other thread."""

    def create_future(self) -> SimFuture:
        """A future of this loop."""
        return SimFuture(loop=self)

    def _make_task(self, loop: Any, coro: Any, **arguments: Any) -> SimTask:
        task = SimTask(coro, loop=loop, **arguments)
        # A strong reference for the whole run: a task of a dead process must not be closed
        # (which would run its code) when the last reference to it goes.
        self.tasks[task] = None
        return task

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Run ``callback`` at a virtual time."""
        timer = _TimerHandle(when, callback, args, self, context)
        asyncio.base_events.heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def pause(self, node: Node, seconds: float) -> None:
        """Let ``node`` run nothing for a while."""
        node.paused_until = max(node.paused_until, self._now + seconds)
        node.pauses += 1
        self.call_at(node.paused_until, self._go_on, node, context=context_of(HARNESS))

    def _go_on(self, node: Node) -> None:
        if self._now + 1e-9 < node.paused_until:
            return
        node.paused_until = 0.0
        backlog, node.backlog = node.backlog, deque()
        self._ready.extendleft(reversed(backlog))

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Threads have no place in a simulation. Raises RuntimeError."""
        raise RuntimeError(f"a thread was asked for: {func!r}")

    async def create_server(
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Listen on the simulated network."""
        return self.network.listen(factory, host, port)

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Connect over the simulated network. Raises `OSError`."""
        return await self.network.connect(factory, host, port)

    def finish(self) -> None:
        """Unwind every task that is left, those of dead processes too, and close."""
        self.set_exception_handler(lambda loop, context: None)
        self.unwinding = True
        self.max_turns = self.turns + 10_000
        pending = [task for task in self.tasks if not task.done()]
        for task in pending:
            task.cancel()
        with suppress(Deadlock, OutOfSteps):
            self.run_until_complete(self._unwound(pending))
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.exception()  # marks the exception as retrieved
        self.tasks.clear()
        self.close()

    async def _unwound(self, pending: list[SimTask]) -> None:
        if pending:
            await asyncio.wait(pending, timeout=1.0)
