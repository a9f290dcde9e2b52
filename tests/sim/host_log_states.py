"""The states of the model of host logs, and the invariants; see `tests.sim.host_log_model`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Frame(NamedTuple):
    """An append to a ledger. A serial of -1 is the ledger's checkpoint."""

    ledger: int
    epoch: int
    serial: int


Frames = tuple[Frame, ...]


class Chunk(NamedTuple):
    """What an object of a log has of one activation of one journal."""

    journal: int
    epoch: int
    frames: Frames


Data = tuple[Chunk, ...]


class Stored(NamedTuple):
    """An object of a log; a SEAL has no data. A deleted one is absent for every request, and the
    invariants know it."""

    data: Data | None
    deleted: bool = False


Slot = Stored | None
SEAL = Stored(None)


class Status(IntEnum):
    """The status of a record."""

    OPENING = 1
    OPEN = 2
    CLOSED = 3


class Tail(NamedTuple):
    """The frames of an epoch in a log from a number on, below ``end`` if that isn't -1."""

    log: int
    first: int
    epoch: int
    end: int = -1


class Record(NamedTuple):
    """A journal's record. The ledgers up to ``listed`` are listed; ``parts`` are unpacked."""

    revision: int
    epoch: int
    owner: int
    status: Status
    tail: Tail
    listed: int
    parts: Frames


class Put(NamedTuple):
    """The creation of a numbered object, under way."""

    host: int
    log: int
    number: int
    data: Data


class Seal(NamedTuple):
    """The creation of a SEAL, under way."""

    log: int
    number: int


class Write(NamedTuple):
    """The replacement of revision ``base`` of a record, under way. An owner that opens has
    recovered ``recovered``."""

    host: int
    journal: int
    base: int
    record: Record
    recovered: Frames | None


class RaisedFloor(NamedTuple):
    """The replacement of a floor ``base``, under way."""

    log: int
    base: int
    value: int


Request = Put | Seal | Write | RaisedFloor


class Phase(IntEnum):
    """How far an activation is."""

    READING = 1
    SEALED = 2
    """It created or found a SEAL, and hasn't looked at the floor since."""
    ADOPTED = 3
    COPIED = 4
    OPEN = 5


Kept = tuple[tuple[int, Frames], ...]
"""The numbers of staged chunks that aren't unpacked, and their frames."""


class Role(NamedTuple):
    """An activation. ``record`` is as it last wrote it, ``pending`` what it is writing."""

    phase: Phase
    record: Record
    log: int
    first: int = -1
    kept: Kept = ()
    pending: Record | None = None
    position: int = 0
    got: Frames = ()
    cut: bool = False
    new: int = -1
    """The number of the checkpoint of a ledger that isn't listed yet."""


class Left(NamedTuple):
    """A former activation. ``is_writing``: a write of its record has an unknown outcome."""

    log: int
    journal: int
    epoch: int
    revision: int
    is_writing: bool
    kept: Kept


class Answer(IntEnum):
    """What the writer of a log knows of a creation."""

    NONE = 0
    TAKEN = 1
    CREATED = 2


class Flight(NamedTuple):
    """An object that its writer has sent."""

    number: int
    answer: Answer
    data: Data


class Sweep(NamedTuple):
    """The collection of an ended log: the records below ``journal`` were read."""

    log: int
    floor: int
    seal: int
    journal: int
    needed: int


class Taking(NamedTuple):
    """A take whose answer the process doesn't have yet, beside its former activation."""

    journal: int
    record: Record


class Host(NamedTuple):
    """A process. ``log`` is -1 after it has used its last one; ``past`` are its dead logs and how
    far they were committed. ``memory`` is for mutants: a log and its SEAL."""

    log: int
    next_number: int
    committed: int
    flying: tuple[Flight, ...]
    batch: Data
    roles: tuple[Role | None, ...]
    left: tuple[Left, ...] = ()
    past: tuple[tuple[int, int], ...] = ()
    sweep: Sweep | None = None
    taking: Taking | None = None
    memory: tuple[int, int] | None = None


class Budget(NamedTuple):
    """How often something may still happen: takes; creations that are repeated while the first
    request is under way; SEALs and floors that come late; unknown outcomes; actors that fail;
    collections of ended logs."""

    takes: int = 0
    repeats: int = 0
    strays: int = 0
    unknown: int = 0
    fails: int = 0
    sweeps: int = 0


class State(NamedTuple):
    """Everything. ``opened`` has for each journal the newest owner that opened it, and what it
    had recovered. ``broken`` names an invariant that doesn't hold."""

    logs: tuple[tuple[Slot, ...], ...]
    net: frozenset[Request]
    records: tuple[Record, ...]
    hosts: tuple[Host, ...]
    floors: tuple[int, ...]
    acked: tuple[Frames, ...]
    opened: tuple[tuple[int, Frames], ...]
    budget: Budget
    broken: str = ""


Step = tuple[str, State]


