"""Deliberate bugs, for tests only: each must be found by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from velaray.actors import partition, subscription
from velaray.actors.cursor import Cursor
from velaray.actors.dispatch import Dispatcher, _Consumer
from velaray.actors.machine import Decision
from velaray.actors.runtime import Runtime
from velaray.actors.subscription import Acked, SubscriptionMachine
from velaray.aio.acks import AckTracker
from velaray.journal import journal
from velaray.journal.memory import MemoryStore, Step, _MemoryWriter
from velaray.topology.brain import Brain
from velaray.topology.entries import EntryCache

Patch = tuple[Any, str, Callable[[Any], Any]]


@dataclass(frozen=True)
class Mutant:
    """A bug: what is replaced by what, and within how many seeds it must be found."""

    patches: tuple[Patch, ...]
    within: int

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break the product for a while."""
        undo = []
        for owner, name, change in self.patches:
            original = getattr(owner, name)
            undo.append((owner, name, original))
            setattr(owner, name, change(original))
        try:
            yield
        finally:
            for owner, name, original in undo:
                setattr(owner, name, original)


def _acknowledge_before_sync(original: Any) -> Any:
    async def commit(self: Runtime[Any]) -> None:
        for release, reply, effects in self._waiting:
            release(reply, effects)
        self._waiting = []
        await original(self)

    return commit


def _skip_sync(original: Any) -> Any:
    async def sync(self: _MemoryWriter) -> None:
        await self._store._step(Step.SYNC, self._journal)

    return sync


def _forget_the_epoch_check(original: Any) -> Any:
    def holds(self: MemoryStore, journal: str, version: int) -> bool:
        return True

    return holds


def _drop_acks_before_journaling(original: Any) -> Any:
    def decide(self: SubscriptionMachine, state: Any, command: Any, now_ms: int) -> Decision:
        decision = original(self, state, command, now_ms)
        if isinstance(decision.reply, Acked) and len(decision.reply.ranges) == 1:
            return Decision(reply=decision.reply)
        return decision

    return decide


def _lose_a_hole_on_roll_over(original: Any) -> Any:
    def holes(self: Cursor) -> Iterator[tuple[int, int]]:
        return iter(list(original(self))[:-1])

    return holes


def _ignore_the_sequence_id(original: Any) -> Any:
    return lambda *arguments: False


def _dispatch_past_permits(original: Any) -> Any:
    def next_consumer(self: Dispatcher) -> _Consumer | None:
        active = self._active
        if active is not None and active.permits <= 0:
            active.permits += 1
        return original(self)

    return next_consumer


def _do_nothing(original: Any) -> Any:
    return lambda *arguments: None


def _skip_a_checkpoint_segment(original: Any) -> Any:
    def encode(ledger_id: int, salt: bytes, at: int, sequence: int, segments: Any, mark: bytes):
        fewer = {name: segments[name] for name in sorted(segments)[:-1]}
        return original(ledger_id, salt, at, sequence, fewer, mark)

    return encode


def _confirm_acks_early(original: Any) -> Any:
    def acknowledge(self: Brain, number: int, request_id: int, command: Any) -> None:
        if request_id:
            self._send("acked", [number, request_id, None])
        original(self, number, 0, command)

    return acknowledge


def _acknowledge_one_too_many(original: Any) -> Any:
    def decide(cursor: Cursor, command: Any) -> Decision:
        if command.remaining is None and command.offset < command.end_offset:
            command = replace(command, offset=command.offset + 1)
        return original(cursor, command)

    return decide


def _forget_sequence_ids_on_recovery(original: Any) -> Any:
    def restore(self: Any, segments: Any) -> Any:
        state = original(self, segments)
        for producer in state.producers.values():
            producer.last_sequence_id = -1
        return state

    return restore


def _ignore_the_manifests_version(original: Any) -> Any:
    async def write(self: MemoryStore, journal: str, expected: int, data: bytes) -> int:
        return await original(self, journal, self.disk._files(journal).version, data)

    return write


def _release_twice(original: Any) -> Any:
    def submit(self: Runtime[Any], command: Any, release: Any) -> None:
        def twice(reply: Any, effects: Any) -> None:
            release(reply, effects)
            release(reply, effects)

        original(self, command, twice)

    return submit


def _send_the_next_entry(original: Any) -> Any:
    def get(self: EntryCache, offset: int) -> Any:
        found = original(self, offset)
        return (original(self, offset + 1) or found) if offset % 7 == 3 else found

    return get


MUTANTS: dict[str, Mutant] = {
    "skip-a-checkpoint-segment": Mutant(
        ((journal, "encode_checkpoint", _skip_a_checkpoint_segment),), within=20
    ),
    "forget-what-a-consumer-held": Mutant(((Dispatcher, "_give_back", _do_nothing),), within=20),
    "confirm-acks-early": Mutant(((Brain, "_acknowledge", _confirm_acks_early),), within=100),
    "keep-cumulative-marks": Mutant(((AckTracker, "subscribed_again", _do_nothing),), within=300),
    "acknowledge-one-too-many": Mutant(
        ((subscription, "_decide_ack_before", _acknowledge_one_too_many),), within=100
    ),
    "forget-sequence-ids-on-recovery": Mutant(
        ((partition.PartitionMachine, "restore", _forget_sequence_ids_on_recovery),), within=20
    ),
    "ignore-the-manifests-version": Mutant(
        ((MemoryStore, "write_manifest", _ignore_the_manifests_version),), within=200
    ),
    "release-twice": Mutant(((Runtime, "submit", _release_twice),), within=20),
    "send-the-next-entry": Mutant(((EntryCache, "get", _send_the_next_entry),), within=20),
    "acknowledge-before-sync": Mutant(
        ((Runtime, "_commit", _acknowledge_before_sync),), within=100
    ),
    "skip-the-sync": Mutant(((_MemoryWriter, "_sync", _skip_sync),), within=100),
    "forget-the-epoch-check": Mutant(
        ((MemoryStore, "_holds", _forget_the_epoch_check),), within=200
    ),
    "drop-acks": Mutant(
        ((SubscriptionMachine, "decide", _drop_acks_before_journaling),), within=20
    ),
    "lose-a-hole-on-roll-over": Mutant(((Cursor, "holes", _lose_a_hole_on_roll_over),), within=20),
    "ignore-the-sequence-id": Mutant(
        ((partition, "_is_duplicate", _ignore_the_sequence_id),), within=50
    ),
    "dispatch-past-permits": Mutant(
        ((Dispatcher, "_next_consumer", _dispatch_past_permits),), within=20
    ),
}
