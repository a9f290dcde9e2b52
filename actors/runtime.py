"""The host of one machine on asyncio: a mailbox in front of a journal.

A command is decided at once and its events evolve the state at once, so the state in memory may be
ahead of the disk. The reply and the effects wait until the command's events, and everything that
the decision may have seen, are durable. One task, the flusher, commits; what arrives during a
commit is in the next one. More than a frame's worth is split into several frames, so earlier
callers are acknowledged while later frames are written.

Failures. A decision that raises is raised to the caller and changes nothing. A full disk refuses
the waiting commands, falls back to the durable state, and continues: reads are answered, and
commands that write are tried one at a time until one succeeds. Every other failure of the journal,
and a bug that shows in ``evolve`` or in a release, is fatal: nothing more is released, ``on_fatal``
is called once, and waiting callers get the error.

A command that needs stored segments (`SegmentLoader.needs`) is parked until they are read, and so
are all later ones: decisions come in the order of submission. A segment that can't be read is a
failure of the journal.

A relaxed journal (`JournalSettings.sync_interval_ms`) counts entries as durable when they are
written; the flusher syncs it on a timer, and at once for `Runtime.sync`.

The runtime uses only the clock and the store that it is given: the same code runs in simulation.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from google.protobuf.message import Message

from velaray.actors.machine import (
    ColdSegment,
    EventRun,
    Machine,
    Reason,
    Refusal,
    RunMachine,
    SegmentKeeper,
    SegmentLoader,
    StateT,
    digest,
)
from velaray.events.codec import decode, encode
from velaray.events.events_pb2 import LedgerOpened
from velaray.events.ids import ActorKey
from velaray.events.portable import PortableError
from velaray.events.segments import Segment, StoredSegment
from velaray.journal.errors import CorruptJournal, JournalError, Misuse, StorageFull
from velaray.journal.frames import Record, RecordRun
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.recovery import Recovered
from velaray.journal.store import LedgerStore

Blob = bytes | memoryview
_Change = Callable[[], Awaitable[None]]
Release = Callable[[Any, tuple[Any, ...]], None]
"""Takes a decision's reply and effects when they may leave. Must not raise."""

_READ: Final = object()
"""Parked in place of a command: a read that waits for the commands before it."""

MOST_READ_AHEAD = 63
"""The most segments that are read for a query at once, besides the one that it needs next."""

LATENCY_CLASSES_S = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0),
)
"""Upper bounds of the latency classes of commits, in seconds. Pulsar's are unions of them."""

ResultT = TypeVar("ResultT")

_ENDING: set[asyncio.Task[None]] = set()
"""The tasks that close aborted runtimes; the loop itself keeps no reference."""


class RuntimeFault(PortableError):
    """Base of the errors that the runtime itself raises."""


def _ignore() -> None:
    """The default of `Runtime.on_synced` and `Runtime.on_released`."""


class Divergence(RuntimeFault):
    """A restored state differs from the recorded one; the actor must not serve it.

    Either an incompatible version wrote the checkpoint, or the machine's ``snapshot`` and
    ``restore`` don't match.
    """

    def __init__(self, actor: str, sequence: int, expected: bytes, actual: bytes) -> None:
        super().__init__(
            f"{actor}: the state before event {sequence} was recorded with digest "
            f"{expected.hex()}, restored it has {actual.hex()}; the actor stays down"
        )
        self.actor = actor
        self.sequence = sequence
        self.expected = expected
        self.actual = actual


class Stopped(RuntimeFault):
    """The runtime was closed, or stopped by the error in ``__cause__``; nothing happened."""

    def __init__(self, actor: str, cause: BaseException | None) -> None:
        problem = cause.told if isinstance(cause, JournalError) else cause
        super().__init__(f"{actor} has stopped" + (f": {problem}" if cause else ""))


class SpoiledState(RuntimeFault):
    """``evolve`` raised on an event that ``decide`` had produced; the state is unusable."""

    def __init__(self, actor: str, event: str) -> None:
        """``event`` is the name of its type."""
        super().__init__(f"{actor}: evolve raised on {event}")


