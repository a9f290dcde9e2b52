"""Logs and owners in the model of host logs: staging, sending, committing, unpacking, closing."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.host_log_states import (
    SEAL,
    Answer,
    Chunk,
    Data,
    Flight,
    Frame,
    Frames,
    Host,
    Left,
    Phase,
    Put,
    Role,
    Seal,
    Setup,
    State,
    Status,
    Step,
    Stored,
    Tail,
    Write,
    acknowledge,
    created,
    replaced,
    sent,
    with_host,
    with_role,
    write_record,
)


def cut(state: State, host_index: int, journal: int, *, is_writing: bool = False) -> State:
    """End an activation: what it staged isn't sent, and its record may need what was sent."""
    host = state.hosts[host_index]
    role = host.roles[journal]
    assert role is not None
    batch, kept = host.batch, role.kept
    if role.log == host.log:
        batch = tuple(c for c in batch if (c.journal, c.epoch) != (journal, role.record.epoch))
        kept = tuple(entry for entry in kept if entry[0] < host.next_number)
    left = host.left
    if kept:
        record = role.record
        new = Left(role.log, journal, record.epoch, record.revision, is_writing, kept)
        left = (*left, new)
    roles = replaced(host.roles, journal, None)
    return with_host(state, host_index, host._replace(batch=batch, left=left, roles=roles))


