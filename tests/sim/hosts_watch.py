"""What the actors of simulated hosts do after their end, and what ends them.

An activation has *ended* when its ``abort`` has returned, or its ``stop``. From then on it begins
no operation of the store; an operation that is under way may come to its end. After `GRACE` more
turns of the loop nothing of it runs: no task, no timer. It answers nobody: no receipt to a client,
no bytes to a client, no answer over RPC. An actor is aborted only if it failed itself, and its
failure closes no connection of clients. A host runs one activation of an actor at a time, besides
those that are being stopped, and starts an actor only if the directory has just said that it
belongs there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.sim.history import History
from tests.sim.loop import SimLoop, current_node, within
from tests.sim.network import SimTransport
from velaray.topology.actor_system import ActorBase
from velaray.topology.rpc import RpcConnection

if TYPE_CHECKING:
    from tests.sim.hosts_cluster import HostedActivation, SimHost

GRACE = 12
"""Turns of the loop in which cancelled tasks and closed connections come to their end."""
FRESH_S = 0.5
"""A host starts an actor within this time of the directory's answer, unless it is paused."""


class Watch:
    """Knows the activations of a run, and collects ``problems``."""

    def __init__(self, loop: SimLoop, history: History) -> None:
        self.problems: list[str] = []
        self.live: dict[str, HostedActivation] = {}
        """The activations that haven't ended, by their names."""
        self._loop = loop
        self._history = history
        self._told: set[tuple[str, str]] = set()

    def turn(self) -> int:
        """The number of the loop's present turn."""
        return self._loop.turns

    def report(self, node: Any, rule: str, what: str) -> None:
        """Note a problem, once for an activation and rule."""
        if (node.name, rule) not in self._told:
            self._told.add((node.name, rule))
            self._history.add("host problem", node=node.name, rule=rule, what=what)
            self.problems.append(f"{rule}: {self._history.now()} s: {node.name} {what}")

    # -- life ------------------------------------------------------------------------

    def begun(self, node: HostedActivation, answered: float | None) -> None:
        """An activation begins; the directory said then that its actor belongs there."""
        for other in self.live.values():
            if other.key == node.key and other.host is node.host and not other.stopping:
                self.report(node, "one_copy_in_a_host", f"starts beside {other.name}")
        late = answered is None or self._loop.time() - answered > FRESH_S
        if late and not node.host.pauses:
            self.report(node, "hosts_ask_the_directory", f"starts in {node.host.name} unasked")
        self.live[node.name] = node

    def made(self, node: HostedActivation, actor: ActorBase) -> None:
        """An activation has its actor, whose end is watched."""
        actor.sim_node = node  # type: ignore[attr-defined]
        stop, abort = actor.stop, actor.abort

        async def stopped() -> None:
            node.stopping = node.condemned = True
            with within(node):
                await stop()
                self._end(node)

        def aborted() -> None:
            with within(node):
                if not node.condemned and node.actor is not None:
                    self.report(node, "an_actor_fails_alone", "is aborted and didn't fail")
                abort()
                self._end(node)

        actor.stop, actor.abort = stopped, aborted  # type: ignore[method-assign]

    def condemn(self, actor: Any) -> HostedActivation:
        """An actor fails by its own doing."""
        node: HostedActivation = actor.sim_node
        node.condemned = True
        return node

    def _end(self, node: HostedActivation) -> None:
        if node.ended is not None:
            return
        node.ended = self.turn()
        node.finishing = node.phase != ""
        node.watch = lambda handle: self.ran(node, handle)
        self.live.pop(node.name, None)
        if node.cluster.actors.get(node.key) is node:  # type: ignore[arg-type]
            del node.cluster.actors[node.key]  # type: ignore[arg-type]
        self._history.add("ended", node=node.name)

    def killed(self, host: SimHost) -> None:
        """A host is gone, with its actors."""
        for node in [node for node in self.live.values() if node.host is host]:
            del self.live[node.name]

    def task_of_host_ended(self, task: asyncio.Task[Any]) -> None:
        """A host's own work ends only with the host."""
        if not task.cancelled() and task.exception() is not None:
            self.report(current_node(), "hosts_go_on", f"fails: {task.exception()!r}")

    # -- after the end ---------------------------------------------------------------

    def _late(self, node: HostedActivation) -> bool:
        return node.ended is not None and self.turn() - node.ended > GRACE

    def ran(self, node: HostedActivation, handle: asyncio.Handle) -> None:
        """A callback of an activation that has ended."""
        if self._late(node) and not node.operations and not _is_of_the_network(handle):
            self.report(node, "nothing_runs_after_the_end", f"runs {_described(handle)}")

    def operation(self, node: HostedActivation, name: str) -> None:
        """An operation of the store begins. A read of several parts may come to its end, as may the
        start of a ledger, and the journal is released."""
        read = name.startswith("read") or name == "release" or (node.finishing and node.phase)
        if node.ended is not None and (self._late(node) or not read):
            self.report(node, "nothing_is_written_after_the_end", f"begins {name}")

    def operation_over(self, node: HostedActivation) -> None:
        """An operation is over: what waited for it comes to its end now."""
        if node.ended is not None:
            node.ended = self.turn()

    def wrote(self, what: str) -> None:
        """The actor that runs now writes to a client."""
        node: Any = current_node()
        if hasattr(node, "ended") and self._late(node):
            self.report(node, "nothing_is_answered_after_the_end", what)

    def closes(self, session: Any, error: Exception | None) -> None:
        """A host closes a client's connection, which goes on."""
        end = session.connection._transport
        if error is None and session._connected and not (end.peer._closing or end.peer.lost):
            self.report(current_node(), "an_actor_fails_alone", "closes a client's connection")

    def answers(self, node: Any, what: str) -> None:
        """An activation sends an answer or a receipt."""
        if getattr(node, "ended", None) is not None:
            self.report(node, "nothing_is_answered_after_the_end", what)


def _is_of_the_network(handle: asyncio.Handle) -> bool:
    """Whether the kernel closes a connection that the actor has closed, or asyncio cleans up."""
    callback: Any = handle._callback
    if getattr(callback, "__module__", "") == "asyncio.tasks":
        return True  # the inside of `asyncio.shield`
    end = getattr(callback, "__self__", None)
    if isinstance(end, RpcConnection) and end._transport is not None:
        return end._transport.is_closing()
    if not isinstance(end, SimTransport):
        return False
    reader = end.peer if callback == end._arrive else end
    return reader._closing or reader.lost


def _described(handle: asyncio.Handle) -> str:
    callback: Any = handle._callback
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = task.get_coro()
        return f"the task {coroutine.__qualname__}"
    kind = "timer" if isinstance(handle, asyncio.TimerHandle) else "callback"
    return f"the {kind} {getattr(callback, '__qualname__', callback)}"