class UnclaimedEffects(RuntimeFault):
    """An asked command had effects, which `Runtime.ask` drops: submit it instead."""

    def __init__(self, actor: str, command: Any) -> None:
        super().__init__(f"{actor}: {type(command).__name__} has effects; submit it, don't ask")


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a runtime since its recovery, and what recovery took.

    ``events``, ``commits`` and ``bytes`` (of events and blobs) count what became durable;
    ``refused_full`` the commands and reads that a full disk refused; ``recovery_ms`` is the
    duration of recovery, ``replayed`` the number of records that it (and any fall-back) folded.
    ``commit_s`` is the time that commits took, ``latency`` the number of records in each class
    (`LATENCY_CLASSES_S`, and one for longer commits), ``latency_s`` the sum over the records.
    """

    commands: int
    events: int
    commits: int
    bytes: int
    rolls: int
    refused_full: int
    replayed: int
    recovery_ms: int
    commit_s: float
    latency: tuple[int, ...]
    latency_s: float


class _Batch(NamedTuple):
    """The records of one frame, and the releases after it."""

    records: list[Record | RecordRun]
    waiting: list[tuple[Release, Any, tuple[Any, ...]]]
    size: int


class _Repeatable:
    """The release of a command whose decision has no events: it may be decided again."""

    __slots__ = ("command", "release")

    def __init__(self, command: Any, release: Release) -> None:
        self.command = command
        self.release = release

    def __call__(self, reply: Any, effects: tuple[Any, ...]) -> None:
        """Release."""
        self.release(reply, effects)


class _RunRelease:
    """The release of a run of commands."""

    __slots__ = ("commands", "release")

    def __init__(self, commands: int, release: Release) -> None:
        self.commands = commands
        self.release = release

    def __call__(self, reply: Any, effects: tuple[Any, ...]) -> None:
        """Release."""
        self.release(reply, effects)


class VolatileJournal:
    """A journal that keeps nothing: staged records count as durable at once."""

    epoch = 1
    should_roll = False
    should_roll_for_memory = False
    unsynced = 0
    stored: Mapping[str, StoredSegment] = MappingProxyType({})

    def __init__(self) -> None:
        self._staged = 0

    def stage(self, event: bytes, blob: Blob | None = None) -> int:
        """Count a record; returns its sequence."""
        self._staged += 1
        return self._staged - 1

    def stage_all(self, records: Sequence[Record | RecordRun]) -> int:
        """Count records; returns their number."""
        count = sum(len(each.events) if type(each) is RecordRun else 1 for each in records)
        self._staged += count
        return count

    async def commit(self) -> int:
        """Return the last sequence."""
        return self._staged - 1

    async def sync(self) -> None:
        """Nothing is ever unsynced."""

    async def start(self, segments: Mapping[str, Segment], digest: bytes) -> int:
        """Ignore the state; the id of the only ledger is 0."""
        return 0

    async def roll(self, segments: Mapping[str, Segment], digest: bytes) -> int:
        """Never called, since ``should_roll`` is false. Raises `Misuse`."""
        raise Misuse("a volatile journal has one ledger")

    async def drop_from_manifest(self, ledger_ids: Collection[int]) -> None:
        """Never called. Raises `Misuse`."""
        raise Misuse("a volatile journal has one ledger")

    async def mark_offloaded(self, ledger_ids: Collection[int]) -> None:
        """Never called. Raises `Misuse`."""
        raise Misuse("a volatile journal has one ledger")

    async def reload(self) -> Recovered:
        """Never called, since ``commit`` can't fail. Raises `Misuse`."""
        raise Misuse("a volatile journal keeps nothing")

    async def read_segment(self, place: StoredSegment) -> bytes:
        """Never called, since nothing is stored. Raises `Misuse`."""
        raise Misuse("a volatile journal keeps nothing")

    async def close(self) -> None:
        """There is nothing to release."""


