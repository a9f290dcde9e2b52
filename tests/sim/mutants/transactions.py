"""Bugs of transactions: coordinators, admission, partitions, pending acks, clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from sortedcontainers import SortedSet

from tests.sim.mutants.mutant import Mutant, always, do_nothing, do_nothing_async
from velaray.actors.coordinator import machine as coordinator
from velaray.actors.coordinator.machine import (
    Begin,
    CoordinatorMachine,
    CoordinatorState,
    Decide,
    Joined,
    Status,
)
from velaray.actors.dispatch.deliverable import Deliverable
from velaray.actors.machine import Decision, Refusal
from velaray.actors.partition import transactions
from velaray.actors.partition.state import PartitionState
from velaray.actors.subscription import pending_acks
from velaray.actors.subscription.pending_sets import PendingAcks
from velaray.broker.coordinator.coordinator_actor import CoordinatorActor
from velaray.broker.coordinator.transaction_completion import TransactionCompletion, Untold
from velaray.broker.partition.channel.feed import DispatcherFeed
from velaray.broker.partition.messages import EndTransaction
from velaray.broker.partition.transaction_admission import TransactionAdmission
from velaray.broker.partition.visibility import Visibility
from velaray.client.acks import AckTracker
from velaray.client.partition_producer import PartitionProducer
from velaray.client.transactions import Transaction
from velaray.events.events_pb2 import (
    TransactionAcksEnded,
    TransactionEnded,
    TransactionFinished,
)
from velaray.topology.actor_system import Unreachable
from velaray.topology.rpc import RemoteError, RpcConnectionClosed

# -- coordinators --------------------------------------------------------------------


def _forget_what_is_over(original: Any) -> Any:
    def status(self: CoordinatorState, sequence: int) -> Status | None:
        known = self.unfinished.get(sequence)
        return None if known is None else known.status

    return status


def _keep_commits_only(original: Any) -> Any:
    def evolve(self: CoordinatorMachine, state: CoordinatorState, event: Any) -> None:
        if isinstance(event, TransactionFinished):
            state.unfinished[event.sequence].status = Status.COMMITTING
        original(self, state, event)

    return evolve


def _at_once(*kinds: type) -> Callable[[Any], Any]:
    """Answer these commands before their events are durable."""

    def change(original: Any) -> Any:
        async def ask(self: CoordinatorActor, command: Any) -> Any:
            if not isinstance(command, kinds):
                return await original(self, command)
            runtime = self.runtime
            now_ms = self.actor_system.clock_ms()
            reply = runtime._machine.decide(runtime.state, command, now_ms).reply
            if isinstance(reply, Refusal):
                return await original(self, command)
            self.spawn(_unheard(original(self, command)))
            await asyncio.sleep(0)
            return reply

        return ask

    return change


async def _unheard(work: Any) -> None:
    try:
        await work
    except RemoteError:
        return


def _send_verdicts_before_deciding(original: Any) -> Any:
    async def end(self: CoordinatorActor, command: Decide) -> Any:
        known = self.runtime.state.unfinished.get(command.sequence)
        if known is not None and known.status is Status.OPEN and command.commit:
            what = EndTransaction(self.number, known.sequence, commit=True)
            for topic in list(known.partitions):
                await self.completion._tell(known.sequence, Untold(topic, None, 0), what)
        return await original(self, command)

    return end


def _keep_told(original: Any) -> Any:
    """The original, also for participants that aren't recorded as uninformed."""

    async def tell(
        self: TransactionCompletion, sequence: int, participant: Untold, what: Any
    ) -> Any:
        untold = self._untold.setdefault(sequence, {})
        untold.setdefault((participant.topic, participant.subscription), participant)
        return await original(self, sequence, participant, what)

    return tell


def _hiding_nothing(original: Any) -> Any:
    def visible_until(self: Visibility, first: int, end: int) -> tuple[int, int]:
        known, _ = original(self, first, end)
        return known, known

    return visible_until


def _tell_only(subscriptions: bool) -> Callable[[Any], Any]:
    def change(original: Any) -> Any:
        async def tell(
            self: TransactionCompletion, sequence: int, participant: Untold, what: Any
        ) -> Any:
            if (participant.subscription is not None) is subscriptions:
                return await original(self, sequence, participant, what)
            return []

        return tell

    return change


