"""Generations of compacted entries: the partition's part of compaction.

A compaction makes a new *generation*: it begins, its entries are copied into a journal of its own,
and one event publishes it. Its horizon is the max-read offset at its beginning, so everything below
is decided; hidden entries there (`velaray.actors.partition.transactions`) aren't copied. The
previous generation is current until then. Superseded and abandoned generations are swept; the state
lists them until the host confirms that nothing of them is stored. One compaction runs at a time.

Commands: `BeginCompaction`, `PublishCompaction`, `ConfirmCompactionSwept`. Events: CompactionBegun,
CompactionPublished, CompactionSwept.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, refuse, require
from velaray.events.events_pb2 import CompactionBegun, CompactionPublished, CompactionSwept


@dataclass(frozen=True, slots=True)
class BeginCompaction:
    """Begin to compact everything that may be read now. Reply: the new `Generation`, or
    `NothingNew`.

    Refused CONFLICT while a compaction runs.
    """


@dataclass(frozen=True, slots=True)
class PublishCompaction:
    """Make a generation current; all of its ``entries`` are durable.

    Reply: `Generation`. Refused CONFLICT if another one was begun since.
    """

    generation: int
    entries: int


@dataclass(frozen=True, slots=True)
class ConfirmCompactionSwept:
    """Confirm that nothing of a generation is stored any more. Reply: `SweptCompaction`, also if
    that was known. For the generation that was begun last it means that its compaction failed.

    Refused CONFLICT for the current one.
    """

    generation: int


@dataclass(frozen=True, slots=True)
class SweptCompaction:
    """The confirmation is recorded."""


@dataclass(frozen=True, slots=True)
class NothingNew:
    """The readable part of the log hasn't grown since the current generation was begun."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A compacted view of all entries below ``horizon``, with ``entries`` entries.

    ``published_ms`` is 0 until it is current.
    """

    number: int
    horizon: int
    begun_ms: int
    entries: int = 0
    published_ms: int = 0


@dataclass(slots=True)
class Compactions:
    """The partition's generations. ``retired``: superseded generations that may still be stored."""

    last: int = 0
    current: Generation | None = None
    begun: Generation | None = None
    retired: list[int] = field(default_factory=list)

    @property
    def horizon(self) -> int:
        """The first offset beyond the current view; 0 without one."""
        return 0 if self.current is None else self.current.horizon

    def leftovers(self) -> list[int]:
        """The generations that a new activation must sweep."""
        begun = [] if self.begun is None else [self.begun.number]
        return [*self.retired, *begun]


def decide(state: Compactions, max_read_offset: int, command: Any, now_ms: int) -> Decision:
    """The decision on a command of this module; ``max_read_offset`` is the partition's."""
    match command:
        case BeginCompaction():
            return _begin(state, max_read_offset, now_ms)
        case PublishCompaction(generation, entries):
            return _publish(state, generation, entries, now_ms)
        case ConfirmCompactionSwept(generation):
            if state.current is not None and generation == state.current.number:
                return refuse(Reason.CONFLICT, f"generation {generation} is the current one")
            known = generation in state.leftovers()
            events = (CompactionSwept(generation=generation),) if known else ()
            return Decision(events, SweptCompaction())
    raise TypeError(f"compaction doesn't handle {type(command).__name__}")


def _begin(state: Compactions, max_read_offset: int, now_ms: int) -> Decision:
    if state.begun is not None:
        return refuse(Reason.CONFLICT, "a compaction is running already")
    if max_read_offset == state.horizon:
        return Decision(reply=NothingNew())
    number = state.last + 1
    event = CompactionBegun(generation=number, horizon=max_read_offset, at_ms=now_ms)
    return Decision((event,), Generation(number, max_read_offset, now_ms))


def _publish(state: Compactions, generation: int, entries: int, now_ms: int) -> Decision:
    begun = state.begun
    if begun is None or begun.number != generation:
        return refuse(Reason.CONFLICT, f"generation {generation} isn't being made")
    event = CompactionPublished(generation=generation, entries=entries, at_ms=now_ms)
    return Decision((event,), _published(begun, event))


def _published(begun: Generation, event: CompactionPublished) -> Generation:
    return Generation(begun.number, begun.horizon, begun.begun_ms, event.entries, event.at_ms)


def evolve(state: Compactions, event: Message) -> None:
    """Apply an event of this module."""
    match event:
        case CompactionBegun(generation=number, horizon=horizon, at_ms=at_ms):
            state.last = number
            state.begun = Generation(number, horizon, at_ms)
        case CompactionPublished():
            assert state.begun is not None
            if state.current is not None:
                state.retired.append(state.current.number)
            state.current, state.begun = _published(state.begun, event), None
        case CompactionSwept(generation=number):
            if state.begun is not None and state.begun.number == number:
                state.begun = None
            else:
                state.retired.remove(number)
        case _:
            raise TypeError(f"compaction doesn't handle {type(event).__name__}")


def check(state: Compactions, max_read_offset: int) -> None:
    """Raise `InvariantViolation` if an invariant is broken."""
    named = [*state.retired, *([state.current.number] if state.current else [])]
    named += [state.begun.number] if state.begun else []
    require(named == sorted(set(named)), "generations are in order, each once", repr(named))
    require(all(0 < number <= state.last for number in named), "generations were begun")
    horizons = [each.horizon for each in (state.current, state.begun) if each is not None]
    require(horizons == sorted(set(horizons)), "a compaction covers more than the one before")
    require(all(0 < horizon <= max_read_offset for horizon in horizons), "horizons are decided")


def to_fields(state: Compactions) -> dict[str, Any]:
    """The state as JSON values."""
    return asdict(state)


def from_fields(fields: dict[str, Any]) -> Compactions:
    """The inverse of `to_fields`."""
    current, begun = fields["current"], fields["begun"]
    return Compactions(
        fields["last"],
        None if current is None else Generation(**current),
        None if begun is None else Generation(**begun),
        fields["retired"],
    )
