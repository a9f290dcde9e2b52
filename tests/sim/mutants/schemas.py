"""Bugs of schema registries and of their caches in partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.mutants.mutant import Mutant, always, do_nothing
from velaray.actors.machine import Decision
from velaray.actors.schema_registry import machine as schema_registry
from velaray.actors.schema_registry.machine import Registered, RegistryState, SchemaRegistryMachine
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.broker.partition.topic_schemas import TopicSchemas


def _begin_again_after_deletions(original: Any) -> Any:
    """Versions start at 0 again after a deletion, as after a forced deletion in Pulsar."""

    def add(state: RegistryState, version: Any) -> None:
        original(state, version)
        if version.info is None:
            state.versions.clear()
            state.live_from = 0

    return add


def _compare_with_a_stale_predecessor(original: Any) -> Any:
    def known(self: RegistryState, *, gone: bool = False) -> Any:
        found = original(self, gone=gone)
        return found[:-1] if len(found) > 1 else found

    return known


def _register_again(original: Any) -> Any:
    """Every other registration of an existing schema stores it again."""

    def register(state: RegistryState, command: Any, digest: bytes, now_ms: int) -> Decision:
        if digest in state.live and len(state.versions) % 2:
            fresh = replace_live(state)
            return original(fresh, replace_auto(command), digest, now_ms)
        return original(state, command, digest, now_ms)

    def replace_live(state: RegistryState) -> RegistryState:
        return RegistryState(state.versions, state.live_from, {})

    def replace_auto(command: Any) -> Any:
        return replace(command, auto_update=True)

    return register


def _answer_the_next_version(original: Any) -> Any:
    def decide(self: SchemaRegistryMachine, state: Any, command: Any, now_ms: int) -> Decision:
        decision = original(self, state, command, now_ms)
        if isinstance(decision.reply, Registered) and decision.reply.new:
            later = Registered(decision.reply.version + 1, new=True)
            return Decision(decision.events, later)
        return decision

    return decide


def _answer_for_the_newest(original: Any) -> Any:
    """A partition that answers the same version for all schemas of one type."""

    async def of_producer(self: TopicSchemas, info: Any, role: str) -> Any:
        version = await original(self, info, role)
        if version is None:
            return None
        kept = self.__dict__.setdefault("_mistaken", {})
        return kept.setdefault(info.type, version)

    return of_producer


MUTANTS: dict[str, Mutant] = {
    "reuse-versions": Mutant(
        "version numbers restart at 0 after a deletion",
        ((schema_registry, "_add", _begin_again_after_deletions),),
        40,
    ),
    "compare-with-a-stale-schema": Mutant(
        "a new schema is compared with the one before the latest",
        ((RegistryState, "known", _compare_with_a_stale_predecessor),),
        60,
    ),
    "register-twice": Mutant(
        "a live schema becomes another version",
        ((schema_registry, "_register", _register_again),),
        40,
    ),
    "answer-the-next-version": Mutant(
        "a registration is answered with the next version",
        ((SchemaRegistryMachine, "decide", _answer_the_next_version),),
        40,
    ),
    "keep-deleted-schemas": Mutant(
        "partitions keep deleted schemas in their cache",
        ((TopicSchemas, "_forget", do_nothing),),
        80,
    ),
    "one-version-for-all-schemas": Mutant(
        "a partition caches versions by type",
        ((TopicSchemas, "of_producer", _answer_for_the_newest),),
        40,
    ),
    "register-for-consumers": Mutant(
        "topics never count as active",
        ((PartitionActor, "active_for_schemas", lambda original: property(always(False)(None))),),
        60,
    ),
}
