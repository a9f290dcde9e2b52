"""Traces of machines: every call of every activation of a simulated run, and a replay of them.

`recording` wraps the machine of each runtime. A trace keeps what a call was given and a digest of
what it gave back, so the calls can be made again on a machine alone, without a runtime, a store or
a clock: `replay` does so and names the first call that differs.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from google.protobuf.message import Message

from tests.oracle import names
from tests.oracle.canonical import digest_of
from tests.sim.run import SMALL_BUDGET, SMALL_SEGMENT
from velaray.actors.machine import Machine, SegmentKeeper, SegmentLoader
from velaray.actors.runtime import Runtime
from velaray.actors.sets import acknowledged_ranges
from velaray.events.codec import decode, encode
from velaray.events.segments import Segment, StoredSegment
from velaray.events.segments import digest_of as segment_digest
from velaray.journal.errors import JournalError

DIGEST_BYTES = 8

Call = tuple[str, int, Any, bytes]
"""Which function, on which state, given what, and a digest of what it gave."""

_KEPT_STATES = 4
"""A runtime replaces its state when it falls back; older states are never used again."""


@dataclass
class Stream:
    """The calls of one activation, in order. ``machine`` is the class of the machine."""

    actor: str
    machine: type
    calls: list[Call] = field(default_factory=list)


@dataclass
class Trace:
    """All activations of a run. ``contents`` has the bytes of segments by their digest."""

    streams: list[Stream] = field(default_factory=list)
    contents: dict[bytes, bytes] = field(default_factory=dict)

    def digest(self) -> str:
        """Equal for equal traces, independent of the names of classes and fields."""
        hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for stream in self.streams:
            hasher.update(stream.actor.encode() + b"\0")
            for name, state, given, found in stream.calls:
                hasher.update(name.encode() + b"%d" % state + digest_of(given) + found)
        return hasher.hexdigest()

    def calls(self) -> int:
        """How many calls it has."""
        return sum(len(stream.calls) for stream in self.streams)


def dump_trace(trace: Trace) -> bytes:
    """The trace as bytes."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(trace)
    return buffer.getvalue()


def load_trace(data: bytes) -> Trace:
    """The trace that `dump_trace` gave; classes that moved or were renamed are found by table."""
    trace = _Unpickler(io.BytesIO(data)).load()
    assert isinstance(trace, Trace)
    return trace


class _Pickler(pickle.Pickler):
    """Writes views as bytes, and protobuf messages by their encoding."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, memoryview):
            return bytes, (bytes(value),)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(names.MODULES.get(module, module), names.CLASSES.get(name, name))


class Recorder:
    """A machine that notes each call. States are numbered as they are made."""

    def __init__(self, machine: Machine[Any], actor: str, trace: Trace) -> None:
        inner = getattr(machine, "inner", machine)
        self._machine = machine
        self._trace = trace
        self._stream = Stream(actor, type(inner))
        self._states: list[tuple[int, Any]] = []
        self._made = 0
        trace.streams.append(self._stream)

    def initial(self) -> Any:
        """The state before the first event."""
        return self._enter("initial", None, self._machine.initial())

    def restore(self, segments: Mapping[str, bytes]) -> Any:
        """The state of a checkpoint."""
        return self._enter("restore", self._keep(segments), self._machine.restore(segments))

    def decide(self, state: Any, command: Any, now_ms: int) -> Any:
        """What the machine decides."""
        given = (command, now_ms)
        try:
            decision = self._machine.decide(state, command, now_ms)
        except (JournalError, LookupError, ValueError) as error:
            self._note("decide", state, given, digest_of(error))
            raise
        self._note("decide", state, given, _outcome(decision))
        return decision

    def evolve(self, state: Any, event: Message) -> None:
        """Apply an event."""
        self._note("evolve", state, encode(event), b"")
        self._machine.evolve(state, event)

    def check(self, state: Any) -> None:
        """Check the invariants."""
        self._note("check", state, None, b"")
        self._machine.check(state)

    def snapshot(self, state: Any) -> Mapping[str, Segment]:
        """The state's segments."""
        segments = self._machine.snapshot(state)
        self._keep(segments)
        self._note("snapshot", state, None, _segments(segments))
        return segments

    def _enter(self, name: str, given: Any, state: Any) -> Any:
        self._states = [(self._made, state), *self._states][:_KEPT_STATES]
        self._stream.calls.append((name, self._made, given, b""))
        self._made += 1
        return state

    def _note(self, name: str, state: Any, given: Any, found: bytes) -> None:
        for number, known in self._states:
            if known is state:
                self._stream.calls.append((name, number, given, found))
                return
        raise AssertionError(f"{self._stream.actor}: {name} of a state that nothing made")

    def _keep(self, segments: Mapping[str, Segment]) -> dict[str, bytes]:
        for segment in segments.values():
            if isinstance(segment, bytes):
                self._trace.contents[segment_digest(segment)] = segment
        return {name: segment_digest(segment) for name, segment in segments.items()}