def _send_verdicts_once(original: Any) -> Any:
    async def tell_once(self: TransactionCompletion, *arguments: Any) -> None:
        try:
            await original(self, *arguments)
        except (RemoteError, Unreachable, RpcConnectionClosed, OSError, TimeoutError):
            return

    return tell_once


def _commit_on_timeout(original: Any) -> Any:
    def expire(state: CoordinatorState, now_ms: int) -> Decision:
        decision: Decision = original(state, now_ms)
        for event in decision.events:
            event.commit, event.timed_out = True, False  # type: ignore[attr-defined]
        return decision

    return expire


def _admit_after_the_end(original: Any) -> Any:
    return lambda state, command: Decision(reply=Joined())


def _change_the_verdict(original: Any) -> Any:
    def decide(self: CoordinatorMachine, state: Any, command: Any, now_ms: int) -> Decision:
        if isinstance(command, Decide) and not command.commit:
            known = state.unfinished.get(command.sequence)
            if known is not None and known.status is Status.COMMITTING:
                known.status = Status.ABORTING
        decision: Decision = original(self, state, command, now_ms)
        return decision

    return decide


def _trust_clocks_that_were_ahead(original: Any) -> Any:
    def expire(state: CoordinatorState, now_ms: int) -> Decision:
        starts, state.starts = state.starts, SortedSet()
        try:
            decision: Decision = original(state, now_ms)
        finally:
            state.starts = starts
        return decision

    return expire


# -- admission -------------------------------------------------------------------------


def _admit_after_the_verdict(original: Any) -> Any:
    async def end(self: TransactionAdmission, *what: Any) -> None:
        was_open = tuple(what) in self._open or (*what, None)[:2] in self._open
        await original(self, *what)
        if was_open:
            self._open.add((*what, None)[:2])  # type: ignore[arg-type]

    return end


# -- partitions ------------------------------------------------------------------------


def _show_aborted_messages(original: Any) -> Any:
    def evolve(state: Any, event: TransactionEnded) -> None:
        shown = TransactionEnded()
        shown.CopyFrom(event)
        shown.commit = True
        original(state, shown)

    return evolve


def _hide_committed_messages(original: Any) -> Any:
    def evolve(state: Any, event: TransactionEnded) -> None:
        hidden = TransactionEnded()
        hidden.CopyFrom(event)
        hidden.commit = event.commit and event.sequence % 3 != 0
        original(state, hidden)

    return evolve


def _lose_aborts_on_roll_over(original: Any) -> Any:
    def snapshot(state: Any) -> Any:
        found = original(state)
        return {name: kept for name, kept in found.items() if not name.startswith("hidden/")}

    return snapshot


def _order_by_number(original: Any) -> Any:
    def max_read_offset(self: transactions.Transactions, end_offset: int) -> int:
        if not self.ongoing:
            return end_offset
        first = min(self.ongoing, key=lambda each: (each.sequence, each.coordinator))
        return self.ongoing[first][0][0]

    return max_read_offset


def _end_offset(state: PartitionState) -> int:
    return state.table.end_offset


def _hide_nothing(original: Any) -> Any:
    async def is_hidden(self: Visibility, offset: int) -> bool:
        return False

    return is_hidden


# -- pending acknowledgements ------------------------------------------------------------


def _lose_committed_acks(original: Any) -> Any:
    def decide(pending: Any, cursor: Any, command: Any) -> Decision:
        decision: Decision = original(pending, cursor, command)
        ended = [each for each in decision.events if isinstance(each, TransactionAcksEnded)]
        return Decision(tuple(ended), decision.reply)

    return decide


def _apply_aborted_acks(original: Any) -> Any:
    def decide(pending: Any, cursor: Any, command: Any) -> Decision:
        asked = pending_acks.EndTransactionAcks(command.transaction, True)
        decision: Decision = original(pending, cursor, asked)
        for event in decision.events:
            if isinstance(event, TransactionAcksEnded):
                event.commit = command.commit
        return decision

    return decide


def _redeliver_nothing_after_aborts(original: Any) -> Any:
    def decide(pending: Any, cursor: Any, command: Any) -> Decision:
        decision: Decision = original(pending, cursor, command)
        if not command.commit:
            return Decision(decision.events, pending_acks.AcksEnded())
        return decision

    return decide


