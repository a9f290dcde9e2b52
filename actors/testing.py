"""Tests of machines that read like histories, with the contract checked at every step.

    given(machine, *events).when(command, now_ms=5).then(events=[...], reply=..., effects=[...])

Steps chain: each ``when`` continues from the state that the earlier ones left. Every step also
checks what holds for all machines: events survive the codec, every invariant holds, ``decide``
changed nothing, a snapshot restores to the same state (equal by ``==`` where the state defines it,
deciding and evolving as the original does), a checkpoint changes nothing, and replaying any prefix
of the history from the start gives the state at that point. Failures raise `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Generic, Self

from google.protobuf import text_format
from google.protobuf.message import Message

from velaray.actors.machine import (
    Decision,
    Machine,
    Reason,
    Refusal,
    SegmentKeeper,
    SegmentLoader,
    StateT,
    digest,
)
from velaray.events.codec import decode, encode
from velaray.events.segments import Segment, StoredSegment, segment_digest


class Contents:
    """The bytes of stored segments, instead of a disk."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, bytes] = {}

    def store(self, segments: Mapping[str, Segment]) -> dict[str, StoredSegment]:
        """Store the segments; returns their places in a checkpoint."""
        return {name: self._place(name, raw) for name, raw in self.bytes_of(segments).items()}

    def _place(self, name: str, raw: bytes) -> StoredSegment:
        digested = segment_digest(raw)
        self._by_digest[digested] = raw
        return StoredSegment(name, 1, 0, len(raw), digested)

    def raw_of(self, place: StoredSegment) -> bytes:
        """The bytes of a stored segment."""
        return self._by_digest[place.digest]

    def bytes_of(self, segments: Mapping[str, Segment]) -> dict[str, bytes]:
        """The segments as bytes."""
        return {
            name: segment if isinstance(segment, bytes) else self.raw_of(segment)
            for name, segment in segments.items()
        }


