"""Bugs of compaction."""

from __future__ import annotations

from typing import Any

from tests.sim.mutants.mutant import Mutant, do_nothing_async
from velaray.actors.partition.compacted import PublishCompaction
from velaray.actors.partition.compaction import NewestByKey
from velaray.broker.partition.compactor import Compactor


def _keep_the_oldest(original: Any) -> Any:
    def see(self: NewestByKey, key: str, empty: bool, offset: int, index: int) -> None:
        if empty or key not in self._newest:
            original(self, key, empty, offset, index)

    return see


def _ignore_tombstones(original: Any) -> Any:
    def see(self: NewestByKey, key: str, empty: bool, offset: int, index: int) -> None:
        if not empty:
            original(self, key, empty, offset, index)

    return see


def _publish_at_once(original: Any) -> Any:
    async def copy(self: Compactor, begun: Any, former: Any) -> int:
        await self._ask(PublishCompaction(begun.number, 0))
        return int(await original(self, begun, former))

    return copy


def _stop_one_before(original: Any) -> Any:
    async def one_pass(self: Compactor, horizon: int, former: Any, look: Any) -> None:
        await original(self, horizon - 1, former, look)

    return one_pass


MUTANTS: dict[str, Mutant] = {
    "keep-the-oldest-of-a-key": Mutant(
        "compaction keeps a key's first value",
        ((NewestByKey, "_see_message", _keep_the_oldest),),
        within=50,
    ),
    "ignore-tombstones": Mutant(
        "compaction keeps the value that a tombstone removed",
        ((NewestByKey, "_see_message", _ignore_tombstones),),
        within=50,
    ),
    "publish-a-view-before-it-is-durable": Mutant(
        "a compacted view is current before it is stored",
        ((Compactor, "_copy", _publish_at_once),),
        within=100,
    ),
    "compact-one-too-few": Mutant(
        "the last entry below the horizon is not compacted",
        ((Compactor, "_pass", _stop_one_before),),
        within=50,
    ),
    "keep-old-generations": Mutant(
        "superseded compacted views, and half-made ones, aren't deleted",
        ((Compactor, "_sweep", do_nothing_async),),
        within=50,
    ),
}
