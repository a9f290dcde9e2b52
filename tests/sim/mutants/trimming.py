"""Bugs of what goes by itself: trimming, retention, expiry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.mutants.kit import Mutant, always
from velaray.actors.partition import machine as partition
from velaray.actors.partition import trimming
from velaray.actors.partition.machine import PartitionMachine
from velaray.broker.partition import maintenance, partition_actor
from velaray.broker.partition.backlog import Backlog
from velaray.broker.subscription import dispatcher


def _trim_one_too_many(original: Any) -> Any:
    def decide(state: Any, command: Any, now_ms: int) -> Any:
        decision = original(state, command, now_ms)
        if not decision.events:
            return decision
        last = decision.events[0].ledgers[-1].ledger_id
        behind = [each for each in command.ledgers if each.ledger_id > last]
        for each in behind[:1]:
            decision.events[0].ledgers.add(ledger_id=each.ledger_id, bytes=each.bytes)
        return decision

    return decide


def _ignore_the_slowest(original: Any) -> Any:
    def is_needless(state: Any, ledger_id: int, command: Any) -> bool:
        marks = [known.acked_before for known in command.consumed.values()]
        if not marks:
            return bool(original(state, ledger_id, command))
        fastest = {
            number: replace(known, acked_before=max(marks))
            for number, known in command.consumed.items()
        }
        return bool(original(state, ledger_id, replace(command, consumed=fastest)))

    return is_needless


def _take_holes_for_granted(original: Any) -> Any:
    def holdings(state: Any, spans: Any) -> Any:
        mark, _ = original(state, spans)
        return [mark, list(range(len(spans) // 2))]

    return holdings


def _expire_one_too_many(original: Any) -> Any:
    async def older_than(self: Backlog, start: int, age_ms: int) -> int:
        until = await original(self, start, age_ms)
        return min(until + 1, self._partition.end_offset)

    return older_than


def _forget_what_is_trimmed(original: Any) -> Any:
    def restore(self: PartitionMachine, segments: Any) -> Any:
        state = original(self, segments)
        state.trimmed.clear()
        return state

    return restore


MUTANTS: dict[str, Mutant] = {
    "trim-one-too-many": Mutant(
        "the ledger behind those that may go is trimmed as well",
        ((partition, "decide_trim", _trim_one_too_many),),
        within=100,
    ),
    "ignore-the-slowest-subscription": Mutant(
        "what the fastest subscription has is trimmed",
        ((trimming, "_is_needless", _ignore_the_slowest),),
        within=200,
    ),
    "take-holes-for-granted": Mutant(
        "a ledger between others is trimmed though it isn't acknowledged",
        ((dispatcher, "_holdings", _take_holes_for_granted),),
        within=50,
    ),
    "forget-retention": Mutant(
        "ledgers are trimmed as soon as they are consumed",
        (
            (trimming, "is_out_of_retention", always(True)),
            (maintenance, "is_out_of_retention", always(True)),
        ),
        within=50,
    ),
    "go-back-into-the-trimmed": Mutant(
        "a cursor that is moved back doesn't learn what is trimmed",
        ((partition_actor, "_flat", always([])),),
        within=300,
    ),
    "expire-one-too-many": Mutant(
        "the first message that isn't too old expires as well",
        ((Backlog, "older_than", _expire_one_too_many),),
        within=100,
    ),
    "forget-what-is-trimmed": Mutant(
        "a partition that recovers doesn't know what is to be deleted",
        ((PartitionMachine, "restore", _forget_what_is_trimmed),),
        within=50,
    ),
}
