"""Replay equals live, at every frame: a second state that knows only what was journaled.

Each activation has a shadow. It starts from what recovery read, folds every record when it is
staged, from its bytes (acknowledgements twice, and the other way round), and is compared with the
live state, by snapshot, before each frame is written, at each checkpoint, and after each fall-back
of a full disk. What a cursor has beyond its mark it keeps as ranges, where the live state has
bitmaps, all of it in memory. A state that changed without an event, by an event that wasn't
journaled, or by something an event's bytes don't carry, differs from its shadow.

The events between two frames are compared together, since a comparison costs two snapshots.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from google.protobuf.message import Message

from tests.sim.cursors import (
    acks_commute_and_repeat,
    backlog_is_what_is_unacked,
    in_the_other_form,
    mark_goes_forward,
    opened,
    recovery_gives_what_was_stored,
)
from tests.sim.history import History
from tests.sim.loop import current_node
from tests.sim.pasts import note
from tests.sim.trimming import check_frame
from velaray.actors.machine import (
    Decision,
    Machine,
    RunDecision,
    RunMachine,
    SegmentKeeper,
    SegmentLoader,
)
from velaray.actors.runtime import Runtime
from velaray.actors.sets.acknowledged_ranges import AcknowledgedRanges
from velaray.events.codec import decode
from velaray.events.events_pb2 import CursorReset, CursorRestored, TransactionDecided
from velaray.events.ids import ActorKey, ActorKind, TransactionId
from velaray.events.segments import Segment, StoredSegment, digest_of, segment_digest
from velaray.journal.errors import StorageFull
from velaray.journal.frames import Record, RecordRun
from velaray.journal.journal import Journal
from velaray.journal.memory import MemoryStore
from velaray.journal.recovery import Recovered

Read = Callable[[StoredSegment], bytes]
Replace = Callable[[Any, str, Any], None]


class CheckedMachine:
    """A machine whose invariants are checked after every event that a live actor applies.

    `live` is the state that the actor's runtime has. A decision or an event that reads a stored
    segment is an error: the machine must have said before that it needs it. Checks may read them.
    """

    deciding = False
    """Whether a machine decides or evolves at this moment."""
    reading: Read | None = None
    """Reads stored segments for the check that runs at this moment."""

    def __init__(self, machine: Machine[Any], read: Read) -> None:
        self.inner = machine
        self.read = read
        self.live: Any = None

    def check(self, state: Any) -> None:
        """Check the invariants."""
        with self._checking():
            self.inner.check(state)

    @contextmanager
    def _checking(self) -> Iterator[None]:
        CheckedMachine.reading = self.read
        try:
            yield
        finally:
            CheckedMachine.reading = None

    def decide(self, state: Any, command: Any, now_ms: int) -> Decision:
        """The decision of the machine."""
        with _deciding():
            return self.inner.decide(state, command, now_ms)

    def decide_run(self, state: Any, run: Any, now_ms: int) -> RunDecision | None:
        """The decision of the machine on a run of commands."""
        if not isinstance(self.inner, RunMachine):
            return None
        with _deciding():
            return self.inner.decide_run(state, run, now_ms)

    def evolve_run(self, state: Any, events: Any) -> None:
        """Apply and check."""
        assert isinstance(self.inner, RunMachine)
        self.live = state
        with _deciding():
            self.inner.evolve_run(state, events)
        self.check(state)

    def initial(self) -> Any:
        """The state before the first event."""
        self.live = self.inner.initial()
        return self.live

    def restore(self, segments: Mapping[str, bytes]) -> Any:
        """The state whose snapshot is ``segments``."""
        self.live = self.inner.restore(segments)
        return self.live

    def evolve(self, state: Any, event: Message) -> None:
        """Apply and check."""
        self.live = state
        cursor = getattr(state, "cursor", None)
        if cursor is None:
            with _deciding():
                self.inner.evolve(state, event)
        else:
            mark, acked = cursor.acked_before, cursor.acked_count()
            with _deciding():
                self.inner.evolve(state, event)
            if not isinstance(event, CursorReset | CursorRestored):
                mark_goes_forward(mark, acked, state.cursor, event)
        self.check(state)

    def snapshot(self, state: Any) -> Mapping[str, Segment]:
        """The state's segments, which must restore to the same state."""
        segments = self.inner.snapshot(state)
        recovery_gives_what_was_stored(self.inner, segments, self.read)
        return segments

    def on_checkpoint(self, state: Any, stored: Mapping[str, StoredSegment]) -> None:
        """Segments are stored, which changes only what is in memory."""
        if isinstance(self.inner, SegmentKeeper):
            self.inner.on_checkpoint(state, stored)
            self.check(state)

    def needs_checkpoint(self, state: Any) -> bool:
        """Whether a checkpoint is due for the sake of memory."""
        return isinstance(self.inner, SegmentKeeper) and self.inner.needs_checkpoint(state)

    def needs(self, state: Any, command: Any, now_ms: int) -> Sequence[StoredSegment]:
        """The stored segments that the command may read."""
        if not isinstance(self.inner, SegmentLoader):
            return ()
        with _deciding():
            return self.inner.needs(state, command, now_ms)

    def provide(self, state: Any, name: str, raw: bytes) -> None:
        """A stored segment comes into memory, which changes nothing else."""
        assert isinstance(self.inner, SegmentLoader)
        self.inner.provide(state, name, raw)

    def evict(self, state: Any) -> bool:
        """Stored segments leave memory, which changes nothing else."""
        return isinstance(self.inner, SegmentLoader) and self.inner.evict(state)


