"""Bugs of the deletion of ledgers: enqueueing, dropping from the manifest, purge, deletion."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.sim.mutants.mutant import Mutant, always, do_nothing_async
from velaray.broker.garbage_collection import deletion, garbage_collector, ledger_keeper
from velaray.broker.garbage_collection.garbage_collector import MAX_TRIES
from velaray.client.dead_letters import RECONSUMETIMES
from velaray.journal import garbage_collection
from velaray.journal.garbage_collection import Fate
from velaray.journal.journal import Journal


def _delete_later(original: Any) -> Any:
    async def dispose(*arguments: Any) -> Fate:
        async def later() -> None:
            await asyncio.sleep(0.5)
            await original(*arguments)

        late.append(asyncio.ensure_future(later()))
        return Fate.DELETED

    late: list[Any] = []
    return dispose


def _give_up(original: Any) -> Any:
    async def again_later(self: Any, consumer: Any, message: Any) -> None:
        if int(message.properties().get(RECONSUMETIMES, "0")) < MAX_TRIES:
            await original(self, consumer, message)
        else:
            await consumer.acknowledge(message)

    return again_later


def _anybodys(original: Any) -> Any:
    async def is_owned(*arguments: Any) -> bool:
        return True

    return is_owned


def _need_nothing(original: Any) -> Any:
    return property(lambda self: frozenset(info.ledger_id for info in self.ledgers[-1:]))


MUTANTS: dict[str, Mutant] = {
    "delete-listed-ledgers": Mutant(
        "an event deletes its ledger whether or not a manifest lists it",
        ((garbage_collection, "_may_be_listed", always(False)),),
        60,
    ),
    "delete-ledgers-of-other-actors": Mutant(
        "the owner of the ledger that an event names isn't checked",
        ((garbage_collection, "is_owned", _anybodys),),
        60,
    ),
    "give-up-silently": Mutant(
        "an event that was tried ten times is acknowledged, without a dead letter",
        ((garbage_collector.GarbageCollector, "_again_later", _give_up),),
        300,
    ),
    "acknowledge-before-deleting": Mutant(
        "an event is acknowledged before its ledger is deleted",
        ((garbage_collector, "dispose", _delete_later),),
        200,
    ),
    "enqueue-no-purge": Mutant(
        "the ledgers of a deleted actor aren't enqueued for deletion",
        ((deletion, "enqueue_deletion", do_nothing_async),),
        30,
    ),
    "drop-without-enqueueing": Mutant(
        "trimmed ledgers are dropped from the manifest and not enqueued",
        ((ledger_keeper, "enqueue_deletion", do_nothing_async),),
        100,
    ),
    "drop-what-recovery-needs": Mutant(
        "a ledger is dropped from the manifest although a checkpoint refers to it",
        ((Journal, "needed", _need_nothing),),
        200,
    ),
}
