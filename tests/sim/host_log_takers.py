"""Takes, adoptions and openings in the model of host logs."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.host_log_states import (
    SEAL,
    Answer,
    Frame,
    Frames,
    Phase,
    Role,
    Seal,
    Setup,
    State,
    Status,
    Step,
    Tail,
    Taking,
    Write,
    created,
    frames_of,
    is_absent,
    replaced,
    sent,
    with_host,
    with_role,
)
from tests.sim.host_log_writers import cut, stage


class Takers:
    """The steps from the take of a journal until its new owner has opened it."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._mutants = setup.mutants

    def steps(self, state: State) -> Iterator[Step]:
        """What processes do with journals that they take."""
        for h, host in enumerate(state.hosts):
            if host.taking is not None:
                yield f"host {h} learns of its take", self._learned(state, h, host.taking)
            for journal, role in enumerate(host.roles):
                if role is None or role.phase is Phase.OPEN:
                    if state.budget.takes and host.log >= 0 and host.taking is None:
                        yield self._take(state, h, journal)
                elif role.phase is Phase.READING:
                    yield from self._read(state, h, journal, role)
                elif role.phase is Phase.SEALED:
                    yield self._look_at_floor(state, h, journal, role)
                elif role.phase is Phase.ADOPTED:
                    yield from self._copy(state, h, journal, role)
                elif role.pending is None:
                    yield from self._open(state, h, journal, role)

    # ---------------------------------------------------------------- take

    def _take(self, state: State, h: int, journal: int) -> Step:
        host, former = state.hosts[h], state.records[journal]
        record = former._replace(
            revision=former.revision + 1,
            epoch=former.epoch + 1,
            owner=host.log,
            status=Status.OPENING,
        )
        if "take overwrites the tail" in self._mutants:
            record = record._replace(tail=Tail(host.log, host.next_number, record.epoch))
        step = state._replace(
            records=replaced(state.records, journal, record),
            budget=state.budget._replace(takes=state.budget.takes - 1),
        )
        taking = Taking(journal, record)
        label = f"host {h} takes journal {journal} for epoch {record.epoch}"
        if host.roles[journal] is None:
            return label, self._learned(step, h, taking)
        return label, with_host(step, h, host._replace(taking=taking))

    def _learned(self, state: State, h: int, taking: Taking) -> State:
        """The former activation in the process is cut, and the new one begins."""
        journal, record = taking
        former = state.hosts[h].roles[journal]
        if former is not None:
            state = cut(state, h, journal, is_writing=former.pending is not None)
        host = state.hosts[h]._replace(taking=None)
        state = with_host(state, h, host)
        if host.log != record.owner:
            return state  # the log died meanwhile
        tail = record.tail
        position = tail.first
        if "no look at the floor" not in self._mutants:
            position = max(position, state.floors[tail.log])
        role = Role(Phase.READING, record, host.log, position=position)
        if "take overwrites the tail" in self._mutants:
            role = role._replace(phase=Phase.ADOPTED)
        return with_role(state, h, journal, role)

    # ---------------------------------------------------------------- adopt

    def _read(self, state: State, h: int, journal: int, role: Role) -> Iterator[Step]:
        host, tail = state.hosts[h], role.record.tail
        if tail.end >= 0:
            yield self._read_up_to(state, h, journal, role, tail.end)
        elif tail.log == host.log:
            under_way = any(
                (chunk.journal, chunk.epoch) == (journal, tail.epoch)
                for flight in host.flying
                for chunk in flight.data
            )
            if not under_way or "own log without waiting" in self._mutants:
                yield self._read_up_to(state, h, journal, role, host.committed)
        elif "SEAL behind the last object" in self._mutants:
            slots = state.logs[tail.log]
            last = max((n for n, slot in enumerate(slots) if not is_absent(slot)), default=-1)
            end = max(last + 1, tail.first)
            if end < len(slots):
                step, _ = created(state, tail.log, end, SEAL)
                yield self._read_up_to(step, h, journal, role, end)
        elif host.memory is not None and host.memory[0] == tail.log:
            yield self._read_up_to(state, h, journal, role, host.memory[1])
        else:
            yield from self._read_next(state, h, journal, role)

    def _read_up_to(self, state: State, h: int, journal: int, role: Role, end: int) -> Step:
        tail, got = role.record.tail, role.got
        for slot in state.logs[tail.log][role.position : end]:
            if not is_absent(slot):
                got += self._wanted(frames_of(slot, journal, self._epoch(tail)), role)
        adopted = role._replace(phase=Phase.ADOPTED, got=got)
        label = f"host {h} reads journal {journal} in log {tail.log} below {end}"
        return label, with_role(state, h, journal, adopted)

    def _read_next(self, state: State, h: int, journal: int, role: Role) -> Iterator[Step]:
        tail, number = role.record.tail, role.position
        slot = state.logs[tail.log][number]
        if not is_absent(slot) and slot != SEAL:
            got = role.got + self._wanted(frames_of(slot, journal, self._epoch(tail)), role)
            after = role._replace(position=number + 1, got=got)
            yield f"host {h} reads {tail.log}/{number}", with_role(state, h, journal, after)
            return
        if "no SEAL" in self._mutants:
            adopted = role._replace(phase=Phase.ADOPTED)
            label = f"host {h} finds the end of log {tail.log} at {number}"
            yield label, with_role(state, h, journal, adopted)
            return
        if state.budget.strays and is_absent(slot):
            budget = state.budget._replace(strays=state.budget.strays - 1)
            step = sent(state._replace(budget=budget), Seal(tail.log, number))
            yield f"host {h} sends SEAL {tail.log}/{number}, which comes late", step
        step, _ = created(state, tail.log, number, SEAL)
        sealed = role._replace(phase=Phase.SEALED)
        label = f"host {h} creates or finds SEAL {tail.log}/{number}"
        step = with_role(step, h, journal, sealed)
        if "SEAL remembered" in self._mutants:
            step = with_host(step, h, step.hosts[h]._replace(memory=(tail.log, number)))
        yield label, step

    def _look_at_floor(self, state: State, h: int, journal: int, role: Role) -> Step:
        log, number = role.record.tail.log, role.position
        looks = not self._mutants & {"no look at the floor", "floor read before the SEAL"}
        if looks and state.floors[log] > number:
            after = role._replace(phase=Phase.READING, position=state.floors[log])
            label = f"host {h} goes on at the floor of log {log}"
            return label, with_role(state, h, journal, after)
        step = with_role(state, h, journal, role._replace(phase=Phase.ADOPTED))
        return f"host {h} has read log {log} up to its SEAL", step

    def _epoch(self, tail: Tail) -> int:
        return 0 if "frames without epochs" in self._mutants else tail.epoch

    def _wanted(self, frames: Frames, role: Role) -> Frames:
        if "copy of unlisted ledgers" in self._mutants:
            return frames
        return tuple(frame for frame in frames if frame.ledger <= role.record.listed)

    # ---------------------------------------------------------------- open

    def _copy(self, state: State, h: int, journal: int, role: Role) -> Iterator[Step]:
        host, record = state.hosts[h], role.record
        if host.next_number >= self._setup.logs[host.log][1]:
            return
        frames = (*role.got, Frame(record.listed + 1, record.epoch, -1))
        copied = role._replace(phase=Phase.COPIED)
        label = f"host {h} stages the copy of journal {journal} for {host.next_number}"
        yield label, stage(state, h, journal, copied, frames)

    def _open(self, state: State, h: int, journal: int, role: Role) -> Iterator[Step]:
        host, record = state.hosts[h], role.record
        if "ack before open" in self._mutants:
            yield from self._stage_early(state, h, journal, role)
        is_stored = host.committed > role.first
        if "copy without the objects before it" in self._mutants:
            is_stored = is_stored or any(
                flight.number == role.first and flight.answer is Answer.CREATED
                for flight in host.flying
            )
        if not is_stored and "open before the copy" not in self._mutants:
            return
        opened = record._replace(
            revision=record.revision + 1,
            status=Status.OPEN,
            tail=Tail(role.log, role.first, record.epoch),
            listed=record.listed + 1,
        )
        step = with_role(state, h, journal, role._replace(pending=opened))
        write = Write(h, journal, record.revision, opened, record.parts + role.got)
        yield f"host {h} opens journal {journal} with its tail at {role.first}", sent(step, write)

    def _stage_early(self, state: State, h: int, journal: int, role: Role) -> Iterator[Step]:
        host = state.hosts[h]
        number = host.next_number
        if host.batch or number >= self._setup.logs[host.log][1]:
            return
        frame = Frame(role.record.listed + 1, role.record.epoch, number)
        label = f"host {h} stages a frame of journal {journal} before it has opened"
        yield label, stage(state, h, journal, role, (frame,))