def reader_of(store: MemoryStore, key: ActorKey) -> Read:
    """Reads the stored segments of an actor's journal at once."""

    def read(place: StoredSegment) -> bytes:
        raw = store.read_now(key.text(), place.ledger_id, place.offset, place.size)
        assert segment_digest(raw) == place.digest, f"{key}: {place.name} isn't where it should be"
        return raw

    return read


@contextmanager
def _deciding() -> Iterator[None]:
    CheckedMachine.deciding = True
    try:
        yield
    finally:
        CheckedMachine.deciding = False


class Shadow:
    """The state that an activation's records add up to."""

    def __init__(self, checked: CheckedMachine) -> None:
        self._checked = checked
        self._machine = checked.inner
        self.state = in_the_other_form(checked.inner.initial)
        self.staged: list[bytes] = []
        self.compared = 0

    def rebuild(self, recovered: Recovered) -> None:
        """Begin anew from what the journal holds."""
        checkpoint = recovered.checkpoint
        self.staged = []
        segments = checkpoint.segments if checkpoint is not None else None
        self.state = in_the_other_form(
            self._machine.initial if segments is None else partial(self._machine.restore, segments)
        )
        for record in recovered.records:
            self.fold(record.event)

    def fold(self, record: bytes) -> None:
        """Apply what is written in a record."""
        self._machine.evolve(self.state, decode(bytes(record)))

    def fold_staged(self) -> None:
        """Apply what was staged."""
        staged, self.staged = self.staged, []
        events = [decode(bytes(record)) for record in staged]
        for event in acks_commute_and_repeat(events):
            self._machine.evolve(self.state, event)

    def compare(self, when: str) -> None:
        """Raise AssertionError unless the live state is the same."""
        self.compared += 1
        ours, live = self._digests(self.state), self._digests(self._checked.live)
        differing = sorted(name for name in {*ours, *live} if ours.get(name) != live.get(name))
        assert not differing, f"{when}: replay gives other {differing} than the live state has"
        cursor = getattr(self.state, "cursor", None)
        if cursor is not None:
            backlog_is_what_is_unacked(cursor)

    def _digests(self, state: Any) -> dict[str, bytes]:
        return {name: digest_of(kept) for name, kept in self._machine.snapshot(state).items()}


def watch_machines(replace: Replace) -> None:
    """Watch what machines read and the order in which they decide."""
    _watch_reads(replace)
    _watch_order(replace)


def _watch_reads(replace: Replace) -> None:
    """End an actor whose machine reads a stored segment instead of saying that it needs it."""
    open_cold = AcknowledgedRanges._open_cold

    def guarded(self: AcknowledgedRanges, number: int) -> Any:
        if CheckedMachine.reading is not None:
            (place,) = self._cold([number])
            return opened(CheckedMachine.reading(place), self._form())
        if CheckedMachine.deciding:
            actor = current_node().actor
            error = AssertionError(f"the machine reads segment {number} that it didn't ask for")
            if actor is not None:
                actor.runtime._fail(error)
            raise error
        return open_cold(self, number)

    replace(AcknowledgedRanges, "_open_cold", guarded)


