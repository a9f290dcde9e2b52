"""Faults that hit a transaction's end at a certain moment, between the steps of stores.

An ambush waits for a process of its kind to reach its moment for the nth time. Then that process
crashes, is taken for dead, pauses, or its answer to the client is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.sim.loop import current_node
from velaray.actors.coordinator.machine import Decide, Expired, Finish
from velaray.actors.runtime import Runtime
from velaray.broker.coordinator.coordinator_handlers import CoordinatorHandlers
from velaray.broker.coordinator.transaction_completion import TransactionCompletion
from velaray.broker.partition.transaction_admission import TransactionAdmission
from velaray.broker.partition.transaction_ends import TransactionEnds
from velaray.broker.subscription.acknowledgements import Acknowledgements
from velaray.broker.subscription.messages import EndPendingAcks
from velaray.wire import pulsar_pb2 as pb

Replace = Callable[[Any, str, Any], None]

MOMENTS = {
    "COORDINATOR": ("decided", "telling", "told", "all told", "finished", "answering"),
    "PARTITION": ("asking", "asked", "verdict came", "verdict applied"),
    "SUBSCRIPTION": ("verdict came", "verdict applied"),
}
ACTIONS = ("crash", "crash", "crash", "stale", "pause", "lose the answer")


@dataclass
class Ambush:
    """What happens to the process that reaches the moment when ``passes`` others have."""

    kind: str
    moment: str
    action: str
    passes: int
    size: float


async def reach(moment: str, lose: Callable[[], None] | None = None) -> None:
    """The current process is at this moment; ``lose`` is how its answer gets lost."""
    node: Any = current_node()
    cluster = getattr(node, "cluster", None)
    if cluster is None or node.key is None:
        return
    for ambush in cluster.ambushes:
        if ambush.moment == moment and node.key.kind.name == ambush.kind:
            if ambush.passes:
                ambush.passes -= 1
                continue
            cluster.ambushes.remove(ambush)
            cluster.history.add("ambush", node=node.name, moment=moment, action=ambush.action)
            await _spring(cluster, node, ambush, lose)
            return


async def _spring(cluster: Any, node: Any, ambush: Ambush, lose: Any) -> None:
    match ambush.action:
        case "crash":
            cluster.kill(node)
            await asyncio.Event().wait()
        case "stale":
            cluster.forget(node)
            await asyncio.sleep(ambush.size * 5)
        case "pause":
            cluster.loop.pause(node.process, ambush.size * 10)
            await asyncio.sleep(0)
        case "lose the answer" if lose is not None:
            lose()


def watch_moments(replace: Replace) -> None:
    """Make coordinators and participants report the moments of a transaction's end."""
    _watch_coordinators(replace)
    _watch_participants(replace)


def _watch_coordinators(replace: Replace) -> None:
    ask, tell, answer = Runtime.ask, TransactionCompletion._tell_once, CoordinatorHandlers._answer

    async def asked(self: Runtime[Any], command: Any, *arguments: Any) -> Any:
        if isinstance(command, Finish):
            await reach("all told")
        reply = await ask(self, command, *arguments)
        if isinstance(command, Decide) or (isinstance(reply, Expired) and reply.sequences):
            await reach("decided")
        elif isinstance(command, Finish):
            await reach("finished")
        return reply

    async def told(self: TransactionCompletion, *arguments: Any) -> None:
        await reach("telling")
        await tell(self, *arguments)
        await reach("told")

    async def answered(self: CoordinatorHandlers, work: Any, reply: Any) -> None:
        async def watched() -> Any:
            found = await work()
            if not isinstance(reply, pb.CommandTcClientConnectResponse):
                await reach(
                    "answering", partial(self.client.connection.abort, ConnectionResetError())
                )
            return found

        await answer(self, watched, reply)

    replace(Runtime, "ask", asked)
    replace(TransactionCompletion, "_tell_once", told)
    replace(CoordinatorHandlers, "_answer", answered)


def _watch_participants(replace: Replace) -> None:
    question, end, end_acks = (
        TransactionAdmission._ask,
        TransactionEnds.end_transaction,
        Acknowledgements.end_transaction,
    )

    async def asked(self: TransactionAdmission, *arguments: Any) -> None:
        await reach("asking")
        await question(self, *arguments)
        await reach("asked")

    async def ended(self: TransactionEnds, *arguments: Any, **verdict: bool) -> Any:
        await reach("verdict came")
        clusters = await end(self, *arguments, **verdict)
        await reach("verdict applied")
        return clusters

    async def acks_ended(self: Acknowledgements, request: EndPendingAcks) -> bool:
        await reach("verdict came")
        await end_acks(self, request)
        await reach("verdict applied")
        return False  # the actor then always confirms that it is the newest

    replace(TransactionAdmission, "_ask", asked)
    replace(TransactionEnds, "end_transaction", ended)
    replace(Acknowledgements, "end_transaction", acks_ended)