@dataclass(frozen=True)
class Setup:
    """A configuration. ``logs`` are the logs' processes and sizes; a process uses its logs one
    after the other. ``owners`` are the processes that own the journals at first. ``does`` names
    what owners do: unpack, close, roll, floor, unpack-closed. Log 0 begins with ``begun`` objects
    that nothing needs."""

    logs: tuple[tuple[int, int], ...]
    budget: Budget
    owners: tuple[int, ...] = (0,)
    does: frozenset[str] = frozenset()
    mutants: frozenset[str] = frozenset()
    in_flight: int = 2
    begun: int = 0

    def initial(self) -> State:
        """The first state: each journal has an owner that has opened it."""
        hosts = 1 + max(host for host, _ in self.logs)
        records = tuple(
            Record(1, 1, owner, Status.OPEN, Tail(owner, 0, 1), 1, ()) for owner in self.owners
        )
        return State(
            # One place more for a SEAL.
            logs=tuple(
                (Stored(()),) * used + (None,) * (size - used + 1)
                for used, (_, size) in zip(self._used(), self.logs, strict=True)
            ),
            net=frozenset(),
            records=records,
            hosts=tuple(
                Host(
                    self.first_log(h),
                    self._used()[h],
                    self._used()[h],
                    (),
                    (),
                    tuple(
                        Role(Phase.OPEN, record, h, 0) if owner == h else None
                        for owner, record in zip(self.owners, records, strict=True)
                    ),
                )
                for h in range(hosts)
            ),
            floors=(0,) * len(self.logs),
            acked=((),) * len(self.owners),
            opened=((1, ()),) * len(self.owners),
            budget=self.budget,
        )

    def _used(self) -> tuple[int, ...]:
        return (self.begun, *(0,) * (len(self.logs) - 1))

    def first_log(self, host: int, after: int = -1) -> int:
        """The next log of a process, or -1."""
        mine = [n for n, (owner, _) in enumerate(self.logs) if owner == host and n > after]
        return mine[0] if mine else -1


def replaced(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """The items with another one at an index."""
    return (*items[:index], item, *items[index + 1 :])


def is_absent(slot: Slot) -> bool:
    """Whether requests find no object."""
    return slot is None or slot.deleted


def with_host(state: State, index: int, host: Host) -> State:
    """The state with another process."""
    return state._replace(hosts=replaced(state.hosts, index, host))


def with_role(state: State, index: int, journal: int, role: Role | None) -> State:
    """The state with another activation."""
    host = state.hosts[index]
    return with_host(state, index, host._replace(roles=replaced(host.roles, journal, role)))


def sent(state: State, request: Request) -> State:
    """The state with a request under way."""
    return state._replace(net=state.net | {request})


def created(state: State, log: int, number: int, new: Stored) -> tuple[State, bool]:
    """Create an object if there is none; returns also whether it was created."""
    if not is_absent(state.logs[log][number]):
        return state, False
    slots = replaced(state.logs[log], number, new)
    return state._replace(logs=replaced(state.logs, log, slots)), True


def frames_of(slot: Slot, journal: int, epoch: int) -> Frames:
    """A journal's frames of an epoch in an object, deleted or not; epoch 0: of all epochs."""
    if slot is None or slot.data is None:
        return ()
    chunks = (c for c in slot.data if c.journal == journal and epoch in (0, c.epoch))
    return tuple(frame for chunk in chunks for frame in chunk.frames)


def acknowledge(state: State, journal: int, epoch: int, frames: Frames) -> State:
    """An owner of an epoch acknowledges its own frames among these."""
    opened, recovered = state.opened[journal]
    mine = tuple(f for f in frames if f.epoch == epoch and f.serial >= 0)
    if epoch < opened and any(frame not in recovered for frame in mine):
        return state._replace(broken="OneAckerPerEpoch")
    new = tuple(frame for frame in mine if frame not in state.acked[journal])
    return state._replace(acked=replaced(state.acked, journal, state.acked[journal] + new))


def write_record(state: State, write: Write) -> State:
    """A write of a record takes effect."""
    journal, former, record = write.journal, state.records[write.journal], write.record
    state = state._replace(records=replaced(state.records, journal, record))
    if write.recovered is not None:
        broken = _fault_of_opening(state, journal, former, write.recovered)
        opened = replaced(state.opened, journal, (record.epoch, write.recovered))
        state = state._replace(opened=opened, broken=state.broken or broken)
    if record.listed > former.listed:
        checkpoint = Frame(record.listed, record.epoch, -1)
        acked = (*state.acked[journal], checkpoint)
        state = state._replace(acked=replaced(state.acked, journal, acked))
    return state


def _fault_of_opening(state: State, journal: int, former: Record, recovered: Frames) -> str:
    if any(recovered.count(frame) != 1 for frame in state.acked[journal]):
        return "AckedIsRecovered"
    epoch, before = state.opened[journal]
    rest = recovered[len(before) :]
    if (
        recovered[: len(before)] != before
        or any(frame.epoch != epoch or frame.ledger > former.listed for frame in rest)
        or list(rest) != sorted(set(rest))
    ):
        return "NothingUnseenAppears"
    return ""


def dangling(state: State) -> bool:
    """Whether a record needs a deleted object."""
    for journal, record in enumerate(state.records):
        log, first, epoch, end = record.tail
        slots = state.logs[log]
        for slot in slots[first : len(slots) if end < 0 else end]:
            if slot is not None and slot.deleted and frames_of(slot, journal, epoch):
                return True
    return False