def _deliver_pending_messages(original: Any) -> Any:
    def init(self: Deliverable, cursor: Any, pending: Any) -> None:
        original(self, cursor, PendingAcks())

    return init


def _detect_no_conflicts(original: Any) -> Any:
    return lambda *arguments: ""


def _acknowledge_twice_in_transactions(original: Any) -> Any:
    def conflict(pending: Any, cursor: Any, transaction: Any, what: Any) -> str:
        found: str = original(pending, cursor, transaction, what)
        return "" if "already acknowledged" in found else found

    return conflict


# -- clients ---------------------------------------------------------------------------


def _commit_failed_transactions(original: Any) -> Any:
    return lambda self, error: original(self, None)


def _register_no_participants(original: Any) -> Any:
    def when_joined(self: Transaction, who: Any, go: Any) -> None:
        go(None)

    return when_joined


def _mix_batches(original: Any) -> Any:
    def send(self: PartitionProducer, message: Any, done: Any) -> None:
        builder = self._batches.builder
        if builder is not None and builder.open and builder.transaction is not None:
            message.transaction = builder.transaction
        original(self, message, done)

    return send


def _take_pending_for_acknowledged(original: Any) -> Any:
    def arrived(self: AckTracker, where: Any, size: int, outstanding: int | None = None) -> int:
        bits: int = original(self, where, size, outstanding)
        if bits and outstanding is not None:
            self._open[where] = bits
            self._outstanding.pop(where, None)
        return bits

    return arrived


def _skip_no_aborted_entries(original: Any) -> Any:
    async def pass_hidden(self: DispatcherFeed, end: int) -> None:
        await asyncio.sleep(0)
        self._hidden_passed = end

    return pass_hidden