class Writers:
    """The steps of logs and of owners."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._mutants = setup.mutants

    def steps(self, state: State) -> Iterator[Step]:
        """The effects of requests, and what processes do with their logs."""
        yield from self._effects(state)
        for h, host in enumerate(state.hosts):
            if host.log >= 0:
                yield from self._log_steps(state, h, host)
            for journal, role in enumerate(host.roles):
                if role is None:
                    continue
                if role.pending is not None:
                    yield from self._answer_of_write(state, h, journal, role)
                if role.phase is Phase.OPEN and not role.cut and host.log == role.log:
                    yield from self._owner_steps(state, h, journal, role)

    # ---------------------------------------------------------------- requests

    def _effects(self, state: State) -> Iterator[Step]:
        for request in state.net:
            after = state._replace(net=state.net - {request})
            if isinstance(request, Put):
                yield from self._effect_of_put(after, request)
            elif isinstance(request, Seal):
                step, _ = created(after, request.log, request.number, SEAL)
                yield f"a late SEAL {request.log}/{request.number}", step
            elif isinstance(request, Write):
                if (
                    after.records[request.journal].revision == request.base
                    or "record without compare-and-set" in self._mutants
                ):
                    label = f"host {request.host} writes record {request.journal}"
                    yield f"{label}: {request.record.status.name}", write_record(after, request)
            elif after.floors[request.log] == request.base or (
                "floor without compare-and-set" in self._mutants
            ):
                floors = replaced(after.floors, request.log, request.value)
                yield f"a late floor {request.log}/{request.value}", after._replace(floors=floors)
            else:
                yield "a late floor is refused", after

    def _effect_of_put(self, after: State, put: Put) -> Iterator[Step]:
        step, is_new = created(after, put.log, put.number, Stored(put.data))
        if is_new:
            yield f"PUT {put.log}/{put.number}, the answer is lost", step
        host = step.hosts[put.host]
        waits = host.log == put.log and any(
            flight.number == put.number and flight.answer is Answer.NONE for flight in host.flying
        )
        if waits:
            answer = Answer.CREATED if is_new else Answer.TAKEN
            yield (
                f"PUT {put.log}/{put.number}: {answer.name}",
                self._learned(step, put.host, put.number, answer),
            )

    def _learned(self, state: State, h: int, number: int, answer: Answer) -> State:
        """A process learns about a creation. Numbers are committed in order."""
        host = state.hosts[h]
        flying = tuple(
            flight._replace(answer=answer) if flight.number == number else flight
            for flight in host.flying
        )
        committed, done = host.committed, list[Data]()
        while flying and flying[0].answer is Answer.CREATED:
            done.append(flying[0].data)
            flying, committed = flying[1:], committed + 1
        if "ack out of order" in self._mutants and answer is Answer.CREATED:
            done += [flight.data for flight in flying if flight.number == number]
        state = with_host(state, h, host._replace(flying=flying, committed=committed))
        for data in done:
            for chunk in data:
                if self._may_acknowledge(state, h, chunk):
                    state = acknowledge(state, chunk.journal, chunk.epoch, chunk.frames)
        return state

    def _may_acknowledge(self, state: State, h: int, chunk: Chunk) -> bool:
        role = state.hosts[h].roles[chunk.journal]
        if "ack after the cut" in self._mutants and (role is None or role.cut):
            return True
        if role is None or role.cut:
            return False
        if "acks of a former activation" in self._mutants:
            return True
        phases = {Phase.OPEN}
        if "ack before open" in self._mutants:
            phases.add(Phase.COPIED)
        return role.record.epoch == chunk.epoch and role.phase in phases

    # ---------------------------------------------------------------- the log

    def _log_steps(self, state: State, h: int, host: Host) -> Iterator[Step]:
        if host.batch and len(host.flying) < self._setup.in_flight:
            flight = Flight(host.next_number, Answer.NONE, host.batch)
            after = host._replace(
                batch=(), flying=(*host.flying, flight), next_number=host.next_number + 1
            )
            put = Put(h, host.log, flight.number, flight.data)
            yield f"host {h} sends {flight.number}", sent(with_host(state, h, after), put)
        for flight in host.flying:
            if flight.answer is Answer.NONE:
                yield from self._repeat(state, h, host, flight)
            elif flight.answer is Answer.TAKEN:
                yield self._look_at_taken(state, h, host, flight)
        if host.flying and state.budget.unknown:
            budget = state.budget._replace(unknown=state.budget.unknown - 1)
            label = f"host {h} gives up: the outcome of a number is unknown"
            yield label, self._dies(state._replace(budget=budget), h)

    def _repeat(self, state: State, h: int, host: Host, flight: Flight) -> Iterator[Step]:
        if Put(h, host.log, flight.number, flight.data) in state.net:
            if not state.budget.repeats:
                return
            budget = state.budget._replace(repeats=state.budget.repeats - 1)
            state = state._replace(budget=budget)
        step, is_new = created(state, host.log, flight.number, Stored(flight.data))
        answer = Answer.CREATED if is_new else Answer.TAKEN
        yield (
            f"host {h} repeats PUT {flight.number}: {answer.name}",
            self._learned(step, h, flight.number, answer),
        )

    def _look_at_taken(self, state: State, h: int, host: Host, flight: Flight) -> Step:
        slot = state.logs[host.log][flight.number]
        is_mine = slot == Stored(flight.data)
        if is_mine or "taken is stored" in self._mutants:
            label = f"host {h} takes {flight.number} for its own"
            return label, self._learned(state, h, flight.number, Answer.CREATED)
        return f"host {h} finds {flight.number} taken; its log is dead", self._dies(state, h)

    def _dies(self, state: State, h: int) -> State:
        """A log failed: its activations are cut, and the process uses its next log."""
        dead = state.hosts[h]
        for journal, role in enumerate(dead.roles):
            if role is not None and role.log == dead.log:
                state = cut(state, h, journal, is_writing=role.pending is not None)
        host = state.hosts[h]
        return with_host(
            state,
            h,
            host._replace(
                log=self._setup.first_log(h, dead.log),
                next_number=0,
                committed=0,
                flying=(),
                batch=(),
                past=(*host.past, (dead.log, dead.committed)),
            ),
        )

    # ---------------------------------------------------------------- owners

    def _answer_of_write(self, state: State, h: int, journal: int, role: Role) -> Iterator[Step]:
        """The owner learns about its write, or gives it up."""
        found, pending = state.records[journal], role.pending
        assert pending is not None
        if found.revision == role.record.revision:
            if state.budget.unknown:
                budget = state.budget._replace(unknown=state.budget.unknown - 1)
                label = f"host {h} gives up: the outcome of a record's write is unknown"
                yield label, cut(state._replace(budget=budget), h, journal, is_writing=True)
            return
        if found != pending:
            yield f"host {h} learns that record {journal} isn't its own", cut(state, h, journal)
            return
        kept = role.kept
        if role.record.status is Status.OPEN and pending.tail != role.record.tail:
            kept = tuple(entry for entry in kept if entry[0] >= pending.tail.first)
        won = role._replace(phase=Phase.OPEN, record=pending, pending=None, kept=kept)
        if pending.listed > role.record.listed:
            won = won._replace(new=-1)
        step = with_role(state, h, journal, won)
        if pending.status is Status.CLOSED:
            step = cut(step, h, journal)
        yield f"host {h} learns that it wrote record {journal}", step

    def _owner_steps(self, state: State, h: int, journal: int, role: Role) -> Iterator[Step]:
        host, does = state.hosts[h], self._setup.does
        if role.new < 0:
            yield from self._stage(state, h, journal, role, role.record.listed)
        if state.budget.fails:
            budget = state.budget._replace(fails=state.budget.fails - 1)
            failed = cut(state._replace(budget=budget), h, journal)
            if "send what was cut" in self._mutants:
                after = failed.hosts[h]._replace(batch=host.batch)
                failed = with_host(failed, h, after)
            yield f"journal {journal} fails on host {h}", failed
        if role.pending is not None:
            return
        if "unpack" in does:
            yield from self._unpack(state, h, journal, role)
        if "close" in does:
            yield from self._close(state, h, journal, role)
        if "roll" in does:
            yield from self._roll(state, h, journal, role)

    def _stage(self, state: State, h: int, journal: int, role: Role, ledger: int) -> Iterator[Step]:
        """Stage a frame of a ledger, if there is room in the log."""
        host = state.hosts[h]
        number = host.next_number
        is_staged = any(chunk.journal == journal for chunk in host.batch)
        if number >= self._setup.logs[host.log][1] or is_staged:
            return
        what, serial = "a frame", number
        if ledger > role.record.listed:
            what, serial, role = "a new ledger", -1, role._replace(new=number)
        yield (
            f"host {h} stages {what} of journal {journal} for {number}",
            stage(state, h, journal, role, (Frame(ledger, role.record.epoch, serial),)),
        )

    def _unpack(self, state: State, h: int, journal: int, role: Role) -> Iterator[Step]:
        host, record = state.hosts[h], role.record
        below = host.next_number if "unpack what is under way" in self._mutants else host.committed
        if "unpack past a new ledger" not in self._mutants:
            below = min(below, role.new) if role.new >= 0 else below
        frames: Frames = tuple(
            frame
            for number, frames in role.kept
            if number < below
            for frame in frames
            if frame.ledger <= record.listed
        )
        if not frames:
            return
        written = record._replace(
            revision=record.revision + 1,
            tail=Tail(role.log, below, record.epoch),
            parts=record.parts + frames,
        )
        step = with_role(state, h, journal, role._replace(pending=written))
        write = Write(h, journal, record.revision, written, None)
        yield f"host {h} unpacks journal {journal} below {below}", sent(step, write)

    def _close(self, state: State, h: int, journal: int, role: Role) -> Iterator[Step]:
        host, record = state.hosts[h], role.record
        is_sent = any(
            (chunk.journal, chunk.epoch) == (journal, record.epoch)
            for flight in host.flying
            for chunk in flight.data
        )
        if is_sent and "close before the commit" not in self._mutants:
            return
        tail = record.tail._replace(end=max(record.tail.first, host.committed))
        closed = record._replace(revision=record.revision + 1, status=Status.CLOSED, tail=tail)
        goes_on = "close keeps acknowledging" in self._mutants
        after = role._replace(pending=closed, cut=not goes_on)
        step = with_role(state, h, journal, after)
        if not goes_on:
            batch = tuple(chunk for chunk in host.batch if chunk.journal != journal)
            step = with_host(step, h, step.hosts[h]._replace(batch=batch))
        write = Write(h, journal, record.revision, closed, None)
        yield f"host {h} closes journal {journal} at {tail.end}", sent(step, write)

    def _roll(self, state: State, h: int, journal: int, role: Role) -> Iterator[Step]:
        host, record = state.hosts[h], role.record
        new = record.listed + 1
        if role.new < 0:
            yield from self._stage(state, h, journal, role, new)
        elif role.new < host.committed:
            listing = record._replace(revision=record.revision + 1, listed=new)
            step = with_role(state, h, journal, role._replace(pending=listing))
            write = Write(h, journal, record.revision, listing, None)
            yield f"host {h} lists ledger {new} of journal {journal}", sent(step, write)


def stage(state: State, h: int, journal: int, role: Role, frames: Frames) -> State:
    """Stage a chunk of an activation for the next object."""
    host = state.hosts[h]
    number = host.next_number
    chunk = Chunk(journal, role.record.epoch, frames)
    first = role.first if role.first >= 0 else number
    staged = role._replace(first=first, kept=(*role.kept, (number, frames)))
    step = with_host(state, h, host._replace(batch=(*host.batch, chunk)))
    return with_role(step, h, journal, staged)
