"""Answers requests to undo moves of a subscription's cursor."""

from __future__ import annotations

from typing import Any, Protocol

from velaray.actors.machine import Reason
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.undoing import decide_restore
from velaray.broker.history import NoHistory, PointInTime
from velaray.broker.subscription import messages as m
from velaray.broker.subscription.dispatch_state import accepted
from velaray.broker.subscription.dispatcher import SubscriptionDispatcher
from velaray.broker.subscription.undoing import NothingMoved, Plan, plan_undo
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

_TRIES = 5


class Subscription(Protocol):
    """What undoing needs of the subscription's actor."""

    key: ActorKey
    actor_system: ActorSystem
    runtime: Runtime[Any]


class UndoRequests:
    """Plans what undoing would change, and carries it out."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    async def preview(self, request: m.PlanUndo) -> dict[str, Any] | None:
        """What undoing would change; None if nothing moved since. Raises `RemoteError` if the
        subscription would refuse it."""
        try:
            plan = await self._plan(PointInTime(request.sequence, request.at_ms))
        except NothingMoved:
            return None
        accepted(decide_restore(plan.expected, plan.command(request.gone)).reply)
        return plan.described()

    async def undo(
        self, dispatcher: SubscriptionDispatcher, request: m.UndoMoves
    ) -> dict[str, Any]:
        """Move the cursor back; returns what changed. Raises `RemoteError`: BUSY if
        acknowledgements keep changing the cursor."""
        for _ in range(_TRIES):
            try:
                plan = await self._plan(PointInTime(request.sequence, request.at_ms))
            except NothingMoved as error:
                raise RemoteError(Reason.NOT_FOUND, str(error)) from error
            try:
                await dispatcher.restore(plan.command(request.gone, shared=request.shared))
                return plan.described()
            except RemoteError as error:
                if error.kind != Reason.CONFLICT:
                    raise
        raise RemoteError(Reason.BUSY, "acknowledgements keep coming; try again")

    async def _plan(self, point_in_time: PointInTime) -> Plan:
        subscription = self._subscription
        await subscription.runtime.read(lambda state: None)  # makes earlier decisions durable
        try:
            store, key = subscription.actor_system.store, subscription.key
            return await plan_undo(store, key, point_in_time)
        except NoHistory as error:
            raise RemoteError(Reason.NOT_FOUND, str(error)) from error