class History(Generic[StateT]):
    """A machine, the events that it has applied and its last decision."""

    def __init__(self, machine: Machine[StateT], events: Iterable[Message] = ()) -> None:
        self.machine = machine
        self.state = machine.initial()
        self.events: list[Message] = []
        self.last: Decision | None = None
        self._command: Any = None
        #: What the checkpoints after each event stored.
        self.contents = Contents()
        self._digests = [self._digest(self.state)]
        for event in events:
            self._apply(event)
        self._check()
        self.verify_replay()

    @property
    def reply(self) -> Any:
        """The reply to the last command."""
        return self._decision().reply

    def when(self, command: Any, now_ms: int = 0) -> Self:
        """Decide ``command`` and apply the events of the decision."""
        before = self._digests[-1]
        self._load(command, now_ms)
        restored = self.restored()
        decision = self.machine.decide(self.state, command, now_ms)
        _expect(self._digest(self.state) == before, f"decide changed the state: {command}")
        again = self.machine.decide(restored, command, now_ms)
        _same(f"decision on {command} after restore(snapshot(state))", decision, again)
        if isinstance(decision.reply, Refusal):
            quiet = not decision.events and not decision.effects and decision.blob is None
            _expect(quiet, f"a refusal with events, effects or a blob: {decision}")
        self.last, self._command = decision, command
        for event in decision.events:
            self._apply(event)
        self._check()
        return self

    def then(
        self,
        events: Sequence[Message] | EllipsisType = ...,
        reply: Any = ...,
        effects: Sequence[Any] | EllipsisType = ...,
        blob: bytes | EllipsisType | None = ...,
    ) -> Self:
        """Compare the last decision with the given values; the others aren't compared."""
        decision = self._decision()
        title = f"after {self._command}: "
        if not isinstance(events, EllipsisType):
            _same(title + "events", list(events), list(decision.events))
        if reply is not ...:
            _same(title + "reply", reply, decision.reply)
        if not isinstance(effects, EllipsisType):
            _same(title + "effects", list(effects), list(decision.effects))
        if blob is not ...:
            _same(title + "blob", blob, decision.blob)
        self.verify_replay()
        return self

    def then_refused(self, reason: Reason, containing: str = "") -> Self:
        """Check that the last command was refused for ``reason``, in words ``containing`` this
        text."""
        reply = self._decision().reply
        _expect(
            isinstance(reply, Refusal) and reply.reason is reason and containing in reply.message,
            f"after {self._command}: expected a refusal {reason.name} {containing!r}, got {reply}",
        )
        return self

    def then_state(self, predicate: Callable[[StateT], bool]) -> Self:
        """Check that the state satisfies ``predicate``."""
        _expect(
            predicate(self.state), f"after {self._command}: state is not as expected: {self.state}"
        )
        return self

    def verify_replay(self) -> Self:
        """Replay the events from the start; every prefix must give the state that was live then."""
        state = self.machine.initial()
        for count, event in enumerate(self.events, start=1):
            self.machine.evolve(state, event)
            _expect(
                self._digest(state) == self._digests[count],
                f"replaying the first {count} events diverges from the live state "
                f"at {_shown(event)}",
            )
        return self

    def _apply(self, event: Message) -> None:
        read = decode(encode(event))
        _same("event after the codec's round trip", event, read)
        restored = self.restored()
        self.machine.evolve(self.state, read)
        live = self._digest(self.state)
        self.machine.evolve(restored, read)
        _expect(
            self._digest(restored) == live,
            f"a restored state evolves differently by {_shown(event)}",
        )
        again = self.restored()
        self.machine.check(again)
        _expect(
            self._digest(again) == live,
            f"restore(snapshot(state)) differs from the state after {_shown(event)}",
        )
        self.events.append(read)
        self._digests.append(live)
        if isinstance(self.machine, SegmentKeeper):
            stored = self.contents.store(self.machine.snapshot(self.state))
            self.machine.on_checkpoint(self.state, stored)
            _expect(
                self._digest(self.state) == live,
                f"the state is another once a checkpoint has it after {_shown(event)}",
            )

    def _check(self) -> None:
        """Check the state, with all segments in memory."""
        if isinstance(self.machine, SegmentLoader):
            for segment in self.machine.snapshot(self.state).values():
                if isinstance(segment, StoredSegment):
                    self.machine.provide(self.state, segment.name, self.contents.raw_of(segment))
        self.machine.check(self.state)
        if type(self.state).__eq__ is not object.__eq__:  # state that no segment carries
            _same(f"restore(snapshot(state)) after {self._command}", self.state, self.restored())

    def _load(self, command: Any, now_ms: int) -> None:
        """Release what may leave memory, and load what the command needs."""
        if isinstance(self.machine, SegmentLoader):
            self.machine.evict(self.state)
            while needed := self.machine.needs(self.state, command, now_ms):
                for place in needed:
                    self.machine.provide(self.state, place.name, self.contents.raw_of(place))

    def segments(self) -> dict[str, bytes]:
        """The state's segments."""
        return self.contents.bytes_of(self.machine.snapshot(self.state))

    def restored(self) -> StateT:
        """The state of the state's segments."""
        return self.machine.restore(self.segments())

    def _digest(self, state: StateT) -> bytes:
        return digest(self.machine.snapshot(state))

    def _decision(self) -> Decision:
        if self.last is None:
            raise AssertionError("call when(command) before looking at its outcome")
        return self.last


def given(machine: Machine[StateT], *events: Message) -> History[StateT]:
    """A history of ``machine`` that starts with ``events``."""
    return History(machine, events)


def drive(
    machine: Machine[StateT], commands: Iterable[Any], now_ms: int = 0, tick_ms: int = 1000
) -> History[StateT]:
    """Decide ``commands`` one by one, ``tick_ms`` apart, with every check of this module.

    For random histories; returns the history, for further checks of its state, events and last
    reply.
    """
    history = given(machine)
    for command in commands:
        history.when(command, now_ms)
        now_ms += tick_ms
    return history.verify_replay()


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _same(what: str, expected: Any, actual: Any) -> None:
    if expected != actual:
        raise AssertionError(
            f"{what}\n  expected: {_shown(expected)}\n  actual:   {_shown(actual)}"
        )


def _shown(value: Any) -> str:
    if isinstance(value, Message):
        body = text_format.MessageToString(value, as_one_line=True)
        return f"{type(value).__name__}({body})"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return repr(value)
