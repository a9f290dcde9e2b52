"""Deliberate bugs, for tests only: each must be found by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from velaray.actors import partition
from velaray.actors.cursor import Cursor
from velaray.actors.dispatch import Dispatcher, _Consumer
from velaray.actors.machine import Decision
from velaray.actors.runtime import Runtime
from velaray.actors.subscription import Acked, SubscriptionMachine
from velaray.journal.memory import MemoryStore, Step, _MemoryWriter

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


MUTANTS: dict[str, Mutant] = {
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