class Runtime(Generic[StateT]):
    """Hosts one machine; made by `recover` or `volatile`, used from one event loop."""

    __slots__ = (
        "__weakref__",
        "_actor",
        "_asked",
        "_behind",
        "_bytes",
        "_changes",
        "_clock_ms",
        "_closing",
        "_cold",
        "_commands",
        "_commit_s",
        "_commits",
        "_deferred",
        "_error",
        "_events",
        "_flusher",
        "_flushing",
        "_flushing_bytes",
        "_frame_bytes",
        "_full",
        "_held",
        "_journal",
        "_keeper",
        "_latency",
        "_latency_s",
        "_loader",
        "_loading",
        "_machine",
        "_on_fatal",
        "_opened",
        "_parked",
        "_queued",
        "_queued_bytes",
        "_rebuilding",
        "_recovery_ms",
        "_refused_full",
        "_replayed",
        "_roll_asked",
        "_rolls",
        "_runs",
        "_staged",
        "_staged_bytes",
        "_state",
        "_sync_asked",
        "_sync_interval_s",
        "_sync_timer",
        "_syncing",
        "_tried",
        "_waiting",
        "_wake",
        "damaged",
        "on_applied",
        "on_released",
        "on_synced",
    )

    def __init__(
        self,
        machine: Machine[StateT],
        journal: Journal | VolatileJournal,
        actor: str,
        clock_ms: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Not for hosts: `recover` and `volatile` return a runtime that runs."""
        self._machine = machine
        self._keeper = machine if isinstance(machine, SegmentKeeper) else None
        self._loader = machine if isinstance(machine, SegmentLoader) else None
        self._runs = machine if isinstance(machine, RunMachine) else None
        self._journal = journal
        self._actor = actor
        self._clock_ms = clock_ms
        self._on_fatal = on_fatal
        self._state = machine.initial()
        # The first event of the current ledger, until that is durable.
        self._opened: LedgerOpened | None = None
        # Records and releases, in three stages: still collected; enough for a commit of their own,
        # oldest first; in the running commit.
        self._staged: list[Record | RecordRun] = []
        self._staged_bytes = 0
        self._waiting: list[tuple[Release, Any, tuple[Any, ...]]] = []
        self._frame_bytes = JournalSettings().frame_bytes
        self._queued: deque[_Batch] = deque()
        self._queued_bytes = 0
        self._flushing: list[tuple[Release, Any, tuple[Any, ...]]] = []
        self._flushing_bytes = 0
        # Commands to decide later: during a roll-over or a rebuild (then they are held), or when
        # the segments are loaded that the first of them needs.
        self._parked: deque[tuple[Any, Release]] | None = None
        self._held = self._rebuilding = False
        self._loading: asyncio.Task[None] | None = None
        self._cold = False  # whether a stored segment may not be in memory
        # While the disk is full: the error, and the one command that is tried, the time of its
        # decision, and its events.
        self._full: StorageFull | None = None
        self._tried: tuple[Any, int] = (None, 0)
        self._deferred: tuple[Message, ...] = ()
        self._behind: list[tuple[Any, Release]] = []  # decided after those
        self._closing = False
        # For a relaxed journal: its timer, and the callers of `sync`.
        self._sync_interval_s = 0.0
        self._sync_timer: asyncio.TimerHandle | None = None
        self._sync_asked = False
        self._syncing: list[asyncio.Future[None]] = []
        # Ledgers to remove from the manifest between two commits, and the waiting callers.
        self._changes: list[tuple[_Change, asyncio.Future[None]]] = []
        self._roll_asked = False
        #: Called when everything released so far is synced, if the journal is relaxed.
        self.on_synced: Callable[[], None] = _ignore
        #: Called after the releases of a commit. Must not raise.
        self.on_released: Callable[[], None] = _ignore
        #: Called with a decision's events and reply when the state has the events, which may be
        #: before they are durable. Not called for replayed events. Must not raise.
        self.on_applied: Callable[[Sequence[Message], Any], None] | None = None
        self._error: BaseException | None = None
        #: Newer checkpoints that recovery couldn't read and skipped.
        self.damaged: tuple[CorruptJournal, ...] = ()
        self._asked: set[asyncio.Future[Any]] = set()
        self._wake = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None
        self._commands = self._events = self._commits = self._bytes = 0
        self._rolls = self._refused_full = self._replayed = self._recovery_ms = 0
        self._commit_s = 0.0
        self._latency = [0] * (len(LATENCY_CLASSES_S) + 1)
        self._latency_s = 0.0

    @classmethod
    async def recover(
        cls,
        machine: Machine[StateT],
        store: LedgerStore,
        key: ActorKey,
        clock_ms: Callable[[], int],
        settings: JournalSettings,
        on_fatal: Callable[[BaseException], None],
        admit: Callable[[], Awaitable[None]] | None = None,
    ) -> Self:
        """Take over the actor's journal and restore its machine's state.

        ``clock_ms`` gives milliseconds since 1970. ``admit`` is awaited if the journal has no
        ledger yet, after it is taken and before the first ledger is created; an error that it
        raises ends the recovery. On return this runtime owns the journal, a new ledger is open with
        a checkpoint, and the whole state is durable.

        Raises `Divergence`, `InvariantViolation`, or what ``admit``, `Journal.open`,
        `Journal.start` and `Journal.commit` raise; then the journal is closed and ``on_fatal``
        isn't called.
        """
        began = clock_ms()
        async with AsyncExitStack() as undo:
            journal = await Journal.open(store, key.text(), settings, clock_ms=clock_ms)
            undo.push_async_callback(journal.close)
            if admit is not None and not journal.ledgers:
                await admit()
            runtime = cls(machine, journal, key.text(), clock_ms, on_fatal)
            runtime._rebuild(journal.recovered)
            runtime.damaged = journal.recovered.damaged
            runtime._frame_bytes = settings.frame_bytes
            runtime._sync_interval_s = settings.sync_interval_ms / 1000
            await runtime._start()
            undo.pop_all()
        runtime._recovery_ms = clock_ms() - began
        return runtime

    @classmethod
    async def volatile(
        cls,
        machine: Machine[StateT],
        name: str,
        clock_ms: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
    ) -> Self:
        """Host a machine whose state need not survive the process; ``name`` is for errors."""
        runtime = cls(machine, VolatileJournal(), name, clock_ms, on_fatal)
        await runtime._start()
        return runtime

    @property
    def state(self) -> StateT:
        """The state in memory. It may be ahead of the disk: nothing read here may leave the
        process.

        Read it anew each time: after a full disk it is another object.
        """
        return self._state

    @property
    def journal(self) -> Journal | VolatileJournal:
        """The journal, for reading entries; only the runtime writes to it."""
        return self._journal

    @property
    def pending_bytes(self) -> int:
        """Bytes of events and blobs that aren't durable yet, for back-pressure on input."""
        return self._staged_bytes + self._queued_bytes + self._flushing_bytes

    @property
    def decided(self) -> int:
        """The number of commands since recovery."""
        return self._commands

    @property
    def stats(self) -> Stats:
        """Counters since recovery."""
        return Stats(
            commands=self._commands,
            events=self._events,
            commits=self._commits,
            bytes=self._bytes,
            rolls=self._rolls,
            refused_full=self._refused_full,
            replayed=self._replayed,
            recovery_ms=self._recovery_ms,
            commit_s=self._commit_s,
            latency=tuple(self._latency),
            latency_s=self._latency_s,
        )

    def submit(self, command: Any, release: Release) -> None:
        """Decide ``command`` now; call ``release(reply, effects)`` when they may leave.

        Releases come in the order of submission. If nothing is waiting and the command has no
        events, ``release`` is called before this returns. A blob must not change before its
        release. On a full disk the reply is a `Refusal` STORAGE_FULL, possibly out of order. After
        a fatal error ``release`` is never called.

        Raises `Stopped`, or what ``decide`` raised; then nothing happened. During a roll-over, and
        while segments are loaded, the decision is postponed, and an error that it raises then is
        fatal.
        """
        if self._error is not None or self._closing:
            raise Stopped(self._actor, self._error) from self._error
        if self._parked is None and not self._cold:  # nearly always
            self._decide(command, release, self._clock_ms())
        else:
            self._decide_or_park(command, release)

    def submit_run(self, run: Any, commands: int, release: Release) -> bool:
        """Decide a run of commands at once, as `submit` would one by one; ``release`` is called
        once, with the reply to all or with the `Refusal` of each. The blobs are those of the
        decision.

        Returns false, and nothing happens, if they must be submitted one by one: because the
        machine can't decide them as a run, or because a decision would be postponed, or tried on a
        full disk. Raises as `submit`.
        """
        if self._error is not None or self._closing:
            raise Stopped(self._actor, self._error) from self._error
        machine = self._runs
        postponed = self._parked is not None or self._cold or self._full is not None
        if machine is None or postponed or self.on_applied is not None:
            return False
        decision = machine.decide_run(self._state, run, self._clock_ms())
        if decision is None:
            return False
        events, reply, blobs = decision
        encoded = events.encode()
        self._commands += commands
        self._evolve_run(machine, events)
        self._staged.append(RecordRun(encoded, blobs))
        self._staged_bytes += sum(map(len, encoded)) + sum(map(len, blobs))
        self._waiting.append((_RunRelease(commands, release), reply, ()))
        if self._staged_bytes >= self._frame_bytes:
            self._queue()
        self._wake.set()
        return True

    @property
    def puts_off(self) -> bool:
        """Whether commands that are submitted now are decided later, because of a roll-over or a
        load."""
        return self._parked is not None

    @property
    def loads(self) -> bool:
        """Whether commands wait for segments that are being read."""
        return self._loading is not None

    async def ask(self, command: Any, submitted: Callable[[], None] | None = None) -> Any:
        """Submit ``command`` and wait for its reply.

        ``submitted`` is called in between: the state has the decision's events, unless it is
        postponed. Raises as `submit` does; `UnclaimedEffects` if the command had effects (its
        events are durable, the effects are dropped); or the error that stopped the runtime
        meanwhile: then it is unknown whether the command was carried out.
        """

        def release(reply: Any, effects: tuple[Any, ...]) -> None:
            if future.done():
                return
            if effects:
                future.set_exception(UnclaimedEffects(self._actor, command))
            else:
                future.set_result(reply)

        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(command, release)
        if submitted is not None:
            submitted()
        return await self._answer(future)

    async def look(self, query: Callable[[StateT], ResultT]) -> ResultT:
        """The result of ``query`` on the state, which may be ahead of the disk: it must not leave
        the process.

        Stored segments that the query reads are loaded: then it is made again, so it must change
        nothing until it has read everything. The segments stay in memory for the turn in which this
        returns. Commands don't wait for it.

        Raises `Stopped`, what ``query`` raised, or the error of a segment that can't be read, which
        stops the runtime.
        """
        segments: dict[StoredSegment, bytes] = {}
        failed: StoredSegment | None = None
        ahead = 0
        while True:
            if self._error is not None or self._closing:
                raise Stopped(self._actor, self._error) from self._error
            self._provide(segments)  # all of them: some may have left memory meanwhile
            try:
                found = query(self._state)
            except ColdSegment as cold:
                if cold.place in segments:
                    raise  # of another state
                places = [cold.place, *islice(cold.behind, ahead)]
            else:
                if segments:  # not before the caller has used them
                    asyncio.get_running_loop().call_soon(self._evict)
                return found
            try:
                segments |= await self._read_segments(places)
                ahead = min(2 * ahead + 1, MOST_READ_AHEAD)
            except JournalError as error:
                # A roll-over may have copied the segment, and its old ledger may be gone.
                if failed == places[0]:
                    self._fail(error)
                    raise
                failed, ahead = places[0], 0

    async def read(self, query: Callable[[StateT], ResultT], *, in_order: bool = False) -> ResultT:
        """The result of ``query`` on the state, returned when everything that it may have seen is
        durable.

        The query is made as by `look`; the result must not change later. With ``in_order`` it sees
        all commands that were submitted before: it waits for a roll-over and for loads, as they do.
        Raises as `look` does, `StorageFull` if the state that it saw was dropped (ask again), or
        the error that stopped the runtime meanwhile.
        """

        def checked(state: StateT) -> ResultT:
            if self._rebuilding and self._full is not None:
                raise self._full
            return query(state)

        if in_order and self._parked is not None and not self._rebuilding:
            await self._parked_ones_decided(self._parked)
        found = await self.look(checked)
        if self._settled():
            return found

        def release(reply: Any, effects: tuple[Any, ...]) -> None:
            if future.done():
                return
            if isinstance(reply, Refusal) and self._full is not None:
                future.set_exception(self._full)
            else:
                future.set_result(None)

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((release, None, ()))
        self._wake.set()
        await self._answer(future)
        return found

    async def sync(self) -> None:
        """Return when everything released so far survives a loss of power.

        Returns at once unless the journal is relaxed. Raises `Stopped`, or the error that stopped
        the runtime meanwhile.
        """
        if self._error is not None or self._closing:
            raise Stopped(self._actor, self._error) from self._error
        if not self._journal.unsynced:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._syncing.append(future)
        self.ask_for_sync()
        await self._answer(future)

    def ask_for_sync(self) -> None:
        """Sync a relaxed journal soon instead of on its timer; then `on_synced` is called."""
        self._sync_asked = True
        self._wake.set()

    def roll_over(self) -> None:
        """Roll over to a new ledger soon, however small the current one is."""
        self._roll_asked = True
        self._wake.set()

    async def drop_from_manifest(self, ledger_ids: Collection[int]) -> None:
        """Remove these ledgers from the journal's manifest; see `Journal.drop_from_manifest`.

        Raises `Stopped`, `StorageFull` (nothing changed), or the error that stopped the runtime.
        """
        await self._change(partial(self._journal.drop_from_manifest, frozenset(ledger_ids)))

    async def mark_offloaded(self, ledger_ids: Collection[int]) -> None:
        """Note offloaded ledgers in the manifest; see `Journal.mark_offloaded`.

        Raises as `drop_from_manifest`.
        """
        await self._change(partial(self._journal.mark_offloaded, frozenset(ledger_ids)))

    async def _change(self, change: _Change) -> None:
        """Change the manifest between two commits."""
        if self._error is not None or self._closing:
            raise Stopped(self._actor, self._error) from self._error
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.append((change, future))
        self._wake.set()
        await self._answer(future)

    async def close(self) -> None:
        """Commit and release what was submitted, then close the journal.

        Afterwards no task of this runtime runs. Idempotent; after a fatal error it only closes the
        journal. A release must not await it.
        """
        self._closing = True
        self._wake.set()
        assert self._flusher is not None  # `recover` and `volatile` start it
        await asyncio.wait([self._flusher])
        await self._journal.close()

    # ---------------------------------------------------------------- deciding

    def _decide_or_park(self, command: Any, release: Release) -> None:
        if self._parked is not None:
            self._parked.append((command, release))
            return
        now_ms = self._clock_ms()
        if self._cold and (missing := self._missing(command, now_ms)):
            self._parked = deque([(command, release)])
            self._load(missing)
        else:
            self._decide(command, release, now_ms)

    def _decide(self, command: Any, release: Release, now_ms: int) -> None:
        """Decide, apply the decision, and stage its events or release its reply."""
        self._commands += 1
        decision = self._machine.decide(self._state, command, now_ms)
        events = decision.events
        if not events:
            if self._settled():
                release(decision.reply, decision.effects)
                return
            if self._deferred:  # its decision depends on whether the deferred ones become durable
                self._behind.append((command, release))
                return
            release = _Repeatable(command, release)
        elif self._full is None:
            if len(events) == 1:  # nearly always
                record, blob = encode(events[0]), decision.blob
                self._evolve(events)  # `_apply`, without its call
                if self.on_applied is not None:
                    self.on_applied(events, decision.reply)
                self._staged.append((record, blob))
                self._staged_bytes += len(record) if blob is None else len(record) + len(blob)
            else:
                records = [encode(event) for event in events]
                self._apply(events, decision.reply)
                self._stage(records, decision.blob)
        elif self._waiting or self._flushing:
            self._refuse(release)
            return
        else:  # on a full disk the state changes after the write
            self._stage([encode(event) for event in events], decision.blob)
            self._tried, self._deferred = (command, now_ms), events
        self._waiting.append((release, decision.reply, decision.effects))
        if self._staged_bytes >= self._frame_bytes and not self._deferred:
            self._queue()
        self._wake.set()

    def _queue(self) -> None:
        """End the current batch: later records go into another commit."""
        self._queued.append(_Batch(self._staged, self._waiting, self._staged_bytes))
        self._queued_bytes += self._staged_bytes
        self._staged, self._waiting, self._staged_bytes = [], [], 0

    def _settled(self) -> bool:
        """Whether the state is durable and no release is pending.

        On a full disk this only depends on a command that is being tried: later commands must not
        see a state that may still change.
        """
        if self._full is not None:
            return not self._deferred
        return not (self._waiting or self._queued or self._flushing or self._opened)

    def _apply(self, events: Sequence[Message], reply: Any) -> None:
        self._evolve(events)
        if self.on_applied is not None:
            self.on_applied(events, reply)

    def _evolve(self, events: Sequence[Message]) -> None:
        machine, state = self._machine, self._state
        spoilt: Message | None = None
        try:
            for spoilt in events:
                machine.evolve(state, spoilt)
            spoilt = None
        finally:
            if spoilt is not None:
                self._fail(SpoiledState(self._actor, type(spoilt).__name__))

    def _evolve_run(self, machine: RunMachine[StateT], events: EventRun) -> None:
        evolved = False
        try:
            machine.evolve_run(self._state, events)
            evolved = True
        finally:
            if not evolved:
                self._fail(SpoiledState(self._actor, type(events).__name__))

    def _stage(self, records: list[bytes], blob: Blob | None) -> None:
        last = records.pop()
        for record in records:
            self._staged.append((record, None))
            self._staged_bytes += len(record)
        self._staged.append((last, blob))
        self._staged_bytes += len(last) if blob is None else len(last) + len(blob)

    # ---------------------------------------------------------------- stored segments

    def _missing(self, command: Any, now_ms: int) -> Sequence[StoredSegment]:
        """The stored segments that must be loaded before ``command`` is decided."""
        if self._loader is None or not self._cold:
            return ()
        return self._loader.needs(self._state, command, now_ms)

    def _load(self, missing: Sequence[StoredSegment]) -> None:
        """Load segments for the first parked command, then decide the parked ones."""
        loading = self._load_for_parked(missing)
        name = f"loader of {self._actor}"
        self._loading = asyncio.get_running_loop().create_task(loading, name=name)
        self._loading.add_done_callback(self._loader_ended)

    async def _load_for_parked(self, missing: Sequence[StoredSegment]) -> None:
        unreadable: JournalError | None = None
        try:
            await self._fetch(missing)
        except JournalError as error:
            unreadable = error
        self._loading = None
        if unreadable is not None and self._parked:
            # A roll-over may have copied the segment, and its old ledger may be gone.
            missing_now = self._missing(self._parked[0][0], self._clock_ms())
            if not set(missing).isdisjoint(missing_now):
                self._fail(unreadable)
        self._unpark()
        self._evict()
        self._wake.set()

    async def _fetch(self, missing: Sequence[StoredSegment]) -> None:
        self._provide(await self._read_segments(missing))

    async def _read_segments(self, places: Sequence[StoredSegment]) -> dict[StoredSegment, bytes]:
        read = self._journal.read_segment
        return {place: await read(place) for place in dict.fromkeys(places)}

    def _provide(self, found: Mapping[StoredSegment, bytes]) -> None:
        if self._loader is not None:
            for place, raw in found.items():
                self._loader.provide(self._state, place.name, raw)

    def _loader_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _evict(self) -> None:
        """Release the memory of stored segments, unless more of them are being loaded: the command
        that waits for these may need all."""
        if self._loader is not None and self._loading is None:
            self._cold = self._loader.evict(self._state)

    async def _answer(self, future: asyncio.Future[Any]) -> Any:
        self._asked.add(future)
        try:
            return await future
        finally:
            self._asked.discard(future)

    # ---------------------------------------------------------------- flushing

    async def _flush_forever(self) -> None:
        while self._error is None:
            if self._has_work() or self._sync_asked or self._changes or self._must_roll():
                await self._flush()
            elif not self._closing or self._loading is not None:
                self._wake.clear()
                await self._wake.wait()
            elif self._journal.unsynced:
                self._sync_asked = True
            else:
                return

    def _has_work(self) -> bool:
        return bool(self._waiting or self._queued or (self._opened and self._full is None))

    async def _flush(self) -> None:
        try:
            if self._has_work():
                await self._commit()
            if self._sync_asked:
                self._sync_asked = False
                await self._journal.sync()
                self._synced()
            if self._changes:
                await self._change_manifest(*self._changes.pop(0))
            if self._should_roll():
                await self._roll()
        except StorageFull as error:
            await self._fall_back(error)
        except JournalError as error:
            self._fail(error)

    async def _commit(self) -> None:
        if not self._queued:
            self._queue()
        staged, self._flushing, self._flushing_bytes = self._queued.popleft()
        self._queued_bytes -= self._flushing_bytes
        written = staged or self._opened
        if written:
            if self._opened:
                self._journal.stage(encode(self._opened))
            records = self._journal.stage_all(staged)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await self._journal.commit()
            took = loop.time() - began
            self._commit_s += took
            self._latency[bisect_left(LATENCY_CLASSES_S, took)] += records
            self._latency_s += took * records
            self._commits += 1
            self._events += records + (self._opened is not None)
            self._bytes += self._flushing_bytes
            self._flushing_bytes = 0
            self._opened = None
            if self._sync_interval_s and self._sync_timer is None and self._journal.unsynced:
                self._sync_timer = asyncio.get_running_loop().call_later(
                    self._sync_interval_s, self._sync_due
                )
        if self._deferred:
            while missing := self._missing(*self._tried):
                await self._fetch(missing)
            events, self._deferred, self._full = self._deferred, (), None
            self._apply(events, self._flushing[0][1])  # the first that waits is that command
        for release, reply, effects in self._flushing:
            release(reply, effects)
        self._flushing = []
        self.on_released()
        self._evict()
        self._decide_behind()
        if written and self._sync_interval_s and not self._journal.unsynced:
            self._synced()

    def _sync_due(self) -> None:
        self._sync_timer = None
        self.ask_for_sync()

    def _synced(self) -> None:
        """Complete the callers of `sync`: everything that was released is synced."""
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        syncing, self._syncing = self._syncing, []
        for future in syncing:
            if not future.done():
                future.set_result(None)
        self.on_synced()

    async def _change_manifest(self, change: _Change, future: asyncio.Future[None]) -> None:
        try:
            await change()
        except StorageFull as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(None)

    def _must_roll(self) -> bool:
        return self._roll_asked and self._full is None

    def _should_roll(self) -> bool:
        if self._full is not None or self._error is not None:
            return False
        if self._roll_asked:
            return True
        if self._journal.should_roll:
            return True
        if self._keeper is None or not self._journal.should_roll_for_memory:
            return False
        return self._keeper.needs_checkpoint(self._state)

    async def _roll(self) -> None:
        """Commit everything, then continue in a new ledger that starts with the state."""
        self._hold()
        self._roll_asked = False
        await self._commit()
        while self._queued or self._staged:
            await self._commit()
        if self._error is not None:
            return  # it ended meanwhile, perhaps since its state can't be trusted
        segments = self._machine.snapshot(self._state)
        try:
            ledger_id = await self._journal.roll(segments, digest(segments))
            self._on_checkpoint(self._state, self._journal.stored)
            self._evict()
            self._enter(ledger_id)
            self._rolls += 1
        except StorageFull as error:
            self._full = error  # continue in the old ledger
        self._held = False
        self._unpark()

    async def _start(self) -> None:
        segments = self._machine.snapshot(self._state)
        ledger_id = await self._journal.start(segments, digest(segments))
        self._on_checkpoint(self._state, self._journal.stored)
        self._evict()
        self._enter(ledger_id)
        await self._commit()
        self._flusher = asyncio.get_running_loop().create_task(
            self._flush_forever(), name=f"flusher of {self._actor}"
        )
        self._flusher.add_done_callback(self._flusher_ended)

    def _on_checkpoint(self, state: StateT, stored: Mapping[str, StoredSegment]) -> None:
        """Pass the places of a durable checkpoint of the present state to the machine."""
        if self._keeper is not None and stored:
            self._keeper.on_checkpoint(state, stored)

    def _hold(self) -> None:
        """Park commands until `_held` is reset."""
        self._held = True
        if self._parked is None:
            self._parked = deque()

    def _enter(self, ledger_id: int) -> None:
        self._opened = LedgerOpened(ledger_id=ledger_id, epoch=self._journal.epoch)
        self._evolve([self._opened])

    async def _parked_ones_decided(self, parked: deque[tuple[Any, Release]]) -> None:
        """Return when the commands that are parked now are decided."""

        def decided(reply: Any, effects: tuple[Any, ...]) -> None:
            if not future.done():
                future.set_result(None)

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parked.append((_READ, decided))
        await self._answer(future)

    def _unpark(self) -> None:
        """Decide the parked commands, up to the first that needs a load."""
        while self._parked and not self._held and self._loading is None:
            command, release = self._parked[0]
            now_ms = self._clock_ms()
            if command is _READ:
                self._parked.popleft()
                release(None, ())
            elif missing := self._missing(command, now_ms):
                self._load(missing)
            else:
                self._parked.popleft()
                self._decide(command, release, now_ms)  # whose release may park another one
        if not self._held and self._loading is None:
            self._parked = None

    def _decide_behind(self) -> None:
        behind, self._behind = self._behind, []
        if self._parked is not None:  # by later commands
            self._parked.extendleft(reversed(behind))
            self._unpark()
            return
        for command, release in behind:
            self._decide_or_park(command, release)

    # ---------------------------------------------------------------- failing

    async def _fall_back(self, error: StorageFull) -> None:
        """Refuse the commands that waited for the full disk, and return to the durable state.

        Commands without events are decided again: a refusal of a duplicate would tell its producer
        that the entry isn't stored.
        """
        tried, self._deferred = self._deferred, ()
        self._full = error
        dropped = self._flushing + [one for batch in self._queued for one in batch.waiting]
        dropped += self._waiting
        kept: list[tuple[Release, Any, tuple[Any, ...]]] = []
        if tried:  # those behind it are reads, whose results still hold
            dropped, kept = dropped[:1], dropped[1:]
        self._drop()
        if not tried:
            self._rebuilding = True
            self._hold()
            self._rebuild(await self._journal.reload())
            if self._opened:
                self._evolve([self._opened])
            self._rebuilding = False
        again: list[tuple[Any, Release]] = []
        for release, _, _ in dropped:
            if isinstance(release, _Repeatable):
                again.append((release.command, release.release))
            else:
                self._refuse(release)
        for release, reply, effects in kept:
            release(reply, effects)
        self._behind[:0] = again
        self._held = False
        self._decide_behind()
        self._unpark()

    def _drop(self) -> None:
        self._flushing, self._waiting, self._staged = [], [], []
        self._queued.clear()
        self._flushing_bytes = self._queued_bytes = self._staged_bytes = 0

    def _rebuild(self, recovered: Recovered) -> None:
        machine, checkpoint = self._machine, recovered.checkpoint
        state = machine.initial()
        if checkpoint is not None:
            state = machine.restore(checkpoint.segments)
            actual = digest(machine.snapshot(state))
            if actual != checkpoint.digest:
                raise Divergence(self._actor, checkpoint.sequence, checkpoint.digest, actual)
            self._on_checkpoint(state, checkpoint.stored)
        for record in recovered.records:
            machine.evolve(state, decode(record.event))
        machine.check(state)
        self._state = state
        self._evict()
        self._replayed += len(recovered.records)

    def _refuse(self, release: Release) -> None:
        self._refused_full += release.commands if isinstance(release, _RunRelease) else 1
        assert self._full is not None
        release(Refusal(Reason.STORAGE_FULL, self._full.told), ())

    def _flusher_ended(self, task: asyncio.Task[None]) -> None:
        self._closing = True
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def abort(self) -> None:
        """Stop at once, as a crash would: nothing more is released, and no caller gets an answer.

        A write that is in progress may or may not become durable.
        """
        self._stop(Stopped(self._actor, None))
        ending = asyncio.get_running_loop().create_task(self.close())
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._stop(error)
            self._on_fatal(error)

    def _stop(self, error: BaseException) -> None:
        if self._error is not None:
            return
        self._error = error
        self._drop()
        self._parked, self._behind = None, []
        if self._loading is not None:
            self._loading.cancel()
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        for future in self._asked:
            if not future.done():
                future.set_exception(error)
        self._wake.set()
