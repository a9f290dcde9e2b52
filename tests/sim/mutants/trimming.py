"""Bugs of automatic deletion: trimming, retention, expiry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.mutants.mutant import Mutant, always
from velaray.actors.partition import machine as partition
from velaray.actors.partition import trimming
from velaray.actors.partition.machine import PartitionMachine
from velaray.broker.partition import entry_log, maintenance
from velaray.broker.partition.backlog import Backlog
from velaray.broker.subscription import subscription_queries


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


def _trim_unacknowledged_middles(original: Any) -> Any:
    def holdings(state: Any, ranges: Any) -> Any:
        mark, _ = original(state, ranges)
        return mark, list(range(len(ranges) // 2))

    return holdings


def _expire_one_too_many(original: Any) -> Any:
    async def older_than(self: Backlog, start: int, age_ms: int) -> int:
        until = await original(self, start, age_ms)
        return min(until + 1, self._partition.end_offset)

    return older_than


def _lose_pending_deletions(original: Any) -> Any:
    def restore(self: PartitionMachine, segments: Any) -> Any:
        state = original(self, segments)
        state.trimmed.clear()
        return state

    return restore


MUTANTS: dict[str, Mutant] = {
    "trim-one-too-many": Mutant(
        "one ledger too many is trimmed",
        ((partition, "decide_trim", _trim_one_too_many),),
        within=100,
    ),
    "ignore-the-slowest-subscription": Mutant(
        "ledgers that the fastest subscription has acknowledged are trimmed",
        ((trimming, "_is_needless", _ignore_the_slowest),),
        within=200,
    ),
    "trim-unacknowledged-middles": Mutant(
        "a ledger between others is trimmed although it isn't acknowledged",
        ((subscription_queries, "holdings", _trim_unacknowledged_middles),),
        within=50,
    ),
    "ignore-retention": Mutant(
        "ledgers are trimmed as soon as they are consumed",
        (
            (trimming, "is_out_of_retention", always(True)),
            (maintenance, "is_out_of_retention", always(True)),
        ),
        within=50,
    ),
    "move-back-into-trimmed-ledgers": Mutant(
        "a cursor that is moved back gets no notice of trimmed ledgers",
        ((entry_log, "gone_offsets", always([])),),
        within=300,
    ),
    "expire-one-too-many": Mutant(
        "the first message that isn't old enough expires as well",
        ((Backlog, "older_than", _expire_one_too_many),),
        within=100,
    ),
    "lose-pending-deletions": Mutant(
        "a recovered partition has no pending deletions",
        ((PartitionMachine, "restore", _lose_pending_deletions),),
        within=50,
    ),
}