class KeepingRecorder(Recorder):
    """A recorder of a machine that gets the places of its segments."""

    def on_checkpoint(self, state: Any, stored: Mapping[str, StoredSegment]) -> None:
        """The segments are stored."""
        assert isinstance(self._machine, SegmentKeeper)
        places = [
            (name, one.name, one.ledger_id, one.offset, one.size, one.digest)
            for name, one in stored.items()
        ]
        self._note("settle", state, places, b"")
        self._machine.on_checkpoint(state, stored)

    def needs_checkpoint(self, state: Any) -> bool:
        """Whether a checkpoint is due."""
        assert isinstance(self._machine, SegmentKeeper)
        found = self._machine.needs_checkpoint(state)
        self._note("crowded", state, None, digest_of(found))
        return found

    def needs(self, state: Any, command: Any, now_ms: int) -> Sequence[StoredSegment]:
        """The stored segments that the command may read: no call, as it depends on memory."""
        if not isinstance(self._machine, SegmentLoader):
            return ()
        return self._machine.needs(state, command, now_ms)

    def provide(self, state: Any, name: str, raw: bytes) -> None:
        """A stored segment comes into memory."""
        assert isinstance(self._machine, SegmentLoader)
        self._machine.provide(state, name, raw)

    def evict(self, state: Any) -> bool:
        """Stored segments leave memory."""
        return isinstance(self._machine, SegmentLoader) and self._machine.evict(state)


def _outcome(decision: Any) -> bytes:
    events = tuple(encode(event) for event in decision.events)
    return digest_of((events, decision.reply, decision.effects, decision.blob))


def _segments(segments: Mapping[str, Segment]) -> bytes:
    return digest_of({name: segment_digest(segment) for name, segment in segments.items()})


@contextmanager
def recording(trace: Trace) -> Iterator[None]:
    """Record what the machines of all runtimes do meanwhile."""
    original: Callable[..., None] = Runtime.__init__

    def wrapped(self: Any, machine: Any, journal: Any, actor: str, *rest: Any) -> None:
        keeps = isinstance(getattr(machine, "inner", machine), SegmentKeeper)
        kind = KeepingRecorder if keeps else Recorder
        original(self, kind(machine, actor, trace), journal, actor, *rest)

    Runtime.__init__ = wrapped  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Runtime.__init__ = original  # type: ignore[method-assign]


class Differs(AssertionError):
    """A machine gave something else than it did when the trace was recorded."""


def replay(trace: Trace) -> int:
    """Make all calls again; returns how many. Raises `Differs` at the first that differs.

    Cursors are cut into segments as small as those of the simulation.
    """
    with _small_segments():
        return _replay(trace)


def _replay(trace: Trace) -> int:
    for stream in trace.streams:
        machine, states = stream.machine(), {}
        for at, call in enumerate(stream.calls):
            found = _again(machine, states, call, trace.contents)
            if found != call[3]:
                raise Differs(f"{stream.actor}, call {at}: {call[0]} of {call[2]!r:.500}")
    return trace.calls()


@contextmanager
def _small_segments() -> Iterator[None]:
    before = acknowledged_ranges.SEGMENT, acknowledged_ranges.BUDGET
    acknowledged_ranges.SEGMENT, acknowledged_ranges.BUDGET = SMALL_SEGMENT, SMALL_BUDGET
    try:
        yield
    finally:
        acknowledged_ranges.SEGMENT, acknowledged_ranges.BUDGET = before


def _again(
    machine: Any, states: dict[int, Any], call: Call, contents: Mapping[bytes, bytes]
) -> bytes:
    name, number, given, _ = call
    match name:
        case "initial":
            states[number] = machine.initial()
        case "restore":
            segments = {segment: contents[digest] for segment, digest in given.items()}
            states[number] = machine.restore(segments)
        case "decide":
            command, now_ms = given
            _complete(command)
            _load(machine, states[number], given, contents)
            try:
                return _outcome(machine.decide(states[number], command, now_ms))
            except (JournalError, LookupError, ValueError) as error:
                return digest_of(error)
        case "evolve":
            machine.evolve(states[number], decode(given))
        case "check":
            machine.check(states[number])
        case "snapshot":
            return _segments(machine.snapshot(states[number]))
        case "settle":
            stored = {key: StoredSegment(*place) for key, *place in given}
            machine.on_checkpoint(states[number], stored)
        case "crowded":
            return digest_of(machine.needs_checkpoint(states[number]))
    return b""


def _complete(command: Any) -> None:
    """Give fields that the command's class has got since the recording their defaults."""
    for each in fields(command):
        if each.default is not MISSING and not hasattr(command, each.name):
            object.__setattr__(command, each.name, each.default)


def _load(machine: Any, state: Any, given: Any, contents: Mapping[bytes, bytes]) -> None:
    """Release what may leave memory, and load what the command needs."""
    if isinstance(machine, SegmentLoader):
        machine.evict(state)
        while needed := machine.needs(state, *given):
            for place in needed:
                machine.provide(state, place.name, contents[place.digest])
