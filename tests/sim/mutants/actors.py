"""Bugs of the machines: catalog, partition, subscription, and of the dispatcher."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import Any

from tests.sim.mutants.mutant import Mutant, always, do_nothing
from velaray.actors.dispatch.consumers import Attached
from velaray.actors.dispatch.in_flight import InFlightTracker
from velaray.actors.dispatch.single_active import SingleActive
from velaray.actors.machine import Decision, RunDecision
from velaray.actors.partition import machine as partition
from velaray.actors.partition import publish_run
from velaray.actors.partition.delayed import DelayedIndex
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.partition.machine import PartitionMachine
from velaray.actors.partition.publish_run import PublishRun
from velaray.actors.partition.state import PartitionState
from velaray.actors.sets import acknowledged_ranges as acked_ranges
from velaray.actors.subscription import dead_letters, redelivery
from velaray.actors.subscription import machine as subscription
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.machine import Ack, AckBefore, Acked, SubscriptionMachine
from velaray.events.events_pb2 import EntryAppended
from velaray.events.ids import Position

# ---------------------------------------------------------------- partition


def _lose_sequence_ids_on_recovery(original: Any) -> Any:
    def restore(self: Any, segments: Any) -> Any:
        state = original(self, segments)
        for producer in state.producers.values():
            producer.last_sequence_id = -1
        return state

    return restore


def _credit_another_producer(original: Any) -> Any:
    def publish(state: Any, command: Any, now_ms: int) -> Decision:
        decision: Decision = original(state, command, now_ms)
        for event in decision.events:
            if isinstance(event, EntryAppended) and event.producer < state.next_producer:
                event.producer = state.next_producer - 1
        return decision

    return publish


def _without_segments(original: Any) -> Any:
    return lambda self: {}


def _count_no_redelivery(original: Any) -> Any:
    def end_deliveries(self: InFlightTracker, ranges: Any, failed_deliveries: Any) -> None:
        original(self, ranges, ())

    return end_deliveries


def _intend_in_words_only(original: Any) -> Any:
    def decide(*arguments: Any) -> Decision:
        return Decision(reply=original(*arguments).reply)

    return decide


def _count_nothing(original: Any) -> Any:
    def decide(cursor: Any, command: Any) -> Decision:
        return Decision(reply=original(cursor, command).reply)

    return decide


def _miss_the_end_of_a_ledger(original: Any) -> Any:
    def position_of(self: LedgerTable, offset: int) -> Position:
        position = original(self, offset)
        index = max(bisect_left(self._firsts, offset) - 1, 0)
        if position.entry_id:
            return position
        return Position(self._ids[index], offset - self._firsts[index])

    return position_of


# ---------------------------------------------------------------- subscription


def _drop_acks(original: Any) -> Any:
    def decide(self: SubscriptionMachine, state: Any, command: Any, now_ms: int) -> Decision:
        decision: Decision = original(self, state, command, now_ms)
        if isinstance(decision.reply, Acked) and len(decision.reply.ranges) == 1:
            return Decision(reply=decision.reply)
        return decision

    return decide


def _lose_a_acked_range(original: Any) -> Any:
    def encode(acked: Any, partial: Any, size: int) -> bytes:
        return bytes(original(type(acked)(list(acked)[:-1]), partial, size))

    return encode


def _acknowledge_one_too_many(original: Any) -> Any:
    def decide(cursor: Cursor, command: AckBefore) -> Decision:
        if command.remaining is None and command.offset < command.end_offset:
            command = replace(command, offset=command.offset + 1)
        return original(cursor, command)

    return decide


def _take_individual_for_cumulative(original: Any) -> Any:
    def decide(cursor: Cursor, command: Ack) -> Decision:
        if not command.ranges:
            return original(cursor, command)
        last = max(end for _, end in command.ranges)
        return subscription._decide_ack_before(cursor, AckBefore(command.end_offset, last))

    return decide


def _take_a_part_for_the_whole(original: Any) -> Any:
    def decide(cursor: Cursor, command: Ack) -> Decision:
        whole = [(offset, offset + 1) for offset, _ in command.partial]
        return original(cursor, Ack(command.end_offset, [*command.ranges, *whole]))

    return decide


def _keep_ranges_at_a_reset(original: Any) -> Any:
    def reset(self: Cursor, next_offset: int) -> None:
        acked_ranges = [part for part in self._acked_ranges if part[0] > next_offset]
        original(self, next_offset)
        for first, end in acked_ranges:
            self.ack_range(first, end)

    return reset


def _reset_one_too_far(original: Any) -> Any:
    def decide(cursor: Cursor, command: Any) -> Decision:
        return original(cursor, replace(command, next_offset=command.next_offset + 1))

    return decide


# ---------------------------------------------------------------- dispatch


def _dispatch_past_permits(original: Any) -> Any:
    def dispatch(self: SingleActive, out: list[Any]) -> None:
        active = self._active
        if active is not None and active.permits <= 0:
            active.permits += 1
        original(self, out)

    return dispatch


def _debit_entries(original: Any) -> Any:
    def deliver(
        self: InFlightTracker, consumer: Attached, first: int, end: int, limit: int, out: list[Any]
    ) -> int:
        reached: int = original(self, consumer, first, end, limit, out)
        consumer.permits += out[-1].messages - (reached - first)
        return reached

    return deliver


def _serve_inactive_consumers(original: Any) -> Any:
    def dispatch(self: SingleActive, out: list[Any]) -> None:
        active = self._active
        for consumer in self._in_flight.consumers.values():
            self._active = consumer
            original(self, out)
        self._active = active

    return dispatch


def _pass_over_what_the_active_one_held(original: Any) -> Any:
    def elect(self: SingleActive, joined: Attached | None) -> Any:
        previous = self._active
        held = [] if previous is None else list(self._in_flight.held.of(previous.spec.consumer_id))
        changes = original(self, joined)
        if self._active is not previous:
            for first, end in held:
                self._in_flight.waiting.discard(first, end)
        return changes

    return elect


def _activate_the_last_consumer(original: Any) -> Any:
    def elect(self: SingleActive, joined: Attached | None) -> Any:
        partition, self._partition = self._partition, -1
        try:
            return original(self, joined)
        finally:
            self._partition = partition

    return elect


def _take_any_run(original: Any) -> Any:
    def decide(state: PartitionState, run: PublishRun, now_ms: int) -> RunDecision | None:
        producer = state.producers.get(run.producer)
        if producer is None:
            return None
        last, producer.last_sequence_id = producer.last_sequence_id, run.first_sequence_id - 1
        decision: RunDecision | None = original(state, run, now_ms)
        producer.last_sequence_id = last
        return decision

    return decide


MUTANTS: dict[str, Mutant] = {
    "store-every-run": Mutant(
        "messages that are sent again are stored again if they come together",
        ((publish_run, "decide", _take_any_run),),
        within=300,
    ),
    "ignore-the-sequence-id": Mutant(
        "a message that is sent again is stored again",
        ((partition, "_is_duplicate", always(False)),),
        within=100,
    ),
    "lose-sequence-ids-on-recovery": Mutant(
        "a recovered partition has no sequence ids",
        ((PartitionMachine, "restore", _lose_sequence_ids_on_recovery),),
        within=20,
    ),
    "lose-delayed-entries-on-roll-over": Mutant(
        "a checkpoint lacks the delayed entries",
        ((DelayedIndex, "snapshot", _without_segments),),
        within=100,
    ),
    "do-not-journal-dead-letters": Mutant(
        "messages for the dead-letter topic aren't journaled first",
        ((dead_letters, "decide_intent", _intend_in_words_only),),
        within=300,
    ),
    "do-not-journal-redelivery-counts": Mutant(
        "redelivery counts aren't journaled",
        ((redelivery, "decide", _count_nothing),),
        within=100,
    ),
    "lose-counts-on-roll-over": Mutant(
        "a checkpoint lacks redelivery counts",
        ((redelivery, "snapshot", always(None)),),
        within=300,
    ),
    "credit-another-producer": Mutant(
        "an entry counts as the newest producer's",
        ((partition, "_publish", _credit_another_producer),),
        within=50,
    ),
    "miss-the-end-of-a-ledger": Mutant(
        "the first entry of a ledger gets a position in the previous one",
        ((LedgerTable, "position_of", _miss_the_end_of_a_ledger),),
        within=20,
    ),
    "drop-acks": Mutant(
        "acknowledgements are answered and not journaled",
        ((SubscriptionMachine, "decide", _drop_acks),),
        within=20,
    ),
    "lose-a-range-on-roll-over": Mutant(
        "a checkpoint lacks the last acknowledged range",
        ((acked_ranges, "encode_segment", _lose_a_acked_range),),
        within=20,
    ),
    "acknowledge-one-too-many": Mutant(
        "a cumulative acknowledgement covers the entry behind it",
        ((subscription, "_decide_ack_before", _acknowledge_one_too_many),),
        within=100,
    ),
    "take-individual-for-cumulative": Mutant(
        "an acknowledgement of one entry covers those before it",
        ((subscription, "_decide_ack", _take_individual_for_cumulative),),
        within=100,
    ),
    "take-a-part-for-the-whole": Mutant(
        "an acknowledgement of a batch's first messages covers all of it",
        ((subscription, "_decide_ack", _take_a_part_for_the_whole),),
        within=300,
    ),
    "keep-ranges-at-a-reset": Mutant(
        "a seek back keeps later acknowledgements",
        ((Cursor, "reset", _keep_ranges_at_a_reset),),
        within=300,
    ),
    "reset-one-too-far": Mutant(
        "a seek skips the entry that it names",
        ((subscription, "_decide_reset", _reset_one_too_far),),
        within=300,
    ),
    "dispatch-past-permits": Mutant(
        "an active consumer without permits gets entries",
        ((SingleActive, "dispatch", _dispatch_past_permits),),
        within=20,
    ),
    "debit-entries": Mutant(
        "a batch debits one permit", ((InFlightTracker, "deliver", _debit_entries),), within=20
    ),
    "serve-inactive-consumers": Mutant(
        "Failover consumers that aren't active get entries",
        ((SingleActive, "dispatch", _serve_inactive_consumers),),
        within=20,
    ),
    "activate-the-last-consumer": Mutant(
        "another Failover consumer than Pulsar's becomes active",
        ((SingleActive, "_elect", _activate_the_last_consumer),),
        within=100,
    ),
    "skip-entries-in-flight": Mutant(
        "a new active consumer doesn't get the former one's entries",
        ((SingleActive, "_elect", _pass_over_what_the_active_one_held),),
        within=20,
    ),
    "lose-entries-of-lost-consumers": Mutant(
        "a lost consumer's entries are lost",
        ((InFlightTracker, "give_back", do_nothing),),
        within=20,
    ),
    "count-no-redelivery": Mutant(
        "a redelivered entry looks like a first delivery",
        ((InFlightTracker, "end_deliveries", _count_no_redelivery),),
        within=100,
    ),
    "count-no-loss": Mutant(
        "the loss of a consumer counts as no failed delivery",
        ((InFlightTracker, "failed", always([])),),
        within=100,
    ),
}
