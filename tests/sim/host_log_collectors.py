"""Floors and deletions in the model of host logs."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.host_log_states import (
    SEAL,
    Frames,
    Host,
    Kept,
    Left,
    Phase,
    RaisedFloor,
    Record,
    Role,
    Setup,
    State,
    Status,
    Step,
    Sweep,
    Write,
    frames_of,
    is_absent,
    replaced,
    sent,
    with_host,
)


class Collectors:
    """The steps that raise floors and delete objects below them."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._mutants = setup.mutants

    def steps(self, state: State) -> Iterator[Step]:
        """What the owners of logs, and the adopters of ended ones, do."""
        yield from self._deletions(state)
        for h, host in enumerate(state.hosts):
            if "floor" in self._setup.does:
                yield from self._look_at_left(state, h, host)
                yield from self._own_floors(state, h, host)
            if "unpack-closed" in self._setup.does:
                yield from self._unpack_closed(state, h, host)
            if host.sweep is not None:
                yield self._sweep_on(state, h, host, host.sweep)
            elif state.budget.sweeps:
                yield from self._sweeps(state, h, host)

    def _deletions(self, state: State) -> Iterator[Step]:
        for log, slots in enumerate(state.logs):
            for number, slot in enumerate(slots[: state.floors[log]]):
                if slot is not None and not slot.deleted:
                    gone = replaced(slots, number, slot._replace(deleted=True))
                    step = state._replace(logs=replaced(state.logs, log, gone))
                    yield f"{log}/{number} is deleted", step

    # ---------------------------------------------------------------- one's own log

    def _look_at_left(self, state: State, h: int, host: Host) -> Iterator[Step]:
        """The record of a journal that left tells which of its chunks are needed."""
        for at, left in enumerate(host.left):
            kept = self._still_needed(state.records[left.journal], left)
            if kept == left.kept:
                continue
            rest = host.left[:at] + host.left[at + 1 :]
            if kept:
                rest = replaced(host.left, at, left._replace(kept=kept))
            label = f"host {h} reads record {left.journal}, which left it"
            yield label, with_host(state, h, host._replace(left=rest))

    def _still_needed(self, record: Record, left: Left) -> Kept:
        waits = left.is_writing and record.revision == left.revision
        if waits and "floor ignores a late write" not in self._mutants:
            return left.kept
        log, first, epoch, end = record.tail
        if (log, epoch) != (left.log, left.epoch):
            return ()
        return tuple(e for e in left.kept if first <= e[0] and (end < 0 or e[0] < end))

    def _unpack_closed(self, state: State, h: int, host: Host) -> Iterator[Step]:
        """The process that closed a journal unpacks it, if nobody takes it meanwhile."""
        for at, left in enumerate(host.left):
            record = state.records[left.journal]
            log, first, epoch, end = record.tail
            if record.status is not Status.CLOSED or (log, epoch) != (left.log, left.epoch):
                continue
            frames: Frames = tuple(
                frame
                for number, kept in left.kept
                if first <= number < end
                for frame in kept
                if frame.ledger <= record.listed
            )
            written = record._replace(
                revision=record.revision + 1,
                tail=record.tail._replace(first=end),
                parts=record.parts + frames,
            )
            write = Write(h, left.journal, record.revision, written, None)
            if not frames or write in state.net:
                continue
            step = sent(state, write)
            if "floor before the record" in self._mutants:
                rest = host.left[:at] + host.left[at + 1 :]
                step = with_host(step, h, host._replace(left=rest))
            yield f"host {h} unpacks closed journal {left.journal}", step

    def _own_floors(self, state: State, h: int, host: Host) -> Iterator[Step]:
        logs = host.past if host.log < 0 else (*host.past, (host.log, host.committed))
        for log, committed in logs:
            needed = [n for role in host.roles if role for n in self._kept_by(role, log)]
            if "floor omits journals that left" not in self._mutants:
                needed += [n for left in host.left if left.log == log for n, _ in left.kept]
            floor = min([committed, *needed])
            if floor <= state.floors[log]:
                continue
            raised = state._replace(floors=replaced(state.floors, log, floor))
            yield f"host {h} raises the floor of log {log} to {floor}", raised
            if state.budget.strays:
                yield from self._late_floors(state, h, log, floor)

    def _late_floors(self, state: State, h: int, log: int, floor: int) -> Iterator[Step]:
        """A floor that was allowed before or is now is still under way."""
        budget = state.budget._replace(strays=state.budget.strays - 1)
        for value in range(state.floors[log] + 1, floor + 1):
            late = RaisedFloor(log, state.floors[log], value)
            step = sent(state._replace(budget=budget), late)
            yield f"host {h} sends floor {value} of log {log}, which comes late", step

    def _kept_by(self, role: Role, log: int) -> list[int]:
        if role.log != log:
            return []
        if "floor omits openings" in self._mutants and role.phase is not Phase.OPEN:
            return []
        numbers = [number for number, _ in role.kept]
        if "floor before the record" in self._mutants and role.pending is not None:
            numbers = [number for number in numbers if number >= role.pending.tail.first]
        return numbers

    # ---------------------------------------------------------------- ended logs

    def _sweeps(self, state: State, h: int, host: Host) -> Iterator[Step]:
        for log, slots in enumerate(state.logs):
            if log == host.log:
                continue
            floor, seal = state.floors[log], state.floors[log]
            while seal < len(slots) and not is_absent(slots[seal]) and slots[seal] != SEAL:
                seal += 1
            if seal == len(slots) or slots[seal] != SEAL:
                continue
            last = seal + 1 if "SEAL deleted" in self._mutants else seal
            sweep = Sweep(log, floor, seal, 0, last)
            budget = state.budget._replace(sweeps=state.budget.sweeps - 1)
            step = with_host(state._replace(budget=budget), h, host._replace(sweep=sweep))
            yield f"host {h} reads log {log} up to its SEAL at {seal}, to delete it", step

    def _sweep_on(self, state: State, h: int, host: Host, sweep: Sweep) -> Step:
        """Read the next record; after the last one raise the floor."""
        journal = sweep.journal
        if journal == len(state.records):
            step = with_host(state, h, host._replace(sweep=None))
            label = f"host {h} raises the floor of ended log {sweep.log} to {sweep.needed}"
            if state.floors[sweep.log] == sweep.floor:
                floors = replaced(state.floors, sweep.log, max(sweep.floor, sweep.needed))
                step = step._replace(floors=floors)
            return label, step
        needed = self._needed_by(state, journal, sweep)
        label = f"host {h} reads record {journal} for ended log {sweep.log}"
        if needed < 0:
            return label, with_host(state, h, host._replace(sweep=None))
        after = sweep._replace(journal=journal + 1, needed=min(sweep.needed, needed))
        return label, with_host(state, h, host._replace(sweep=after))

    def _needed_by(self, state: State, journal: int, sweep: Sweep) -> int:
        """The lowest number that a record needs of an ended log; -1 if it can't be said now."""
        record, slots = state.records[journal], state.logs[sweep.log]
        numbers = range(sweep.floor, sweep.seal)
        if not any(frames_of(slots[number], journal, 0) for number in numbers):
            return sweep.needed
        if (
            record.status is Status.OPENING
            and record.owner == sweep.log
            and "sweep ignores openings" not in self._mutants
        ):
            return -1
        log, first, epoch, end = record.tail
        if log != sweep.log:
            return sweep.needed
        needed = [
            number
            for number in numbers
            if frames_of(slots[number], journal, epoch)
            and first <= number < (end if end >= 0 else sweep.seal)
        ]
        return min([sweep.needed, *needed])