MUTANTS = {
    "lose-verdicts": Mutant(
        "a coordinator keeps no verdicts of finished transactions",
        ((CoordinatorState, "status", _forget_what_is_over),),
        20,
    ),
    "keep-commits-only": Mutant(
        "a coordinator reports finished aborted transactions as committed",
        ((CoordinatorMachine, "evolve", _keep_commits_only),),
        20,
    ),
    "answer-verdicts-early": Mutant(
        "a verdict is answered and sent to participants before it is durable",
        ((CoordinatorActor, "ask", _at_once(Decide)),),
        300,
    ),
    "answer-ids-early": Mutant(
        "a transaction's id is answered before it is durable",
        ((CoordinatorActor, "ask", _at_once(Begin)),),
        300,
    ),
    "send-verdicts-before-deciding": Mutant(
        "partitions receive a commit before it is decided",
        (
            (TransactionCompletion, "_tell", _keep_told),
            (CoordinatorActor, "end", _send_verdicts_before_deciding),
        ),
        100,
    ),
    "change-verdicts": Mutant(
        "a request to abort changes a commit that isn't finished",
        ((CoordinatorMachine, "decide", _change_the_verdict),),
        200,
    ),
    "ignore-deadlines": Mutant(
        "no transaction is ever aborted by its timeout",
        ((CoordinatorActor, "_keep_deadlines", do_nothing_async),),
        50,
    ),
    "trust-clocks-that-were-ahead": Mutant(
        "a transaction begun by a clock that was ahead stays open until that time",
        ((coordinator, "_expire", _trust_clocks_that_were_ahead),),
        600,
    ),
    "commit-on-timeout": Mutant(
        "the timeout commits a transaction",
        ((coordinator, "_expire", _commit_on_timeout),),
        50,
    ),
    "resume-no-completions": Mutant(
        "a restarted coordinator doesn't complete decided transactions",
        ((CoordinatorState, "decided", always([])),),
        200,
    ),
    "complete-partitions-only": Mutant(
        "subscriptions receive no verdicts",
        ((TransactionCompletion, "_tell", _tell_only(False)),),
        50,
    ),
    "complete-subscriptions-only": Mutant(
        "partitions receive no verdicts",
        ((TransactionCompletion, "_tell", _tell_only(True)),),
        50,
    ),
    "send-verdicts-once": Mutant(
        "a transaction is finished although a participant couldn't be reached",
        ((TransactionCompletion, "_tell_once", _send_verdicts_once),),
        100,
    ),
    "admit-after-the-end": Mutant(
        "a coordinator lets messages into finished transactions",
        ((coordinator, "_may_join", _admit_after_the_end),),
        200,
    ),
    "admit-without-asking": Mutant(
        "a partition accepts messages of transactions without asking the coordinator",
        ((TransactionAdmission, "is_open", always(True)),),
        200,
    ),
    "admit-after-the-verdict": Mutant(
        "a partition still accepts messages after the verdict",
        ((TransactionAdmission, "end", _admit_after_the_verdict),),
        300,
    ),
    "read-past-open-transactions": Mutant(
        "consumers get messages of open transactions",
        ((PartitionState, "max_read_offset", lambda original: property(_end_offset)),),
        20,
    ),
    "order-by-number": Mutant(
        "the max-read offset is that of the transaction with the lowest number",
        ((transactions.Transactions, "max_read_offset", _order_by_number),),
        50,
    ),
    "show-aborted-messages": Mutant(
        "an abort hides nothing",
        ((transactions, "evolve", _show_aborted_messages),),
        20,
    ),
    "hide-committed-messages": Mutant(
        "some commits hide their messages",
        ((transactions, "evolve", _hide_committed_messages),),
        20,
    ),
    "lose-aborts-on-roll-over": Mutant(
        "checkpoints lack the aborted entries",
        ((transactions, "snapshot", _lose_aborts_on_roll_over),),
        50,
    ),
    "deliver-hidden-entries": Mutant(
        "aborted entries are delivered",
        ((Visibility, "visible_until", _hiding_nothing),),
        20,
    ),
    "compact-hidden-entries": Mutant(
        "a compaction keeps aborted entries",
        ((Visibility, "is_hidden", _hide_nothing),),
        300,
    ),
    "skip-no-aborted-entries": Mutant(
        "subscriptions get no notice to skip aborted entries",
        ((DispatcherFeed, "_pass_hidden", _skip_no_aborted_entries),),
        50,
    ),
    "lose-committed-acks": Mutant(
        "a commit acknowledges nothing",
        ((pending_acks, "decide_end", _lose_committed_acks),),
        20,
    ),
    "apply-aborted-acks": Mutant(
        "an abort applies the transaction's acknowledgements",
        ((pending_acks, "decide_end", _apply_aborted_acks),),
        50,
    ),
    "keep-aborted-acks": Mutant(
        "acknowledgements of an aborted transaction stay pending",
        ((PendingAcks, "drop", do_nothing),),
        50,
    ),
    "redeliver-nothing-after-aborts": Mutant(
        "an abort doesn't release its acknowledged messages for redelivery",
        ((pending_acks, "decide_end", _redeliver_nothing_after_aborts),),
        100,
    ),
    "deliver-pending-messages": Mutant(
        "consumers get messages that are acknowledged in open transactions",
        ((Deliverable, "__init__", _deliver_pending_messages),),
        100,
    ),
    "detect-no-conflicts": Mutant(
        "two transactions acknowledge one message",
        (
            (pending_acks, "_conflict_of_ranges", _detect_no_conflicts),
            (pending_acks, "_conflict_of_parts", _detect_no_conflicts),
        ),
        100,
    ),
    "acknowledge-twice": Mutant(
        "a transaction acknowledges messages that another one has acknowledged",
        (
            (pending_acks, "_conflict_of_ranges", _acknowledge_twice_in_transactions),
            (pending_acks, "_conflict_of_parts", _acknowledge_twice_in_transactions),
        ),
        100,
    ),
    "commit-failed-transactions": Mutant(
        "a client commits although an operation of the transaction failed",
        ((Transaction, "release", _commit_failed_transactions),),
        100,
    ),
    "register-no-participants": Mutant(
        "a client doesn't register participants with the coordinator",
        ((Transaction, "_when_joined", _register_no_participants),),
        50,
    ),
    "mix-batches": Mutant(
        "a client puts plain messages into the batch of a transaction",
        ((PartitionProducer, "send", _mix_batches),),
        50,
    ),
    "take-pending-for-acknowledged": Mutant(
        "a client acknowledges messages of a batch that were pending on arrival",
        ((AckTracker, "batch_arrived", _take_pending_for_acknowledged),),
        300,
    ),
}