def _watch_order(replace: Replace) -> None:
    """End an actor that decides a command while an earlier one waits for segments.

    Segments leave memory after each decision, not only after commits, so that more commands wait.
    """
    decide, submit = Runtime._decide, Runtime.submit
    numbers: WeakKeyDictionary[Runtime[Any], dict[int, int]] = WeakKeyDictionary()
    count = itertools.count()

    def submitted(self: Runtime[Any], command: Any, release: Any) -> None:
        if self._loader is not None:
            numbers.setdefault(self, {})[id(command)] = next(count)
        submit(self, command, release)

    def decided(self: Runtime[Any], command: Any, release: Any, now_ms: int) -> None:
        if self._parked and self._loader is not None:
            known = numbers[self]
            now = known[id(command)]
            # Reads that wait for the commands before them have no numbers.
            earlier = [each for each, _ in self._parked if known.get(id(each), now) < now]
            if earlier:
                error = AssertionError(f"{command} is decided before {earlier[0]}")
                self._fail(error)
                raise error
        try:
            decide(self, command, release, now_ms)
        finally:
            self._evict()

    replace(Runtime, "submit", submitted)
    replace(Runtime, "_decide", decided)


def watch_journals(replace: Replace, history: History) -> None:
    """Have every journal of a simulated process keep its shadow, and say when it rolls over.

    The process's ``phase`` is "start" or "roll" while its journal starts a ledger. Verdicts of
    coordinators are noted before they are written (``deciding``) and when they are durable
    (``decided``).
    """
    stage_all, commit, reload = Journal.stage_all, Journal.commit, Journal.reload
    start, roll = Journal.start, Journal.roll

    def staged(self: Journal, records: Iterable[Record | RecordRun]) -> int:
        records = list(records)
        count = stage_all(self, records)
        current_node().shadow.staged += _events_of(records)
        return count

    async def committed(self: Journal) -> int:
        node = current_node()
        shadow = node.shadow
        runtime = node.actor.runtime if node.actor is not None else None
        # A command that is tried on a full disk changes the live state when it is durable.
        tried = runtime is not None and runtime._deferred
        # Events beyond one frame are in the live state already.
        ahead = runtime is not None and (runtime._queued or runtime._staged)
        await check_frame(shadow.staged)
        verdicts = _verdicts(node, shadow.staged)
        if verdicts:
            history.add("deciding", node=node.name, txns=verdicts)
        if not tried:
            shadow.fold_staged()
            if not ahead:
                shadow.compare("a frame")
        try:
            sequence = await commit(self)
        except StorageFull:
            shadow.staged = []
            raise
        if verdicts:
            history.add("decided", node=node.name, txns=verdicts)
        if tried:
            shadow.fold_staged()
        elif not ahead and node.actor is not None:
            note(node.actor.actor_system.pasts, node.key, sequence, shadow.state)
        return sequence

    async def reloaded(self: Journal) -> Recovered:
        recovered = await reload(self)
        current_node().shadow.rebuild(recovered)
        return recovered

    async def started(self: Journal, *checkpoint: Any) -> int:
        node = current_node()
        node.shadow.rebuild(self.recovered)
        node.shadow.compare("recovery")
        return await _in_phase("start", node, start(self, *checkpoint))

    async def rolled(self: Journal, *checkpoint: Any) -> int:
        node = current_node()
        node.shadow.compare("a roll-over")
        return await _in_phase("roll", node, roll(self, *checkpoint))

    for name, original, tapped in (
        ("stage_all", stage_all, staged),
        ("commit", commit, committed),
        ("reload", reload, reloaded),
        ("start", start, started),
        ("roll", roll, rolled),
    ):
        replace(Journal, name, _unless_compacted(original, tapped))


def _events_of(records: Iterable[Record | RecordRun]) -> Iterator[bytes]:
    for record in records:
        if type(record) is RecordRun:
            yield from record.events
        else:
            yield record[0]


async def _in_phase(name: str, node: Any, work: Any) -> int:
    node.phase = name
    ledger_id: int = await work
    node.phase = ""
    return ledger_id


def _verdicts(node: Any, staged: Iterable[bytes]) -> list[str]:
    """The transactions that a coordinator decides in a frame."""
    if node.key is None or node.key.kind is not ActorKind.COORDINATOR:
        return []
    events = (decode(bytes(record)) for record in staged)
    return [
        str(TransactionId(node.key.partition, event.sequence))
        for event in events
        if isinstance(event, TransactionDecided)
    ]


def _unless_compacted(original: Any, tapped: Any) -> Any:
    """The journal of compacted entries is that of no actor."""

    def either(self: Journal, *arguments: Any) -> Any:
        chosen = original if self.key.startswith(ActorKind.COMPACTED) else tapped
        return chosen(self, *arguments)

    return either
