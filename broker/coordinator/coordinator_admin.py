"""Administrative calls of a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from itertools import islice
from typing import Any, Protocol

from velaray.actors.coordinator.machine import Decide, Decided
from velaray.actors.coordinator.state import CoordinatorState, Status, Transaction
from velaray.actors.machine import Reason
from velaray.actors.runtime import Runtime
from velaray.broker.coordinator import messages as m
from velaray.broker.coordinator.transaction_completion import TransactionCompletion
from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import Message
from velaray.topology.rpc import RemoteError


class Coordinator(Protocol):
    """The protocol of the coordinator for these calls."""

    number: int
    actor_system: ActorSystem
    runtime: Runtime[CoordinatorState]
    recovery_ms: tuple[int, int]
    completion: TransactionCompletion
    begun_by: dict[int, str]

    async def ask(self, command: Decide) -> Any:
        """Return the durable reply to a command. Raises `RemoteError` for a refusal."""


Handler = Callable[[Coordinator, Any], Awaitable[Any]]

ABORT_S = 5.0
"""The wait of an abort for the participants; their notification continues after it."""


async def stats(coordinator: Coordinator, request: m.Stats) -> m.Row:
    """Counts, the newest sequence, the low-water mark, and the time of recovery."""

    def look(state: CoordinatorState) -> dict[str, Any]:
        unfinished, ending = len(state.unfinished), len(state.decided())
        finished = state.next_sequence - 1 - unfinished
        aborted = state.aborted.size()
        return {
            "last_sequence": state.next_sequence - 1,
            "low_water": state.low_water,
            "open": unfinished - ending,
            "ending": ending,
            "committed": finished - aborted,
            "aborted": aborted,
            "timed_out": state.timed_out,
        }

    found = await coordinator.runtime.read(look)
    return {**found, "recovery_ms": list(coordinator.recovery_ms)}


async def transactions(coordinator: Coordinator, request: m.Transactions) -> m.Row:
    """The unfinished transactions that are wanted, oldest first, and their number."""
    status, now_ms = request.status, coordinator.actor_system.clock_ms()
    before_ms = now_ms - request.older_ms

    def look(state: CoordinatorState) -> dict[str, Any]:
        found = [
            each
            for each in state.unfinished.values()
            if status in (None, each.status) and each.begun_ms <= before_ms
        ]
        told = [_summary(coordinator, each, now_ms) for each in islice(found, request.most)]
        return {"total": len(found), "transactions": told}

    return await coordinator.runtime.read(look)


def _summary(coordinator: Coordinator, known: Transaction, now_ms: int) -> dict[str, Any]:
    is_open = known.status == Status.OPEN
    return {
        "coordinator": coordinator.number,
        "sequence": known.sequence,
        "status": str(known.status),
        "owner": known.owner,
        "client": coordinator.begun_by.get(known.sequence, ""),
        "begun_ms": known.begun_ms,
        "timeout_ms": known.timeout_ms,
        "age_ms": max(0, now_ms - known.begun_ms),
        "left_ms": max(0, known.deadline_ms - now_ms) if is_open else None,
        "timed_out": known.timed_out,
        "partitions": len(known.partitions),
        "subscriptions": len(known.subscriptions),
    }


async def transaction(coordinator: Coordinator, request: m.Transaction) -> m.Row:
    """The details of one transaction. Raises `RemoteError` (NOT_FOUND)."""
    sequence, now_ms = request.sequence, coordinator.actor_system.clock_ms()

    def look(state: CoordinatorState) -> dict[str, Any] | None:
        known = state.unfinished.get(sequence)
        if known is not None:
            return {
                **_summary(coordinator, known, now_ms),
                "deadline_ms": known.deadline_ms,
                "partitions": list(known.partitions),
                "subscriptions": [list(pair) for pair in known.subscriptions],
                "untold": [asdict(each) for each in coordinator.completion.untold(sequence)],
            }
        status = state.status(sequence)
        return None if status is None else {"status": str(status)}

    found = await coordinator.runtime.read(look)
    if found is None:
        where = f"coordinator {coordinator.number}"
        raise RemoteError(Reason.NOT_FOUND, f"{where} has never had a transaction {sequence}")
    return found


async def abort(coordinator: Coordinator, request: m.Abort) -> bool:
    """Abort a transaction; returns whether all participants have applied the verdict.

    Raises `RemoteError`: NOT_FOUND, and CONFLICT if it is committed.
    """
    command = Decide(request.sequence, commit=False, force=True)
    decided: Decided = await coordinator.ask(command)
    if decided.finished:
        return True
    try:
        async with asyncio.timeout(ABORT_S):
            await coordinator.completion.finish(command.sequence)
    except TimeoutError:
        return False
    return True


HANDLERS: dict[type[Message], Handler] = {
    m.Stats: stats,
    m.Transactions: transactions,
    m.Transaction: transaction,
    m.Abort: abort,
}
