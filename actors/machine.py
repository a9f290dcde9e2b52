"""The contract of a machine: pure functions of a state.

A machine decides and evolves; its host does everything else (disk, clock, sockets).

* ``decide(state, command, now_ms)`` reads the state and returns a `Decision`: events to journal, a
  reply, effects. It changes nothing.
* ``evolve(state, event)`` is the only function that changes state. It can't fail on an event that
  ``decide`` produced. Recovery is a fold of ``evolve`` over the journal.
* ``check(state)`` raises `InvariantViolation` naming the broken invariant.
* ``snapshot(state)`` returns the state as segments for a checkpoint; ``restore`` is its inverse.
  Equal states have equal ``digest``s, however they were reached.
* A machine with a large state is also a `SegmentKeeper`: it gets the places of its segments in a
  checkpoint, and returns places instead of bytes for unchanged segments. A `SegmentLoader` also
  releases their memory; it says what a command needs, and its host loads that before.

A refused command is a `Decision` whose reply is a `Refusal`; it has no events and no effects.
Commands, replies and effects are plain dataclasses of the machine's own module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from google.protobuf.message import Message

from velaray.events.segments import DIGEST_SIZE, Segment, StoredSegment, digest_of


class Reason(StrEnum):
    """Why a command was refused; the wire and the REST interface map these to their codes."""

    NOT_FOUND = "not found"
    ALREADY_EXISTS = "already exists"
    INVALID = "invalid"
    CONFLICT = "conflict"
    BUSY = "busy"
    FENCED = "fenced"
    TERMINATED = "terminated"
    NOT_ALLOWED = "not allowed"
    NOT_EMPTY = "not empty"
    UNAVAILABLE = "unavailable"
    ELSEWHERE = "at home elsewhere"
    STORAGE_FULL = "storage full"
    NO_SUBSCRIPTION = "no such subscription"
    QUOTA_HELD = "backlog quota: try again"
    QUOTA_EXCEEDED = "backlog quota"
    UNASSIGNABLE = "unassignable"
    INCOMPATIBLE_SCHEMA = "incompatible schema"
    INVALID_SCHEMA = "invalid schema"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reply to a command that was refused: nothing changed."""

    reason: Reason
    message: str


@dataclass(slots=True)
class Decision:
    """The outcome of a command. It isn't frozen, because each entry has one: creating a frozen
    instance takes three times as long.

    ``events`` are journaled in order, in one group; ``blob`` (if any) is stored raw with the last
    event. ``reply`` and ``effects`` leave only after the events, and everything journaled before
    them, are durable.
    """

    events: tuple[Message, ...] = ()
    reply: Any = None
    effects: tuple[Any, ...] = ()
    blob: bytes | memoryview | None = None


class EventRun(Protocol):
    """Events that are alike, as one value."""

    def encode(self) -> list[bytes]:
        """The byte form of each event, as `velaray.events.codec.encode` returns it."""
        ...


class RunDecision(NamedTuple):
    """The outcome of a run of commands: one event each, stored with one blob each, and one reply to
    all."""

    events: EventRun
    reply: Any
    blobs: Sequence[bytes]


def refuse(reason: Reason, message: str) -> Decision:
    """A decision that refuses: no events, no effects."""
    return Decision(reply=Refusal(reason, message))


class ColdSegment(Exception):
    """Something reads the stored segment at ``place``, which isn't in memory: it must be loaded
    first.

    ``behind`` are the places that the same reader may reach next, ascending; valid until the state
    changes.
    """

    def __init__(self, place: StoredSegment, behind: Iterable[StoredSegment]) -> None:
        super().__init__(f"segment {place.name} isn't in memory; load it before reading it")
        self.place = place
        self.behind = behind

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out ``behind``, which reads a state of this process."""
        return ColdSegment, (self.place, ())


class InvariantViolation(AssertionError):
    """A machine's state broke one of its invariants; the message starts with its name."""


def require(condition: bool, invariant: str, detail: str = "") -> None:
    """Raise `InvariantViolation` naming ``invariant`` unless ``condition`` holds."""
    if not condition:
        raise InvariantViolation(f"{invariant}: {detail}" if detail else invariant)


StateT = TypeVar("StateT")
StateContra = TypeVar("StateContra", contravariant=True)


class Machine(Protocol[StateT]):
    """The behaviour of one kind of actor. Implementations have no state of their own."""

    def initial(self) -> StateT:
        """The state before the first event."""
        ...

    def decide(self, state: StateT, command: Any, now_ms: int) -> Decision:
        """The decision on ``command`` in ``state``; reads only."""
        ...

    def evolve(self, state: StateT, event: Message) -> None:
        """Apply one event to ``state``, in place."""
        ...

    def check(self, state: StateT) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        ...

    def snapshot(self, state: StateT) -> Mapping[str, Segment]:
        """The state as named segments, deterministic: equal states, equal bytes.

        Only a `SegmentKeeper` returns places of stored segments instead of bytes.
        """
        ...

    def restore(self, segments: Mapping[str, bytes]) -> StateT:
        """The state whose snapshot is ``segments``."""
        ...


@runtime_checkable
class RunMachine(Protocol[StateContra]):
    """A machine that decides runs of commands at once."""

    def decide_run(self, state: StateContra, run: Any, now_ms: int) -> RunDecision | None:
        """The decisions on the commands of a run, one after the other; reads only. None: the host
        must submit each by itself."""
        ...

    def evolve_run(self, state: StateContra, events: Any) -> None:
        """Apply the events of a run to ``state``, in place."""
        ...


@runtime_checkable
class SegmentKeeper(Protocol[StateContra]):
    """A machine whose unchanged segments aren't written again."""

    def on_checkpoint(self, state: StateContra, stored: Mapping[str, StoredSegment]) -> None:
        """Note that a checkpoint of the present ``state`` is durable, with all segments at these
        places.

        From now on unchanged segments may be given by place. Decisions and snapshots don't depend
        on it.
        """
        ...

    def needs_checkpoint(self, state: StateContra) -> bool:
        """Whether a checkpoint is due to free memory."""
        ...


@runtime_checkable
class SegmentLoader(SegmentKeeper[StateContra], Protocol[StateContra]):
    """A machine whose stored segments may leave memory. Which of them did changes nothing."""

    def needs(self, state: StateContra, command: Any, now_ms: int) -> Sequence[StoredSegment]:
        """The segments that aren't in memory and that the decision on ``command``, or its events,
        may read. Ask again when they are loaded: one may lead to another."""
        ...

    def provide(self, state: StateContra, name: str, raw: bytes) -> None:
        """Take the bytes of a stored segment into memory; ignored if ``state`` doesn't need them
        any more."""
        ...

    def evict(self, state: StateContra) -> bool:
        """Release the memory of stored segments until the budget is kept; returns whether any
        segment isn't in memory. Only this takes segments out of memory."""
        ...


def digest(segments: Mapping[str, Segment]) -> bytes:
    """16 bytes that are equal for equal snapshots; stored segments aren't read."""
    hasher = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for name, segment in sorted(segments.items(), key=_name):
        hasher.update(len(name).to_bytes(4, "big") + name.encode() + digest_of(segment))
    return hasher.digest()


def _name(item: tuple[str, Segment]) -> str:
    return item[0]
